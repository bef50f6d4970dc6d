package hptcp

import (
	"testing"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// Steady transfers allocate nothing: neither the requester's lane nor the source's, nor anything between them (the
// twin included, so the count is exact). Pages neither.
//
// proves L-6, H-8
func TestSteadyStateAllocatesNothing(t *testing.T) {
	mappings(t)
	for _, checksums := range []bool{false, true} {
		for mode := range 8 {
			r := newRig(t, 1, simkernel.WorldOptions{})
			source, requester, peer := r.pair(setup{}, setup{config: Config{Checksums: checksums}})
			const length = 1 << 20
			remote, local := source.register(length, netproto.ReadWrite, 1), requester.register(length, netproto.LocalOnly, 2)
			a := requester.ask(lanes.Read, local, remote.ID())
			if mode&1 != 0 {
				a.Direction = lanes.Write
			}
			a.Atomic, a.Deadline = mode&4 != 0, reactor.Forever
			if mode&2 != 0 {
				for i := range uint64(128) {
					a.Spans = append(a.Spans, Span{i * 8192, (i * 37 % 128) * 8192, 4096})
				}
				a.Length, a.Set = total(a.Spans), setOf(t, local.Registration, a.Spans)
			} else {
				a.Length = []uint64{64, length}[mode>>2]
			}
			ended := false
			a.Done = func(t *Transfer) { t.Local.Return(); ended = true }
			done := func() bool { return ended }
			run := func() {
				ended = false
				a.start(peer)
				r.until("a steady transfer", done)
			}
			for range 20 {
				run()
			}
			if n := testing.AllocsPerRun(50, run); n != 0 {
				t.Errorf("mode %d, checksums %v: %v allocations", mode, checksums, n)
			}
			if a.Outcome.Err != nil {
				t.Error(a.Outcome.Err)
			}
			r.finish()
		}
	}
}
