package world

import (
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/test/faults"
)

// echo tells a kernel's completions twice: every so many-th one comes again with a later poll. Rings and completion
// channels have done so, and a loop promises that a double completion finds nobody.
type echo struct {
	every int // 0: never
	count int
	kept  reactor.Completion
	held  bool // true exactly while kept is still to be told again
}

// add puts a kept completion behind the new ones if there is room, and may keep one of these.
func (e *echo) add(out []reactor.Completion, n int) int {
	if e.every == 0 {
		return n
	}
	fresh := out[:n]
	if e.held && n < len(out) {
		out[n], e.held = e.kept, false
		n++
	}
	for _, c := range fresh {
		if e.count++; e.count%e.every == 0 && !e.held {
			e.kept, e.held = c, true
		}
	}
	return n
}

// registerBadly writes a batch registration that is to be refused.
func (g *generator) registerBadly(i int) {
	m, ok := pick(g, g.slots[i].memories)
	if !ok {
		return
	}
	at := g.random.IntN(m.length)
	g.do(faults.New(faults.RegisterBadBatch).With(faults.EngineOf, int64(i)).With(faults.Memory, int64(m.name)).With(faults.Offset, int64(at)).
		With(faults.Length, int64(g.between(1, m.length-at))).With(faults.Permission, int64(g.random.IntN(4))))
}
