package hptcp

import (
	"bytes"
	"testing"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// READ and WRITE end to end, empty, small and large ones, with chopped calls, Atomic or not.
//
// proves H-5, G-7
func TestReadAndWriteMoveExactlyTheRange(t *testing.T) {
	for _, checksums := range []bool{false, true} {
		mappings(t)
		r := newRig(t, 2, simkernel.WorldOptions{ChopReceive: 70_000, ChopSend: 70_000})
		source, requester, peer := r.pair(setup{}, setup{config: Config{Checksums: checksums}})
		const length = 3 << 20
		remote, local := source.register(length, netproto.ReadWrite, 1), requester.register(length, netproto.LocalOnly, 2)
		for _, part := range []struct{ local, remote, length uint64 }{
			{0, 0, 0}, {length, length, 0}, {1, 2, 1}, {0, 0, 65535}, {4095, 0, 65536}, {17, 5, 65537}, {0, 0, length},
		} {
			for mode := range 4 {
				direction, atomic := lanes.Read, mode&2 != 0
				if mode&1 != 0 {
					direction = lanes.Write
				}
				copy(remote.bytes(), pattern(length, 1))
				copy(local.bytes(), pattern(length, 2))
				want := [2][]byte{pattern(length, 2), pattern(length, 1)}
				a := requester.ask(direction, local, remote.ID())
				a.LocalOffset, a.Offset, a.Length, a.Atomic = part.local, part.remote, part.length, atomic
				o := r.wait(a.start(peer))
				expected := lanes.Outcome{Bytes: part.length, Local: lanes.EffectComplete, Drained: true}
				if direction == lanes.Read {
					copy(want[0][part.local:], want[1][part.remote:][:part.length])
				} else {
					copy(want[1][part.remote:], want[0][part.local:][:part.length])
					expected.Local, expected.Remote = lanes.EffectNone, lanes.EffectComplete
				}
				if o != expected {
					t.Errorf("%v %+v atomic %v: %+v", direction, part, atomic, o)
				}
				if !bytes.Equal(local.bytes(), want[0]) || !bytes.Equal(remote.bytes(), want[1]) {
					t.Errorf("%v %+v atomic %v: wrong bytes", direction, part, atomic)
				}
			}
		}
		r.finish()
	}
}

// An Atomic WRITE is one request: what does not fit into it is refused before anything is sent.
//
// proves H-5, H-8
func TestAnAtomicWriteOfTooManyRangesIsRefusedAtOnce(t *testing.T) {
	mappings(t)
	r := newRig(t, 1, simkernel.WorldOptions{})
	source, requester, peer := r.pair(setup{}, setup{})
	remote, local := source.register(1<<20, netproto.ReadWrite, 1), requester.register(1<<20, netproto.LocalOnly, 2)
	for n, fits := range map[uint64]bool{spansMax: true, spansMax + 1: false} {
		a := requester.ask(lanes.Write, local, remote.ID())
		a.Spans, a.Atomic = Strides(nil, 0, 700, 0, 700, 8, n), true
		a.Length = total(a.Spans)
		o := r.wait(a.start(peer))
		if fits && o.Err != nil || !fits && fault(t, o).Cause != lanes.Exhausted {
			t.Errorf("%d ranges: %+v", n, o)
		}
	}
	r.finish()
}
