package tcp

import (
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

// Service serves operations 1 and 2 on one lane.
type Service struct {
	// Slots answers for regions that are no registrations (netproto.SlotOf); nil: there are none.
	Slots  Slots
	server *control.Server
	lane   *lanes.Lane
	idle   []*serving // for reuse
}

// NewService makes the service of a lane and installs it.
func NewService(server *control.Server) *Service {
	s := &Service{server: server, lane: server.Lane()}
	server.Handle(netproto.OperationTCPRead, s)
	server.Handle(netproto.OperationTCPWrite, s)
	return s
}

// serving is the handler of one admitted frame.
type serving struct {
	service      *Service
	session      *control.Session       // nil once it is lost
	registration *segments.Registration // borrowed
	offset       uint64                 // in the registration
	write        bool
	machine      serveMachine
	staging      payloadBuffer
	lease        segments.Lease
	copied       int // bytes between range and staging, while the range is leased for it
	retry        reactor.Timer
	backoff      lanes.Backoff
	device       serveDevice // when the range is a device's
	slot         Slot        // nil: the range is a registration's
	whole        bool        // true exactly when the frame has succeeded
}

// Serve checks everything that the requester claims (SPEC T-11) and starts. The registration is
// borrowed here and returned when the frame has ended.
func (s *Service) Serve(session *control.Session, r netproto.Request) {
	write := r.Operation == netproto.OperationTCPWrite
	if r.Length > s.lane.Policy.PayloadBytesMax {
		session.Refuse(netproto.StatusExhausted)
		return
	}
	want := netproto.RemoteRead
	if write {
		want = netproto.RemoteWrite
	}
	registration, slot, err := s.admit(session, r, want)
	if err != nil {
		session.Refuse(netproto.StatusOf(err))
		return
	}
	h := s.take()
	h.session, h.registration, h.offset, h.write = session, registration, r.Offset, write
	h.slot, h.whole, h.backoff = slot, false, lanes.Backoff{}
	h.device.reset(registration, r.Length)
	direct := s.lane.Policy.Direct || h.device.on
	h.machine = newServe(write, direct, r.Length)
	if h.device.on && !h.admitted() {
		return
	}
	if !direct {
		if err := h.staging.take(&s.lane.Arena, r.Length, !write); err != nil {
			h.release()
			session.Refuse(netproto.StatusExhausted)
			return
		}
	}
	session.Take(h)
	if h.slot == nil || h.slot.Await(h) {
		h.step()
	}
}

func (s *Service) take() *serving {
	if len(s.idle) == 0 {
		return &serving{service: s}
	}
	h := s.idle[len(s.idle)-1]
	s.idle = s.idle[:len(s.idle)-1]
	return h
}

// step carries out what the machine's stage asks for, until it waits for the socket.
func (h *serving) step() {
	for {
		switch h.machine.stage {
		case serveSnapshot, serveLease, serveCommit:
			if !h.landed() || !h.touch() {
				return
			}
			h.machine.leased()
		case serveSending:
			if h.device.on {
				h.push()
				return
			}
			h.reply()
			return
		case serveKeeping:
			if !h.keep() {
				return
			}
			h.machine.leased()
			h.session.Instead(h.payload())
			return
		case serveReadying:
			if h.device.on && !h.roomy() {
				return
			}
			h.session.Send(h.session.Header(netproto.StatusReady, 0), nil)
			return
		case serveReceiving:
			if h.device.on {
				h.pull()
				return
			}
			h.session.Receive(h.payload(), nil, int(h.machine.length))
			return
		case serveAcking:
			h.settle()
			if !h.session.Receipt() {
				h.session.Send(h.session.Header(netproto.StatusSuccess, 0), nil)
				return
			}
			h.machine.sent()
		case serveDone:
			h.finish()
			return
		}
	}
}

// reply sends header and payload.
func (h *serving) reply() {
	header := h.session.Header(netproto.StatusSuccess, h.machine.length)
	if h.lends() {
		h.session.SendLent(header, h.payload(), h)
		return
	}
	if frame := h.staging.frame(h.machine.length); frame != nil {
		copy(frame, header)
		h.session.Send(frame, nil)
		return
	}
	h.session.Send(header, h.payload())
}

// lends is true exactly for a payload that goes from the leased range into the socket, as far as that takes it at once.
func (h *serving) lends() bool {
	return !h.write && h.staging.Held() && h.machine.length >= lentBytes
}

// Short copies what the socket did not take at once, under the lease under which it took the rest (control.Lender).
func (h *serving) Short(n int) {
	h.copied = n
	h.machine.short()
	h.step()
}

// keep goes on with that; false while slices are left.
func (h *serving) keep() bool {
	if h.copy(); uint64(h.copied) < h.machine.length {
		h.service.lane.Arm(&h.retry, nextTurn(h.service.lane), h)
		return false
	}
	h.lease.Return()
	return true
}

// touch leases the range and, with owned buffers, copies out of it or into it, slice by slice under one lease.
// False while another access conflicts, or slices are left; then the timer goes on, and the source's deadline
// bounds the waiting.
func (h *serving) touch() bool {
	lane := h.service.lane
	if !h.lease.Held() {
		access := segments.Shared
		if h.write {
			access = segments.Exclusive
		}
		lease, err := h.registration.Lease(h.offset, h.machine.length, access)
		if err != nil {
			lane.Counts.ConflictRetries.Add(1)
			lane.Arm(&h.retry, h.backoff.Next(lane.Now(), reactor.Forever), h)
			return false
		}
		h.lease, h.copied = lease, 0
	}
	if !h.staging.Held() || h.lends() { // direct: the lease is all, until settle
		return true
	}
	return h.keep()
}

// copy moves one slice between range and staging.
func (h *serving) copy() {
	staging, leased := h.staging.payload(h.machine.length), h.lease.Bytes()
	if h.write {
		h.copied = lanes.CommitSlice(leased, staging, h.copied)
		return
	}
	h.copied = lanes.CopySlice(staging, leased, h.copied)
}

// payload is where the payload goes to, or comes from.
func (h *serving) payload() []byte {
	if h.lease.Held() {
		return h.lease.Bytes()
	}
	return h.staging.payload(h.machine.length)
}

// settle ends a direct WRITE's lease before the receipt goes out: the requester may count on it.
func (h *serving) settle() {
	if h.lease.Held() {
		h.lease.Return()
	}
}

// Expire goes on with a copy, or looks again for a conflicting lease (reactor.TimerHandler).
func (h *serving) Expire(*reactor.Timer, reactor.Instant) { h.session.Resume(h) }

// Resume goes on (control.Resumer).
func (h *serving) Resume() { h.step() }

// Sent (control.Handler).
func (h *serving) Sent(int) {
	if h.device.wire && !h.pushed() {
		return
	}
	h.machine.sent()
	h.step()
}

// Received (control.Handler).
func (h *serving) Received(n int) {
	if h.device.on && !h.pulled(n) {
		return
	}
	h.machine.received()
	h.step()
}

// Lost (control.Handler). An incomplete WRITE was not committed; with direct placement it may be
// there in part, which the requester reports. A commit under way is completed at once: it is bounded, and the
// range must not stay half changed (SPEC T-1).
func (h *serving) Lost(control.Loss) {
	if h.device.on {
		h.lost()
		return
	}
	if h.machine.stage == serveCommit && h.staging.Held() && h.lease.Held() {
		for uint64(h.copied) < h.machine.length {
			h.copy()
		}
	}
	h.release()
}

func (h *serving) finish() {
	counts, length := &h.service.lane.Counts, h.machine.length
	if h.write {
		counts.WritesServed.Add(1)
		counts.BytesStored.Add(length)
	} else {
		counts.ReadsServed.Add(1)
		counts.BytesServed.Add(length)
	}
	session := h.session
	h.whole = true
	h.release()
	session.Finish()
}

// release gives everything back. Proof: Sent or Lost said that the kernel holds no buffer any more, and Ended that the
// device touches no memory any more.
func (h *serving) release() {
	h.service.lane.Disarm(&h.retry)
	h.settle()
	if h.staging.Held() {
		h.service.lane.Arena.Put(&h.staging.Buffer)
	}
	if h.registration != nil { // otherwise it is retained
		h.registration.Return()
	}
	if h.device.inside {
		h.device.inside = false
		h.service.server.Leave()
	}
	if h.slot != nil {
		h.slot.Leave(h.whole)
	}
	h.session, h.registration, h.slot = nil, nil, nil
	h.service.idle = append(h.service.idle, h)
}
