package hptcp

import (
	"errors"
	"net/netip"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
)

var (
	errShutdown = errors.New("the source is closing its streams")
	errFull     = errors.New("all places for data streams are taken by busy ones")
	errSilent   = errors.New("the source's deadline for this request passed")
	errStranger = errors.New("the hello was refused")
	errCredit   = errors.New("more requests or bytes without an answer than agreed")
	errReplaced = errors.New("the requester has opened this stream anew")
	errOrphaned = errors.New("a chunk that no WRITE is waiting for")
)

// Service serves data streams on one lane (SPEC H-1, H-6). Listeners deal accepted streams to it (control.Adopter).
type Service struct {
	lane    *lanes.Lane
	config  Config
	all     sessionList // the longest idle first among those without work
	parked  []*session  // accepted, waiting for the place of a stream that is being evicted
	free    []*served   // for reuse
	scratch [][]byte
	sink    sink
	closing bool
	closed  func()
}

// NewService makes the service of a lane.
func NewService(lane *lanes.Lane, config Config) *Service {
	config.complete()
	return &Service{lane: lane, config: config}
}

// Streams is how many places for accepted streams are taken; any goroutine may ask (control.Adopter).
func (s *Service) Streams() int64 { return s.config.Sessions.Used() }

// Sessions is the number of accepted streams.
func (s *Service) Sessions() int { return s.all.n + len(s.parked) }

// sessionList is a first-in first-out list.
type sessionList struct {
	head, tail *session
	n          int
}

func (l *sessionList) append(x *session) {
	x.prev, x.next = l.tail, nil
	if l.tail == nil {
		l.head = x
	} else {
		l.tail.next = x
	}
	l.tail = x
	l.n++
}

func (l *sessionList) remove(x *session) {
	if x.prev == nil {
		l.head = x.next
	} else {
		x.prev.next = x.next
	}
	if x.next == nil {
		l.tail = x.prev
	} else {
		x.next.prev = x.prev
	}
	x.prev, x.next = nil, nil
	l.n--
}

// Adopt hands an accepted descriptor to the service's lane; any lane may call it. The error says that the lane has
// stopped; the descriptor stays the caller's then.
func (s *Service) Adopt(d reactor.Descriptor, peer netip.AddrPort) error {
	x := &session{service: s, descriptor: d, peer: peer}
	return s.lane.Post(&x.letter, (*adoption)(x))
}

// adoption is the letter's recipient.
type adoption session

// Receive takes the session over on its lane (reactor.Recipient).
func (a *adoption) Receive(*reactor.Letter, reactor.Instant) {
	x := (*session)(a)
	x.service.admit(x)
}

// admit opens the session if there is a place, or makes one by ending the longest idle stream.
func (s *Service) admit(x *session) {
	lane := s.lane
	if s.closing {
		s.refuse(x)
		return
	}
	charge, err := s.config.Sessions.Take(1)
	if err != nil {
		if idle := s.idle(); idle != nil {
			s.parked = append(s.parked, x)
			lane.Counts.Evicted.Add(1)
			idle.stream.retire(errEvicted)
			return
		}
		lane.Counts.OverflowedSessions.Add(1)
		lane.Journal.Add(lane.Now(), lanes.Note{Kind: lanes.NoteSessionsOverflow, Where: x.peer.String(), Err: errFull})
		s.refuse(x)
		return
	}
	_, err = lane.Kernel().Tune(x.descriptor, lane.Policy.Socket)
	if err == nil {
		err = x.stream.start(lane, x.descriptor, x)
	}
	if err != nil { // no memory, or the peer is gone already
		charge.Repay()
		s.refuse(x)
		return
	}
	x.charge = charge
	lane.Counts.Accepted.Add(1)
	s.all.append(x)
	lane.Arm(&x.timer, lane.Now().After(lane.Policy.SourceTimeout), x)
	x.stream.digest()
}

// idle is the stream that has been without work longest. One that ends already leaves its place to somebody else.
func (s *Service) idle() *session {
	for x := s.all.head; x != nil; x = x.next {
		if x.idle() && x.stream.ending == nil {
			return x
		}
	}
	return nil
}

// refuse closes a descriptor that no stream was started on.
func (s *Service) refuse(x *session) {
	if err := s.lane.Kernel().Close(x.descriptor); err != nil {
		s.lane.Counts.RetainedDescriptors.Add(1)
	}
}

// replace ends the stream in whose place another one opens: a requester's peer has one of each number, so the older one was lost
// on a way that told only one end of it.
func (s *Service) replace(h netproto.HPTCPHello) {
	for x := s.all.head; x != nil; x = x.next {
		if x.ready && x.hello.Requester == h.Requester && x.hello.Stream == h.Stream && x.stream.ending == nil {
			x.stream.retire(errReplaced)
			return
		}
	}
}

// departed: a session's place is free.
func (s *Service) departed() {
	if len(s.parked) > 0 {
		x := s.parked[0]
		s.parked = append(s.parked[:0], s.parked[1:]...)
		s.admit(x)
	}
	s.settle()
}

// Close ends every stream; one that works on requests ends when they are answered. closed is called once, when the
// last one is gone. The gate is fenced before.
func (s *Service) Close(closed func()) {
	s.closing, s.closed = true, closed
	for _, x := range s.parked {
		s.refuse(x)
	}
	s.parked = nil
	for x := s.all.head; x != nil; {
		next := x.next
		if x.free() { // half a request, or half a hello, waits for nobody
			x.stream.retire(errShutdown)
		}
		x = next
	}
	s.settle()
}

func (s *Service) settle() {
	if s.closed != nil && s.all.n == 0 {
		closed := s.closed
		s.closed = nil
		s.sink.close(&s.lane.Arena)
		closed()
	}
}

func (s *Service) take() *served {
	if n := len(s.free); n > 0 {
		x := s.free[n-1]
		s.free = s.free[:n-1]
		return x
	}
	return &served{}
}
