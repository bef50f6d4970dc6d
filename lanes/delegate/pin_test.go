package delegate

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/lanes/tcp"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/segments"
)

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
	p := newPair(t, setup{slots: 2, sourceTimeout: time.Second, idle: 3 * time.Second}, setup{}, 4*slotBytes)
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
	p.requester.pinned(silent, p.source, p.there, 2, netproto.PinRead, 3)
	p.pass(4500 * time.Millisecond)
	if n := p.source.server.Sessions(); n != 0 {
		t.Errorf("%d sessions, whose pins have ended, are not idle", n)
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
	held := p.requester.pinned(c, p.source, p.there, 1, netproto.PinRead, 1)
	a := p.requester.ask(lanes.Write, p.source, p.here, p.there, 0, 0, 300, 2)
	a.Deadline = p.world.Now().After(2 * time.Second)
	o := p.wait(a.start(other))
	if f := fault(t, o); f.Cause != lanes.Deadline || f.Err != errNoSlots || o.Remote != lanes.EffectNone || !o.Drained {
		t.Errorf("%+v: %v", o, f)
	}
	if now := p.world.Now(); now < a.Deadline || now > a.Deadline.After(time.Millisecond) {
		t.Errorf("it ended %v after its deadline", now-a.Deadline)
	}
	again := p.requester.ask(lanes.Write, p.source, p.here, p.there, 0, 0, 300, 2).start(other)
	p.pass(1300 * time.Millisecond)
	if status := p.requester.unpin(c, p.source, held); status != netproto.StatusSuccess {
		t.Fatal(status)
	}
	freed := p.world.Now()
	if o := p.wait(again); o.Err != nil || p.world.Now() > freed.After(50*time.Millisecond) {
		t.Errorf("%+v, %v after a slot was free", o, p.world.Now()-freed)
	}
	p.finish()
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

// The line for slots: who was refused first is served first as long as it asks again in time, and its place is anybody's
// when it does not. A stream has no more slots than its share, whatever is free.
//
// proves C-8, U-3
func TestTheLineForSlotsKeepsItsOrder(t *testing.T) {
	p := newPair(t, setup{slots: 2, peerSlots: 1}, setup{}, 4*slotBytes)
	var streams []*control.Channel
	for range 4 {
		streams = append(streams, p.requester.channel(p.source))
	}
	ask := func(stream int, generation uint64, want netproto.Status) {
		t.Helper()
		if got := p.requester.pin(streams[stream], p.source, p.there, 2, netproto.PinRead, generation); got != want {
			t.Errorf("stream %d: %v, want %v", stream, got, want)
		}
	}
	const no, yes = netproto.StatusExhausted, netproto.StatusSuccess
	first := p.requester.pinned(streams[0], p.source, p.there, 2, netproto.PinRead, 1)
	if p.source.slots.Used() != 1 {
		t.Errorf("%d slots for one peer, want its share of 1", p.source.slots.Used())
	}
	ask(0, 2, no) // its share
	second := p.requester.pinned(streams[1], p.source, p.there, 1, netproto.PinRead, 3)
	ask(2, 4, no)
	ask(3, 5, no)
	if status := p.requester.unpin(streams[0], p.source, first); status != yes {
		t.Fatal(status)
	}
	ask(3, 6, no) // stream 2 stands before it
	ask(0, 7, no)
	ask(2, 8, yes)
	ask(0, 9, no)
	if status := p.requester.unpin(streams[1], p.source, second); status != yes {
		t.Fatal(status)
	}
	ask(0, 10, no)
	p.pass(claimGrace) // stream 3 does not ask again
	ask(0, 11, yes)
	p.finish()
}

// A place in the line is nobody's once its stream is gone, and keeps others from a free slot only while its peer may be
// expected to ask again: 50 ms, or twice as long as it took the last time. While it is not gone for good it stays a place.
//
// proves C-8, U-3
func TestAPlaceInTheLineKeepsNobodyFromSlotsInVain(t *testing.T) {
	p := newPair(t, setup{slots: 1}, setup{}, 4*slotBytes)
	third := p.node(thirdHost, setup{})
	gone := third.channel(p.source)
	a, b, c := p.requester.channel(p.source), p.requester.channel(p.source), p.requester.channel(p.source)
	held, generation := netproto.PinName{}, uint64(0)
	ask := func(n *node, from *control.Channel, want bool) {
		t.Helper()
		generation++
		if !want {
			if got := n.pin(from, p.source, p.there, 1, netproto.PinRead, generation); got != netproto.StatusExhausted {
				t.Fatal(got)
			}
			return
		}
		held = n.pinned(from, p.source, p.there, 1, netproto.PinRead, generation)
	}
	free := func(from *control.Channel) {
		t.Helper()
		if status := p.requester.unpin(from, p.source, held); status != netproto.StatusSuccess {
			t.Fatal(status)
		}
	}
	ask(p.requester, a, true)
	ask(third, gone, false)
	third.kill()
	p.pass(time.Millisecond)
	free(a)
	ask(p.requester, b, true) // at once

	ask(p.requester, c, false)
	free(b)
	ask(p.requester, a, false)
	p.pass(claimPatience)
	ask(p.requester, a, true) // c was cancelled, and its stream goes on

	p.pass(claimGrace)
	ask(p.requester, b, false)
	p.pass(2 * claimPatience)
	ask(p.requester, c, false)
	ask(p.requester, b, false) // it is far away
	free(a)
	p.pass(3 * claimPatience / 2)
	ask(p.requester, c, false)
	ask(p.requester, b, true)
	ask(p.requester, c, false)
	p.pass(3 * claimPatience)
	free(b)
	ask(p.requester, a, true) // c was waited for for long enough
	p.finish()
}

// A pin ends with CloseSource although nobody says anything: at once while its copy waits for a lease, and with the copy's
// event while it is with the device.
//
// proves C-8, G-6
func TestASilentPinEndsWithItsSource(t *testing.T) {
	for _, leased := range []bool{false, true} {
		p := newPair(t, setup{slow: 20 * time.Millisecond}, setup{}, 4*slotBytes)
		c := p.requester.channel(p.source)
		name := p.requester.pinned(c, p.source, p.there, 2, netproto.PinRead, 1)
		var lease segments.Lease
		if leased {
			var err error
			if lease, err = p.there.Lease(0, 1, segments.Exclusive); err != nil {
				t.Fatal(err)
			}
		}
		if status := p.requester.order(c, p.source, name, netproto.DelegateCopy{Length: 9}); status != netproto.StatusSuccess {
			t.Fatal(status)
		}
		began := p.world.Now()
		p.source.admission.Fence()
		p.source.service.Fence()
		p.until("a quiet source", func() bool { return p.source.admission.Gate.Inside() == 0 })
		took := time.Duration(p.world.Now() - began)
		if leased == (took > 5*time.Millisecond) || took > 100*time.Millisecond || p.source.slots.Used() != 0 || p.source.stage.Stats().Flying != 0 {
			t.Errorf("leased %v: quiet after %v", leased, took)
		}
		if leased {
			lease.Return()
		}
		p.finish()
	}
}

// A slot that a frame of payload has is not given to anybody else before the frame has ended, though its pin has: here the
// payload is on its way for half a second when the source is closed.
//
// proves C-8, G-6
func TestASlotStaysItsFramesUntilTheFrameEnds(t *testing.T) {
	p := newPair(t, setup{direct: true}, setup{}, 4*slotBytes)
	c := p.requester.channel(p.source)
	name := p.requester.pinned(c, p.source, p.there, 1, netproto.PinWrite, 1)
	way := p.world.Link(requesterHost, sourceHost)
	done := false
	x := &tcp.Transfer{
		Direction: lanes.Write, Local: p.here.Registration, Region: netproto.SlotRegion(name.Number, 0), Length: slotBytes,
		Epoch: p.source.policy.Epoch, Deadline: p.world.Now().After(time.Minute), Done: func(*tcp.Transfer) { done = true },
	}
	x.Start(c)
	p.until("a frame", func() bool { return p.source.service.pins[0].slots[0].machine.inside })
	way.Delay(500*time.Millisecond, 500*time.Millisecond)
	p.source.admission.Fence()
	p.source.service.Fence()
	p.pass(300 * time.Millisecond)
	if p.source.slots.Used() != 1 || p.source.stage.Lendable() != 3 || done {
		t.Errorf("%d slots charged, %d free, while a frame has one", p.source.slots.Used(), p.source.stage.Lendable())
	}
	p.until("the frame's end", func() bool { return done })
	p.until("a quiet source", func() bool { return p.source.admission.Gate.Inside() == 0 })
	if p.source.slots.Used() != 0 || x.Outcome.Err != nil {
		t.Errorf("%d slots charged, %+v", p.source.slots.Used(), x.Outcome)
	}
	p.finish()
}

// A server that is closed ends the streams that are there for their pins only, and with them the pins.
//
// proves C-8
func TestAClosedServerEndsStreamsThatArePinnedTo(t *testing.T) {
	p := newPair(t, setup{}, setup{}, 4*slotBytes)
	p.requester.pinned(p.requester.channel(p.source), p.source, p.there, 2, netproto.PinRead, 1)
	closed := false
	p.source.server.Close(func() { closed = true })
	p.until("the server's end", func() bool { return closed })
	if s := p.source.service.Stats(); s.Orphaned != 1 || s.Pins != 0 || p.source.slots.Used() != 0 {
		t.Errorf("%+v", s)
	}
	p.finish()
}

// A transfer whose stream is lost fails, and asks for nothing on a new one: its pin ended with the old one.
//
// proves C-8, T-5
func TestATransferAsksNothingOnAnotherStream(t *testing.T) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		p := newPair(t, setup{slow: 10 * time.Millisecond}, setup{}, 4*slotBytes)
		a := p.requester.ask(d, p.source, p.here, p.there, 0, 0, 4*slotBytes, 2).start(p.requester.channel(p.source))
		p.until("a copy", func() bool { return p.source.stage.Stats().Flying > 0 })
		p.world.Connections()[0].Reset()
		o := p.wait(a)
		if f := fault(t, o); f.Cause != lanes.Disconnected || !o.Drained || (d == lanes.Write) != (o.Remote == lanes.EffectUnknown) {
			t.Errorf("%v: %+v", d, o)
		}
		p.until("the pin's end", func() bool { return p.source.slots.Used() == 0 })
		if s := p.source.service.Stats(); s.Refused != 0 || p.requester.lane.Counts.Connects.Load() != 1 {
			t.Errorf("%v: %+v, %d streams", d, s, p.requester.lane.Counts.Connects.Load())
		}
		p.finish()
	}
}

// Whichever step finds that the source has taken the pin back says so: a refused delegate is about the pin, and not about
// the region, when the pin is unknown to its end as well.
//
// proves C-8
func TestAPinThatWasTakenBackIsSaidToBe(t *testing.T) {
	for n := 1; n < 40; n++ {
		p := newPair(t, setup{}, setup{}, 4*slotBytes)
		a := p.requester.ask(lanes.Write, p.source, p.here, p.there, 0, 0, 4*slotBytes, 1).start(p.requester.channel(p.source))
		p.until("the pin", func() bool { return len(p.source.service.pins) > 0 })
		for range n {
			p.world.Step()
		}
		taken := len(p.source.service.pins) > 0 && p.source.service.pins[0].state == pinPinned
		if taken { // as its deadline does, which waits for a frame that has the slot
			if taken = !p.source.service.pins[0].slots[0].machine.inside; taken {
				p.source.service.pins[0].end()
			}
		}
		if o := p.wait(a); taken && (o.Err == nil || !errors.Is(o.Err, ErrTakenBack)) {
			t.Errorf("after %d steps: %+v", n, o)
		}
		p.finish()
	}
}

// A refused delegate is about the region exactly when the pin's end tells that the pin was there. One whose pin was taken back
// says so although the answer to its end does not come (seed 29034).
//
// proves C-8
func TestARefusedDelegateIsAboutTheRegionOnlyWhenThePinWasThere(t *testing.T) {
	for _, gone := range []string{"pin", "region"} {
		for _, silent := range []bool{false, true} {
			p := newPair(t, setup{}, setup{}, 4*slotBytes)
			a := p.requester.ask(lanes.Write, p.source, p.here, p.there, 0, 0, 4*slotBytes, 1).start(p.requester.channel(p.source))
			p.until("a part in its slot", func() bool { return a.machine.moved > 0 })
			if gone == "pin" {
				p.source.service.pins[0].end()
			} else if _, err := p.source.tracker.Unregister(p.there.ID()); err != nil {
				t.Fatal(err)
			}
			p.until("the unpin", func() bool { return a.step == stepUnpin })
			p.world.Link(requesterHost, sourceHost).BlackHole(silent)
			o := p.wait(a)
			p.world.Link(requesterHost, sourceHost).BlackHole(false)
			f, about := fault(t, o), "region"
			if errors.Is(f, ErrTakenBack) {
				about = "pin"
			}
			if want := gone == "pin" || silent; f.Status != netproto.StatusUnknownRegion || f.Stage != delegateStage || (about == "pin") != want {
				t.Errorf("the %s is gone, silent %t: about the %s, %v", gone, silent, about, f)
			}
			p.finish()
		}
	}
}

// A copy that finds its range in use until the source's deadline does not begin, and the requester is told why: others have
// the range, and nothing has failed (seeds 28616, 29536).
//
// proves C-8, M-9
func TestARangeInUseUntilTheSourcesDeadlineIsSaidToBe(t *testing.T) {
	eachWay(t, func(t *testing.T, pair pairMaker) {
		for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
			p := pair(t, setup{sourceTimeout: 100 * time.Millisecond}, setup{}, 4*slotBytes)
			held, err := p.there.Lease(0, 1, segments.Exclusive)
			if err != nil {
				t.Fatal(err)
			}
			began := p.world.Now()
			o := p.wait(p.requester.ask(d, p.source, p.here, p.there, 0, 0, slotBytes, 1).start(p.requester.channel(p.source)))
			if !errors.Is(o.Err, ErrOccupied) || !o.Drained || p.world.Now() < began.After(100*time.Millisecond) {
				t.Errorf("%v after %v: %+v", d, time.Duration(p.world.Now()-began), o)
			}
			held.Return()
			p.finish()
		}
	})
}
