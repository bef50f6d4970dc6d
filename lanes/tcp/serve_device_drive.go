package tcp

import (
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/staging"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

// serveDevice is what a handler has for a range in device memory. As long as nothing was said to the requester, a copy
// that fails is answered with a status; later it breaks the stream.
type serveDevice struct {
	device
	received uint64
	said     bool            // true exactly when the reply's header, or Ready, was given to the socket
	refusing netproto.Status // the answer once the flow has ended, while over
	inside   bool            // true exactly while counted by the source's gate: a flow may outlive its session
}

func (d *serveDevice) reset(r *segments.Registration, length uint64) {
	d.device.reset(r, length)
	d.received, d.said = 0, false
}

// admitted checks that the lane can stage; otherwise the frame is refused.
func (h *serving) admitted() bool {
	session, d := h.session, &h.device
	if fault := staging.Of(h.service.lane).Ready(d.memory, staging.Source); fault != nil {
		h.release()
		session.Refuse(statusOf(fault))
		return false
	}
	if d.inside = h.service.server.Enter(); !d.inside {
		h.release()
		session.Refuse(netproto.StatusSourceClosed)
		return false
	}
	return true
}

// statusOf is what the requester is told of a fault of staging.
func statusOf(fault *lanes.Fault) netproto.Status {
	switch fault.Cause {
	case lanes.Exhausted:
		return netproto.StatusExhausted
	case lanes.Closed:
		return netproto.StatusSourceClosed
	}
	return netproto.StatusInternalError
}

// running begins the flow if it has not begun; false: it cannot go on, and the frame ends.
func (h *serving) running(way staging.Way) bool {
	f := &h.device.flow
	fault := f.Fault()
	if !f.Active() {
		fault = f.Start(staging.Of(h.service.lane), h, staging.Plan{
			Role: staging.Source, Way: way, Memory: h.device.memory,
			Address: h.registration.Address() + h.offset, Length: h.machine.length, Deadline: reactor.Forever,
		})
	}
	if fault != nil {
		h.broken(fault)
	}
	return fault == nil
}

// broken ends a frame whose flow cannot go on.
func (h *serving) broken(fault *lanes.Fault) {
	d := &h.device
	if d.said {
		h.session.Break(fault) // Lost follows
		return
	}
	d.over, d.refusing = true, statusOf(fault)
	if !d.flow.Active() {
		h.refuse()
		return
	}
	d.flow.End() // Ended follows
}

// refuse answers with a status; nothing is under way.
func (h *serving) refuse() {
	session, status := h.session, h.device.refusing
	h.release()
	if session != nil {
		session.Refuse(status)
	}
}

// push sends the next piece, the first one behind the header (READ).
func (h *serving) push() {
	d := &h.device
	if !h.running(staging.Out) || d.wire {
		return
	}
	piece := d.flow.Piece()
	switch {
	case piece == nil:
	case d.said:
		d.wire = true
		h.session.Send(piece, nil)
	default:
		d.wire, d.said = true, true
		h.session.Send(h.session.Header(netproto.StatusSuccess, h.machine.length), piece)
	}
}

// pushed: the socket is through with a piece; true when it was the last one.
func (h *serving) pushed() bool {
	d := &h.device
	d.wire = false
	d.flow.Release()
	if !d.flow.Whole() {
		h.push()
		return false
	}
	d.flow.End() // nothing is under way
	return true
}

// roomy is true once there is room for the payload's front: only then the requester hears Ready, so that what it holds
// of its own never waits for chunks here (WRITE).
func (h *serving) roomy() bool {
	if h.device.said || !h.running(staging.In) || h.device.flow.Room() == nil {
		return false
	}
	h.device.said = true
	return true
}

// pull receives into the next room (WRITE).
func (h *serving) pull() {
	d := &h.device
	if !h.running(staging.In) || d.wire {
		return
	}
	if room := d.flow.Room(); room != nil {
		d.wire = true
		h.session.Receive(room, nil, len(room))
	}
}

// pulled gives what was received to the device; true when it was the last of it.
func (h *serving) pulled(n int) bool {
	d := &h.device
	d.wire = false
	d.received += uint64(n)
	d.flow.Filled()
	if d.received < h.machine.length {
		h.pull()
		return false
	}
	return true
}

// landed is true exactly when no copy of the payload is still to be confirmed before the commit.
func (h *serving) landed() bool {
	d := &h.device
	if !d.on || h.machine.stage != serveCommit {
		return true
	}
	if !h.running(staging.In) || !d.flow.Whole() {
		return false
	}
	d.flow.End() // nothing is under way
	return true
}

// lost: the stream is gone. The flow ends by itself; what it holds stays until then.
func (h *serving) lost() {
	d := &h.device
	h.session = nil
	switch {
	case d.over: // its flow is ending already
	case d.flow.Active():
		d.over = true
		d.flow.End() // Ended follows
	default:
		h.release()
	}
}

// Advanced looks again (staging.User).
func (h *serving) Advanced(*staging.Flow) { h.step() }

// Ended goes on, or ends the frame (staging.User).
func (h *serving) Ended(f *staging.Flow, proven bool) {
	if !proven {
		lease, registration := h.lease, h.registration
		f.KeepUntil(func() {
			lease.Return()
			registration.Return()
		})
		h.lease, h.registration = segments.Lease{}, nil
	}
	if h.device.over {
		h.refuse()
	}
}
