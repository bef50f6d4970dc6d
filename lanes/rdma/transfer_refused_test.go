package rdma

import (
	"testing"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// A source that does not acknowledge has ended its grants, and perhaps its end of the connection: the transfer fails with
// what is known, and nobody else is given that connection.
//
// proves
func TestARefusedReceiptFailsTheTransferAndRetiresItsConnection(t *testing.T) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		e := newEnds(t, simverbs.Hardware, endsOptions{siteOptions{devices: single(0)}, siteOptions{devices: single(0)}})
		remote, local := e.to.memory(100<<10, netproto.ReadWrite, 1), e.from.memory(100<<10, netproto.LocalOnly, 2)
		server := e.to.lanes[0].server
		server.Handle(netproto.OperationRDMADone, serviceFunc(func(s *control.Session, _ netproto.Request) { s.Refuse(netproto.StatusNativeError) }))
		o := e.run(e.transfer(d, local, remote, 0))
		want := lanes.Outcome{Err: o.Err, Local: lanes.EffectPartial, Drained: true}
		if d == lanes.Write {
			want.Local, want.Remote = lanes.EffectNone, lanes.EffectUnknown
		}
		if f := faultIn(t, o); f.Status != netproto.StatusNativeError || o != want {
			t.Errorf("%+v, want %+v", o, want)
		}
		server.Handle(netproto.OperationRDMADone, parentService{e.to.services[0], false})
		e.idle() // its own deadline ends the parent
		complete(t, e.run(e.transfer(d, local, remote, 0)), d, 100<<10)
		equal(t, "connections", e.from.transport.Stats().Built, 2)
		equal(t, "cache misses", e.from.transport.GrantStats().Misses, 0)
		e.end()
	}
}
