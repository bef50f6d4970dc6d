package control

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
)

// overflowGrace is how long a frame that found handlers and queue full stays unaccepted before its
// connection is closed. A burst that the handlers work off within it costs nobody a connection.
const overflowGrace = 100 * time.Millisecond

var (
	errSourceTimeout = errors.New("the source's deadline for this frame passed")
	errOverflow      = errors.New("handlers and queue are full")
	errRefused       = errors.New("refused: the stream cannot go on")
	errShutdown      = errors.New("the source is closing its streams")
)

type sessionState uint8

const (
	sessionIdle     sessionState = iota // waits for the next frame; holds no admission (SPEC T-6)
	sessionWaiting                      // has a frame, waits for a handler
	sessionServing                      // a handler works on its frame
	sessionReplying                     // its frame has ended; sends a refusal if that is still to be said, then idle or closed
	sessionFull                         // owes as many answers as it may; reads no further frame
	sessionHeld                         // has a frame that is served once answers it owes are sent
	sessionRefusing                     // has a refusal to say once all answers it owes are sent
)

// Handler works on one admitted frame of a session.
type Handler interface {
	Sent(n int)
	Received(n int)
	// Lost: the session's stream is gone; the handler's work has ended and nothing touches its buffers.
	Lost(Loss)
}

// Resumer goes on with a frame of a session for a reason of its own.
type Resumer interface{ Resume() }

// Resume lets r go on as if the stream had told it something: what that lets the stream tell comes before Resume returns.
func (s *Session) Resume(r Resumer) { s.stream.resume(r) }

// Service accepts frames of one operation. Serve sets the session's handler with Take, or answers.
type Service interface {
	Serve(*Session, netproto.Request)
}

// Session is the source's side of one accepted stream. It belongs to one lane.
type Session struct {
	server     *Server
	stream     Stream
	peer       netip.AddrPort
	descriptor reactor.Descriptor // until the stream has it
	header     []byte
	slot       budgets.Charge // of Lane.Sessions
	state      sessionState
	reader     netproto.Reader // of the next frame's header
	request    netproto.Request
	body       frameBody // of request
	slips      slipQueue // answers for frames before it
	tenants    *Tenant   // what the source keeps for its peer
	handler    Handler
	admitted   budgets.Charge // of Admission.Handlers, while serving
	inside     bool           // true exactly when it is counted by Admission.Gate
	queued     budgets.Charge // of Admission.Queue, while waiting inside the queue
	timer      reactor.Timer
	ending     bool // true exactly when the stream is to be closed after the reply under way
	letter     reactor.Letter
	prev, next *Session // in the server's list of all, idle first-in first
	list       *sessionList
}

// Lane is the lane that serves the session.
func (s *Session) Lane() *lanes.Lane { return s.server.lane }

// Gone is true exactly when nothing comes from the peer any more: the stream is ending, or has ended.
func (s *Session) Gone() bool { return s.header == nil || s.stream.ending != nil }

// Out is memory for the reply header.
func (s *Session) Out() []byte { return s.header[:outBytes] }

// In is memory for further headers of the frame.
func (s *Session) In() []byte { return s.header[outBytes : 2*outBytes] }

// Take makes h the handler of the frame being served.
func (s *Session) Take(h Handler) { s.handler = h }

// Send and Receive move bytes for the handler (see Stream).
func (s *Session) Send(a, b []byte) { s.stream.Send(a, b) }

// SendLent sends a, then b, which is only lent; Instead goes on when that was Short (see Stream).
func (s *Session) SendLent(a, b []byte, lender Lender) { s.stream.SendLent(a, b, 1, lender) }

// Instead goes on with a Send that was Short (see Stream).
func (s *Session) Instead(b []byte) { s.stream.Instead(b) }

// Receive fills a, then b; the handler's Received follows once least bytes are there.
func (s *Session) Receive(a, b []byte, least int) { s.stream.Receive(a, b, least) }

// await arms the receive for the next frame.
func (s *Session) await() {
	s.state = sessionIdle
	s.reader.Begin(netproto.RequestSize)
	if s.slips.n == 0 {
		s.relax()
	} else { // not to be evicted
		s.move(&s.server.busy)
		s.server.lane.Disarm(&s.timer)
	}
	s.gather()
}

// relax: nothing is owed and the next frame has not come. Of one that has begun, the deadline stays.
func (s *Session) relax() {
	switch lane := s.server.lane; {
	case s.server.closing:
		s.stream.Retire(errShutdown)
	case s.reader.Empty() && s.tenants != nil: // its tenants have deadlines of their own
		s.move(&s.server.busy)
		lane.Disarm(&s.timer)
	case s.reader.Empty():
		s.move(&s.server.idle)
		lane.Arm(&s.timer, lane.Now().After(lane.Policy.IdleTimeout), s)
	}
}

// gather receives what the frame's header still lacks, in whatever pieces it comes.
func (s *Session) gather() { s.stream.Receive(s.lacking(), nil, 1) }

// lacking is where that goes: the end of In, right before what the stream receives ahead, so that both are one buffer.
func (s *Session) lacking() []byte { return s.header[2*outBytes-len(s.reader.Room()) : 2*outBytes] }

// Received: bytes of a frame's header, or for the handler (User). A peer that speaks another protocol is
// refused at its first wrong byte; one that stops in the middle of a header has the source's time for it.
func (s *Session) Received(n int) {
	if s.state == sessionServing {
		s.handler.Received(n)
		return
	}
	lane := s.server.lane
	begun := !s.reader.Empty()
	s.reader.Feed(s.lacking()[:n])
	if err := s.reader.Check(); err != nil {
		s.move(&s.server.busy)
		s.violated(err)
		return
	}
	if !s.reader.Complete() {
		if !begun {
			lane.Arm(&s.timer, lane.Now().After(lane.Policy.SourceTimeout), s)
		}
		s.gather()
		return
	}
	s.move(&s.server.busy)
	request, err := s.reader.Request()
	if err != nil {
		s.violated(err)
		return
	}
	s.request = request
	s.server.arrived(s)
}

// violated answers a frame that broke the protocol and closes the stream: what follows on it has no
// meaning any more.
func (s *Session) violated(err error) {
	lane := s.server.lane
	lane.Journal.Add(lane.Now(), lanes.Note{Kind: lanes.NoteProtocol, Where: s.peer.String(), Err: err})
	s.ending = true
	s.reply(netproto.StatusOf(err))
}

// reply sends a header without payload; afterwards the session is idle, or closed. Answers that are owed for earlier
// frames come before it.
func (s *Session) reply(status netproto.Status) {
	s.refused(status)
	if s.slips.n > 0 {
		s.state, s.slips.held = sessionRefusing, status
		s.server.lane.Disarm(&s.timer)
		return
	}
	s.answer(status)
}

func (s *Session) answer(status netproto.Status) {
	lane := s.server.lane
	s.state = sessionReplying
	lane.Arm(&s.timer, lane.Now().After(lane.Policy.SourceTimeout), s)
	s.stream.Send(s.encode(status, 0), nil)
}

// refused counts a refusal. Two kinds are noted as well: the status goes to the peer only, and the source's
// owner would look for the reason in vain.
func (s *Session) refused(status netproto.Status) {
	lane := s.server.lane
	stale := status == netproto.StatusEpochMismatch && !s.request.Epoch.IsZero()
	lane.Counts.Refused(status, stale)
	kind := lanes.NoteStaleEpoch
	switch {
	case stale:
	case status == netproto.StatusPermissionDenied:
		kind = lanes.NotePermission
	default:
		return
	}
	why := &refusalError{operation: s.request.Operation, region: s.request.Region, named: s.request.Epoch, own: lane.Policy.Epoch}
	lane.Journal.Add(lane.Now(), lanes.Note{Kind: kind, Where: s.peer.String(), Err: why})
}

// refusalError says what a refused frame asked for; its text is made only if it is written.
type refusalError struct {
	operation  netproto.Operation
	region     uint64
	named, own netproto.Epoch
}

func (e *refusalError) Error() string {
	if e.named != e.own {
		return fmt.Sprintf("%v names epoch %v, this source is %v", e.operation, e.named, e.own)
	}
	return fmt.Sprintf("%v of region %d", e.operation, e.region)
}

func (s *Session) encode(status netproto.Status, length uint64) []byte {
	return netproto.AppendReply(s.Out()[:0], netproto.Reply{Status: status, Epoch: s.server.lane.Policy.Epoch, Length: length})
}

// Header encodes a reply header into the session's memory.
func (s *Session) Header(status netproto.Status, length uint64) []byte {
	return s.encode(status, length)
}

// Receipt answers the frame being served with a success without payload, which goes out with what answers the next frame,
// since that is here already. The handler is not told Sent; it calls Finish. False: it is not, and nothing was done.
func (s *Session) Receipt() bool {
	if s.ending || s.server.closing || len(s.stream.early) < netproto.RequestSize {
		return false
	}
	return s.stream.SendSoon(s.encode(netproto.StatusSuccess, 0))
}

// Refuse ends the frame being served with a status; the stream stays clean.
func (s *Session) Refuse(status netproto.Status) {
	s.discharge()
	s.reply(status)
}

// Finish ends the frame being served; its reply was sent.
func (s *Session) Finish() {
	s.discharge()
	s.proceed()
}

// Violate ends the frame being served because it broke the protocol: the peer is told why, and then
// the stream is closed. The handler has let go of everything.
func (s *Session) Violate(err error) {
	s.discharge()
	s.violated(err)
}

// Break ends the stream in the middle of the frame being served, which cannot go on and about which no status can be
// said any more. The handler's Lost follows, perhaps at once.
func (s *Session) Break(why error) { s.stream.Retire(why) }

// discharge gives the handler's admission back. Proof: the handler said that its frame has ended, or
// Lost said that its stream is gone.
func (s *Session) discharge() {
	s.handler, s.state = nil, sessionReplying
	s.body.release(&s.server.lane.Arena)
	if s.admitted.Held() { // a frame that is turned away has none
		s.admitted.Repay()
	}
	if s.inside {
		s.inside = false
		s.server.Leave()
	}
	s.server.admission.released()
}

// proceed waits for the next frame, or closes.
func (s *Session) proceed() {
	switch {
	case s.slips.n >= slipsMax:
		s.state = sessionFull
		s.server.lane.Disarm(&s.timer)
	case s.slips.n == 0 && (s.ending || s.server.closing):
		s.stream.Retire(errRefused)
	default:
		s.await()
	}
}

// Sent (User).
func (s *Session) Sent(n int) {
	if s.slips.leaving > 0 {
		s.departed()
		return
	}
	if s.state == sessionServing {
		s.handler.Sent(n)
		return
	}
	s.proceed()
}

// Connected and Readable do not happen to an accepted stream.
func (s *Session) Connected() {}

// Readable does not happen: a session always has a receive under way while idle.
func (s *Session) Readable() {}

// Expire ends what took too long: an idle stream, a waiting frame, a frame being served (SPEC T-6, T-9).
func (s *Session) Expire(*reactor.Timer, reactor.Instant) {
	counts := &s.server.lane.Counts
	switch s.state {
	case sessionIdle:
		counts.IdleClosed.Add(1)
		s.stream.Retire(errIdle)
	case sessionWaiting:
		s.server.overflowed(s)
	default:
		counts.SourceTimeouts.Add(1)
		s.stream.Retire(errSourceTimeout)
	}
}

// Lost: the stream is gone (User).
func (s *Session) Lost(loss Loss) {
	lane := s.server.lane
	lane.Disarm(&s.timer)
	switch s.state {
	case sessionServing:
		s.handler.Lost(loss)
		s.discharge()
	case sessionWaiting:
		s.server.dequeue(s)
	}
	s.drop(loss)
	s.evict()
	s.move(nil)
	lane.Arena.PutSlot(s.header)
	s.header = nil
	if loss.Retained {
		lane.Journal.Add(lane.Now(), lanes.Note{Kind: lanes.NoteRetained, Where: s.peer.String(), Err: loss.Err})
	} else {
		s.slot.Repay()
	}
	s.server.departed()
}
