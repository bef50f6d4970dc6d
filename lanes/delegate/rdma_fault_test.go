package delegate

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/lanes/tcp"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// ordeal runs a READ and a WRITE through three slots over RDMA, and then one more, while something goes wrong. Whatever
// that is, each ends once, tells the truth, and what is not listed as retained is given back. It says how many failed.
func ordeal(t *testing.T, there, here setup, plan func(p *pairOf)) (failed int) {
	t.Helper()
	p := newRDMAPair(t, there, here, 7*slotBytes)
	c := p.requester.channel(p.source)
	plan(p)
	for i, d := range []lanes.Direction{lanes.Read, lanes.Write, lanes.Read} {
		p.here.set(pattern(7*slotBytes, 2))
		p.there.set(pattern(7*slotBytes, 1))
		a := p.requester.ask(d, p.source, p.here, p.there, 3, 5, 6*slotBytes+1, 3)
		o := p.wait(a.start(c))
		if o.Err != nil {
			failed++
		}
		p.truth(a, o)
		if !o.Drained && len(p.requester.device.transport.Residues()) == 0 {
			t.Errorf("transfer %d is not drained, and no residue is listed: %+v", i, o)
		}
	}
	p.until("the pins' end", func() bool { return p.source.service.Stats().Pins == 0 })
	for _, n := range p.nodes {
		n.trial, n.lasting = true, n.retains()
	}
	if s := p.source.service.Stats(); s.Lost > 0 && !p.source.lasting {
		t.Errorf("a slot is lost, and nothing is listed: %+v", s)
	}
	if s, kept := p.source.service.Stats(), p.source.device.transport.Residues(); len(kept) > 0 && s.Lost == 0 {
		t.Errorf("a grant is not proven to have ended, and its slot is free: %+v, %+v", kept, s)
	}
	p.finish()
	return failed
}

// retains is true exactly when the node lists something as retained.
func (n *node) retains() bool {
	t := n.device.transport
	return len(t.Residues()) > 0 || len(t.Retained()) > 0 || len(n.stage.Residues()) > 0 || len(n.platform.Retained()) > 0
}

// Each native call of the devices fails on its first, second, … occurrence, at either side.
//
// proves C-8, R-17, R-18, G-9, U-1
func TestEachFailedDeviceCallUnderSlotsTellsTheTruth(t *testing.T) {
	struck := 0
	for call := simverbs.CallOpenDevice; call <= simverbs.CallPostReceive; call++ {
		for _, host := range []string{sourceHost.String(), requesterHost.String()} {
			for _, index := range []int{0, 1, 2, 5} {
				fault := simverbs.Fault{Kind: simverbs.FailCall, Call: call, Host: host, Index: index}
				t.Run(fmt.Sprintf("%d-%s-%d", call, host, index), func(t *testing.T) {
					struck += ordeal(t, setup{}, setup{}, func(p *pairOf) { p.nets.Plan(fault) })
				})
			}
		}
	}
	if struck < 10 {
		t.Errorf("only %d transfers failed", struck)
	}
}

// remoteAccess is how work on a key that is none ends: IBV_WC_REM_ACCESS_ERR, ibv_poll_cq(3).
const remoteAccess = 10

// Work, completions, packets and keys go wrong at either side.
//
// proves C-8, R-12, R-13, R-17, T-10
func TestEachDeviceFaultUnderSlotsTellsTheTruth(t *testing.T) {
	struck := 0
	for _, kind := range []simverbs.FaultKind{
		simverbs.BadWork, simverbs.UnknownBadWork, simverbs.FailWork, simverbs.LoseCompletion, simverbs.LateCompletion, simverbs.DoubleCompletion,
		simverbs.ForeignID, simverbs.ForeignPair, simverbs.FullQueue, simverbs.LosePacket, simverbs.DelayPacket, simverbs.DropPair, simverbs.DuplicateKey, simverbs.StaleKey,
	} {
		for _, host := range []string{sourceHost.String(), requesterHost.String()} {
			for index := range 6 {
				fault := simverbs.Fault{Kind: kind, Host: host, Index: index, Status: remoteAccess, By: 50 * time.Millisecond}
				t.Run(fmt.Sprintf("%v-%s-%d", kind, host, index), func(t *testing.T) {
					struck += ordeal(t, setup{sourceTimeout: 2 * time.Second}, setup{}, func(p *pairOf) { p.nets.Plan(fault) })
				})
			}
		}
	}
	if struck < 20 {
		t.Errorf("only %d transfers failed", struck)
	}
}

// Each call of the driver that a copy between slot and GPU makes fails, once and from then on; copies are slow, and
// callbacks late.
//
// proves C-8, C-3
func TestEachFailedDriverCallUnderSlotsOverRDMATellsTheTruth(t *testing.T) {
	struck := 0
	for i, fault := range []simcuda.Fault{
		{Kind: simcuda.FailCall, Call: simcuda.CallCopy}, {Kind: simcuda.FailCall, Call: simcuda.CallCopy, Effect: cuda.Maybe},
		{Kind: simcuda.FailCall, Call: simcuda.CallRecord}, {Kind: simcuda.FailCall, Call: simcuda.CallCallback}, {Kind: simcuda.FailCall, Call: simcuda.CallQuery},
		{Kind: simcuda.FailCall, Call: simcuda.CallQuery, Count: -1}, {Kind: simcuda.LateCallback, By: 100 * time.Millisecond, Count: -1},
		{Kind: simcuda.SlowCopy, By: time.Second},
	} {
		for index := range 4 {
			fault.Index = index
			t.Run(fmt.Sprintf("%d-%d", i, index), func(t *testing.T) {
				struck += ordeal(t, setup{}, setup{}, func(p *pairOf) { p.source.driver.Plan(fault) })
			})
		}
	}
	if struck < 10 {
		t.Errorf("only %d transfers failed", struck)
	}
}

// The control stream is lost anywhere in what is said on it, in either direction: pins, delegates, grants and their
// ends. What was pinned ends with it, and the next transfer finds all slots free.
//
// proves C-8, T-5, R-14, U-1
func TestAStreamLostAnywhereUnderSlotsOverRDMALeavesNothing(t *testing.T) {
	struck := 0
	for _, way := range []simkernel.Direction{simkernel.ToServer, simkernel.ToClient} {
		for cut := uint64(1); cut < 1800; cut += 29 {
			t.Run(fmt.Sprintf("%v-%d", way, cut), func(t *testing.T) {
				struck += ordeal(t, setup{slow: 100 * time.Microsecond}, setup{}, func(p *pairOf) {
					first := true
					p.world.OnConnect(func(c *simkernel.Connection) {
						if first {
							c.ResetAfter(way, cut)
						}
						first = false
					})
				})
			})
		}
	}
	if struck < 10 {
		t.Errorf("only %d transfers failed", struck)
	}
}

// Slots are granted to the stream that they were pinned by only, in the pin's direction, and only what the pin has put
// there; not when it was taken back, and not by a source that has none.
//
// proves C-8, T-11, R-9
func TestSlotsAreGrantedToTheirStreamOnly(t *testing.T) {
	p := newRDMAPair(t, setup{}, setup{}, 4*slotBytes)
	mine, strange := p.requester.channel(p.source), p.requester.channel(p.source)
	name := p.requester.pinned(mine, p.source, p.there, 2, netproto.PinRead, 7)
	refused := func(what string, want netproto.Status, d lanes.Direction, other bool, slot uint8, offset, length uint64) {
		t.Helper()
		c := mine
		if other {
			c = strange
		}
		if o := p.requester.grant(c, p.source, d, p.here, name, slot, offset, length); o.Err == nil || fault(t, o).Status != want || !o.Drained {
			t.Errorf("%s: %+v", what, o)
		}
	}
	refused("bytes that this pin has not put there", netproto.StatusInvalidRange, lanes.Read, false, 0, 0, 1)
	if status := p.requester.order(mine, p.source, name, netproto.DelegateCopy{Slot: 0, Length: 60}); status != netproto.StatusSuccess {
		t.Fatal(status)
	}
	refused("another stream", netproto.StatusUnknownRegion, lanes.Read, true, 0, 0, 60)
	refused("a WRITE to a READ's slot", netproto.StatusPermissionDenied, lanes.Write, false, 0, 0, 60)
	refused("more than was copied", netproto.StatusInvalidRange, lanes.Read, false, 0, 1, 60)
	refused("a slot more", netproto.StatusUnknownRegion, lanes.Read, false, 2, 0, 1)
	if o := p.requester.grant(mine, p.source, lanes.Read, p.here, name, 0, 7, 53); o.Err != nil || o.Bytes != 53 {
		t.Errorf("%+v", o)
	}
	if status := p.requester.unpin(mine, p.source, name); status != netproto.StatusSuccess {
		t.Fatal(status)
	}
	refused("late", netproto.StatusUnknownRegion, lanes.Read, false, 0, 0, 60)
	if g := p.source.device.transport.GrantStats(); g.Granted != 1 {
		t.Errorf("%+v", g)
	}
	p.finish()
}

// A neighbour on the stream that is cancelled retires it, and ends the pin: grants that are out end by their receipts, so
// that the connection stays well; a READ goes on through another pin, and so does a WRITE of which nothing was delegated.
//
// proves C-8, R-17, T-5, T-10
func TestANeighboursEndLeavesTheConnectionWell(t *testing.T) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		again, unknown, out := 0, 0, 0
		for n := 0; n < 900; n += 7 {
			p := newRDMAPair(t, setup{slow: 100 * time.Microsecond}, setup{}, 7*slotBytes)
			c := p.requester.channel(p.source)
			a := p.requester.ask(d, p.source, p.here, p.there, 3, 5, 6*slotBytes+1, 3).start(c)
			b := p.neighbour(c)
			p.nets.Plan(simverbs.Fault{Kind: simverbs.DelayPacket, By: 300 * time.Microsecond, Count: -1}) // payload outlasts the neighbour's frames
			for range n {
				p.world.Step()
			}
			if p.source.device.rails.Source().Parents() > 0 {
				out++
			}
			b.Cancel()
			p.until("the neighbour's end", func() bool { return b.Outcome.Err != nil })
			o := p.wait(a)
			if p.source.service.Stats().Pinned > 1 {
				again++
			}
			p.truth(a, o)
			switch {
			case o.Err == nil:
			case d == lanes.Write && o.Remote == lanes.EffectUnknown && fault(t, o).Cause == lanes.Disconnected:
				unknown++
			default:
				t.Fatalf("%v, step %d: %+v", d, n, o)
			}
			if s, r := p.source.device.transport.Stats(), p.requester.device.transport.Stats(); s.Failed+r.Failed > 0 {
				t.Fatalf("%v, step %d: a connection failed: %+v, %+v", d, n, s, r)
			}
			p.finish()
		}
		if again < 5 || out < 5 || d == lanes.Write && unknown == 0 {
			t.Errorf("%v: %d times another pin, %d times unknown, %d times with grants out", d, again, unknown, out)
		}
	}
}

// Grants of a slot whose copy waits for a range keep those that are asked for behind them, on the same stream, for a quarter of
// a second at most: these may be for what has that range. Then they are asked for again, until the copy has ended.
//
// proves C-8, R-9
func TestGrantsThatWaitForACopyKeepTheirStreamFromNobodyForLong(t *testing.T) {
	p := newPairOf(t, 1, over(setup{sourceTimeout: 20 * time.Second}), over(setup{}), 4*slotBytes)
	c := p.requester.channel(p.source)
	name := p.requester.pinned(c, p.source, p.there, 2, netproto.PinRead, 1)
	lease, err := p.there.Lease(5, 1, segments.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	copies := []netproto.DelegateCopy{{Slot: 0, Length: slotBytes}, {Slot: 1, Offset: slotBytes, Length: slotBytes}}
	if status := p.requester.order(c, p.source, name, copies...); status != netproto.StatusSuccess {
		t.Fatal(status)
	}
	if o := p.requester.grant(c, p.source, lanes.Read, p.here, name, 1, 0, slotBytes); o.Err != nil { // connects
		t.Fatal(o.Err)
	}
	var ended [2]int
	began := p.world.Now()
	var all [2]*rdma.Transfer
	for slot := range all {
		all[slot] = &rdma.Transfer{
			Direction: lanes.Read, Local: p.here.Registration, LocalOffset: uint64(slot) * slotBytes, Region: netproto.SlotRegion(name.Number, uint8(slot)),
			Length: slotBytes, Remote: rdma.RemoteSlot, Epoch: p.source.policy.Epoch, Deadline: began.After(time.Minute), Done: func(*rdma.Transfer) { ended[slot]++ },
		}
		all[slot].Start(p.requester.device.rails, p.requester.peer(c, p.source))
		p.pass(time.Millisecond)
	}
	p.until("the other slot's payload", func() bool { return ended[1] > 0 })
	if took := time.Duration(p.world.Now() - began); ended[0] > 0 || took > time.Second {
		t.Errorf("it took %v; the other one ended %d times", took, ended[0])
	}
	p.pass(3 * time.Second)
	if ended[0] > 0 {
		t.Fatalf("it ended without its copy: %+v", all[0].Outcome)
	}
	lease.Return()
	returned := p.world.Now()
	p.until("its own payload", func() bool { return ended[0] > 0 })
	if took := time.Duration(p.world.Now() - returned); took > time.Second {
		t.Errorf("it went on after %v", took)
	}
	if o := [2]error{all[0].Outcome.Err, all[1].Outcome.Err}; o != [2]error{} || !bytes.Equal(p.here.bytes()[:2*slotBytes], p.there.bytes()[:2*slotBytes]) {
		t.Errorf("%v, or other bytes", o)
	}
	if status := p.requester.unpin(c, p.source, name); status != netproto.StatusSuccess {
		t.Error(status)
	}
	p.finish()
}

// neighbour reads over TCP on the same stream, again and again, until it is cancelled.
func (p *pairOf) neighbour(c *control.Channel) *tcp.Transfer {
	beside := p.requester.register(false, 7*slotBytes, netproto.LocalOnly, 3)
	b := &tcp.Transfer{
		Direction: lanes.Read, Local: beside.Registration, Region: p.there.ID(), Length: 7 * slotBytes,
		Epoch: p.source.policy.Epoch, Deadline: p.world.Now().After(time.Minute),
	}
	b.Done = func(x *tcp.Transfer) {
		if x.Outcome.Err == nil {
			b.Start(c)
		}
	}
	b.Start(c)
	return b
}
