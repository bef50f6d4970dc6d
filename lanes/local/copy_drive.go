package local

import (
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

// Transfer is one READ or WRITE of an engine to itself. Its owner fills the exported fields, keeps
// the local registration borrowed until Done, and may use it again afterwards.
type Transfer struct {
	Direction lanes.Direction
	// Local is the requester's registration, borrowed by the owner; LocalOffset is relative to it.
	Local       *segments.Registration
	LocalOffset uint64
	// Region, Offset, Length name the range at the source, which is the same engine.
	Region, Offset, Length uint64
	Deadline               reactor.Instant
	// Outcome is set before Done is called, on the lane.
	Outcome lanes.Outcome
	Done    func(*Transfer)

	lane    *lanes.Lane
	remote  *segments.Registration // borrowed while the copy is under way
	from    segments.Lease
	to      segments.Lease
	machine copyMachine
	letter  reactor.Letter
	timer   reactor.Timer
	backoff lanes.Backoff
	device  device // when one of the ranges is a device's, or both
}

// Start checks like any source and copies; on the lane. Done follows, possibly at once.
func (t *Transfer) Start(lane *lanes.Lane) {
	t.lane, t.machine, t.backoff = lane, copyMachine{length: t.Length}, lanes.Backoff{}
	t.device.on, t.device.fault, t.device.unproven = false, nil, false
	want := netproto.RemoteRead
	if t.Direction == lanes.Write {
		want = netproto.RemoteWrite
	}
	if t.Length > lane.Policy.PayloadBytesMax {
		t.end(&lanes.Fault{Cause: lanes.Refused, Stage: "request", Status: netproto.StatusExhausted})
		return
	}
	remote, err := lane.Tracker.Admit(t.Region, t.Offset, t.Length, want)
	if err != nil {
		t.end(&lanes.Fault{Cause: lanes.Refused, Stage: "request", Status: netproto.StatusOf(err), Err: err})
		return
	}
	t.remote = remote
	if fault := t.plan(); fault != nil {
		t.end(fault)
		return
	}
	if t.overlaps() {
		t.end(&lanes.Fault{Cause: lanes.Conflicted, Stage: "request", Err: segments.ErrConflict})
		return
	}
	t.begin()
}

// overlaps is true exactly when the copy's own two ranges share bytes: their leases exclude each other
// for as long as one waits.
func (t *Transfer) overlaps() bool {
	from := segments.Range{Start: t.remote.Offset() + t.Offset, Length: t.Length}
	to := segments.Range{Start: t.Local.Offset() + t.LocalOffset, Length: t.Length}
	return t.remote.Backing() == t.Local.Backing() && from.Overlaps(to)
}

// begin leases both ranges. While another access conflicts it looks again, until the deadline.
func (t *Transfer) begin() {
	err := t.lend()
	switch {
	case err == nil && t.device.on:
		t.launch()
	case err == nil:
		t.step()
	case t.lane.Now() >= t.Deadline:
		t.end(&lanes.Fault{Cause: lanes.Deadline, Stage: "lease", Err: err})
	default:
		t.lane.Counts.ConflictRetries.Add(1)
		t.lane.Arm(&t.timer, t.backoff.Next(t.lane.Now(), t.Deadline), t)
	}
}

// sides are the ranges that are read and written.
func (t *Transfer) sides() (from *segments.Registration, fromOffset uint64, to *segments.Registration, toOffset uint64) {
	if t.Direction == lanes.Write {
		return t.Local, t.LocalOffset, t.remote, t.Offset
	}
	return t.remote, t.Offset, t.Local, t.LocalOffset
}

func (t *Transfer) lend() error {
	from, fromOffset, to, toOffset := t.sides()
	source, err := from.Lease(fromOffset, t.Length, segments.Shared)
	if err != nil {
		return err
	}
	target, err := to.Lease(toOffset, t.Length, segments.Exclusive)
	if err != nil {
		source.Return()
		return err
	}
	t.from, t.to = source, target
	return nil
}

// Expire looks again for the leases (reactor.TimerHandler).
func (t *Transfer) Expire(*reactor.Timer, reactor.Instant) { t.begin() }

// step copies one slice and lets the lane's other work have its turn before the next one.
func (t *Transfer) step() {
	offset, n := t.machine.slice()
	lanes.Copy(t.to.Bytes()[offset:offset+n], t.from.Bytes()[offset:offset+n])
	if t.machine.copied(n) {
		t.lane.Counts.LocalCopies.Add(1)
		t.end(nil)
		return
	}
	if err := t.lane.Post(&t.letter, t); err != nil {
		t.end(&lanes.Fault{Cause: lanes.Closed, Stage: "copy", Err: err})
	}
}

// Receive goes on with the copy (reactor.Recipient).
func (t *Transfer) Receive(*reactor.Letter, reactor.Instant) {
	if t.device.on {
		t.advance()
		return
	}
	t.step()
}

// Cancel ends a transfer that still waits for its leases, or for a pinned chunk; Done follows at once. A copy under way goes
// on, since it is bounded and would otherwise leave its range half changed (SPEC T-1).
func (t *Transfer) Cancel() {
	if t.remote != nil && !t.to.Held() {
		t.end(&lanes.Fault{Cause: lanes.Cancelled, Stage: "lease"})
		return
	}
	if t.device.flow.Waiting() {
		t.stop(&lanes.Fault{Cause: lanes.Cancelled, Stage: "waiting for a pinned chunk"})
	}
}

// end gives everything back and reports.
func (t *Transfer) end(fault *lanes.Fault) {
	t.lane.Disarm(&t.timer)
	if t.to.Held() {
		t.to.Return()
		t.from.Return()
	}
	if t.remote != nil {
		t.remote.Return()
		t.remote = nil
	}
	t.Outcome = t.machine.outcome(t.Direction, fault)
	t.Outcome.Drained = !t.device.unproven
	t.Done(t)
}
