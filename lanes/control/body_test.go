package control

import (
	"testing"

	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// echo answers with the length of the body it was given, and keeps a copy.
type echo struct {
	got     []byte
	session *Session
}

func (e *echo) Serve(s *Session, _ netproto.Request) {
	e.got, e.session = append([]byte(nil), s.Body()...), s
	s.Take(e)
	s.Send(s.Header(netproto.StatusSuccess, 0), nil)
}
func (e *echo) Sent(int)     { e.session.Finish() }
func (e *echo) Received(int) {}
func (e *echo) Lost(Loss)    {}

func grantFrame(slices int) (netproto.Request, []byte) {
	r := netproto.Request{Operation: netproto.OperationRDMAReadSliced, Epoch: epoch, Region: 1, Offset: 7, Length: uint64(slices) * 10}
	g := netproto.GrantRequest{Profile: netproto.ProfileWindow, Requester: otherEpoch, Generation: 1,
		Connections: []netproto.GrantConnection{{Requester: netproto.Incarnation{1}, Source: netproto.Incarnation{2}}}}
	for i := range slices {
		g.Slices = append(g.Slices, netproto.GrantSlice{Offset: 7 + uint64(i)*10, Length: 10})
	}
	return r, netproto.AppendGrantRequest(nil, &g)
}

// A body is whole when its service sees it, in whatever pieces it comes, and the next frame is understood
// whether the service took it or the source refused it.
//
// proves W-14, R-14
// field case F-31
func TestBodyBehindARequestIsReadWholeAlsoWhenRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		epoch  netproto.Epoch
		served bool
		status netproto.Status
	}{
		{"served", epoch, true, netproto.StatusSuccess},
		{"no such service", epoch, false, netproto.StatusBackendUnavailable},
		{"stale", otherEpoch, true, netproto.StatusEpochMismatch},
		{"closed", epoch, true, netproto.StatusSourceClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, slices := range []int{1, 2, netproto.SlicesMax} {
				r := rigWith(t, uint64(slices), simkernel.WorldOptions{ChopReceive: 23})
				n := r.node(nodeHost, 4)
				service := &echo{}
				if c.served {
					n.server.Handle(netproto.OperationRDMAReadSliced, service)
				}
				if c.status == netproto.StatusSourceClosed {
					n.server.admission.Fence()
				}
				request, body := grantFrame(slices)
				request.Epoch = c.epoch
				w := r.dial(n.address)
				for round := range 3 {
					must(t, w.send(append(netproto.AppendRequest(nil, request), body...)))
					if p := w.reply(); p.Status != c.status || p.Epoch != epoch {
						t.Fatalf("%d slices, frame %d: %+v", slices, round, p)
					}
				}
				if want := c.status == netproto.StatusSuccess; want != (string(service.got) == string(body)) {
					t.Errorf("%d slices: the service saw %d bytes of %d", slices, len(service.got), len(body))
				}
				r.finish()
			}
		})
	}
}

// proves W-15, T-6
func TestBodyThatBreaksTheProtocolOrStopsEndsTheStream(t *testing.T) {
	request, body := grantFrame(2)
	for name, bytes := range map[string][]byte{
		"no slices":       append([]byte{0, 0}, body[2:]...),
		"too many slices": append([]byte{1, 0}, body[2:]...),
		"no connection":   append([]byte{0, 2, 0}, body[3:]...),
		"half a head":     body[:20],
		"half a body":     body[:netproto.GrantHeadSize+5],
		"nothing":         nil,
	} {
		r := newRig(t, 1)
		n := r.node(nodeHost, 4)
		service := &echo{}
		n.server.Handle(netproto.OperationRDMAReadSliced, service)
		w := r.dial(n.address)
		must(t, w.send(append(netproto.AppendRequest(nil, request), bytes...)))
		if len(bytes) == len(body) {
			if p := w.reply(); p.Status != netproto.StatusProtocolError {
				t.Errorf("%s: %+v", name, p)
			}
		}
		w.ends() // at once, or after the source's time for the frame
		if service.got != nil {
			t.Errorf("%s: the service saw a body", name)
		}
		r.finish()
	}
}

// proves T-6, U-1
func TestPeerThatVanishesInsideABodyLeavesNothing(t *testing.T) {
	request, body := grantFrame(netproto.SlicesMax)
	for cut := 0; cut < len(body); cut += 97 {
		r := newRig(t, uint64(cut))
		n := r.node(nodeHost, 4)
		w := r.dial(n.address)
		must(t, w.send(append(netproto.AppendRequest(nil, request), body[:cut]...)))
		w.close()
		r.until("the session's end", func() bool { return n.server.Sessions() == 0 })
		r.finish() // the arena has lent nothing, the handler's charge is back
	}
}
