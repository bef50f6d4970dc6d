package orbitte

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// granted runs the world until the source has granted something.
func (p *rdmaPair) granted() {
	p.t.Helper()
	p.until(5*time.Second, func() bool { return gauge(p.t, p.source, "RDMA grants").Used > 0 })
}

// proves G-6, R-9
func TestCloseSourceLetsGrantedTransfersEndAndRefusesNewOnes(t *testing.T) {
	for _, op := range []Operation{Read, Write} {
		p := newRDMAPair(t, 50+uint64(op), Config{}, Config{}, 1<<20)
		b, err := p.requester.Submit(soon(t), []Request{p.overRDMA(op, 0, 1<<20)})
		must(t, err)
		p.granted()
		must(t, p.source.CloseSource(soon(t)))
		if used := gauge(t, p.source, "RDMA grants").Used; used != 0 {
			t.Errorf("%v: CloseSource returned while %d grants are out", op, used)
		}
		report, err := b.Wait(soon(t))
		if err != nil || report.Bytes != 1<<20 || !bytes.Equal(p.local.Bytes(), p.remote.Bytes()) {
			t.Errorf("%v: a transfer that was granted before ends with %+v, %v", op, report, err)
		}
		must(t, b.Free())
		_, err = p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(op, 0, 8)})
		wants(t, err, ErrClosed)
	}
}

// proves G-5, G-6, R-18
func TestCloseInAnyOrderEndsConnectionsAtBothSides(t *testing.T) {
	for i, source := range []bool{true, false} {
		p := newRDMAPair(t, 60+uint64(i), Config{}, Config{}, 1<<20)
		_, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Write, 0, 1<<20)})
		must(t, err)
		first, native := p.requester, p.requesterNative
		if source {
			first, native = p.source, p.sourceNative
		}
		closeEngine(t, first)
		if left := native.Live(); !left.Empty() {
			t.Errorf("a closed engine left %+v", left)
		}
		if kept := first.RetainedResources(); len(kept) != 0 {
			t.Errorf("retained: %v", kept)
		}
	}
}

// proves G-5, R-10
func TestCloseSegmentDestroysThePairsOfBothSides(t *testing.T) {
	p := newRDMAPair(t, 64, Config{RDMA: &RDMAConfig{Width: 2}}, Config{RDMA: &RDMAConfig{Width: 3}}, 1<<20)
	second, err := p.requester.OpenSegment(soon(t), p.source.Endpoint(), p.source.Epoch())
	must(t, err)
	requests := []Request{p.overRDMA(Read, 0, 1<<20), p.overRDMA(Write, 0, 1<<20)}
	for i := range requests {
		requests[i].Segment = second
	}
	_, err = p.requester.SubmitAndWait(soon(t), requests)
	must(t, err)
	pairs := func(e *Engine) int64 { return gauge(t, e, "RDMA queue pairs").Used }
	if pairs(p.requester) != 8 || pairs(p.source) != 8 { // two directions, two devices, the smaller width of 2
		t.Errorf("%d and %d queue pairs, want 8 at each side", pairs(p.requester), pairs(p.source))
	}
	must(t, p.requester.CloseSegment(soon(t), second))
	if pairs(p.requester) != 8 {
		t.Error("another segment of the peer is open, and its connections are gone")
	}
	must(t, p.requester.CloseSegment(soon(t), p.segment))
	if pairs(p.requester) != 0 || pairs(p.source) != 0 || p.sourceNative.Live().Pairs != 0 {
		t.Errorf("after the last segment %d and %d queue pairs are left", pairs(p.requester), pairs(p.source))
	}
}

// proves G-6, G-8
func TestCloseWaitsForTransfersInFlightAndCanBeCalledAgain(t *testing.T) {
	p := newRDMAPair(t, 65, Config{}, Config{}, 1<<20)
	b, err := p.requester.Submit(soon(t), []Request{p.overRDMA(Write, 0, 1<<20)})
	must(t, err)
	p.granted()
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	mentions(t, wants(t, p.requester.Close(gone), ErrUnquiesced).Error(), "in flight")
	closeEngine(t, p.requester)
	if report, err := b.Wait(soon(t)); err != nil || report.Completed != 1 {
		t.Errorf("%+v, %v", report, err)
	}
	must(t, b.Free())
}

// proves M-6
// field case F-56
func TestUnregisterUnderATransferHidesAtOnceAndWaitsForTheDevices(t *testing.T) {
	for i, atSource := range []bool{true, false} {
		p := newRDMAPair(t, 70+uint64(i), Config{}, Config{}, 1<<20)
		engine, handle, native := p.requester, p.own, p.requesterNative
		if atSource {
			engine, handle, native = p.source, p.export, p.sourceNative
		}
		b, err := p.requester.Submit(soon(t), []Request{p.overRDMA(Read, 0, 1<<20)})
		must(t, err)
		p.granted()
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		wants(t, engine.Unregister(gone, handle), ErrUnquiesced)
		if regions := gauge(t, engine, "RDMA memory regions").Used; regions == 0 {
			t.Error("memory was deregistered under a transfer")
		}
		report, err := b.Wait(soon(t))
		if err != nil || report.Bytes != 1<<20 || !bytes.Equal(p.local.Bytes(), p.remote.Bytes()) {
			t.Errorf("the transfer that was admitted before ends with %+v, %v", report, err)
		}
		must(t, b.Free())
		must(t, engine.Unregister(soon(t), handle))
		if regions, _ := nativeUse(t, engine); regions != 0 {
			t.Errorf("%d regions are charged after Unregister, %d live", regions, native.Live().Regions)
		}
		_, err = p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Read, 0, 8)})
		if atSource {
			wants(t, err, ErrUnknownRegion)
		} else {
			wants(t, err, ErrUncovered)
		}
	}
}

// proves G-1, R-14
func TestARestartedPeerInheritsNothing(t *testing.T) {
	p := newRDMAPair(t, 75, Config{}, Config{}, 8192)
	_, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Read, 0, 8192)})
	must(t, err)
	endpoint := p.source.Endpoint()
	closeEngine(t, p.source)
	n := p.native("again", hostA)
	again := newEngine(t, p.config(p.processes["again"], Config{Verbs: n, RDMA: &RDMAConfig{}}, endpoint))
	p.drive(again)
	m := allocated(t, 8192)
	registered(t, again, m, ReadWrite)
	before := bytes.Clone(p.local.Bytes())
	for range 2 { // the first may find the old stream's end
		report, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Write, 0, 8192)})
		if err == nil || report.Completed != 0 {
			t.Fatalf("a request for the old life succeeded: %+v", report)
		}
	}
	_, err = p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Read, 0, 8192)})
	wants(t, err, ErrStaleEpoch)
	if !bytes.Equal(p.local.Bytes(), before) || !bytes.Equal(m.Bytes(), make([]byte, 8192)) {
		t.Error("bytes moved between two lives")
	}
	fresh := opened(t, p.requester, again)
	r := p.overRDMA(Write, 0, 8192)
	r.Segment, r.Remote = fresh, m.Address()
	_, err = p.requester.SubmitAndWait(soon(t), []Request{r})
	must(t, err)
	if !bytes.Equal(m.Bytes(), p.local.Bytes()) {
		t.Error("the new life did not get the bytes")
	}
}

// proves G-8, R-17
func TestCancelAndDeadlineEndATransferAndLeaveNothing(t *testing.T) {
	for i, c := range []struct {
		op   Operation
		late bool
	}{{Read, false}, {Write, false}, {Read, true}, {Write, true}} {
		p := newRDMAPair(t, 80+uint64(i), Config{}, Config{}, 1<<20)
		_, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(c.op, 0, 8)}) // the connections are there
		must(t, err)
		a, z := p.fabric.Host(hostA.String()), p.fabric.Host(hostB.String())
		for _, d := range []string{"mlx5_0", "mlx5_1"} {
			p.fabric.Delay(a.Device(d).Port(1), z.Device(d).Port(1), 5*time.Millisecond, 6*time.Millisecond)
		}
		ctx, cancel := context.WithCancel(context.Background())
		class := ErrCancelled
		if c.late {
			ctx, class = p.within(8*time.Millisecond), ErrDeadline
		}
		b, err := p.requester.Submit(ctx, []Request{p.overRDMA(c.op, 0, 1<<20)})
		must(t, err)
		p.granted()
		if !c.late {
			cancel()
		}
		report, err := b.Wait(soon(t))
		cancel()
		wants(t, err, class)
		if !report.LocallyDrained || report.Completed != 0 {
			t.Errorf("%v: the report is %+v", c, report)
		}
		if c.op == Read && report.Local == EffectComplete || c.op == Write && report.Remote == EffectComplete {
			t.Errorf("%v: effects are %v, %v", c, report.Local, report.Remote)
		}
		must(t, b.Free())
		p.until(time.Minute, func() bool { return gauge(t, p.source, "RDMA grants").Used == 0 })
		_, err = p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(c.op, 0, 1<<20)}) // and the way is free again
		must(t, err)
	}
}

// proves R-19
func TestAPortThatGoesDownEndsTransfersAndComesBack(t *testing.T) {
	p := newRDMAPair(t, 90, Config{}, Config{}, 1<<20)
	_, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Write, 0, 1<<20)})
	must(t, err)
	regions := p.requesterNative.Calls(simverbs.CallRegister)
	ports := []*simverbs.Port{p.fabric.Host(hostA.String()).Device("mlx5_0").Port(1), p.fabric.Host(hostA.String()).Device("mlx5_1").Port(1)}
	for _, port := range ports {
		port.Down()
	}
	report, err := p.requester.SubmitAndWait(p.within(2*time.Minute), []Request{p.overRDMA(Write, 0, 1<<20)})
	if err == nil || !report.LocallyDrained {
		t.Fatalf("a transfer over dead ports: %+v, %v", report, err)
	}
	must(t, p.segment.Refresh(soon(t)))
	_, err = p.segment.Path(Write, TransportRDMA)
	mentions(t, wants(t, err, ErrUnavailable).Error(), "2 of them paused")
	for _, port := range ports {
		port.Up()
	}
	p.until(2*time.Minute, func() bool { return p.source.Stats().RDMA.RouteRecoveries == 2 })
	must(t, p.segment.Refresh(soon(t)))
	pattern(p.local, 77)
	_, err = p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Write, 0, 1<<20)})
	must(t, err)
	if !bytes.Equal(p.local.Bytes(), p.remote.Bytes()) {
		t.Error("other bytes arrived")
	}
	if now := p.requesterNative.Calls(simverbs.CallRegister); now != regions {
		t.Errorf("memory was registered %d times again; registrations survive a port", now-regions)
	}
}

// proves
func TestAPeerWhoseAddressesMovedIsReachedAfterARefresh(t *testing.T) {
	p := newRDMAPair(t, 91, Config{}, Config{}, 1<<20)
	_, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Write, 0, 1<<20)})
	must(t, err)
	for i, name := range []string{"mlx5_0", "mlx5_1"} {
		moved := verbs.GIDEntry{Index: 1, GID: verbs.GID{10: 0xff, 11: 0xff, 12: 10, 13: 77, 14: byte(i), 15: 1}, Type: verbs.GIDRoCEv2, Interface: "eth9"}
		p.fabric.Host(hostA.String()).Device(name).Port(1).SetGID(moved)
	}
	if err := p.RunUntil(func() bool { return p.source.Stats().RDMA.RouteRecoveries == 2 }, p.Now().After(2*time.Minute)); err != nil {
		t.Fatalf("%v: %+v", err, p.source.Stats().RDMA)
	}
	report, err := p.requester.SubmitAndWait(p.within(time.Minute), []Request{p.overRDMA(Write, 0, 1<<20)})
	if err == nil || !report.LocallyDrained { // the old view names addresses that nobody has
		t.Errorf("with the old view: %+v, %v", report, err)
	}
	must(t, p.segment.Refresh(soon(t)))
	pattern(p.local, 5)
	_, err = p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Write, 0, 1<<20)})
	must(t, err)
	if !bytes.Equal(p.local.Bytes(), p.remote.Bytes()) {
		t.Error("other bytes arrived")
	}
}
