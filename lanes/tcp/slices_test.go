package tcp

import (
	"testing"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
)

// largeBytes takes several slices to copy.
const largeBytes = 3*lanes.SliceBytes + 5

// halfChanged is true exactly when a range that had one pattern has the other one at its start only.
func (m *memory) halfChanged(from, to byte) bool {
	last := m.Length() - 1
	return m.bytes()[0] == to<<6 && m.bytes()[last] != byte(last*7+last>>8)&0x3f|to<<6 && from != to
}

// A commit of several slices, at the requester and at the source, is never seen by others, and is
// completed whatever comes: cancellation, the source's deadline, the end of the stream.
//
// proves T-1, M-9
func TestCommitUnderWayIsCompleted(t *testing.T) {
	mappings(t)
	for _, end := range []string{"cancelled", "late", "reset"} {
		r := newRig(t, 1, simkernel.WorldOptions{Buffer: 8 << 20})
		source, requester := r.node(sourceHost, setup{}), r.node(requesterHost, setup{})
		remote, local := source.register(largeBytes, netproto.ReadWrite, 1), requester.register(largeBytes, netproto.LocalOnly, 2)
		c := requester.channel(source.address)
		harm := func(a *attempt) {
			switch end {
			case "cancelled":
				a.Cancel()
			case "late":
				r.world.Advance(2 * source.policy.SourceTimeout)
			case "reset":
				for _, k := range r.world.Connections() {
					k.Reset()
				}
			}
		}
		write := requester.ask(lanes.Write, local, remote.ID()).start(c)
		r.until("half a commit", func() bool { return remote.halfChanged(1, 2) })
		for _, at := range []uint64{0, largeBytes - 1} {
			if lease, err := remote.Lease(at, 1, segments.Shared); err == nil {
				t.Errorf("%s: a half committed range can be read at %d", end, at)
				lease.Return()
			}
		}
		harm(write)
		if o := r.wait(write); o.Err != nil && o.Remote != lanes.EffectUnknown {
			t.Errorf("%s: %+v", end, o)
		}
		r.until("the source's rest", func() bool { return remote.Loans() == 0 })
		if !remote.holds(2) {
			t.Errorf("%s: the remote range is a mixture", end)
		}

		copy(remote.bytes(), pattern(largeBytes, 1))
		read := requester.ask(lanes.Read, local, remote.ID()).start(c)
		r.until("half a commit", func() bool { return local.halfChanged(2, 1) })
		for _, at := range []uint64{0, largeBytes - 1} {
			if lease, err := local.Lease(at, 1, segments.Shared); err == nil {
				t.Errorf("%s: a half committed range can be read at %d", end, at)
				lease.Return()
			}
		}
		harm(read)
		if o := r.wait(read); o.Err != nil || o.Local != lanes.EffectComplete || !local.holds(1) {
			t.Errorf("%s: %+v", end, o)
		}
		r.finish()
	}
}

// While a large payload is copied, slice by slice, another peer's small request has its turns.
//
// proves L-2
// field case F-45
func TestLargeCopyLetsOthersHaveTheirTurn(t *testing.T) {
	mappings(t)
	const huge = 12 * lanes.SliceBytes
	// Packets take no time, as the copies do not on the virtual clock: what counts is who has how many turns.
	r := newRig(t, 2, simkernel.WorldOptions{Buffer: huge + 1000, DelayMin: 1, DelayMax: 1})
	defer r.finish()
	source, requester, other := r.node(sourceHost, setup{payload: huge}), r.node(requesterHost, setup{}), r.node(scriptHost.Next(), setup{})
	remote, local := source.register(huge, netproto.ReadWrite, 1), requester.register(huge, netproto.LocalOnly, 2)
	small, mine := source.register(8, netproto.ReadWrite, 1), other.register(8, netproto.LocalOnly, 2)
	c := other.channel(source.address)
	if o := r.wait(other.ask(lanes.Read, mine, small.ID()).start(c)); o.Err != nil {
		t.Fatal(o.Err)
	}
	large := requester.ask(lanes.Write, local, remote.ID()).start(requester.channel(source.address))
	r.until("half a commit", func() bool { return remote.halfChanged(1, 2) })
	quick := other.ask(lanes.Read, mine, small.ID()).start(c)
	for quick.done == 0 && large.done == 0 {
		r.world.Step()
	}
	if quick.done == 0 {
		t.Error("the small request waited for the large one")
	}
	r.wait(quick)
	if o := r.wait(large); o.Err != nil {
		t.Error(o.Err)
	}
}

// A small WRITE's input is copied while its request travels. From then on it is its owner's again.
//
// proves T-1, M-9
func TestSmallInputIsCopiedWhileItsRequestTravels(t *testing.T) {
	mappings(t)
	r := newRig(t, 3, simkernel.WorldOptions{})
	defer r.finish()
	requester := r.node(requesterHost, setup{})
	local := requester.register(lentBytes-1, netproto.LocalOnly, 2)
	p := r.listen()
	a := requester.ask(lanes.Write, local, 1).start(requester.channel(p.address))
	r.until("the copy's end", func() bool { return a.staged })
	if !local.free() {
		t.Error("the input is leased after its copy")
	}
	local.overwrite(t, 3)
	w := p.accept()
	if got := w.take(); string(got) != string(pattern(lentBytes-1, 2)) {
		t.Error("the payload is not the input as it was")
	}
	if o := r.wait(a); o.Err != nil {
		t.Error(o.Err)
	}
}
