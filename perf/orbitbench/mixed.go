package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/perf/baselines"
	"github.com/orbitte/orbitte/perf/figures"
)

const (
	smallBytes = 4096
	largeBytes = 64 << 20
)

// beside measures single READs of 4 KiB while 64 MiB transfers run to the same peer, or without them.
type beside struct {
	setup Setup
	large bool
}

func (w beside) subject() subject {
	name := w.setup.name() + ", alone"
	if w.large {
		name = w.setup.name() + ", beside 64 MiB transfers"
	}
	return subject{
		name: name, baseline: !w.large, first: 50, most: 20000, measure: w.measure, alone: w.setup.spins(),
		axes: figures.Axes{Operation: "READ", Size: smallBytes, Batch: 1, Streams: 1, Progress: w.setup.Progress, Kernel: w.setup.Kernel,
			Transport: w.setup.Transport, Placement: w.setup.Placement},
	}
}

func (w beside) measure(ctx context.Context, b *bench, n int) (s figures.Sample, err error) {
	if err := b.fill(2 * largeBytes); err != nil {
		return s, err
	}
	p, err := b.pair(w.setup)
	if err != nil {
		return s, err
	}
	request := func(at, size uint64) []orbitte.Request {
		return []orbitte.Request{{Operation: orbitte.Read, Transport: w.setup.transport(), Segment: p.segments[0],
			Local: b.memory.Address() + at, Remote: p.remote + at, Length: size}}
	}
	stop := func() error { return nil }
	if w.large {
		stop = background(func() error {
			_, err := p.engine.SubmitAndWait(ctx, request(largeBytes, largeBytes))
			return err
		})
	}
	s.Latency = figures.NewHistogram()
	err = b.metered(p, &s, func() error {
		start := time.Now()
		defer func() { s.Seconds = time.Since(start).Seconds() }()
		return submitAll(ctx, p.engine, request(0, smallBytes), n, &s)
	})
	if ended := stop(); err == nil {
		err = ended
	}
	return s, err
}

// background repeats something until it fails or the returned function is called, which waits for its end. The first
// time has begun when background returns.
func background(do func() error) (stop func() error) {
	var quit atomic.Bool
	var group sync.WaitGroup
	var failed error
	begun := make(chan struct{})
	group.Go(func() {
		close(begun)
		for !quit.Load() && failed == nil {
			failed = do()
		}
	})
	<-begun
	return func() error {
		quit.Store(true)
		group.Wait()
		return failed
	}
}

const (
	rawAloneName  = "raw ping-pong, blocking, alone"
	rawBesideName = "raw ping-pong, blocking, beside a raw stream of 64 MiB blocks"
)

// rawBeside is a raw ping-pong with and without a raw bulk stream beside it: what the machine itself does to the small one.
func rawBeside(large bool) subject {
	name := rawAloneName
	if large {
		name = rawBesideName
	}
	return subject{
		name: name, against: rawAloneName, axes: figures.Axes{Operation: "READ", Size: smallBytes, Batch: 1, Streams: 1}, first: 50, most: 20000,
		measure: func(_ context.Context, b *bench, n int) (s figures.Sample, err error) {
			if err := b.fill(2 * largeBytes); err != nil {
				return s, err
			}
			all, err := b.raw(2)
			if err != nil {
				return s, err
			}
			stop := func() error { return nil }
			if large {
				stop = background(func() error {
					_, err := all[1].Bulk(baselines.Command{What: baselines.Pull, Count: 1, Size: largeBytes}, b.memory.Bytes()[largeBytes:])
					return err
				})
			}
			s.Latency = figures.NewHistogram()
			err = b.metered(nil, &s, func() error {
				start := time.Now()
				err := all[0].PingPong(baselines.Command{What: baselines.PingPong, Count: uint32(n), Size: smallBytes}, b.memory.Bytes(), s.Latency.Record)
				s.Seconds, s.Operations, s.Bytes = time.Since(start).Seconds(), uint64(n), uint64(n)*smallBytes
				return err
			})
			if ended := stop(); err == nil {
				err = ended
			}
			return s, b.rawFailed(2, err)
		},
	}
}
