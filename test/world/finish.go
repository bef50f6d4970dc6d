package world

import (
	"context"
	"time"

	"github.com/orbitte/orbitte"
)

const (
	// settleTime is how much virtual time the world has, without faults, to end what is under way. The longest wait
	// of all is for a connection request that was dropped: it is asked again after up to 64 s, and given up after 127 s.
	settleTime = 400 * time.Second
	// settleTurns bounds the same in turns, against a world that is busy with nothing.
	settleTurns = 3_000_000
)

// finish heals the world, waits for the end of everything, gives everything back, and looks at what is left.
func (r *run) finish() {
	r.heal()
	r.tell("healed")
	if !r.until("the end of all requests", r.quiet) || !r.visits() {
		return
	}
	for _, l := range r.lives {
		if l.alive() {
			r.teardown(l)
		}
	}
	if !r.until("the end of all engines", r.allClosed) {
		return
	}
	for _, l := range r.lives {
		switch {
		case l.lost:
			r.abandonLife(l)
			continue
		case l.killed:
			r.bury(l)
		}
		r.giveBack(l)
	}
	if r.violation != nil || !r.until("the end of all connections", func() bool { return len(r.net.Connections()) == 0 }) || !r.until("the last callback", r.callbacks) {
		return
	}
	r.final()
}

// until goes on until done, and finds a world that does not get there. One in which every lane polls its completion queues
// looks as if it stood still until stride lets its time pass: its timers may be all that is left.
func (r *run) until(what string, done func() bool) bool {
	limit, turns, idle := r.net.Now().After(settleTime), r.turn+settleTurns, 0
	for !done() {
		switch {
		case r.violation != nil:
			return false
		case r.net.Now() > limit || r.turn > turns || idle > 2*fruitlessMax:
			r.violate(OracleHang, "%s did not come within %v and %d turns: %s", what, settleTime, settleTurns, r.unfinished())
			return false
		}
		if r.round() {
			idle = 0
		} else {
			idle++
		}
	}
	return r.violation == nil
}

func (r *run) quiet() bool {
	for _, l := range r.lives {
		if !l.alive() {
			continue
		}
		if l.caller != nil {
			return false
		}
		for _, s := range l.open {
			if !s.ended {
				return false
			}
		}
	}
	return true
}

func (r *run) allClosed() bool {
	for _, l := range r.lives {
		if l.alive() {
			return false
		}
	}
	return true
}

// unfinished names who is still at it.
func (r *run) unfinished() string {
	text := ""
	for _, l := range r.lives {
		if l.caller != nil && l.alive() {
			text += l.String() + " waits in " + l.caller.what + "; "
		}
		for _, s := range l.open {
			if !s.ended && l.alive() {
				text += l.String() + " has a submission since " + time.Duration(s.started-r.begin).String() + "; "
			}
		}
	}
	return text
}

// teardown gives everything of an open engine back and closes it, in one call that waits.
func (r *run) teardown(l *life) {
	l.call("teardown", l.patience(), func(ctx *lease) {
		r.free(l)
		for _, s := range l.segments {
			if s.gone {
				continue
			}
			if err := l.engine.CloseSegment(ctx, s.handle); err != nil && !l.doubtful {
				r.violate(OracleError, "%v: CloseSegment without a deadline failed: %v", l, err)
			}
			s.gone = true
		}
		for _, g := range l.ranges {
			if g.gone {
				continue
			}
			if err := l.engine.Unregister(ctx, g.handle); err != nil && !l.doubtful {
				r.violate(OracleError, "%v: Unregister without a deadline failed: %v", l, err)
			}
			g.gone = true
		}
		r.afterClose(l, l.engine.Close(ctx))
	})
}

func (r *run) free(l *life) {
	for _, s := range l.open {
		if s.batch != nil && !s.freed {
			s.freed = true
			if err := s.batch.Free(); err != nil {
				r.violate(OracleError, "%v: Free failed: %v", l, err)
			}
		}
	}
}

// giveBack returns what a life that has ended still has of the program's, and checks that all is repaid.
func (r *run) giveBack(l *life) {
	over := r.newLease(0)
	over.end(context.Canceled) // nobody drives the lanes any more, so nothing may wait for them
	r.free(l)
	for _, g := range l.ranges {
		if g.gone {
			continue
		}
		if err := l.engine.Unregister(over, g.handle); err != nil {
			r.violate(OracleLeft, "%v: registration %d of a closed engine does not end: %v", l, g.name, err)
		}
		g.gone = true
	}
	if list := l.engine.ReceiveNotifications(); !l.killed { // what comes in a burial was sent in it
		r.received(l, list)
	}
	if at := l.firstChange(); at != nil && !l.killed {
		r.violate(OracleBytes, "%v: memory %d changed after the end", l, at.name)
	}
	for _, m := range l.memories {
		if !m.closed {
			m.closed = true
			m.object.Close()
		}
	}
	r.drained(l)
}

// bury ends the engine of a killed process, so that its memory can be told from what is lost: its kernel says
// that everything outstanding has failed. Nothing that the engine does now is seen by anybody. Its clock goes on from where
// it was killed: what was to be proven within a time has had none of it since.
func (r *run) bury(l *life) {
	l.skew = time.Duration(l.died - r.net.Now())
	for _, d := range l.doors {
		d.ghost = true
	}
	if c := l.caller; c != nil {
		l.caller = nil
		for _, over := c.resume(); !over; {
			_, over = c.resume()
		}
	}
	if err := l.engine.Close(r.newLease(0)); err != nil {
		r.violate(OracleLeft, "%v: the engine of a killed process does not end: %v", l, err)
	}
}

func (l *life) firstChange() *memory {
	for _, m := range l.memories {
		if m.look(); !m.closed && m.change() >= 0 {
			return m
		}
	}
	return nil
}

// final looks at the world when everything has been given back.
func (r *run) final() {
	for _, n := range r.sent {
		for _, l := range n.to {
			if n.status == orbitte.Delivered && n.received[l] != 1 {
				r.violate(OracleNote, "%s was delivered to %v, which received it %d times", n.text.Name, l, n.received[l])
			}
		}
	}
	r.nothingLeft()
	r.tell("done: %d turns, %d requests", r.turn, r.requests)
}
