package world

import (
	"fmt"
	"strings"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/test/faults"
)

// OracleQuiet finds a call that says that work has ended which goes on.
const OracleQuiet = "quiet"

// gauge reads one budget of a life.
func (l *life) gauge(name string) orbitte.Gauge {
	for _, g := range l.engine.Stats().Gauges {
		if g.Name == name {
			return g
		}
	}
	return orbitte.Gauge{}
}

// unlent checks what an Unregister without error promises: no admitted work holds the region any more.
func (r *run) unlent(g *registration) {
	region := fmt.Sprintf("region %d,", g.handle.ID())
	for _, kept := range g.life.engine.RetainedResources() {
		if kept.Kind == "registration" && strings.HasPrefix(kept.Object, region) {
			r.violate(OracleQuiet, "%v: Unregister of registration %d ended, but %s", g.life, g.name, kept.Reason)
		}
	}
}

// idles checks what a CloseSource or CloseRequester without error promises: none of its work is left.
func (r *run) idles(l *life, what, budget string, err error) {
	r.ended(l, what, err)
	if l.native != nil && what == "close-source" {
		budget = "RDMA grants" // a handler may be at work on the end of what was granted before (G-6)
	}
	if g := l.gauge(budget); err == nil && g.Used > 0 && !l.retains() {
		r.violate(OracleQuiet, "%v: %s ended, but %d %s are charged to %q", l, what, g.Used, g.Unit, g.Name)
	}
}

// retains is true exactly when the engine lists what has no proof of its end, for a reason that the world gave: that stays
// charged, and nobody waits for it.
func (l *life) retains() bool { return l.doubtful && len(l.engine.RetainedResources()) > 0 }

// conserves looks at a source that rests: a frame waits only while every handler is at work. Only engines with few handlers let frames wait.
func (r *run) conserves(l *life) {
	if l.slot.config.Get(faults.Handlers) == 0 {
		return
	}
	waiting, handlers := l.gauge("source queue"), l.gauge("source handlers")
	if waiting.Used > 0 && handlers.Used < handlers.Limit {
		r.violate(OracleFair, "%v rests while %d frames wait and %d of %d handlers are at work", l, waiting.Used, handlers.Used, handlers.Limit)
	}
}
