package hptcp

import (
	"hash/crc32"
	"math/bits"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
)

const (
	// spansMax is how many spans one request has at most, so that its chunk is one send and one receive.
	spansMax = 1000
	// slotsMax is how many requests of one stream this side keeps without an answer.
	slotsMax = SlotsDefault
)

// size is how much of the transfer the next request asks for: a chunk, or all of an Atomic WRITE.
func (l *link) size(t *Transfer) uint64 {
	if t.Atomic && t.Direction == lanes.Write {
		return t.Length
	}
	return min(t.ahead(), l.terms.Chunk)
}

// ahead is how many bytes lie in front of the transfer without a gap. With a Share another lane may take them first.
func (t *Transfer) ahead() uint64 {
	if t.front == t.until && t.Share != nil {
		return t.Share.ahead()
	}
	return t.until - t.front
}

// claim makes sure that there is something in front of the transfer; false: others have taken the last of it.
func (t *Transfer) claim() bool {
	if t.front < t.until || t.Share == nil {
		return true
	}
	p, ok := t.Share.take()
	if ok {
		t.at, t.front, t.until = cursor{p.Index, p.Inner}, p.Offset, p.Offset+p.Length
	}
	return ok
}

// room is true exactly when the stream has a place and credit for the transfer's next request (SPEC H-7). What is
// larger than all credit goes alone.
func (l *link) room(t *Transfer) bool {
	return l.used < min(int(l.terms.Slots), slotsMax) && l.stream.ending == nil &&
		(l.inFlight == 0 || l.inFlight+l.size(t) <= l.terms.InFlight)
}

// issue cuts the transfer's next request and queues it; there is room.
func (l *link) issue(t *Transfer) {
	pool := l.peer.pool
	x := pool.take()
	x.transfer, x.write, x.at, x.start = t, t.Direction == lanes.Write, t.at, t.front
	x.length = t.cut(l.size(t))
	x.slot = l.place(x)
	t.asked += x.length
	t.front += x.length
	t.parts++
	l.inFlight += x.length
	pool.idle.remove(l)
	pool.config.Counts.Requests.Add(1)
	if x.queued = true; l.tail == nil {
		l.head = x
	} else {
		l.tail.next = x
	}
	l.tail = x
}

// cut moves the transfer's place by up to n bytes, or by as many spans as one request may have.
func (t *Transfer) cut(n uint64) uint64 {
	if t.Spans == nil {
		t.at.inner += n
		return n
	}
	done, room, end := uint64(0), netproto.HPTCPRunsSizeMax-netproto.HPTCPRunSizeMax, uint64(0)
	for spans := 0; done < n; spans++ {
		s := &t.Spans[t.at.index]
		size := min(n-done, s.Length-t.at.inner)
		start := s.Remote + t.at.inner
		if !t.whole() {
			room -= varintSize(max(start, end)-min(start, end)) + varintSize(size)
			if spans == spansMax || room < 0 {
				break
			}
		}
		done, end = done+size, start+size
		if t.at.inner += size; t.at.inner == s.Length {
			t.at = cursor{t.at.index + 1, 0}
		}
	}
	return done
}

// whole is true exactly when the transfer is one request whatever its size.
func (t *Transfer) whole() bool { return t.Atomic && t.Direction == lanes.Write }

// AtomicWriteFits says whether the ranges fit one request, as those of an Atomic WRITE must; the error wraps
// budgets.ErrExhausted.
func AtomicWriteFits(spans []Span) error {
	if len(spans) > spansMax {
		return &budgets.Exhausted{Budget: AtomicRangesBudget, Unit: "ranges", Asked: int64(len(spans)), Limit: spansMax}
	}
	size, end := 0, uint64(0)
	for i := range spans {
		s := &spans[i]
		size += varintSize(max(s.Remote, end)-min(s.Remote, end)) + varintSize(s.Length)
		end = s.Remote + s.Length
	}
	if limit := netproto.HPTCPRunsSizeMax - netproto.HPTCPRunSizeMax; size > limit { // they are far apart
		return &budgets.Exhausted{Budget: AtomicBytesBudget, Unit: "bytes", Asked: int64(size), Limit: int64(limit)}
	}
	return nil
}

// Names of what bounds an Atomic WRITE.
const (
	AtomicRangesBudget = "ranges of one Atomic WRITE"
	AtomicBytesBudget  = "bytes that code the ranges of one Atomic WRITE"
)

// lose notes that a request which begins at start has not ended well.
func (t *Transfer) lose(start uint64) { t.lost = min(t.lost, start) }

// varintSize is the bytes of twice n and one, coded.
func varintSize(n uint64) int { return (bits.Len64(n) + 1 + 6) / 7 }

// place finds a place in the table.
func (l *link) place(x *part) int {
	l.used++
	if i := l.free; i >= 0 {
		l.free = l.slots[i].next
		l.slots[i].part = x
		return i
	}
	l.slots = append(l.slots, slot{part: x, generation: 1})
	return len(l.slots) - 1
}

// release frees a request's place and credit. What comes for its tag from now on finds nobody (SPEC H-3).
func (l *link) release(x *part) {
	s := &l.slots[x.slot]
	s.part, s.next = nil, l.free
	if s.generation++; s.generation == 0 {
		s.generation = 1
	}
	l.free = x.slot
	l.used--
	l.inFlight -= x.length
	l.peer.pool.give(x)
}

func (l *link) tag(x *part) netproto.HPTCPTag {
	return netproto.HPTCPTag{Slot: uint32(x.slot), Generation: l.slots[x.slot].generation}
}

// fill puts requests, and the payload of WRITEs, into the box (user).
func (l *link) fill(b *outbox) {
	if l.state == linkGreeting && !l.greeted {
		l.greeted = true
		b.frame(netproto.AppendHPTCPHello(b.header, l.hello))
	}
	for x := l.head; x != nil && b.room(); x = l.head {
		if !x.posted {
			x.posted = true
			l.ask(b, x)
		}
		if x.write && !l.pour(b, x) {
			return
		}
		l.head, x.next, x.queued = x.next, nil, false
		if l.head == nil {
			l.tail = nil
		}
	}
}

// ask codes the request itself.
func (l *link) ask(b *outbox, x *part) {
	t := x.transfer
	t.posted = max(t.posted, x.start+x.length)
	first := t.span(x.at.index)
	r := netproto.HPTCPRequest{HPTCPFrame: netproto.HPTCPFrame{Kind: netproto.HPTCPRead, Tag: l.tag(x), Offset: first.Remote + x.at.inner, Length: x.length}, Region: t.Region}
	if x.write {
		r.Kind = netproto.HPTCPWrite
		if t.Atomic {
			r.Flags = netproto.HPTCPAtomic
		}
	}
	before := len(b.header)
	header := netproto.AppendHPTCPRequest(b.header, r)
	if t.Spans != nil && x.length > first.Length-x.at.inner {
		runs := t.runs(header, x, &r)
		r.RunsSize = uint32(len(runs) - len(header))
		netproto.AppendHPTCPRequest(header[:before], r)
		header = runs
	}
	b.frame(header)
}

// runs appends the remote ranges of a request, and sets the unit that they count in. One range needs none.
func (t *Transfer) runs(dst []byte, x *part, r *netproto.HPTCPRequest) []byte {
	all := uint64(0)
	for c, left := x.at, x.length; left > 0; {
		s := &t.Spans[c.index]
		size := min(left, s.Length-c.inner)
		all |= (s.Remote + c.inner - r.Offset) | size
		left -= size
		c = cursor{c.index + 1, 0}
	}
	coder := runner{dst: dst, unit: unitOf(all), end: r.Offset}
	for c, left := x.at, x.length; left > 0; {
		s := &t.Spans[c.index]
		size := min(left, s.Length-c.inner)
		coder.add(s.Remote+c.inner, size)
		left -= size
		c = cursor{c.index + 1, 0}
	}
	coder.flush()
	r.Unit = coder.unit
	return coder.dst
}

// pour puts chunks of a WRITE into the box; false while there are more.
func (l *link) pour(b *outbox, x *part) bool {
	for x.moved < x.length && b.room() {
		n := min(x.length-x.moved, l.terms.Chunk)
		c := x.at
		f := netproto.HPTCPFrame{Kind: netproto.HPTCPChunk, Tag: l.tag(x), Offset: x.moved, Length: n}
		if l.terms.Flags&netproto.HPTCPChecksums != 0 {
			list := x.transfer.gather(l.peer.pool.scratch[:0], &c, n)
			f.Check = checksum(list)
			l.peer.pool.scratch = list[:0]
		}
		b.frame(netproto.AppendHPTCPFrame(b.header, f))
		if !x.boxed {
			x.boxed, x.boxAt = true, b.bytes
			l.box = append(l.box, x)
		}
		b.list = x.transfer.gather(b.list, &x.at, n)
		b.payload(n)
		x.moved += n
	}
	return x.moved == x.length
}

// gone counts payload of a WRITE that the system has. With the last of it nothing reads the local ranges any more: who waits
// for them need not wait for the source as well, which may wait for a range of its own.
func (t *Transfer) gone(bytes uint64) {
	switch {
	case t == nil:
	case t.Share != nil:
		t.Share.gone(bytes, t.Length)
	default:
		if t.sent += bytes; t.sent == t.Length && t.lease.Held() {
			t.lease.Return()
		}
	}
}

func checksum(list [][]byte) (sum uint32) {
	for _, b := range list {
		sum = crc32.Update(sum, castagnoli, b)
	}
	return sum
}

// flown: what the box held is with the system (user). Nothing is posted meanwhile: whoever starts a transfer when another one
// ends would put it into the next box, and this list.
func (l *link) flown() {
	ended := false
	l.peer.held++
	for i, x := range l.box {
		l.box[i] = nil
		x.transfer.gone(x.moved - x.flown)
		x.boxed, x.flown = false, x.moved
		if x.flown == x.length && (x.well || x.refused) {
			ended = true
			l.finish(x, x.well)
		}
	}
	l.box = l.box[:0]
	if l.peer.held--; ended {
		l.peer.pump()
	}
}

// finish ends a request; well says that its bytes are in place.
func (l *link) finish(x *part, well bool) {
	t, start, length := x.transfer, x.start, x.length
	l.release(x)
	if l.stream.ending == nil {
		l.rest()
	}
	if t == nil {
		return
	}
	if t.parts--; well {
		t.answered += length
		if classOf(t) == large {
			l.peer.progressed(length)
		}
	} else {
		t.lose(start)
	}
	t.settle()
}

// frame takes one frame of the source (user).
func (l *link) frame(b []byte) int {
	if l.state == linkGreeting {
		if len(b) < netproto.HPTCPHelloSize {
			return 0
		}
		l.welcomed(b[:netproto.HPTCPHelloSize])
		l.peer.pump()
		return netproto.HPTCPHelloSize
	}
	if len(b) < netproto.HPTCPFrameSize {
		return 0
	}
	f, err := netproto.DecodeHPTCPFrame(b)
	x := l.find(f.Tag)
	switch {
	case err != nil:
		l.violate("reply", err)
	case f.Kind == netproto.HPTCPChunk:
		l.chunked(f, x)
	case f.Kind == netproto.HPTCPEnd:
		l.ended(f, x)
	default:
		l.violate("reply", errAnswer)
	}
	return netproto.HPTCPFrameSize
}

// find is the request with this tag; nil: nobody waits for it any more.
func (l *link) find(tag netproto.HPTCPTag) *part {
	if uint64(tag.Slot) >= uint64(len(l.slots)) || l.slots[tag.Slot].generation != tag.Generation {
		return nil
	}
	return l.slots[tag.Slot].part
}

// chunked directs the payload behind a chunk's frame to its place.
func (l *link) chunked(f netproto.HPTCPFrame, x *part) {
	if f.Length > l.terms.Chunk || x != nil && (x.write || !x.posted || f.Offset != x.moved || f.Length > x.length-x.moved) {
		l.violate("payload", errOrder)
		return
	}
	if l.chunk, l.current = f, x; x == nil || x.transfer == nil {
		if x == nil {
			l.peer.pool.config.Counts.Late.Add(1)
		}
		l.unwanted(f.Length)
		return
	}
	t := x.transfer
	switch l.chunkAt = x.at; {
	case t.staging.Held():
		from := x.start + x.moved
		l.stream.into = append(l.stream.into, t.staging.Bytes(from + f.Length)[from:])
	case t.doubled && l.terms.Flags&netproto.HPTCPChecksums != 0:
		var err error
		if l.aside, err = l.peer.pool.lane.Arena.Get(f.Length); err != nil {
			l.retire(&lanes.Fault{Cause: lanes.Exhausted, Stage: "payload", Err: err})
			return
		}
		l.stream.into = append(l.stream.into, l.aside.Bytes(f.Length))
	default:
		l.stream.into = t.gather(l.stream.into, &x.at, f.Length)
	}
	l.stream.place(f.Length)
}

// bring puts a chunk that was received aside, and has been checked, into its place.
func (l *link) bring(x *part) {
	pool, payload := l.peer.pool, l.aside.Bytes(l.chunk.Length)
	list := x.transfer.gather(pool.scratch[:0], &x.at, l.chunk.Length)
	for _, to := range list {
		payload = payload[copy(to, payload):]
	}
	pool.scratch = list[:0]
}

// clear gives back where a chunk was received aside. Proof: no receive has it.
func (l *link) clear() {
	if l.aside.Held() {
		l.peer.pool.lane.Arena.Put(&l.aside)
	}
}

// unwanted lets n bytes go where nobody looks.
func (l *link) unwanted(n uint64) {
	pool := l.peer.pool
	list, ok := pool.sink.list(&pool.lane.Arena, l.stream.into[:0], n)
	if !ok {
		l.retire(&lanes.Fault{Cause: lanes.Exhausted, Stage: "payload", Err: errMemory})
		return
	}
	l.stream.redirect(list)
	l.stream.place(n)
}

// placed: the chunk's payload is there (user).
func (l *link) placed() {
	x := l.current
	defer l.clear()
	if l.current = nil; x == nil {
		return
	}
	t := x.transfer
	if t != nil {
		t.touched = true
	}
	if t != nil && l.terms.Flags&netproto.HPTCPChecksums != 0 && !l.intact(x) {
		l.peer.pool.config.Counts.Mismatches.Add(1)
		fault := t.mismatch(x.start+l.chunk.Offset, false)
		t.fail(fault, true)
		l.retire(besides())
		return
	}
	if l.aside.Held() {
		l.bring(x)
	}
	if x.moved += l.chunk.Length; x.moved == x.length {
		l.finish(x, true)
		l.peer.pump()
	}
}

// intact compares the chunk in place with its checksum.
func (l *link) intact(x *part) bool {
	t, pool := x.transfer, l.peer.pool
	if l.aside.Held() {
		return crc32.Checksum(l.aside.Bytes(l.chunk.Length), castagnoli) == l.chunk.Check
	}
	if t.staging.Held() {
		from := x.start + x.moved
		return crc32.Checksum(t.staging.Bytes(from + l.chunk.Length)[from:], castagnoli) == l.chunk.Check
	}
	c := l.chunkAt
	list := t.gather(pool.scratch[:0], &c, l.chunk.Length)
	pool.scratch = list[:0]
	return checksum(list) == l.chunk.Check
}

// ended takes the source's word about a request.
func (l *link) ended(f netproto.HPTCPFrame, x *part) {
	success := f.Status == netproto.StatusSuccess
	switch {
	case x == nil:
		l.peer.pool.config.Counts.Late.Add(1)
		return
	case !x.posted, success && x.write && x.moved < x.length, success && !x.write && x.length > 0,
		!success && !x.write && x.moved > 0, x.refused, x.well:
		l.violate("reply", errAnswer)
		return
	case success && x.write && x.flown < x.length:
		x.well = true // the source has the payload, but the kernel has not said yet that it has let go of it
		return
	case success:
		l.finish(x, true)
		l.peer.pump()
		return
	}
	t, start := x.transfer, x.start
	if x.write && x.flown < x.length {
		x.refused = true // the source takes the rest of the payload, and throws it away
	} else {
		x.transfer = nil
		if t != nil {
			t.parts--
			t.lose(start)
		}
		l.finish(x, false)
	}
	if t != nil {
		t.fail(l.refusal(f, start, t), false)
	}
	l.peer.pump()
}

// refusal is what a source's no means.
func (l *link) refusal(f netproto.HPTCPFrame, start uint64, t *Transfer) *lanes.Fault {
	if f.Flags&netproto.HPTCPMismatch != 0 {
		l.peer.pool.config.Counts.Mismatches.Add(1)
		t.unsure = true
		return t.mismatch(start+f.Offset, true)
	}
	return &lanes.Fault{Cause: lanes.Refused, Stage: "reply", Status: f.Status, Actual: l.terms.Source, Expected: l.peer.epoch}
}

// lapsed: nothing touches the place of the chunk under way any more, whose transfer has ended (user).
func (l *link) lapsed() {
	x := l.current
	if x == nil || x.transfer == nil {
		return
	}
	l.touch()
	if l.stream.left > 0 {
		l.unwanted(l.stream.left)
	}
	l.clear()
	l.orphan(x)
}

// touch notes that bytes of the chunk under way are in the local range, if there are any.
func (l *link) touch() {
	if x := l.current; x != nil && x.transfer != nil && l.stream.left < l.chunk.Length {
		x.transfer.touched = true
	}
}

// orphan lets a transfer go on without one of its requests; the answer will find nobody.
func (l *link) orphan(x *part) {
	t := x.transfer
	if x.transfer = nil; t != nil {
		t.parts--
		t.lose(x.start)
		t.settle()
	}
}

// forsake withdraws a failing transfer's requests that are not posted; at once, it gives up the others: one whose payload is
// half sent, or whose time is over (SPEC T-5), takes the stream with it.
func (l *link) forsake(t *Transfer, fault *lanes.Fault, atOnce bool) {
	if l.state != linkReady || l.stream.ending != nil {
		return // lost is on its way and tells all of them
	}
	ends := false
	for i := range l.slots {
		x := l.slots[i].part
		if x == nil || x.transfer != t {
			continue
		}
		switch {
		case !x.posted:
			l.withdraw(x)
		case !atOnce, x.well && fault.Cause != lanes.Deadline: // the source has it, so that the system has let go of it soon
		case fault.Cause == lanes.Deadline || x.write && x.flown < x.length:
			ends = true
		case x == l.current && l.stream.abort():
		case x == l.current:
			l.lapsed()
		default:
			t.unsure = t.unsure || x.write && x.length > 0
			l.orphan(x)
		}
	}
	if ends {
		l.retire(besides())
	}
}

// besides is what transfers are told whose stream ended because of another one, which has a fault of its own.
func besides() *lanes.Fault {
	return &lanes.Fault{Cause: lanes.Disconnected, Stage: "payload", Err: ErrBesides}
}

// withdraw takes a request back that was never posted.
func (l *link) withdraw(x *part) {
	var before *part
	for at := l.head; at != x; at = at.next {
		before = at
	}
	if before == nil {
		l.head = x.next
	} else {
		before.next = x.next
	}
	if l.tail == x {
		l.tail = before
	}
	t := x.transfer
	t.lose(x.start)
	l.release(x)
	t.parts--
	l.rest()
}
