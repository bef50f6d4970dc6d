package main

import (
	"runtime"
	"syscall"
	"time"

	"github.com/orbitte/orbitte"
)

// counts is what loops and kernels did; exact, and the same in each run of one seed.
type counts struct {
	Turns, Letters, Completions, Crossings uint64
}

func (c counts) minus(o counts) counts {
	return counts{c.Turns - o.Turns, c.Letters - o.Letters, c.Completions - o.Completions, c.Crossings - o.Crossings}
}

func countsOf(nodes ...*node) (sum counts) {
	for _, n := range nodes {
		for _, l := range n.engine.Stats().Lanes {
			sum.Turns += l.Loop.Turns
			sum.Letters += l.Loop.Letters
			sum.Completions += l.Loop.Completions
		}
		sum.Crossings += n.kernel.Counters().Crossings
	}
	return sum
}

// meter reads what the process has used so far.
type meter struct {
	cpu            time.Duration
	allocs, bytes  uint64
	virtual        time.Duration
	all, one       counts
	nodes, special []*node
}

// begin measures from here on; one counts only special's part.
func (f *fleet) begin(special ...*node) *meter {
	m := &meter{nodes: f.nodes, special: special, virtual: time.Duration(f.world.Now())}
	m.all, m.one = countsOf(m.nodes...), countsOf(special...)
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	m.allocs, m.bytes = s.Mallocs, s.TotalAlloc
	m.cpu = cpuTime()
	return m
}

// end is what was used since begin, for each of n things; prefix names them.
func (m *meter) end(f *fleet, into metrics, per string, n int) {
	cpu := cpuTime() - m.cpu
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	all, one := countsOf(m.nodes...).minus(m.all), countsOf(m.special...).minus(m.one)
	put := func(name string, value float64) { into[name+" per "+per] = value / float64(n) }
	put("cpu ns", float64(cpu))
	put("allocations", float64(s.Mallocs-m.allocs))
	put("allocated bytes", float64(s.TotalAlloc-m.bytes))
	put("crossings", float64(all.Crossings))
	put("letters", float64(all.Letters))
	put("turns", float64(all.Turns))
	if len(m.special) > 0 {
		put("own crossings", float64(one.Crossings))
		put("own letters", float64(one.Letters))
		put("own turns", float64(one.Turns))
	}
	put("virtual ns", float64(time.Duration(f.world.Now())-m.virtual))
}

// cpuTime is the process's so far, in user and system mode, getrusage(2).
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// heap is what is live now.
func heap() float64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools held for one cycle
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return float64(s.HeapAlloc)
}

// metrics are one cell's figures by name.
type metrics map[string]float64

// pump submits batches of one node, at most window at a time, and checks nothing: for measuring only.
func (n *node) pump(batches, window int, next func(i int) []orbitte.Request) error {
	under := make([]*orbitte.Batch, 0, window)
	for started := 0; started < batches || len(under) > 0; {
		for started < batches && len(under) < window {
			b, err := n.engine.Submit(noDeadline, next(started))
			if err != nil {
				return err
			}
			under = append(under, b)
			started++
		}
		kept := under[:0]
		for _, b := range under {
			_, terminal, err := b.Poll()
			if err != nil {
				return err
			}
			if !terminal {
				kept = append(kept, b)
			} else if err := b.Free(); err != nil {
				return err
			}
		}
		if len(kept) == len(under) {
			n.task.Pause()
		}
		under = kept
	}
	return nil
}

// only runs an app on one node.
func (f *fleet) only(n *node, app func() error) error {
	return f.run(func(other *node) func() error {
		if other != n {
			return nil
		}
		return app
	})
}
