package main

import (
	"context"
	"time"

	"github.com/orbitte/orbitte"
)

const (
	// windowBytes is the size of one batch, and of what is prepared for it.
	windowBytes = 8 << 20
	// batchRequestsMax is the engine's default limit for one batch.
	batchRequestsMax = 1024
	// batchesInFlight keeps the stream busy while one end is being prepared and another one checked.
	batchesInFlight = 2
)

// mover moves one remote range, batch by batch, with two batches in flight.
type mover struct {
	engine         *orbitte.Engine
	segment        *orbitte.Segment
	operation      orbitte.Operation
	transport      orbitte.Transport
	remote, length uint64
	request        uint64        // bytes of one request
	timeout        time.Duration // of one batch
	// prepare says where the bytes of a part are in this process, before its batch is submitted.
	prepare func(offset, n uint64) (local uint64, err error)
	// landed is told of each part in order, once its batch has succeeded; nil: nobody is.
	landed func(offset, n uint64)

	next     uint64 // what lies before it was submitted
	requests []orbitte.Request
	flying   []flight
	carrier  string // how the last batch was carried
}

// flight is one batch in flight.
type flight struct {
	batch     *orbitte.Batch
	cancel    context.CancelFunc
	offset, n uint64
}

// run moves everything. Afterwards the local memory is quiet, unless the error is ErrUnquiesced. Moved
// counts the bytes of the requests that succeeded.
func (m *mover) run(ctx context.Context) (moved uint64, err error) {
	m.request = max(1, min(m.request, m.segment.TransferBytesMax(), windowBytes))
	if err := m.fill(ctx); err != nil {
		return 0, m.abandon(err)
	}
	for len(m.flying) > 0 {
		oldest := m.flying[0]
		m.flying = m.flying[1:]
		report, err := oldest.end()
		moved += report.Bytes
		if err == nil {
			m.carrier = report.Path
			err = m.fill(ctx) // first, so that the stream is busy while landed works
		}
		if err != nil {
			return moved, m.abandon(err)
		}
		if m.landed != nil {
			m.landed(oldest.offset, oldest.n)
		}
	}
	return moved, nil
}

// fill submits until enough is in flight.
func (m *mover) fill(ctx context.Context) error {
	for len(m.flying) < batchesInFlight && m.next < m.length {
		n := min(windowBytes, m.request*batchRequestsMax, m.length-m.next)
		if err := m.submit(ctx, m.next, n); err != nil {
			return err
		}
		m.next += n
	}
	return nil
}

func (m *mover) submit(ctx context.Context, offset, n uint64) error {
	local, err := m.prepare(offset, n)
	if err != nil {
		return err
	}
	m.requests = m.requests[:0]
	for at := uint64(0); at < n; at += m.request {
		m.requests = append(m.requests, orbitte.Request{
			Operation: m.operation, Transport: m.transport, Segment: m.segment, Local: local + at, Remote: m.remote + offset + at, Length: min(m.request, n-at),
		})
	}
	bounded, cancel := context.WithTimeout(ctx, m.timeout)
	batch, err := m.engine.Submit(bounded, m.requests)
	if err != nil {
		cancel()
		return err
	}
	m.flying = append(m.flying, flight{batch, cancel, offset, n})
	return nil
}

// end waits for a batch, which its own context bounds.
func (f *flight) end() (orbitte.Report, error) {
	report, err := f.batch.Wait(context.Background())
	f.cancel()
	f.batch.Free()
	return report, err
}

// abandon ends what is in flight, so that the local memory is quiet, and passes the cause on.
func (m *mover) abandon(cause error) error {
	for _, f := range m.flying {
		f.batch.Cancel()
	}
	for _, f := range m.flying {
		if report, err := f.end(); err != nil && !report.LocallyDrained {
			cause = err // ErrUnquiesced decides what may be unmapped
		}
	}
	m.flying = nil
	return cause
}
