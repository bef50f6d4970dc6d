package world

import (
	"time"

	"github.com/orbitte/orbitte/test/faults"
)

const (
	// fairEvery is how often a seed is one of fairness.
	fairEvery = 12
	// fairBound is how long a request between two healthy engines may take while a third one is stopped, unreachable or
	// slow. Each engine has one stream to a source, so that the victim holds at most one of a source's four handlers,
	// and the other three or fewer engines never wait for one. What is left is the queue of the own stream: a few requests
	// of at most fairBytes, each a few round trips of 50 µs, since transfers are not chopped here. Whoever
	// waited for the victim would wait for its deadline, which is longer.
	fairBound = 20 * time.Millisecond
	// fairBytes bounds one request in such a world.
	fairBytes = 1024
	// fairTail is how many turns the faults of such a world last beyond its work: idle, some 450 ms, when all the deadlines have passed.
	fairTail = 1500
)

// fair makes the profile one in which the last engine is a victim and all faults meet only it. Everything is staged:
// placed directly, a transfer of the victim may hold a range of a healthy source, and others have to wait for that.
func (g *generator) fair() {
	g.p = profile{notes: g.p.notes, poison: g.p.poison, calmLinks: true, fair: true}
}

// victim is the engine that faults meet in a world of fairness.
func (g *generator) victim() int { return len(g.slots) - 1 }

// promise adds the bound to a submission that has nothing to do with the victim.
func (g *generator) promise(i int, a faults.Action) faults.Action {
	if !g.p.fair {
		return a
	}
	a = a.With(faults.Deadline, int64(g.between(60, 100))*int64(time.Millisecond))
	peer := -1
	for k := range a.Requests {
		q := &a.Requests[k]
		q.Length = min(q.Length, fairBytes)
		for _, s := range g.slots[i].segments {
			if s.name == q.Segment {
				peer = s.peer
			}
		}
	}
	if i == g.victim() || peer == g.victim() {
		return a
	}
	return a.With(faults.Within, int64(fairBound))
}

// hurt writes a fault that meets the victim only, and plans its end.
func (g *generator) hurt(int) {
	v := int64(g.victim())
	peer := int64(g.random.IntN(g.victim()))
	engine := func(k faults.Kind) faults.Action { return faults.New(k).With(faults.EngineOf, v) }
	switch g.random.IntN(6) {
	case 0, 1:
		g.do(engine(faults.Stop))
		g.later(engine(faults.Continue))
	case 2:
		hole := engine(faults.BlackHole).With(faults.Peer, peer)
		g.do(hole.With(faults.On, 1))
		g.later(hole)
	case 3:
		hole := faults.New(faults.BlackHole).With(faults.EngineOf, peer).With(faults.Peer, v)
		g.do(hole.With(faults.On, 1))
		g.later(hole)
	case 4:
		a := engine(faults.Stall).With(faults.Connection, int64(g.random.IntN(8))).With(faults.Direction, int64(g.random.IntN(2)))
		g.do(a.With(faults.On, 1))
		g.later(faults.New(faults.Stall))
	default:
		a := engine(faults.ResetAfter).With(faults.Connection, int64(g.random.IntN(8))).With(faults.Direction, int64(g.random.IntN(2)))
		g.do(a.With(faults.Bytes, int64(g.random.IntN(2000))))
	}
}
