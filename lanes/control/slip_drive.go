package control

import (
	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
)

const (
	// slipsMax is how many answers one stream may owe: as many as handlers are usual (SPEC T-6).
	slipsMax = 4
	// batchBytes is how much of answers, or of requests, goes out in one send at most, and how much is received ahead.
	batchBytes = 4 << 10
)

// Slip is the answer that a session owes for one frame which its service took off the stream (Detach). The session goes on
// with the next frames meanwhile, and sends the answers in the order of the frames, those that are ready in one go. A slip
// is part of its owner; it holds the frame's admission until its answer is sent, or the stream is gone. Its owner
// is told by Sent or Lost, once; Received does not happen.
//
//	idle ──Detach──▶ owed ──Answer──▶ ready ──▶ on its way ──▶ idle: Sent
//	                   └────────── any: the stream is lost ──▶ idle: Lost
type Slip struct {
	session  *Session // nil: idle
	owner    Handler
	status   netproto.Status
	payload  []byte
	ready    bool
	admitted budgets.Charge
	inside   bool            // true exactly when it is counted by Admission.Gate
	by       reactor.Instant // the source's deadline for the frame
	next     *Slip
}

// slipQueue are the slips of one session, in the order of their frames.
type slipQueue struct {
	head, tail *Slip
	n          int
	leaving    int // of them, from the head on, that the send under way has
	held       netproto.Status
	buffer     lanes.Buffer  // half for what is sent, half for what is received ahead
	flush      reactor.Timer // armed while a slip became ready in this turn
	clock      reactor.Timer // the oldest one's deadline
}

func (q *slipQueue) push(x *Slip) {
	if q.tail == nil {
		q.head = x
	} else {
		q.tail.next = x
	}
	q.tail = x
	q.n++
}

func (q *slipQueue) pop() *Slip {
	x := q.head
	if q.head = x.next; q.head == nil {
		q.tail = nil
	}
	q.n--
	return x
}

// HandleDetached makes a service responsible for an operation whose frames it always takes off the stream, or refuses.
func (s *Server) HandleDetached(op netproto.Operation, service Service) {
	s.services[op], s.detached[op] = service, true
}

// equip gives a session the memory for slips; false: there is none.
func (s *Session) equip() bool {
	if s.slips.buffer.Held() {
		return true
	}
	buffer, err := s.server.lane.Arena.Get(2 * batchBytes)
	if err != nil {
		return false
	}
	s.slips.buffer = buffer
	s.stream.readAhead(buffer.Bytes(2 * batchBytes)[batchBytes:])
	return true
}

// Detach ends the frame being served for the session, which goes on with the next one; its body is gone. The answer is
// the slip's. The service must be one of HandleDetached.
func (s *Session) Detach(x *Slip, owner Handler) {
	if x.session != nil {
		panic("control: Detach of a slip that is owed, want idle")
	}
	lane := s.server.lane
	*x = Slip{session: s, owner: owner, inside: s.inside, by: lane.Now().After(lane.Policy.SourceTimeout)}
	if s.admitted.Held() {
		x.admitted = s.admitted.Move()
	}
	s.handler, s.inside = nil, false
	s.body.release(&lane.Arena)
	s.slips.push(x)
	if s.slips.n == 1 {
		lane.Arm(&s.slips.clock, x.by, (*slipClock)(s))
	}
	s.proceed()
}

// Answer says what the frame's answer is; the payload stays untouched until Sent or Lost. Only a success has one.
func (x *Slip) Answer(status netproto.Status, payload []byte) {
	s := x.session
	if s == nil || x.ready {
		panic("control: Answer for a slip that is not owed, or is answered")
	}
	lane := s.server.lane
	if status != netproto.StatusSuccess {
		lane.Counts.Refused(status, false)
	}
	x.status, x.payload, x.ready = status, payload, true
	lane.Arm(&s.slips.flush, lane.Now(), (*slipFlush)(s))
}

// Owed is true exactly while the answer is neither sent nor given up.
func (x *Slip) Owed() bool { return x.session != nil }

// slipFlush sends what has become ready in a turn; slipClock ends the stream at the oldest slip's deadline.
type (
	slipFlush Session
	slipClock Session
)

// Expire (reactor.TimerHandler).
func (f *slipFlush) Expire(*reactor.Timer, reactor.Instant) { (*Session)(f).flush() }

// Expire (reactor.TimerHandler).
func (c *slipClock) Expire(*reactor.Timer, reactor.Instant) {
	c.server.lane.Counts.SourceTimeouts.Add(1)
	(*Session)(c).stream.Retire(errSourceTimeout)
}

// flush sends the answers that are ready, from the oldest on. Nothing else of the session is being sent while it owes
// any.
func (s *Session) flush() {
	q := &s.slips
	if q.leaving > 0 || s.stream.ending != nil {
		return
	}
	b := q.buffer.Bytes(batchBytes)[:0]
	for x := q.head; x != nil && x.ready && len(b)+netproto.ReplySize+len(x.payload) <= batchBytes; x = x.next {
		b = netproto.AppendReply(b, netproto.Reply{Status: x.status, Epoch: s.server.lane.Policy.Epoch, Length: uint64(len(x.payload))})
		b = append(b, x.payload...)
		q.leaving++
	}
	if q.leaving > 0 {
		s.stream.Send(b, nil)
	}
}

// departed takes the end of a send of slips, and goes on with what waited for it.
func (s *Session) departed() {
	q := &s.slips
	for ; q.leaving > 0 && q.head != nil; q.leaving-- {
		x := q.pop()
		owner := x.owner
		x.release()
		owner.Sent(0)
	}
	lane := s.server.lane
	if lane.Disarm(&q.clock); q.head != nil {
		lane.Arm(&q.clock, q.head.by, (*slipClock)(s))
	}
	if s.stream.ending != nil {
		return
	}
	s.flush()
	switch s.state {
	case sessionFull:
		s.proceed()
	case sessionHeld:
		s.server.arrived(s)
	case sessionRefusing:
		if q.n == 0 {
			s.answer(q.held)
		}
	case sessionIdle:
		if q.n == 0 {
			s.relax()
		}
	}
}

// release gives back the admission. Proof: the answer was sent, or the stream is gone.
func (x *Slip) release() {
	server := x.session.server
	x.session, x.owner, x.payload, x.next = nil, nil, nil, nil
	if x.admitted.Held() {
		x.admitted.Repay()
	}
	if x.inside {
		x.inside = false
		server.Leave()
	}
	server.admission.released()
}

// drop tells the owners that the stream is gone.
func (s *Session) drop(loss Loss) {
	q := &s.slips
	lane := s.server.lane
	lane.Disarm(&q.flush)
	lane.Disarm(&q.clock)
	for q.head != nil {
		x := q.pop()
		owner := x.owner
		x.release()
		owner.Lost(loss)
	}
	q.leaving = 0
	if q.buffer.Held() {
		lane.Arena.Put(&q.buffer)
	}
}
