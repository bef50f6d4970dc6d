package orbitte

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/orbitte/orbitte/lanes/hptcp"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// Each name that a source is open under is a way of its own, which no other has at the same time however many peers come and
// go; more than there are numbers for are refused, and leave nothing.
//
// proves H-2, U-3
func TestNamesOfOneSourceAreWaysOfTheirOwn(t *testing.T) {
	s := newSim(t, 1, simkernel.WorldOptions{})
	source, _ := s.engine("source", hostA, fast(Config{}))
	other, _ := s.engine("other", hostA, fast(Config{}))
	requester, _ := s.engine("requester", hostB, fast(Config{Resolver: func(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{hostA}, nil }}))
	_, port, err := net.SplitHostPort(source.Endpoint())
	must(t, err)
	open := func(name string) *Segment {
		x, err := requester.OpenSegment(soon(t), name+":"+port, source.Epoch())
		must(t, err)
		return x
	}
	first, second := open("a"), open("b")
	lone, err := requester.OpenSegment(soon(t), other.Endpoint(), other.Epoch())
	must(t, err)
	if first.peer.way != 0 || second.peer.way != 1 || lone.peer.way != 0 {
		t.Errorf("ways %d %d, and %d of another source", first.peer.way, second.peer.way, lone.peer.way)
	}
	must(t, requester.CloseSegment(soon(t), first))
	if third := open("c"); third.peer.way != 0 {
		t.Errorf("way %d, the first one is free", third.peer.way)
	} else {
		must(t, requester.CloseSegment(soon(t), third))
	}
	requester.mu.Lock()
	list := requester.ways[source.Epoch()]
	for len(list) < hptcp.WaysMax {
		list = append(list, second.peer)
	}
	list[0] = second.peer
	requester.ways[source.Epoch()] = list
	requester.mu.Unlock()
	_, err = requester.OpenSegment(soon(t), "d:"+port, source.Epoch())
	wants(t, err, ErrExhausted)
	requester.mu.Lock()
	requester.ways[source.Epoch()] = []*peer{nil, second.peer}
	requester.mu.Unlock()
	for _, x := range []*Segment{second, lone} {
		must(t, requester.CloseSegment(soon(t), x))
	}
	if len(requester.ways) != 0 || len(requester.peers) != 0 {
		t.Errorf("left are %v, %v", requester.ways, requester.peers)
	}
}
