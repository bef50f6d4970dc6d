package rdma

import (
	"testing"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// steadyEnds is a warm pair of engines with one transfer that can be run again and again.
func steadyEnds(t testing.TB, d lanes.Direction, length uint64, mode Progress) (e *ends, a *attempt, run func()) {
	o := siteOptions{config: Config{Progress: mode, MonitorInterval: 1 << 60}}
	e = newEnds(t, simverbs.Hardware, endsOptions{o, o})
	remote, local := e.to.memory(length, netproto.ReadWrite, 1), e.from.memory(length, netproto.LocalOnly, 2)
	a = e.transfer(d, local, remote, 0)
	a.Deadline = reactor.Forever
	ended := false
	a.Done = func(t *Transfer) { t.Local.Return(); ended = true }
	done := func() bool { return ended }
	start := &letterTo{f: func() { e.begin(a) }}
	run = func() {
		ended = false
		_ = e.from.lanes[0].Post(&start.Letter, start)
		e.until("a steady transfer", done)
	}
	return e, a, run
}

// Steady READs and WRITEs allocate nothing: neither the requester's lane nor the source's, nor anything between them
// (the twins included, so the count is exact).
//
// proves L-6
func TestSteadyTransfersAllocateNothing(t *testing.T) {
	for _, mode := range []Progress{Polling, EventDriven} {
		for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
			for _, length := range []uint64{64, 300 << 10} {
				e, a, run := steadyEnds(t, d, length, mode)
				for range 100 {
					run()
				}
				if n := testing.AllocsPerRun(100, run); n != 0 {
					t.Errorf("%v, %v of %d bytes: %v allocations", mode, d, length, n)
				}
				if a.Outcome.Err != nil {
					t.Error(a.Outcome.Err)
				}
				e.end()
			}
		}
	}
}

// A window whose keys are used up is replaced after about 255 grants. That allocates three objects: the window, the history of its
// index, and the twin's window; and the tables that keep all windows there ever were grow, by less than two allocations for
// each. The errand that fetches the window allocates nothing.
//
// proves L-6, R-12
func TestReplacingAUsedUpWindowAllocatesTheNewOneOnly(t *testing.T) {
	const grants, windows = 256, 25
	e, a, run := steadyEnds(t, lanes.Read, 64, Polling)
	parked := func() (n int64) {
		for _, d := range e.to.transport.devices {
			n += d.Domain.Counts().Parked
		}
		return n
	}
	replace := func() {
		for range grants {
			run()
		}
	}
	for range 6 {
		replace()
	}
	before := parked()
	n := testing.AllocsPerRun(windows-1, replace) // and once before it counts
	if replaced := parked() - before; replaced < windows || replaced > windows+1 {
		t.Errorf("%d windows were replaced in %d grants, want %d or one more", replaced, windows*grants, windows)
	}
	if n > 4 {
		t.Errorf("%v allocations for each window, want 3 and what tables grow", n)
	}
	if a.Outcome.Err != nil {
		t.Error(a.Outcome.Err)
	}
	e.end()
}

// BenchmarkRead counts what one small READ costs both lanes over the twins.
func BenchmarkRead(b *testing.B) { steady(b, lanes.Read) }

// BenchmarkWrite counts what one small WRITE costs both lanes over the twins.
func BenchmarkWrite(b *testing.B) { steady(b, lanes.Write) }

func steady(b *testing.B, d lanes.Direction) {
	e, _, run := steadyEnds(b, d, 64, Polling)
	b.ReportAllocs()
	for b.Loop() {
		run()
	}
	e.end()
}
