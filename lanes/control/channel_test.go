package control

import (
	"fmt"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
)

// question is a Work of one request and one reply.
type question struct {
	exchange Exchange
	channel  *Channel
	begun    int
	ended    int
	failure  *Failure // nil after a finished one
	told     func()   // called at the end, in the middle of the channel's own step
}

func (q *question) run(c *Channel, deadline reactor.Instant) *question {
	q.channel = c
	c.Run(&q.exchange, q, deadline)
	return q
}

func (q *question) Begin(c *Channel) {
	q.begun++
	c.Send(netproto.AppendRequest(c.Out()[:0], netproto.Request{Epoch: epoch}), nil)
}

func (q *question) Sent(int) {
	q.channel.Receive(q.channel.In()[:netproto.ReplySize], nil, netproto.ReplySize)
}

func (q *question) Received(int) {
	q.channel.Finish()
	q.end(nil)
}

func (q *question) Failed(f Failure) { q.end(&f) }

func (q *question) end(f *Failure) {
	q.ended++
	q.failure = f
	if told := q.told; told != nil {
		q.told = nil
		told()
	}
}

func (q *question) cause() lanes.Cause {
	if q.failure == nil {
		return 0
	}
	return q.failure.Fault.Cause
}

// answers serves n questions on a scripted stream.
func (w *wire) answers(n int) {
	for range n {
		w.request()
		must(w.rig.t, w.send(replyBytes(netproto.StatusSuccess, 0)))
	}
}

func (r *rig) wait(questions ...*question) {
	r.t.Helper()
	for i, q := range questions {
		r.until(fmt.Sprintf("question %d", i), func() bool { return q.ended > 0 })
		if q.ended != 1 {
			r.t.Errorf("question %d ended %d times", i, q.ended)
		}
	}
}

// While a queue is failed, whoever is told may cancel others of that queue, run itself again, or run new
// ones: each exchange ends once, nothing is lost, and the channel works afterwards.
//
// proves T-5
func TestQueueIsFailedUnderItsOwnCallbacks(t *testing.T) {
	for teller := range 4 {
		for victim := range 4 {
			r := newRig(t, 1)
			n := r.node(nodeHost, 4)
			p := r.listen()
			closed := p.address
			p.close()
			c := n.channel(closed)
			all := make([]*question, 4)
			for i := range all {
				all[i] = (&question{}).run(c, n.soon())
			}
			again := &question{}
			all[teller].told = func() {
				all[victim].exchange.Cancel()
				again.run(c, n.soon())
			}
			r.wait(all...)
			for i, q := range all {
				want := lanes.Unreachable
				if i == victim && i > teller {
					want = lanes.Cancelled
				}
				if q.cause() != want || q.begun != 0 {
					t.Errorf("teller %d, victim %d: question %d ended by %v, want %v", teller, victim, i, q.cause(), want)
				}
			}
			r.wait(again)
			if again.cause() != lanes.Unreachable {
				t.Errorf("teller %d, victim %d: the one run meanwhile ended by %v", teller, victim, again.cause())
			}
			if c.head != nil || c.tail != nil || c.active != nil || c.state != channelAbsent {
				t.Errorf("teller %d, victim %d: the channel is left with %p %p %p in state %d", teller, victim, c.head, c.tail, c.active, c.state)
			}
			r.finish()
		}
	}
}

// An exchange that is told its end may run itself again at once, on a stream that goes on or on a new one.
//
// proves T-3, T-5
func TestExchangeRunsAgainFromItsOwnEnd(t *testing.T) {
	r := newRig(t, 2)
	n := r.node(nodeHost, 4)
	p := r.listen()
	c := n.channel(p.address)
	q := &question{}
	q.told = func() { q.run(c, n.soon()) }
	q.run(c, n.soon())
	w := p.accept()
	w.answers(2)
	r.until("the second end", func() bool { return q.ended == 2 })
	q.told = func() { q.run(c, n.soon()) }
	q.run(c, n.soon())
	w.request()
	w.close() // the third fails with its stream and runs again on a new one
	p.accept().answers(1)
	r.until("the fourth end", func() bool { return q.ended == 4 })
	if q.failure != nil || q.begun != 4 {
		t.Errorf("%+v", q)
	}
	r.finish()
}

// Our own mistakes are named.
func TestMisuseOfAnExchangePanics(t *testing.T) {
	r := newRig(t, 3)
	n := r.node(nodeHost, 4)
	p := r.listen()
	c := n.channel(p.address)
	q := (&question{}).run(c, n.soon())
	panics(t, "running twice", func() { q.run(c, n.soon()) })
	w := p.accept()
	w.request()
	panics(t, "running an active one", func() { q.run(c, n.soon()) })
	must(t, w.send(replyBytes(netproto.StatusSuccess, 0)))
	r.wait(q)
	panics(t, "finishing nothing", c.Finish)
	r.finish()
}

func panics(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s does not panic", what)
		}
	}()
	f()
}

// A channel is closed in each of its states: what is queued goes on, nothing new is taken, the end comes
// once, when the stream is gone and its slot is free.
//
// proves G-5
func TestChannelIsClosedInEachState(t *testing.T) {
	type states struct {
		name    string
		reach   func(*rig, *node, *wire, *Channel) []*question
		proceed func(*rig, *wire)
	}
	none := func(*rig, *wire) {}
	for _, s := range []states{
		{"absent", func(*rig, *node, *wire, *Channel) []*question { return nil }, none},
		{"connecting", func(r *rig, n *node, p *wire, c *Channel) []*question {
			return []*question{(&question{}).run(c, n.soon())}
		}, func(r *rig, p *wire) { p.accept().answers(1) }},
		{"active, with a queue", func(r *rig, n *node, p *wire, c *Channel) []*question {
			all := []*question{(&question{}).run(c, n.soon()), (&question{}).run(c, n.soon())}
			r.wires = append(r.wires, p.accept())
			r.wires[len(r.wires)-1].request()
			return all
		}, func(r *rig, p *wire) {
			w := r.wires[len(r.wires)-1]
			must(r.t, w.send(replyBytes(netproto.StatusSuccess, 0)))
			w.answers(1)
		}},
		{"idle, not watched yet", func(r *rig, n *node, p *wire, c *Channel) []*question {
			q := (&question{}).run(c, n.soon())
			p.accept().answers(1)
			r.wait(q)
			return nil
		}, none},
		{"idle, watched", func(r *rig, n *node, p *wire, c *Channel) []*question {
			q := (&question{}).run(c, n.soon())
			p.accept().answers(1)
			r.wait(q)
			r.pass(soon)
			return nil
		}, none},
		{"waiting for a slot", func(r *rig, n *node, p *wire, c *Channel) []*question {
			other := n.channel(p.address)
			first := (&question{}).run(other, n.soon())
			p.accept().answers(1)
			r.wait(first)
			r.pass(soon)
			return []*question{(&question{}).run(c, n.soon())}
		}, func(r *rig, p *wire) { p.accept().answers(1) }},
		{"waiting for a slot, cancelled", func(r *rig, n *node, p *wire, c *Channel) []*question {
			other := n.channel(p.address)
			first := (&question{}).run(other, n.soon())
			p.accept().answers(1)
			r.wait(first)
			r.pass(soon)
			(&question{}).run(c, n.soon()).exchange.Cancel()
			return nil
		}, none},
		{"connecting, abandoned", func(r *rig, n *node, p *wire, c *Channel) []*question {
			q := (&question{}).run(c, n.soon())
			n.lane.Turn(reactor.Past)
			q.exchange.Cancel()
			return nil
		}, none},
		{"being retired", func(r *rig, n *node, p *wire, c *Channel) []*question {
			q := (&question{}).run(c, n.soon())
			p.accept().request()
			q.exchange.Cancel()
			return []*question{(&question{}).run(c, n.soon())}
		}, func(r *rig, p *wire) { p.accept().answers(1) }},
	} {
		for seed := range uint64(6) {
			r := newRig(t, seed)
			n := r.node(nodeHost, 1)
			p := r.listen()
			c := n.channel(p.address)
			running := s.reach(r, n, p, c)
			closed := 0
			c.Close(func() { closed++ })
			late := (&question{}).run(c, n.soon())
			if late.cause() != lanes.Closed || late.begun != 0 {
				t.Errorf("%s: a closing channel takes more: %v", s.name, late.cause())
			}
			if len(running) > 0 && closed > 0 {
				t.Errorf("%s: closed under its queue", s.name)
			}
			s.proceed(r, p)
			r.until(s.name, func() bool { return closed > 0 })
			r.wait(running...)
			for _, q := range running {
				if q.failure != nil {
					t.Errorf("%s, SEED=%d: what was queued failed: %v", s.name, seed, q.failure.Fault)
				}
			}
			r.pass(soon)
			if closed != 1 || c.slot.Held() || c.header != nil || c.idle.Armed() {
				t.Errorf("%s, SEED=%d: closed %d times, slot held %v", s.name, seed, closed, c.slot.Held())
			}
			r.finish()
		}
	}
}

// A pool is closed when the last stream is gone, also those of channels that nobody names any more.
//
// proves G-6
func TestPoolIsClosedWithItsLastStream(t *testing.T) {
	for seed := range uint64(8) {
		r := newRig(t, seed)
		n := r.node(nodeHost, 4)
		p := r.listen()
		ended := 0
		n.pool.Close(func() { ended++ })
		if ended != 1 {
			t.Fatal("a pool without streams is not closed at once")
		}
		idle := n.channel(p.address)
		q := (&question{}).run(idle, n.soon())
		p.accept().answers(1)
		r.wait(q)
		r.pass(soon) // watched: its end takes a turn
		abandoned := n.channel(p.address)
		a := (&question{}).run(abandoned, n.soon())
		n.lane.Turn(reactor.Past)
		a.exchange.Cancel()
		closed := 0
		idle.Close(func() { closed++ })
		abandoned.Close(func() { closed++ })
		n.pool.Close(func() { ended++ })
		if ended != 1 || closed != 0 {
			t.Fatalf("SEED=%d: closed under its streams", seed)
		}
		r.until("the pool's end", func() bool { return ended == 2 })
		if closed != 2 || n.lane.Streams.Used() != 0 {
			t.Errorf("SEED=%d: %d channels closed, %d slots", seed, closed, n.lane.Streams.Used())
		}
		r.finish()
	}
}

// A request that comes around the moment at which the idle stream is watched races with the watch and
// its cancellation: it is answered over the same stream, whoever wins.
//
// proves T-5
func TestRequestsAroundTheWatchReuseTheStream(t *testing.T) {
	for seed := range uint64(30) {
		r := newRig(t, seed)
		n := r.node(nodeHost, 1)
		p := r.listen()
		c := n.channel(p.address)
		var w *wire
		for i := range 12 {
			q := (&question{}).run(c, n.soon())
			if w == nil {
				w = p.accept()
			}
			w.answers(1)
			r.wait(q)
			if q.failure != nil {
				t.Fatalf("SEED=%d, request %d: %v", seed, i, q.failure.Fault)
			}
			r.pass(watchDelay - 3*time.Microsecond + time.Duration(i)*time.Microsecond)
		}
		if retired := n.lane.Counts.StreamsRetired.Load(); retired != 0 {
			t.Errorf("SEED=%d: %d streams were retired", seed, retired)
		}
		r.finish()
	}
}

// A stream that is in use again is not watched, however long its exchange takes: the answer would look
// like bytes that nobody asked for.
//
// proves T-5
func TestBusyStreamIsNotWatched(t *testing.T) {
	r := newRig(t, 7)
	n := r.node(nodeHost, 1)
	p := r.listen()
	c := n.channel(p.address)
	first := (&question{}).run(c, n.soon())
	w := p.accept()
	w.answers(1)
	r.wait(first)
	if !c.idle.Armed() || c.watched {
		t.Fatal("a stream that came to rest is not to be watched after a while")
	}
	second := (&question{}).run(c, n.soon())
	w.request()
	r.pass(soon)
	if c.idle.Armed() || c.watched || c.stream.watch != 0 {
		t.Error("a busy stream is watched")
	}
	must(t, w.send(replyBytes(netproto.StatusSuccess, 0)))
	r.wait(second)
	r.finish()
}

// The first reason of an end stays: a deadline that passes while the system gives the buffers back does
// not hide a broken protocol.
func TestFirstFaultStays(t *testing.T) {
	r := newRig(t, 4)
	n := r.node(nodeHost, 1)
	p := r.listen()
	c := n.channel(p.address)
	q := (&question{}).run(c, n.soon())
	p.accept().request()
	r.until("the receive", func() bool { return c.stream.in.ticket != 0 })
	c.Break("reply", errUnexpectedReply)
	q.exchange.Cancel()
	r.wait(q)
	if f := q.failure.Fault; f.Cause != lanes.Violated || f.Err != errUnexpectedReply {
		t.Errorf("%v", f)
	}
	r.finish()
}

// A peer that cannot be tuned after connecting counts as unreachable and costs nothing.
func TestConnectedPeerThatCannotBeTuned(t *testing.T) {
	r := newRig(t, 5)
	n := r.node(nodeHost, 1)
	p := r.listen()
	n.policy.Socket.Congestion = ""
	q := (&question{}).run(n.channel(p.address), n.soon())
	r.until("the connect", func() bool { return n.lane.Outstanding() > 1 })
	n.policy.Socket.Congestion = "no such thing"
	r.wait(q)
	if q.cause() != lanes.Unreachable || n.lane.Streams.Used() != 0 {
		t.Errorf("%v, %d slots", q.cause(), n.lane.Streams.Used())
	}
	n.policy.Socket.Congestion = ""
	r.finish()
}

// A peer without any address is unreachable.
//
// proves T-8
func TestPeerWithoutAddressIsUnreachable(t *testing.T) {
	r := newRig(t, 6)
	n := r.node(nodeHost, 1)
	q := (&question{}).run(n.channel(), n.soon())
	if q.cause() != lanes.Unreachable || n.lane.Streams.Used() != 0 {
		t.Errorf("%v, %d slots", q.cause(), n.lane.Streams.Used())
	}
	r.finish()
}
