package hptcp

import (
	"errors"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

// leaseGrace is how long a transfer waits for a conflicting lease of its local ranges before it is refused: what
// has just ended on the other side of a socket may hold its lease a moment longer.
const leaseGrace = 100 * time.Millisecond

var errRange = errors.New("a span leaves the local registration, is empty, or the spans do not add up to the transfer's length")

// state is where a transfer is.
//
//	idle ─Start─▶ moving ─leased, posted, all answered─▶ committing (Atomic READ) ─▶ idle
//	                │  └─conflict─▶ leasing ─later─▶ moving        └─conflict too long─▶ idle
//	                └─failure, end─▶ failing ─nothing with the kernel─▶ idle
type state uint8

const (
	stateIdle state = iota
	stateLeasing
	stateMoving
	stateFailing
	stateCommitting
)

// Transfer is one READ or WRITE at the requester. Its owner fills the exported fields, keeps the local
// registration borrowed until Done, and may use it again afterwards. It lives on the peer's lane from Start to
// Done and allocates nothing there unless it fails.
type Transfer struct {
	Direction lanes.Direction
	// Local is the local registration, borrowed by the owner; LocalOffset is relative to it.
	Local       *segments.Registration
	LocalOffset uint64
	// Region, Offset, Length name the remote range.
	Region, Offset, Length uint64
	// Spans, if not nil, are the ranges instead of LocalOffset and Offset; together they have Length bytes, and none
	// is empty. The list stays unchanged until Done.
	Spans []Span
	// Set, if Spans is not nil, holds their local ranges (segments.Set.Fill): the owner makes it, since sorting many
	// is no work for a lane. Nil: the lease covers everything from the first to the last byte.
	Set *segments.Set
	// Share, if not nil, has the pieces of the payload: this transfer carries those that it takes, others the rest. All have
	// the same fields above and the same Share; none is Atomic, and the local ranges do not overlap. Leads is true for the
	// one that leases them; Leased is called on its lane when it has: the others are started after that.
	Share  *Share
	Leads  bool
	Leased func()
	// Atomic keeps the range it changes as it was unless all bytes are there (SPEC H-5, T-1). Length is then at most
	// what both ends allow for one payload.
	Atomic   bool
	Deadline reactor.Instant
	// Outcome is set before Done is called, on the lane.
	Outcome lanes.Outcome
	// Prefix and Begun are set with it: so many bytes from the payload's front are in place whatever failed, and nothing
	// behind so many bytes was asked for. In between each piece may be there, wholly or in part, or not. With a Share Prefix
	// says only that nothing that this transfer took is missing before it.
	Prefix, Begun uint64
	Done          func(*Transfer)

	peer       *Peer
	state      state
	lease      segments.Lease
	staging    lanes.Buffer // Atomic READ: where the payload goes first
	memory     []byte       // the leased bytes, and
	base       uint64       // where they begin, relative to the registration; may wrap
	at         cursor       // what is not asked for yet begins here,
	front      uint64       // so far into the payload,
	until      uint64       // and ends here: with the payload, or with the piece at hand
	asked      uint64       // bytes asked for
	answered   uint64       // bytes whose request has ended well
	sent       uint64       // WRITE: payload bytes that the system has
	posted     uint64       // where the farthest posted request ends
	lost       uint64       // where the first request begins that ended otherwise; above Length: none did
	parts      int          // requests that are out, or hold memory of this transfer
	touched    bool         // READ: true exactly when payload may have gone into the local range
	doubled    bool         // READ: true when its local ranges may overlap, so that a chunk cannot be checked in its place
	unsure     bool         // WRITE: true exactly when payload may have left without an answer
	fault      *lanes.Fault
	retained   bool
	copied     uint64
	copyAt     cursor
	timer      reactor.Timer // deadline
	retry      reactor.Timer // of a lease, of a commit
	backoff    lanes.Backoff
	leaseBy    reactor.Instant
	prev, next *Transfer // in its peer's list while something is to be asked for
	list       *transferList
}

// deadline is the transfer as the handler of its deadline's timer.
type deadline Transfer

// Expire ends the transfer (reactor.TimerHandler).
func (d *deadline) Expire(*reactor.Timer, reactor.Instant) {
	t := (*Transfer)(d)
	t.fail(&lanes.Fault{Cause: lanes.Deadline, Stage: t.stage(), Err: t.unopened()}, true)
}

// unopened says that a transfer has asked for nothing yet, because the data port has not answered: an *UnreachedError; nil when
// that is not so. Memory says that it has had a stream, or runs beside one that has.
func (t *Transfer) unopened() error {
	if t.state != stateMoving || t.asked > 0 || t.memory != nil {
		return nil
	}
	return t.peer.opening(classOf(t))
}

// Start begins; on the peer's lane. Done follows, possibly at once.
func (t *Transfer) Start(p *Peer) {
	t.peer, t.state = p, stateLeasing
	t.at, t.front, t.until, t.asked, t.answered, t.parts = cursor{}, 0, t.Length, 0, 0, 0
	t.sent, t.posted, t.lost = 0, 0, ^uint64(0)
	t.touched, t.unsure, t.retained, t.fault = false, false, false, nil
	if t.Share != nil {
		t.until = 0
	}
	t.doubled = t.Spans != nil && (t.Set == nil || t.Set.Bytes() < t.Length)
	t.backoff, t.leaseBy = lanes.Backoff{}, 0
	lane := p.pool.lane
	switch {
	case p.closed != nil:
		t.refuse(&lanes.Fault{Cause: lanes.Closed})
	case t.Deadline <= lane.Now():
		t.refuse(&lanes.Fault{Cause: lanes.Deadline, Stage: "start"})
	case t.Spans != nil && (t.Share == nil || t.Leads) && !t.fits():
		t.refuse(&lanes.Fault{Cause: lanes.Refused, Stage: "start", Status: netproto.StatusInvalidRange, Err: errRange})
	case t.Atomic && t.Length > lane.Policy.PayloadBytesMax:
		t.refuse(&lanes.Fault{Cause: lanes.Exhausted, Stage: "start", Err: errAtomicTooLong})
	case t.whole() && AtomicWriteFits(t.Spans) != nil:
		t.refuse(&lanes.Fault{Cause: lanes.Exhausted, Stage: "start", Err: AtomicWriteFits(t.Spans)})
	default:
		p.active++
		if t.Deadline != reactor.Forever {
			lane.Arm(&t.timer, t.Deadline, (*deadline)(t))
		}
		t.enter()
	}
}

var (
	errAtomicTooLong = errors.New("an Atomic transfer is staged whole and may not be longer than one payload")
)

// refuse ends a transfer that has begun nothing.
func (t *Transfer) refuse(fault *lanes.Fault) {
	t.peer.active++
	t.end(lanes.Outcome{Err: fault, Drained: true})
}

// fits checks the spans against the local registration and the length.
func (t *Transfer) fits() bool {
	left := t.Length
	for i := range t.Spans {
		s := &t.Spans[i]
		if s.Length == 0 || s.Length > left || !segments.Within(s.Local, s.Length, t.Local.Length()) || s.Length > ^uint64(0)-s.Remote {
			return false
		}
		left -= s.Length
	}
	return left == 0
}

// enter joins the peer's queue.
func (t *Transfer) enter() {
	if t.Atomic && t.Direction == lanes.Read && !t.staging.Held() {
		var err error
		if t.staging, err = t.peer.pool.lane.Arena.Get(t.Length); err != nil {
			t.end(lanes.Outcome{Err: &lanes.Fault{Cause: lanes.Exhausted, Stage: "staging", Err: err}, Drained: true})
			return
		}
	}
	t.state = stateMoving
	t.peer.enqueue(t)
}

// secure takes the lease of a transfer whose first request can be posted now. Not before: one that waits for credit while it
// holds a range would wait for an answer that may wait for that very range, where two write from the same memory to each other.
// False: it waits a little for the range, or was refused, and is in no queue.
func (t *Transfer) secure() bool {
	err := t.take()
	if err == nil {
		return true
	}
	lane := t.peer.pool.lane
	t.peer.dequeue(t)
	now := lane.Now()
	if t.leaseBy == 0 {
		t.leaseBy = min(now.After(leaseGrace), t.Deadline)
	}
	if now >= t.leaseBy {
		t.end(lanes.Outcome{Err: &lanes.Fault{Cause: lanes.Conflicted, Stage: "lease", Err: err}, Drained: true})
		return false
	}
	t.state = stateLeasing
	lane.Counts.ConflictRetries.Add(1)
	lane.Arm(&t.retry, t.backoff.Next(now, t.leaseBy), t)
	return false
}

// take leases the local ranges. An Atomic READ leases them only for its commit.
func (t *Transfer) take() error {
	switch {
	case t.Atomic && t.Direction == lanes.Read && t.state != stateCommitting:
		return nil
	case t.Share == nil:
		if err := t.lend(&t.lease); err != nil {
			return err
		}
		t.memory, t.base = t.lease.Bytes(), t.lease.Range().Start-t.Local.Offset()
		return nil
	case t.Leads:
		s := t.Share
		if err := t.lend(&s.lease); err != nil {
			return err
		}
		s.memory, s.base = s.lease.Bytes(), s.lease.Range().Start-t.Local.Offset()
		t.Leased()
	}
	t.memory, t.base = t.Share.memory, t.Share.base
	return nil
}

func (t *Transfer) lend(lease *segments.Lease) (err error) {
	access := segments.Exclusive
	if t.Direction == lanes.Write {
		access = segments.Shared
	}
	switch {
	case t.Spans != nil && t.Set != nil:
		*lease, err = t.Set.Lease(access)
	case t.Spans != nil:
		low, high := ^uint64(0), uint64(0)
		for i := range t.Spans {
			low, high = min(low, t.Spans[i].Local), max(high, t.Spans[i].Local+t.Spans[i].Length)
		}
		*lease, err = t.Local.Lease(min(low, high), high-min(low, high), access)
	default:
		*lease, err = t.Local.Lease(t.LocalOffset, t.Length, access)
	}
	return err
}

// span is the span with this index; a transfer without a list is one span.
func (t *Transfer) span(i int) Span {
	if t.Spans == nil {
		return Span{t.LocalOffset, t.Offset, t.Length}
	}
	return t.Spans[i]
}

// gather appends the memory of the next n bytes of the local ranges from c on, and moves c.
func (t *Transfer) gather(list [][]byte, c *cursor, n uint64) [][]byte {
	memory := t.memory
	for n > 0 {
		s := t.span(c.index)
		from, size := s.Local-t.base+c.inner, min(n, s.Length-c.inner)
		list = append(list, memory[from:from+size:from+size])
		n -= size
		if c.inner += size; c.inner == s.Length {
			*c = cursor{c.index + 1, 0}
		}
	}
	return list
}

// Cancel ends the transfer early (SPEC G-8); Done follows, possibly at once. A commit under way goes on: it is
// bounded, and would otherwise leave the range half changed. Does nothing when the transfer has ended.
func (t *Transfer) Cancel() {
	t.fail(&lanes.Fault{Cause: lanes.Cancelled, Stage: t.stage(), Err: t.unopened()}, true)
}

// Quit ends a transfer with a Share gently, because another one of them failed: what was posted is waited for. Idle says that
// only one that has asked for nothing, and so has nothing to do, is to end. Does nothing when it has ended.
func (t *Transfer) Quit(idle bool) {
	if !idle || t.state != stateIdle && t.asked == 0 {
		t.fail(&lanes.Fault{Cause: lanes.Cancelled, Stage: t.stage()}, false)
	}
}

func (t *Transfer) stage() string {
	switch {
	case t.state == stateLeasing:
		return "lease"
	case t.state == stateCommitting:
		return "commit"
	case t.asked == 0:
		return "the wait for a stream"
	}
	return "payload"
}

// fail ends the transfer with the first reason given. What was not posted is withdrawn. What is posted is waited for
// when only this request failed; at once ends it now, and with it the streams that carry half of a WRITE.
func (t *Transfer) fail(fault *lanes.Fault, atOnce bool) {
	switch {
	case t.state == stateLeasing, t.state == stateCommitting && !t.lease.Held():
		t.end(lanes.Outcome{Err: fault, Drained: true})
		return
	case t.state == stateMoving:
		t.state, t.fault = stateFailing, fault
	case t.state != stateFailing:
		return
	}
	t.peer.dequeue(t)
	t.parts++ // so that it ends once, below
	t.peer.forsake(t, fault, atOnce)
	t.parts--
	t.settle()
}

// settle ends a transfer that has nothing out any more.
func (t *Transfer) settle() {
	switch {
	case t.parts > 0:
	case t.state == stateFailing:
		t.conclude()
	case t.state == stateMoving && t.list == nil && t.answered == t.asked && (t.Share != nil || t.asked == t.Length):
		t.complete()
	}
}

// conclude reports a failure and what it has left behind (SPEC H-5). A WRITE of which everything was answered before it was ended
// has not failed.
func (t *Transfer) conclude() {
	if t.Share == nil && t.Length > 0 && t.answered == t.Length {
		t.complete()
		return
	}
	o := lanes.Outcome{Err: t.fault, Drained: !t.retained}
	switch {
	case t.Direction == lanes.Read:
		if t.touched && !t.Atomic {
			o.Local = lanes.EffectPartial
		}
	case t.unsure:
		o.Remote = lanes.EffectUnknown
	case t.answered > 0:
		o.Remote = lanes.EffectPartial
	}
	t.end(o)
}

func (t *Transfer) complete() {
	switch {
	case t.Direction == lanes.Write:
		t.end(lanes.Outcome{Bytes: t.asked, Remote: lanes.EffectComplete, Drained: true})
	case !t.staging.Held() || t.commit():
		t.end(lanes.Outcome{Bytes: t.asked, Local: lanes.EffectComplete, Drained: true})
	}
}

// Count counts a payload that ended so, on the peer's lane: the owner's part when there is a Share.
func (t *Transfer) Count(o lanes.Outcome) {
	counts := &t.peer.pool.lane.Counts
	switch {
	case o.Err != nil:
		counts.TransfersFailed.Add(1)
	case t.Direction == lanes.Write:
		counts.WritesDone.Add(1)
		counts.BytesWritten.Add(o.Bytes)
	default:
		counts.ReadsDone.Add(1)
		counts.BytesRead.Add(o.Bytes)
	}
}

// commit puts the complete payload of an Atomic READ into its place, slice by slice under one lease; false while
// the timer goes on with it.
func (t *Transfer) commit() bool {
	lane := t.peer.pool.lane
	t.state = stateCommitting
	if !t.lease.Held() {
		if err := t.take(); err != nil {
			lane.Counts.ConflictRetries.Add(1)
			lane.Arm(&t.retry, t.backoff.Next(lane.Now(), t.Deadline), t)
			return false
		}
		t.copied, t.copyAt = 0, cursor{}
	}
	payload := t.staging.Bytes(t.Length)
	end := min(t.Length, t.copied+lanes.SliceBytes)
	list := t.gather(t.peer.pool.scratch[:0], &t.copyAt, end-t.copied)
	for _, to := range list {
		t.copied += uint64(lanes.Copy(to, payload[t.copied:]))
	}
	clear(list)
	t.peer.pool.scratch = list[:0]
	if t.copied < t.Length {
		lane.Arm(&t.retry, lane.Now().After(1), t)
		return false
	}
	return true
}

// Expire looks again for a lease, or goes on with a commit (reactor.TimerHandler).
func (t *Transfer) Expire(*reactor.Timer, reactor.Instant) {
	if t.state == stateCommitting {
		t.complete()
		return
	}
	t.enter()
}

// end gives everything back and reports. Proof: no request of the transfer is out, or none holds its memory.
func (t *Transfer) end(o lanes.Outcome) {
	lane := t.peer.pool.lane
	lane.Disarm(&t.timer)
	lane.Disarm(&t.retry)
	if t.lease.Held() {
		t.lease.Return()
	}
	if t.staging.Held() {
		lane.Arena.Put(&t.staging)
	}
	if t.Share == nil {
		t.Count(o)
	}
	p := t.peer
	t.state, t.Outcome, t.memory = stateIdle, o, nil
	switch t.Prefix, t.Begun = min(t.lost, t.front), t.posted; {
	case t.Share != nil:
		if t.Prefix = t.lost; t.front < t.until {
			t.Prefix = min(t.lost, t.front)
		}
	case o.Err == nil:
		t.Prefix, t.Begun = t.Length, t.Length
	case t.Atomic && t.Direction == lanes.Read: // nothing was committed
		t.Prefix, t.Begun = 0, 0
	}
	t.Done(t)
	p.active--
	p.settle()
}

// mismatch is the fault of a chunk with other bytes.
func (t *Transfer) mismatch(offset uint64, source bool) *lanes.Fault {
	return &lanes.Fault{Cause: lanes.Violated, Stage: "payload", Status: netproto.StatusProtocolError,
		Err: &MismatchError{Region: t.Region, Offset: offset, Source: source}}
}
