package orbitte

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

var (
	hostA = netip.MustParseAddr("10.0.0.1")
	hostB = netip.MustParseAddr("10.0.0.2")
	hostC = netip.MustParseAddr("10.0.0.3")
)

// sim is several engines in one goroutine, on one virtual clock and one seeded network.
type sim struct {
	*simkernel.World
	t     testing.TB
	lives byte
}

func newSim(t testing.TB, seed uint64, o simkernel.WorldOptions) *sim {
	t.Helper()
	leavesNothing(t)
	t.Logf("SEED=%d replay: go test . -run '^%s$'", seed, t.Name())
	return &sim{World: simkernel.NewWorld(seed, o), t: t}
}

// config makes c one of an engine in process p.
func (s *sim) config(p *simkernel.Process, c Config, address string) Config {
	s.lives++
	c.Progress, c.Bind = Manual, address
	c.Epoch = Epoch{0: 0xe0, 15: s.lives}
	if c.OpenKernel == nil {
		c.OpenKernel = func(int) (reactor.Kernel, error) { return p.Kernel(), nil }
	}
	return c
}

// engine starts a process with one engine, which the world drives.
func (s *sim) engine(name string, host netip.Addr, c Config) (*Engine, *simkernel.Process) {
	s.t.Helper()
	p := s.Process(name, host)
	e := newEngine(s.t, s.config(p, c, netip.AddrPortFrom(host, 0).String()))
	s.drive(e)
	s.t.Cleanup(func() { // runs before the engine's own cleanup: everything of this process
		closeEngine(s.t, e)
		if n := p.Descriptors(); n != 0 {
			s.t.Errorf("process %s has %d descriptors open after Close", name, n)
		}
	})
	return e, p
}

func (s *sim) drive(e *Engine) { s.Add(func() bool { return e.Progress(0) }) }

// within is a context whose deadline lies on the virtual clock; the real one never reaches it.
func (s *sim) within(d time.Duration) context.Context {
	ctx, cancel := context.WithDeadline(context.Background(), s.Time().Add(d))
	s.t.Cleanup(cancel)
	return ctx
}

// until runs the world until done, at most for d.
func (s *sim) until(d time.Duration, done func() bool) {
	s.t.Helper()
	must(s.t, s.RunUntil(done, s.Now().After(d)))
}

// simPair is a pair over the twin.
type simPair struct {
	*sim
	*pair
	sourceProcess, requesterProcess *simkernel.Process
}

func newSimPair(t testing.TB, seed uint64, o simkernel.WorldOptions, source, requester Config, size int) *simPair {
	t.Helper()
	s := &simPair{sim: newSim(t, seed, o), pair: &pair{}}
	s.source, s.sourceProcess = s.engine("source", hostA, source)
	s.requester, s.requesterProcess = s.engine("requester", hostB, requester)
	s.remote, s.local = allocated(t, size), allocated(t, size)
	pattern(s.remote, 1)
	s.export = registered(t, s.source, s.remote, ReadWrite)
	s.own = registered(t, s.requester, s.local, LocalOnly)
	s.segment = opened(t, s.requester, s.source)
	return s
}

// gauge reads one budget.
func gauge(t testing.TB, e *Engine, name string) Gauge {
	t.Helper()
	for _, g := range e.Stats().Gauges {
		if g.Name == name {
			return g
		}
	}
	t.Fatalf("no budget %q", name)
	return Gauge{}
}

// used sums what all budgets of an engine hold, one number each; the lanes' shares together.
func used(e *Engine) map[string]int64 {
	m := map[string]int64{}
	for _, g := range e.Stats().Gauges {
		m[budgetOf(g)] += g.Used
	}
	return m
}

// budgetOf is the name of a gauge without the lane whose share it is.
func budgetOf(g Gauge) string {
	name, _, _ := strings.Cut(g.Name, ", lane ")
	return name
}
