package main

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/perf/figures"
	"github.com/orbitte/orbitte/perf/meter"
)

// registerRounds registers so many ranges and ends them again, so many times over, and tells the processor time of each
// round: what others do on the machine does not count.
func registerRounds(ctx context.Context, b *bench, setup Setup, ranges, rounds int) ([]time.Duration, error) {
	p, err := b.pair(setup)
	if err != nil {
		return nil, err
	}
	const each = 4096
	list := make([]orbitte.Range, ranges)
	for i := range list {
		list[i] = orbitte.Range{Memory: b.memory, Offset: uint64(i) * each, Length: each, Permission: orbitte.LocalOnly}
	}
	var times []time.Duration
	for range rounds {
		start := meter.CPUSeconds(os.Getpid())
		for part := range slices.Chunk(list, registeredAtOnce) {
			if err := registerOnce(ctx, p.engine, part); err != nil {
				return nil, err
			}
		}
		times = append(times, time.Duration((meter.CPUSeconds(os.Getpid())-start)*1e9))
	}
	return times, nil
}

// registeredAtOnce stays below the 4,096 regions that one engine can show.
const registeredAtOnce = 2500

func registerOnce(ctx context.Context, e *orbitte.Engine, list []orbitte.Range) error {
	registered, err := e.RegisterBatch(list)
	for _, r := range registered {
		if ended := e.Unregister(ctx, r); err == nil {
			err = ended
		}
	}
	return err
}

// lastOverThird is how much slower the end of a series is than its third round: the median of the last three over that
// of the second to fourth, since single rounds meet the collector.
func lastOverThird(times []time.Duration) float64 {
	middle := func(list []time.Duration) float64 {
		var f []float64
		for _, t := range list {
			f = append(f, t.Seconds())
		}
		return figures.Median(f)
	}
	if len(times) < 7 {
		return 0
	}
	return middle(times[len(times)-3:]) / middle(times[1:4])
}

func registerSubject(setup Setup, ranges, rounds int) subject {
	return subject{
		name: setup.name(), unit: "last/third", axes: figures.Axes{Batch: ranges, Progress: setup.Progress, Kernel: setup.Kernel},
		note: "an operation is one range registered and unregistered; latencies are processor time of a round",
		measure: func(ctx context.Context, b *bench, _ int) (s figures.Sample, err error) {
			var times []time.Duration
			err = b.alone(&s, func() error {
				start := time.Now()
				times, err = registerRounds(ctx, b, setup, ranges, rounds)
				s.Seconds, s.Operations = time.Since(start).Seconds(), uint64(ranges*len(times))
				return err
			})
			s.Value, s.Latency = lastOverThird(times), figures.NewHistogram()
			for _, t := range times {
				s.Latency.Record(t)
			}
			return s, err
		},
	}
}
