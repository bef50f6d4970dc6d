package rdma

import (
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

// ask asks the source for one grant for each slice (SPEC R-9).
func (t *Transfer) ask() {
	g := &t.request
	*g = netproto.GrantRequest{
		Profile: t.profile(), Requester: t.rails.transport.config.Epoch, Generation: t.rails.transport.generation(&t.rails.transport.grants.parents),
		Connections: g.Connections[:0], Slices: g.Slices[:0],
	}
	for _, l := range t.legs[:t.used] {
		l.wire = uint8(len(g.Connections))
		g.Connections = append(g.Connections, netproto.GrantConnection{Requester: l.connection().Own, Source: l.connection().Other})
	}
	for i := range t.machine.parcels {
		p := &t.machine.parcels[i]
		g.Slices = append(g.Slices, netproto.GrantSlice{Offset: t.Offset + p.offset, Length: p.length, Connection: t.legs[p.leg].wire, Pair: p.pair})
	}
	request := netproto.Request{Operation: operation(t.Direction), Epoch: t.Epoch, Region: t.Region, Offset: t.Offset, Length: t.Length}
	if len(g.Slices) > 1 {
		request.Operation += netproto.OperationRDMAReadSliced - netproto.OperationRDMARead
	}
	t.rails.transport.grants.asked.Add(uint64(len(g.Slices)))
	t.machine.stage, t.asked = transferGranting, true
	t.begun = t.rails.lane.Now()
	t.question.ask(t.peer.Channel, request, "RDMA grant", len(g.Slices)*netproto.GrantSize, t.Deadline.After(haltGrace), t.encodeGrants, t.grantAnswered)
	if t.asked && !t.question.Begun && t.lease.Held() {
		lane := t.rails.lane
		lane.Arm(&t.retry, lane.Now().After(roomGrace<<min(t.yields, 8)), (*transferRetry)(t))
	}
}

// yield gives the local range back when the question has waited for the stream: a request over TCP that has the stream may
// wait for the range. The next time it waits longer, so that a busy stream does not keep it away for good.
func (t *Transfer) yield() {
	if t.asked && !t.question.Begun && t.lease.Held() {
		t.yields++
		t.yielding = true
		t.question.cancel()
		t.yielding = false
	}
}

// takeGrants takes the source's answer.
func (t *Transfer) takeGrants(q *question) {
	t.asked = false
	defer t.advance()
	t.rails.lane.Disarm(&t.retry)
	if t.yielding && !q.Begun && t.machine.fault == nil {
		t.lease.Return() // nothing was asked
		t.machine.stage = transferLeasing
		t.pause(t.rails.lane.Now().After(yieldPause))
		return
	}
	if q.Err == nil {
		grants, err := netproto.DecodeGrants(t.grants[:0], &t.request, q.Payload())
		t.grants = grants
		if err != nil {
			t.machine.authority = true
			t.retiring = true
			t.fail(fault(lanes.Violated, "RDMA grant", err))
			return
		}
		t.machine.granted(grants)
		t.granted = t.rails.lane.Now()
		t.bury()
		if t.machine.fault == nil {
			t.machine.stage = transferMoving
			if t.chunked() {
				t.flow()
			}
			t.feed()
		}
		return
	}
	f, ok := q.Err.(*lanes.Fault)
	switch {
	case ok && f.Cause == lanes.Refused:
		t.refused(f)
	case q.Begun: // granted or not, and nobody here knows the keys
		t.machine.authority, t.retiring = true, true
		t.fail(f)
	default:
		t.fail(f)
	}
}

// refused goes on after the source's word that it granted nothing.
func (t *Transfer) refused(f *lanes.Fault) {
	switch {
	case t.machine.fault != nil: // it was failing before
	case f.Status == netproto.StatusCacheMiss && t.machine.missed():
		t.rails.transport.grants.misses.Add(1)
		t.giveBack()
		t.retiring = true // nobody else is to find them; those who use them go on
		for _, l := range t.legs[:t.used] {
			t.part(l)
		}
		t.retiring, t.roomy = false, false
		t.rails.upper.serve()
		t.connect()
	case f.Status == netproto.StatusCacheMiss:
		t.retiring = true // the source does not know them
		f.Err = &MissError{Times: t.machine.misses}
		t.fail(f)
	case f.Status == netproto.StatusExhausted:
		t.rails.transport.grants.retries.Add(1)
		t.machine.stage = transferLeasing
		if t.lease.Held() {
			t.lease.Return() // whoever has the range at the source may wait for it here
		}
		staged := t.Remote == RemoteStaged || t.Remote == RemoteSlot
		if staged && t.rails.lane.Now() >= t.begun.After(chunkPatience) { // it stood in line for a chunk, or waited for its slot, and does again
			t.roomBy = 0
		}
		t.room(f)
	default:
		t.fail(f)
	}
}

func ignoreEnd(error) {}

// ReceiptStage is the stage of a fault that the source's last word told: payload may have moved before.
const ReceiptStage = "RDMA receipt"

// tell tells the source that all grants are done with, or given up.
func (t *Transfer) tell(o netproto.Operation, by reactor.Instant) {
	t.asked = true
	stage := ReceiptStage
	if o == netproto.OperationRDMAAbandon {
		stage = "RDMA abandon"
	}
	t.question.ask(t.peer.Channel, netproto.Request{Operation: o, Epoch: t.Epoch}, stage, 0, by, t.encodeParent, t.answered)
}

// takeReceipt takes the source's word about the whole.
func (t *Transfer) takeReceipt(q *question) {
	t.asked = false
	m := &t.machine
	f, _ := q.Err.(*lanes.Fault)
	switch {
	case m.stage == transferAbandoning:
		if q.Err != nil { // what the source keeps for it is not known
			t.retiring = true
		}
		t.settle()
	case q.Err == nil:
		m.received, m.authority = true, false
		if !t.gpu.failed() {
			m.fault = nil // a cancellation that comes with the receipt is late
		}
		t.finish()
	case f.Cause == lanes.Refused: // the source has ended them
		m.authority = false
		t.retiring = true // its end of the connections may be gone
		if f.Status == statusDeadline {
			f.Cause, f.Err = lanes.Deadline, &SourceDeadlineError{}
		}
		t.fail(f)
		t.advance()
	default:
		t.fail(f)
		t.advance()
	}
}

// finish goes on after the source's receipt.
func (t *Transfer) finish() {
	if t.chunked() {
		t.landed()
		return
	}
	if t.staged() && t.Direction == lanes.Read && !t.lodges() {
		t.machine.stage, t.copied = transferCommit, 0
		t.commit()
		return
	}
	t.settle()
}

// commit puts a complete staged READ into the local range, slice by slice under one lease (SPEC T-1).
func (t *Transfer) commit() {
	lane := t.rails.lane
	if !t.lease.Held() {
		lease, err := t.Local.Lease(t.LocalOffset, t.Length, segments.Exclusive)
		if err != nil {
			if lane.Now() >= t.Deadline {
				t.machine.fail(fault(lanes.Deadline, "commit", err))
				t.settle()
				return
			}
			lane.Counts.ConflictRetries.Add(1)
			lane.Arm(&t.retry, t.backoff.Next(lane.Now(), t.Deadline), (*transferRetry)(t))
			return
		}
		t.lease, t.copied = lease, 0
	}
	if t.copied = lanes.CommitSlice(t.lease.Bytes(), t.staging.backing.Bytes(), t.copied); uint64(t.copied) < t.Length {
		lane.Arm(&t.retry, lane.Now().After(1), (*transferRetry)(t))
		return
	}
	t.machine.committed = true
	t.settle()
}
