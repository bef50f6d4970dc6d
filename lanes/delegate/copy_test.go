package delegate

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/segments"
)

// While a slot's payload travels, other slots are copied: several slots save at least half of what can be saved: all
// of the network or all of the copies, whichever takes less.
//
// proves C-8
func TestPipelinedSlotsOverlapCopyAndNetwork(t *testing.T) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		seed := rand.Uint64()
		took := func(slots int, slow time.Duration) time.Duration {
			p := newPairOf(t, seed, setup{slow: slow}, setup{}, 40*slotBytes)
			a := p.requester.ask(d, p.source, p.here, p.there, 0, 0, 40*slotBytes, slots)
			began := p.world.Now()
			if o := p.wait(a.start(p.requester.channel(p.source))); o.Err != nil {
				t.Fatal(o.Err)
			}
			defer p.finish()
			return time.Duration(p.world.Now() - began)
		}
		wire, one, four := took(1, 0), took(1, 150*time.Microsecond), took(4, 150*time.Microsecond)
		if possible := one - max(wire, 40*150*time.Microsecond); one-four < possible/2 {
			t.Errorf("%v: %v with one slot, %v with four, %v with nothing to copy", d, one, four, wire)
		}
	}
}

// A copy waits for the lease of its part of the device range, and for no longer than the source's deadline; other parts
// go on. Then its pin says that it has failed.
//
// proves C-8, M-9
func TestACopyWaitsForItsLease(t *testing.T) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		p := newPair(t, setup{sourceTimeout: time.Second}, setup{}, 4*slotBytes)
		beside, err := p.there.Lease(slotBytes+7, 1, segments.Shared) // others may read what is read
		if err != nil {
			t.Fatal(err)
		}
		if d == lanes.Read {
			if o := p.wait(p.requester.ask(d, p.source, p.here, p.there, 0, 0, 4*slotBytes, 2).start(p.requester.channel(p.source))); o.Err != nil {
				t.Errorf("beside another reader: %+v", o)
			}
			beside.Return()
		}
		lease, err := p.there.Lease(slotBytes+5, 1, segments.Exclusive)
		if err != nil {
			t.Fatal(err)
		}
		a := p.requester.ask(d, p.source, p.here, p.there, 0, 0, 4*slotBytes, 2).start(p.requester.channel(p.source))
		p.pass(500 * time.Millisecond)
		if a.done > 0 || p.source.service.Stats().Copied == 0 {
			t.Errorf("ended %d times, %+v", a.done, p.source.service.Stats())
		}
		lease.Return()
		if d == lanes.Write {
			p.pass(100 * time.Millisecond)
			if a.done > 0 {
				t.Error("it was written while it was read")
			}
			beside.Return()
		}
		if o := p.wait(a); o.Err != nil || !bytes.Equal(p.here.bytes(), p.there.bytes()) {
			t.Errorf("%+v", o)
		}
		lease, err = p.there.Lease(slotBytes+5, 1, segments.Exclusive)
		if err != nil {
			t.Fatal(err)
		}
		p.there.set(pattern(4*slotBytes, 1))
		p.here.set(pattern(4*slotBytes, 2))
		a = p.requester.ask(d, p.source, p.here, p.there, 0, 0, 4*slotBytes, 2).start(p.requester.channels[0])
		o := p.wait(a)
		if o.Err == nil || p.there.bytes()[slotBytes+5] != pattern(4*slotBytes, 1)[slotBytes+5] {
			t.Errorf("%v: %+v", d, o)
		}
		if part := p.here.bytes()[slotBytes : 2*slotBytes]; !bytes.Equal(part, pattern(4*slotBytes, 2)[slotBytes:2*slotBytes]) {
			t.Errorf("%v: a slot that no copy has filled was read: %x…", d, part[:8])
		}
		lease.Return()
		p.finish()
	}
}

// A copy that fails, and has ended, fails its transfer with a word of the source's; the slots come back, and the next
// transfer is whole.
//
// proves C-8, C-3
func TestAFailedCopyFailsItsTransferOnly(t *testing.T) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		for index := range 4 {
			p := newPair(t, setup{}, setup{}, 4*slotBytes)
			p.source.driver.Plan(simcuda.Fault{Kind: simcuda.FailCall, Call: simcuda.CallCopy, Index: index, Result: cuda.InvalidValue})
			c := p.requester.channel(p.source)
			o := p.wait(p.requester.ask(d, p.source, p.here, p.there, 0, 0, 4*slotBytes, 2).start(c))
			f := fault(t, o)
			if f.Cause != lanes.Refused || f.Status != netproto.StatusNativeError || !o.Drained {
				t.Errorf("%v, copy %d: %+v, %v", d, index, o, f)
			}
			if d == lanes.Write && o.Remote != lanes.EffectUnknown || d == lanes.Read && (o.Local == lanes.EffectPartial) != (index > 0) {
				t.Errorf("%v, copy %d: %+v", d, index, o)
			}
			if n := p.source.slots.Used(); n != 0 {
				t.Errorf("%v, copy %d: the transfer has ended, and %d slots are pinned", d, index, n)
			}
			if o := p.wait(p.requester.ask(d, p.source, p.here, p.there, 0, 0, 4*slotBytes, 2).start(c)); o.Err != nil {
				t.Errorf("the next one: %+v", o)
			}
			p.finish()
		}
	}
}

// A copy that nobody can prove to have ended keeps its slot, its charge, its lease and its loan; the other slots come
// back, and the source closes all the same.
//
// proves C-8, G-9
func TestACopyThatHangsKeepsItsSlot(t *testing.T) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		p := newPair(t, setup{sourceTimeout: 5 * time.Second}, setup{}, 4*slotBytes)
		p.source.lasting = true
		p.source.driver.Plan(simcuda.Fault{Kind: simcuda.SlowCopy, Device: 1, By: time.Hour})
		o := p.wait(p.requester.ask(d, p.source, p.here, p.there, 0, 0, 4*slotBytes, 1).start(p.requester.channel(p.source)))
		if o.Err == nil || !o.Drained || d == lanes.Write && o.Remote != lanes.EffectUnknown {
			t.Errorf("%+v", o)
		}
		if p.source.slots.Used() == 0 {
			t.Error("slots were free while a copy was under way")
		}
		p.pass(40 * time.Second)
		s := p.source.service.Stats()
		if s.Lost != 1 || s.Slots != 1 || s.Pins != 0 || p.source.slots.Used() != 1 || p.source.stage.Lendable() != 3 {
			t.Errorf("%+v, charged %d, lendable %d", s, p.source.slots.Used(), p.source.stage.Lendable())
		}
		if len(p.source.stage.Residues()) != 1 || p.there.backing.Quiet() || p.there.Loans() == 0 {
			t.Errorf("residues %v, lease free %v, %d loans", p.source.stage.Residues(), p.there.backing.Quiet(), p.there.Loans())
		}
		p.finish()
	}
}
