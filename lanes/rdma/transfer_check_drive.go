package rdma

import (
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/netproto"
)

// rangeCheck has the source check a request that moves nothing (SPEC G-7). A grant has at least one byte, so the empty
// request goes over the control stream as what it is: operation 1 or 2 with a length of zero, which checks epoch,
// region, permission and range like any other, and grants, leases and moves nothing. No payload ever follows it.
//
//	request ──▶ [ready, WRITE] ──▶ success or refusal
type rangeCheck struct {
	transfer *Transfer
	exchange control.Exchange
	ready    bool // WRITE: true exactly when the source said ready
}

func (k *rangeCheck) start(t *Transfer) {
	k.transfer, k.ready = t, false
	t.peer.Channel.Run(&k.exchange, k, t.Deadline)
}

// Begin (control.Work).
func (k *rangeCheck) Begin(c *control.Channel) {
	t := k.transfer
	o := netproto.OperationTCPRead
	if t.Direction == lanes.Write {
		o = netproto.OperationTCPWrite
	}
	c.Send(netproto.AppendRequest(c.Out()[:0], netproto.Request{Operation: o, Epoch: t.Epoch, Region: t.Region, Offset: t.Offset}), nil)
}

// Sent (control.Work).
func (k *rangeCheck) Sent(int) { k.await() }

func (k *rangeCheck) await() {
	c := k.transfer.peer.Channel
	c.Receive(c.In()[:netproto.ReplySize], nil, netproto.ReplySize)
}

// Received (control.Work).
func (k *rangeCheck) Received(int) {
	t := k.transfer
	c := t.peer.Channel
	reply, err := netproto.DecodeReply(c.In()[:netproto.ReplySize])
	switch {
	case err != nil:
		c.Break("check", err)
	case reply.Length != 0 || reply.Status == netproto.StatusReady && (t.Direction == lanes.Read || k.ready):
		c.Break("check", errUnexpectedReply)
	case reply.Status == netproto.StatusReady:
		k.ready = true
		k.await()
	case reply.Status == netproto.StatusSuccess && reply.Epoch == t.Epoch && (t.Direction == lanes.Read || k.ready):
		c.Finish()
		t.conclude(nil)
	case reply.Status == netproto.StatusSuccess:
		c.Break("check", errUnknownEpoch)
	default:
		c.Finish()
		t.conclude(&lanes.Fault{Cause: lanes.Refused, Stage: "check", Status: reply.Status, Actual: reply.Epoch, Expected: t.Epoch})
	}
}

// Failed (control.Work).
func (k *rangeCheck) Failed(f control.Failure) { k.transfer.conclude(f.Fault) }
