package control

import (
	"testing"

	"github.com/orbitte/orbitte/netproto"
)

// Frames on this lane found handlers and queue full of another lane's frames. When several places become
// free at once, each goes to a frame here, which then waits for its handler beyond the grace.
// proves T-6
func TestEveryFreedPlaceIsGivenOut(t *testing.T) {
	r := newRig(t, 31)
	n := r.node(nodeHost, 4)
	handlers, err := n.admission.Handlers.Take(4)
	must(t, err)
	places, err := n.admission.Queue.Take(4)
	must(t, err)
	var waiting []*wire
	for range 3 {
		w := r.dial(n.address)
		must(t, w.send(netproto.AppendRequest(nil, netproto.Request{Operation: netproto.OperationDescribe, Epoch: epoch})))
		waiting = append(waiting, w)
	}
	r.until("frames that wait", func() bool { return n.server.queue.n == 3 })
	places.Repay()
	n.admission.released()
	r.pass(3 * overflowGrace)
	if used := n.admission.Queue.Used(); n.server.queue.n != 3 || used != 3 {
		t.Errorf("%d frames wait in %d places; each should have its own", n.server.queue.n, used)
	}
	handlers.Repay()
	n.admission.released()
	for _, w := range waiting {
		if p := w.reply(); p.Status != netproto.StatusSuccess {
			t.Errorf("%+v", p)
		}
	}
	r.finish()
}
