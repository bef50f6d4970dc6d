package delegate

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/segments"
)

// pairOf is a source and a requester with one range each.
type pairOf struct {
	*rig
	source, requester *node
	there, here       *memory
}

func newPair(t testing.TB, there, here setup, length uint64) *pairOf {
	t.Helper()
	return newPairOf(t, rand.Uint64(), there, here, length)
}

func newPairOf(t testing.TB, seed uint64, there, here setup, length uint64) *pairOf {
	t.Helper()
	p := &pairOf{rig: newRig(t, seed)}
	p.source, p.requester = p.node(sourceHost, there), p.node(requesterHost, here)
	p.there, p.here = p.source.register(true, length, netproto.ReadWrite, 1), p.requester.register(false, length, netproto.LocalOnly, 2)
	return p
}

// eachStep runs a transfer again and again, in worlds of their own, and does something to it later each time, until it
// ends before that. It says how many it met.
func eachStep(t *testing.T, stride int, slow time.Duration, strike func(p *pairOf, a *attempt), check func(p *pairOf, a *attempt)) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		for _, slots := range []int{1, 3, 4} {
			t.Run(fmt.Sprintf("%v-%d", d, slots), func(t *testing.T) {
				met := 0
				for n := 0; ; n += stride {
					p := newPair(t, setup{slow: slow}, setup{}, 7*slotBytes)
					a := p.requester.ask(d, p.source, p.here, p.there, 3, 5, 6*slotBytes+1, slots).start(p.requester.channel(p.source))
					for range n {
						p.world.Step()
					}
					if a.done > 0 {
						p.finish()
						break
					}
					met++
					strike(p, a)
					check(p, a)
					if t.Failed() {
						t.Fatalf("after %d steps", n)
					}
				}
				if met < 10 {
					t.Errorf("met only %d times", met)
				}
			})
		}
	}
}

// A requester that is killed at any step leaves nothing at the source: its pin ends with its stream, each slot is lent
// again once the copy that touches it has ended, and not before, and the charges are repaid.
//
// proves C-8, U-2
func TestARequesterKilledAtEachStepLeavesNothingAtTheSource(t *testing.T) {
	eachStep(t, 2, 300*time.Microsecond, func(p *pairOf, a *attempt) { p.requester.kill() }, func(p *pairOf, a *attempt) {
		early := false
		p.until("the pins' end", func() bool {
			s := p.source.stage.Stats()
			early = early || s.Flying > 0 && p.source.slots.Used() == 0
			return p.source.service.Stats().Pins == 0 && p.source.slots.Used() == 0 && s.Flying == 0 && p.source.server.Sessions() == 0
		})
		if early {
			p.t.Error("slots were free while a copy was under way")
		}
		p.finish()
	})
}

// A source that is killed at any step fails the transfer, says what may have happened, and leaves nothing at the requester.
//
// proves C-8, T-10
func TestASourceKilledAtEachStepFailsTheTransfer(t *testing.T) {
	eachStep(t, 2, 0, func(p *pairOf, a *attempt) { p.source.kill() }, func(p *pairOf, a *attempt) {
		o, m := p.wait(a), &a.machine
		if o.Err == nil { // all was done, and only the end of the pin, or the receipt on its way, was left
			if s := p.source.service.Stats(); s.Copied != m.parts() {
				p.t.Errorf("a success after %d copies of %d", s.Copied, m.parts())
			}
			p.finish()
			return
		}
		f := fault(p.t, o)
		if !o.Drained || f.Cause != lanes.Disconnected && f.Cause != lanes.Unreachable {
			p.t.Errorf("%+v: %v", o, f)
		}
		if a.Direction == lanes.Write && (o.Remote == lanes.EffectUnknown) != m.posted || a.Direction == lanes.Read && (o.Local != lanes.EffectNone) != (m.moved > 0) {
			p.t.Errorf("%+v after %d parts, posted %v", o, m.moved, m.posted)
		}
		p.finish()
	})
}

// A transfer that is cancelled at any step ends, gives its slots back, and says what it did; the peer's others go on.
//
// proves C-8, G-8
func TestCancelAtEachStepGivesTheSlotsBack(t *testing.T) {
	eachStep(t, 2, 300*time.Microsecond, func(p *pairOf, a *attempt) { a.Cancel() }, func(p *pairOf, a *attempt) {
		o := p.wait(a)
		if o.Err != nil && fault(p.t, o).Cause != lanes.Cancelled || !o.Drained {
			p.t.Errorf("%+v", o)
		}
		switch here, there := p.here.bytes(), p.there.bytes(); {
		case o.Err == nil:
		case a.Direction == lanes.Read && o.Local == lanes.EffectNone && !bytes.Equal(here, pattern(7*slotBytes, 2)):
			p.t.Error("the local range is changed, which is denied")
		case a.Direction == lanes.Write && o.Remote == lanes.EffectNone && !bytes.Equal(there, pattern(7*slotBytes, 1)):
			p.t.Error("the remote range is changed, which is denied")
		}
		p.until("the pin's end", func() bool { return p.source.slots.Used() == 0 })
		again := p.wait(p.requester.ask(lanes.Read, p.source, p.here, p.there, 0, 0, 7*slotBytes, 4).start(p.requester.channels[0]))
		if again.Err != nil || !bytes.Equal(p.here.bytes(), p.there.bytes()) {
			p.t.Errorf("afterwards: %+v", again)
		}
		p.finish()
	})
}

// The source closed at any step takes its slots back once their copies have ended, and is quiet then.
//
// proves C-8, G-6
func TestCloseSourceAtEachStepTakesThePinsBack(t *testing.T) {
	eachStep(t, 2, 300*time.Microsecond, func(p *pairOf, a *attempt) {
		p.source.admission.Fence()
		p.source.service.Fence()
	}, func(p *pairOf, a *attempt) {
		began := p.world.Now()
		p.until("a quiet source", func() bool { return p.source.admission.Gate.Inside() == 0 })
		if p.source.slots.Used() != 0 || p.source.stage.Stats().Flying != 0 || p.world.Now() > began.After(time.Second) {
			p.t.Errorf("quiet with %d slots charged, %+v", p.source.slots.Used(), p.source.stage.Stats())
		}
		o := p.wait(a)
		if a.Direction == lanes.Write && o.Err != nil && o.Remote == lanes.EffectNone && !bytes.Equal(p.there.bytes(), pattern(7*slotBytes, 1)) {
			p.t.Error("the remote range is changed, which is denied")
		}
		if o.Err != nil && fault(p.t, o).Cause != lanes.Refused || !o.Drained {
			p.t.Errorf("%+v", o)
		}
		p.finish()
	})
}

// Nobody but the stream that a pin came by can use it, and it not any more when the pin was taken back: foreign, late and
// double delegates, unpins and payload are refused, and touch nothing.
//
// proves C-8, T-11
func TestOnlyItsStreamUsesAPinAndOnlyWhileItLasts(t *testing.T) {
	p := newPair(t, setup{}, setup{}, 4*slotBytes)
	third := p.node(thirdHost, setup{})
	mine, other, stranger := p.requester.channel(p.source), p.requester.channel(p.source), third.channel(p.source)
	theirs := third.register(false, 4*slotBytes, netproto.LocalOnly, 3)
	name := p.requester.pinned(mine, p.source, p.there, 2, netproto.PinRead, 7)
	first := netproto.DelegateCopy{Slot: 0, Length: slotBytes}
	const unknown = netproto.StatusUnknownRegion
	if o := p.requester.load(mine, p.source, lanes.Read, p.here, name, 0, 0, 1); fault(t, o).Status != netproto.StatusInvalidRange {
		t.Errorf("bytes that this pin has not put there: %+v", o)
	}
	for what, status := range map[string]netproto.Status{
		"delegate by another stream": p.requester.order(other, p.source, name, first),
		"delegate by another peer":   third.order(stranger, p.source, name, first),
		"unpin by another peer":      third.unpin(stranger, p.source, name),
		"of another life":            p.requester.order(mine, p.source, netproto.PinName{Requester: third.policy.Epoch, Generation: 7, Number: name.Number}, first),
		"of another generation":      p.requester.order(mine, p.source, netproto.PinName{Requester: name.Requester, Generation: 6, Number: name.Number}, first),
		"of another number":          p.requester.unpin(mine, p.source, netproto.PinName{Requester: name.Requester, Generation: 7, Number: name.Number + 64}),
	} {
		if status != unknown {
			t.Errorf("%s: %v, want %v", what, status, unknown)
		}
	}
	if status := p.requester.order(mine, p.source, name, first); status != netproto.StatusSuccess {
		t.Fatal(status)
	}
	if o := third.load(stranger, p.source, lanes.Read, theirs, name, 0, 0, slotBytes); fault(t, o).Status != unknown || !bytes.Equal(theirs.bytes(), pattern(4*slotBytes, 3)) {
		t.Errorf("payload for another peer: %+v", o)
	}
	if o := p.requester.load(mine, p.source, lanes.Write, p.here, name, 0, 0, slotBytes); fault(t, o).Status != netproto.StatusPermissionDenied {
		t.Errorf("a WRITE to a READ's slot: %+v", o)
	}
	if status := p.requester.pin(mine, p.source, p.there, 1, netproto.PinRead, 7); status != netproto.StatusProtocolError {
		t.Errorf("the same pin again: %v", status)
	}
	if status := p.requester.unpin(mine, p.source, name); status != netproto.StatusSuccess {
		t.Fatal(status)
	}
	for what, status := range map[string]netproto.Status{
		"late delegate": p.requester.order(mine, p.source, name, first), "double unpin": p.requester.unpin(mine, p.source, name),
	} {
		if status != unknown {
			t.Errorf("%s: %v, want %v", what, status, unknown)
		}
	}
	if o := p.requester.load(mine, p.source, lanes.Read, p.here, name, 0, 0, 1); fault(t, o).Status != unknown {
		t.Errorf("late payload: %+v", o)
	}
	if !bytes.Equal(p.there.bytes(), pattern(4*slotBytes, 1)) || p.source.service.Stats().Delegated != 1 {
		t.Error("what was refused did something")
	}
	p.finish()
}

// The source checks each delegate itself: slot, range, length, what the slot holds, whether the region is still there and
// permits it. A slot with a copy under way takes no second one.
//
// proves C-8, T-11
func TestEachDelegateIsCheckedAtTheSource(t *testing.T) {
	p := newPair(t, setup{slow: time.Millisecond}, setup{}, 4*slotBytes)
	readable := p.source.register(true, 4*slotBytes, netproto.RemoteRead, 3)
	host := p.source.register(false, 4*slotBytes, netproto.ReadWrite, 3)
	c := p.requester.channel(p.source)
	for what, x := range map[string]struct{ got, want netproto.Status }{
		"WRITE to what is readable": {p.requester.pin(c, p.source, readable, 1, netproto.PinWrite, 90), netproto.StatusPermissionDenied},
		"host memory":               {p.requester.pin(c, p.source, host, 1, netproto.PinRead, 91), netproto.StatusBackendUnavailable},
	} {
		if x.got != x.want {
			t.Errorf("%s: %v, want %v", what, x.got, x.want)
		}
	}
	w := p.requester.pinned(c, p.source, p.there, 2, netproto.PinWrite, 1)
	r := p.requester.pinned(c, p.source, p.there, 2, netproto.PinRead, 2)
	copyOf := func(slot uint8, offset, length uint64) netproto.DelegateCopy {
		return netproto.DelegateCopy{Slot: slot, Offset: offset, Length: length}
	}
	refused := func(what string, want netproto.Status, name netproto.PinName, copies ...netproto.DelegateCopy) {
		t.Helper()
		if got := p.requester.order(c, p.source, name, copies...); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	refused("a slot that was not pinned", netproto.StatusProtocolError, r, copyOf(2, 0, 1))
	refused("beyond the range", netproto.StatusInvalidRange, r, copyOf(0, 4*slotBytes-1, 2))
	refused("more than a slot", netproto.StatusInvalidRange, r, copyOf(0, 0, slotBytes+1))
	refused("an empty slot", netproto.StatusProtocolError, w, copyOf(0, 0, 1))
	refused("one of two", netproto.StatusInvalidRange, r, copyOf(0, 0, 1), copyOf(1, 4*slotBytes, 1))
	if n := p.source.service.Stats().Delegated; n != 0 {
		t.Errorf("%d copies were begun", n)
	}
	if o := p.requester.load(c, p.source, lanes.Write, p.here, w, 0, 0, 50); o.Err != nil {
		t.Fatal(o.Err)
	}
	refused("more than arrived", netproto.StatusProtocolError, w, copyOf(0, 0, 51))
	refused("less than arrived", netproto.StatusProtocolError, w, copyOf(0, 0, 49))
	refused("a good one", netproto.StatusSuccess, r, copyOf(0, 0, 10))
	refused("a slot with a copy under way", netproto.StatusProtocolError, r, copyOf(0, 0, 10))
	if _, err := p.source.tracker.Unregister(p.there.ID()); err != nil {
		t.Fatal(err)
	}
	refused("a region that has gone", netproto.StatusUnknownRegion, w, copyOf(0, 0, 50))
	if status := p.requester.unpin(c, p.source, w); status != netproto.StatusSuccess {
		t.Error(status)
	}
	if status := p.requester.unpin(c, p.source, r); status != netproto.StatusSuccess {
		t.Error(status)
	}
	if !bytes.Equal(p.there.bytes(), pattern(4*slotBytes, 1)) {
		t.Error("the range was changed")
	}
	p.finish()
}

// A pin of which nothing is heard is taken back at the source's deadline, and its slots serve the next one; a frame that
// comes later is refused.
//
// proves C-8, T-9
func TestASilentPinEndsAtTheSourcesDeadline(t *testing.T) {
	p := newPair(t, setup{slots: 2, sourceTimeout: time.Second}, setup{}, 4*slotBytes)
	silent, other := p.requester.channel(p.source), p.requester.channel(p.source)
	name := p.requester.pinned(silent, p.source, p.there, 2, netproto.PinRead, 1)
	p.pass(900 * time.Millisecond)
	if status := p.requester.order(silent, p.source, name, netproto.DelegateCopy{Length: 9}); status != netproto.StatusSuccess {
		t.Fatal(status)
	}
	p.pass(900 * time.Millisecond) // the delegate has renewed it
	if p.source.slots.Used() != 2 {
		t.Error("a pin was taken back too early")
	}
	if status := p.requester.pin(other, p.source, p.there, 1, netproto.PinRead, 2); status != netproto.StatusExhausted {
		t.Errorf("more slots than there are: %v", status)
	}
	p.pass(200 * time.Millisecond)
	if s := p.source.service.Stats(); p.source.slots.Used() != 0 || s.Expired != 1 || s.Pins != 0 {
		t.Errorf("charged %d, %+v", p.source.slots.Used(), s)
	}
	if status := p.requester.order(silent, p.source, name, netproto.DelegateCopy{Length: 9}); status != netproto.StatusUnknownRegion {
		t.Errorf("late: %v", status)
	}
	if o := p.wait(p.requester.ask(lanes.Write, p.source, p.here, p.there, 0, 0, 300, 2).start(silent)); o.Err != nil {
		t.Errorf("the stream goes on: %+v", o)
	}
	p.finish()
}

// A session with a pin is neither idle nor evicted for another peer; without one it is both.
//
// proves C-8
func TestASessionWithAPinIsNotEvicted(t *testing.T) {
	p := newPair(t, setup{sessions: 1, idle: 2 * time.Second}, setup{}, 4*slotBytes)
	mine, other := p.requester.channel(p.source), p.requester.channel(p.source)
	name := p.requester.pinned(mine, p.source, p.there, 1, netproto.PinRead, 1)
	for range 4 {
		p.pass(time.Second)
		if status := p.requester.order(mine, p.source, name, netproto.DelegateCopy{Length: 9}); status != netproto.StatusSuccess {
			t.Fatal(status)
		}
	}
	q := p.requester.whisper(other, netproto.Request{Operation: netproto.OperationUnpin, Epoch: p.source.policy.Epoch}, 0, netproto.AppendUnpin(nil, name))
	p.until("a refused stream", func() bool { return q.done })
	if q.fault == nil || q.fault.Cause != lanes.Disconnected || p.source.slots.Used() != 1 {
		t.Errorf("a stream more: %v, %d slots", q.fault, p.source.slots.Used())
	}
	if status := p.requester.unpin(mine, p.source, name); status != netproto.StatusSuccess {
		t.Error(status)
	}
	if status := p.requester.unpin(other, p.source, name); status != netproto.StatusUnknownRegion {
		t.Errorf("an idle session was not evicted: %v", status)
	}
	p.finish()
}

// Requesters that find no slot get one in the order in which they asked, as long as they go on asking; nobody overtakes,
// and nobody's frames wait behind theirs. One peer has no more slots than its share.
//
// proves C-8, U-3
func TestSlotsAreGivenInTheOrderOfAsking(t *testing.T) {
	p := newPair(t, setup{slots: 2, peerSlots: 2}, setup{}, 40*slotBytes)
	third := p.node(thirdHost, setup{})
	holder := p.requester.channel(p.source)
	name := p.requester.pinned(holder, p.source, p.there, 2, netproto.PinRead, 1)
	if status := p.requester.pin(holder, p.source, p.there, 1, netproto.PinRead, 2); status != netproto.StatusExhausted {
		t.Errorf("more than a peer's share: %v", status)
	}
	var ended []int
	var all []*attempt
	for i := range 4 {
		local := third.register(false, 9*slotBytes, netproto.LocalOnly, 3)
		a := third.ask(lanes.Read, p.source, local, p.there, 0, 0, 9*slotBytes, 16)
		done := a.Done
		a.Done = func(x *Transfer) { ended = append(ended, i); done(x) }
		all = append(all, a.start(third.channel(p.source)))
		p.pass(20 * time.Millisecond)
	}
	for range 3 { // the holder's frames are served meanwhile, at once
		began := p.world.Now()
		if status := p.requester.order(holder, p.source, name, netproto.DelegateCopy{Length: 9}); status != netproto.StatusSuccess {
			t.Fatal(status)
		}
		if p.world.Now() > began.After(5*time.Millisecond) {
			t.Errorf("a delegate took %v", p.world.Now()-began)
		}
		p.pass(time.Second)
	}
	if len(ended) != 0 {
		t.Fatalf("%v ended without a slot", ended)
	}
	if status := p.requester.unpin(holder, p.source, name); status != netproto.StatusSuccess {
		t.Fatal(status)
	}
	for _, a := range all {
		if o := p.wait(a); o.Err != nil {
			t.Error(o.Err)
		}
	}
	if fmt.Sprint(ended) != "[0 1 2 3]" {
		t.Errorf("served in the order %v", ended)
	}
	p.finish()
}

// A transfer that finds no slot until its deadline fails, nothing having been done; so does one whose place is in vain.
//
// proves C-8, T-9
func TestWaitingForSlotsEndsAtTheDeadline(t *testing.T) {
	p := newPair(t, setup{slots: 1, sourceTimeout: 10 * time.Second}, setup{}, 4*slotBytes)
	c, other := p.requester.channel(p.source), p.requester.channel(p.source)
	p.requester.pinned(c, p.source, p.there, 1, netproto.PinRead, 1)
	a := p.requester.ask(lanes.Write, p.source, p.here, p.there, 0, 0, 300, 2)
	a.Deadline = p.world.Now().After(2 * time.Second)
	o := p.wait(a.start(other))
	if f := fault(t, o); f.Cause != lanes.Deadline || f.Err != errNoSlots || o.Remote != lanes.EffectNone || !o.Drained {
		t.Errorf("%+v: %v", o, f)
	}
	if now := p.world.Now(); now < a.Deadline || now > a.Deadline.After(time.Millisecond) {
		t.Errorf("it ended %v after its deadline", now-a.Deadline)
	}
	p.finish()
}

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
		if o := p.wait(a); o.Err != nil || !bytes.Equal(p.here.bytes(), p.there.bytes()) {
			t.Errorf("%+v", o)
		}
		lease, err = p.there.Lease(slotBytes+5, 1, segments.Exclusive)
		if err != nil {
			t.Fatal(err)
		}
		p.there.set(pattern(4*slotBytes, 1))
		a = p.requester.ask(d, p.source, p.here, p.there, 0, 0, 4*slotBytes, 2).start(p.requester.channels[0])
		o := p.wait(a)
		if o.Err == nil || p.there.bytes()[slotBytes+5] != pattern(4*slotBytes, 1)[slotBytes+5] {
			t.Errorf("%v: %+v", d, o)
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
			p.until("the pin's end", func() bool { return p.source.slots.Used() == 0 })
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

// A source that offers no slots refuses everything about them, and goes on with the stream.
//
// proves C-8, G-4
func TestASourceThatOffersNoSlotsRefuses(t *testing.T) {
	p := newPair(t, setup{bare: true}, setup{}, 4*slotBytes)
	c := p.requester.channel(p.source)
	name := netproto.PinName{Requester: p.requester.policy.Epoch, Generation: 1, Number: 64}
	for what, status := range map[string]netproto.Status{
		"pin":      p.requester.pin(c, p.source, p.there, 1, netproto.PinRead, 1),
		"delegate": p.requester.order(c, p.source, name, netproto.DelegateCopy{Length: 9}),
		"unpin":    p.requester.unpin(c, p.source, name),
	} {
		if status != netproto.StatusBackendUnavailable {
			t.Errorf("%s: %v", what, status)
		}
	}
	if o := p.requester.load(c, p.source, lanes.Read, p.here, name, 0, 0, 1); fault(t, o).Status != netproto.StatusUnknownRegion {
		t.Errorf("%+v", o)
	}
	o := p.wait(p.requester.ask(lanes.Write, p.source, p.here, p.there, 0, 0, 300, 2).start(c))
	if fault(t, o).Status != netproto.StatusBackendUnavailable || o.Remote != lanes.EffectNone || p.source.server.Sessions() != 1 {
		t.Errorf("%+v, %d streams", o, p.source.server.Sessions())
	}
	p.finish()
}
