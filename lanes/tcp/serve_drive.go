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
	lane *lanes.Lane
	idle []*serving // for reuse
}

// NewService makes the service of a lane and installs it.
func NewService(server *control.Server) *Service {
	s := &Service{lane: server.Lane()}
	server.Handle(netproto.OperationTCPRead, s)
	server.Handle(netproto.OperationTCPWrite, s)
	return s
}

// serving is the handler of one admitted frame.
type serving struct {
	service      *Service
	session      *control.Session
	registration *segments.Registration // borrowed
	offset       uint64                 // in the registration
	write        bool
	machine      serveMachine
	staging      lanes.Buffer
	lease        segments.Lease
	retry        reactor.Timer
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
	registration, err := s.lane.Tracker.Admit(r.Region, r.Offset, r.Length, want)
	if err != nil {
		session.Refuse(refusalOf(err))
		return
	}
	h := s.take()
	h.session, h.registration, h.offset, h.write = session, registration, r.Offset, write
	h.machine = newServe(write, s.lane.Policy.Direct, r.Length)
	if !s.lane.Policy.Direct {
		staging, err := s.lane.Arena.Get(r.Length)
		if err != nil {
			h.release()
			session.Refuse(netproto.StatusExhausted)
			return
		}
		h.staging = staging
	}
	session.Take(h)
	h.step()
}

func (s *Service) take() *serving {
	if len(s.idle) == 0 {
		return &serving{service: s}
	}
	h := s.idle[len(s.idle)-1]
	s.idle = s.idle[:len(s.idle)-1]
	return h
}

// refusalOf is the status for what Tracker.Admit says.
func refusalOf(err error) netproto.Status {
	if refused, ok := err.(interface{ Status() netproto.Status }); ok {
		return refused.Status()
	}
	return netproto.StatusInternalError
}

// step carries out what the machine's stage asks for, until it waits for the socket.
func (h *serving) step() {
	for {
		switch h.machine.stage {
		case serveSnapshot, serveLease, serveCommit:
			if !h.touch() {
				h.service.lane.Counts.ConflictRetries.Add(1)
				h.service.lane.Arm(&h.retry, h.service.lane.Now().After(conflictRetry), h)
				return
			}
			h.machine.leased()
		case serveSending:
			h.session.Send(h.session.Header(netproto.StatusSuccess, h.machine.length), h.payload())
			return
		case serveReadying:
			h.session.Send(h.session.Header(netproto.StatusReady, 0), nil)
			return
		case serveReceiving:
			h.session.Receive(h.payload(), nil, int(h.machine.length))
			return
		case serveAcking:
			h.settle()
			h.session.Send(h.session.Header(netproto.StatusSuccess, 0), nil)
			return
		case serveDone:
			h.finish()
			return
		}
	}
}

// touch leases the range and, with owned buffers, copies out of it or into it in one step. False
// while another access conflicts; the source's deadline bounds the waiting.
func (h *serving) touch() bool {
	if h.lease.Held() { // direct: the payload is in place already
		return true
	}
	access := segments.Shared
	if h.write {
		access = segments.Exclusive
	}
	lease, err := h.registration.Lease(h.offset, h.machine.length, access)
	if err != nil {
		return false
	}
	switch {
	case !h.staging.Held():
		h.lease = lease
		return true
	case h.write:
		copy(lease.Bytes(), h.staging.Bytes(h.machine.length))
	default:
		copy(h.staging.Bytes(h.machine.length), lease.Bytes())
	}
	lease.Return()
	return true
}

func (h *serving) payload() []byte {
	if h.lease.Held() {
		return h.lease.Bytes()
	}
	return h.staging.Bytes(h.machine.length)
}

// settle ends a direct WRITE's lease before the receipt goes out: the requester may count on it.
func (h *serving) settle() {
	if h.lease.Held() {
		h.lease.Return()
	}
}

// Expire looks again for a conflicting lease (reactor.TimerHandler).
func (h *serving) Expire(*reactor.Timer, reactor.Instant) { h.step() }

// Sent (control.Handler).
func (h *serving) Sent(int) {
	h.machine.sent()
	h.step()
}

// Received (control.Handler).
func (h *serving) Received(int) {
	h.machine.received()
	h.step()
}

// Lost (control.Handler). An incomplete WRITE was not committed; with direct placement it may be
// there in part, which the requester reports.
func (h *serving) Lost(control.Loss) { h.release() }

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
	h.release()
	session.Finish()
}

// release gives everything back. Proof: Sent or Lost said that the kernel holds no buffer any more.
func (h *serving) release() {
	h.service.lane.Disarm(&h.retry)
	h.settle()
	if h.staging.Held() {
		h.service.lane.Arena.Put(&h.staging)
	}
	h.registration.Return()
	h.session, h.registration = nil, nil
	h.service.idle = append(h.service.idle, h)
}
