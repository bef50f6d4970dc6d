package world

import (
	"math/rand/v2"
	"time"

	"github.com/orbitte/orbitte/test/faults"
)

// powered is what makes a script one of CUDA: GPUs for its engines, on which some of their memory is, and faults of their
// own. It draws from a stream of its own, so that a script without it is the same as ever.
type powered struct {
	random  *rand.Rand
	most    bool // of the memory is on GPUs
	scarce  bool // few pinned chunks
	slow    bool // copies take long
	faulty  bool
	refuses bool // copies hang, GPUs are lost, and what ends something fails: some proofs never come
}

// poweredEvery is one in how many seeds has CUDA, of those that are not of fairness or large payloads.
const poweredEvery = 3

// power makes about one script in five one of CUDA.
func (g *generator) power(seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0x63756461))
	if random.IntN(poweredEvery) != 0 || g.p.fair || g.p.large {
		return
	}
	c := &powered{random: random}
	c.most, c.scarce, c.slow = c.chance(60), c.chance(40), c.chance(40)
	if g.p.faulty {
		c.faulty, c.refuses = c.chance(80), c.chance(45)
	}
	if g.h != nil { // it does not reach GPUs
		g.h.mixed = true
	}
	if c.chance(70) {
		g.h = nil
	}
	if c.chance(40) {
		g.x = nil
	}
	g.c = c
}

func (c *powered) chance(percent int) bool { return c.random.IntN(100) < percent }

func (c *powered) between(low, high int) int64 { return int64(low + c.random.IntN(high-low+1)) }

func (c *powered) micro(low, high int) int64 { return c.between(low, high) * int64(time.Microsecond) }

func (c *powered) engine(e faults.Action) faults.Action {
	if c.chance(15) {
		return e
	}
	e = e.With(faults.GPUs, c.between(1, 2)).With(faults.PinnedChunk, c.between(16, 2048))
	if c.scarce {
		e = e.With(faults.PinnedChunks, c.between(1, 3))
	}
	if c.slow {
		e = e.With(faults.CopyMin, c.micro(1, 200)).With(faults.CopyMax, c.micro(200, 1000)).With(faults.CallbackMax, c.micro(20, 2000))
	}
	return e
}

// place puts some memory on a GPU.
func (c *powered) place(a faults.Action) faults.Action {
	if a.Kind != faults.Allocate || !c.most && c.chance(50) || c.chance(20) {
		return a
	}
	a = a.With(faults.GPU, c.between(1, 2))
	if c.chance(15) {
		a = a.With(faults.Pinned, 1)
	}
	return a
}

// trouble adds a fault behind some actions.
func (g *generator) trouble() {
	c := g.c
	if !c.faulty || !c.chance(14) || g.turn < setUpTurns {
		return
	}
	at := func(k faults.Kind) faults.Action {
		return faults.New(k).With(faults.EngineOf, int64(c.random.IntN(len(g.slots))))
	}
	spread := func(a faults.Action, index, count int) faults.Action {
		return a.With(faults.Index, c.between(0, index)).With(faults.Count, c.between(1, count))
	}
	n := c.random.IntN(10)
	if c.refuses {
		n = c.random.IntN(19)
	}
	switch n {
	case 0, 1:
		g.put(spread(at(faults.SlowCopy).With(faults.By, c.micro(10, 5000)), 9, 4))
	case 2, 3, 4:
		spoilt := at(faults.SpoilCallback).With(faults.Way, c.between(0, 2))
		if spoilt.Get(faults.Way) == 1 {
			spoilt = spoilt.With(faults.By, c.micro(10, 50000))
		}
		g.put(spread(spoilt, 9, 6))
	case 5, 6, 7, 8: // of a copy
		g.put(spread(at(faults.FailDriver).With(faults.DriverCall, c.between(0, 3)).With(faults.Unknown, c.between(0, 1)), 9, 2))
	case 9: // of what is made, and of the signal
		g.put(at(faults.FailDriver).With(faults.DriverCall, c.between(6, 11)).With(faults.Index, c.between(0, 2)))
	case 10, 11, 12, 13:
		g.put(spread(at(faults.SlowCopy).With(faults.By, c.between(31, 3000)*int64(time.Second)), 3, 3))
	case 14, 15:
		g.put(at(faults.LoseGPU).With(faults.GPU, c.between(1, 2)).With(faults.By, c.micro(0, 2000)))
	case 16:
		g.put(at(faults.FailDriver).With(faults.DriverCall, c.between(0, 3)).With(faults.Sticky, 1).With(faults.Unknown, c.between(0, 1)).With(faults.Index, c.between(0, 9)))
	default:
		ending := []int64{4, 4, 5, 12, 13, 14, 15, 16}
		g.put(at(faults.FailDriver).With(faults.DriverCall, ending[c.random.IntN(len(ending))]).With(faults.Unknown, c.between(0, 1)).With(faults.Index, c.between(0, 3)))
	}
}
