package world

import (
	"math/rand/v2"
	"time"

	"github.com/orbitte/orbitte/test/faults"
)

// railed is what makes a script one of RDMA: devices for its engines, another transport for some of its requests, and
// faults of its own. It draws from a stream of its own, so that a script without it is the same as ever.
type railed struct {
	random  *rand.Rand
	mixed   bool // some requests go over TCP
	staged  bool
	tiny    bool
	faulty  bool
	refuses bool // native calls fail, and completions are lost: some proofs never come
	two     bool // rails
	healing []planned
}

// railedEvery is one in how many seeds has RDMA.
const railedEvery = 4

// rail makes about one script in four one of RDMA.
func (g *generator) rail(seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0x7261696c73))
	if random.IntN(railedEvery) != 0 || g.p.fair || g.p.large {
		return
	}
	g.x = newRailed(random, g.p.faulty)
}

func newRailed(random *rand.Rand, faulty bool) *railed {
	x := &railed{random: random}
	x.mixed, x.staged, x.tiny, x.two = x.chance(50), x.chance(35), x.chance(25), x.chance(50)
	if faulty {
		x.faulty, x.refuses = x.chance(80), x.chance(30)
	}
	return x
}

func (x *railed) chance(percent int) bool { return x.random.IntN(100) < percent }

func (x *railed) between(low, high int) int64 { return int64(low + x.random.IntN(high-low+1)) }

func (x *railed) world(w faults.Action) faults.Action {
	personality := int64(1) // hardware
	if x.chance(25) {
		personality = x.between(2, 3)
	}
	w = w.With(faults.RDMA, personality)
	if x.two {
		w = w.With(faults.Rails, 2)
	}
	return w
}

func (x *railed) engine(e faults.Action) faults.Action {
	if x.chance(5) {
		return e.With(faults.Plain, 1)
	}
	if x.staged && x.chance(60) {
		e = e.With(faults.HostMemory, 1)
	}
	if x.chance(15) {
		e = e.With(faults.RDMAProgress, 1)
	}
	if x.chance(40) {
		e = e.With(faults.Width, x.between(1, 3))
	}
	e = e.With(faults.BlockBytes, 4096)
	if !x.tiny {
		return e
	}
	for _, l := range []struct {
		p         faults.Param
		low, high int
	}{
		{faults.Endpoints, 3, 8}, {faults.Grants, 1, 3}, {faults.SendWork, 1, 3}, {faults.CompletionEntries, 8, 64}, {faults.DirectBytes, 4096, 65536},
		{faults.StagingBytes, 4096, 65536}, {faults.CachedRegions, 2, 12}, {faults.KeyIndices, 1, 16},
	} {
		if x.chance(25) {
			e = e.With(l.p, x.between(l.low, l.high))
		}
	}
	return e
}

// length is that of a memory object: up to eight slices.
func (x *railed) length(most int) int {
	if most <= 512 && x.chance(50) {
		return most
	}
	return 512 << x.random.IntN(7)
}

// dress gives requests their transport.
func (x *railed) dress(a faults.Action) faults.Action {
	whole := x.chance(60) // batches of one transport, and mixed ones
	for i := range a.Requests {
		if !x.mixed || x.chance(60) || whole && i > 0 && a.Requests[i-1].Transport == 1 {
			a.Requests[i].Transport = 1
		}
	}
	return a
}

// meddle adds a fault behind some actions.
func (g *generator) meddle() {
	x := g.x
	if !x.faulty || !x.chance(12) || g.turn < setUpTurns {
		return
	}
	i, peer, rail := int64(x.random.IntN(len(g.slots))), int64(x.random.IntN(len(g.slots))), int64(x.random.IntN(2))
	at := func(k faults.Kind) faults.Action { return faults.New(k).With(faults.EngineOf, i) }
	micro := func(low, high int) int64 { return x.between(low, high) * int64(time.Microsecond) }
	n := x.random.IntN(13)
	if x.refuses {
		n = x.random.IntN(20)
	}
	switch n {
	case 0, 1:
		g.put(at(faults.PortDown).With(faults.Rail, rail))
		x.later(g, at(faults.PortUp).With(faults.Rail, rail))
	case 2:
		g.put(at(faults.ChangeGID).With(faults.Rail, rail))
	case 3, 4:
		cut := at(faults.CutRail).With(faults.Peer, peer).With(faults.Rail, rail)
		g.put(cut.With(faults.On, 1))
		x.later(g, cut)
	case 5, 6:
		g.put(at(faults.DelayRail).With(faults.Peer, peer).With(faults.Rail, rail).With(faults.DelayMin, micro(1, 500)).With(faults.DelayMax, micro(500, 20000)))
	case 7:
		late := at(faults.SpoilCompletion).With(faults.Way, 1).With(faults.By, micro(10, 50000))
		g.put(late.With(faults.Index, x.between(0, 9)).With(faults.Count, x.between(1, 4)))
	case 8:
		g.put(at(faults.SpoilCompletion).With(faults.Way, 2).With(faults.Index, x.between(0, 9)).With(faults.Count, x.between(1, 4)))
	case 9, 10:
		g.put(at(faults.BadWork).With(faults.Element, x.between(0, 2)).With(faults.Index, x.between(0, 9)))
	case 11:
		makes := []int64{1, 3, 5, 7, 14, 15}
		g.put(at(faults.FailCall).With(faults.Call, makes[x.random.IntN(len(makes))]).With(faults.Errno, 5).With(faults.Index, x.between(0, 2)))
	case 12:
		g.put(at(faults.RemoveDevice).With(faults.Rail, rail))
	case 13, 19:
		g.put(at(faults.SpoilCompletion).With(faults.Way, []int64{0, 3, 4, 5}[x.random.IntN(4)]).With(faults.Index, x.between(0, 9)))
	case 14:
		g.put(at(faults.BadWork).With(faults.Unknown, 1).With(faults.Element, x.between(0, 2)).With(faults.Index, x.between(0, 9)))
	case 15, 16, 17, 18:
		ends := []int64{0, 2, 4, 6, 8, 9, 10, 11, 12, 13}
		g.put(at(faults.FailCall).With(faults.Call, ends[x.random.IntN(len(ends))]).With(faults.Errno, x.between(0, 8)).With(faults.Index, x.between(0, 5)))
	default:
		panic("world: no such fault of RDMA")
	}
}

// setUpTurns is for how long nothing of RDMA fails: engines, objects and segments come to be.
const setUpTurns = 40

func (x *railed) later(g *generator, a faults.Action) {
	x.healing = append(x.healing, planned{g.turn + int(x.between(2, 80)), a})
}

// end ends the faults whose time has come, or all.
func (x *railed) end(g *generator, all bool) {
	kept := x.healing[:0]
	for _, h := range x.healing {
		if h.turn <= g.turn || all {
			g.put(h.action)
		} else {
			kept = append(kept, h)
		}
	}
	x.healing = kept
}
