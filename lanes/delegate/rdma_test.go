package delegate

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/netproto"
)

// READ and WRITE through slots over RDMA move every byte of the range and no other, at every border of slots, at odd
// offsets, from and to host memory, host memory that is staged here and device memory.
//
// proves C-8, R-9, R-11, R-13
func TestSlotsOverRDMAMoveEveryByteAndNoOther(t *testing.T) {
	for _, slots := range []int{1, 2, 3, 5, 16} {
		for name, here := range map[string]struct {
			setup
			device bool
		}{"host": {over(setup{}), false}, "staged": {staged(setup{}), false}, "device": {over(setup{}), true}} {
			t.Run(fmt.Sprintf("%d-%s", slots, name), func(t *testing.T) { moveEveryBorderOverRDMA(t, slots, here.setup, here.device) })
		}
	}
}

func moveEveryBorderOverRDMA(t *testing.T, slots int, local setup, device bool) {
	const size = 20 * slotBytes
	r := newRig(t, rand.Uint64())
	there := setup{slots: 16}
	if slots%2 == 1 {
		there = staged(there) // slots are reached all the same
	}
	source, requester := r.node(sourceHost, over(there)), r.node(requesterHost, local)
	far, near := source.register(true, size, netproto.ReadWrite, 1), requester.register(device, size, netproto.LocalOnly, 2)
	c := requester.channel(source)
	k, parts := uint64(slots), uint64(0)
	for _, n := range []uint64{1, slotBytes - 1, slotBytes + 1, 2*slotBytes - 1, min(k*slotBytes+1, 1800), 18*slotBytes + 7} {
		for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
			far.set(pattern(size, 1))
			near.set(pattern(size, 2))
			at, from := uint64(13), uint64(91)
			o := r.wait(requester.ask(d, source, near, far, at, from, n, slots).start(c))
			wantNear, wantFar := pattern(size, 2), pattern(size, 1)
			if d == lanes.Read {
				copy(wantNear[at:at+n], wantFar[from:])
			} else {
				copy(wantFar[from:from+n], wantNear[at:])
			}
			if o.Err != nil || o.Bytes != n || !o.Drained {
				t.Fatalf("%v of %d: %+v", d, n, o)
			}
			if d == lanes.Read && o.Local != lanes.EffectComplete || d == lanes.Write && o.Remote != lanes.EffectComplete {
				t.Errorf("%v of %d: %+v", d, n, o)
			}
			if !bytes.Equal(near.bytes(), wantNear) || !bytes.Equal(far.bytes(), wantFar) {
				t.Fatalf("%v of %d bytes moved other bytes", d, n)
			}
			parts += (n-1)/slotBytes + 1
			if s := source.service.Stats(); s.Pins != 0 || s.Slots != 0 || source.slots.Used() != 0 {
				t.Errorf("after a %v: %+v", d, s)
			}
		}
	}
	if s := source.service.Stats(); s.Copied != s.Delegated || s.Copied != parts || s.Failed+s.Refused+s.Expired+s.Orphaned != 0 || s.Pinned != 12 {
		t.Errorf("%+v, %d parts", s, parts)
	}
	if g := source.device.transport.GrantStats(); g.Granted != parts || g.Received != parts || g.Revoked+g.Violations+g.Staged != 0 {
		t.Errorf("%+v, %d parts", g, parts)
	}
	r.finish()
}

// What is copied at the source while other slots' payload travels saves time, and grants of several slots are out at
// once. Slots and connections are made once, not for each transfer.
//
// proves C-8, R-7, R-10
func TestPipelinedSlotsOverlapOverRDMA(t *testing.T) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		seed := rand.Uint64()
		took := func(slots int, slow time.Duration) time.Duration {
			p := newPairOf(t, seed, over(setup{slow: slow}), over(setup{}), 40*slotBytes)
			c := p.requester.channel(p.source)
			a := p.requester.ask(d, p.source, p.here, p.there, 0, 0, 40*slotBytes, slots)
			if o := p.wait(a.start(c)); o.Err != nil {
				t.Fatal(o.Err)
			}
			made, built := p.source.device.native.Live(), p.requester.device.transport.Stats().Built
			a.done, a.Deadline = 0, p.world.Now().After(time.Minute)
			began := p.world.Now()
			if o := p.wait(a.start(c)); o.Err != nil {
				t.Fatal(o.Err)
			}
			took := time.Duration(p.world.Now() - began)
			if now := p.source.device.native.Live(); now != made || built != 1 || p.requester.device.transport.Stats().Built != built {
				t.Errorf("another transfer made %+v of %+v", now, made)
			}
			if want := min(slots, payloadsMax); len(a.grants.parts) != want {
				t.Errorf("%d parts were under way with %d slots, want %d", len(a.grants.parts), slots, want)
			}
			p.finish()
			return took
		}
		one, four := took(1, 150*time.Microsecond), took(4, 150*time.Microsecond)
		if four > one*2/3 {
			t.Errorf("%v: %v with one slot, %v with four", d, one, four)
		}
	}
}

// deviced is a pair over RDMA whose copies are slow.
func deviced(slow time.Duration) func(t *testing.T) *pairOf {
	return func(t *testing.T) *pairOf { return newRDMAPair(t, setup{slow: slow}, setup{}, 7*slotBytes) }
}

// A requester that is killed at any step leaves nothing at the source: pins end with their stream, and each slot is lent
// again once neither a copy nor a grant touches it.
//
// proves C-8, R-18, U-2
func TestARequesterOverRDMAKilledAtEachStepLeavesNothingAtTheSource(t *testing.T) {
	eachStepOf(t, 7, deviced(300*time.Microsecond), func(p *pairOf, a *attempt) { p.requester.kill() }, func(p *pairOf, a *attempt) {
		early, began := false, p.world.Now()
		p.until("the pins' end", func() bool {
			s, g := p.source.stage.Stats(), p.source.device.rails.Source().Parents()
			early = early || (s.Flying > 0 || g > 0) && p.source.slots.Used() == 0
			return p.source.service.Stats().Pins == 0 && p.source.slots.Used() == 0 && s.Flying == 0 && g == 0
		})
		if early {
			p.t.Error("slots were free while a copy or a grant was under way")
		}
		if p.world.Now() > began.After(2*time.Second) {
			p.t.Errorf("the pins took %v", time.Duration(p.world.Now()-began))
		}
		p.finish()
	})
}

// proves C-8, T-10, R-18
func TestASourceOverRDMAKilledAtEachStepFailsTheTransfer(t *testing.T) {
	eachStepOf(t, 7, deviced(0), func(p *pairOf, a *attempt) { p.source.kill() }, func(p *pairOf, a *attempt) {
		o := p.wait(a)
		if o.Err == nil { // all was done, and only the end of the pin was left
			if s := p.source.service.Stats(); s.Copied != a.machine.parts() {
				p.t.Errorf("a success after %d copies of %d", s.Copied, a.machine.parts())
			}
		} else {
			p.truth(a, o)
		}
		p.finish()
	})
}

// truth holds the effects of a failed transfer against what the ranges hold.
func (p *pairOf) truth(a *attempt, o lanes.Outcome) {
	p.t.Helper()
	here, there := p.here.bytes(), p.there.bytes()
	if p.source.dead { // with its GPUs
		there = pattern(7*slotBytes, 1)
	}
	switch {
	case o.Err == nil && (!bytes.Equal(here[3:][:6*slotBytes+1], there[5:][:6*slotBytes+1]) || o.Bytes != 6*slotBytes+1):
		p.t.Errorf("a success, and other bytes: %+v", o)
	case o.Err == nil:
	case a.Direction == lanes.Read && o.Local == lanes.EffectNone && !bytes.Equal(here, pattern(7*slotBytes, 2)):
		p.t.Errorf("the local range is changed, which is denied: %+v", o)
	case a.Direction == lanes.Write && o.Remote == lanes.EffectNone && !bytes.Equal(there, pattern(7*slotBytes, 1)):
		p.t.Errorf("the remote range is changed, which is denied: %+v", o)
	case max(o.Local, o.Remote) == lanes.EffectComplete:
		p.t.Errorf("a failure that is complete: %+v", o)
	}
	outside := func(b []byte, at int, seed byte) bool {
		want := pattern(7*slotBytes, seed)
		return bytes.Equal(b[:at], want[:at]) && bytes.Equal(b[at+6*slotBytes+1:], want[at+6*slotBytes+1:])
	}
	if !outside(here, 3, 2) || !outside(there, 5, 1) {
		p.t.Error("bytes beside the ranges were changed")
	}
}

// A transfer that is cancelled at any step ends, gives its slots back, and says what it did; the next one is whole.
//
// proves C-8, G-8
func TestCancelOverRDMAAtEachStepGivesTheSlotsBack(t *testing.T) {
	eachStepOf(t, 5, deviced(300*time.Microsecond), func(p *pairOf, a *attempt) { a.Cancel() }, func(p *pairOf, a *attempt) {
		o := p.wait(a)
		if o.Err != nil && fault(p.t, o).Cause != lanes.Cancelled || !o.Drained {
			p.t.Errorf("%+v", o)
		}
		p.truth(a, o)
		p.until("the pin's end", func() bool { return p.source.slots.Used() == 0 })
		again := p.wait(p.requester.ask(lanes.Read, p.source, p.here, p.there, 0, 0, 7*slotBytes, 4).start(p.requester.channels[0]))
		if again.Err != nil || !bytes.Equal(p.here.bytes(), p.there.bytes()) {
			p.t.Errorf("afterwards: %+v", again)
		}
		p.finish()
	})
}

// The source closed at any step takes its slots back once copies and grants have ended, and is quiet then.
//
// proves C-8, G-6
func TestCloseSourceOverRDMAAtEachStepTakesThePinsBack(t *testing.T) {
	eachStepOf(t, 7, deviced(300*time.Microsecond), func(p *pairOf, a *attempt) {
		p.source.admission.Fence()
		p.source.service.Fence()
	}, func(p *pairOf, a *attempt) {
		p.until("a quiet source", func() bool { return p.source.admission.Gate.Inside() == 0 })
		if p.source.slots.Used() != 0 || p.source.stage.Stats().Flying != 0 || p.source.device.rails.Source().Parents() != 0 {
			p.t.Errorf("quiet with %d slots charged, %+v", p.source.slots.Used(), p.source.stage.Stats())
		}
		o := p.wait(a)
		p.truth(a, o)
		if o.Err != nil && fault(p.t, o).Cause != lanes.Refused || !o.Drained {
			p.t.Errorf("%+v", o)
		}
		p.finish()
	})
}

// In the steady state neither side allocates on the Go heap over RDMA either.
//
// proves C-8, L-6
func TestSlotsOverRDMAAllocateNothing(t *testing.T) {
	for _, slots := range []int{1, 4} {
		still := setup{still: true, change: func(c *rdma.Config) { c.MonitorInterval, c.Progress = 1000*time.Hour, rdma.Polling }} // to look at ports allocates
		p := newRDMAPair(t, still, still, 10*slotBytes)
		c := p.requester.channel(p.source)
		a := p.requester.ask(lanes.Read, p.source, p.here, p.there, 0, 0, 10*slotBytes, slots)
		a.Done = func(t *Transfer) { a.done++; t.Local.Return() } // without a grave
		move := func() {
			for _, a.Direction = range []lanes.Direction{lanes.Read, lanes.Write} {
				a.done, a.Deadline = 0, p.requester.lane.Kernel().Now().After(time.Minute)
				if o := p.wait(a.start(c)); o.Err != nil {
					t.Fatal(o.Err)
				}
			}
		}
		for range 40 {
			move()
		}
		if n := testing.AllocsPerRun(50, move); n > 0 {
			t.Errorf("%v allocations with %d slots", n, slots)
		}
		p.finish()
	}
}
