package world

import (
	"math/rand/v2"

	"github.com/orbitte/orbitte/test/faults"
)

// straight makes a script of CUDA one of GPUDirect, of staging that the other side directs, or of both. It draws from a stream
// of its own, so that a script without it is the same as ever.
type straight struct {
	random    *rand.Rand
	reaches   bool         // devices reach GPUs themselves
	unordered bool         // what they wrote is visible after a flush
	peermem   bool         // by address; otherwise by DMA-BUF
	slots     bool         // requests direct the staging of their peers
	scarce    bool         // few slots
	gpus      map[int]bool // memory on GPUs, by name
}

// straighten makes about half of the scripts of CUDA such ones. GPUDirect brings RDMA with it.
func (g *generator) straighten(seed uint64) {
	if g.c == nil {
		return
	}
	d := &straight{random: rand.New(rand.NewPCG(seed, 0x646972656374)), gpus: map[int]bool{}}
	d.reaches, d.slots = d.chance(35), d.chance(45)
	d.unordered, d.peermem, d.scarce = d.chance(70), d.chance(60), d.chance(50)
	if d.reaches && g.x == nil {
		g.x = newRailed(rand.New(rand.NewPCG(seed, 0x7261696c7332)), g.p.faulty)
		g.h = nil
	}
	if d.slots && g.x != nil {
		g.x.mixed = true
	}
	if d.reaches || d.slots {
		g.d = d
	}
}

func (d *straight) chance(percent int) bool { return d.random.IntN(100) < percent }

func (d *straight) between(low, high int) int64 { return int64(low + d.random.IntN(high-low+1)) }

// world: soft devices reach no GPU.
func (d *straight) world(w faults.Action) faults.Action {
	if d.reaches {
		w = w.With(faults.RDMA, 1)
	}
	return w
}

func (d *straight) engine(e faults.Action) faults.Action {
	if d.slots && d.chance(90) { // one without GPUs asks others only
		e = e.With(faults.RemoteStaging, 1)
		if d.scarce {
			e = e.With(faults.PinnedSlots, d.between(1, 4)).With(faults.PeerSlots, d.between(0, 2))
		}
	}
	if d.reaches && e.Int(faults.GPUs) > 0 && !e.Bool(faults.Plain) && d.chance(85) {
		e = e.With(faults.GPUDirect, 1)
		if d.unordered {
			e = e.With(faults.Unordered, 1)
		}
		if d.peermem {
			e = e.With(faults.Peermem, 1)
		}
	}
	return e
}

// direct gives memory the pages that DMA-BUFs need, and requests over TCP slots of their peers.
func (g *generator) direct(a faults.Action) faults.Action {
	d := g.d
	if a.Kind == faults.Allocate && a.Int(faults.GPU) > 0 {
		d.gpus[a.Int(faults.Memory)] = !a.Bool(faults.Pinned)
		if d.reaches && !d.peermem && d.chance(90) {
			a = a.With(faults.Length, (a.Get(faults.Length)+pageBytes-1)/pageBytes*pageBytes)
		}
	}
	if !d.slots {
		return a
	}
	for i := range a.Requests {
		q := &a.Requests[i]
		likely := []int{60, 25, 0}[q.Transport]
		if q.Transport == 1 && q.Length > partsMost { // each slot's worth has grants of its own, and moves by itself
			likely = 0
		}
		if (d.gpus[q.Target] && d.chance(likely) || d.chance(2)) && g.peerOf(a.Int(faults.EngineOf), q.Segment) != a.Int(faults.EngineOf) {
			q.Slots = int(d.between(1, 4))
			if d.chance(10) {
				q.Slots = int(d.between(5, 17))
			}
		}
	}
	return a
}

// partsMost bounds what goes through slots over RDMA, in bytes: slots may be as small as 16.
const partsMost = 1024

// disturb adds a fault of the calls that only GPUDirect makes behind some actions.
func (g *generator) disturb() {
	d := g.d
	if !d.reaches || !g.c.faulty || !d.chance(6) || g.turn < setUpTurns {
		return
	}
	at := func(k faults.Kind) faults.Action {
		return faults.New(k).With(faults.EngineOf, int64(d.random.IntN(len(g.slots))))
	}
	n := d.random.IntN(6)
	if g.c.refuses {
		n = d.random.IntN(10)
	}
	switch n {
	case 0, 1: // of what is made
		g.put(at(faults.FailDriver).With(faults.DriverCall, d.between(18, 19)).With(faults.Index, d.between(0, 2)))
	case 2, 3:
		g.put(at(faults.FailCall).With(faults.Call, 17).With(faults.Errno, 5).With(faults.Index, d.between(0, 5)))
	case 4:
		g.put(at(faults.FailCall).With(faults.Call, 16).With(faults.Errno, 5).With(faults.Index, d.between(0, 3)))
	case 5:
		g.put(at(faults.FailCall).With(faults.Call, 3).With(faults.Errno, 5).With(faults.Index, d.between(0, 6)))
	case 6, 7: // of what ends a grant
		g.put(at(faults.FailCall).With(faults.Call, []int64{4, 12, 2}[d.random.IntN(3)]).With(faults.Errno, d.between(0, 8)).With(faults.Index, d.between(0, 5)))
	default:
		g.put(at(faults.FailDriver).With(faults.DriverCall, 17).With(faults.Unknown, d.between(0, 1)).With(faults.Index, d.between(0, 3)))
	}
}
