package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/perf/figures"
	"github.com/orbitte/orbitte/perf/meter"
)

// crowd is one engine with many peers. Over tcp they are one source engine that is known under as many loopback
// addresses, so that there are as many streams at both ends, but not as many engines. A source of HP-TCP bounds the
// streams of one requester, so there each peer is an engine of its own.
type crowd struct {
	setup    Setup
	engine   *orbitte.Engine
	first    opened
	ids      []int // of the source engines
	segments []*orbitte.Segment
}

// address is the i-th loopback address.
func address(i int) string { return fmt.Sprintf("127.1.%d.%d", i/250, i%250+1) }

// distinct is true exactly when each peer is an engine of its own.
func (s Setup) distinct() bool { return s.Transport == "hptcp" }

func (b *bench) gather(ctx context.Context, setup Setup, peers int) (c *crowd, err error) {
	c = &crowd{setup: setup}
	config, err := setup.config()
	if err != nil {
		return nil, err
	}
	if c.engine, err = orbitte.Open(config); err != nil {
		return nil, err
	}
	_, err = c.engine.Register(b.memory, 0, memoryBytes, orbitte.LocalOnly)
	if err == nil && !setup.distinct() {
		c.first, err = c.source(b, question{Do: "open", Setup: setup.source(), Bind: "0.0.0.0:0", Name: address(0) + ":0"})
	}
	if err == nil {
		err = c.grow(ctx, b, peers)
	}
	if err != nil {
		return nil, errors.Join(err, c.close(b))
	}
	return c, nil
}

// source opens a source engine.
func (c *crowd) source(b *bench, q question) (at opened, err error) {
	if err = b.source.Ask(q, &at); err == nil {
		c.ids = append(c.ids, at.ID)
	}
	return at, err
}

// grow opens segments until there are so many.
func (c *crowd) grow(ctx context.Context, b *bench, peers int) error {
	for i := len(c.segments); i < peers; i++ {
		at := c.first
		at.Endpoint = address(i) + portOf(at.Endpoint)
		if c.setup.distinct() {
			var err error
			if at, err = c.source(b, question{Do: "open", Setup: c.setup.with(func(s *Setup) { s.Progress = "event" })}); err != nil {
				return err
			}
			c.first.Address = at.Address
		}
		epoch, err := orbitte.ParseEpoch(at.Epoch)
		if err != nil {
			return err
		}
		s, err := c.engine.OpenSegment(ctx, at.Endpoint, epoch)
		if err != nil {
			return fmt.Errorf("peer %d: %w", i, err)
		}
		c.segments = append(c.segments, s)
	}
	return nil
}

func portOf(endpoint string) string {
	for i := len(endpoint) - 1; i >= 0; i-- {
		if endpoint[i] == ':' {
			return endpoint[i:]
		}
	}
	return endpoint
}

func (c *crowd) close(b *bench) error {
	errs := []error{c.engine.Close(context.Background())}
	for _, id := range c.ids {
		errs = append(errs, b.source.Ask(question{Do: "close", ID: id}, nil))
	}
	return distinct(errs...)
}

const submitters = 16

// rates makes n READs of 64 B over all peers by 16 goroutines, each with its share of them.
func (c *crowd) rates(ctx context.Context, b *bench, n int) (s figures.Sample, err error) {
	parts, errs := make([]figures.Sample, submitters), make([]error, submitters)
	p := &pair{setup: c.setup, engine: c.engine}
	err = b.metered(p, &s, func() error {
		var group sync.WaitGroup
		start := time.Now()
		for i := range submitters {
			group.Go(func() { errs[i] = c.submitter(ctx, b, i, n/submitters, &parts[i]) })
		}
		group.Wait()
		s.Seconds = time.Since(start).Seconds()
		return first(errs)
	})
	s.Latency = figures.NewHistogram()
	for i := range parts {
		s.Operations += parts[i].Operations
		s.Bytes += parts[i].Bytes
		s.Latency.Merge(parts[i].Latency)
	}
	return s, err
}

func (c *crowd) submitter(ctx context.Context, b *bench, who, times int, s *figures.Sample) error {
	s.Latency = figures.NewHistogram()
	request := make([]orbitte.Request, 1)
	for i := range times {
		at := uint64(who) * 64
		request[0] = orbitte.Request{Operation: orbitte.Read, Transport: c.setup.transport(), Segment: c.segments[(who+i*submitters)%len(c.segments)],
			Local: b.memory.Address() + at, Remote: c.first.Address + at, Length: 64}
		if err := submitAll(ctx, c.engine, request, 1, s); err != nil {
			return err
		}
	}
	return nil
}

// crowd is the engine with so many peers, gathered once for a group.
func (b *bench) crowd(ctx context.Context, setup Setup, peers int) (*crowd, error) {
	if c := b.gathered[peers]; c != nil {
		return c, nil
	}
	c, err := b.gather(ctx, setup, peers)
	if err != nil {
		return nil, err
	}
	b.gathered[peers] = c
	return c, nil
}

func (b *bench) disperse() (err error) {
	for n, c := range b.gathered {
		delete(b.gathered, n)
		if closed := c.close(b); err == nil {
			err = closed
		}
	}
	return err
}

// crowdRate is the rate over so many peers.
func crowdRate(setup Setup, peers int) subject {
	return subject{
		name: fmt.Sprintf("%s, %d peers", setup.name(), peers), baseline: peers == 10, first: 2 * max(peers, submitters) / submitters * submitters, step: submitters, most: 200000,
		axes: figures.Axes{Operation: "READ", Size: 64, Batch: 1, Streams: submitters, Peers: peers, Progress: setup.Progress, Kernel: setup.Kernel, Transport: setup.Transport},
		measure: func(ctx context.Context, b *bench, n int) (s figures.Sample, err error) {
			c, err := b.crowd(ctx, setup, peers)
			if err != nil {
				return s, err
			}
			return c.rates(ctx, b, n)
		},
	}
}

// idle is what peers cost that nobody uses.
type idle struct {
	cpuShare  float64 // of one core, both processes
	heapBytes float64 // for each peer, the greater of the two processes
	rssBytes  float64
}

// idleCost opens a few peers, looks, opens the rest, looks again, and waits.
func (b *bench) idleCost(ctx context.Context, setup Setup, few, many int, wait time.Duration) (cost idle, err error) {
	c, err := b.gather(ctx, setup, few)
	if err != nil {
		return cost, err
	}
	defer func() {
		if closed := c.close(b); err == nil {
			err = closed
		}
	}()
	var before, after heap
	if err := c.touch(ctx, b); err != nil {
		return cost, err
	}
	live, resident := settled()
	if err := b.source.Ask(question{Do: "heap", Bytes: 1}, &before); err != nil {
		return cost, err
	}
	if err := c.grow(ctx, b, many); err != nil {
		return cost, err
	}
	if err := c.touch(ctx, b); err != nil {
		return cost, err
	}
	if err := sleep(ctx, 300*time.Millisecond); err != nil { // what comes after opening, such as buffers given back
		return cost, err
	}
	liveAfter, residentAfter := settled()
	if err := b.source.Ask(question{Do: "heap", Bytes: 1}, &after); err != nil {
		return cost, err
	}
	each := func(after, before uint64) float64 { return (float64(after) - float64(before)) / float64(many-few) }
	cost.heapBytes, cost.rssBytes = each(liveAfter, live), each(residentAfter, resident)
	if !setup.distinct() { // there the source has as many engines, which is not what is asked
		cost.heapBytes, cost.rssBytes = max(cost.heapBytes, each(after.Live, before.Live)), max(cost.rssBytes, each(after.Resident, before.Resident))
	}
	cost.cpuShare, err = b.idleCPU(ctx, wait)
	return cost, err
}

// touch makes one READ over each peer, so that every stream that a transfer needs is there.
func (c *crowd) touch(ctx context.Context, b *bench) error {
	for _, segment := range c.segments {
		r := orbitte.Request{Operation: orbitte.Read, Transport: c.setup.transport(), Segment: segment, Local: b.memory.Address(), Remote: c.first.Address, Length: 64}
		if _, err := c.engine.SubmitAndWait(ctx, []orbitte.Request{r}); err != nil {
			return err
		}
	}
	return nil
}

// idleCPU is the share of one core that both processes take while nobody asks anything.
func (b *bench) idleCPU(ctx context.Context, wait time.Duration) (float64, error) {
	both := func() float64 { return meter.CPUSeconds(os.Getpid()) + meter.CPUSeconds(b.source.Pid()) }
	before, start := both(), time.Now()
	err := sleep(ctx, wait)
	return (both() - before) / time.Since(start).Seconds(), err
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// idleSubject shows one of the idle figures.
func idleSubject(setup Setup, peers int, name, unit string, figure func(idle) float64) subject {
	return subject{
		name: fmt.Sprintf("%s, %s", setup.name(), name), unit: unit, axes: figures.Axes{Peers: peers, Progress: setup.Progress, Kernel: setup.Kernel, Transport: setup.Transport},
		measure: func(ctx context.Context, b *bench, _ int) (s figures.Sample, err error) {
			cost, err := b.idleCost(ctx, setup, max(peers/100, 1), peers, time.Second)
			s.Value, s.Operations, s.Seconds = figure(cost), uint64(peers), 1
			return s, err
		},
	}
}
