package tcp

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

const poison = 0xee

// poisoned fills the caller's memory, and the idle staging buffers of the lane, with poison: from Done on
// both are somebody else's.
func poisoned(n *node, local *memory) {
	for i := range local.bytes() {
		local.bytes()[i] = poison
	}
	if b, err := n.lane.Arena.Get(local.Length()); err == nil {
		idle := b.Bytes(local.Length())
		for i := range idle {
			idle[i] = poison
		}
		n.lane.Arena.Put(&b)
	}
}

// untouched checks that nobody has written there since.
func untouched(t *testing.T, n *node, local *memory, what string) {
	t.Helper()
	b, err := n.lane.Arena.Get(local.Length())
	must(t, err)
	for i := range local.bytes() {
		if local.bytes()[i] != poison || b.Bytes(local.Length())[i] != poison {
			t.Fatalf("%s: byte %d was written after the end", what, i)
		}
	}
	n.lane.Arena.Put(&b)
}

// A transfer that is ended after any step of the world ends once, retires its stream if it had one,
// leaves its ranges as they should be, and nothing writes its buffers afterwards.
//
// proves G-8, T-5
// field case F-14
func TestCancelAfterEachStep(t *testing.T) {
	mappings(t)
	for _, direct := range []bool{false, true} {
		for _, direction := range []lanes.Direction{lanes.Read, lanes.Write} {
			for step := 0; cancelAfter(t, direction, direct, step); step++ {
			}
		}
	}
}

// cancelAfter runs one transfer and cancels it after so many steps; false when it had ended by itself.
func cancelAfter(t *testing.T, direction lanes.Direction, direct bool, step int) bool {
	what := fmt.Sprintf("%v direct %v cancelled after step %d", direction, direct, step)
	r := newRig(t, uint64(step), simkernel.WorldOptions{ChopReceive: 20, ChopSend: 20})
	defer r.finish()
	source, requester := r.node(sourceHost, setup{direct: direct}), r.node(requesterHost, setup{direct: direct})
	remote, local := source.register(payloadBytes, netproto.ReadWrite, 1), requester.register(payloadBytes, netproto.LocalOnly, 2)
	c := requester.channel(source.address)
	a := requester.ask(direction, local, remote.ID()).start(c)
	for range step {
		r.world.Step()
	}
	if a.done > 0 {
		return false
	}
	a.Cancel()
	o := r.wait(a)
	switch {
	case o.Err == nil:
		t.Errorf("%s: success", what)
	case fault(t, o).Cause != lanes.Cancelled || !o.Drained:
		t.Errorf("%s: %+v", what, o)
	case direction == lanes.Read && local.holds(2) != (o.Local == lanes.EffectNone):
		t.Errorf("%s: %+v, and the local range differs from that", what, o)
	}
	if used := requester.lane.Streams.Used(); used != 0 && requester.lane.Counts.Connects.Load() > 0 {
		t.Errorf("%s: the stream holds %d slots", what, used)
	}
	poisoned(requester, local)
	r.pass(source.policy.SourceTimeout + time.Second)
	untouched(t, requester, local, what)
	if direction == lanes.Write {
		whole := remote.holds(1) || remote.holds(2)
		if !whole && !direct || o.Remote == lanes.EffectNone && !remote.holds(1) || bytes.IndexByte(remote.bytes(), poison) >= 0 {
			t.Errorf("%s: %+v, remote range whole %v", what, o, whole)
		}
	}
	if a.done != 1 {
		t.Errorf("%s: Done was called %d times", what, a.done)
	}
	copy(local.bytes(), pattern(payloadBytes, 3))
	next := requester.ask(lanes.Write, local, remote.ID()).start(c)
	if o := r.wait(next); o.Err != nil || !remote.holds(3) {
		t.Errorf("%s: the next request: %+v", what, o)
	}
	return true
}

// A READ is ended, by its owner or by its deadline, when exactly so many bytes of the answer have come;
// the rest comes later and finds nobody.
//
// field case F-14, F-15
// proves G-8
func TestLateBytesFindNobody(t *testing.T) {
	mappings(t)
	answer := append(replyBytes(netproto.StatusSuccess, payloadBytes), pattern(payloadBytes, 1)...)
	for _, direct := range []bool{false, true} {
		for at := range answer {
			what := fmt.Sprintf("direct %v, ended at byte %d", direct, at)
			r := newRig(t, uint64(at), simkernel.WorldOptions{})
			requester := r.node(requesterHost, setup{direct: direct})
			local := requester.register(payloadBytes, netproto.LocalOnly, 2)
			p := r.listen()
			a := requester.ask(lanes.Read, local, 1).start(requester.channel(p.address))
			w := p.accept()
			w.request()
			must(t, w.send(answer[:at]))
			r.pass(time.Millisecond)
			if at%2 == 0 {
				a.Cancel()
			}
			_ = w.send(answer[at:]) // while the lane takes the stream down, or before its deadline is seen
			o := r.wait(a)
			if at%2 == 0 {
				changed := !local.holds(2)
				if changed != (o.Local == lanes.EffectPartial) || changed && !direct {
					t.Errorf("%s: %+v, changed %v", what, o, changed)
				}
			} else if o.Err != nil || !local.holds(1) {
				t.Errorf("%s: %+v", what, o)
			}
			poisoned(requester, local)
			_ = w.send(answer)
			r.pass(soon)
			untouched(t, requester, local, what)
			r.finish()
		}
	}
}

// The end of a READ and the arrival of the first part of its answer meet in one turn: the receive may be
// cancelled, or complete with bytes that the transfer no longer wants. Partial is reported exactly when
// bytes reached the range.
//
// proves T-2, G-8
func TestCancelRacesWithArrival(t *testing.T) {
	mappings(t)
	answer := append(replyBytes(netproto.StatusSuccess, payloadBytes), pattern(payloadBytes, 1)...)
	partial := 0
	for _, direct := range []bool{false, true} {
		for at := 1; at < len(answer); at++ {
			r := newRig(t, uint64(at), simkernel.WorldOptions{})
			requester := r.node(requesterHost, setup{direct: direct})
			local := requester.register(payloadBytes, netproto.LocalOnly, 2)
			p := r.listen()
			a := requester.ask(lanes.Read, local, 1).start(requester.channel(p.address))
			w := p.accept()
			w.request()
			r.pass(time.Millisecond) // the receive is with the kernel
			w.begin(reactor.Operation{Kind: reactor.Send, Buffers: [2][]byte{answer[:at]}})
			r.loop.Turn(reactor.Past)
			r.world.Advance(time.Millisecond) // the bytes are there, and the lane has not looked
			a.Cancel()
			o := r.wait(a)
			changed := !local.holds(2)
			if changed != (o.Local == lanes.EffectPartial) || changed && !direct || fault(t, o).Cause != lanes.Cancelled {
				t.Errorf("direct %v, %d bytes: %+v, changed %v", direct, at, o, changed)
			}
			if changed {
				partial++
			}
			r.finish()
		}
	}
	if partial == 0 {
		t.Error("the bytes never won the race")
	}
}

// The source stalls at each byte of its answer until after the deadline, and then goes on.
//
// field case F-15
func TestStalledSourceAnswersAfterTheTimeout(t *testing.T) {
	mappings(t)
	answer := append(replyBytes(netproto.StatusSuccess, payloadBytes), pattern(payloadBytes, 1)...)
	for _, direct := range []bool{false, true} {
		for at := range answer {
			what := fmt.Sprintf("direct %v, stalled at byte %d", direct, at)
			r := newRig(t, uint64(at), simkernel.WorldOptions{})
			requester := r.node(requesterHost, setup{direct: direct})
			local := requester.register(payloadBytes, netproto.LocalOnly, 2)
			p := r.listen()
			a := requester.ask(lanes.Read, local, 1).start(requester.channel(p.address))
			w := p.accept()
			w.request()
			must(t, w.send(answer[:at]))
			o := r.wait(a)
			if f := fault(t, o); f.Cause != lanes.Deadline || o.Local == lanes.EffectComplete {
				t.Errorf("%s: %+v", what, o)
			}
			poisoned(requester, local)
			_ = w.send(answer[at:])
			r.pass(soon)
			untouched(t, requester, local, what)
			r.finish()
		}
	}
}

// The network swallows everything from each step of the protocol on, the connect included: the transfer
// ends at its deadline, plus a bounded grace, and the source lets go at its own.
//
// field case F-16
// proves T-9
func TestBlackHoleAtEachStep(t *testing.T) {
	mappings(t)
	for _, direct := range []bool{false, true} {
		for _, direction := range []lanes.Direction{lanes.Read, lanes.Write} {
			for step := 0; blackHoleAfter(t, direction, direct, step); step++ {
			}
		}
	}
}

func blackHoleAfter(t *testing.T, direction lanes.Direction, direct bool, step int) bool {
	const grace = time.Millisecond
	what := fmt.Sprintf("%v direct %v dark after step %d", direction, direct, step)
	r := newRig(t, uint64(step), simkernel.WorldOptions{ChopReceive: 20, ChopSend: 20})
	defer r.finish()
	source, requester := r.node(sourceHost, setup{direct: direct}), r.node(requesterHost, setup{direct: direct})
	remote, local := source.register(payloadBytes, netproto.ReadWrite, 1), requester.register(payloadBytes, netproto.LocalOnly, 2)
	a := requester.ask(direction, local, remote.ID()).start(requester.channel(source.address))
	for range step {
		r.world.Step()
	}
	if a.done > 0 {
		return false
	}
	r.world.Link(sourceHost, requesterHost).BlackHole(true)
	r.world.Link(requesterHost, sourceHost).BlackHole(true)
	o := r.wait(a)
	if late := time.Duration(a.at - a.Deadline); late > grace {
		t.Errorf("%s: ended %v after its deadline", what, late)
	}
	if o.Err != nil && fault(t, o).Cause != lanes.Deadline {
		t.Errorf("%s: %+v", what, o)
	}
	r.pass(source.policy.SourceTimeout)
	if h := source.admission.Handlers.Used(); h != 0 || remote.Loans() != 0 {
		t.Errorf("%s: the source still holds %d handlers", what, h)
	}
	r.world.Link(sourceHost, requesterHost).BlackHole(false)
	r.world.Link(requesterHost, sourceHost).BlackHole(false)
	return true
}

// The answer, and an answer directly behind another one, arrive in pieces that end at each offset.
//
// field case F-31
func TestFrameBoundaryAtEachOffsetAtTheRequester(t *testing.T) {
	mappings(t)
	for _, direct := range []bool{false, true} {
		r := newRig(t, 1, simkernel.WorldOptions{})
		requester := r.node(requesterHost, setup{direct: direct})
		local := requester.register(9, netproto.LocalOnly, 2)
		p := r.listen()
		c := requester.channel(p.address)
		var w *wire
		answer := append(replyBytes(netproto.StatusSuccess, 9), pattern(9, 1)...)
		for at := 1; at <= len(answer); at++ {
			copy(local.bytes(), pattern(9, 2))
			a := requester.ask(lanes.Read, local, 1).start(c)
			if w == nil {
				w = p.accept()
			}
			w.request()
			must(t, w.send(answer[:at]))
			r.pass(time.Millisecond)
			must(t, w.send(answer[at:]))
			if o := r.wait(a); o.Err != nil || !local.holds(1) {
				t.Fatalf("cut at %d: %+v", at, o)
			}
		}
		write := append(replyBytes(netproto.StatusReady, 0), replyBytes(netproto.StatusSuccess, 0)...)
		for at := 1; at <= len(write); at++ {
			a := requester.ask(lanes.Write, local, 1).start(c)
			w.request()
			must(t, w.send(write[:at]))
			r.pass(time.Millisecond)
			must(t, w.send(write[at:])) // the receipt may come before the payload was taken: it is in order all the same
			if b, err := w.receive(9); err != nil || !bytes.Equal(b, pattern(9, 1)) {
				t.Fatalf("cut at %d: %x %v", at, b, err)
			}
			if o := r.wait(a); o.Err != nil {
				t.Fatalf("cut at %d: %+v", at, o)
			}
		}
		r.finish()
	}
}

// The same seed gives the same steps: every byte of every connection at the same instant, and the same
// outcomes, through deadlines, chopped transfers and cuts.
//
// proves L-3
func TestSameSeedSameSteps(t *testing.T) {
	for seed := range uint64(10) {
		first, second := history(t, seed), history(t, seed)
		if first != second {
			t.Errorf("SEED=%d: two runs differ:\n%s\n%s", seed, first, second)
		}
		if first == history(t, seed+1000) {
			t.Errorf("SEED=%d: another seed gives the same history", seed)
		}
	}
}

func history(t *testing.T, seed uint64) string {
	r := newRig(t, seed, simkernel.WorldOptions{ChopReceive: 300, ChopSend: 300, Buffer: 1000})
	source, requester := r.node(sourceHost, setup{}), r.node(requesterHost, setup{})
	remote := source.register(5000, netproto.ReadWrite, 1)
	c := requester.channel(source.address)
	var text bytes.Buffer
	r.world.OnConnect(func(k *simkernel.Connection) {
		fmt.Fprintf(&text, "%d: connection %d\n", r.world.Now(), k.ID())
		k.ResetAfter(simkernel.ToClient, 9000)
	})
	var all []*attempt
	for i := range 6 {
		a := requester.ask(lanes.Direction(1+i%2), requester.register(5000, netproto.LocalOnly, 2), remote.ID())
		a.Deadline = r.world.Now().After(time.Duration(i+1) * 3 * time.Millisecond)
		all = append(all, a.start(c))
	}
	for _, a := range all {
		o := r.wait(a)
		fmt.Fprintf(&text, "%d: %v %v %v %v, turns %d, crossings %d\n", a.at, o.Err, o.Local, o.Remote, o.Bytes,
			requester.lane.Stats().Turns, source.lane.Kernel().Counters().Crossings)
	}
	r.finish()
	return text.String()
}

// Both sides connect to each other at once, with a backlog of one, a thousand times.
//
// field case F-34
func TestBothSidesConnectAtOnce(t *testing.T) {
	mappings(t)
	r := newRig(t, 34, simkernel.WorldOptions{})
	defer r.finish()
	a, b := r.node(sourceHost, setup{backlog: 1}), r.node(requesterHost, setup{backlog: 1})
	remoteA, remoteB := a.register(8, netproto.ReadWrite, 1), b.register(8, netproto.ReadWrite, 1)
	localA, localB := a.register(8, netproto.LocalOnly, 2), b.register(8, netproto.LocalOnly, 2)
	for i := range 1000 {
		toB, toA := a.pool.NewChannel(addresses(b)), b.pool.NewChannel(addresses(a))
		x, y := a.ask(lanes.Read, localA, remoteB.ID()).start(toB), b.ask(lanes.Write, localB, remoteA.ID()).start(toA)
		if ox, oy := r.wait(x), r.wait(y); ox.Err != nil || oy.Err != nil {
			t.Fatalf("round %d: %v, %v", i, ox.Err, oy.Err)
		}
		gone := 0
		toA.Close(func() { gone++ })
		toB.Close(func() { gone++ })
		r.until("closing", func() bool { return gone == 2 })
	}
	if n := a.lane.Counts.Accepted.Load(); n != 1000 {
		t.Errorf("%d connections were accepted", n)
	}
}

// Small socket buffers, a slow reader and transfers that move a random part each time lose and double
// nothing.
//
// field case F-46
func TestSmallBuffersAndPartialTransfers(t *testing.T) {
	mappings(t)
	for seed := range uint64(12) {
		for _, direct := range []bool{false, true} {
			r := newRig(t, seed, simkernel.WorldOptions{Buffer: 4096, ChopReceive: 1 + int(seed)*300, ChopSend: 3000 - int(seed)*200})
			source, requester := r.node(sourceHost, setup{direct: direct}), r.node(requesterHost, setup{direct: direct})
			const length = 20_000
			remote, local := source.register(length, netproto.ReadWrite, 1), requester.register(length, netproto.LocalOnly, 2)
			c := requester.channel(source.address)
			w := requester.ask(lanes.Write, local, remote.ID()).start(c)
			if o := r.wait(w); o.Err != nil || !remote.holds(2) {
				t.Errorf("SEED=%d direct %v: %+v", seed, direct, o)
			}
			copy(remote.bytes(), pattern(length, 3))
			d := requester.ask(lanes.Read, local, remote.ID()).start(c)
			if o := r.wait(d); o.Err != nil || !local.holds(3) {
				t.Errorf("SEED=%d direct %v: %+v", seed, direct, o)
			}
			r.finish()
		}
	}
}
