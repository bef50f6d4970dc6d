package delegate

import (
	"errors"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/lanes/tcp"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

const (
	// askAgainMin and askAgainMax are the pauses before a transfer asks again for slots. The longest one is well below
	// what keeps its place in the source's line.
	askAgainMin = time.Millisecond
	askAgainMax = 16 * time.Millisecond
	// unpinPatience is how long the end of a failed transfer's pin is waited for, within the transfer's deadline or by an
	// heir; then the stream is retired, which ends it as well.
	unpinPatience = time.Second
	// payloadsMax is how many parts of one transfer ask for grants, or have some, at a time: as many answers as one stream
	// may owe.
	payloadsMax = 4
)

// delegateStage is the stage of a delegate's fault.
const delegateStage = "delegate"

// ErrUnpinned says that another one's end, such as a cancelled request's, has retired the stream that both shared.
var ErrUnpinned = errors.New("the stream to which the peer's slots were pinned is gone, and they with it")

// ErrTakenBack says that the source does not know the pin any more: its deadline for it passed, or it is closing. Of a refused
// delegate it says so unless the pin's end told that the pin was there, and it is the region that is gone.
var ErrTakenBack = errors.New("the source has taken the pinned slots back")

// ErrOccupied says that a copy at the source did not begin: others used its range, or the source itself did, until the source's
// deadline for the copy.
var ErrOccupied = errors.New("the range was in use at the source until its own deadline for the copy")

var errNoSlots = errors.New("all slots of the peer's remote staging are in use")

// Transfer is one READ or WRITE that directs the peer's staging, at the requester. Its owner fills the exported fields,
// keeps the local registration borrowed until Done, and may use it again afterwards. It lives on the channel's lane from
// Start to Done. It allocates nothing there after its first run, unless it fails.
type Transfer struct {
	Direction lanes.Direction
	// Local is the local registration; LocalOffset is relative to it.
	Local       *segments.Registration
	LocalOffset uint64
	// Region, Offset, Length name the remote range, in device memory; Epoch is its segment's. Length is at least 1.
	Region, Offset, Length uint64
	Epoch                  netproto.Epoch
	// Requester is this engine's life, and Slots how many slots are wanted: 1 is serial, up to netproto.PinSlotsMax.
	Requester netproto.Epoch
	Slots     uint8
	// Rails and Peer move the payload over RDMA, on the same channel's peer; nil: over the channel's stream.
	Rails    *rdma.Rails
	Peer     *rdma.Peer
	Deadline reactor.Instant
	// Outcome is set before Done is called, on the lane.
	Outcome lanes.Outcome
	Done    func(*Transfer)

	channel   *control.Channel
	machine   transferMachine
	question  question
	payload   tcp.Transfer
	grants    grants
	name      netproto.PinName
	order     netproto.Delegate
	copies    [netproto.PinSlotsMax]netproto.DelegateCopy
	life      uint64 // of the channel's stream when it was pinned
	step      step   // the last one that asked
	asking    bool   // true exactly while it is under way
	timer     reactor.Timer
	pause     time.Duration
	pausing   bool // true exactly while it waits to ask again
	cancelled bool
	undrained bool
	busy      bool // true exactly inside advance
	again     bool
	encoders  [3]func([]byte) []byte
}

// init makes what stays between runs.
func (t *Transfer) init() {
	t.question.answered = t.answered
	t.payload.Done = t.moved
	t.encoders = [3]func([]byte) []byte{
		func(b []byte) []byte { return netproto.AppendPin(b, t.pin()) },
		func(b []byte) []byte { return netproto.AppendDelegate(b, &t.order) },
		func(b []byte) []byte { return netproto.AppendUnpin(b, t.name) },
	}
}

func (t *Transfer) pin() netproto.Pin {
	direction := netproto.PinRead
	if t.Direction == lanes.Write {
		direction = netproto.PinWrite
	}
	return netproto.Pin{Requester: t.Requester, Generation: t.name.Generation, Slots: t.Slots, Direction: direction}
}

// Start runs the transfer on the channel, on the channel's lane. Done follows.
func (t *Transfer) Start(c *control.Channel) {
	if t.question.answered == nil {
		t.init()
	}
	t.channel = c
	t.machine = transferMachine{write: t.Direction == lanes.Write, length: t.Length, shared: t.Rails == nil, wide: 1}
	if t.Rails != nil && !t.Rails.Stages(t.Local) { // each part of a staged one builds a connection
		t.machine.wide = payloadsMax
	}
	t.pause, t.pausing, t.cancelled, t.undrained, t.asking = askAgainMin, false, false, false, false
	t.name, t.step = netproto.PinName{Requester: t.Requester}, stepPin
	t.grants.ways = t.grants.ways[:0]
	t.advance()
}

// Cancel ends the transfer early (SPEC G-8); Done follows, when the slots are given back or their stream is gone.
func (t *Transfer) Cancel() {
	if t.channel == nil || t.cancelled {
		return
	}
	t.cancelled, t.busy = true, true
	switch {
	case t.pausing:
		t.lane().Disarm(&t.timer)
		t.pausing = false
		t.machine.fail(&lanes.Fault{Cause: lanes.Cancelled, Stage: "waiting for slots of the peer"})
	case t.asking && t.step == stepUnpin && (t.machine.fault != nil || !t.machine.write): // it is ending
	case t.asking:
		t.question.exchange.Cancel()
	}
	t.cancelPayload()
	t.busy = false
	t.advance()
}

// cancelPayload ends what of the payload is under way. The caller goes on with advance.
func (t *Transfer) cancelPayload() {
	inside := t.busy
	t.busy = true
	switch {
	case t.machine.flying == 0:
	case t.Rails == nil:
		t.payload.Cancel()
	default:
		t.grants.cancel()
	}
	t.busy = inside
}

// Granted is how many slots the source pinned for the last run; 0: none.
func (t *Transfer) Granted() int { return int(t.machine.slots) }

func (t *Transfer) lane() *lanes.Lane { return t.channel.Lane() }

// advance takes all steps that can be taken. It may be called at any time, also from inside itself.
func (t *Transfer) advance() {
	if t.busy {
		t.again = true
		return
	}
	t.busy = true
	for t.again = true; t.again && !t.pausing; {
		t.again = false
		t.look()
		next := t.machine.next(t.asking)
		if next == stepDone { // its owner may have it at once: nothing of it is touched any more
			t.busy = false
			t.end()
			return
		}
		t.take(next)
	}
	t.busy = false
}

// look notices what ends the transfer, or its pin.
func (t *Transfer) look() {
	m := &t.machine
	m.strayed = m.strayed || m.pinned && t.channel.Life() != t.life
	if m.strayed && m.flying == 0 && !t.asking && !m.lost() {
		m.fail(&lanes.Fault{Cause: lanes.Disconnected, Stage: "remote staging", Err: ErrUnpinned})
	}
	under := m.shared && (t.asking || m.flying > 0)   // what is under way says itself how it ended
	if t.cancelled && t.step != stepUnpin && !under { // up to there, something was left to be done
		m.fail(&lanes.Fault{Cause: lanes.Cancelled, Stage: "remote staging"})
	}
}

// take takes a step. What has not ended then goes on with advance.
func (t *Transfer) take(next step) {
	m := &t.machine
	switch next {
	case stepWait:
		return
	case stepPayload:
		t.again = true
		t.move(m.begin())
		return
	}
	t.step, t.asking = next, true
	switch next {
	case stepPin:
		t.name.Generation = t.channel.Number()
		r := netproto.Request{Operation: netproto.OperationPin, Epoch: t.Epoch, Region: t.Region, Offset: t.Offset, Length: t.Length}
		t.question.ask(t.channel, r, "pin", netproto.PinnedSize, t.Deadline, t.encoders[0])
	case stepDelegate:
		t.again = !m.shared // the payload of other parts may begin meanwhile
		t.delegate()
	case stepUnpin:
		if m.fault != nil && (m.fault.Cause == lanes.Deadline || m.fault.Cause == lanes.Cancelled) { // nobody has time to wait
			t.asking, t.again = false, true
			t.bequeath()
			return
		}
		deadline := t.Deadline
		if m.fault != nil || !m.write {
			deadline = min(deadline, t.lane().Now().After(unpinPatience))
		}
		t.question.ask(t.channel, netproto.Request{Operation: netproto.OperationUnpin, Epoch: t.Epoch}, "unpin", 0, deadline, t.encoders[2])
	}
}

// delegate orders the copies of all parts that can be copied now.
func (t *Transfer) delegate() {
	m := &t.machine
	t.order = netproto.Delegate{Pin: t.name, Copies: t.copies[:0]}
	for i := range m.orders() {
		offset, length := m.span(m.ordered + i)
		t.order.Copies = append(t.order.Copies, netproto.DelegateCopy{Slot: m.slot(m.ordered + i), Offset: offset, Length: length})
	}
	t.question.ask(t.channel, netproto.Request{Operation: netproto.OperationDelegate, Epoch: t.Epoch}, delegateStage, 0, t.Deadline, t.encoders[1])
}

// move starts the payload of one part.
func (t *Transfer) move(part uint64) {
	if t.Rails != nil {
		t.grants.start(t, part)
		return
	}
	x := &t.payload
	offset, length := t.machine.span(part)
	x.Direction, x.Local, x.LocalOffset = t.Direction, t.Local, t.LocalOffset+offset
	x.Region, x.Offset, x.Length = t.region(part), 0, length
	x.Epoch, x.Deadline = t.Epoch, t.Deadline
	x.Start(t.channel)
}

// region names the slot of a part.
func (t *Transfer) region(part uint64) uint64 {
	return netproto.SlotRegion(t.name.Number, t.machine.slot(part))
}

// moved takes the end of the payload of the only part that is under way.
func (t *Transfer) moved(x *tcp.Transfer) { t.partEnded(t.machine.moved, &x.Outcome) }

// partEnded takes the end of one part's payload.
func (t *Transfer) partEnded(part uint64, o *lanes.Outcome) {
	m := &t.machine
	t.undrained = t.undrained || !o.Drained
	m.ended(part, o.Err == nil, o.Local)
	if o.Err != nil {
		if f := faultOf(o.Err); t.strayed(f) {
			m.strayed = true
		} else {
			m.fail(t.explained(f))
			t.cancelPayload()
		}
	}
	t.advance()
}

func faultOf(err error) *lanes.Fault {
	if f, ok := err.(*lanes.Fault); ok {
		return f
	}
	return &lanes.Fault{Cause: lanes.Disconnected, Stage: "payload", Err: err}
}

// strayed is true exactly for the refusal of what was queued when the stream was lost, and went out on a new one, where
// nobody knows the pin.
func (t *Transfer) strayed(f *lanes.Fault) bool {
	return f.Cause == lanes.Refused && f.Status == netproto.StatusUnknownRegion && t.channel.Life() != t.life
}

// explained says of a refusal of what names a pin why it is gone, or why a copy behind it failed. A delegate may be refused for
// its region, too: the pin's end tells.
func (t *Transfer) explained(f *lanes.Fault) *lanes.Fault {
	switch {
	case f != nil && f.Cause == lanes.Refused && f.Status == statusOccupied:
		f.Err = ErrOccupied
	case f == nil || f.Cause != lanes.Refused || f.Status != netproto.StatusUnknownRegion:
	case t.strayed(f):
		return &lanes.Fault{Cause: lanes.Disconnected, Stage: f.Stage, Err: ErrUnpinned}
	default:
		f.Err = ErrTakenBack
	}
	return f
}

// answered takes the end of a question.
func (t *Transfer) answered() {
	m, q := &t.machine, &t.question
	t.asking = false
	t.undrained = t.undrained || q.retained
	switch t.step {
	case stepPin:
		t.granted()
		return
	case stepDelegate:
		refused := q.fault != nil && q.fault.Cause == lanes.Refused
		m.posted = m.posted || q.begun && !refused
		switch {
		case q.fault == nil:
			m.ordered += uint64(len(t.order.Copies))
		case t.strayed(q.fault):
			m.strayed = true
		default:
			m.fail(t.explained(q.fault))
			t.cancelPayload()
		}
	case stepUnpin:
		if q.fault != nil && !q.begun {
			t.bequeath()
		}
		f := t.explained(q.fault)
		if f == nil && m.fault != nil && m.fault.Stage == delegateStage && m.fault.Err == ErrTakenBack {
			m.fault.Err = nil // the pin was there: it is the region that is gone
		}
		m.unpinned(f)
	}
	t.advance()
}

// granted takes the slots, or asks again while others have them.
func (t *Transfer) granted() {
	m, q := &t.machine, &t.question
	fault := q.fault
	if fault == nil {
		pinned, err := netproto.DecodePinned(t.pin(), q.payload[:])
		if err == nil {
			t.name.Number, t.life = pinned.Number, t.channel.Life()
			if !m.granted(pinned) {
				m.fail(&lanes.Fault{Cause: lanes.Violated, Stage: "pin", Err: errUnexpectedReply})
			}
			t.advance()
			return
		}
		fault = &lanes.Fault{Cause: lanes.Violated, Stage: "pin", Err: err}
	}
	if fault.Cause != lanes.Refused || fault.Status != netproto.StatusExhausted || t.cancelled {
		m.fail(fault)
		t.advance()
		return
	}
	t.pausing = true
	t.lane().Arm(&t.timer, min(t.lane().Now().After(t.pause), t.Deadline), t)
	t.pause = min(2*t.pause, askAgainMax)
}

// Expire asks again, or gives up (reactor.TimerHandler).
func (t *Transfer) Expire(_ *reactor.Timer, now reactor.Instant) {
	waited := t.pausing
	if t.pausing = false; waited && now >= t.Deadline {
		t.machine.fail(&lanes.Fault{Cause: lanes.Deadline, Stage: "waiting for slots of the peer", Err: errNoSlots})
	}
	t.advance()
}

// heir gives the slots of a transfer back that does not wait for it: it touches no memory of the transfer's.
type heir struct {
	question
	name netproto.PinName
}

// bequeath leaves the unpinning to an heir. What the copies have done stays unknown.
func (t *Transfer) bequeath() {
	t.machine.pinned = false
	h := &heir{name: t.name}
	h.answered = func() {}
	r := netproto.Request{Operation: netproto.OperationUnpin, Epoch: t.Epoch}
	h.ask(t.channel, r, "unpin", 0, t.lane().Now().After(unpinPatience), func(b []byte) []byte { return netproto.AppendUnpin(b, h.name) })
}

// end reports. Proof: no exchange of this transfer is under way, so that the kernel holds no buffer of its; parts that are
// not quiet have said so.
func (t *Transfer) end() {
	m := &t.machine
	o := lanes.Outcome{Drained: !t.undrained}
	o.Local, o.Remote = m.effects()
	if m.fault == nil {
		o.Bytes = t.Length
	} else {
		o.Err = m.fault
	}
	t.lane().Disarm(&t.timer)
	t.channel = nil
	t.Outcome = o
	t.Done(t)
}
