package control

import (
	"net/netip"
	"sync/atomic"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
)

// sessionList is a first-in first-out list of sessions.
type sessionList struct {
	head, tail *Session
	n          int
}

func (l *sessionList) remove(s *Session) {
	if s.prev == nil {
		l.head = s.next
	} else {
		s.prev.next = s.next
	}
	if s.next == nil {
		l.tail = s.prev
	} else {
		s.next.prev = s.prev
	}
	s.prev, s.next = nil, nil
	l.n--
}

func (l *sessionList) append(s *Session) {
	s.prev = l.tail
	if l.tail == nil {
		l.head = s
	} else {
		l.tail.next = s
	}
	l.tail = s
	l.n++
}

// move puts the session into another list of its server, or into none.
func (s *Session) move(to *sessionList) {
	if s.list != nil {
		s.list.remove(s)
	}
	if s.list = to; to != nil {
		to.append(s)
	}
}

// Server is one lane's share of an engine's source side: its sessions and the frames that wait.
type Server struct {
	lane      *lanes.Lane
	admission *Admission
	services  [256]Service // by operation
	detached  [256]bool    // by operation: true exactly when its service takes frames off the stream
	idle      sessionList  // between frames; the longest idle first
	busy      sessionList  // serving or replying
	queue     sessionList  // with a frame that waits for a handler, in order of arrival
	parked    []*Session   // accepted, waiting for the slot of a stream that is being evicted
	waiting   atomic.Int32 // length of queue, for other lanes
	retry     reactor.Letter
	closing   bool
	closed    func()
}

// NewServer makes a lane's server; all servers of an engine are made before its lanes start.
func NewServer(lane *lanes.Lane, admission *Admission) *Server {
	s := &Server{lane: lane, admission: admission}
	admission.servers = append(admission.servers, s)
	return s
}

// Handle makes a service responsible for an operation.
func (s *Server) Handle(op netproto.Operation, service Service) { s.services[op] = service }

// Enter counts work of the source that goes on between frames, so that CloseSource waits for it (SPEC G-6); false: the
// source is closed. Any lane.
func (s *Server) Enter() bool { return s.admission.Gate.Enter() }

// Leave ends what Enter counted.
func (s *Server) Leave() { s.admission.Gate.Leave() }

// Lane is the lane of the server.
func (s *Server) Lane() *lanes.Lane { return s.lane }

// Streams is how many places of the lane's Sessions are taken (Adopter).
func (s *Server) Streams() int64 { return s.lane.Sessions.Used() }

// Sessions is the number of accepted streams.
func (s *Server) Sessions() int { return s.idle.n + s.busy.n + s.queue.n + len(s.parked) }

// Adopt hands an accepted descriptor to the server's lane; any lane may call it. The error says that
// the lane has stopped; the descriptor stays the caller's then.
func (s *Server) Adopt(d reactor.Descriptor, peer netip.AddrPort) error {
	session := &Session{server: s, descriptor: d, peer: peer}
	return s.lane.Post(&session.letter, (*adoption)(session))
}

// adoption is the letter's recipient: Session.Receive is taken by the stream's words.
type adoption Session

// Receive takes the session over on its lane (reactor.Recipient).
func (a *adoption) Receive(*reactor.Letter, reactor.Instant) {
	s := (*Session)(a)
	s.server.admit(s)
}

// admit opens the session if there is a slot, or makes one by ending the longest idle stream: idle
// clients never keep a new one out (field case F-29).
func (s *Server) admit(session *Session) {
	lane := s.lane
	if s.closing {
		s.refuse(session)
		return
	}
	if lane.Sessions.Used() == lane.Sessions.Limit() && s.idle.n > 0 { // a slot that is made free is no refusal
		s.parked = append(s.parked, session)
		lane.Counts.Evicted.Add(1)
		oldest := s.idle.head
		oldest.move(&s.busy) // no longer to be evicted
		oldest.stream.Retire(errEvicted)
		return
	}
	slot, err := lane.Sessions.Take(1)
	if err != nil {
		lane.Counts.OverflowedSessions.Add(1)
		lane.Journal.Add(lane.Now(), lanes.Note{Kind: lanes.NoteSessionsOverflow, Where: session.peer.String(), Err: errOverflow})
		s.refuse(session)
		return
	}
	session.slot = slot
	s.open(session)
}

// refuse closes a descriptor that no stream was started on.
func (s *Server) refuse(session *Session) {
	if err := s.lane.Kernel().Close(session.descriptor); err != nil {
		s.lane.Counts.RetainedDescriptors.Add(1)
	}
}

func (s *Server) open(session *Session) {
	lane := s.lane
	header, err := lane.Arena.Slot()
	if err == nil {
		_, err = lane.Kernel().Tune(session.descriptor, lane.Policy.Socket)
		if err != nil {
			lane.Arena.PutSlot(header)
		}
	}
	if err != nil { // no memory, or the peer is gone already
		session.slot.Repay()
		s.refuse(session)
		return
	}
	session.header = header
	session.stream.start(lane, session.descriptor, session)
	neighbour := header[2*outBytes:]
	session.stream.readAhead(neighbour[:netproto.RequestSize])
	session.stream.sendAlong(neighbour[netproto.RequestSize:])
	lane.Counts.Accepted.Add(1)
	session.await()
}

// departed: a session's slot is free.
func (s *Server) departed() {
	if len(s.parked) > 0 {
		session := s.parked[0]
		s.parked = append(s.parked[:0], s.parked[1:]...)
		s.admit(session)
	}
	s.settle()
}

// arrived takes a complete frame. It is served, waits, or is closed after the grace (SPEC T-6).
func (s *Server) arrived(session *Session) {
	owes, operation := session.slips.n > 0, session.request.Operation
	if (s.queue.n == 0 || operation.Ends()) && (!owes || s.detached[operation]) && s.serve(session) {
		return
	}
	if owes { // the answers it owes have handlers of their own, and whatever is not taken off the stream comes after them
		session.state = sessionHeld
		s.lane.Disarm(&session.timer)
		return
	}
	session.state = sessionWaiting
	session.move(&s.queue)
	s.waiting.Add(1)
	patience := overflowGrace
	if charge, err := s.admission.Queue.Take(1); err == nil {
		session.queued = charge
		patience = s.lane.Policy.SourceTimeout
	}
	s.lane.Arm(&session.timer, s.lane.Now().After(patience), session)
	s.next() // a handler may have become free on another lane in between
}

// serve starts a handler for the session's frame; false when all handlers are busy. What only ends something needs none of
// them: those who have them may wait for what it gives back. Such frames are bounded by the streams, and by the answers that
// each may owe.
func (s *Server) serve(session *Session) bool {
	ending := session.request.Operation.Ends()
	if !ending && s.admission.Gate.Fenced() {
		s.unqueue(session)
		s.turnAway(session)
		return true
	}
	if !ending {
		charge, err := s.admission.Handlers.Take(1)
		if err != nil {
			return false
		}
		session.admitted = charge
	}
	s.unqueue(session)
	if session.inside = s.Enter(); !session.inside && !ending {
		session.admitted.Repay() // proof: nothing was begun
		s.turnAway(session)
		return true
	}
	session.state = sessionServing
	s.lane.Arm(&session.timer, s.lane.Now().After(s.lane.Policy.SourceTimeout), session)
	s.dispatch(session)
	return true
}

// turnAway refuses a frame of a source that is closed. A body behind it is read first, so that the stream goes on with
// the next frame; nothing is charged for that.
func (s *Server) turnAway(session *Session) {
	if session.request.Check() != nil || session.request.BodyHeadSize() == 0 {
		session.reply(netproto.StatusSourceClosed)
		return
	}
	session.state = sessionServing
	s.lane.Arm(&session.timer, s.lane.Now().After(s.lane.Policy.SourceTimeout), session)
	session.body.gather(session)
}

// unqueue takes a session that stops waiting out of the queue.
func (s *Server) unqueue(session *Session) {
	if session.state == sessionWaiting {
		s.dequeue(session)
		session.move(&s.busy)
	}
}

// dequeue pays back what a waiting session holds.
func (s *Server) dequeue(session *Session) {
	session.move(nil)
	s.waiting.Add(-1)
	if session.queued.Held() {
		session.queued.Repay()
		s.promote()
		s.admission.released() // the place may be for a frame on another lane
	}
}

// promote gives the free places in the queue to the frames that have waited longest without one.
func (s *Server) promote() {
	for session := s.queue.head; session != nil; session = session.next {
		if session.queued.Held() {
			continue
		}
		charge, err := s.admission.Queue.Take(1)
		if err != nil {
			return
		}
		session.queued = charge
		s.lane.Arm(&session.timer, s.lane.Now().After(s.lane.Policy.SourceTimeout), session)
	}
}

// dispatch checks the frame once all of it is there.
func (s *Server) dispatch(session *Session) {
	if err := session.request.Check(); err != nil {
		session.Violate(err)
		return
	}
	if session.request.BodyHeadSize() > 0 {
		session.body.gather(session)
		return
	}
	s.check(session)
}

// check hands the frame to the service of its operation, after what no service may forget: the epoch is
// checked here for every frame (SPEC G-1, T-11).
func (s *Server) check(session *Session) {
	request := session.request
	if request.Epoch != s.lane.Policy.Epoch {
		session.Refuse(netproto.StatusEpochMismatch)
		return
	}
	if !session.inside && !request.Operation.Ends() { // turned away
		session.Refuse(netproto.StatusSourceClosed)
		return
	}
	service := s.services[request.Operation]
	if service == nil {
		session.Refuse(netproto.StatusBackendUnavailable)
		return
	}
	if s.detached[request.Operation] && !session.equip() {
		session.Refuse(netproto.StatusExhausted)
		return
	}
	service.Serve(session, request)
}

// next serves waiting frames in order while there are handlers.
func (s *Server) next() {
	for s.queue.head != nil && s.serve(s.queue.head) {
	}
}

// Receive serves what waits, now that a handler or a place in the queue is free (reactor.Recipient).
func (s *Server) Receive(*reactor.Letter, reactor.Instant) {
	s.next()
	s.promote()
	s.settle()
}

// overflowed ends a session whose frame found no handler in time.
func (s *Server) overflowed(session *Session) {
	lane := s.lane
	lane.Counts.OverflowedSessions.Add(1)
	lane.Journal.Add(lane.Now(), lanes.Note{Kind: lanes.NoteSessionsOverflow, Where: session.peer.String(), Err: errOverflow})
	session.stream.Retire(errOverflow)
}

// Close ends every session; those that serve a frame end when it does. closed is called once, when
// the last one is gone. The gate is fenced before.
func (s *Server) Close(closed func()) {
	s.closing, s.closed = true, closed
	for _, session := range s.parked {
		s.refuse(session)
	}
	s.parked = nil
	for session := s.idle.head; session != nil; session = s.idle.head {
		session.move(&s.busy)
		session.stream.Retire(errShutdown)
	}
	for session := s.busy.head; session != nil; {
		next := session.next
		if session.state == sessionIdle && session.slips.n == 0 { // it is here for its tenants, and serves nothing
			session.stream.Retire(errShutdown)
		}
		session = next
	}
	s.next()
	s.settle()
}

// settle reports the end of a closing server.
func (s *Server) settle() {
	if s.closed != nil && s.idle.n+s.busy.n+s.queue.n == 0 {
		closed := s.closed
		s.closed = nil
		closed()
	}
}
