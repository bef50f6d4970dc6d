package hptcp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// twoAddresses makes the peer of a source that is reachable at the second of its addresses only.
func (r *rig) twoAddresses(source, requester *node, first netip.AddrPort) *Peer {
	p := requester.peer(source)
	p.addresses = []netip.AddrPort{first, source.address}
	return p
}

// A source's first address refuses connections. The streams for small and large requests find that out at the same time, and
// each goes on to the second address.
//
// proves T-8, H-4
func TestEachStreamTriesEachAddress(t *testing.T) {
	mappings(t)
	r := newRig(t, 1, simkernel.WorldOptions{DelayMin: 1000, DelayMax: 1000})
	source, requester := r.node(sourceHost, setup{epoch: sourceEpoch}), r.node(requesterHost, setup{config: Config{CPUs: 4}})
	p := r.twoAddresses(source, requester, netip.AddrPortFrom(sourceHost, 9))
	remote := source.register(1<<20, netproto.RemoteRead, 1)
	small, large := requester.register(100, netproto.LocalOnly, 2), requester.register(1<<20, netproto.LocalOnly, 2)
	a, b := requester.ask(lanes.Read, small, remote.ID()).start(p), requester.ask(lanes.Read, large, remote.ID()).start(p)
	for _, x := range []*attempt{a, b} {
		if o := r.wait(x); o.Err != nil {
			t.Errorf("%d bytes: %v", x.Length, o.Err)
		}
	}
	r.finish()
}

// An address that does not answer at all is asked anew after lanes.ConnectPatience, at the next address if there is one: requests that
// wait find the one that answers long before the system would ask again. Without anybody waiting nothing is asked.
//
// proves T-8, T-9
func TestASilentAddressIsNotWaitedForAlone(t *testing.T) {
	for name, two := range map[string]bool{"answers again": false, "another one": true} {
		t.Run(name, func(t *testing.T) {
			mappings(t)
			r := newRig(t, 1, simkernel.WorldOptions{DelayMin: 1000, DelayMax: 1000})
			source, requester := r.node(sourceHost, setup{epoch: sourceEpoch}), r.node(requesterHost, setup{})
			p := requester.peer(source)
			if two {
				silent := r.node(otherHost, setup{})
				silent.process.HangConnects(100)
				p = r.twoAddresses(source, requester, silent.address)
			} else {
				source.process.HangConnects(5) // of one connect they would last for 31 seconds
			}
			remote, local := source.register(100, netproto.RemoteRead, 1), requester.register(100, netproto.LocalOnly, 2)
			began := r.world.Now()
			a := requester.ask(lanes.Read, local, remote.ID())
			a.Deadline = began.After(20 * time.Second)
			if o := r.wait(a.start(p)); o.Err != nil {
				t.Error(o.Err)
			}
			if took := time.Duration(r.world.Now() - began); took > 2*lanes.ConnectPatience {
				t.Errorf("took %v", took)
			}
			if n := p.Streams(); n != 1 {
				t.Errorf("%d streams", n)
			}
			r.finish()
		})
	}
}

// A connect that takes too long ends when nobody waits for it, and gives its place back.
//
// proves U-1
func TestASilentConnectThatNobodyWaitsForEnds(t *testing.T) {
	mappings(t)
	r := newRig(t, 1, simkernel.WorldOptions{})
	source, requester, p := r.pair(setup{}, setup{})
	source.process.HangConnects(100)
	remote, local := source.register(100, netproto.RemoteRead, 1), requester.register(100, netproto.LocalOnly, 2)
	a := requester.ask(lanes.Read, local, remote.ID())
	a.Deadline = r.world.Now().After(time.Second)
	if f := fault(t, r.wait(a.start(p))); f.Cause != lanes.Deadline {
		t.Errorf("%+v", f)
	}
	if p.Streams() != 1 {
		t.Error("the connect was not left a while, for those who come")
	}
	r.pass(lanes.ConnectPatience)
	if n := p.Streams(); n != 0 || requester.config.Streams.Used() != 0 {
		t.Errorf("%d streams, %d places", n, requester.config.Streams.Used())
	}
	r.finish()
}
