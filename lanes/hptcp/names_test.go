package hptcp

import (
	"testing"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// A requester that has one source for two peers, as under two names, has streams of both at a time: those of one are no old
// ones of the other, which the source would end in the middle of what they carry.
//
// proves T-3, H-2
func TestOneSourceUnderTwoNamesKeepsTheStreamsOfBoth(t *testing.T) {
	mappings(t)
	r := newRig(t, 1, simkernel.WorldOptions{DelayMin: 1000, DelayMax: 50_000})
	source, requester, first := r.pair(setup{}, setup{config: Config{ChunkBytes: 4096}})
	second := requester.peer(source)
	const length = 200_000
	remote := source.register(length, netproto.RemoteRead, 1)
	var attempts []*attempt
	for i := range 8 {
		for _, p := range []*Peer{first, second} {
			local := requester.register([]uint64{100, length}[i&1], netproto.LocalOnly, 2)
			attempts = append(attempts, requester.ask(lanes.Read, local, remote.ID()).start(p))
		}
	}
	for _, a := range attempts {
		if o := r.wait(a); o.Err != nil {
			t.Error(o.Err)
		}
	}
	r.finish()
}
