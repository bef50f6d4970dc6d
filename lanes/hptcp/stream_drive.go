package hptcp

import (
	"io"
	"syscall"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/reactor"
)

const (
	// inboxBytes holds the largest frame and the small ones that come with it. What is larger goes straight
	// to its place.
	inboxBytes = 16 << 10
	// inboxMin is how much room a receive has for the frames behind a payload, at least.
	inboxMin = 4 << 10
	// inboxBehind is how much it has at most behind a large payload, in the same receive or the next: what follows is
	// another one, whose bytes would be copied from the inbox, and its frame is small.
	inboxBehind = 1 << 10
	// boxRetry is how long a stream waits that found no memory for what it has to send. Memory that comes back tells nobody,
	// and nothing else may happen on the stream: the peer waits for just these frames.
	boxRetry = 10 * time.Millisecond
)

// user owns a stream and is told what became of it. Its methods are called on the stream's lane.
type user interface {
	// connected: what connect started is done.
	connected()
	// fill puts what is to be sent into the empty, open box.
	fill(*outbox)
	// flown: all of the box is with the system.
	flown()
	// frame takes the first frame of b and returns its size, or 0 when more bytes are needed. It may call place
	// or pause.
	frame(b []byte) int
	// placed: the payload that place asked for is there.
	placed()
	// lapsed: the receive that abort ended has ended.
	lapsed()
	// lost: the descriptor is closed, and nothing touches any buffer on behalf of the stream any more.
	lost(loss)
}

// loss is the end of a stream.
type loss struct {
	err      error // io.EOF, the system's error, or what was given to retire
	sent     int   // bytes of the box under way that are with the system
	retained bool  // true exactly when the system refused to close the descriptor
}

// stream moves frames over one socket: it gathers what its user has to send into few calls, and scatters
// payload straight to its place. One send and one receive are under way at a time.
type stream struct {
	lane       *lanes.Lane
	user       user
	descriptor reactor.Descriptor
	live       bool  // true exactly from start until lost
	ending     error // non-nil from the first reason to end on

	out     outbox
	sending reactor.Ticket // non-zero exactly while a send, or a connect, is with the kernel

	inbox     lanes.Buffer
	have      []byte         // the bytes of the inbox that nobody has looked at
	receiving reactor.Ticket // non-zero exactly while a receive, or a dozing stream's watch, is with the kernel
	into      [][]byte       // where payload goes; the first ones are full
	first     int            // in into
	left      uint64         // payload bytes that are still to come into it
	placing   bool           // true exactly from place until placed
	sizable   bool           // true exactly while a large payload arrives, and for the receive behind it
	tailed    bool           // true exactly while the last buffer of into is the inbox's, for a receive
	paused    bool           // true exactly while the user takes no frames
	busy      bool           // true exactly while digest runs
	dozing    bool           // true exactly from doze until there is something to receive
	aborted   bool           // true exactly while a receive is cancelled and will be asked for again

	retry reactor.Timer // armed at most while there was no memory for the box
}

// start takes over a descriptor.
func (s *stream) start(lane *lanes.Lane, d reactor.Descriptor, u user) error {
	if s.live {
		panic("hptcp: stream started while live")
	}
	inbox, err := lane.Arena.Get(inboxBytes)
	if err != nil {
		return err
	}
	*s = stream{lane: lane, user: u, descriptor: d, live: true, inbox: inbox, out: outbox{list: s.out.list[:0]}, into: s.into[:0]}
	s.have = inbox.Bytes(inboxBytes)[:0]
	return nil
}

// connect connects the descriptor; connected or lost follows.
func (s *stream) connect(op reactor.Operation) {
	op.Kind, op.Descriptor = reactor.Connect, s.descriptor
	s.sending = s.lane.Submit(op, s)
}

// flush sends what the user has, unless a send is under way. Without memory for it, it is sent later.
func (s *stream) flush() {
	if s.sending != 0 || s.ending != nil || !s.live {
		return
	}
	if !s.out.open(&s.lane.Arena) {
		s.lane.Arm(&s.retry, s.lane.Now().After(boxRetry), s)
		return
	}
	s.user.fill(&s.out)
	if s.out.empty() {
		s.out.close(&s.lane.Arena)
		return
	}
	s.push()
}

// Expire looks for memory again (reactor.TimerHandler).
func (s *stream) Expire(*reactor.Timer, reactor.Instant) { s.flush() }

func (s *stream) push() {
	s.sending = s.submit(reactor.Send, s.out.list[s.out.first:])
}

func (s *stream) submit(kind reactor.Kind, list [][]byte) reactor.Ticket {
	op := reactor.Operation{Kind: kind, Descriptor: s.descriptor}
	op.More = list[copy(op.Buffers[:], list):]
	return s.lane.Submit(op, s)
}

// place sends the next n bytes of the stream, behind the frame just taken, to the buffers that the user has
// appended to s.into.
func (s *stream) place(n uint64) { s.left, s.placing, s.sizable = n, true, n > SmallBytes }

// pause takes no frames until resume.
func (s *stream) pause() { s.paused = true }

func (s *stream) resume() {
	s.paused = false
	s.digest()
}

// digest goes through what has arrived, and asks for more.
func (s *stream) digest() {
	if s.busy || s.receiving != 0 {
		return
	}
	s.busy = true
	for s.ending == nil && s.step() {
	}
	s.busy = false
	if s.ending != nil {
		s.settle()
		return
	}
	s.pull()
}

// step takes one frame, or payload; false when there is nothing to take.
func (s *stream) step() bool {
	if s.placing {
		for s.left > 0 && len(s.have) > 0 {
			n := copy(s.into[s.first], s.have)
			s.have = s.have[n:]
			s.filled(n)
		}
		if s.left > 0 {
			return false
		}
		s.arrived()
		return true
	}
	if s.paused {
		return false
	}
	n := s.user.frame(s.have)
	if s.ending != nil {
		return false
	}
	s.have = s.have[n:]
	return n > 0
}

func (s *stream) arrived() {
	s.into, s.first, s.placing = s.into[:0], 0, false
	s.user.placed()
}

// filled records that n bytes of payload are in place.
func (s *stream) filled(n int) {
	s.left -= uint64(n)
	for n > 0 {
		part := s.into[s.first]
		if n < len(part) {
			s.into[s.first] = part[n:]
			return
		}
		n -= len(part)
		s.into[s.first] = nil
		s.first++
	}
}

// pull asks for payload and, behind it, for frames. The list is the receive's until it ends (reactor.Operation).
func (s *stream) pull() {
	if s.ending != nil || !s.live || s.receiving != 0 || s.paused && s.left == 0 {
		return
	}
	if s.tailed = len(s.into)-s.first <= boxParts; s.tailed {
		s.into = append(s.into, s.tail())
	}
	s.receiving = s.submit(reactor.Receive, s.asked())
}

// asked are the buffers of the receive under way.
func (s *stream) asked() [][]byte { return s.into[s.first:min(len(s.into), s.first+boxParts+1)] }

// tail is the free part of the inbox. What is left in it moves to the front when the tail is short.
func (s *stream) tail() []byte {
	inbox := s.inbox.Bytes(inboxBytes)
	end := len(inbox) - (cap(s.have) - len(s.have)) // where the bytes at hand end
	if len(s.have) == 0 || len(inbox)-end < inboxMin {
		end = copy(inbox, s.have)
		s.have = inbox[:end]
	}
	if s.sizable {
		return inbox[end:min(len(inbox), end+inboxBehind)]
	}
	return inbox[end:]
}

// took records a receive of n bytes.
func (s *stream) took(n int) {
	s.sizable = s.sizable && s.placing
	direct := int(min(uint64(n), s.pending()))
	if s.tailed {
		last := len(s.into) - 1
		s.into[last], s.into, s.tailed = nil, s.into[:last], false
	}
	s.filled(direct)
	s.have = s.have[:len(s.have)+n-direct]
}

// pending is how much payload the receive under way could take.
func (s *stream) pending() uint64 {
	if s.tailed {
		return s.left
	}
	n := uint64(0)
	for _, b := range s.asked() {
		n += uint64(len(b))
	}
	return n
}

// abort ends a receive whose payload is no longer wanted where it goes. The user's lapsed is called when nothing
// touches that place any more, and redirects what is still to come. False when no receive is under way.
func (s *stream) abort() bool {
	if s.receiving == 0 {
		return false
	}
	if !s.aborted {
		s.aborted = true
		s.lane.Cancel(s.receiving)
	}
	return true
}

// redirect sends the payload that is still to come somewhere else.
func (s *stream) redirect(list [][]byte) { s.into, s.first = list, 0 }

// doze gives an idle stream's inbox back; only a watch is left with the kernel.
func (s *stream) doze() {
	if s.receiving == 0 || s.dozing || s.aborted || s.placing || len(s.have) > 0 || s.ending != nil {
		return
	}
	s.dozing = true
	s.lane.Cancel(s.receiving)
}

// dozed: the receive of a stream that is to doze has ended, perhaps with bytes.
func (s *stream) dozed(err error) bool {
	if err != syscall.ECANCELED {
		s.dozing = false
		return false
	}
	s.have = nil
	s.lane.Arena.Put(&s.inbox)
	s.receiving = s.lane.Submit(reactor.Operation{Kind: reactor.Watch, Descriptor: s.descriptor}, s)
	return true
}

// awake: there is something to receive.
func (s *stream) awake() {
	inbox, err := s.lane.Arena.Get(inboxBytes)
	if err != nil {
		s.retire(err)
		return
	}
	s.dozing, s.inbox, s.have = false, inbox, inbox.Bytes(inboxBytes)[:0]
	s.digest()
}

// retire ends the stream for good. lost follows, at once when nothing is with the kernel.
func (s *stream) retire(why error) {
	if !s.live || s.ending != nil {
		return
	}
	s.ending = why
	s.lane.Disarm(&s.retry)
	for _, ticket := range [...]reactor.Ticket{s.sending, s.receiving} {
		if ticket != 0 {
			s.lane.Cancel(ticket)
		}
	}
	s.settle()
}

// settle reports the loss once the kernel has given everything back.
func (s *stream) settle() {
	if s.sending != 0 || s.receiving != 0 || s.busy || !s.live {
		return
	}
	s.live = false
	end := loss{err: s.ending, sent: s.out.sent}
	if err := s.lane.Kernel().Close(s.descriptor); err != nil {
		end.retained = true
		s.lane.Counts.RetainedDescriptors.Add(1)
	}
	s.out.close(&s.lane.Arena)
	if s.inbox.Held() {
		s.lane.Arena.Put(&s.inbox)
	}
	clear(s.into)
	s.user.lost(end) // last: the user may start the stream again
}

// Complete takes the kernel's word (reactor.Handler).
func (s *stream) Complete(e *reactor.Event) {
	switch e.Kind {
	case reactor.Connect:
		s.sending = 0
	case reactor.Send:
		s.sending = 0
		s.out.advance(e.N)
	case reactor.Receive:
		s.receiving = 0
		s.took(e.N)
	case reactor.Watch:
		s.receiving = 0
	}
	if s.ending != nil {
		s.settle()
		return
	}
	s.proceed(e)
}

// proceed goes on with a stream that is not ending.
func (s *stream) proceed(e *reactor.Event) {
	cancelled := false
	if e.Kind == reactor.Receive && s.aborted {
		s.aborted, cancelled = false, e.Err == syscall.ECANCELED
		s.user.lapsed()
	}
	switch {
	case e.Kind == reactor.Receive && s.dozing && s.dozed(e.Err):
	case cancelled:
		s.digest()
	case e.Err != nil:
		s.retire(e.Err)
	case e.Kind == reactor.Connect:
		s.user.connected()
	case e.Kind == reactor.Watch:
		s.awake()
	case e.Kind == reactor.Send && !s.out.empty():
		s.push()
	case e.Kind == reactor.Send:
		s.out.close(&s.lane.Arena)
		s.user.flown()
		s.flush()
	case e.N == 0:
		s.retire(io.EOF)
	default:
		s.digest()
	}
}
