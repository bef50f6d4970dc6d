package orbitte

import (
	"errors"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
)

// joint is the one that carries the task at hand.
func (c *carrier) joint() *joint {
	for c.joints[c.at].first < c.group.next {
		c.at++
	}
	return c.joints[c.at]
}

// start runs the task at hand, and those that share its transfer, on its peer's lane.
func (c *carrier) start(t *task) {
	j, x, g := c.joint(), &c.transfer, c.group
	if t.segment.peer == nil {
		c.own.start(t, j)
		return
	}
	for i := range j.count {
		g.tasks[j.first+i].state.Store(uint32(TaskRunning))
	}
	x.Direction, x.Local, x.Region, x.Atomic, x.Deadline = t.direction, t.local, t.region, t.atomic, g.deadline
	x.LocalOffset, x.Offset, x.Length, x.Spans, x.Set = t.localOffset, t.offset, j.size, nil, nil
	if j.from < j.to {
		x.Spans, x.Set = c.spans[j.from:j.to:j.to], &j.set
	}
	if x.Share = nil; len(j.pieces) > 0 && t.segment.peer.fast.Sides() > 0 {
		c.team.start(j.pieces)
		return
	}
	x.Start(t.segment.peer.fast)
}

// ended takes the transfer's end, or that of all who shared it. A peer whose data address does not answer is asked over the
// control stream whether it still lives its old life: a new one has another data port, so that the old one says nothing
// (SPEC G-1).
func (c *carrier) ended(o lanes.Outcome, prefix, begun uint64) {
	c.outcome, c.prefix, c.begun = o, prefix, begun
	var fault *lanes.Fault
	if !errors.As(o.Err, &fault) || fault.Cause != lanes.Unreachable || max(o.Local, o.Remote) > lanes.EffectNone {
		c.tell()
		return
	}
	s := c.group.tasks[c.group.next].segment
	q := &control.Inquiry{Epoch: s.epoch, Deadline: c.group.deadline, Done: c.asked}
	c.question = q
	q.Start(s.peer.channel)
}

// asked takes the answer: another epoch is the reason, or that nobody is there at all; anything else leaves the one there was.
func (c *carrier) asked(q *control.Inquiry) {
	c.question = nil
	if q.Err != nil {
		switch classOf(q.Err) {
		case ErrStaleEpoch:
			c.outcome.Err = q.Err
		case ErrUnreachable, ErrDisconnected:
			var fault *lanes.Fault
			errors.As(c.outcome.Err, &fault) // it was one when the question was put
			both := *fault
			both.Err = &absentError{fault.Err, q.Err}
			c.outcome.Err = &both
		}
	}
	c.tell()
}

// absentError says that neither port of a peer answers.
type absentError struct{ data, control error }

func (e *absentError) Error() string {
	return e.data.Error() + "; nor does the control port answer: " + e.control.Error()
}

// Unwrap returns what the control port had. The data port's error is no news then, and stays out of errors.As: whoever finds an
// *hptcp.UnreachedError looks for what lets the control port through alone.
func (e *absentError) Unwrap() error { return e.control }

// tell tells the tasks of the transfer apart: those that are in place, those that may be, and those that were never
// asked for (SPEC G-3).
func (c *carrier) tell() {
	g, j := c.group, c.joint()
	done, o := uint64(0), c.outcome
	end := j.first + j.count
	for ; g.next < end; g.next++ {
		t := &g.tasks[g.next]
		if o.Err != nil && (t.size == 0 || done+t.size > c.prefix) {
			break
		}
		done += t.size
		g.succeeded(t, o.Drained)
	}
	if o.Err == nil {
		g.proceed()
		return
	}
	if done >= c.begun { // the task was not asked for either; what the transfer changed, others did
		o.Local, o.Remote = lanes.EffectNone, lanes.EffectNone
	}
	for i := g.next + 1; i < end; i++ {
		if done += g.tasks[i-1].size; done >= c.begun {
			break
		}
		g.beside(&g.tasks[i], o)
	}
	g.taskEnded(o)
}

// succeeded ends a task whose bytes are in place.
func (g *group) succeeded(t *task, drained bool) {
	t.outcome = lanes.Outcome{Bytes: t.size, Drained: drained}
	if t.direction == lanes.Read {
		t.outcome.Local = lanes.EffectComplete
	} else {
		t.outcome.Remote = lanes.EffectComplete
	}
	if drained {
		t.release()
	}
	t.state.Store(uint32(TaskSucceeded))
}

// beside ends a task that ran beside the one that failed first.
func (g *group) beside(t *task, o lanes.Outcome) {
	if t.outcome = o; o.Drained {
		t.release()
	}
	t.state.Store(uint32(TaskFailed))
}

// cancel ends what runs (SPEC G-8).
func (c *carrier) cancel() {
	c.transfer.Cancel()
	c.team.quit(quitCancel)
	if c.question != nil {
		c.question.Cancel()
	}
	c.own.copy.Cancel()
}
