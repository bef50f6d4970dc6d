package hptcp

import (
	"hash/crc32"
	"net/netip"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
)

// session is the source's side of one data stream. It takes one frame after the other, and answers in their order.
//
//	hello ──welcome──▶ frames: READ ─leased─▶ queued ─sent─▶ done
//	  └─refused─▶ closed       WRITE ─leased─▶ chunks ─all there─▶ (Atomic: commit) ─▶ END queued ─sent─▶ done
//	                           refused ─▶ END queued, chunks thrown away
type session struct {
	service    *Service
	stream     stream
	peer       netip.AddrPort
	descriptor reactor.Descriptor
	charge     budgets.Charge
	hello      netproto.HPTCPHello
	terms      netproto.HPTCPWelcome
	ready      bool // true exactly when a hello was accepted
	answer     bool // true exactly while the answer to the hello is to be sent
	fresh      bool // true exactly while the timer stands for dozing, not for the end
	begun      bool // true exactly when the time of a frame that is there in part is running
	ending     bool // true exactly when the stream closes after what is to be sent

	head, tail *served // to be answered, or being answered
	queued     int     // how many
	unfilled   int     // how many are not wholly in a box
	inFlight   uint64  // payload bytes of all requests whose answer is not wholly in a box
	filled     *served // the first that is not wholly in the box under way
	current    *served // the WRITE whose payload is arriving; nil also for one that was refused
	request    netproto.HPTCPRequest
	pending    *served // waits for its lease
	discard    uint64  // payload bytes of a refused WRITE that are still to come
	chunk      netproto.HPTCPFrame
	chunkAt    cursor

	timer      reactor.Timer
	retry      reactor.Timer
	backoff    lanes.Backoff
	letter     reactor.Letter
	prev, next *session
}

// idle is true exactly when the stream has nothing to do.
func (x *session) idle() bool { return x.ready && x.free() && len(x.stream.have) == 0 }

// free is true exactly when no request is being worked on; a part of the next one may be there.
func (x *session) free() bool {
	return x.queued == 0 && x.current == nil && x.pending == nil && x.discard == 0
}

// connected does not happen to an accepted stream (user).
func (x *session) connected() {}

// lapsed does not happen: a source takes no payload back (user).
func (x *session) lapsed() {}

// frame takes one frame of the requester (user).
func (x *session) frame(b []byte) int {
	switch {
	case x.ending:
		return 0
	case !x.ready:
		return x.greet(b)
	case len(b) < netproto.HPTCPFrameSize:
		return x.short(b)
	}
	f, err := netproto.DecodeHPTCPFrame(b)
	switch {
	case f.Kind == netproto.HPTCPChunk && err == nil:
		x.chunked(f)
		return netproto.HPTCPFrameSize
	case f.Kind == netproto.HPTCPRead || f.Kind == netproto.HPTCPWrite:
		return x.requested(b)
	case err != nil:
		x.violate(err)
	default:
		x.violate(errAnswer)
	}
	return 0
}

// short waits for the rest of a frame; one that has begun has the source's time.
func (x *session) short(b []byte) int {
	if lane := x.service.lane; len(b) > 0 && !x.begun && x.head == nil {
		x.begun, x.fresh = true, false
		lane.Arm(&x.timer, lane.Now().After(lane.Policy.SourceTimeout), x)
	}
	return 0
}

// greet checks the hello: version and both lives (SPEC H-2).
func (x *session) greet(b []byte) int {
	lane, config := x.service.lane, &x.service.config
	if len(b) < netproto.HPTCPHelloSize {
		return 0
	}
	h, err := netproto.DecodeHPTCPHello(b[:netproto.HPTCPHelloSize])
	w := netproto.HPTCPWelcome{Source: lane.Policy.Epoch, Requester: h.Requester}
	switch {
	case err != nil:
		x.violate(err)
		return 0
	case h.Expected != lane.Policy.Epoch:
		w.Status = netproto.StatusEpochMismatch
	case config.Gate.Fenced():
		w.Status = netproto.StatusSourceClosed
	case int(h.Stream%streamIndexes) >= config.StreamsMax: // so each way from a requester has no more, and the budget bounds them all
		w.Status = netproto.StatusExhausted
	default:
		x.service.replace(h)
		w.Slots, w.Flags = SlotsDefault, h.Flags
		w.Chunk, w.InFlight = min(h.Chunk, config.ChunkBytes), min(h.InFlight, config.InFlightBytes)
	}
	x.hello, x.terms, x.answer = h, w, true
	x.ready, x.ending = w.Status == netproto.StatusSuccess, w.Status != netproto.StatusSuccess
	if x.ending {
		config.Counts.Refused.Add(1)
		lane.Counts.Refused(w.Status, true)
		x.stream.pause()
	}
	x.work()
	return netproto.HPTCPHelloSize
}

// violate ends the stream because the requester broke the protocol.
func (x *session) violate(err error) {
	lane := x.service.lane
	lane.Journal.Add(lane.Now(), lanes.Note{Kind: lanes.NoteProtocol, Where: x.peer.String(), Err: err})
	x.stream.retire(err)
}

// work sends what is to be sent, and restarts the stream's clock, unless answers are to be taken: what is asked for
// meanwhile gives them no more time (SPEC T-9).
func (x *session) work() {
	if x.head == nil {
		x.restart()
		return
	}
	x.begun = false
	x.stream.flush()
}

// restart restarts the stream's clock, and sends what is to be sent. The source's time runs from one answer to the
// next while there is work, and its patience with an idle stream otherwise (SPEC T-6, T-9).
func (x *session) restart() {
	lane := x.service.lane
	patience := lane.Policy.SourceTimeout
	x.fresh = false
	if x.ready && x.free() {
		if x.service.closing { // behind an answer, or behind payload that was thrown away
			x.stream.retire(errShutdown)
			return
		}
		patience, x.fresh = dozeAfter, true
	}
	x.begun = false
	lane.Arm(&x.timer, lane.Now().After(patience), x)
	x.stream.flush()
}

// Expire ends what takes too long (reactor.TimerHandler).
func (x *session) Expire(t *reactor.Timer, _ reactor.Instant) {
	counts := &x.service.lane.Counts
	switch {
	case t == &x.retry:
		x.proceed()
	case x.fresh:
		x.fresh = false
		if x.idle() {
			x.stream.doze()
		}
		x.service.lane.Arm(&x.timer, x.service.lane.Now().After(x.service.lane.Policy.IdleTimeout), x)
	case x.idle():
		counts.IdleClosed.Add(1)
		x.stream.retire(errIdle)
	default:
		counts.SourceTimeouts.Add(1)
		x.stream.retire(errSilent)
	}
}

// fill puts answers into the box (user).
func (x *session) fill(b *outbox) {
	if x.answer {
		x.answer = false
		b.frame(netproto.AppendHPTCPWelcome(b.header, x.terms))
	}
	for y := x.filled; y != nil && b.room(); y = x.filled {
		if y.over {
			b.frame(netproto.AppendHPTCPFrame(b.header, y.end))
		} else if !x.pour(b, y) {
			return
		}
		// From here on the requester may have all of the answer before the kernel says so, and ask again.
		x.filled = y.next
		x.unfilled--
		x.inFlight -= y.length
	}
}

// pour puts chunks of a READ into the box; false while there are more.
func (x *session) pour(b *outbox, y *served) bool {
	for y.moved < y.length && b.room() {
		n := min(y.length-y.moved, x.terms.Chunk)
		f := netproto.HPTCPFrame{Kind: netproto.HPTCPChunk, Tag: y.tag, Offset: y.moved, Length: n}
		if x.terms.Flags&netproto.HPTCPChecksums != 0 {
			c := y.at
			list := y.gather(x.service.scratch[:0], &c, n)
			f.Check = checksum(list)
			x.service.scratch = list[:0]
		}
		b.frame(netproto.AppendHPTCPFrame(b.header, f))
		b.list = y.gather(b.list, &y.at, n)
		b.payload(n)
		y.moved += n
	}
	return y.moved == y.length
}

// flown: the answers in the box are with the system (user).
func (x *session) flown() {
	for y := x.head; y != nil && y != x.filled; y = x.head {
		x.head = y.next
		if x.head == nil {
			x.tail = nil
		}
		x.queued--
		if !y.over {
			x.done(y)
		}
		x.release(y)
	}
	if x.ending && !x.answer {
		x.stream.retire(errStranger)
		return
	}
	x.restart()
}

// chunked directs the payload behind a chunk's frame to its place.
func (x *session) chunked(f netproto.HPTCPFrame) {
	y := x.current
	switch {
	case f.Length > x.terms.Chunk:
		x.violate(errOrder)
	case x.discard > 0 && f.Length <= x.discard && f.Tag == x.request.Tag && f.Offset == x.request.Length-x.discard:
		x.discard -= f.Length
		x.throwAway(f.Length)
	case y == nil:
		x.violate(errOrphaned)
	case f.Tag != y.tag || f.Offset != y.moved || f.Length > y.length-y.moved:
		x.violate(errOrder)
	default:
		x.chunk, x.chunkAt = f, y.at
		if y.staging.Held() {
			x.stream.into = append(x.stream.into, y.staging.Bytes(y.moved + f.Length)[y.moved:])
		} else {
			x.stream.into = y.gather(x.stream.into, &y.at, f.Length)
		}
		x.stream.place(f.Length)
	}
}

// throwAway lets n bytes go where nobody looks.
func (x *session) throwAway(n uint64) {
	list, ok := x.service.sink.list(&x.service.lane.Arena, x.stream.into[:0], n)
	if !ok {
		x.stream.retire(errMemory)
		return
	}
	x.stream.redirect(list)
	x.stream.place(n)
}

// placed: the chunk's payload is there (user).
func (x *session) placed() {
	y := x.current
	if y == nil {
		if x.discard == 0 {
			x.work()
		}
		return
	}
	if x.terms.Flags&netproto.HPTCPChecksums != 0 && !x.intact(y) {
		x.service.config.Counts.Mismatches.Add(1)
		x.current, x.discard = nil, y.length-y.moved-x.chunk.Length
		x.conclude(y, netproto.HPTCPFrame{Kind: netproto.HPTCPEnd, Flags: netproto.HPTCPMismatch, Status: netproto.StatusProtocolError, Offset: x.chunk.Offset})
		return
	}
	if y.moved += x.chunk.Length; y.moved < y.length {
		return
	}
	x.complete()
}

// intact compares the chunk in place with its checksum.
func (x *session) intact(y *served) bool {
	if y.staging.Held() {
		return crc32.Checksum(y.staging.Bytes(y.moved + x.chunk.Length)[y.moved:], castagnoli) == x.chunk.Check
	}
	c := x.chunkAt
	list := y.gather(x.service.scratch[:0], &c, x.chunk.Length)
	x.service.scratch = list[:0]
	return checksum(list) == x.chunk.Check
}

// lost takes the end of the stream (user). An Atomic WRITE whose commit has begun completes it: that is bounded,
// and the range must not stay half changed (SPEC T-1).
func (x *session) lost(end loss) {
	s, lane := x.service, x.service.lane
	lane.Disarm(&x.timer)
	lane.Disarm(&x.retry)
	for y := x.head; y != nil; y = x.head {
		x.head = y.next
		x.release(y)
	}
	for _, y := range [...]*served{x.current, x.pending} {
		if y == nil {
			continue
		}
		for y.staging.Held() && y.lease.Held() && !y.put() {
		}
		x.release(y)
	}
	x.current, x.pending, x.tail, x.filled = nil, nil, nil, nil
	s.all.remove(x)
	if end.retained {
		lane.Journal.Add(lane.Now(), lanes.Note{Kind: lanes.NoteRetained, Where: x.peer.String(), Err: end.err})
	} else {
		x.charge.Repay() // proof: lost says that the descriptor is closed
	}
	s.departed()
}
