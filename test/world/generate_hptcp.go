package world

import (
	"math/rand/v2"

	"github.com/orbitte/orbitte/test/faults"
)

// hurried makes a script one of HP-TCP: another transport for some of its requests. It draws from a stream of its own, so
// that a script without it is the same as ever.
type hurried struct {
	random *rand.Rand
	mixed  bool // some requests go over TCP
	atomic bool // some are Atomic
	small  bool // chunks of some hundred bytes
	tight  bool // few streams, little credit
	sums   bool
	large  bool // payloads of a MiB and more
	wide   bool // several lanes share a transfer
}

// wideFrom is the first seed whose scripts may be wide; those before it stay what they were.
const wideFrom = 40000

// hurriedEvery is one in how many seeds without RDMA has HP-TCP.
const hurriedEvery = 3

// hurry makes about one script in four one of HP-TCP.
func (g *generator) hurry(seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0x6875727279))
	if random.IntN(hurriedEvery) != 0 || g.x != nil {
		return
	}
	h := &hurried{random: random, large: g.p.large}
	h.mixed, h.atomic, h.small, h.tight, h.sums = h.chance(50), h.chance(50), h.chance(60), h.chance(30), h.chance(30)
	h.wide = seed >= wideFrom && !h.large && !g.p.fair && rand.New(rand.NewPCG(seed, 0x77696465)).IntN(2) == 0
	g.h = h
}

func (h *hurried) chance(percent int) bool { return h.random.IntN(100) < percent }

func (h *hurried) between(low, high int) int64 { return int64(low + h.random.IntN(high-low+1)) }

func (h *hurried) engine(e faults.Action) faults.Action {
	if h.chance(5) {
		return e
	}
	e = e.With(faults.HPTCP, 1)
	switch {
	case h.wide: // some KiB have pieces for all lanes; where fairness is measured that would be many requests
		e = e.With(faults.Lanes, h.between(2, 3)).With(faults.ChunkBytes, h.between(8, 96))
	case h.small && h.large: // the model looks at every byte again for each chunk
		e = e.With(faults.ChunkBytes, h.between(64, 256)<<10)
	case h.small:
		e = e.With(faults.ChunkBytes, h.between(64, 4096))
	}
	if h.tight && !h.wide {
		e = e.With(faults.DataStreams, h.between(1, 2)).With(faults.CreditBytes, h.between(64, 8192)).With(faults.DataSlots, h.between(2, 5))
	}
	if h.sums {
		e = e.With(faults.Checksums, h.between(0, 1))
	}
	return e
}

// hasten gives requests their transport. In a world of fairness nothing of the victim's holds a range of a healthy engine:
// there only healthy ones use it among each other, and hold none while they wait for the other's.
func (g *generator) hasten(a faults.Action) faults.Action {
	h := g.h
	if len(a.Requests) == 0 || g.p.fair && (a.Int(faults.EngineOf) == g.victim() || g.peerOf(a.Int(faults.EngineOf), a.Requests[0].Segment) == g.victim()) {
		return a
	}
	for i := range a.Requests {
		q := &a.Requests[i]
		if h.mixed && h.chance(40) {
			continue
		}
		q.Transport = 2
		if h.atomic && h.chance(40) || g.p.fair {
			q.Atomic = 1
		}
		if h.chance(40) {
			q.Page = int(h.between(1, max(1, q.Length/2)))
			if q.Length/q.Page > pagesMax {
				q.Page = q.Length/pagesMax + 1
			}
		}
		if i > 0 && h.chance(40) { // neighbours in both memories
			g.follow(&a.Requests[i-1], q)
		}
	}
	return a
}

// follow puts a request behind another one, as pages of a pool stand; what does not fit is refused.
func (g *generator) follow(before, q *faults.Request) {
	q.Write, q.Segment, q.Memory, q.Target = before.Write, before.Segment, before.Memory, before.Target
	q.Length = max(1, before.Length/2)
	q.Offset, q.At = before.Offset-q.Length, before.At-q.Length
	if q.Offset < 0 || q.At < 0 {
		q.Offset, q.At = before.Offset, before.At
	}
}

// peerOf is the engine that a segment belongs to; -1: nobody knows.
func (g *generator) peerOf(i, segment int) int {
	for _, s := range g.slots[i].segments {
		if s.name == segment {
			return s.peer
		}
	}
	return -1
}
