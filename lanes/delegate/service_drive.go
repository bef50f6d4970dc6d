package delegate

import (
	"sync/atomic"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/lanes/staging"
	"github.com/orbitte/orbitte/lanes/tcp"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

// Config is what all lanes of an engine agree on.
type Config struct {
	// Slots is charged one for each pinned slot, before it is pinned, until it is free again.
	Slots *budgets.Budget
	// PeerSlots is how many of them one stream may have at a time.
	PeerSlots int
}

// laneBits is the width of a lane's index in the numbers of its pins.
const laneBits = 6

// Service serves operations 68 to 70 on one lane, and answers for its slots (tcp.Slots, rdma.Slots).
type Service struct {
	server *control.Server
	lane   *lanes.Lane
	config Config
	pins   []*pin // that hold anything, in order of arrival
	idle   []*pin // for reuse
	line   line
	order  netproto.Delegate // being served
	last   uint64            // number of the newest pin, without the lane
	fenced bool
	closed reactor.Letter
	counts counts
}

// Stats is a reading of one lane's source side. Any goroutine.
type Stats struct {
	Pins, Slots int64  // live, and their slots; retained slots included
	Lost        int64  // of Slots: retained, since a copy is not proven to have ended
	Pinned      uint64 // ever: pins
	Delegated   uint64 // ever: copies that were begun
	Copied      uint64 // ever: of them, confirmed
	Failed      uint64 // ever: of them, failed
	Refused     uint64 // ever: pins, delegates and unpins that were refused
	Expired     uint64 // ever: pins that the source's deadline has ended
	Orphaned    uint64 // ever: pins that ended with their stream
}

type counts struct {
	pins, slots, lost                                             atomic.Int64
	pinned, delegated, copied, failed, refused, expired, orphaned atomic.Uint64
}

// Stats reads the counts.
func (s *Service) Stats() Stats {
	c := &s.counts
	return Stats{
		Pins: c.pins.Load(), Slots: c.slots.Load(), Lost: c.lost.Load(), Pinned: c.pinned.Load(), Delegated: c.delegated.Load(),
		Copied: c.copied.Load(), Failed: c.failed.Load(), Refused: c.refused.Load(), Expired: c.expired.Load(), Orphaned: c.orphaned.Load(),
	}
}

// NewService makes the service of a lane and installs it, before the lane starts.
func NewService(server *control.Server, payload *tcp.Service, c Config) *Service {
	s := &Service{server: server, lane: server.Lane(), config: c}
	payload.Slots = s
	server.Handle(netproto.OperationPin, s)
	server.Handle(netproto.OperationDelegate, s)
	server.Handle(netproto.OperationUnpin, s)
	return s
}

// Fence ends every pin that is not being given back already, and lets none begin (SPEC G-6). Any goroutine; the source's
// gate is fenced before, and quiet when all have ended.
func (s *Service) Fence() {
	_ = s.lane.Post(&s.closed, s) // a lane that has ended has no pins
}

// Receive is the fence, on the lane (reactor.Recipient).
func (s *Service) Receive(*reactor.Letter, reactor.Instant) {
	s.fenced = true
	for i := len(s.pins) - 1; i >= 0; i-- {
		if p := s.pins[i]; p.state == pinPinned {
			p.end()
		}
	}
}

// Serve (control.Service).
func (s *Service) Serve(session *control.Session, r netproto.Request) {
	switch r.Operation {
	case netproto.OperationPin:
		s.pin(session, r)
	case netproto.OperationDelegate:
		s.delegate(session)
	default:
		s.unpin(session)
	}
}

// refuse answers with a status; what broke the protocol ends the stream.
func (s *Service) refuse(session *control.Session, err error) {
	s.counts.refused.Add(1)
	if status := netproto.StatusOf(err); status != netproto.StatusProtocolError {
		session.Refuse(status)
		return
	}
	session.Violate(err)
}

func (s *Service) turnDown(session *control.Session, status netproto.Status) {
	s.counts.refused.Add(1)
	session.Refuse(status)
}

// pin checks all that the requester claims (SPEC T-11), charges as many slots as it wants and there are, and lends them.
func (s *Service) pin(session *control.Session, r netproto.Request) {
	asked, err := netproto.DecodePin(session.Body())
	if err != nil {
		s.refuse(session, err)
		return
	}
	if status := s.check(r, asked); status != netproto.StatusSuccess {
		s.turnDown(session, status)
		return
	}
	used := 0
	for _, p := range s.pins {
		if p.tenant.With(session) {
			used += p.n
			if p.name.Requester == asked.Requester && p.name.Generation == asked.Generation {
				s.turnDown(session, netproto.StatusProtocolError)
				return
			}
		}
	}
	n := min(int(asked.Slots), s.config.PeerSlots-used)
	if n <= 0 {
		s.turnDown(session, netproto.StatusExhausted)
		return
	}
	p := s.obtain(session, n)
	if p == nil {
		s.line.stay(session, s.lane.Now())
		s.turnDown(session, netproto.StatusExhausted)
		return
	}
	if !s.server.Enter() {
		p.giveBack()
		s.turnDown(session, netproto.StatusSourceClosed)
		return
	}
	s.line.served(session)
	p.begin(session, r, asked)
	session.Answer(netproto.AppendPinned(session.Room(), netproto.Pinned{
		Number: p.name.Number, SlotBytes: s.slotBytes(), Slots: uint8(p.n),
	}))
}

// check is what each pin and each of its copies needs: the device range, as for operations 1 and 2.
func (s *Service) check(r netproto.Request, asked netproto.Pin) netproto.Status {
	if s.fenced {
		return netproto.StatusSourceClosed
	}
	if r.Length > s.lane.Policy.PayloadBytesMax {
		return netproto.StatusExhausted
	}
	registration, err := s.lane.Tracker.Admit(r.Region, r.Offset, r.Length, wanted(asked.Direction == netproto.PinWrite))
	if err != nil {
		return netproto.StatusOf(err)
	}
	defer registration.Return()
	return s.able(registration)
}

// able says whether a range can be copied from and to here.
func (s *Service) able(r *segments.Registration) netproto.Status {
	if !staging.OnDevice(r) {
		return netproto.StatusBackendUnavailable
	}
	if fault := staging.Of(s.lane).Ready(staging.MemoryOf(r), staging.Devices); fault != nil {
		return statusOf(fault)
	}
	return netproto.StatusSuccess
}

func wanted(write bool) netproto.Permission {
	if write {
		return netproto.RemoteWrite
	}
	return netproto.RemoteRead
}

// statusOf is what the requester is told of a fault of staging.
func statusOf(fault *lanes.Fault) netproto.Status {
	switch fault.Cause {
	case lanes.Exhausted, lanes.Deadline:
		return netproto.StatusExhausted
	case lanes.Closed:
		return netproto.StatusSourceClosed
	}
	return netproto.StatusNativeError
}

func (s *Service) slotBytes() uint64 { return staging.Of(s.lane).SlotBytes() }

// obtain charges and lends up to n slots; nil: there is none, or others stand before.
func (s *Service) obtain(session *control.Session, n int) *pin {
	stage := staging.Of(s.lane)
	if n = min(n, stage.Lendable()); n == 0 || !s.line.first(session, s.lane.Now()) {
		return nil
	}
	p := s.take()
	for p.n < n {
		charge, err := s.config.Slots.Take(1)
		if err != nil {
			break
		}
		x := &p.slots[p.n]
		x.charge, x.lent, x.machine = charge.Move(), stage.Lend(), slotMachine{}
		p.n++
	}
	if p.n == 0 {
		s.idle = append(s.idle, p)
		return nil
	}
	s.counts.slots.Add(int64(p.n))
	return p
}

func (s *Service) take() *pin {
	if len(s.idle) == 0 {
		p := &pin{service: s}
		for i := range p.slots {
			p.slots[i].pin = p
		}
		return p
	}
	p := s.idle[len(s.idle)-1]
	s.idle = s.idle[:len(s.idle)-1]
	return p
}

// number gives a pin a number that no other one of the engine has or had.
func (s *Service) number() uint64 {
	s.last++
	return s.last<<laneBits | uint64(s.lane.Index)
}

// find is the pin of that name, if it was pinned by this session and was not taken back. Nobody else's is found: no name
// and no number is an authority by itself.
func (s *Service) find(session *control.Session, name netproto.PinName) *pin {
	for _, p := range s.pins {
		if p.name == name && p.state == pinPinned && p.tenant.With(session) {
			return p
		}
	}
	return nil
}

// delegate begins copies: all of them, or none. It is answered when they have begun.
func (s *Service) delegate(session *control.Session) {
	d := &s.order
	if err := netproto.DecodeDelegate(d, session.Body()); err != nil {
		s.refuse(session, err)
		return
	}
	p := s.find(session, d.Pin)
	if p == nil {
		s.turnDown(session, netproto.StatusUnknownRegion)
		return
	}
	if status := p.check(d.Copies); status != netproto.StatusSuccess {
		s.turnDown(session, status)
		return
	}
	p.renew()
	for _, c := range d.Copies {
		s.counts.delegated.Add(1)
		p.slots[c.Slot].begin(c)
	}
	session.Answer(nil)
}

// unpin gives the slots of a pin back once its copies have ended, and says whether all were whole.
func (s *Service) unpin(session *control.Session) {
	name, err := netproto.DecodeUnpin(session.Body())
	if err != nil {
		s.refuse(session, err)
		return
	}
	p := s.find(session, name)
	if p == nil {
		s.turnDown(session, netproto.StatusUnknownRegion)
		return
	}
	session.Take((*unpinning)(p))
	p.drain(session)
}

// Admit (tcp.Slots).
func (s *Service) Admit(session *control.Session, r netproto.Request) (tcp.Slot, error) {
	x, err := s.lend(session, r, r.Operation == netproto.OperationTCPWrite)
	if err != nil {
		return nil, err
	}
	return x, nil
}

// AdmitGrant (rdma.Slots).
func (s *Service) AdmitGrant(session *control.Session, r netproto.Request, user rdma.SlotUser) (rdma.Slot, error) {
	x, err := s.lend(session, r, r.Operation == netproto.OperationRDMAWrite)
	if err != nil {
		return nil, err
	}
	x.holder = user
	return (*grantedSlot)(x), nil
}

// lend finds the slot that a request of the session names, and lends it.
func (s *Service) lend(session *control.Session, r netproto.Request, write bool) (*slot, error) {
	number, index, _ := netproto.SlotOf(r.Region)
	for _, p := range s.pins {
		if p.name.Number != number || p.state != pinPinned || !p.tenant.With(session) || int(index) >= p.n {
			continue
		}
		x := &p.slots[index]
		if status := x.machine.admit(write, r.Offset, r.Length); status != netproto.StatusSuccess {
			return nil, refusal(status)
		}
		x.machine.enter()
		x.arriving = r.Length
		p.renew()
		return x, nil
	}
	return nil, &segments.UnknownRegion{ID: r.Region}
}

// refusal is the error of a frame about a slot.
type refusal netproto.Status

func (r refusal) Error() string { return "the slot refuses: " + netproto.Status(r).String() }

// Status is for the wire.
func (r refusal) Status() netproto.Status { return netproto.Status(r) }
