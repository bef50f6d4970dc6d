package control

import (
	"io"
	"syscall"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/reactor"
)

// chunkBytesMax bounds one operation on a socket, so that one huge payload takes its turn like
// everything else on the lane (SPEC L-2). From 1 MiB up larger calls gain nothing; a payload of just that goes in one
// call with its header, instead of a call and a packet more for the last few bytes.
const chunkBytesMax = 1<<20 + outBytes

// User owns a stream and is told what became of what it asked.
type User interface {
	// Connected: the stream that Connect started is connected.
	Connected()
	// Sent: everything given to Send is with the system.
	Sent(n int)
	// Received: at least the minimum given to Receive is there, n bytes in all.
	Received(n int)
	// Readable: the watched, idle stream was closed by its peer or has bytes that nobody asked for.
	Readable()
	// Lost: the stream is closed and nothing of the system touches any buffer on its behalf any more.
	Lost(Loss)
}

// Loss is the end of a stream.
type Loss struct {
	// Err is io.EOF, the system's error, or what was given to Retire.
	Err error
	// Sent and Received count the bytes that the interrupted Send and Receive had moved.
	Sent, Received int
	// Retained is true exactly when the system refused to close the descriptor: it is never tried
	// again, and what is charged for it stays charged (SPEC T-5).
	Retained bool
}

// half is one direction of a stream.
type half struct {
	ticket  reactor.Ticket // non-zero exactly while an operation is with the kernel
	buffers [2][]byte
	least   int // bytes after which the user is told
	moved   int
	asked   int // sending: bytes of the operation under way
}

func (h *half) start(a, b []byte, least int) {
	h.buffers, h.least, h.moved = [2][]byte{a, b}, least, 0
}

// rest is what the next operation moves: what is left, at most one chunk of it.
func (h *half) rest() (rest [2][]byte) {
	skip, room := h.moved, chunkBytesMax
	for i, b := range h.buffers {
		if skip >= len(b) {
			skip -= len(b)
			continue
		}
		b = b[skip:]
		skip = 0
		if len(b) > room {
			b = b[:room]
		}
		room -= len(b)
		rest[i] = b
	}
	return rest
}

// Stream moves whole frames over one socket of a lane. One Send and one Receive may be under way at
// a time. It is part of its owner and can be started again after Lost.
type Stream struct {
	lane       *lanes.Lane
	user       User
	descriptor reactor.Descriptor
	out, in    half
	watch      reactor.Ticket // non-zero exactly while a watch is with the kernel
	watching   bool           // true exactly while the user wants to hear Readable
	ending     error          // non-nil from the first reason to end until the next start
	live       bool           // true exactly from start until Lost
	ahead      []byte         // where bytes may be received that nobody has asked for yet; nil: none are
	aside      []byte         // where the receive under way puts them
	early      []byte         // those of them that are there
	lone       bool           // true exactly when the receive under way has nothing behind it
	due        bool           // true exactly while what Receive asked for is there and not told
	along      []byte         // where SendSoon keeps what it was given; nil: it takes nothing
	held       int            // bytes in it that are not with the system
	extra      int            // bytes of the Send under way that are SendSoon's
	behind     [2][]byte      // of a Send that waits for those
	lender     Lender         // of the Send under way, while the system may take from what was lent; nil: nothing is
	loan       int            // which of its buffers was lent
	stopped    bool           // true exactly while that Send waits for Instead
	telling    bool           // true exactly while the user is told something, or resumed: inside Complete, Expire and resume
	soon       reactor.Timer  // armed while something is due outside of them
}

// readAhead lets the stream receive more than was asked for into b, so that small frames that follow each other cost
// one operation. It belongs to the stream until Lost, or until the next readAhead and the end of what was then under way.
func (s *Stream) readAhead(b []byte) { s.ahead = b }

// unasked is true exactly when bytes are there that nobody has asked for.
func (s *Stream) unasked() bool { return len(s.early) > 0 }

// sendAlong lets the stream keep in b what SendSoon is given. It belongs to the stream until Lost.
func (s *Stream) sendAlong(b []byte) { s.along = b }

// start takes over a descriptor.
func (s *Stream) start(lane *lanes.Lane, d reactor.Descriptor, user User) {
	if s.live {
		panic("control: stream started while live")
	}
	*s = Stream{lane: lane, user: user, descriptor: d, live: true}
}

// connect connects the descriptor; Connected or Lost follows.
func (s *Stream) connect(op reactor.Operation) {
	op.Kind, op.Descriptor = reactor.Connect, s.descriptor
	s.out.start(nil, nil, 0)
	s.out.ticket = s.lane.Submit(op, s)
}

// Lender lends memory to a Send for as long as the system takes from it without waiting for the peer.
type Lender interface {
	// Short: the system took only n bytes of what was lent, and what was lent is the lender's again. The Send goes on with Instead.
	// It may come before SendLent returns.
	Short(n int)
}

// Send sends a, then b. Both stay untouched by their owner until Sent or Lost.
func (s *Stream) Send(a, b []byte) {
	s.lender = nil
	s.send(a, b)
}

// SendLent is a Send of which one buffer, with the index loan, is only lent: until Sent, Short or Lost, each of which comes without
// waiting for the peer. The other one is the stream's until Sent or Lost.
func (s *Stream) SendLent(a, b []byte, loan int, lender Lender) {
	s.lender, s.loan = lender, loan
	s.send(a, b)
}

// Instead goes on with a Send that was Short: b is what was lent, at another place, and stays untouched until Sent or Lost.
func (s *Stream) Instead(b []byte) {
	if s.ending != nil {
		return
	}
	s.stopped = false
	if len(s.behind[0])+len(s.behind[1]) > 0 {
		s.behind[s.loan] = b
		s.follow()
		return
	}
	s.out.buffers[s.loan] = b
	s.push()
}

// sending is true exactly while a Send is not at its end.
func (s *Stream) sending() bool { return s.out.ticket != 0 || s.stopped }

func (s *Stream) send(a, b []byte) {
	if s.ending != nil {
		return // Lost is on its way and reports that nothing was sent
	}
	if s.out.ticket != 0 && s.extra > 0 { // what SendSoon was given found nothing to go with, and may have to wait for the peer
		if s.behind = [2][]byte{a, b}; s.lender != nil {
			s.short(0)
		}
		return
	}
	if s.extra = s.held; s.held > 0 {
		a, b = s.behindHeld(a, b)
		s.held = 0
	}
	s.out.start(a, b, len(a)+len(b))
	s.push()
}

// behindHeld is what SendSoon was given, and then a and b: a beside it when there is b, too.
func (s *Stream) behindHeld(a, b []byte) (first, second []byte) {
	if len(b) == 0 {
		s.loan = 1 // if a was lent
		return s.along[:s.held], a
	}
	return append(s.along[:s.held], a...), b
}

// SendSoon sends a copy of b, in one call with what is sent next if that is before the user's present call returns. The
// user is not told. False when that is not to be had; then nothing was done.
func (s *Stream) SendSoon(b []byte) bool {
	if !s.telling || s.held > 0 || len(b) > len(s.along) || s.sending() || s.ending != nil {
		return false
	}
	s.held = copy(s.along, b)
	return true
}

func (s *Stream) push() {
	rest := s.out.rest()
	s.out.asked = len(rest[0]) + len(rest[1])
	op := reactor.Operation{Kind: reactor.Send, AtOnce: s.lender != nil, Descriptor: s.descriptor, Buffers: rest}
	s.out.ticket = s.lane.Submit(op, s)
}

// lentMoved is how many bytes of what was lent are with the system.
func (s *Stream) lentMoved() int {
	n := s.out.moved
	for _, b := range s.out.buffers[:s.loan] {
		n -= len(b)
	}
	return min(max(n, 0), len(s.out.buffers[s.loan]))
}

// short ends a loan of which the system took only n bytes.
func (s *Stream) short(n int) {
	lender := s.lender
	s.lender, s.stopped = nil, true
	lender.Short(n)
}

// Receive fills a, then b, and tells the user once at least least bytes are there. Both belong to
// the stream until Received or Lost.
func (s *Stream) Receive(a, b []byte, least int) { s.receive(a, b, least, false) }

// receive is Receive; lone says that nothing can come behind yet, so that nothing is received ahead.
func (s *Stream) receive(a, b []byte, least int, lone bool) {
	if s.ending != nil {
		return
	}
	s.in.start(a, b, least)
	s.lone = lone
	if len(s.early) > 0 {
		s.take()
	}
	if s.in.moved < least {
		s.pull()
		return
	}
	s.due = true
	if !s.telling { // the user is inside something else now
		s.lane.Arm(&s.soon, s.lane.Now(), s)
	}
}

// take fills the buffers from what came early.
func (s *Stream) take() {
	for _, b := range s.in.rest() {
		n := copy(b, s.early)
		s.in.moved += n
		s.early = s.early[n:]
	}
}

func (s *Stream) pull() {
	rest := s.in.rest()
	if s.ahead != nil && !s.lone && rest[1] == nil && s.in.whole(rest[0]) {
		s.aside = s.ahead
		if both := joined(rest[0], s.ahead); both != nil {
			rest[0] = both
		} else {
			rest[1] = s.ahead
		}
	}
	s.in.ticket = s.lane.Submit(reactor.Operation{Kind: reactor.Receive, Descriptor: s.descriptor, Buffers: rest}, s)
}

// joined is a and b as one buffer, which the system takes sooner than two; nil when b does not lie right behind a.
func joined(a, b []byte) []byte {
	n := len(a)
	if cap(a) < n+len(b) || &a[:n+1][n] != &b[0] {
		return nil
	}
	return a[:n+len(b)]
}

// whole is true exactly when the piece is all that is left.
func (h *half) whole(piece []byte) bool {
	return h.moved+len(piece) == len(h.buffers[0])+len(h.buffers[1])
}

// arrived counts received bytes; what is beyond the buffers came early.
func (s *Stream) arrived(n int) {
	asked := len(s.in.buffers[0]) + len(s.in.buffers[1])
	if s.in.moved += n; s.in.moved > asked {
		s.early = s.aside[:s.in.moved-asked]
		s.in.moved = asked
	}
}

// Expire tells what was due (reactor.TimerHandler).
func (s *Stream) Expire(*reactor.Timer, reactor.Instant) {
	s.telling = true
	s.tell()
}

// resume calls r as if something was told.
func (s *Stream) resume(r Resumer) {
	s.telling = true
	r.Resume()
	s.tell()
}

// tell hands over what was there when it was asked for, and ends the telling: what SendSoon was given goes alone if nothing took
// it along.
func (s *Stream) tell() {
	for s.due && s.ending == nil {
		s.due = false
		moved := s.in.moved
		s.in.start(nil, nil, 0)
		s.user.Received(moved)
	}
	s.telling = false
	if s.held > 0 && s.ending == nil {
		s.Send(nil, nil)
	}
}

// Watch asks for Readable, for a stream on which nothing is expected.
func (s *Stream) Watch() {
	s.watching = true
	if s.watch == 0 && s.ending == nil {
		s.watch = s.lane.Submit(reactor.Operation{Kind: reactor.Watch, Descriptor: s.descriptor}, s)
	}
}

// Unwatch ends a watch.
func (s *Stream) Unwatch() {
	if s.watching && s.watch != 0 {
		s.lane.Cancel(s.watch)
	}
	s.watching = false
}

// Retire ends the stream for good. Lost follows, at once when nothing is with the kernel.
func (s *Stream) Retire(why error) {
	if !s.live || s.ending != nil {
		return
	}
	s.ending = why
	for _, ticket := range [...]reactor.Ticket{s.out.ticket, s.in.ticket, s.watch} {
		if ticket != 0 {
			s.lane.Cancel(ticket)
		}
	}
	s.settle()
}

// settle reports the loss once the kernel has given everything back: the proof that no buffer is
// touched any more is that each ticket has had its completion.
func (s *Stream) settle() {
	if s.out.ticket != 0 || s.in.ticket != 0 || s.watch != 0 {
		return
	}
	s.live = false
	s.lane.Disarm(&s.soon)
	loss := Loss{Err: s.ending, Sent: max(s.out.moved-s.extra, 0), Received: s.in.moved}
	if err := s.lane.Kernel().Close(s.descriptor); err != nil {
		loss.Retained = true
		s.lane.Counts.RetainedDescriptors.Add(1)
	}
	s.user.Lost(loss)
}

// Complete takes the kernel's word (reactor.Handler).
func (s *Stream) Complete(e *reactor.Event) {
	switch e.Kind {
	case reactor.Connect:
		s.out.ticket = 0
	case reactor.Send:
		s.out.ticket = 0
		s.out.moved += e.N
	case reactor.Receive:
		s.in.ticket = 0
		s.arrived(e.N)
	case reactor.Watch:
		s.watch = 0
	}
	if s.ending != nil {
		s.settle()
		return
	}
	s.telling = true
	s.proceed(e)
	s.tell()
}

// proceed goes on with a stream that is not ending.
func (s *Stream) proceed(e *reactor.Event) {
	switch {
	case e.Kind == reactor.Watch:
		s.watched(e)
	case e.Err != nil:
		s.Retire(e.Err)
	case e.Kind == reactor.Connect:
		s.user.Connected()
	case e.Kind == reactor.Send && s.lender != nil && e.N < s.out.asked:
		s.short(s.lentMoved())
	case e.Kind == reactor.Send && s.out.moved < s.out.least:
		s.push()
	case e.Kind == reactor.Send:
		s.sent()
	case e.N == 0:
		s.Retire(io.EOF)
	case s.in.moved < s.in.least:
		s.pull()
	default:
		moved := s.in.moved
		s.in.start(nil, nil, 0)
		s.user.Received(moved)
	}
}

// sent tells the user, unless it was SendSoon's bytes alone that were sent.
func (s *Stream) sent() {
	moved := s.out.moved - s.extra
	s.extra = 0
	s.out.start(nil, nil, 0)
	if moved > 0 {
		s.lender = nil
		s.user.Sent(moved)
		return
	}
	s.follow()
}

// follow sends what waited for SendSoon's bytes, once those are sent and nobody copies it.
func (s *Stream) follow() {
	if a, b := s.behind[0], s.behind[1]; len(a)+len(b) > 0 && s.out.ticket == 0 && !s.stopped {
		s.behind = [2][]byte{}
		s.send(a, b)
	}
}

// watched handles the end of a watch, which may have been cancelled, or cancelled and wanted again.
func (s *Stream) watched(e *reactor.Event) {
	if !s.watching {
		return
	}
	s.watching = false
	if e.Err == syscall.ECANCELED {
		s.Watch()
		return
	}
	s.user.Readable()
}
