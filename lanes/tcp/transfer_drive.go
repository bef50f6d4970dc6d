package tcp

import (
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/lanes/staging"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

// leaseGrace is how long a direct transfer waits for a conflicting lease before it is refused.
const leaseGrace = 100 * time.Millisecond

// lastBytes is how much of a WRITE's payload goes out in one call with the request of who follows. Who that is shows
// late then, and somebody who comes while a large payload is sent waits for no second one.
const lastBytes = 1 << 20

// lentBytes is from how many bytes on a payload is sent from the leased range itself as far as the socket takes it at once,
// instead of from a copy. A copy of less costs next to nothing, and its lease ends in the same step. A variable for
// the tests, most of whose payloads are small.
var lentBytes uint64 = 64 << 10

// nextTurn is the first instant that belongs to the lane's next turn.
func nextTurn(lane *lanes.Lane) reactor.Instant { return lane.Now().After(1) }

// Transfer is one READ or WRITE at the requester. Its owner fills the exported fields, keeps the
// local registration borrowed until Done, and may use it again afterwards. It lives on the channel's
// lane from Start to Done and allocates nothing there unless it fails.
type Transfer struct {
	Direction lanes.Direction
	// Local is the local registration, borrowed by the owner; LocalOffset is relative to it.
	Local       *segments.Registration
	LocalOffset uint64
	// Region, Offset, Length name the remote range; Epoch is its segment's.
	Region, Offset, Length uint64
	Epoch                  netproto.Epoch
	Deadline               reactor.Instant
	// Outcome is set before Done is called, on the lane.
	Outcome lanes.Outcome
	Done    func(*Transfer)
	// Free, if not nil, is called when the transfer has nothing more to send, or is about to send its last bytes, and cannot
	// be refused any more: another one may Follow. A READ is free from its success header on, since up to there a refusal,
	// and behind it the follower's reply, could land where the payload is to go. A WRITE calls it twice, before and after
	// its last bytes: a request that goes along with them costs neither end a call of its own.
	Free func()

	channel  *control.Channel
	exchange control.Exchange
	read     readMachine
	write    writeMachine
	staging  payloadBuffer
	lease    segments.Lease
	retry    reactor.Timer
	backoff  lanes.Backoff
	copied   int             // bytes between local range and staging, while the range is leased for it
	sent     uint64          // WRITE: bytes of the payload that are with the system, not from a device
	staged   bool            // WRITE: true exactly when the payload is in staging
	ready    bool            // WRITE: true exactly when the source waits for the payload and none of it is being sent
	short    bool            // WRITE: true exactly while the rest of what was lent is copied
	leaseBy  reactor.Instant // direct: until when a conflicting lease is waited for; 0 before the first try
	waiting  bool            // true exactly while the transfer waits for it and is in no queue
	prepared bool            // true exactly when lease or staging was taken before Begin
	held     bool            // true exactly while a transfer before this one has not ended: no commit
	complete bool            // READ: true exactly when the payload is here and only held keeps it from its commit
	device   device          // when the local range is a device's
}

// Start queues the transfer on its channel, on the channel's lane. Done follows.
func (t *Transfer) Start(c *control.Channel) {
	t.reset(c)
	t.enter()
}

// enter queues the transfer. A direct one first waits a little while another access conflicts: what has just
// ended on the other side of a socket may hold its lease a moment longer, until its own thread hears of it.
// It waits before the queue, so that it keeps nobody from the stream, and takes the lease when it has it.
func (t *Transfer) enter() {
	t.waiting = false
	if t.device.on {
		if fault := staging.Of(t.lane()).Ready(t.device.memory, staging.Requester); fault != nil {
			t.end(lanes.Outcome{Err: fault, Drained: true})
			return
		}
	}
	if t.direct() {
		if fault := t.prepare(); fault != nil {
			t.delay(fault)
			return
		}
		t.lease.Return()
	}
	t.channel.Run(&t.exchange, t, t.Deadline)
}

// delay looks again for a conflicting lease, or ends the transfer, of which nothing was posted.
func (t *Transfer) delay(fault *lanes.Fault) {
	now := t.lane().Now()
	if t.leaseBy == 0 {
		t.leaseBy = min(now.After(leaseGrace), t.Deadline)
	}
	if now >= t.leaseBy {
		t.end(lanes.Outcome{Err: fault, Drained: true})
		return
	}
	t.waiting = true
	t.lane().Counts.ConflictRetries.Add(1)
	t.lane().Arm(&t.retry, t.backoff.Next(now, t.leaseBy), t)
}

// Follow posts the transfer's request behind another transfer of the same owner, from that one's Free on.
// It changes nothing, here or there, before Release. False when that is not to be had; then nothing was
// done, and Start will do. Otherwise Done follows; it comes before the other one's only if the stream was
// lost or Cancel was called.
func (t *Transfer) Follow(c *control.Channel) bool {
	t.reset(c)
	if t.device.on || t.prepare() != nil {
		return false
	}
	t.prepared, t.held = true, true
	if c.Follow(&t.exchange, t, t.Deadline) {
		return true
	}
	t.giveBack()
	return false
}

// Release tells a transfer that follows that the one before it has succeeded.
func (t *Transfer) Release() {
	t.held = false
	if t.complete {
		t.complete = false
		t.commit()
	}
}

// Sendless is true exactly when the transfer is on its stream and has nothing more to send; Free was called.
func (t *Transfer) Sendless() bool {
	if t.Direction == lanes.Read {
		return t.read.stage == stagePayload
	}
	return t.write.stage == stageReceipt
}

func (t *Transfer) reset(c *control.Channel) {
	t.channel = c
	m := machine{expected: t.Epoch, length: t.Length}
	t.read, t.write = readMachine{machine: m}, writeMachine{machine: m}
	t.sent = 0
	t.short = false
	t.staged, t.ready, t.prepared, t.held, t.complete = false, false, false, false, false
	t.backoff, t.leaseBy, t.waiting = lanes.Backoff{}, 0, false
	t.device.reset(t.Local, t.Length)
}

// Cancel ends the transfer early (SPEC G-8); Done follows, possibly at once. A commit under way goes on: it
// is bounded, and would otherwise leave the range half changed (SPEC T-1).
func (t *Transfer) Cancel() {
	if t.waiting {
		t.end(lanes.Outcome{Err: &lanes.Fault{Cause: lanes.Cancelled, Stage: "lease", Err: segments.ErrConflict}, Drained: true})
		return
	}
	if t.read.stage == stageCommit {
		if t.lease.Held() && !t.complete {
			return
		}
		t.abandonCommit(lanes.Cancelled, segments.ErrConflict)
		return
	}
	t.exchange.Cancel()
}

func (t *Transfer) lane() *lanes.Lane { return t.channel.Lane() }

// direct is true exactly when the transfer leases its range for all of its time.
func (t *Transfer) direct() bool { return t.lane().Policy.Direct || t.device.on }

// Begin sends the request (control.Work).
func (t *Transfer) Begin(c *control.Channel) {
	operation := netproto.OperationTCPRead
	if t.Direction == lanes.Write {
		operation = netproto.OperationTCPWrite
	}
	if !t.prepared {
		if fault := t.prepare(); fault != nil {
			c.Finish() // nothing was posted: the stream is clean
			t.end(lanes.Outcome{Err: fault, Drained: true})
			return
		}
	}
	c.Send(netproto.AppendRequest(c.Out()[:0], netproto.Request{
		Operation: operation, Epoch: t.Epoch, Region: t.Region, Offset: t.Offset, Length: t.Length,
	}), nil)
}

// Posted stages the payload while the transfer before is under way (control.Follower).
func (t *Transfer) Posted() {
	if t.Direction == lanes.Write {
		t.stage()
	}
}

// prepare leases the range itself (direct) or takes an owned buffer (SPEC T-1, T-2).
func (t *Transfer) prepare() *lanes.Fault {
	if t.direct() {
		access := segments.Exclusive
		if t.Direction == lanes.Write {
			access = segments.Shared
		}
		lease, err := t.Local.Lease(t.LocalOffset, t.Length, access)
		if err != nil {
			return &lanes.Fault{Cause: lanes.Conflicted, Stage: "lease", Err: err}
		}
		t.lease = lease
		return nil
	}
	if err := t.staging.take(&t.lane().Arena, t.Length, t.Direction == lanes.Read); err != nil {
		return &lanes.Fault{Cause: lanes.Exhausted, Stage: "staging", Err: err}
	}
	return nil
}

// payload is where the payload goes to, or comes from.
func (t *Transfer) payload() []byte {
	if t.lease.Held() {
		return t.lease.Bytes()
	}
	return t.staging.payload(t.Length)
}

// reply is where a READ's reply goes: header and payload, one behind the other in a when b is nil.
func (t *Transfer) reply() (a, b []byte) {
	if frame := t.staging.frame(t.Length); frame != nil {
		return frame, nil
	}
	return t.channel.In()[:netproto.ReplySize], t.payload()
}

// Sent (control.Work).
func (t *Transfer) Sent(n int) {
	if t.Direction == lanes.Read {
		t.read.sent()
		if header, payload := t.reply(); payload == nil {
			t.channel.ReceiveLone(header, netproto.ReplySize)
		} else {
			t.channel.Receive(header, payload, netproto.ReplySize)
		}
		return
	}
	in := t.channel.In()[:netproto.ReplySize]
	if t.write.stage == stagePayload && !t.through(n) {
		return
	}
	t.write.sent()
	t.channel.Receive(in, nil, netproto.ReplySize)
	if t.write.stage == stageReady {
		t.sendPayload() // stages it, while the request travels
		return
	}
	t.free()
}

// through counts sent bytes of the payload, and goes on with the rest; true when there is none.
func (t *Transfer) through(n int) bool {
	if t.device.on {
		return t.pushed(n)
	}
	if t.sent += uint64(n); t.sent < t.Length {
		t.sendRest()
		return false
	}
	if t.lends() && t.lease.Held() {
		t.lease.Return()
	}
	return true
}

func (t *Transfer) free() {
	if t.Free != nil && !t.device.on {
		t.Free()
	}
}

// Received (control.Work).
func (t *Transfer) Received(n int) {
	if t.Direction == lanes.Read {
		t.received(n)
		return
	}
	t.write.reply(t.channel.In()[:netproto.ReplySize])
	switch {
	case t.write.stage == stagePayload:
		t.ready = true
		t.sendPayload()
	case t.write.stage == stageReceipt:
		t.channel.Receive(t.channel.In()[:netproto.ReplySize], nil, netproto.ReplySize)
	default:
		t.conclude(&t.write.machine)
	}
}

// conclude ends a transfer whose exchange is over.
func (t *Transfer) conclude(m *machine) {
	if m.violated {
		t.channel.Break(m.fault.Stage, m.fault.Err) // Failed follows
		return
	}
	t.channel.Finish()
	if m.fault != nil {
		t.end(lanes.Outcome{Err: m.fault, Drained: true})
		return
	}
	counts := &t.lane().Counts
	counts.WritesDone.Add(1)
	counts.BytesWritten.Add(t.Length)
	t.end(lanes.Outcome{Bytes: t.Length, Remote: lanes.EffectComplete, Drained: true})
}

// lends is true exactly for a WRITE whose payload goes from the leased range into the socket, as far as that takes it at once.
func (t *Transfer) lends() bool {
	return t.Direction == lanes.Write && t.Length >= lentBytes && !t.direct()
}

// borrow leases the input; false while another access conflicts, and the timer goes on.
func (t *Transfer) borrow() bool {
	if t.lease.Held() {
		return true
	}
	lease, err := t.Local.Lease(t.LocalOffset, t.Length, segments.Shared)
	if err != nil {
		t.again()
		return false
	}
	t.lease, t.copied = lease, 0
	return true
}

// stage copies the input into the owned buffer under its lease, slice by slice; false while it is not
// complete, and the timer goes on. What is lent is leased once the source is ready for it, so that no lease waits for a peer.
func (t *Transfer) stage() bool {
	switch {
	case t.staged || t.direct():
		return true
	case t.lends():
		return t.ready && t.borrow()
	}
	return t.borrow() && t.keep()
}

// keep goes on with the copy.
func (t *Transfer) keep() bool {
	t.copied = lanes.CopySlice(t.staging.payload(t.Length), t.lease.Bytes(), t.copied)
	if uint64(t.copied) < t.Length {
		t.lane().Arm(&t.retry, nextTurn(t.lane()), t)
		return false
	}
	t.lease.Return()
	t.staged = true
	return true
}

// sendPayload sends once the payload is staged and the source is ready for it.
func (t *Transfer) sendPayload() {
	if t.device.on {
		t.push()
		return
	}
	if t.stage() && t.ready {
		t.ready = false
		t.sendRest()
	}
}

// sendRest sends what is left of the payload, its end by itself.
func (t *Transfer) sendRest() {
	switch piece, last := t.piece(); {
	case last && t.lease.Held() && t.lends():
		t.channel.SendLentLast(piece, t.Free, t)
	case last:
		t.channel.SendLast(piece, t.Free)
	case t.lease.Held() && t.lends():
		t.channel.SendLent(piece, t)
	default:
		t.channel.Send(piece, nil)
	}
}

// piece is what of the payload goes next.
func (t *Transfer) piece() (b []byte, last bool) {
	rest := t.payload()[t.sent:]
	if len(rest) > lastBytes {
		return rest[:len(rest)-lastBytes], false
	}
	return rest, true
}

// Short copies what the socket did not take at once, under the lease under which it took the rest (control.Lender).
func (t *Transfer) Short(n int) {
	t.copied, t.short = int(t.sent)+n, true
	t.goOn()
}

// goOn sends the rest from the copy once that is complete.
func (t *Transfer) goOn() {
	if t.keep() {
		t.short = false
		piece, _ := t.piece()
		t.channel.Instead(piece)
	}
}

func (t *Transfer) again() {
	t.lane().Counts.ConflictRetries.Add(1)
	if t.lane().Now() >= t.Deadline {
		return // the exchange ends at it, and with it the waiting
	}
	t.lane().Arm(&t.retry, t.backoff.Next(t.lane().Now(), t.Deadline), t)
}

// Expire goes on with a copy, or looks again for a conflicting lease (reactor.TimerHandler).
func (t *Transfer) Expire(*reactor.Timer, reactor.Instant) {
	switch {
	case t.waiting:
		t.enter()
	case t.short:
		t.goOn()
	case t.Direction == lanes.Write:
		t.sendPayload()
	default:
		t.commit()
	}
}

// received goes on with a READ.
func (t *Transfer) received(n int) {
	if t.read.stage == stageReply {
		header, _ := t.reply()
		t.read.reply(header[:netproto.ReplySize], uint64(n-netproto.ReplySize))
		if t.read.fault == nil {
			t.free()
		}
	} else {
		t.read.payload(uint64(n))
		t.pulled()
	}
	switch {
	case t.read.stage == stagePayload && t.device.on:
		t.pull()
	case t.read.stage == stagePayload:
		rest := t.payload()[t.read.got:]
		t.channel.Receive(rest, nil, len(rest))
	case t.read.stage == stageCommit:
		t.channel.Finish() // the stream is clean; what remains is ours
		t.commit()
	default:
		t.conclude(&t.read.machine)
	}
}

// commit puts the complete payload into the local range, slice by slice under one lease (SPEC T-1).
func (t *Transfer) commit() {
	if t.held {
		t.complete = true
		return
	}
	if t.device.on {
		t.land()
		return
	}
	if !t.lease.Held() {
		lease, err := t.Local.Lease(t.LocalOffset, t.Length, segments.Exclusive)
		if err != nil {
			if t.lane().Now() >= t.Deadline {
				t.abandonCommit(lanes.Deadline, err)
				return
			}
			t.again()
			return
		}
		t.lease, t.copied = lease, 0
	}
	if t.staging.Held() {
		t.copied = lanes.CommitSlice(t.lease.Bytes(), t.staging.payload(t.Length), t.copied)
		if uint64(t.copied) < t.Length {
			t.lane().Arm(&t.retry, nextTurn(t.lane()), t)
			return
		}
	}
	t.committed()
}

// committed ends a READ whose range has the payload.
func (t *Transfer) committed() {
	t.read.committed()
	counts := &t.lane().Counts
	counts.ReadsDone.Add(1)
	counts.BytesRead.Add(t.Length)
	t.end(lanes.Outcome{Bytes: t.Length, Local: lanes.EffectComplete, Drained: true})
}

// abandonCommit ends a READ whose payload is here but whose range stayed leased to another access.
func (t *Transfer) abandonCommit(cause lanes.Cause, why error) {
	t.end(lanes.Outcome{Err: &lanes.Fault{Cause: cause, Stage: "commit", Err: why}, Drained: true})
}

// Failed (control.Work). The channel calls it once the kernel has given every buffer back.
func (t *Transfer) Failed(f control.Failure) {
	outcome := lanes.Outcome{Err: f.Fault, Drained: !f.Retained}
	if !f.Begun {
		t.end(outcome)
		return
	}
	m := &t.read.machine
	if t.Direction == lanes.Write {
		m = &t.write.machine
	}
	if f.Fault.Stage == "" {
		f.Fault.Stage = m.reached().String()
	}
	if t.Direction == lanes.Write {
		if t.write.unsure(f.Sent + int(t.sent) + t.device.sent) {
			outcome.Remote = lanes.EffectUnknown
		}
	} else if t.lease.Held() && !t.device.on && t.read.touched(f.Received) {
		outcome.Local = lanes.EffectPartial
	}
	t.end(outcome)
}

// end gives everything back and reports. Proof: the exchange has ended, so the kernel holds no
// buffer of this transfer, and no copy of a device is under way.
func (t *Transfer) end(o lanes.Outcome) {
	if t.device.flow.Active() {
		t.device.over, t.device.outcome = true, o
		t.device.flow.End() // Ended follows
		return
	}
	t.giveBack()
	t.waiting = false
	if o.Err != nil {
		t.lane().Counts.TransfersFailed.Add(1)
	}
	t.read.stage, t.write.stage = stageDone, stageDone
	t.Outcome = o
	t.Done(t)
}

func (t *Transfer) giveBack() {
	t.lane().Disarm(&t.retry)
	if t.lease.Held() {
		t.lease.Return()
	}
	if t.staging.Held() {
		t.lane().Arena.Put(&t.staging.Buffer)
	}
}
