package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
)

// answer serves one READ by hand.
func (w *wire) answer(seed byte) {
	w.rig.t.Helper()
	q := w.request()
	must(w.rig.t, w.send(append(replyBytes(netproto.StatusSuccess, q.Length), pattern(q.Length, seed)...)))
}

// take serves one WRITE by hand and gives its payload.
func (w *wire) take() []byte {
	w.rig.t.Helper()
	q := w.request()
	must(w.rig.t, w.send(replyBytes(netproto.StatusReady, 0)))
	b, err := w.receive(int(q.Length))
	must(w.rig.t, err)
	must(w.rig.t, w.send(replyBytes(netproto.StatusSuccess, 0)))
	return b
}

// All exchanges of a peer share one stream, in the order they were queued, READs and WRITEs alike; a
// stopped peer does not delay another one.
//
// proves T-3
func TestOneStreamPerPeerInOrder(t *testing.T) {
	mappings(t)
	r := newRig(t, 1, simkernel.WorldOptions{})
	defer r.finish()
	requester := r.node(requesterHost, setup{})
	peer, stopped := r.listen(), r.listen()
	c, other := requester.channel(peer.address), requester.channel(stopped.address)

	stuck := requester.ask(lanes.Read, requester.register(4, netproto.LocalOnly, 0), 1)
	stuck.Deadline = r.world.Now().After(time.Hour)
	stuck.start(other)
	silent := stopped.accept()
	silent.request()

	var all []*attempt
	for i := range 6 {
		direction := lanes.Write
		if i%3 == 2 {
			direction = lanes.Read
		}
		a := requester.ask(direction, requester.register(4, netproto.LocalOnly, byte(i%4)), uint64(i+1))
		all = append(all, a.start(c))
	}
	w := peer.accept()
	for i, a := range all {
		if i%3 == 2 {
			w.answer(3)
		} else if b := w.take(); !bytes.Equal(b, pattern(4, byte(i%4))) {
			t.Errorf("request %d carried %x", i, b)
		}
		if o := r.wait(a); o.Err != nil {
			t.Errorf("request %d: %v", i, o.Err)
		}
		for _, later := range all[i+1:] {
			if later.done > 0 {
				t.Error("a later request ended first")
			}
		}
	}
	peer.nobody()
	if n := requester.lane.Counts.Reused.Load(); n != 5 {
		t.Errorf("the stream was reused %d times, want 5", n)
	}
	if stuck.done > 0 {
		t.Error("the stopped peer's request has ended")
	}
	stuck.Cancel()
	r.wait(stuck)
}

// READ and WRITE end to end, empty and large ones.
//
// proves W-14, G-7
func TestReadAndWriteMoveExactlyTheRange(t *testing.T) {
	for _, direct := range []bool{false, true} {
		mappings(t)
		r := newRig(t, 2, simkernel.WorldOptions{ChopReceive: 70_000, ChopSend: 70_000})
		source, requester := r.node(sourceHost, setup{direct: direct}), r.node(requesterHost, setup{direct: direct})
		const length = 3 << 20
		remote, local := source.register(length, netproto.ReadWrite, 1), requester.register(length, netproto.LocalOnly, 2)
		c := requester.channel(source.address)
		for _, part := range []struct{ local, remote, length uint64 }{
			{0, 0, 0}, {length, length, 0}, {1, 2, 1}, {0, 0, 65535}, {4095, 0, 65536}, {17, 5, 65537}, {0, 0, length},
		} {
			for _, direction := range []lanes.Direction{lanes.Read, lanes.Write} {
				copy(remote.bytes(), pattern(length, 1))
				copy(local.bytes(), pattern(length, 2))
				want := [2][]byte{pattern(length, 2), pattern(length, 1)}
				a := requester.ask(direction, local, remote.ID())
				a.LocalOffset, a.Offset, a.Length = part.local, part.remote, part.length
				o := r.wait(a.start(c))
				expected := lanes.Outcome{Bytes: part.length, Local: lanes.EffectComplete, Drained: true}
				if direction == lanes.Read {
					copy(want[0][part.local:], want[1][part.remote:][:part.length])
				} else {
					copy(want[1][part.remote:], want[0][part.local:][:part.length])
					expected.Local, expected.Remote = lanes.EffectNone, lanes.EffectComplete
				}
				if o != expected {
					t.Errorf("%v %+v: %+v", direction, part, o)
				}
				if !bytes.Equal(local.bytes(), want[0]) || !bytes.Equal(remote.bytes(), want[1]) {
					t.Errorf("%v %+v: wrong bytes", direction, part)
				}
			}
		}
		r.finish()
	}
}

// retirement is one way to spoil a stream, from the scripted source's side.
type retirement struct {
	name   string
	write  bool
	spoil  func(*rig, *wire, *attempt)
	cause  lanes.Cause
	stage  string
	remote lanes.Effect
}

func reply(w *wire, b []byte) { must(w.rig.t, w.send(b)) }

var retirements = []retirement{
	{"timeout before the reply", false, func(r *rig, w *wire, a *attempt) { r.wait(a) }, lanes.Deadline, "reply", lanes.EffectNone},
	{"timeout in the payload", false, func(r *rig, w *wire, a *attempt) {
		reply(w, append(replyBytes(netproto.StatusSuccess, 8), 1, 2, 3))
		r.wait(a)
	}, lanes.Deadline, "payload", lanes.EffectNone},
	{"partial header", false, func(r *rig, w *wire, a *attempt) {
		reply(w, replyBytes(netproto.StatusSuccess, 8)[:35])
		w.close()
	}, lanes.Disconnected, "reply", lanes.EffectNone},
	{"partial payload", false, func(r *rig, w *wire, a *attempt) {
		reply(w, append(replyBytes(netproto.StatusSuccess, 8), 1, 2, 3, 4, 5, 6, 7))
		w.close()
	}, lanes.Disconnected, "payload", lanes.EffectNone},
	{"invalid reply", false, func(r *rig, w *wire, a *attempt) { reply(w, bytes.Repeat([]byte{'x'}, 36)) }, lanes.Violated, "reply", lanes.EffectNone},
	{"reply of another length", false, func(r *rig, w *wire, a *attempt) { reply(w, replyBytes(netproto.StatusSuccess, 7)) }, lanes.Violated, "reply", lanes.EffectNone},
	{"ready for a READ", false, func(r *rig, w *wire, a *attempt) { reply(w, replyBytes(netproto.StatusReady, 0)) }, lanes.Violated, "reply", lanes.EffectNone},
	{"success from another process", false, func(r *rig, w *wire, a *attempt) {
		reply(w, append(netproto.AppendReply(nil, netproto.Reply{Epoch: otherEpoch, Length: 8}), 1, 2, 3, 4, 5, 6, 7, 8))
	}, lanes.Violated, "reply", lanes.EffectNone},
	{"refusal with a tail", false, func(r *rig, w *wire, a *attempt) {
		reply(w, append(replyBytes(netproto.StatusUnknownRegion, 0), 1))
	}, lanes.Violated, "reply", lanes.EffectNone},
	{"abandoned", false, func(r *rig, w *wire, a *attempt) { a.Cancel() }, lanes.Cancelled, "reply", lanes.EffectNone},
	{"success before the payload", true, func(r *rig, w *wire, a *attempt) { reply(w, replyBytes(netproto.StatusSuccess, 0)) }, lanes.Violated, "ready", lanes.EffectNone},
	{"ready with a length", true, func(r *rig, w *wire, a *attempt) { reply(w, replyBytes(netproto.StatusReady, 8)) }, lanes.Violated, "ready", lanes.EffectNone},
	{"timeout before ready", true, func(r *rig, w *wire, a *attempt) { r.wait(a) }, lanes.Deadline, "ready", lanes.EffectNone},
	{"lost acknowledgement", true, func(r *rig, w *wire, a *attempt) {
		reply(w, replyBytes(netproto.StatusReady, 0))
		_, err := w.receive(8)
		must(r.t, err)
		w.close()
	}, lanes.Disconnected, "receipt", lanes.EffectUnknown},
	{"partial acknowledgement", true, func(r *rig, w *wire, a *attempt) {
		reply(w, append(replyBytes(netproto.StatusReady, 0), replyBytes(netproto.StatusSuccess, 0)[:20]...))
		r.wait(a)
	}, lanes.Deadline, "receipt", lanes.EffectUnknown},
	{"refusal after the payload", true, func(r *rig, w *wire, a *attempt) {
		reply(w, replyBytes(netproto.StatusReady, 0))
		_, err := w.receive(8)
		must(r.t, err)
		reply(w, replyBytes(netproto.StatusInternalError, 0))
	}, lanes.Violated, "receipt", lanes.EffectUnknown},
	{"receipt from another process", true, func(r *rig, w *wire, a *attempt) {
		reply(w, append(replyBytes(netproto.StatusReady, 0), netproto.AppendReply(nil, netproto.Reply{Epoch: otherEpoch})...))
	}, lanes.Violated, "receipt", lanes.EffectUnknown},
	{"abandoned without a receipt", true, func(r *rig, w *wire, a *attempt) {
		reply(w, replyBytes(netproto.StatusReady, 0))
		_, err := w.receive(8)
		must(r.t, err)
		a.Cancel()
	}, lanes.Cancelled, "receipt", lanes.EffectUnknown},
}

// Each way in which a frame may go wrong retires its stream: the next request comes over a new one. A
// request is posted once, whatever becomes of it.
//
// proves T-5, T-10
func TestEachFailureRetiresTheStreamAndReplaysNothing(t *testing.T) {
	mappings(t)
	for _, k := range retirements {
		for _, direct := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, direct %v", k.name, direct), func(t *testing.T) { k.run(t, direct) })
		}
	}
}

func (k *retirement) run(t *testing.T, direct bool) {
	r := newRig(t, 3, simkernel.WorldOptions{})
	defer r.finish()
	requester := r.node(requesterHost, setup{direct: direct})
	local := requester.register(8, netproto.LocalOnly, 2)
	p := r.listen()
	c := requester.channel(p.address)
	direction := lanes.Read
	if k.write {
		direction = lanes.Write
	}
	// A finished exchange comes before, so that the stream is one of the cache.
	before := requester.ask(lanes.Write, local, 1).start(c)
	w := p.accept()
	w.take()
	r.wait(before)
	a := requester.ask(direction, local, 1).start(c)
	if q := w.request(); q.Region != 1 || q.Length != 8 {
		t.Fatalf("%+v", q)
	}
	k.spoil(r, w, a)
	o := r.wait(a)
	if f := fault(t, o); f.Cause != k.cause || f.Stage != k.stage {
		t.Errorf("fault %+v, want %v during %s", f, k.cause, k.stage)
	}
	changed := !local.holds(2)
	if o.Remote != k.remote || !o.Drained || changed != (o.Local == lanes.EffectPartial) || changed && !direct {
		t.Errorf("%+v, local changed %v", o, changed)
	}
	if !w.dead {
		w.drains()
	}
	p.nobody() // nothing is replayed
	if used := requester.lane.Streams.Used(); used != 0 {
		t.Errorf("a retired stream holds %d slots", used)
	}
	copy(local.bytes(), pattern(8, 2))
	next := requester.ask(lanes.Write, local, 2).start(c)
	if b := p.accept().take(); !bytes.Equal(b, pattern(8, 2)) {
		t.Errorf("the next request carried %x", b)
	}
	if o := r.wait(next); o.Err != nil {
		t.Errorf("the next request: %v", o.Err)
	}
}

// Each refusal of a source leaves the stream clean, and says the source's real epoch.
//
// proves T-5, G-1
func TestRefusalsKeepTheStream(t *testing.T) {
	mappings(t)
	r := newRig(t, 4, simkernel.WorldOptions{})
	defer r.finish()
	requester := r.node(requesterHost, setup{})
	local := requester.register(8, netproto.LocalOnly, 2)
	p := r.listen()
	c := requester.channel(p.address)
	var w *wire
	for status := netproto.StatusEpochMismatch; status.Known(); status++ {
		for _, direction := range []lanes.Direction{lanes.Read, lanes.Write} {
			if status == netproto.StatusReady {
				continue
			}
			a := requester.ask(direction, local, 1).start(c)
			if w == nil {
				w = p.accept()
			}
			w.request()
			must(t, w.send(netproto.AppendReply(nil, netproto.Reply{Status: status, Epoch: otherEpoch})))
			o := r.wait(a)
			if f := fault(t, o); f.Cause != lanes.Refused || f.Status != status || f.Actual != otherEpoch {
				t.Errorf("%v: %+v", status, f)
			}
			if o.Local != lanes.EffectNone || o.Remote != lanes.EffectNone || !o.Drained || !local.holds(2) {
				t.Errorf("%v: %+v", status, o)
			}
		}
	}
	p.nobody()
}

// An idle stream that its source has closed, or reset, or on which bytes arrive that nobody asked for,
// is found before the next request: that one goes over a new stream.
//
// proves T-5
func TestEndOfAnIdleStreamIsFoundBeforeTheNextRequest(t *testing.T) {
	mappings(t)
	r := newRig(t, 5, simkernel.WorldOptions{})
	defer r.finish()
	requester := r.node(requesterHost, setup{})
	local := requester.register(8, netproto.LocalOnly, 2)
	p := r.listen()
	c := requester.channel(p.address)
	requests := 0
	for i := range 9 {
		a := requester.ask(lanes.Read, local, 1).start(c)
		w := p.accept()
		w.answer(1)
		requests++
		if o := r.wait(a); o.Err != nil {
			t.Fatal(o.Err)
		}
		if i%2 == 0 {
			r.pass(soon) // the idle stream is watched by then
		}
		switch i % 3 {
		case 0:
			w.close()
		case 1:
			must(t, w.send([]byte("unasked")))
		case 2:
			for _, k := range r.world.Connections() {
				k.Reset()
			}
		}
		r.pass(soon)
		if used := requester.lane.Streams.Used(); used != 0 {
			t.Fatalf("round %d: the ended stream holds %d slots", i, used)
		}
	}
	if requests != p.opened {
		t.Errorf("%d requests over %d streams", requests, p.opened)
	}
}

// An idle stream is closed after the idle time; until then its slot stays charged.
//
// proves T-4
func TestIdleStreamOfTheRequesterIsClosed(t *testing.T) {
	mappings(t)
	r := newRig(t, 6, simkernel.WorldOptions{})
	defer r.finish()
	requester := r.node(requesterHost, setup{idle: 20 * time.Second})
	local := requester.register(8, netproto.LocalOnly, 2)
	p := r.listen()
	a := requester.ask(lanes.Read, local, 1).start(requester.channel(p.address))
	w := p.accept()
	w.answer(1)
	r.wait(a)
	r.pass(19 * time.Second)
	if used := requester.lane.Streams.Used(); used != 1 {
		t.Errorf("an idle stream holds %d slots", used)
	}
	w.ends()
	if took := time.Duration(r.world.Now() - a.at); took < 20*time.Second || took > 20*time.Second+soon {
		t.Errorf("closed after %v", took)
	}
	if used := requester.lane.Streams.Used(); used != 0 {
		t.Errorf("a closed stream holds %d slots", used)
	}
}

// One absolute deadline bounds waiting, connecting, frames and payload together.
//
// proves T-9
func TestOneDeadlineCoversEverything(t *testing.T) {
	mappings(t)
	r := newRig(t, 7, simkernel.WorldOptions{DelayMin: 100 * time.Millisecond, DelayMax: 100 * time.Millisecond})
	defer r.finish()
	requester := r.node(requesterHost, setup{})
	local := requester.register(64<<10, netproto.LocalOnly, 2)
	p := r.listen()
	c := requester.channel(p.address)
	a := requester.ask(lanes.Read, local, 1)
	a.Deadline = r.world.Now().After(700 * time.Millisecond)
	a.start(c)
	late := requester.ask(lanes.Read, local, 2) // waits behind a
	late.Deadline = r.world.Now().After(600 * time.Millisecond)
	late.start(c)
	w := p.accept() // 100 ms
	w.request()     // 300 ms
	must(t, w.send(replyBytes(netproto.StatusSuccess, 64<<10)))
	for i := 0; a.done == 0; i++ { // each byte is progress; it does not move the deadline
		_ = w.send([]byte{byte(i)})
		r.pass(10 * time.Millisecond)
	}
	for _, x := range []*attempt{a, late} {
		if f := fault(t, r.wait(x)); f.Cause != lanes.Deadline {
			t.Errorf("%+v", f)
		}
		if x.at < x.Deadline || x.at > x.Deadline.After(time.Millisecond) {
			t.Errorf("ended at %v, the deadline is %v", x.at, x.Deadline)
		}
	}
	if f := fault(t, late.Outcome); f.Stage != "waiting for the stream" {
		t.Errorf("%+v", f)
	}
	expired := requester.ask(lanes.Read, local, 1)
	expired.Deadline = requester.lane.Now()
	if expired.start(c); expired.done != 1 || fault(t, expired.Outcome).Cause != lanes.Deadline {
		t.Errorf("an expired request: %+v", expired.Outcome)
	}
}

// A request whose deadline passes in the queue is not posted, even when the stream becomes free in the
// very turn in which it is late; the stream stays clean.
//
// proves T-9, T-5
func TestLateRequestIsNotPosted(t *testing.T) {
	mappings(t)
	r := newRig(t, 8, simkernel.WorldOptions{DelayMin: time.Millisecond, DelayMax: time.Millisecond})
	defer r.finish()
	requester := r.node(requesterHost, setup{})
	local := requester.register(8, netproto.LocalOnly, 2)
	p := r.listen()
	c := requester.channel(p.address)
	first := requester.ask(lanes.Read, local, 1).start(c)
	w := p.accept()
	w.request()
	second := requester.ask(lanes.Read, local, 2)
	second.Deadline = r.world.Now().After(time.Millisecond + time.Microsecond)
	second.start(c)
	third := requester.ask(lanes.Read, local, 3).start(c)
	must(t, w.send(append(replyBytes(netproto.StatusSuccess, 8), pattern(8, 1)...)))
	r.world.Advance(50 * time.Millisecond) // the lane wakes up late: reply and deadline meet in one turn
	if o := r.wait(first); o.Err != nil {
		t.Fatal(o.Err)
	}
	if f := fault(t, r.wait(second)); f.Cause != lanes.Deadline || f.Stage != "waiting for the stream" {
		t.Errorf("%+v", f)
	}
	if q := w.request(); q.Region != 3 {
		t.Errorf("request %d was posted", q.Region)
	}
	must(t, w.send(append(replyBytes(netproto.StatusSuccess, 8), pattern(8, 1)...)))
	if o := r.wait(third); o.Err != nil {
		t.Error(o.Err)
	}
}

// The local range is leased only for the copy. A conflicting lease is waited for until the deadline:
// for a READ's commit, with the stream free for others meanwhile, and for a WRITE's input.
//
// proves M-9, T-1
func TestRequesterWaitsForAConflictingLease(t *testing.T) {
	mappings(t)
	for _, released := range []bool{true, false} {
		for _, direction := range []lanes.Direction{lanes.Read, lanes.Write} {
			r := newRig(t, 9, simkernel.WorldOptions{})
			source, requester := r.node(sourceHost, setup{}), r.node(requesterHost, setup{})
			remote, local := source.register(8, netproto.ReadWrite, 1), requester.register(8, netproto.LocalOnly, 2)
			c := requester.channel(source.address)
			lease, err := local.Lease(3, 2, segments.Exclusive)
			must(t, err)
			a := requester.ask(direction, local, remote.ID()).start(c)
			r.pass(100 * time.Millisecond)
			if a.done > 0 {
				t.Fatalf("%v: it did not wait: %+v", direction, a.Outcome)
			}
			if direction == lanes.Read { // its stream is clean and free
				b := requester.ask(lanes.Read, requester.register(8, netproto.LocalOnly, 3), remote.ID()).start(c)
				if o := r.wait(b); o.Err != nil {
					t.Error(o.Err)
				}
			}
			if released {
				lease.Return()
				if o := r.wait(a); o.Err != nil {
					t.Errorf("%v: %v", direction, o.Err)
				}
			} else {
				o := r.wait(a)
				f := fault(t, o)
				if f.Cause != lanes.Deadline || o.Local != lanes.EffectNone || o.Remote != lanes.EffectNone {
					t.Errorf("%v: %+v %v", direction, o, f)
				}
				if direction == lanes.Read && (f.Stage != "commit" || !errors.Is(f, segments.ErrConflict)) {
					t.Errorf("%+v", f)
				}
				if late := a.at - a.Deadline; late < 0 || late > reactor.Instant(time.Millisecond) {
					t.Errorf("%v: ended %v after its deadline", direction, time.Duration(late))
				}
				lease.Return()
				if !local.holds(2) || !remote.holds(1) {
					t.Errorf("%v: a range changed", direction)
				}
			}
			if direction == lanes.Read && requester.lane.Counts.StreamsRetired.Load() != 0 {
				t.Error("waiting for the commit cost a stream")
			}
			r.finish()
		}
	}
}

// A READ that waits for its commit can be cancelled; its range stays as it was.
//
// proves G-8
func TestCancelWhileTheCommitWaits(t *testing.T) {
	mappings(t)
	r := newRig(t, 10, simkernel.WorldOptions{})
	defer r.finish()
	source, requester := r.node(sourceHost, setup{}), r.node(requesterHost, setup{})
	remote, local := source.register(8, netproto.ReadWrite, 1), requester.register(8, netproto.LocalOnly, 2)
	lease, err := local.Lease(0, 8, segments.Shared)
	must(t, err)
	a := requester.ask(lanes.Read, local, remote.ID()).start(requester.channel(source.address))
	r.pass(soon)
	a.Cancel()
	if a.done != 1 || fault(t, a.Outcome).Cause != lanes.Cancelled || a.Outcome.Local != lanes.EffectNone {
		t.Errorf("done %d, %+v", a.done, a.Outcome)
	}
	a.Cancel() // ended: nothing happens
	lease.Return()
	r.pass(soon)
	if !local.holds(2) || a.done != 1 {
		t.Error("the range changed after the end")
	}
}

// With direct placement the local range is leased before anything is posted. A conflict is waited for a
// little, outside the queue: it keeps nobody from the stream, costs none when it is cancelled, and refuses
// the request when it lasts.
//
// proves M-9, T-2, T-5
func TestDirectTransferWaitsALittleForAConflictingLeaseAndKeepsNobodyWaiting(t *testing.T) {
	mappings(t)
	r := newRig(t, 11, simkernel.WorldOptions{})
	defer r.finish()
	requester := r.node(requesterHost, setup{direct: true})
	local := requester.register(8, netproto.LocalOnly, 2)
	p := r.listen()
	c := requester.channel(p.address)
	lease, err := local.Lease(0, 1, segments.Exclusive)
	must(t, err)
	began := r.world.Now()
	var all []*attempt
	for _, direction := range []lanes.Direction{lanes.Read, lanes.Write, lanes.Read} {
		all = append(all, requester.ask(direction, local, 1).start(c))
	}
	gone := requester.ask(lanes.Read, local, 1).start(c)
	free := requester.ask(lanes.Write, local, 7)
	free.LocalOffset, free.Length = 1, 7
	free.start(c)
	gone.Cancel()
	if f := fault(t, r.wait(gone)); f.Cause != lanes.Cancelled || !errors.Is(f, segments.ErrConflict) {
		t.Errorf("%+v", f)
	}
	w := p.accept()
	if q := w.request(); q.Region != 7 {
		t.Errorf("%+v was posted", q)
	}
	must(t, w.send(replyBytes(netproto.StatusReady, 0)))
	_, err = w.receive(7)
	must(t, err)
	must(t, w.send(replyBytes(netproto.StatusSuccess, 0)))
	if o := r.wait(free); o.Err != nil || free.at >= began.After(leaseGrace) {
		t.Errorf("%v at %v", o.Err, free.at)
	}
	for _, a := range all {
		if f := fault(t, r.wait(a)); f.Cause != lanes.Conflicted || !errors.Is(f, segments.ErrConflict) || a.at < began.After(leaseGrace) || a.at > began.After(leaseGrace+soon) {
			t.Errorf("%+v at %v", f, a.at)
		}
	}
	late := requester.ask(lanes.Write, local, 8).start(c) // its conflict ends within the grace
	r.pass(leaseGrace / 2)
	lease.Return()
	if q := w.request(); q.Region != 8 {
		t.Errorf("%+v was posted", q)
	}
	must(t, w.send(replyBytes(netproto.StatusPermissionDenied, 0)))
	if f := fault(t, r.wait(late)); f.Status != netproto.StatusPermissionDenied {
		t.Errorf("%+v", f)
	}
	if n := requester.lane.Counts.StreamsRetired.Load(); n != 0 {
		t.Errorf("%d streams were retired for requests that were never posted", n)
	}
}

// A peer that answers with a bad header and bytes behind it has changed a direct READ's range, and the
// report says so.
//
// proves T-2
func TestBytesBehindABadReplyAreReportedAsPartial(t *testing.T) {
	mappings(t)
	for _, header := range [][]byte{
		replyBytes(netproto.StatusSuccess, 7), replyBytes(netproto.StatusUnknownRegion, 0), bytes.Repeat([]byte{1}, netproto.ReplySize),
	} {
		r := newRig(t, 12, simkernel.WorldOptions{})
		requester := r.node(requesterHost, setup{direct: true})
		local := requester.register(8, netproto.LocalOnly, 2)
		p := r.listen()
		a := requester.ask(lanes.Read, local, 1).start(requester.channel(p.address))
		w := p.accept()
		w.request()
		must(t, w.send(append(bytes.Clone(header), "evil"...)))
		o := r.wait(a)
		if changed := !local.holds(2); changed != (o.Local == lanes.EffectPartial) || !changed {
			t.Errorf("%x: %+v, changed %v", header[:12], o, changed)
		}
		r.finish()
	}
}

// All addresses of a host name are tried: one that refuses, and one of a family that the host lacks.
//
// proves T-8
func TestEveryAddressIsTried(t *testing.T) {
	mappings(t)
	r := newRig(t, 13, simkernel.WorldOptions{})
	defer r.finish()
	source, requester := r.node(sourceHost, setup{}), r.node(requesterHost, setup{})
	remote, local := source.register(8, netproto.ReadWrite, 1), requester.register(8, netproto.LocalOnly, 2)
	closed := r.listen()
	closed.close()
	requester.process.FailOpens(syscall.EAFNOSUPPORT, 1)
	a := requester.ask(lanes.Read, local, remote.ID()).start(requester.channel(closed.address, closed.address, source.address))
	if o := r.wait(a); o.Err != nil || !local.holds(1) {
		t.Fatalf("%+v", o)
	}
	requester.process.FailOpens(syscall.EAFNOSUPPORT, 2)
	b := requester.ask(lanes.Read, local, remote.ID()).start(requester.channel(closed.address, closed.address))
	if f := fault(t, r.wait(b)); f.Cause != lanes.Unreachable || !errors.Is(f, syscall.EAFNOSUPPORT) {
		t.Errorf("%+v", f)
	}
	requester.process.FailOpens(syscall.EMFILE, 1)
	d := requester.ask(lanes.Read, local, remote.ID()).start(requester.channel(source.address, source.address))
	if f := fault(t, r.wait(d)); f.Cause != lanes.Exhausted || !errors.Is(f, syscall.EMFILE) {
		t.Errorf("%+v", f)
	}
	e := requester.ask(lanes.Read, local, remote.ID()).start(requester.channel(closed.address, closed.address))
	if f := fault(t, r.wait(e)); f.Cause != lanes.Unreachable || !errors.Is(f, syscall.ECONNREFUSED) || f.Stage != "connect" {
		t.Errorf("%+v", f)
	}
}

// exhaustedStreams checks that an attempt was refused for want of a slot.
func exhaustedStreams(t *testing.T, o lanes.Outcome) {
	t.Helper()
	f := fault(t, o)
	var facts *budgets.Exhausted
	if f.Cause != lanes.Exhausted || !errors.As(f, &facts) || facts.Budget != "streams" || !errors.Is(f, budgets.ErrExhausted) {
		t.Errorf("%+v", f)
	}
	if o.Local != lanes.EffectNone || o.Remote != lanes.EffectNone || !o.Drained {
		t.Errorf("%+v", o)
	}
}
