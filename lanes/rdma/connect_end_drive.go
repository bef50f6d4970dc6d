package rdma

import (
	"errors"
	"fmt"

	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/verbs"
)

var (
	errUnproven = errors.New("the cleanup window passed before the device flushed its work")
	errStill    = errors.New("the cleanup window passed before its users had cleaned up")
	errPeerLeft = errors.New("the other side ended the connection")
	errIdle     = errors.New("it was idle and its places were needed, or its way was closed")
)

// Fail ends an open connection: no new users, all pairs to the error state, and every user is told, before Fail returns
// (SPEC R-17). By is the end of the cleanup window that this end shares with others; 0: CleanupWindow from now. A
// connection that fails already only gets the earlier window.
func (c *Connection) Fail(err error, by reactor.Instant) {
	if by == 0 {
		by = c.rails.lane.Now().After(CleanupWindow)
	}
	switch c.state {
	case connectionOpen:
	case connectionDraining, connectionQuiet:
		if by < c.by {
			c.window(by)
		}
		return
	default:
		return
	}
	c.err = err
	c.rails.transport.counts.failed.Add(1)
	idle := c.rails.store.Fence(c.array, err)
	c.drain(by)
	for h := c.holds.head; h != nil; {
		next := h.next
		h.User.Lost(c, err)
		h = next
	}
	if idle {
		c.finish()
	}
	c.unawait()
	c.advance()
}

// Forget ends a connection that its source does not know any more (SPEC R-15): nothing is said to the source.
func (c *Connection) Forget(err error) {
	c.forgot = true
	c.Fail(err, 0)
}

// Close ends the connection once its users are gone, and calls ended when both sides' pairs are proven destroyed, or
// with the reason why that is not proven (SPEC R-16). The caller gives back its own hold.
func (c *Connection) Close(ended func(error)) {
	c.onEnd(ended)
	if c.state == connectionOpen && c.rails.store.Retire(c.array) {
		c.finish()
	}
}

// onEnd calls f when the connection has ended, or now.
func (c *Connection) onEnd(f func(error)) {
	switch {
	case c.state == connectionGone && !c.leaving():
		f(c.left)
	case c.state == connectionRetained:
		f(c.keptError())
	default:
		c.ends = append(c.ends, f)
	}
}

func (c *Connection) keptError() error {
	return &verbs.RetainedError{Object: c.String(), Call: "its end", Err: c.err}
}

// window sets the end of the cleanup window.
func (c *Connection) window(by reactor.Instant) {
	c.by = by
	c.rails.lane.Arm(&c.timer, by, c)
}

// drain takes all pairs to the error state. One that refuses is retained, and with it the connection.
func (c *Connection) drain(by reactor.Instant) {
	c.state = connectionDraining
	c.rail.draining++
	c.rail.dirty = true // the flush may be in the queue already
	c.window(by)
	for _, p := range c.pairs {
		_ = p.Drain() // a refusal shows in Retained
	}
}

// finish ends an array that nobody uses any more (the store says Ending).
func (c *Connection) finish() {
	if c.state == connectionOpen {
		c.err = errIdle
		c.drain(c.rails.lane.Now().After(CleanupWindow))
	}
	if c.Role == Requester && !c.forgot && c.leave == nil {
		c.depart(min(c.by, c.rails.lane.Now().After(c.rails.transport.config.ConnectTimeout)))
	}
	c.advance()
}

// advance takes the end as far as it goes now. While completions are handed out it waits for the last of them: their
// pairs count as flushed from the moment they were taken.
func (c *Connection) advance() {
	if c.busy || c.rail.dispatching {
		return
	}
	c.busy = true
	if c.state == connectionDraining {
		c.flushed()
	}
	if c.state == connectionQuiet && c.array.State() == Ending {
		c.detach()
	}
	c.busy = false
}

// flushed looks whether the devices are done with everything.
func (c *Connection) flushed() {
	for _, p := range c.pairs {
		if p.Retained() {
			c.retain(&verbs.RetainedError{Object: p.String(), Call: "moving it to the error state", Err: c.err})
			return
		}
		if !p.Drained() {
			return
		}
	}
	c.state = connectionQuiet
	c.rail.draining--
	c.quiet(true)
}

// quiet tells each user once. A user may give its hold back, or another user's.
func (c *Connection) quiet(proven bool) {
	for {
		h := c.holds.head
		for h != nil && h.quiet {
			h = h.next
		}
		if h == nil {
			return
		}
		h.quiet = true
		h.User.Quiet(c, proven)
	}
}

// detach takes the pairs out of their queues and destroys them on the cold loop. A window that is still bound keeps them.
func (c *Connection) detach() {
	for _, p := range c.pairs {
		var busy *verbs.BusyError
		if err := p.Detach(); errors.As(err, &busy) && !busy.Kept {
			return // until the cleanup window passes
		} else if err != nil {
			c.retain(err)
			return
		}
	}
	c.state = connectionDestroying
	c.rails.lane.Disarm(&c.timer)
	c.rails.pending++
	var first error
	c.errand.send(c.rails.transport.config.Cold, c.rails.lane.Loop, func() {
		for _, p := range c.pairs {
			if first = p.Destroy(); first != nil {
				break // the rest stays: a refusal is not worked around (SPEC R-18)
			}
		}
		first = c.endPrivate(first)
	}, func(reactor.Instant) {
		c.rails.pending--
		c.destroyed(first)
	})
}

// destroyed ends the account of the pairs.
func (c *Connection) destroyed(err error) {
	if err != nil {
		c.retain(err)
		return
	}
	c.reclaim()
	c.state = connectionGone
	r := c.rails
	r.transport.counts.gone.Add(1)
	r.forget(c)
	r.serveAll(r.store.Ended(c.array, nil)) // proof: every pair is destroyed
	r.transport.repaid()
	c.tellEnd()
	c.rail.mend()
	r.settle()
}

// reclaim frees the tags of work whose completion was lost. Proof: the pairs are destroyed, and flushed before.
func (c *Connection) reclaim() {
	var lost [16]verbs.Tag
	for _, p := range c.pairs {
		for n := p.Lost(lost[:]); n > 0; n = p.Lost(lost[:]) {
			for _, tag := range lost[:n] {
				c.rail.untag(tag.Value)
				c.rails.transport.counts.late.Add(1)
			}
		}
	}
	c.rail.relieve()
}

// Expire ends the cleanup window: what is not proven by now is retained (reactor.TimerHandler).
func (c *Connection) Expire(*reactor.Timer, reactor.Instant) {
	switch c.state {
	case connectionOpen:
		c.unawait()
	case connectionDraining:
		c.retain(errUnproven)
	case connectionQuiet:
		c.retain(errStill)
	}
}

// retain keeps the connection for good: its pairs, its places, and what its users say that they keep.
func (c *Connection) retain(why error) {
	if c.state == connectionDraining {
		c.rail.draining--
	}
	c.state = connectionRetained
	c.err = errors.Join(c.err, why)
	r := c.rails
	r.lane.Disarm(&c.timer)
	r.transport.counts.retained.Add(1)
	for _, p := range c.pairs {
		_ = p.Retain(why) // one that is gone, or retained before, stays so
	}
	if c.private != nil {
		c.private.keep(why)
	}
	answers := r.store.Retained(c.array, nil)
	c.unlist()
	c.quiet(false)
	c.tellEnd()
	r.serveAll(answers)
	r.transport.repaid() // nothing is: those who hoped for it look again
	r.settle()
}

// unlist takes the connection out of those that the rail looks after. Its queues stay as long as its pairs.
func (c *Connection) unlist() {
	if !c.listed {
		return
	}
	c.listed = false
	list := c.rail.connections
	for i, other := range list {
		if other == c {
			c.rail.connections = append(list[:i], list[i+1:]...)
			return
		}
	}
}

// forget takes a connection out of all lists.
func (r *Rails) forget(c *Connection) {
	c.unlist()
	delete(r.ends, c.Own)
	if c.Role == Source {
		delete(r.peers, c.Other)
	}
}

// leaving is true exactly while the source is being told of the end.
func (c *Connection) leaving() bool { return c.leave != nil && c.leave.answered != nil }

// depart asks the source to destroy its end. A source that does not answer destroys it when it needs the places.
func (c *Connection) depart(by reactor.Instant) {
	q := &question{}
	c.leave = q
	c.rails.pending++
	request := netproto.Request{Operation: netproto.OperationRDMADisconnect, Epoch: c.OtherEpoch}
	body := netproto.Disconnect{Requester: c.rails.transport.config.Epoch, End: c.Own, SourceEnd: c.Other}
	q.ask(c.peer.Channel, request, "RDMA disconnect", 0, by,
		func(dst []byte) []byte { return netproto.AppendDisconnect(dst, body) },
		func(q *question) {
			q.answered = nil
			if q.Err != nil {
				c.left = fmt.Errorf("the source's end is not proven destroyed: %w", q.Err)
			}
			c.rails.pending--
			c.tellEnd()
			c.rails.settle()
		})
}

// tellEnd tells those who wait for the end, when both sides have ended.
func (c *Connection) tellEnd() {
	if c.leaving() || c.state != connectionGone && c.state != connectionRetained {
		return
	}
	err := c.left
	if c.state == connectionRetained {
		err = c.keptError()
	}
	ends := c.ends
	c.ends = nil
	for _, f := range ends {
		f(err)
	}
}

// repaid lets those who look for places try again, on all lanes.
func (t *Transport) repaid() {
	for _, r := range t.rails {
		_ = r.lane.Post(&r.letter, r) // a lane that is closed waits for nothing
	}
}

// Receive serves those who wait for places (reactor.Recipient).
func (r *Rails) Receive(*reactor.Letter, reactor.Instant) {
	r.serveAll(r.store.Serve(nil))
	r.runHunts(true)
}

// Close ends the connections of the lane, then its queues. Closed is called on the lane when nothing is left but what is
// retained. The upper half has ended its transfers and grants before; users that are left are told Lost. A second call
// is answered as well.
func (r *Rails) Close(closed func()) {
	if earlier := r.closed; earlier != nil {
		later := closed
		closed = func() { earlier(); later() }
	}
	r.closed, r.fenced = closed, true
	r.upper.shut()
	if r == r.transport.rails[0] {
		r.transport.monitor.stop()
	}
	for _, rail := range r.rails {
		for i := len(rail.connections) - 1; i >= 0; i-- {
			if i >= len(rail.connections) {
				continue
			}
			c := rail.connections[i]
			if c.unawait(); i >= len(rail.connections) || rail.connections[i] != c {
				continue
			}
			if c.holds.n > 0 {
				c.Fail(ErrClosed, 0)
			} else if r.store.Retire(c.array) {
				c.finish()
			}
		}
	}
	r.settle()
}

// settle ends closing rails when nothing is under way.
func (r *Rails) settle() {
	if r.closed == nil || r.pending > 0 || r == r.transport.rails[0] && r.transport.monitor.running() {
		return
	}
	for _, rail := range r.rails {
		if len(rail.connections) > 0 {
			return
		}
	}
	waiting := false
	for _, rail := range r.rails {
		if rail.watch != 0 {
			r.lane.Cancel(rail.watch)
			waiting = true
		}
	}
	if waiting {
		return
	}
	for _, rail := range r.rails {
		rail.end()
	}
	closed := r.closed
	r.closed = nil
	r.windUp(closed)
}

// end takes the rail out of its lane and ends its queues; refusals are in the context's book.
func (r *Rail) end() {
	r.rails.lane.Disarm(&r.mending)
	_ = r.destroy()
	r.ended = true
	r.rails.lane.Detach(r)
}
