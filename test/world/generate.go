package world

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/orbitte/orbitte/test/faults"
)

// TurnsDefault is how many turns a generated script has when nobody asks for another number.
const TurnsDefault = 400

// profile is what a seed draws first. Each trait is drawn by itself, so that each meets each.
type profile struct {
	faulty, chopped, tiny, direct, restarts, notes, small, poison, twoLanes, narrow, closes, calmLinks, doubles, hot bool
	fair                                                                                                             bool // see generator.fair
	large                                                                                                            bool // see generator.large
}

// generator writes one script. It keeps in mind which objects should exist; what does not come to be makes
// later actions do nothing.
type generator struct {
	random  *rand.Rand
	p       profile
	script  faults.Script
	turn    int
	turns   int
	slots   []*plannedSlot
	payload map[int]int // the payload limit of those engines that have a small one
	names   int
	stamps  int64
	healing []planned // what ends a fault, later
	x       *railed   // nil: no RDMA
	h       *hurried  // nil: no HP-TCP
	c       *powered  // nil: no CUDA
	d       *straight // nil: neither GPUDirect nor remote staging
}

type plannedSlot struct {
	memories  []plannedMemory
	ranges    []plannedRange
	segments  []plannedSegment
	batches   []int
	restarted bool
}

type plannedMemory struct{ name, length int }

type plannedRange struct {
	name, memory, at, length int
	permission               int64
}

// plannedSegment remembers what the peer published when it was opened or refreshed.
type plannedSegment struct {
	name, peer int
	view       []plannedRange
}

type planned struct {
	turn   int
	action faults.Action
}

// Generate makes a random script from a seed: engines, objects, work and faults, with about so many turns. The
// same seed and turns give the same script.
func Generate(seed uint64, turns int) faults.Script {
	if turns <= 0 {
		turns = TurnsDefault
	}
	g := &generator{random: rand.New(rand.NewPCG(seed, 0x776f726c64)), turns: turns, payload: map[int]int{}}
	g.profile()
	if seed%fairEvery == fairEvery-1 {
		g.fair()
	}
	if seed%largeEvery == largeEvery/2 {
		g.large()
	}
	g.rail(seed)
	g.hurry(seed)
	g.power(seed)
	g.straighten(seed)
	g.head(seed)
	g.setUp()
	for g.turn < g.turns {
		g.turn += g.random.IntN(6)
		g.end(false)
		g.next()
	}
	if g.p.fair { // whoever waits for the victim is to be seen waiting
		g.turn += fairTail
	}
	g.end(true)
	return g.script
}

// largeEvery is how often a seed is one of large payloads; never one of fairness as well.
const largeEvery = 240

// large makes payloads that no lane moves in one go: an operation takes a MiB at most, and so does a turn's copy. The model
// compares every byte in every step, so such a world is short.
func (g *generator) large() {
	p := g.p
	g.p = profile{faulty: p.faulty, direct: p.direct, notes: p.notes, calmLinks: true, hot: true, large: true}
	g.turns = min(g.turns, 100)
}

func (g *generator) chance(percent int) bool { return g.random.IntN(100) < percent }

func (g *generator) between(low, high int) int { return low + g.random.IntN(high-low+1) }

func (g *generator) profile() {
	g.p = profile{
		faulty: g.chance(75), chopped: g.chance(50), tiny: g.chance(25), direct: g.chance(35), restarts: g.chance(40), notes: g.chance(50),
		small: g.chance(30), poison: g.chance(50), twoLanes: g.chance(4), narrow: g.chance(25), closes: g.chance(30), calmLinks: g.chance(50),
		doubles: g.chance(20), hot: g.chance(15),
	}
	if g.p.hot { // everybody at the same bytes, which are long under way
		g.p.direct, g.p.narrow = true, true
	}
}

func (g *generator) head(seed uint64) {
	engines := g.between(2, 4)
	if g.p.large {
		engines = 2
	}
	if g.p.fair {
		engines = max(3, engines)
	}
	w := faults.New(faults.World).With(faults.Seed, int64(seed&(1<<62-1))).With(faults.Engines, int64(engines))
	if !g.p.calmLinks {
		w = w.With(faults.DelayMin, int64(g.random.IntN(100))*int64(time.Microsecond)).With(faults.DelayMax, int64(g.between(100, 2000))*int64(time.Microsecond))
	}
	if g.p.chopped {
		w = w.With(faults.ChopReceive, int64(g.between(1, 600))).With(faults.ChopSend, int64(g.between(1, 600)))
	}
	if g.p.narrow {
		w = w.With(faults.Buffer, int64(g.between(64, 4096)))
	}
	if g.p.doubles {
		w = w.With(faults.Doubles, int64(g.between(1, 20)))
	}
	if g.p.poison {
		w = w.With(faults.Poison, 1)
	}
	if g.x != nil {
		w = g.x.world(w)
	}
	if g.d != nil {
		w = g.d.world(w)
	}
	g.script.World = disorder(seed, w)
	for i := range engines {
		g.slots = append(g.slots, &plannedSlot{})
		e := g.engine(i)
		if limit := e.Int(faults.PayloadBytes); limit > 0 {
			g.payload[i] = limit
		}
		if g.x != nil {
			e = g.x.engine(e)
		}
		if g.h != nil {
			e = g.h.engine(e)
		}
		if g.c != nil {
			e = g.c.engine(e)
		}
		if g.d != nil {
			e = g.d.engine(e)
		}
		g.script.Engines = append(g.script.Engines, e)
	}
}

// disorder lets operations overtake each other in every second seed. It draws from a stream of its own, so that the others
// are the same as ever.
func disorder(seed uint64, w faults.Action) faults.Action {
	random := rand.New(rand.NewPCG(seed, 0x6f72646572))
	if random.IntN(2) == 0 {
		return w
	}
	return w.With(faults.Reorder, int64(1+random.IntN(6)))
}

func (g *generator) engine(i int) faults.Action {
	milli := func(low, high int) int64 { return int64(g.between(low, high)) * int64(time.Millisecond) }
	e := faults.New(faults.Engine).With(faults.Number, int64(i)).
		With(faults.RequestTimeout, milli(20, 200)).With(faults.SourceTimeout, milli(10, 200))
	if g.p.direct && g.chance(70) {
		e = e.With(faults.Placement, 1)
	}
	if g.p.twoLanes {
		e = e.With(faults.Lanes, int64(g.between(1, 2)))
	}
	if g.p.fair {
		return e
	}
	if g.chance(30) {
		e = e.With(faults.IdleTimeout, milli(1, 50))
	}
	if g.chance(30) {
		e = e.With(faults.UserTimeout, milli(5, 100)).With(faults.KeepaliveIdle, milli(5, 100))
	}
	if g.chance(20) {
		e = e.With(faults.TCPNotes, int64(g.random.IntN(3))).With(faults.RPCNotes, int64(g.random.IntN(3)))
	}
	if g.p.tiny {
		e = g.tiny(e)
	}
	return e
}

// tiny gives an engine some small budgets.
func (g *generator) tiny(e faults.Action) faults.Action {
	for _, l := range []struct {
		p         faults.Param
		low, high int
	}{
		{faults.Registrations, 1, 6}, {faults.RegisteredBytes, 256, 16384}, {faults.BatchRequests, 1, 4}, {faults.Batches, 1, 3}, {faults.BatchSlots, 1, 8},
		{faults.Submissions, 1, 4}, {faults.SubmittedBytes, 64, 8192}, {faults.PayloadBytes, 32, 4096}, {faults.Handlers, 1, 2}, {faults.Queue, 1, 2},
		{faults.PeerSegments, 2, 3}, {faults.Notifications, 1, 3}, {faults.NotificationQueue, 16, 256}, {faults.NotificationBytes, 8, 128},
	} {
		if g.chance(25) {
			e = e.With(l.p, int64(g.between(l.low, l.high)))
		}
	}
	return e
}

func (g *generator) do(a faults.Action) {
	if g.h != nil {
		a = g.hasten(a)
	}
	if g.x != nil {
		a = g.x.dress(a)
	}
	if g.c != nil {
		a = g.c.place(a)
	}
	if g.d != nil {
		a = g.direct(a)
	}
	g.put(a)
	if g.x != nil {
		g.meddle()
	}
	if g.c != nil {
		g.trouble()
	}
	if g.d != nil {
		g.disturb()
	}
}

func (g *generator) put(a faults.Action) {
	g.script.Lines = append(g.script.Lines, faults.Line{Turn: g.turn, Action: a})
}

func (g *generator) name() int {
	g.names++
	return g.names
}

// end ends the faults whose time has come, or all.
func (g *generator) end(all bool) {
	kept := g.healing[:0]
	for _, h := range g.healing {
		if h.turn <= g.turn || all {
			g.do(h.action)
		} else {
			kept = append(kept, h)
		}
	}
	g.healing = kept
	if g.x != nil {
		g.x.end(g, all)
	}
}

func (g *generator) setUp() {
	for i := range g.slots {
		g.objects(i)
	}
	for round := range g.between(1, len(g.slots)-1) {
		for i := range g.slots {
			g.open(i, (i+1+round)%len(g.slots))
		}
		g.turn += g.between(30, 60)
	}
}

// objects gives an engine memory and registrations.
func (g *generator) objects(i int) {
	for range g.between(1, 3) {
		g.allocate(i)
	}
	for range g.between(1, 3) {
		g.register(i)
	}
}

func (g *generator) allocate(i int) {
	s, length := g.slots[i], 64<<g.random.IntN(8)
	if g.p.small {
		length = g.between(1, 512)
	}
	if limit := g.payload[i]; limit > 0 && g.chance(40) {
		length = limit // a request for all of it is just admitted
	}
	if g.x != nil {
		length = g.x.length(length)
	}
	if g.p.large && len(s.memories) == 0 {
		length = 3<<19 + g.between(1, 1<<18)
	}
	m := plannedMemory{g.name(), length}
	s.memories = append(s.memories, m)
	a := faults.New(faults.Allocate).With(faults.EngineOf, int64(i)).With(faults.Memory, int64(m.name)).With(faults.Length, int64(length))
	if g.chance(30) {
		a = a.With(faults.Adopted, 1)
	}
	g.do(a)
}

func (g *generator) register(i int) {
	s := g.slots[i]
	if len(s.memories) == 0 {
		return
	}
	m := s.memories[g.random.IntN(len(s.memories))]
	at, length := 0, m.length
	if g.chance(25) {
		at = g.random.IntN(m.length)
		length = g.between(1, m.length-at)
	}
	permission := int64(3)
	if g.chance(20) {
		permission = int64(g.random.IntN(4))
	}
	name := g.name()
	s.ranges = append(s.ranges, plannedRange{name, m.name, at, length, permission})
	g.do(faults.New(faults.Register).With(faults.EngineOf, int64(i)).With(faults.Registration, int64(name)).With(faults.Memory, int64(m.name)).
		With(faults.Offset, int64(at)).With(faults.Length, int64(length)).With(faults.Permission, permission))
}

func (g *generator) open(i, peer int) {
	name := g.name()
	g.slots[i].segments = append(g.slots[i].segments, plannedSegment{name, peer, slices.Clone(g.slots[peer].ranges)})
	a := faults.New(faults.OpenSegment).With(faults.EngineOf, int64(i)).With(faults.Segment, int64(name)).With(faults.Peer, int64(peer)).
		With(faults.Deadline, g.deadline())
	if g.slots[peer].restarted && g.chance(20) {
		a = a.With(faults.Stale, 1)
	}
	g.do(a)
}

// deadline is mostly long, sometimes so short that it meets the work.
func (g *generator) deadline() int64 {
	if g.chance(15) {
		return int64(g.between(20, 2000)) * int64(time.Microsecond)
	}
	return int64(g.between(10, 100)) * int64(time.Millisecond)
}

func pick[T any](g *generator, list []T) (one T, ok bool) {
	if len(list) == 0 {
		return one, false
	}
	return list[g.random.IntN(len(list))], true
}
