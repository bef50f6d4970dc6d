package control

import (
	"fmt"
	"testing"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// small is a framed question: its request names it, and so does the payload of its reply.
type small struct {
	question
	id       uint64
	reply    [8]byte
	receives bool // true exactly while its own memory is received into
	ends     *[]uint64
}

func (q *small) request() netproto.Request {
	return netproto.Request{Operation: netproto.OperationRDMADone, Epoch: epoch, Length: q.id}
}

func (q *small) Begin(c *Channel) {
	q.begun++
	c.Send(netproto.AppendRequest(c.Out()[:0], q.request()), nil)
}

func (q *small) FrameSize() int { return netproto.RequestSize }

func (q *small) Frame(dst []byte) []byte {
	q.begun++
	return netproto.AppendRequest(dst, q.request())
}

func (q *small) Replying() bool { return q.receives }

func (q *small) Received(int) {
	if !q.receives {
		q.receives = true
		q.channel.Receive(q.reply[:], nil, len(q.reply))
		return
	}
	q.receives = false
	q.channel.Finish()
	q.end(nil)
}

func (q *small) Failed(f Failure) {
	q.receives = false
	q.end(&f)
}

func (q *small) end(f *Failure) {
	*q.ends = append(*q.ends, q.id)
	q.question.end(f)
}

// smalls runs n of them in one step of the lane.
func (n *node) smalls(c *Channel, count int, deadline reactor.Instant) (all []*small, ends *[]uint64) {
	ends = new([]uint64)
	for i := range count {
		q := &small{id: uint64(i + 1), ends: ends}
		q.channel = c
		all = append(all, q)
	}
	for _, q := range all {
		c.Run(&q.exchange, q, deadline)
	}
	return all, ends
}

// named are the ids of the next requests on the wire.
func (w *wire) named(n int) (ids []uint64) {
	w.rig.t.Helper()
	for range n {
		ids = append(ids, w.request().Length)
	}
	return ids
}

func smallReply(id uint64) []byte {
	return append(replyBytes(netproto.StatusSuccess, 8), byte(id), 0, 0, 0, 0, 0, 0, byte(id))
}

func (r *rig) waitSmall(all ...*small) {
	r.t.Helper()
	for _, q := range all {
		r.until(fmt.Sprintf("question %d", q.id), func() bool { return q.ended > 0 })
		if q.ended != 1 || q.begun == 0 {
			r.t.Errorf("question %d began %d times and ended %d times", q.id, q.begun, q.ended)
		}
		if q.failure == nil && (q.reply[0] != byte(q.id) || q.reply[7] != byte(q.id)) {
			r.t.Errorf("question %d got the payload %x", q.id, q.reply)
		}
	}
}

// Framed exchanges are posted behind each other before anything is answered, up to a bound; their replies come in order,
// in whatever pieces they arrive, and each gets its own. The stream is reused for the rest.
//
// proves T-3, R-10
// field case F-31
func TestFramedExchangesTravelTogether(t *testing.T) {
	for _, chop := range []int{0, 1, 23, 45} {
		r := rigWith(t, 1, simkernel.WorldOptions{ChopReceive: chop})
		n := r.node(nodeHost, 4)
		p := r.listen()
		c := n.channel(p.address)
		const count = 2*(aheadMax+1) + 1
		all, ends := n.smalls(c, count, n.soon())
		w := p.accept()
		if got := fmt.Sprint(w.named(aheadMax + 1)); got != "[1 2 3 4]" {
			t.Fatalf("posted %v before the first reply", got)
		}
		if r.pass(soon); all[aheadMax+1].begun != 0 {
			t.Fatal("more were posted")
		}
		var replies []byte
		for id := range uint64(aheadMax + 1) {
			replies = append(replies, smallReply(id+1)...)
		}
		must(t, w.send(replies))
		if got := fmt.Sprint(w.named(aheadMax + 1)); got != "[5 6 7 8]" {
			t.Fatalf("posted %v behind them", got)
		}
		for id := range uint64(count - aheadMax - 1) {
			must(t, w.send(smallReply(id+aheadMax+2)))
		}
		w.named(1)
		r.waitSmall(all...)
		if got := fmt.Sprint(*ends); got != "[1 2 3 4 5 6 7 8 9]" {
			t.Errorf("they ended in the order %v", got)
		}
		if got := n.lane.Counts.Connects.Load(); got != 1 {
			t.Errorf("%d connects", got)
		}
		r.finish()
	}
}

// What other works send is never mixed with framed requests: neither behind a work that has more to send, nor does such
// a work begin before the framed ones have ended.
//
// proves T-3
func TestOnlyFramedExchangesFollowEachOther(t *testing.T) {
	r := newRig(t, 1)
	n := r.node(nodeHost, 4)
	p := r.listen()
	c := n.channel(p.address)
	first := (&question{}).run(c, n.soon())
	one, _ := n.smalls(c, 2, n.soon())
	last := (&question{}).run(c, n.soon())
	w := p.accept()
	w.request()
	r.pass(soon)
	if one[0].begun+one[1].begun != 0 {
		t.Fatal("a framed request was posted behind another kind of work")
	}
	must(t, w.send(replyBytes(netproto.StatusSuccess, 0)))
	w.named(2)
	r.pass(soon)
	if last.begun != 0 {
		t.Fatal("another kind of work began behind framed ones")
	}
	must(t, w.send(append(smallReply(1), smallReply(2)...)))
	w.request()
	must(t, w.send(replyBytes(netproto.StatusSuccess, 0)))
	r.wait(first, last)
	r.waitSmall(one...)
	r.finish()
}

// One of several that is given up, at its deadline or earlier, fails nobody else: its reply is thrown away, nothing more is
// posted on the stream, and that is retired when the others have ended. Alone, it ends the stream at once.
//
// proves T-5, R-17, G-8
func TestGivenUpExchangeLeavesTheOthersAlone(t *testing.T) {
	for at := range 3 {
		for _, others := range []bool{true, false} {
			r := newRig(t, uint64(at))
			n := r.node(nodeHost, 4)
			p := r.listen()
			c := n.channel(p.address)
			all, _ := n.smalls(c, 3, n.soon())
			w := p.accept()
			w.named(3)
			all[at].exchange.Cancel()
			if all[at].ended != 1 || all[at].failure.Fault.Cause != lanes.Cancelled || !all[at].failure.Begun {
				t.Fatalf("the one given up: %+v", all[at].failure)
			}
			later, _ := n.smalls(c, 1, n.soon())
			later[0].id = 9
			if !others {
				for _, q := range all {
					q.exchange.Cancel() // nothing, if it has ended
				}
				w.ends()
			} else {
				must(t, w.send(append(append(smallReply(1), smallReply(2)...), smallReply(3)...)))
				w.ends() // no request came
			}
			next := p.accept()
			if got := next.named(1); got[0] != 9 {
				t.Fatalf("the next stream begins with %v", got)
			}
			must(t, next.send(smallReply(9)))
			r.waitSmall(append(all, later...)...)
			for i, q := range all {
				if i != at && others && q.failure != nil {
					t.Errorf("%d given up: %d failed: %v", at, i, q.failure.Fault)
				}
			}
			r.finish()
		}
	}
}

// A reply that does not come for one that was given up keeps the others for a bounded time only.
//
// proves T-5
// field case F-16
func TestGivenUpExchangeIsWaitedForBriefly(t *testing.T) {
	r := newRig(t, 1)
	n := r.node(nodeHost, 4)
	p := r.listen()
	c := n.channel(p.address)
	all, _ := n.smalls(c, 2, reactor.Forever)
	w := p.accept()
	w.named(2)
	began := r.world.Now()
	all[0].exchange.Cancel()
	r.waitSmall(all...)
	if took := r.world.Now() - began; all[1].failure == nil || took > reactor.Instant(forsakenPatience)+reactor.Instant(soon) {
		t.Errorf("after %v: %+v", took, all[1].failure)
	}
	w.ends()
	r.finish()
}

// When the stream is lost, what was posted fails as begun; what had not left goes on over a new stream.
//
// proves T-5, R-15
func TestLostStreamFailsOnlyWhatWasPosted(t *testing.T) {
	r := newRig(t, 1)
	n := r.node(nodeHost, 4)
	p := r.listen()
	c := n.channel(p.address)
	first, _ := n.smalls(c, 1, n.soon())
	w := p.accept()
	w.named(1)
	behind, _ := n.smalls(c, 2, n.soon())
	c.stream.Retire(errUnasked) // before the lane's next turn sends them
	next := p.accept()
	if got := fmt.Sprint(next.named(2)); got != "[1 2]" {
		t.Fatalf("the next stream begins with %v", got)
	}
	must(t, next.send(append(smallReply(1), smallReply(2)...)))
	r.waitSmall(append(behind, first...)...)
	if first[0].failure == nil || !first[0].failure.Begun || behind[0].failure != nil || behind[1].failure != nil {
		t.Errorf("posted: %+v; not posted: %+v, %+v", first[0].failure, behind[0].failure, behind[1].failure)
	}
	r.finish()
}

// A reply that nobody asked for, received together with one that was, ends the stream before it is used again.
//
// proves T-5, W-15
func TestReplyThatNobodyAskedForEndsTheStream(t *testing.T) {
	r := newRig(t, 1)
	n := r.node(nodeHost, 4)
	p := r.listen()
	c := n.channel(p.address)
	all, _ := n.smalls(c, 2, n.soon())
	w := p.accept()
	w.named(2)
	must(t, w.send(append(append(smallReply(1), smallReply(2)...), smallReply(3)...)))
	r.waitSmall(all...)
	again, _ := n.smalls(c, 1, n.soon())
	next := p.accept()
	next.named(1)
	must(t, next.send(smallReply(1)))
	r.waitSmall(again...)
	if again[0].failure != nil {
		t.Errorf("%+v", again[0].failure)
	}
	r.finish()
}
