package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/perf/baselines"
	"github.com/orbitte/orbitte/perf/figures"
)

// work is a bulk job of the engine.
type work struct {
	setup     Setup
	operation orbitte.Operation
	size      uint64
	batch     int // requests of one submission
	streams   int // submitters in parallel, each with a peer of its own over tcp
	// zeros: ranges without content, as some programs of others have them; the size is at most zeroBytes.
	zeros bool
}

func (w work) axes() figures.Axes {
	return figures.Axes{Operation: operationName(w.operation), Size: w.size, Batch: w.batch, Streams: w.streams, Progress: w.setup.Progress,
		Kernel: w.setup.Kernel, Transport: w.setup.Transport, Placement: w.setup.Placement}
}

func operationName(o orbitte.Operation) string {
	if o == orbitte.Write {
		return "WRITE"
	}
	return "READ"
}

// subject makes it one of a group.
func (w work) subject() subject {
	if w.streams == 0 {
		w.streams = 1
	}
	if w.setup.Transport == "tcp" && w.streams > 1 {
		w.setup.Sources = w.streams
	}
	first := firstCount(w.size)
	if w.batch == 1 { // one exchange at a time; a busy lane without a core of its own makes each take milliseconds
		first = min(first, 64)
	}
	note := ""
	if w.setup.Progress == "busy" {
		note = fmt.Sprintf("each lane spins: caller and both lanes want 3 processors, here are %d", runtime.NumCPU())
	}
	return subject{
		name: w.setup.name(), axes: w.axes(), note: note, first: first, step: w.batch * w.streams,
		most: int(8 << 30 / w.size), measure: w.measure, alone: w.setup.spins(),
	}
}

// requests makes the list of one submitter.
func (w work) requests(b *bench, p *pair, submitter int) []orbitte.Request {
	list := make([]orbitte.Request, w.batch)
	from := uint64(submitter) * baselines.MemoryBytes(w.size)
	for i := range list {
		at := from + baselines.Offset(uint64(i), w.size)
		if w.zeros {
			at += zeroOffset
		}
		list[i] = orbitte.Request{Operation: w.operation, Transport: w.setup.transport(), Segment: p.segments[submitter%len(p.segments)],
			Local: b.memory.Address() + at, Remote: p.remote + at, Length: w.size}
	}
	return list
}

func (w work) measure(ctx context.Context, b *bench, n int) (s figures.Sample, err error) {
	if err := b.fill(w.streams * int(baselines.MemoryBytes(w.size))); err != nil {
		return s, err
	}
	p, err := b.pair(w.setup)
	if err != nil {
		return s, err
	}
	parts, errs := make([]figures.Sample, w.streams), make([]error, w.streams)
	lists := make([][]orbitte.Request, w.streams)
	for i := range lists {
		lists[i], parts[i].Latency = w.requests(b, p, i), figures.NewHistogram()
	}
	err = b.metered(p, &s, func() error {
		start := time.Now()
		if w.streams == 1 {
			errs[0] = submitAll(ctx, p.engine, lists[0], n/w.batch, &parts[0])
		} else {
			var group sync.WaitGroup
			for i := range w.streams {
				group.Go(func() { errs[i] = submitAll(ctx, p.engine, lists[i], n/w.batch/w.streams, &parts[i]) })
			}
			group.Wait()
		}
		s.Seconds = time.Since(start).Seconds()
		return first(errs)
	})
	if err != nil {
		return s, err
	}
	s.Latency = figures.NewHistogram()
	for i := range parts {
		s.Operations += parts[i].Operations
		s.Bytes += parts[i].Bytes
		s.Latency.Merge(parts[i].Latency)
	}
	if b.brief {
		return s, nil
	}
	return s, phases(ctx, b, w, p, &s.Phases)
}

// submitAll submits the list so many times, one after the other.
func submitAll(ctx context.Context, e *orbitte.Engine, list []orbitte.Request, times int, s *figures.Sample) error {
	for range times {
		start := time.Now()
		report, err := e.SubmitAndWait(ctx, list)
		if err != nil {
			return err
		}
		s.Latency.Record(time.Since(start))
		s.Operations += uint64(report.Completed)
		s.Bytes += report.Bytes
	}
	return nil
}

const phaseSubmissions = 3

// phases submits a few batches in the asynchronous way, where the caller sees what happens when.
func phases(ctx context.Context, b *bench, w work, p *pair, out *figures.Phases) error {
	for range phaseSubmissions {
		begin := time.Now()
		list := w.requests(b, p, 0)
		prepared := time.Now()
		batch, err := p.engine.Submit(ctx, list)
		if err != nil {
			return err
		}
		posted := time.Now()
		_, err = batch.Wait(ctx)
		done := time.Now()
		if err := batch.Free(); err != nil {
			return err
		}
		if err != nil {
			return err
		}
		out.Submissions++
		out.Prepare += prepared.Sub(begin)
		out.Post += posted.Sub(prepared)
		out.Transfer += done.Sub(posted)
	}
	return nil
}

func first(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
