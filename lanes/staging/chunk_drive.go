package staging

import (
	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

type chunkState uint8

const (
	chunkRoom     chunkState = iota // nothing of it is under way in the device
	chunkStalled                    // its copy waits for a place on the memory's stream
	chunkFlying                     // its copy is under way, and an event is behind it
	chunkReady                      // its copy is proven to have ended
	chunkDoubtful                   // its copy may be under way; the cold loop drains it
	chunkKept                       // its copy was never proven to have ended: retained
)

// chunk is a run of pinned memory of its own, so that an end that nobody can prove retains no other; for copies from
// device to device it is a mere place.
//
//	room ──▶ (stalled) ──▶ flying ──event──▶ ready ──▶ room
//	                         └─event failed─▶ doubtful ──drained──▶ ready
//	                                             └──no proof──▶ kept
type chunk struct {
	stage   *Stage
	role    Role
	index   int               // among those of its role
	pinned  *cuda.Pinned      // nil: a place
	backing *segments.Backing // of the pinned memory
	bytes   []byte
	charge  budgets.Charge
	state   chunkState
	flow    *Flow
	wired   bool   // true exactly while the wire has it as a part (Take)
	tenant  Tenant // whose bytes its first clean ones are
	clean   uint64
	mine    bool   // true exactly when the flow that has it left only the tenant's bytes there
	offset  uint64 // of its part in the flow's range
	n       uint64
	pending cuda.Pending           // the copy, from its start to its proven end
	since   reactor.Instant        // when it was started
	failure error                  // what its event said
	next    *chunk                 // in one of the stage's lists
	letter  reactor.Letter         // to the cold loop and back, for a drain
	drained error                  // what the cold loop says
	away    bool                   // true exactly while the cold loop drains it
	forlorn bool                   // true exactly when nobody waits for the cold loop any more
	lent    *segments.Registration // of a slot: its range, which no tracker of the engine lists
}

// part is what the flow has of it.
func (c *chunk) part() []byte { return c.bytes[:c.n:c.n] }

// partner is the other side of a copy.
func (c *chunk) partner(p *Plan) cuda.Partner {
	if p.Way == Across {
		return p.Partner
	}
	return c.pinned
}

// copy is the copy of its part.
func (c *chunk) copy(p *Plan) cuda.Copy {
	device := cuda.Pointer(p.Address + c.offset)
	switch p.Way {
	case Out:
		return cuda.Copy{To: cuda.Pointer(c.pinned.Address()), From: device, Bytes: c.n}
	case In:
		return cuda.Copy{To: device, From: cuda.Pointer(c.pinned.Address()), Bytes: c.n}
	}
	return cuda.Copy{To: device, From: cuda.Pointer(p.From + c.offset), Bytes: c.n}
}

// drain sends the chunk to the cold loop, where its copy's stream is waited for.
func (c *chunk) drain() {
	c.state, c.away = chunkDoubtful, true
	if err := c.stage.config.Cold.Post(&c.letter, c); err != nil {
		panic("staging: the cold loop is closed, want open until the stage is closed: " + err.Error())
	}
}

// Receive runs on the cold loop, then at home (reactor.Recipient).
func (c *chunk) Receive(*reactor.Letter, reactor.Instant) {
	if c.away {
		c.drained = c.pending.Drain()
		c.away = false
		// A home that is closed hears nothing any more; what the chunk is about stays charged.
		_ = c.stage.lane.Post(&c.letter, c)
		return
	}
	if c.forlorn {
		return // it is in a residue
	}
	if c.drained == nil {
		c.pending = cuda.Pending{}
	}
	c.stage.drained(c)
}

// list is a queue of chunks.
type list struct{ first, last *chunk }

func (l *list) add(c *chunk) {
	if c.next = nil; l.first == nil {
		l.first = c
	} else {
		l.last.next = c
	}
	l.last = c
}

// all empties the list and returns its first chunk; the others follow by next.
func (l *list) all() *chunk {
	c := l.first
	*l = list{}
	return c
}

// remove takes one chunk out.
func (l *list) remove(c *chunk) {
	for at := l.all(); at != nil; {
		next := at.next
		if at != c {
			l.add(at)
		}
		at = next
	}
	c.next = nil
}
