package hptcp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// gatherer hands accepted streams to a service only when two are there: as where the listener is on another lane.
type gatherer struct {
	*Service
	held []func() error
}

func (g *gatherer) Adopt(d reactor.Descriptor, peer netip.AddrPort) (err error) {
	g.held = append(g.held, func() error { return g.Service.Adopt(d, peer) })
	for len(g.held) > 1 && err == nil {
		for _, adopt := range g.held {
			err = adopt()
		}
		g.held = nil
	}
	return err
}

// Two new streams come in one turn where all places are taken by idle ones: each takes the place of another one, and neither
// waits for a place that the other one gets.
//
// proves T-6
// field case F-29
func TestStreamsThatComeTogetherTakeThePlacesOfDifferentOnes(t *testing.T) {
	mappings(t)
	r := newRig(t, 7, simkernel.WorldOptions{})
	source := r.node(sourceHost, setup{epoch: sourceEpoch, sessions: 2})
	d, address, err := source.lane.Kernel().Listen(netip.AddrPortFrom(sourceHost, 0), reactor.SocketOptions{})
	must(t, err)
	listener := control.NewListener(source.lane, d, []*gatherer{{Service: source.service}})
	listener.Start()
	old := []*wire{r.greet(source), r.greet(source)}
	fresh := []*wire{r.dial(address), r.dial(address)}
	began := r.world.Now()
	for i, w := range fresh {
		h := helloTo(source)
		h.Stream, h.Requester = uint16(i), staleEpoch // the old ones are another requester's
		must(t, w.send(netproto.AppendHPTCPHello(nil, h)))
		b, err := w.receive(netproto.HPTCPHelloSize)
		must(t, err)
		if welcome, err := netproto.DecodeHPTCPWelcome(h, b); err != nil || welcome.Status != netproto.StatusSuccess {
			t.Errorf("stream %d: %+v, %v", i, welcome, err)
		}
	}
	if waited := time.Duration(r.world.Now() - began); waited > time.Second {
		t.Errorf("the answers to both hellos took %v", waited)
	}
	for _, w := range old {
		w.ends()
	}
	listener.Close(func() {})
	r.finish()
}
