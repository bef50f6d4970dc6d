package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/cuda"
)

// payloadMax is the longest request that an engine serves.
const payloadMax = 64 << 20

// staged is an engine that moves between its own host memory, which is not pinned, and its own device memory.
type staged struct {
	engine       *orbitte.Engine
	segment      *orbitte.Segment
	host, device *orbitte.Memory
	registered   []*orbitte.Registration
}

func openStaged(calls cuda.Calls, o options) (*staged, error) {
	e := &staged{}
	var err error
	e.engine, err = orbitte.Open(orbitte.Config{CUDA: calls, Limits: orbitte.Limits{
		PayloadBytes: payloadMax, SubmittedBytes: max(uint64(o.largest), payloadMax),
		PinnedStagingBytes: o.pinned, StagingChunkBytes: o.chunked,
	}})
	if err != nil {
		return nil, err
	}
	if err := e.prepare(calls, o); err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

func (e *staged) prepare(calls cuda.Calls, o options) (err error) {
	if e.host, err = orbitte.Allocate(o.largest); err != nil {
		return err
	}
	if e.device, err = orbitte.AllocateDevice(calls, o.ordinal, o.largest); err != nil {
		return err
	}
	for _, row := range []struct {
		memory     *orbitte.Memory
		permission orbitte.Permission
	}{{e.host, orbitte.LocalOnly}, {e.device, orbitte.ReadWrite}} {
		r, err := e.engine.Register(row.memory, 0, uint64(o.largest), row.permission)
		if err != nil {
			return err
		}
		e.registered = append(e.registered, r)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	e.segment, err = e.engine.OpenSegment(ctx, e.engine.Endpoint(), e.engine.Epoch())
	return err
}

func (e *staged) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var errs []error
	for _, r := range e.registered { // they keep the memory beyond the engine
		errs = append(errs, e.engine.Unregister(ctx, r))
	}
	errs = append(errs, e.engine.Close(ctx))
	for _, m := range []*orbitte.Memory{e.host, e.device} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}

// move is one transfer, in as many requests as the payload limit wants.
func (e *staged) move(n int, there bool) error {
	operation := orbitte.Read
	if there {
		operation = orbitte.Write
	}
	var requests []orbitte.Request
	for at := 0; at < n; at += payloadMax {
		requests = append(requests, orbitte.Request{
			Operation: operation, Segment: e.segment, Length: uint64(min(payloadMax, n-at)),
			Local: e.host.Address() + uint64(at), Remote: e.device.Address() + uint64(at),
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	report, err := e.engine.SubmitAndWait(ctx, requests)
	if err == nil && report.Bytes != uint64(n) {
		err = fmt.Errorf("%d of %d bytes moved", report.Bytes, n)
	}
	return err
}

// verify moves a pattern there and back.
func (e *staged) verify(n int) error {
	all := e.host.Bytes()[:n]
	for i := range all {
		all[i] = byte(i*7 + i>>8 + n>>10)
	}
	want := bytes.Clone(all)
	if err := e.move(n, true); err != nil {
		return fmt.Errorf("%d bytes to the device: %w", n, err)
	}
	clear(all)
	if err := e.move(n, false); err != nil {
		return fmt.Errorf("%d bytes from the device: %w", n, err)
	}
	if !bytes.Equal(all, want) {
		return fmt.Errorf("%d bytes came back changed", n)
	}
	return nil
}
