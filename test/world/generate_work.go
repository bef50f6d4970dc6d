package world

import (
	"slices"
	"time"

	"github.com/orbitte/orbitte/test/faults"
)

// choice is one thing that may come next, with its weight.
type choice struct {
	weight int
	do     func(i int)
}

// next writes one action, or a few that belong together.
func (g *generator) next() {
	work := []choice{
		{30, g.submit}, {22, g.transfer}, {8, g.fill}, {6, g.cancel}, {6, g.freeBatch}, {4, g.reopen}, {3, g.refresh}, {3, g.closeSegment},
		{3, g.register}, {3, g.unregister}, {1, g.allocate}, {1, g.freeMemory}, {1, g.registerBadly},
	}
	if g.p.fair {
		work = []choice{{30, g.submit}, {22, g.transfer}, {12, g.hurt}, {6, g.freeBatch}, {3, g.fill}}
	}
	if g.p.notes {
		work = append(work, choice{14, g.notify}, choice{8, g.receive}, choice{3, g.retry})
	}
	if g.p.closes {
		work = append(work, choice{1, g.closeParts})
	}
	if g.p.restarts {
		work = append(work, choice{3, g.restart})
	}
	if g.p.faulty {
		work = append(work, choice{18, g.fault})
	}
	total := 0
	for _, c := range work {
		total += c.weight
	}
	i := g.random.IntN(len(g.slots))
	n := g.random.IntN(total)
	for _, c := range work {
		if n -= c.weight; n < 0 {
			c.do(i)
			return
		}
	}
}

// requests writes up to n requests of one engine; nil when it has nothing to ask with. Most name ranges that
// should be registered, the others whatever comes.
func (g *generator) requests(i, n int) (list []faults.Request) {
	s := g.slots[i]
	segment, ok := pick(g, s.segments)
	for range n {
		if ok && !g.p.fair && g.chance(12) {
			segment, ok = pick(g, s.segments)
		}
		if !ok {
			return nil
		}
		if segment.peer == i && len(list) >= ownRequests {
			break
		}
		q, ok := g.request(s, segment)
		if !ok {
			return nil
		}
		list = append(list, q)
	}
	return list
}

// ownRequests bounds the requests of one submission to the engine's own segment. They are copies of one step, so
// that the model sees only what the last of them left; a chain of three has too many explanations.
const ownRequests = 2

func (g *generator) request(s *plannedSlot, segment plannedSegment) (q faults.Request, ok bool) {
	q = faults.Request{Write: g.chance(50), Segment: segment.name}
	local, remote, ok := g.ends(s, segment, q.Write)
	if !ok {
		return q, false
	}
	most := min(local.length, remote.length)
	q.Length = most
	switch {
	case g.chance(60):
		q.Length = g.between(1, most)
	case g.chance(5):
		q.Length = 0
	}
	q.Memory, q.Target = local.memory, remote.memory
	q.Offset, q.At = local.at+g.random.IntN(local.length-q.Length+1), remote.at+g.random.IntN(remote.length-q.Length+1)
	if g.chance(1) {
		q.At += 1 << 20 // far beyond the end
	}
	return q, true
}

// ends picks the two ranges of a request.
func (g *generator) ends(s *plannedSlot, segment plannedSegment, write bool) (local, remote plannedRange, ok bool) {
	want := int64(1)
	if write {
		want = 2
	}
	local, ok = pick(g, s.ranges)
	if g.chance(3) || !ok {
		m, ok := pick(g, s.memories)
		if !ok {
			return local, remote, false
		}
		local = plannedRange{memory: m.name, length: m.length}
	}
	fitting := slices.DeleteFunc(slices.Clone(segment.view), func(r plannedRange) bool { return r.permission&want == 0 })
	remote, ok = pick(g, fitting)
	if g.p.hot && g.chance(80) && len(s.ranges) > 0 && len(fitting) > 0 {
		return s.ranges[0], fitting[0], true
	}
	if g.chance(3) || !ok {
		remote, ok = pick(g, segment.view)
	}
	return local, remote, ok
}

func (g *generator) transfer(i int) {
	a := faults.New(faults.Transfer).With(faults.EngineOf, int64(i)).With(faults.Deadline, g.deadline())
	a.Requests = g.requests(i, g.between(1, 3))
	if g.p.notes && g.chance(30) {
		a = g.withNote(a)
	}
	if a.Requests != nil {
		g.do(g.promise(i, a))
	}
}

func (g *generator) submit(i int) {
	name := g.name()
	g.slots[i].batches = append(g.slots[i].batches, name)
	a := faults.New(faults.Submit).With(faults.EngineOf, int64(i)).With(faults.Batch, int64(name)).With(faults.Deadline, g.deadline())
	a.Requests = g.requests(i, g.between(1, 5))
	if g.p.notes && g.chance(30) {
		a = g.withNote(a)
	}
	if a.Requests != nil {
		g.do(g.promise(i, a))
	}
}

func (g *generator) withNote(a faults.Action) faults.Action {
	return a.With(faults.Note, int64(g.name())).With(faults.Size, int64(g.random.IntN(120)))
}

func (g *generator) fill(i int) {
	m, ok := pick(g, g.slots[i].memories)
	if !ok {
		return
	}
	at := g.random.IntN(m.length)
	g.stamps++
	g.do(faults.New(faults.Fill).With(faults.Memory, int64(m.name)).With(faults.Offset, int64(at)).
		With(faults.Length, int64(g.between(1, m.length-at))).With(faults.Stamp, g.stamps))
}

func (g *generator) cancel(i int) {
	a := faults.New(faults.Cancel).With(faults.EngineOf, int64(i))
	if name, ok := pick(g, g.slots[i].batches); ok && g.chance(60) {
		a = faults.New(faults.Cancel).With(faults.Batch, int64(name))
		if last := g.slots[i].batches; g.chance(70) {
			a = a.With(faults.Batch, int64(last[len(last)-1]))
		}
	}
	g.do(a)
}

func (g *generator) freeBatch(i int) {
	if name, ok := pick(g, g.slots[i].batches); ok {
		g.do(faults.New(faults.FreeBatch).With(faults.Batch, int64(name)))
	}
}

func (g *generator) reopen(i int) { g.open(i, g.random.IntN(len(g.slots))) }

func (g *generator) refresh(i int) {
	if s, ok := pick(g, g.slots[i].segments); ok {
		for k := range g.slots[i].segments {
			if other := &g.slots[i].segments[k]; other.name == s.name {
				other.view = slices.Clone(g.slots[s.peer].ranges)
			}
		}
		g.do(faults.New(faults.Refresh).With(faults.Segment, int64(s.name)).With(faults.Deadline, g.deadline()))
	}
}

func (g *generator) closeSegment(i int) {
	if s, ok := pick(g, g.slots[i].segments); ok && len(g.slots[i].segments) > 1 {
		if g.chance(80) {
			g.slots[i].segments = slices.DeleteFunc(g.slots[i].segments, func(other plannedSegment) bool { return other.name == s.name })
		}
		g.do(faults.New(faults.CloseSegment).With(faults.Segment, int64(s.name)).With(faults.Deadline, g.deadline()))
	}
}

func (g *generator) unregister(i int) {
	if r, ok := pick(g, g.slots[i].ranges); ok && len(g.slots[i].ranges) > 1 {
		g.slots[i].ranges = slices.DeleteFunc(g.slots[i].ranges, func(other plannedRange) bool { return other.name == r.name })
		g.do(faults.New(faults.Unregister).With(faults.Registration, int64(r.name)).With(faults.Deadline, g.deadline()))
	}
}

func (g *generator) freeMemory(i int) {
	m, ok := pick(g, g.slots[i].memories)
	used := slices.ContainsFunc(g.slots[i].ranges, func(r plannedRange) bool { return r.memory == m.name })
	if ok && len(g.slots[i].memories) > 1 && !used {
		g.slots[i].memories = slices.DeleteFunc(g.slots[i].memories, func(other plannedMemory) bool { return other.name == m.name })
		g.do(faults.New(faults.FreeMemory).With(faults.Memory, int64(m.name)))
	}
}

func (g *generator) notify(i int) {
	if s, ok := pick(g, g.slots[i].segments); ok {
		a := faults.New(faults.Notify).With(faults.EngineOf, int64(i)).With(faults.Segment, int64(s.name)).With(faults.Deadline, g.deadline())
		g.do(g.withNote(a))
	}
}

func (g *generator) receive(i int) { g.do(faults.New(faults.Receive).With(faults.EngineOf, int64(i))) }

func (g *generator) retry(i int) {
	if name, ok := pick(g, g.slots[i].batches); ok {
		g.do(faults.New(faults.RetryNotes).With(faults.Batch, int64(name)).With(faults.Deadline, g.deadline()))
	}
}

// closeParts ends a side of an engine for good; the engine is started anew some time later.
func (g *generator) closeParts(i int) {
	kind := []faults.Kind{faults.CloseSource, faults.CloseRequester, faults.Close}[g.random.IntN(3)]
	a := faults.New(kind).With(faults.EngineOf, int64(i))
	if kind != faults.Close {
		g.do(a.With(faults.Deadline, g.deadline()))
		g.turn += g.between(0, 60)
	}
	g.do(faults.New(faults.Close).With(faults.EngineOf, int64(i)))
	g.turn += g.between(20, 80)
	g.startAgain(i)
}

func (g *generator) restart(i int) {
	g.do(faults.New(faults.Kill).With(faults.EngineOf, int64(i)))
	g.turn += g.random.IntN(10)
	g.startAgain(i)
}

// startAgain begins the slot's next life and gives it objects; peers learn of it sooner or later.
func (g *generator) startAgain(i int) {
	g.do(faults.New(faults.Start).With(faults.EngineOf, int64(i)))
	old := g.slots[i]
	g.slots[i] = &plannedSlot{restarted: true, batches: old.batches}
	g.objects(i)
	for peer := range g.slots {
		switch {
		case peer == i:
			continue
		case g.chance(80):
			g.slots[peer].segments = slices.DeleteFunc(g.slots[peer].segments, func(s plannedSegment) bool { return s.peer == i })
			g.open(peer, i)
		}
		if g.chance(50) {
			g.open(i, peer)
			g.turn += g.random.IntN(10)
		}
	}
}

// fault writes one fault, and plans its end.
func (g *generator) fault(i int) {
	engine := func(k faults.Kind) faults.Action { return faults.New(k).With(faults.EngineOf, int64(i)) }
	stream := func(k faults.Kind) faults.Action { return engine(k).With(faults.Connection, int64(g.random.IntN(8))) }
	directed := func(k faults.Kind) faults.Action {
		return stream(k).With(faults.Direction, int64(g.random.IntN(2)))
	}
	peer := int64(g.random.IntN(len(g.slots)))
	micro := func(low, high int) int64 { return int64(g.between(low, high)) * int64(time.Microsecond) }
	switch g.random.IntN(16) {
	case 0, 1:
		g.do(stream(faults.Reset))
	case 2, 3, 4:
		g.do(directed(faults.ResetAfter).With(faults.Bytes, int64(g.random.IntN(200<<g.random.IntN(5)))))
	case 5:
		g.do(directed(faults.HalfClose))
	case 6, 7:
		g.do(directed(faults.Stall).With(faults.On, 1))
		g.later(faults.New(faults.Stall))
	case 8:
		hole := engine(faults.BlackHole).With(faults.Peer, peer)
		g.do(hole.With(faults.On, 1))
		g.later(hole)
	case 9:
		g.do(engine(faults.Delay).With(faults.Peer, peer).With(faults.DelayMin, micro(1, 500)).With(faults.DelayMax, micro(500, 20000)))
	case 10:
		errno := []int64{0, 1, 2, 3, 4, 5}[g.random.IntN(6)]
		g.do(engine(faults.FailAccepts).With(faults.Errno, errno).With(faults.Count, int64(g.between(1, 5))))
	case 11:
		errno := []int64{4, 6, 7, 8}[g.random.IntN(4)]
		g.do(engine(faults.FailConnects).With(faults.Errno, errno).With(faults.Count, int64(g.between(1, 3))))
	case 12:
		g.do(engine(faults.FailOpens).With(faults.Errno, int64(g.random.IntN(3))).With(faults.Count, int64(g.between(1, 3))))
	case 13:
		if g.chance(50) {
			g.do(engine(faults.HangConnects).With(faults.Count, int64(g.between(1, 3))))
			return
		}
		g.do(engine(faults.LimitDescriptors).With(faults.Count, int64(g.random.IntN(2))))
		g.later(engine(faults.LimitDescriptors).With(faults.Count, 1000))
	case 14:
		g.do(engine(faults.Stop))
		g.later(engine(faults.Continue))
	default:
		if g.chance(50) {
			g.do(faults.New(faults.Advance).With(faults.By, micro(1, 100000)))
			return
		}
		g.do(faults.New(faults.StepWall).With(faults.By, int64(g.between(-3600, 3600))*int64(time.Second)))
	}
}

// later plans the end of a fault.
func (g *generator) later(a faults.Action) {
	turns := g.between(2, 80)
	if g.p.fair {
		turns *= 8
	}
	g.healing = append(g.healing, planned{g.turn + turns, a})
}
