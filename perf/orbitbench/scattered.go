package main

import (
	"context"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/perf/baselines"
	"github.com/orbitte/orbitte/perf/figures"
)

// pages is a READ or WRITE of count scattered ranges of one size: as one request of pages, or as a batch of requests.
type pages struct {
	setup     Setup
	operation orbitte.Operation
	size      uint64
	count     int
	listed    bool // one request names them all (HP-TCP)
	note      string
}

func (w pages) subject() subject {
	name := w.setup.name()
	if w.listed {
		name += ", one request of pages"
	} else {
		name += ", a request each"
	}
	return subject{
		name: name, note: w.note, first: w.count, step: w.count, alone: w.setup.spins(), measure: w.measure,
		axes: figures.Axes{Operation: operationName(w.operation), Size: w.size, Batch: w.count, Streams: 1, Progress: w.setup.Progress,
			Kernel: w.setup.Kernel, Transport: w.setup.Transport, Placement: w.setup.Placement},
	}
}

// requests names the pages in orders that jump at both ends.
func (w pages) requests(b *bench, p *pair) []orbitte.Request {
	base := orbitte.Request{Operation: w.operation, Transport: w.setup.transport(), Segment: p.segments[0], Local: b.memory.Address(), Remote: p.remote}
	if !w.listed {
		list := make([]orbitte.Request, w.count)
		for i := range uint64(w.count) {
			list[i] = base
			list[i].Local += baselines.Jump(i, uint64(w.count), baselines.NearStep) * w.size
			list[i].Remote += baselines.Jump(i, uint64(w.count), baselines.FarStep) * w.size
			list[i].Length = w.size
		}
		return list
	}
	near, far := make([]uint32, w.count), make([]uint32, w.count)
	for i := range uint64(w.count) {
		near[i] = uint32(baselines.Jump(i, uint64(w.count), baselines.NearStep))
		far[i] = uint32(baselines.Jump(i, uint64(w.count), baselines.FarStep))
	}
	return []orbitte.Request{pagesOf(base, w.size, near, far)}
}

// submissionMax is how many requests go into one submission.
const submissionMax = 8192

func (w pages) measure(ctx context.Context, b *bench, n int) (s figures.Sample, err error) {
	if err := b.fill(w.count * int(w.size)); err != nil {
		return s, err
	}
	p, err := b.pair(w.setup)
	if err != nil {
		return s, err
	}
	begin := time.Now()
	list := w.requests(b, p)
	s.Phases.Prepare = time.Since(begin)
	s.Latency = figures.NewHistogram()
	err = b.metered(p, &s, func() error {
		start := time.Now()
		defer func() { s.Seconds = time.Since(start).Seconds() }()
		for range n / w.count {
			if err := submitParts(ctx, p.engine, list, &s); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return s, err
	}
	s.Operations, s.Value = uint64(n), 0
	if b.brief {
		return s, nil
	}
	return s, postOnce(ctx, p.engine, list[:min(len(list), submissionMax)], &s.Phases)
}

// submitParts submits a list in parts that a submission may have; the whole list is one operation in the histogram.
func submitParts(ctx context.Context, e *orbitte.Engine, list []orbitte.Request, s *figures.Sample) error {
	start := time.Now()
	for len(list) > 0 {
		part := list[:min(len(list), submissionMax)]
		report, err := e.SubmitAndWait(ctx, part)
		if err != nil {
			return err
		}
		s.Bytes += report.Bytes
		list = list[len(part):]
	}
	s.Latency.Record(time.Since(start))
	return nil
}

// postOnce submits in the asynchronous way, where the caller sees what happens when.
func postOnce(ctx context.Context, e *orbitte.Engine, list []orbitte.Request, out *figures.Phases) error {
	start := time.Now()
	batch, err := e.Submit(ctx, list)
	if err != nil {
		return err
	}
	posted := time.Now()
	_, err = batch.Wait(ctx)
	done := time.Now()
	if freed := batch.Free(); err == nil {
		err = freed
	}
	out.Submissions, out.Post, out.Transfer = 1, posted.Sub(start), done.Sub(posted)
	return err
}
