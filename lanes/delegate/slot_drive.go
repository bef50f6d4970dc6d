package delegate

import (
	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/lanes/staging"
	"github.com/orbitte/orbitte/lanes/tcp"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

// quiet waits for the end of a copy.
type quiet interface{ Quiet(netproto.Status) }

// slot is one slot of a pin, and its copy under way.
type slot struct {
	pin          *pin
	machine      slotMachine
	lent         staging.Slot
	charge       budgets.Charge
	arriving     uint64        // bytes of the frame that has it
	waiter       quiet         // a frame, or grants, that wait for the copy's end; nil: none
	holder       rdma.SlotUser // grants that have it; nil: none
	flow         staging.Flow
	registration *segments.Registration // of the device range, on loan to the copy; nil: no copy
	lease        segments.Lease
	at, length   uint64 // of the copy, in the registration
	retry        reactor.Timer
	backoff      lanes.Backoff
	by           reactor.Instant // the source's deadline for the copy's start
	ended        bool            // true exactly when End of its flow was called
}

// begin starts a copy, whose loan is there already.
func (x *slot) begin(c netproto.DelegateCopy) {
	lane := x.pin.service.lane
	x.machine.begin(c.Length)
	x.at, x.length, x.backoff = x.pin.offset+c.Offset, c.Length, lanes.Backoff{}
	x.by = lane.Now().After(lane.Policy.SourceTimeout)
	x.reach()
}

// statusOccupied is what a requester hears of a copy that found its range in use until the source's deadline. Nothing else about
// slots is answered so, but for grants whose deadline at the source has passed as well.
const statusOccupied = netproto.StatusInternalError

// reach leases the device range, or looks again while another access has it, until the source's deadline.
func (x *slot) reach() {
	lane, access := x.pin.service.lane, segments.Shared
	if x.pin.write {
		access = segments.Exclusive
	}
	lease, err := x.registration.Lease(x.at, x.length, access)
	if err == nil {
		x.lease = lease
		x.copy()
		return
	}
	if lane.Now() >= x.by {
		x.over(statusOccupied, true)
		return
	}
	lane.Counts.ConflictRetries.Add(1)
	lane.Arm(&x.retry, x.backoff.Next(lane.Now(), x.by), x)
}

// Expire looks again for the lease (reactor.TimerHandler).
func (x *slot) Expire(*reactor.Timer, reactor.Instant) { x.reach() }

// copy starts the copy between slot and range.
func (x *slot) copy() {
	device := x.registration.Address() + x.at
	plan := staging.Plan{
		Way: staging.Across, Memory: staging.MemoryOf(x.registration), Partner: x.lent.Partner(),
		Address: x.lent.Address(), From: device, Length: x.length, Deadline: x.by,
	}
	if x.pin.write {
		plan.Address, plan.From = device, x.lent.Address()
	}
	x.machine.leased()
	x.ended = false
	if fault := x.flow.Start(staging.Of(x.pin.service.lane), x, plan); fault != nil {
		x.over(statusOf(fault), true)
	}
}

// Advanced ends the flow when its copy is confirmed, or has failed (staging.User).
func (x *slot) Advanced(f *staging.Flow) {
	if f.Whole() || f.Fault() != nil {
		x.finish()
	}
}

func (x *slot) finish() {
	if !x.ended {
		x.ended = true
		x.flow.End() // Ended follows
	}
}

// Ended takes the end of the copy (staging.User).
func (x *slot) Ended(f *staging.Flow, proven bool) {
	if !proven {
		lease, registration, charge := x.lease, x.registration, x.charge.Move()
		f.KeepUntil(func() {
			lease.Return()
			registration.Return()
			charge.Repay() // proof: the copy that touched the slot has ended
		})
		x.lease, x.registration = segments.Lease{}, nil
	}
	status := netproto.StatusSuccess
	if fault := f.Fault(); fault != nil {
		status = statusOf(fault)
	} else if !f.Whole() {
		status = netproto.StatusSourceClosed // it was taken back before it began
	}
	x.over(status, proven)
}

// over ends a copy that touches nothing any more, or of which nobody knows.
func (x *slot) over(status netproto.Status, proven bool) {
	p := x.pin
	x.machine.copied(status, proven)
	x.giveBack()
	if status == netproto.StatusSuccess && proven {
		p.service.counts.copied.Add(1)
	} else {
		p.service.counts.failed.Add(1)
		if p.failure == netproto.StatusSuccess {
			p.failure = x.machine.failure
		}
	}
	if w := x.waiter; w != nil {
		x.waiter = nil
		w.Quiet(x.machine.usable())
	}
	p.settle()
}

// giveBack returns lease and loan of a copy that has ended.
func (x *slot) giveBack() {
	x.pin.service.lane.Disarm(&x.retry)
	if x.lease.Held() {
		x.lease.Return()
	}
	if x.registration != nil {
		x.registration.Return()
		x.registration = nil
	}
}

// stop ends a copy early: one that waits for its lease, or for a place, does not begin.
func (x *slot) stop() {
	switch {
	case x.machine.state == slotLeasing:
		x.over(netproto.StatusSourceClosed, true)
	case x.flow.Active():
		x.finish()
	}
}

// Range (tcp.Slot).
func (x *slot) Range() *segments.Registration { return x.lent.Range() }

// Await (tcp.Slot).
func (x *slot) Await(w tcp.SlotUser) bool {
	if !x.machine.busy() {
		return true
	}
	x.waiter = w
	return false
}

// Leave (tcp.Slot).
func (x *slot) Leave(whole bool) {
	x.waiter, x.holder = nil, nil
	length := x.arriving
	if !whole {
		length = 0
	}
	x.machine.leave(length)
	if x.pin.state == pinPinned {
		x.pin.renew()
	}
	x.pin.settle()
}

// grantedSlot is a slot as grants have it (rdma.Slot).
type grantedSlot slot

// Range (rdma.Slot).
func (g *grantedSlot) Range() *segments.Registration { return g.lent.Range() }

// Await (rdma.Slot).
func (g *grantedSlot) Await() bool {
	if !g.machine.busy() {
		return true
	}
	g.waiter = g.holder
	return false
}

// Leave (rdma.Slot).
func (g *grantedSlot) Leave(whole bool) { (*slot)(g).Leave(whole) }

// Lose (rdma.Slot): the device may still reach the slot, for good.
func (g *grantedSlot) Lose() {
	g.machine.lose()
	(*slot)(g).Leave(false)
}

// revoke takes the slot back from grants.
func (x *slot) revoke() {
	if x.holder != nil {
		x.holder.Revoke()
	}
}
