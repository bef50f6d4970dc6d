package rdma

import (
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

// Slots answers for regions that are chunks of staging memory, pinned for the peer of one session (SPEC C-8). A slot is host
// memory that was registered when it was made, with the parents of its windows; so it is granted like any other range of
// host memory that devices reach themselves, whatever the policy for applications' memory is.
type Slots interface {
	// AdmitGrant checks that the session may do with the slot what the request asks for, and lends it to the user; the
	// caller owes one Leave or Lose. The error has a status for the wire.
	AdmitGrant(*control.Session, netproto.Request, SlotUser) (Slot, error)
}

// Slot is one slot on loan to the grants of one request.
type Slot interface {
	// Range is the slot's bytes, with its devices attached (see Of).
	Range() *segments.Registration
	// Await is true when nothing else touches the slot. Otherwise Quiet follows, unless the loan ends before.
	Await() bool
	// Leave ends the loan: no device touches the slot on the request's behalf any more. whole: all of its payload was moved.
	Leave(whole bool)
	// Lose ends the loan without that proof: the slot is retained.
	Lose()
}

// SlotUser has a slot on loan.
type SlotUser interface {
	// Quiet: nothing else touches the slot any more, and it may be used; or the status says why not.
	Quiet(netproto.Status)
	// Revoke: the pin has ended with its stream. The user takes its authority back and ends the loan.
	Revoke()
}

// Pinned makes slots answer for the lane's regions that are none of the tracker's. After Serve, before the lane starts.
func (s *GrantService) Pinned(slots Slots) { s.slots = slots }

// Source is the lane's share of the engine's source; nil before Serve.
func (r *Rails) Source() *GrantService { return r.upper.source }

// Stages is true exactly when transfers of this lane stage such local memory: each then has connections of its own.
func (r *Rails) Stages(local *segments.Registration) bool {
	t := Transfer{rails: r}
	t.gpu.reset(local)
	return t.staged()
}

// borrow lends what the request names: a registration, or a slot that was pinned for this session.
func (p *parent) borrow(session *control.Session, want netproto.Permission) (*segments.Registration, error) {
	s := p.source
	if _, _, named := netproto.SlotOf(p.region); !named || s.slots == nil {
		return s.rails.lane.Tracker.Admit(p.region, p.offset, p.length, want)
	}
	o := netproto.OperationRDMARead
	if p.write {
		o = netproto.OperationRDMAWrite
	}
	slot, err := s.slots.AdmitGrant(session, netproto.Request{Operation: o, Region: p.region, Offset: p.offset, Length: p.length}, (*slotParent)(p))
	if err != nil {
		return nil, err
	}
	registration := slot.Range()
	if !registration.Lend() {
		slot.Leave(false)
		return nil, &segments.UnknownRegion{ID: p.region}
	}
	p.slot = slot
	return registration, nil
}

// exposed is true exactly when devices reach what the parent grants itself.
func (p *parent) exposed() bool { return p.slot != nil || !p.staged() }

// copyPatience is how long grants wait for the copy of their slot at most before they are refused, and asked for again; the copy
// goes on. It may wait for a range that others have whose answers, on the same stream, come after the one for these grants.
const copyPatience = chunkPatience

// await lets a parent begin, or wait for the copy that its slot has under way.
func (p *parent) await() {
	if p.slot != nil && !p.slot.Await() {
		p.machine.stage = parentAwaiting
		lane := p.source.rails.lane
		lane.Arm(&p.retry, lane.Now().After(copyPatience), (*slotPatience)(p))
	}
}

// slotPatience is the handler of the timer for the end of that patience.
type slotPatience parent

// Expire (reactor.TimerHandler).
func (x *slotPatience) Expire(*reactor.Timer, reactor.Instant) {
	p := (*parent)(x)
	if p.machine.stage == parentAwaiting {
		p.fail(netproto.StatusExhausted)
		p.advance()
	}
}

// slotParent is a parent as the user of its slot.
type slotParent parent

// Quiet (SlotUser).
func (x *slotParent) Quiet(status netproto.Status) {
	p := (*parent)(x)
	if p.machine.stage != parentAwaiting {
		return
	}
	if status == netproto.StatusSuccess {
		p.machine.stage = parentStocking
	} else {
		p.fail(status)
	}
	p.advance()
}

// Revoke (SlotUser). Receipts that are on their way have the grace that they have after an ABANDON, so that a pair which is
// well stays so for others; then it goes to the error state.
func (x *slotParent) Revoke() {
	p := (*parent)(x)
	lane := p.source.rails.lane
	lane.Arm(&p.timer, min(p.deadline, lane.Now().After(abandonGrace)), (*slotGrace)(p))
	p.fail(netproto.StatusUnknownRegion)
	p.advance()
}

// slotGrace is the handler of the timer for the end of that grace.
type slotGrace parent

// Expire (reactor.TimerHandler).
func (x *slotGrace) Expire(*reactor.Timer, reactor.Instant) {
	p := (*parent)(x)
	p.forced, p.again = true, true
	p.advance()
}

// leaveSlot gives the slot back. Proof: that of giveBack, which comes after everything else of the parent was returned.
func (p *parent) leaveSlot() {
	slot, whole := p.slot, p.machine.stage == parentCommit
	if p.slot = nil; slot != nil {
		slot.Leave(whole)
	}
}

// loseSlot keeps it for good.
func (p *parent) loseSlot() {
	slot := p.slot
	if p.slot = nil; slot != nil {
		slot.Lose()
	}
}
