package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/orbitte/orbitte"
)

// visit is the peer: what lies on its GPU goes to the source's GPU and comes back beside it. A GPU's memory has no bytes for
// this program: requests to the engine's own segment fill it and read it.
func visit(w *way, endpoint, epochText string, ordinal int) (err error) {
	epoch, err := orbitte.ParseEpoch(epochText)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	e, err := w.open("127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close(ctx)) }()
	device, err := orbitte.AllocateDevice(w.driver, ordinal, 2*slot)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, device.Close()) }()
	host, err := orbitte.Allocate(slot)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	registrations, err := e.RegisterBatch([]orbitte.Range{
		{Memory: device, Length: 2 * slot, Permission: orbitte.ReadWrite}, {Memory: host, Length: slot, Permission: orbitte.LocalOnly},
	})
	if err != nil {
		return err
	}
	defer func() {
		for _, r := range registrations {
			err = errors.Join(err, e.Unregister(ctx, r))
		}
	}()
	own, err := e.OpenSegment(ctx, e.Endpoint(), e.Epoch())
	if err != nil {
		return err
	}
	peer, err := e.OpenSegment(ctx, endpoint, epoch)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.CloseSegment(ctx, own), e.CloseSegment(ctx, peer)) }()
	v := voyage{way: w, ctx: ctx, engine: e, own: own, peer: peer, host: host, here: device.Address(), there: peer.Regions()[0].Address}
	for i, n := range sizes {
		if err := v.run(n, i); err != nil {
			return fmt.Errorf("%d bytes: %w", n, err)
		}
	}
	return nil
}

type voyage struct {
	way         *way
	ctx         context.Context
	engine      *orbitte.Engine
	own, peer   *orbitte.Segment
	host        *orbitte.Memory
	here, there uint64
}

// run moves payload and guards: host, own GPU, the source's GPU, the other half of the own GPU, host.
func (v *voyage) run(n, seed int) error {
	whole := v.host.Bytes()[:n+2*guard]
	want := bytes.Repeat([]byte{0x5a}, len(whole))
	fill(want[guard:][:n], seed)
	copy(whole, want)
	at, back := v.host.Address(), v.here+slot
	length := uint64(len(whole))
	began := time.Now()
	report, err := v.engine.SubmitAndWait(v.ctx, []orbitte.Request{
		{Operation: orbitte.Write, Segment: v.own, Local: at, Remote: v.here, Length: length},
		v.way.request(orbitte.Request{Operation: orbitte.Write, Segment: v.peer, Local: v.here, Remote: v.there, Length: length}),
		v.way.request(orbitte.Request{Operation: orbitte.Read, Segment: v.peer, Local: back, Remote: v.there, Length: length}),
	})
	if err != nil {
		return err
	}
	took := time.Since(began)
	clear(whole)
	if _, err := v.engine.SubmitAndWait(v.ctx, []orbitte.Request{{Operation: orbitte.Read, Segment: v.own, Local: at, Remote: back, Length: length}}); err != nil {
		return err
	}
	if at := differ(whole, want); at >= 0 {
		return fmt.Errorf("byte %d is %#x, want %#x", at-guard, whole[at], want[at])
	}
	fmt.Printf("%d bytes went from GPU to GPU and back (%s), no guard byte was touched, %.0f MB/s\n", n, report.Path, 2*float64(n)/1e6/took.Seconds())
	return nil
}
