package hptcp

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// Requests are posted without waiting for answers, as far as places and credit go; answers come in any order.
//
// proves H-3, H-7, H-1
func TestRequestsArePipelinedWithinPlacesAndCredit(t *testing.T) {
	mappings(t)
	r := newRig(t, 1, simkernel.WorldOptions{ChopReceive: 60})
	requester := r.node(requesterHost, setup{})
	p := r.listen()
	e := netproto.HPTCPEndpoint{Family: netproto.FamilyIPv4, Port: p.address.Port(), StreamsMax: 1, ChunkBytesMax: 100, InFlightBytesMax: 350}
	peer := requester.peerAt(p.address, sourceEpoch, e)
	local := requester.register(1000, netproto.LocalOnly, 2)
	a := requester.ask(lanes.Read, local, 7).start(peer)
	w := p.accept()
	h := w.welcome(nil)
	if h.Chunk != 100 || h.InFlight != 350 || h.Expected != sourceEpoch || h.Requester != requesterEpoch {
		t.Errorf("hello %+v", h)
	}
	var open []netproto.HPTCPRequest
	take := func() {
		q, _ := w.request()
		if q.Length > 100 || q.Region != 7 {
			t.Errorf("request %+v", q)
		}
		open = append(open, q)
	}
	for range 3 {
		take()
	}
	for served := 0; served < 10; served++ {
		r.pass(soon)
		if len(open) > 3 { // 350 bytes of credit
			t.Errorf("%d requests are open", len(open))
		}
		q := open[len(open)-1] // the last one first
		open = open[:len(open)-1]
		must(t, w.send(chunk(q.Tag, 0, pattern(1000, 1)[q.Offset:][:q.Length])))
		if served < 7 {
			take()
		}
	}
	if o := r.wait(a); o.Err != nil || !local.holds(1) {
		t.Errorf("%+v", o)
	}
	r.finish()
}

// Frames that answer nothing find nobody: a double END, a chunk for a request that was answered, another generation,
// a place that never was. Nothing is touched and the stream goes on.
//
// proves H-3
func TestLateAndDoubleAnswersFindNobody(t *testing.T) {
	mappings(t)
	r := newRig(t, 2, simkernel.WorldOptions{ChopReceive: 50})
	requester := r.node(requesterHost, setup{})
	p := r.listen()
	peer := requester.script(p)
	local := requester.register(64, netproto.LocalOnly, 2)
	a := requester.ask(lanes.Read, local, 7).start(peer)
	w := p.accept()
	w.welcome(nil)
	q, _ := w.request()
	must(t, w.send(chunk(q.Tag, 0, pattern(64, 1))))
	if o := r.wait(a); o.Err != nil || !local.holds(1) {
		t.Fatalf("%+v", o)
	}
	copy(local.bytes(), pattern(64, 2))
	must(t, w.send(chunk(q.Tag, 0, pattern(64, 3))))
	must(t, w.send(end(q.Tag, netproto.StatusSuccess)))
	must(t, w.send(chunk(netproto.HPTCPTag{Slot: 500, Generation: 1}, 0, pattern(64, 3))))

	again := requester.ask(lanes.Read, local, 7).start(peer)
	next, _ := w.request()
	if next.Tag == q.Tag || next.Tag.Slot != q.Tag.Slot {
		t.Errorf("tags %v, then %v", q.Tag, next.Tag)
	}
	must(t, w.send(chunk(q.Tag, 0, pattern(64, 3)))) // the old generation of the place in use
	r.pass(soon)
	if again.done > 0 || !local.holds(2) {
		t.Error("a late answer was taken for the new request's")
	}
	must(t, w.send(chunk(next.Tag, 0, pattern(64, 1))))
	if o := r.wait(again); o.Err != nil || !local.holds(1) {
		t.Errorf("%+v", o)
	}
	if n := requester.config.Counts.Late.Load(); n != 4 {
		t.Errorf("%d late answers were counted, want 4", n)
	}
	r.finish()
}

// A READ that is cancelled before or in the middle of its payload ends at once with the truth; what comes late for it
// finds nobody, and the stream serves others.
//
// proves H-3, H-5, G-8
func TestCancelledReadCostsNoStream(t *testing.T) {
	for _, sent := range []int{0, 10, 32, 40, 96} {
		mappings(t)
		r := newRig(t, uint64(sent), simkernel.WorldOptions{})
		requester := r.node(requesterHost, setup{})
		p := r.listen()
		peer := requester.script(p)
		local, beside := requester.register(64, netproto.LocalOnly, 2), requester.register(64, netproto.LocalOnly, 2)
		a := requester.ask(lanes.Read, local, 7).start(peer)
		b := requester.ask(lanes.Read, beside, 8).start(peer)
		w := p.accept()
		w.welcome(nil)
		q, _ := w.request()
		other, _ := w.request()
		answer := chunk(q.Tag, 0, pattern(64, 1))
		must(t, w.send(answer[:min(sent, 95)]))
		r.pass(soon)
		a.Cancel()
		o := r.wait(a)
		changed := !local.holds(2)
		if f := fault(t, o); f.Cause != lanes.Cancelled || !o.Drained || (o.Local == lanes.EffectPartial) != changed {
			t.Errorf("after %d bytes: %+v, changed %v", sent, o, changed)
		}
		copy(local.bytes(), pattern(64, 2))
		must(t, w.send(answer[min(sent, 95):]))
		must(t, w.send(chunk(other.Tag, 0, pattern(64, 1))))
		if o := r.wait(b); o.Err != nil || !beside.holds(1) {
			t.Errorf("after %d bytes, the other request: %+v", sent, o)
		}
		if !local.holds(2) {
			t.Error("bytes came after the end")
		}
		if n := requester.lane.Counts.StreamsRetired.Load(); n != 0 {
			t.Errorf("%d streams were retired", n)
		}
		r.finish()
	}
}

// A deadline retires the stream, and so does the end of a WRITE whose payload is half sent; one that is wholly sent
// is unknown and costs no stream.
//
// proves T-5, T-10, G-8
func TestEndedWritesAndDeadlinesTellTheTruth(t *testing.T) {
	const length = 60_000
	for _, c := range []struct {
		name    string
		size    uint64
		cancel  bool
		read    int // bytes of the requester's that the script takes in
		remote  lanes.Effect
		retired uint64
	}{
		{"cancelled, half sent", length, true, 0, lanes.EffectUnknown, 1},
		{"cancelled, sent", 100, true, 0, lanes.EffectUnknown, 0},
		{"deadline, sent", 100, false, 200, lanes.EffectUnknown, 1},
		{"deadline, half sent", length, false, 0, lanes.EffectUnknown, 1},
	} {
		mappings(t)
		r := newRig(t, 3, simkernel.WorldOptions{Buffer: 4096})
		requester := r.node(requesterHost, setup{})
		p := r.listen()
		peer := requester.script(p)
		local := requester.register(c.size, netproto.LocalOnly, 2)
		a := requester.ask(lanes.Write, local, 7).start(peer)
		w := p.accept()
		w.welcome(nil)
		r.pass(soon)
		if c.read > 0 {
			_, err := w.receive(c.read - 32)
			_ = err
		}
		want := lanes.Deadline
		if c.cancel {
			want = lanes.Cancelled
			a.Cancel()
		}
		o := r.wait(a)
		if f := fault(t, o); f.Cause != want || o.Remote != c.remote || !o.Drained || !local.backing.Quiet() {
			t.Errorf("%s: %+v", c.name, o)
		}
		if n := requester.lane.Counts.StreamsRetired.Load(); n != c.retired {
			t.Errorf("%s: %d streams were retired, want %d", c.name, n, c.retired)
		}
		r.finish()
	}
}

// A source that lies about order, length, kind or checksum loses its stream; the transfer says why.
//
// proves W-15, H-9, H-2
func TestLyingSourceLosesItsStream(t *testing.T) {
	for what, c := range map[string]struct {
		direction lanes.Direction
		answer    func(netproto.HPTCPTag) []byte
	}{
		"chunk beyond the request": {lanes.Read, func(g netproto.HPTCPTag) []byte { return chunk(g, 0, make([]byte, 65)) }},
		"gap":                      {lanes.Read, func(g netproto.HPTCPTag) []byte { return chunk(g, 1, make([]byte, 8)) }},
		"success without bytes":    {lanes.Read, func(g netproto.HPTCPTag) []byte { return end(g, 0) }},
		"chunk for a WRITE":        {lanes.Write, func(g netproto.HPTCPTag) []byte { return chunk(g, 0, make([]byte, 8)) }},
		"a request":                {lanes.Read, func(g netproto.HPTCPTag) []byte { return ask(netproto.HPTCPRead, g, 1, 0, 1) }},
		"nonsense":                 {lanes.Read, func(g netproto.HPTCPTag) []byte { return bytes.Repeat([]byte{0xff}, 64) }},
		"chunk beyond the agreed": {lanes.Read, func(g netproto.HPTCPTag) []byte {
			return chunk(netproto.HPTCPTag{Slot: 9, Generation: 9}, 0, make([]byte, 65<<10))
		}},
		"refusal after payload": {lanes.Read, func(g netproto.HPTCPTag) []byte {
			return append(chunk(g, 0, make([]byte, 8)), end(g, netproto.StatusInternalError)...)
		}},
	} {
		mappings(t)
		r := newRig(t, 4, simkernel.WorldOptions{})
		requester := r.node(requesterHost, setup{})
		p := r.listen()
		local := requester.register(64, netproto.LocalOnly, 2)
		a := requester.ask(c.direction, local, 7).start(requester.script(p))
		w := p.accept()
		w.welcome(nil)
		q, _ := w.request()
		_ = w.send(c.answer(q.Tag))
		o := r.wait(a)
		if f := fault(t, o); f.Cause != lanes.Violated {
			t.Errorf("%s: %+v", what, o)
		}
		if (o.Local == lanes.EffectPartial) != !local.holds(2) {
			t.Errorf("%s: %+v, changed %v", what, o, !local.holds(2))
		}
		r.pass(soon)
		if requester.pool.live != 0 {
			t.Errorf("%s: the stream is kept", what)
		}
		r.finish()
	}
}

// proves H-2
func TestForgedWelcomeIsRefused(t *testing.T) {
	mappings(t)
	r := newRig(t, 5, simkernel.WorldOptions{})
	requester := r.node(requesterHost, setup{})
	for what, change := range map[string]func(*netproto.HPTCPWelcome){
		"another source":    func(w *netproto.HPTCPWelcome) { w.Source = staleEpoch },
		"another requester": func(w *netproto.HPTCPWelcome) { w.Requester = staleEpoch },
		"more than asked":   func(w *netproto.HPTCPWelcome) { w.InFlight *= 2 },
	} {
		p := r.listen()
		local := requester.register(64, netproto.LocalOnly, 2)
		a := requester.ask(lanes.Read, local, 7).start(requester.script(p))
		p.accept().welcome(change)
		if f := fault(t, r.wait(a)); f.Cause != lanes.Violated || f.Stage != "hello" {
			t.Errorf("%s: %+v", what, f)
		}
	}
	r.finish()
}

// proves H-9
func TestMismatchAtTheRequesterNamesRequestAndOffset(t *testing.T) {
	mappings(t)
	r := newRig(t, 6, simkernel.WorldOptions{})
	requester := r.node(requesterHost, setup{config: Config{Checksums: true, ChunkBytes: 100}})
	p := r.listen()
	local := requester.register(300, netproto.LocalOnly, 2)
	a := requester.ask(lanes.Read, local, 7).start(requester.script(p))
	w := p.accept()
	w.welcome(nil)
	for i := range 2 {
		q, _ := w.request()
		payload := pattern(300, 1)[q.Offset:][:100]
		f := netproto.HPTCPFrame{Kind: netproto.HPTCPChunk, Tag: q.Tag, Length: 100, Check: checksum([][]byte{payload})}
		if i == 1 {
			payload[50] ^= 1
		}
		must(t, w.send(append(netproto.AppendHPTCPFrame(nil, f), payload...)))
	}
	o := r.wait(a)
	var m *MismatchError
	if !errors.As(o.Err, &m) || m.Offset != 100 || m.Region != 7 || m.Source || o.Local != lanes.EffectPartial {
		t.Errorf("%+v", o)
	}
	r.finish()
}

// A source that cannot be reached, is silent at the hello, or dies at any time, ends the transfer with its cause.
//
// proves T-5
// field case F-16
func TestUnreachableSilentAndKilledSources(t *testing.T) {
	mappings(t)
	r := newRig(t, 7, simkernel.WorldOptions{})
	source, requester, peer := r.pair(setup{}, setup{sourceTimeout: 100 * time.Millisecond})
	p := r.listen()
	silent := requester.script(p)
	local := requester.register(64, netproto.LocalOnly, 2)
	nobody := requester.peerAt(source.address, sourceEpoch, *source.config.Endpoint(netproto.FamilyIPv4, 1))
	nobody.addresses = nil
	if f := fault(t, r.wait(requester.ask(lanes.Read, local, 1).start(nobody))); f.Cause != lanes.Unreachable {
		t.Errorf("%+v", f)
	}
	if f := fault(t, r.wait(requester.ask(lanes.Read, local, 1).start(silent))); f.Cause != lanes.Unreachable || f.Stage != "hello" {
		t.Errorf("%+v", f)
	}
	remote := source.register(64, netproto.ReadWrite, 1)
	if o := r.wait(requester.ask(lanes.Read, local, remote.ID()).start(peer)); o.Err != nil {
		t.Fatal(o.Err)
	}
	for _, c := range r.world.Connections() {
		c.Reset()
	}
	r.pass(soon)
	if o := r.wait(requester.ask(lanes.Read, local, remote.ID()).start(peer)); o.Err != nil {
		t.Errorf("a stream that ended while idle: %v", o.Err)
	}
	r.finish()
}

// Slots for streams are bounded over all peers: an idle stream makes room, a busy one does not.
//
// proves T-4
func TestIdleStreamsOfOtherPeersMakeRoom(t *testing.T) {
	mappings(t)
	r := newRig(t, 8, simkernel.WorldOptions{})
	requester := r.node(requesterHost, setup{streams: 1})
	local := requester.register(64, netproto.LocalOnly, 2)
	one, two := r.listen(), r.listen()
	first, second := requester.script(one), requester.script(two)
	a := requester.ask(lanes.Read, local, 7).start(first)
	w := one.accept()
	w.welcome(nil)
	q, _ := w.request()
	refused := requester.ask(lanes.Read, requester.register(64, netproto.LocalOnly, 2), 7).start(second)
	if f := fault(t, r.wait(refused)); f.Cause != lanes.Exhausted {
		t.Errorf("%+v", f)
	}
	must(t, w.send(chunk(q.Tag, 0, pattern(64, 1))))
	r.wait(a)
	b := requester.ask(lanes.Read, local, 7).start(second)
	x := two.accept()
	x.welcome(nil)
	q, _ = x.request()
	must(t, x.send(chunk(q.Tag, 0, pattern(64, 1))))
	if o := r.wait(b); o.Err != nil {
		t.Error(o.Err)
	}
	w.ends()
	r.finish()
}

// A READ holds its local range for itself from its start on; another one waits a little, and is then refused without
// having posted anything. So does a WRITE beside a READ, but not beside another WRITE.
//
// proves H-5, M-9
func TestLocalRangesAreLeasedWhileTheyMove(t *testing.T) {
	mappings(t)
	r := newRig(t, 9, simkernel.WorldOptions{})
	requester := r.node(requesterHost, setup{})
	p := r.listen()
	peer := requester.script(p)
	local := requester.register(64, netproto.LocalOnly, 2)
	first := requester.ask(lanes.Read, local, 7).start(peer)
	w := p.accept()
	w.welcome(nil)
	q, _ := w.request()
	for _, direction := range []lanes.Direction{lanes.Read, lanes.Write} {
		o := r.wait(requester.ask(direction, local, 7).start(peer))
		if f := fault(t, o); f.Cause != lanes.Conflicted || f.Stage != "lease" || o.Local != lanes.EffectNone || o.Remote != lanes.EffectNone {
			t.Errorf("%v beside a READ: %+v", direction, o)
		}
	}
	later := requester.ask(lanes.Read, local, 8).start(peer)
	must(t, w.send(chunk(q.Tag, 0, pattern(64, 1))))
	if o := r.wait(first); o.Err != nil {
		t.Error(o.Err)
	}
	q, _ = w.request()
	if q.Region != 8 {
		t.Errorf("a refused transfer was posted: %+v", q)
	}
	must(t, w.send(chunk(q.Tag, 0, pattern(64, 1))))
	if o := r.wait(later); o.Err != nil {
		t.Errorf("one that waited: %v", o.Err)
	}
	a, b := requester.ask(lanes.Write, local, 7).start(peer), requester.ask(lanes.Write, local, 7).start(peer)
	for range 2 {
		q, _ = w.request()
		_, err := w.receive(netproto.HPTCPFrameSize + 64)
		must(t, err)
		must(t, w.send(end(q.Tag, 0)))
	}
	if a, b := r.wait(a), r.wait(b); a.Err != nil || b.Err != nil {
		t.Errorf("%v, %v", a.Err, b.Err)
	}
	r.finish()
}

// Two engines that WRITE into each other's memory from that very memory never wait for each other: a transfer that waits for
// credit holds no range, on which the other one's would wait whose answer it waits for.
//
// proves H-7, T-1, M-9
func TestTransfersThatWaitForCreditHoldNoRange(t *testing.T) {
	mappings(t)
	for seed := range uint64(4) {
		r := newRig(t, seed, simkernel.WorldOptions{})
		c := setup{config: Config{ChunkBytes: 64, InFlightBytes: 64}}
		one, other, there := r.pair(c, c)
		nodes := [...]*node{one, other}
		peers := [...]*Peer{one.peer(other), there}
		memories := [...]*memory{one.register(64, netproto.ReadWrite, 1), other.register(64, netproto.ReadWrite, 2)}
		var all []*attempt
		for range 3 {
			for i, n := range nodes {
				a := n.ask(lanes.Write, memories[i], memories[1-i].ID())
				a.Atomic = true
				all = append(all, a.start(peers[i]))
			}
		}
		for _, a := range all {
			if o := r.wait(a); o.Err != nil {
				t.Errorf("SEED=%d: %v", seed, o.Err)
			}
		}
		r.finish()
	}
}

// A success that comes before the kernel has let go of the payload ends the WRITE only when it has.
//
// proves H-5, G-8
func TestSuccessWaitsUntilTheKernelHasLetGo(t *testing.T) {
	mappings(t)
	r := newRig(t, 10, simkernel.WorldOptions{Buffer: 4096})
	requester := r.node(requesterHost, setup{})
	p := r.listen()
	local := requester.register(60_000, netproto.LocalOnly, 2)
	a := requester.ask(lanes.Write, local, 7).start(requester.script(p))
	w := p.accept()
	w.welcome(nil)
	q, _ := w.request()
	must(t, w.send(end(q.Tag, 0)))
	r.pass(soon)
	if a.done > 0 || local.backing.Quiet() {
		t.Errorf("the transfer has ended while its payload was being sent: %+v", a.Outcome)
	}
	if b, err := w.receive(netproto.HPTCPFrameSize + 60_000); err != nil || !bytes.Equal(b[netproto.HPTCPFrameSize:], pattern(60_000, 2)) {
		t.Errorf("the payload: %v", err)
	}
	if o := r.wait(a); o.Err != nil {
		t.Error(o.Err)
	}
	r.finish()
}

// A WRITE that is cancelled between its success and the moment when the kernel lets go of the payload has succeeded: nothing of
// it can fail any more. A source that says success and then takes no more of the payload keeps it until its deadline only.
//
// proves H-5, G-8, G-3, T-9
func TestWhatWasAnsweredBeforeItWasCancelledHasSucceeded(t *testing.T) {
	for _, reads := range []bool{true, false} {
		mappings(t)
		r := newRig(t, 10, simkernel.WorldOptions{Buffer: 4096})
		requester := r.node(requesterHost, setup{})
		p := r.listen()
		a := requester.ask(lanes.Write, requester.register(60_000, netproto.LocalOnly, 2), 7).start(requester.script(p))
		w := p.accept()
		w.welcome(nil)
		q, _ := w.request()
		must(t, w.send(end(q.Tag, 0)))
		r.pass(soon)
		if a.Cancel(); a.done > 0 {
			t.Errorf("the transfer has ended while its payload was being sent: %+v", a.Outcome)
		}
		if reads {
			_, err := w.receive(netproto.HPTCPFrameSize + 60_000)
			must(t, err)
		}
		o := r.wait(a)
		if o.Err != nil || o.Bytes != 60_000 || o.Remote != lanes.EffectComplete || a.Prefix != 60_000 || a.Begun != 60_000 {
			t.Errorf("the source reads on: %v; %+v, prefix %d, begun %d", reads, o, a.Prefix, a.Begun)
		}
		if late := a.at > a.Deadline.After(soon); late {
			t.Errorf("it ended %v after its deadline", time.Duration(a.at-a.Deadline))
		}
		r.finish()
	}
}

// A WRITE that is started when another one ends, inside the very turn in which the kernel lets go of that one's payload, is
// accounted for like any other. With a chain of them some are answered before the kernel has said that it has their payload.
//
// proves H-3, H-5, T-9
func TestWritesStartedWhenOthersEndAreCounted(t *testing.T) {
	mappings(t)
	for seed := range uint64(8) {
		r := newRig(t, seed, simkernel.WorldOptions{DelayMax: 48 * time.Microsecond, Buffer: 32})
		source, requester, peer := r.pair(setup{}, setup{})
		remote, local := source.register(1, netproto.ReadWrite, 1), requester.register(1, netproto.LocalOnly, 2)
		ended, chains := 0, 3
		for range chains {
			left := 40
			a := requester.ask(lanes.Write, local, remote.ID())
			a.Done = func(x *Transfer) {
				x.Local.Return()
				if left--; x.Outcome.Err != nil || left == 0 {
					if ended++; x.Outcome.Err != nil {
						t.Errorf("SEED=%d: %v", seed, x.Outcome.Err)
					}
					return
				}
				a.start(peer)
			}
			a.start(peer)
		}
		r.until("the ends of the chains", func() bool { return ended == chains })
		r.finish()
	}
}

// A process that is killed takes its streams with it: the requester's transfers fail with the truth, the source's leases
// come back.
//
// field case F-27
func TestKilledProcessesLeaveNothing(t *testing.T) {
	for _, sourceDies := range []bool{false, true} {
		mappings(t)
		r := newRig(t, 11, simkernel.WorldOptions{Buffer: 4096})
		source, requester, peer := r.pair(setup{}, setup{})
		remote, local := source.register(1<<20, netproto.ReadWrite, 1), requester.register(1<<20, netproto.LocalOnly, 2)
		a := requester.ask(lanes.Read, local, remote.ID()).start(peer)
		b := requester.ask(lanes.Write, requester.register(4096, netproto.LocalOnly, 2), source.register(4096, netproto.ReadWrite, 1).ID()).start(peer)
		r.pass(300 * time.Microsecond)
		for _, c := range r.world.Connections() {
			if sourceDies {
				c.HalfClose(simkernel.ToClient)
			} else {
				c.HalfClose(simkernel.ToServer)
			}
			c.Reset()
		}
		for _, x := range []*attempt{a, b} {
			if o := r.wait(x); !o.Drained || o.Err != nil && fault(t, o).Cause != lanes.Disconnected {
				t.Errorf("%+v", o)
			}
		}
		r.pass(soon)
		if n := source.service.Sessions(); n != 0 || !remote.backing.Quiet() || !local.backing.Quiet() {
			t.Errorf("%d sessions are left", n)
		}
		r.finish()
	}
}

// Idle streams hold no buffers on either side, and work again at once, also when the other end is gone meanwhile.
//
// proves T-6
func TestIdleStreamsHoldNoMemory(t *testing.T) {
	mappings(t)
	r := newRig(t, 13, simkernel.WorldOptions{})
	source, requester, peer := r.pair(setup{}, setup{})
	remote, local := source.register(1<<20, netproto.ReadWrite, 1), requester.register(1<<20, netproto.LocalOnly, 2)
	for i := range 4 {
		a := requester.ask([]lanes.Direction{lanes.Read, lanes.Write}[i%2], local, remote.ID())
		a.Length >>= 8 * (i % 3)
		if o := r.wait(a.start(peer)); o.Err != nil {
			t.Fatal(o.Err)
		}
		r.pass(time.Second)
		for _, n := range []*node{source, requester} {
			if buffers, size, _ := n.lane.Arena.Lent(); buffers > 0 {
				t.Errorf("%d buffers, %d bytes are lent while nothing happens", buffers, size)
			}
		}
	}
	if n := requester.lane.Counts.StreamsRetired.Load(); n != 0 || peer.Streams() == 0 {
		t.Errorf("%d streams were retired, %d are open", n, peer.Streams())
	}
	for _, c := range r.world.Connections() {
		c.Reset()
	}
	r.pass(soon)
	if peer.Streams() != 0 || source.service.Sessions() != 0 {
		t.Error("the end of a dozing stream went unnoticed")
	}
	r.finish()
}

// Peers that are closed in the middle finish what runs, refuse what is new, and tell everybody who asked.
//
// proves G-5
func TestClosedPeersFinishWhatRuns(t *testing.T) {
	mappings(t)
	r := newRig(t, 12, simkernel.WorldOptions{})
	source, requester, peer := r.pair(setup{}, setup{})
	remote, local := source.register(3<<20, netproto.ReadWrite, 1), requester.register(3<<20, netproto.LocalOnly, 2)
	a := requester.ask(lanes.Read, local, remote.ID()).start(peer)
	told := 0
	peer.Close(func() { told++ })
	peer.Close(func() { told++ })
	if f := fault(t, r.wait(requester.ask(lanes.Read, local, remote.ID()).start(peer))); f.Cause != lanes.Closed {
		t.Errorf("%+v", f)
	}
	if o := r.wait(a); o.Err != nil || !local.holds(1) {
		t.Errorf("%+v", o)
	}
	r.until("the peer's end", func() bool { return told == 2 })
	if n := peer.Streams(); n != 0 {
		t.Errorf("%d streams", n)
	}
	r.finish()
}
