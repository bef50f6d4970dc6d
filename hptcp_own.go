package orbitte

import (
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/local"
	"github.com/orbitte/orbitte/reactor"
)

// ownTurnBytes is what one turn of the lane copies of many ranges at most (SPEC L-2).
const ownTurnBytes = 1 << 20

// ownCopy carries out a request to the engine itself that would go over HP-TCP to any other: range by range, each a copy
// in this process.
type ownCopy struct {
	carrier *carrier
	task    *task
	copy    local.Transfer
	letter  reactor.Letter
	spans   []Span // none: one range
	index   int
	inner   uint64 // of the span at hand, done
	piece   uint64 // under way
	moved   uint64
	turn    uint64 // bytes of this turn
	started bool   // true exactly while copy.Start runs
	over    bool   // true exactly when the piece has ended while it ran
}

func (o *ownCopy) init(c *carrier) {
	o.carrier = c
	o.copy.Done = func(*local.Transfer) {
		if o.over = true; !o.started && o.took() {
			o.proceed()
		}
	}
}

func (o *ownCopy) start(t *task, j *joint) {
	o.task, o.spans = t, o.carrier.spans[j.from:j.to]
	o.index, o.inner, o.moved, o.turn = 0, 0, 0, 0
	o.proceed()
}

// Receive goes on in another turn (reactor.Recipient).
func (o *ownCopy) Receive(*reactor.Letter, reactor.Instant) {
	if o.carrier.group.cancelled.Load() {
		o.end(&lanes.Fault{Cause: lanes.Cancelled, Stage: "copy"})
		return
	}
	o.turn = 0
	o.proceed()
}

// proceed copies piece after piece, until one takes more than this turn, or the turn has had its bytes.
func (o *ownCopy) proceed() {
	lane := o.carrier.group.where.Load().lane
	for o.turn < ownTurnBytes {
		o.over, o.started = false, true
		o.next(lane.Policy.PayloadBytesMax)
		o.copy.Start(lane)
		if o.started = false; !o.over || !o.took() {
			return
		}
	}
	if err := lane.Post(&o.letter, o); err != nil {
		o.end(&lanes.Fault{Cause: lanes.Closed, Stage: "copy", Err: err})
	}
}

// next describes the next piece.
func (o *ownCopy) next(most uint64) {
	t, c := o.task, &o.copy
	s := Span{Local: t.localOffset, Remote: t.offset, Length: t.size}
	if len(o.spans) > 0 {
		s = o.spans[o.index]
	}
	o.piece = min(s.Length-o.inner, most)
	c.Direction, c.Local, c.LocalOffset = t.direction, t.local, s.Local+o.inner
	c.Region, c.Offset, c.Length, c.Deadline = t.region, s.Remote+o.inner, o.piece, o.carrier.group.deadline
	if o.inner += o.piece; o.inner == s.Length {
		o.index, o.inner = o.index+1, 0
	}
}

// took counts the piece that has ended; false when it was the last one, or failed, and the task has ended with it.
func (o *ownCopy) took() bool {
	if err := o.copy.Outcome.Err; err != nil {
		o.end(err)
		return false
	}
	o.moved += o.piece
	o.turn += o.piece
	if o.moved == o.task.size {
		o.end(nil)
		return false
	}
	return true
}

// end reports. Pieces that were copied before one failed stay.
func (o *ownCopy) end(err error) {
	out := lanes.Outcome{Err: err, Drained: true}
	effect := lanes.EffectComplete
	switch {
	case err == nil:
		out.Bytes = o.task.size
	case o.moved > 0:
		effect = lanes.EffectPartial
	default:
		effect = max(o.copy.Outcome.Local, o.copy.Outcome.Remote)
	}
	if o.task.direction == lanes.Read {
		out.Local = effect
	} else {
		out.Remote = effect
	}
	o.carrier.group.taskEnded(out)
}
