package tcp

import (
	"testing"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// Steady READs and WRITEs allocate nothing: neither the requester's lane nor the source's, nor anything
// between them (the twin included, so the count is exact).
//
// proves L-6
func TestSteadyStateAllocatesNothing(t *testing.T) {
	mappings(t)
	for _, direct := range []bool{false, true} {
		for _, direction := range []lanes.Direction{lanes.Read, lanes.Write} {
			for i, length := range []uint64{0, 64, 100_000, 100_000} {
				r := newRig(t, 1, simkernel.WorldOptions{Buffer: []int{0, 0, 0, 4096}[i]}) // the last payload goes in many pieces
				source, requester := r.node(sourceHost, setup{direct: direct}), r.node(requesterHost, setup{direct: direct})
				remote, local := source.register(100_000, netproto.ReadWrite, 1), requester.register(100_000, netproto.LocalOnly, 2)
				c := requester.channel(source.address)
				a := requester.ask(direction, local, remote.ID())
				a.Length, a.Deadline = length, reactor.Forever
				ended := false
				a.Done = func(t *Transfer) { t.Local.Return(); ended = true }
				done := func() bool { return ended }
				run := func() {
					ended = false
					a.start(c)
					r.until("a steady transfer", done)
				}
				for range 50 {
					run()
				}
				if n := testing.AllocsPerRun(200, run); n != 0 {
					t.Errorf("%v of %d bytes, direct %v: %v allocations", direction, length, direct, n)
				}
				if a.Outcome.Err != nil {
					t.Error(a.Outcome.Err)
				}
				r.finish()
			}
		}
	}
}

// BenchmarkRead counts what one small READ costs both lanes over the twin.
func BenchmarkRead(b *testing.B) { steady(b, lanes.Read) }

// BenchmarkWrite counts what one small WRITE costs both lanes over the twin.
func BenchmarkWrite(b *testing.B) { steady(b, lanes.Write) }

func steady(b *testing.B, direction lanes.Direction) {
	r := newRig(b, 1, simkernel.WorldOptions{})
	source, requester := r.node(sourceHost, setup{}), r.node(requesterHost, setup{})
	remote, local := source.register(64, netproto.ReadWrite, 1), requester.register(64, netproto.LocalOnly, 2)
	c := requester.channel(source.address)
	a := requester.ask(direction, local, remote.ID())
	a.Deadline = reactor.Forever
	ended := false
	a.Done = func(t *Transfer) { t.Local.Return(); ended = true }
	done := func() bool { return ended }
	b.ReportAllocs()
	for b.Loop() {
		ended = false
		a.start(c)
		r.until("a steady transfer", done)
	}
	r.finish()
}
