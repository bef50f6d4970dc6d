package rdma

import (
	"fmt"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/verbs"
)

// Cancel ends the transfer early; Done follows. A commit under way goes on: it is bounded, and would
// otherwise leave the range half changed (SPEC T-1).
func (t *Transfer) Cancel() { t.halted(lanes.Cancelled, nil) }

func (t *Transfer) halted(why lanes.Cause, err error) {
	switch t.machine.stage {
	case transferIdle, transferHalting, transferAbandoning, transferFlushing, transferParting, transferEnded:
	case transferChecking:
		t.check.exchange.Cancel()
	case transferWalking:
		t.walk.stop(&lanes.Fault{Cause: why, Stage: t.machine.stage.String(), Err: err})
	case transferCommit:
		if !t.lease.Held() {
			t.machine.fail(fault(why, "commit", segments.ErrConflict))
			t.settle()
		}
	default:
		t.fail(&lanes.Fault{Cause: why, Err: err})
	}
}

// Expire is the deadline, and later the end of the grace (reactor.TimerHandler).
func (t *Transfer) Expire(*reactor.Timer, reactor.Instant) {
	switch t.machine.stage {
	case transferCommit, transferAbandoning, transferFlushing, transferParting: // they have bounds of their own
	case transferHalting:
		t.forced = true
		if t.asked {
			t.question.cancel()
		}
		t.advance()
	default:
		t.fail(&lanes.Fault{Cause: lanes.Deadline})
	}
}

// fail begins the end: nothing new is posted. The first reason stays.
func (t *Transfer) fail(f *lanes.Fault) {
	m := &t.machine
	m.fail(f)
	if m.stage >= transferHalting {
		return
	}
	m.stage = transferHalting
	lane := t.rails.lane
	t.by = lane.Now().After(CleanupWindow)
	lane.Arm(&t.clock, lane.Now().After(haltGrace), t)
	lane.Disarm(&t.retry)
	t.rails.upper.delist(t)
	for _, l := range t.legs[:t.used] {
		l.claim.Cancel() // nothing, if it was answered
	}
	if t.asked && !t.question.Begun {
		t.question.cancel()
	}
	t.advance()
}

// force takes the connections of unfinished slices to their end. They share one cleanup window (SPEC ).
func (t *Transfer) force() {
	for i, l := range t.legs[:t.used] {
		c := l.connection()
		if c != nil && !l.dead && t.unfinished(i) {
			c.Fail(t.machine.fault, t.by)
		}
	}
}

// unfinished is true exactly when a slice on the leg may still do something.
func (t *Transfer) unfinished(leg int) bool {
	for i := range t.machine.parcels {
		p := &t.machine.parcels[i]
		if int(p.leg) == leg && (p.phase == parcelGranted || p.phase == parcelMoved) {
			return true
		}
	}
	return false
}

// Lost (User).
func (l *leg) Lost(_ *Connection, err error) {
	t := l.transfer
	l.dead = true
	if t.keeps {
		return // the next part finds out
	}
	for i := range t.machine.parcels {
		if int(t.machine.parcels[i].leg) == l.index {
			t.hungers[i].leave()
		}
	}
	some := t.machine.lost(l.index)
	switch s := t.machine.stage; {
	case s < transferMoving:
		t.fail(faultOf("", err))
	case s == transferMoving && some:
		t.fail(faultOf("", err))
	}
	t.advance()
}

// Quiet (User).
func (l *leg) Quiet(c *Connection, proven bool) {
	t := l.transfer
	l.mute = true
	if t.keeps { // nothing is with the device
		t.part(l)
		return
	}
	t.machine.quiet(l.index, proven)
	t.part(l)
	t.advance()
}

// bury gives up slices that were granted on connections that had failed before.
func (t *Transfer) bury() {
	for i, l := range t.legs[:t.used] {
		if l.dead {
			t.machine.lost(i)
		}
		if l.mute {
			t.machine.quiet(i, true) // nothing was posted for them
		}
	}
}

// part gives a leg's connection back; a private one ends, and the transfer waits for that (SPEC R-16).
func (t *Transfer) part(l *leg) {
	c := l.connection()
	if c == nil {
		return
	}
	t.unask(l)
	switch {
	case t.private():
		t.closing++
		c.Close(func(error) { t.parted() })
	case t.retiring:
		c.Close(ignoreEnd)
	}
	l.claim.Hold.Release()
}

// unask gives back the receives of the peer that a leg's slices have.
func (t *Transfer) unask(l *leg) {
	if !t.roomy {
		return
	}
	c := l.connection()
	for i := range t.machine.parcels {
		if p := &t.machine.parcels[i]; int(p.leg) == l.index {
			c.line(int(p.pair)).asked--
		}
	}
}

// parted is told the end of a private connection, both sides included.
func (t *Transfer) parted() {
	t.closing--
	if t.machine.stage == transferParting && t.closing == 0 {
		t.report()
	}
}

// giveBack returns all that the transfer holds but its connections. Proof: every work request has completed, or its
// connection was drained; what has no such proof is kept for good (SPEC G-9).
func (t *Transfer) giveBack() {
	kept := t.machine.kept()
	for i, slot := range t.slots {
		if p := &t.machine.parcels[i]; p.phase != parcelKept {
			t.legs[p.leg].rail.stock.put(slot)
		}
	}
	t.slots = t.slots[:0]
	for _, l := range t.legs[:t.used] {
		l.rail.Device.Discharge(l.charged)
		l.charged = 0
	}
	if kept {
		if !t.lodges() { // the walk keeps what the device may still write
			t.retain()
		}
		return
	}
	if t.lease.Held() {
		t.lease.Return()
	}
	if t.bytes.Held() {
		t.bytes.Repay()
	}
	if t.staging != nil {
		t.staging.end(t.rails)
		t.staging, t.filled = nil, false
	}
}

// remains is what an unproven transfer keeps.
type remains struct {
	lease      segments.Lease
	bytes      budgets.Charge
	registered *Registered
	staging    *staging
}

// giveBack follows a late proof that no copy is under way (flows.Flow.KeepUntil). What goes through chunks has a lease only.
func (r *remains) giveBack() {
	if r.lease.Held() {
		r.lease.Return()
	}
}

// retain keeps it: for good, or with the copies whose end a GPU's driver may still prove.
func (t *Transfer) retain() {
	r, late := t.late, t.late != nil
	if t.late = nil; !late {
		r = &remains{}
	}
	r.lease, r.registered, r.staging = t.lease, t.registered, t.staging
	if t.bytes.Held() {
		r.bytes = t.bytes.Move()
	}
	t.lease, t.registered, t.staging = segments.Lease{}, nil, nil
	if late {
		return // the flow's residue lists it
	}
	t.rails.transport.keep(&Residue{
		Object: fmt.Sprintf("%v of %d bytes at %#x", t.Direction, t.Length, t.Local.Address()+t.LocalOffset), Bytes: t.Length, Reason: t.machine.fault, owner: r,
	})
}

// settle ends the transfer: no work of it is with a device, or that is not proven for good.
func (t *Transfer) settle() {
	if t.mustFlush() {
		t.flush()
		return
	}
	lane := t.rails.lane
	lane.Disarm(&t.clock)
	lane.Disarm(&t.retry)
	t.machine.stage = transferParting
	t.giveBack()
	t.closing++ // the last end is told after the loop
	keeps := t.rest()
	for _, l := range t.legs[:t.used] {
		if keeps {
			t.unask(l)
		} else {
			t.part(l)
		}
	}
	t.roomy, t.keeps = false, keeps
	t.rails.upper.serve()
	t.parted()
}

// conclude ends a transfer that has begun nothing.
func (t *Transfer) conclude(f *lanes.Fault) {
	if f != nil {
		t.machine.fail(f)
	}
	t.report()
}

// report is the end, but for Done. Whoever is told of it may use the transfer again at once, on another lane even, so nothing
// may touch it after Done; and what calls this goes on with it, at many depths. So Done has a call of its own, in this turn or
// the next.
func (t *Transfer) report() {
	if t.machine.stage == transferEnded {
		panic("rdma: end of a transfer that is at " + t.machine.stage.String() + ", want under way")
	}
	if t.registered != nil {
		t.registered.Return() // proof: giveBack, which takes it away when there is none
		t.registered = nil
	}
	if t.Remote == RemoteDirect {
		t.rails.upper.turns.leave(t)
	}
	counts := &t.rails.lane.Counts
	t.Outcome = t.machine.outcome(t.Length)
	switch {
	case t.track != nil: // the whole is counted
	case t.Outcome.Err != nil:
		counts.TransfersFailed.Add(1)
	case t.Direction == lanes.Read:
		counts.ReadsDone.Add(1)
		counts.BytesRead.Add(t.Length)
	default:
		counts.WritesDone.Add(1)
		counts.BytesWritten.Add(t.Length)
	}
	t.machine.stage = transferEnded
	t.rails.lane.Arm(&t.clock, t.rails.lane.Now(), (*transferEnd)(t))
}

// transferEnd is the handler of the timer for Done.
type transferEnd Transfer

// Expire (reactor.TimerHandler).
func (x *transferEnd) Expire(*reactor.Timer, reactor.Instant) {
	t := (*Transfer)(x)
	r := t.rails
	t.machine.stage = transferIdle
	r.upper.ended(t)
	r.pending--
	t.Done(t) // nothing touches it from here on
	r.settle()
}

// begun lists a transfer that runs.
func (u *upper) begun(t *Transfer) {
	t.before, t.behind = nil, u.running
	if u.running != nil {
		u.running.before = t
	}
	u.running = t
}

func (u *upper) ended(t *Transfer) {
	if t.before == nil {
		u.running = t.behind
	} else {
		t.before.behind = t.behind
	}
	if t.behind != nil {
		t.behind.before = t.before
	}
	t.before, t.behind = nil, nil
}

// shut ends all transfers, because the lane ends.
func (u *upper) shut() {
	for t := u.running; t != nil; t = t.behind { // none leaves the list meanwhile (see report); who joins it is a walk's own
		t.halted(lanes.Closed, ErrClosed)
	}
}

// work (eater).
func (t *Transfer) work(c *Connection, slice int) (verbs.Work, bool) {
	m := &t.machine
	p, l := &m.parcels[slice], t.legOf(slice)
	what := t.upcoming(slice)
	if what == workNone {
		return verbs.Work{}, false
	}
	w := verbs.Work{SendWork: verbs.SendWork{RemoteKey: verbs.RemoteKey(p.grant.Key)}}
	if what == workBinding {
		w.ID = c.TagSend(t, uint64(what)<<16|uint64(slice))
		k := &l.rail.stock
		t.bind(c, slice, k.bytes(t.slots[slice]))
		w.Operation, w.Flags, w.Length = verbs.SendWithInvalidate, verbs.Fence|verbs.Solicited, netproto.BindingSize
		if t.Remote == RemoteDirect { // a region is no window: nothing is invalidated, and its end is the source's (SPEC C-7)
			w.Operation, w.RemoteKey = verbs.Send, 0
		}
		w.Address, w.LocalKey = k.place(t.slots[slice])
		m.posted(slice, what, 0)
		if m.stage == transferHalting {
			t.rails.transport.grants.surrendered.Add(1)
		}
		return w, true
	}
	address, key, n, part := t.place(l, p)
	w.ID = c.TagSend(t, uint64(part)<<24|uint64(what)<<16|uint64(slice))
	w.Operation, w.Length, w.LocalKey = verbs.Read, uint32(n), key
	if t.Direction == lanes.Write {
		w.Operation = verbs.Write
	}
	w.Address, w.Remote = address, p.grant.Address+p.posted
	m.posted(slice, what, n)
	if t.chunked() {
		t.parts[part].posted += n
		t.parts[part].flying++
	}
	return w, true
}

// bind writes the binding of a slice (SPEC ).
func (t *Transfer) bind(c *Connection, slice int, dst []byte) {
	p := &t.machine.parcels[slice]
	netproto.PutBinding(dst, &netproto.Binding{
		Profile: t.profile(), Direction: operation(t.Direction), Requester: t.request.Requester, Source: t.Epoch,
		RequesterEnd: c.Own, SourceEnd: c.Other, Parent: t.request.Generation, Grant: p.grant.Generation,
		Region: t.Region, Offset: t.Offset + p.offset, Length: p.length, Address: p.grant.Address, Key: p.grant.Key,
		Slice: uint16(slice), Slices: uint16(len(t.machine.parcels)), RequesterNIC: c.Device.NIC, SourceNIC: c.OtherNIC, Pair: p.pair,
		SourcePair: c.OtherPairs[p.pair].Number, RequesterPair: uint32(c.Pair(int(p.pair)).Number()),
	})
}

// spilled (eater).
func (t *Transfer) spilled(_ *Connection, slice int, w *verbs.Work, err error) {
	what := workPayload
	if w.Operation == verbs.SendWithInvalidate || w.Operation == verbs.Send {
		what = workBinding
	}
	t.machine.spilled(slice, what, uint64(w.Length))
	t.fail(faultOf("", err)) // which ends the flow, too, with what is with the devices of it
}

// more (eater).
func (t *Transfer) more(slice int) bool { return t.upcoming(slice) != workNone }

// Reaped (Owner).
func (t *Transfer) Reaped(word uint64, w *verbs.Reaped) {
	slice, what, part := int(word&0xffff), parcelWork(word>>16&0xff), int(word>>24)
	ok := w.Status == verbs.WorkSuccess
	t.machine.reaped(slice, what, ok)
	c := t.legOf(slice).connection()
	if !ok {
		t.fail(faultOf("", &WorkError{Connection: c.String(), Status: w.Status, Vendor: w.Vendor}))
	}
	p := &t.machine.parcels[slice]
	if ok && p.phase == parcelEnded {
		carried := &t.legOf(slice).rail.Device.traffic.read
		if t.Direction == lanes.Write {
			carried = &t.legOf(slice).rail.Device.traffic.written
		}
		carried.add(p.length)
	}
	if what == workPayload && t.chunked() {
		t.carried(part, ok)
	}
	pair := int(p.pair)
	if c != nil && c.Open() {
		if t.upcoming(slice) != workNone {
			c.queue(pair, &t.hungers[slice], t, slice)
		}
		c.pump(pair)
	}
	t.advance()
}

// takeRoom reserves receives of the peer for all slices, or none.
func (t *Transfer) takeRoom() bool {
	credit := t.peer.credit()
	for i := range t.machine.parcels {
		p := &t.machine.parcels[i]
		c := t.legOf(i).connection()
		best := c.NextPair()
		for pair := range c.Width() {
			if c.line(pair).asked < c.line(best).asked {
				best = pair
			}
		}
		p.pair = uint8(best)
		if c.line(best).asked >= credit {
			for j := range i {
				q := &t.machine.parcels[j]
				t.legOf(j).connection().line(int(q.pair)).asked--
			}
			return false
		}
		c.line(best).asked++
	}
	t.roomy = true
	return true
}

// enlist puts a transfer behind those that wait for receives, and serves who can be.
func (u *upper) enlist(t *Transfer) {
	t.waiting, t.next = true, nil
	if u.last == nil {
		u.first = t
	} else {
		u.last.next = t
	}
	u.last = t
	u.serve()
}

func (u *upper) delist(t *Transfer) {
	if !t.waiting {
		return
	}
	t.waiting = false
	var before *Transfer
	for at := u.first; at != t; at = at.next {
		before = at
	}
	if before == nil {
		u.first = t.next
	} else {
		before.next = t.next
	}
	if u.last == t {
		u.last = before
	}
}

// serve gives receives to those who wait, in order on each connection: one that waits for one connection does not hold
// up the others.
func (u *upper) serve() {
	if u.serving {
		u.again = true
		return
	}
	u.serving = true
	for u.again = true; u.again; {
		u.again = false
		u.sweeps++
		for t := u.first; t != nil; t = t.next {
			if t.barred(u.sweeps) || !t.takeRoom() {
				t.bar(u.sweeps)
				continue
			}
			u.delist(t)
			u.again = true
			t.enter(transferStocking)
			break
		}
	}
	u.serving = false
}

// barred is true exactly when somebody before it waits for one of its connections.
func (t *Transfer) barred(sweep uint64) bool {
	for _, l := range t.legs[:t.used] {
		if l.connection().line(0).blocked == sweep {
			return true
		}
	}
	return false
}

func (t *Transfer) bar(sweep uint64) {
	for _, l := range t.legs[:t.used] {
		l.connection().line(0).blocked = sweep
	}
}
