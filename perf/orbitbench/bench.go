package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/perf/baselines"
	"github.com/orbitte/orbitte/perf/figures"
	"github.com/orbitte/orbitte/perf/meter"
)

// bench is the measuring side: the source process, the memory, and what is open at the moment.
type bench struct {
	source   *baselines.Program
	where    helloLine
	memory   *orbitte.Memory
	filled   int
	kernel   string // the default of setups
	pairs    map[Setup]*pair
	streams  map[int]baselines.Streams
	plain    *baselines.NetConn
	peers    *peers
	gathered map[int]*crowd // by their number of peers
	used     string         // the engine's own word for its kernel
	noise    uint64         // allocations of the source that a question about its heap makes itself
	brief    bool           // true exactly when nobody wants to know system calls and the phases of submissions
	counting bool           // true exactly while system calls are counted, which makes each of them slower
}

// pair is an engine and its peers.
type pair struct {
	setup    Setup
	engine   *orbitte.Engine
	ids      []int // of the source engines
	segments []*orbitte.Segment
	remote   uint64
}

func newBench(kernel string) (*bench, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	b := &bench{kernel: kernel, pairs: map[Setup]*pair{}, gathered: map[int]*crowd{}, streams: map[int]baselines.Streams{}, peers: &peers{}}
	if b.source, err = baselines.StartProgram("the source process", self, "-source"); err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(b.source.Hello()), &b.where); err != nil {
		b.close()
		return nil, err
	}
	if b.memory, err = orbitte.Allocate(memoryBytes); err != nil {
		b.close()
		return nil, err
	}
	ownPattern.fill(b.memory.Bytes()[:filledBytes], 0)
	b.filled = filledBytes
	clear(b.memory.Bytes()[zeroOffset:][:zeroBytes])
	if err := b.prepare(); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

// prepare learns what the questions themselves cost, and opens a pair once: its kernel is what the results name.
func (b *bench) prepare() error {
	if err := b.calibrate(); err != nil {
		return err
	}
	p, err := b.pair(options{kernel: b.kernel}.standard())
	if err != nil {
		return err
	}
	b.used = p.engine.Stats().Kernel
	return b.release(func(*pair) bool { return true })
}

func (b *bench) calibrate() error {
	var first, second heap
	for _, h := range []*heap{{}, &first, &second} { // the first answer of all makes its encoder
		if err := b.source.Ask(question{Do: "heap"}, h); err != nil {
			return err
		}
	}
	b.noise = second.Mallocs - first.Mallocs
	return nil
}

func (b *bench) close() {
	_ = b.release(func(*pair) bool { return true })
	_ = b.disperse()
	for _, s := range b.streams {
		s.Close()
	}
	if b.plain != nil {
		b.plain.Close()
	}
	b.peers.close()
	b.source.Close()
	if b.memory != nil {
		b.memory.Close()
	}
}

// fill makes more of both memories present.
func (b *bench) fill(bytes int) error {
	if bytes <= b.filled {
		return nil
	}
	ownPattern.fill(b.memory.Bytes()[b.filled:bytes], b.filled)
	b.filled = bytes
	return b.source.Ask(question{Do: "fill", Bytes: bytes}, nil)
}

// raw is n streams to the raw server.
func (b *bench) raw(n int) (baselines.Streams, error) {
	if s := b.streams[n]; s != nil {
		return s, nil
	}
	s, err := baselines.ConnectAll(b.where.Raw, n)
	if err == nil {
		b.streams[n] = s
	}
	return s, err
}

// dropRaw closes n streams that a failure has left in the middle of a command.
func (b *bench) dropRaw(n int) {
	b.streams[n].Close()
	delete(b.streams, n)
}

func (b *bench) goNet() (*baselines.NetConn, error) {
	if b.plain != nil {
		return b.plain, nil
	}
	c, err := baselines.DialNet(b.where.Net)
	if err == nil {
		b.plain = c
	}
	return c, err
}

// pair opens an engine and its peers, or finds them open. The first thing that it does is to move bytes both ways and to
// compare them.
func (b *bench) pair(s Setup) (*pair, error) {
	if p := b.pairs[s]; p != nil {
		return p, nil
	}
	config, err := s.config()
	if err != nil {
		return nil, err
	}
	p := &pair{setup: s}
	if p.engine, err = orbitte.Open(config); err != nil {
		return nil, err
	}
	b.pairs[s] = p
	if _, err := p.engine.Register(b.memory, 0, memoryBytes, orbitte.LocalOnly); err != nil {
		return nil, err
	}
	for range max(s.Sources, 1) {
		if err := b.addSource(p); err != nil {
			return nil, err
		}
	}
	return p, b.verify(p)
}

func (b *bench) addSource(p *pair) error {
	var at opened
	if err := b.source.Ask(question{Do: "open", Setup: p.setup.source()}, &at); err != nil {
		return err
	}
	p.ids, p.remote = append(p.ids, at.ID), at.Address
	epoch, err := orbitte.ParseEpoch(at.Epoch)
	if err != nil {
		return err
	}
	segment, err := p.engine.OpenSegment(context.Background(), at.Endpoint, epoch)
	if err == nil {
		p.segments = append(p.segments, segment)
	}
	return err
}

// release closes the engines that are no longer wanted.
func (b *bench) release(unwanted func(*pair) bool) error {
	var errs []error
	for key, p := range b.pairs {
		if !unwanted(p) {
			continue
		}
		delete(b.pairs, key)
		errs = append(errs, p.engine.Close(context.Background()))
		for _, id := range p.ids {
			errs = append(errs, b.source.Ask(question{Do: "close", ID: id}, nil))
		}
	}
	return distinct(errs...)
}

// distinct joins errors, each text once: a source that is gone says so at the end of each of its engines.
func distinct(errs ...error) error {
	var kept []error
	for _, err := range errs {
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			kept = append(kept, joined.Unwrap()...)
		} else if err != nil {
			kept = append(kept, err)
		}
	}
	told := map[string]bool{}
	return errors.Join(slices.DeleteFunc(kept, func(err error) bool {
		again := told[err.Error()]
		told[err.Error()] = true
		return again
	})...)
}

// The last bytes of both memories are for comparing, not for measuring: the source's at keptOffset are never written.
const (
	checkedBytes = 256 << 10
	keptOffset   = memoryBytes - 2*checkedBytes
)

// Before them both memories have bytes that are zero and stay so.
const (
	zeroBytes  = baselines.WorkingBytes
	zeroOffset = keptOffset - zeroBytes
)

// verify reads a range from each peer, writes another one and reads that back.
func (b *bench) verify(p *pair) error {
	near := b.memory.Bytes()
	const at, scratch = keptOffset, memoryBytes - checkedBytes
	for _, segment := range p.segments {
		for _, step := range []struct {
			operation    orbitte.Operation
			local, far   uint64
			want         pattern
			wantAt, zero int
		}{
			{orbitte.Read, scratch, at, sourcePattern, at, scratch},
			{orbitte.Write, scratch, scratch, sourcePattern, at, -1},
			{orbitte.Read, at, scratch, sourcePattern, at, at},
		} {
			if step.zero >= 0 {
				clear(near[step.zero:][:checkedBytes])
			}
			r := orbitte.Request{Operation: step.operation, Transport: p.setup.transport(), Segment: segment,
				Local: b.memory.Address() + step.local, Remote: p.remote + step.far, Length: checkedBytes}
			if _, err := p.engine.SubmitAndWait(context.Background(), []orbitte.Request{r}); err != nil {
				return err
			}
			if i := step.want.differs(near[step.local:][:checkedBytes], step.wantAt); i >= 0 {
				return fmt.Errorf("%s: byte %d of a %v is wrong", p.setup.name(), i, step.operation)
			}
		}
	}
	return nil
}

// metered runs the timed part of a sample and adds what both processes used.
func (b *bench) metered(p *pair, s *figures.Sample, timed func() error) error {
	var before, after heap
	own := uint64(0)
	if p != nil {
		own = crossings(p.engine)
	}
	if err := b.source.Ask(question{Do: "heap"}, &before); err != nil {
		return err
	}
	m := b.meter(b.source.Pid())
	err := timed()
	s.Usage = m.Stop()
	if err != nil {
		return err
	}
	if err := b.source.Ask(question{Do: "heap"}, &after); err != nil {
		return err
	}
	s.Usage.Add(figures.Usage{Allocations: less(after.Mallocs, before.Mallocs, b.noise), AllocatedBytes: after.Bytes - before.Bytes, AllocationsCounted: true})
	if p != nil {
		s.Usage.Crossings = crossings(p.engine) - own + after.Crossings - before.Crossings
	}
	return nil
}

func less(after, before, noise uint64) uint64 {
	if after-before <= noise {
		return 0
	}
	return after - before - noise
}

func (b *bench) meter(pids ...int) *meter.Meter {
	if b.counting {
		return meter.Start(pids...)
	}
	return meter.StartBrief(pids...)
}

// alone is metered for one that uses other processes, or none.
func (b *bench) alone(s *figures.Sample, timed func() error, pids ...int) error {
	m := b.meter(pids...)
	err := timed()
	s.Usage = m.Stop()
	return err
}
