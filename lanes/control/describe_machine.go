package control

import (
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
)

// describeMachine decides the steps of a describe at the requester. With a zero expected epoch it
// first learns the epoch from the mismatch reply and then asks again with it (SPEC W-12).
//
//	ask(0) ──mismatch──▶ ask(actual) ──success, n bytes──▶ body ──▶ done
//	ask(expected) ──────────────────────┘         any refusal ──▶ done
type describeMachine struct {
	expected netproto.Epoch
	length   uint64 // of the descriptor that follows, once body is true
	body     bool   // true exactly while the descriptor's bytes are awaited
	again    bool   // true exactly when the epoch was learned and the question is to be repeated
	fault    *lanes.Fault
	violated bool
}

func (m *describeMachine) request() netproto.Request {
	return netproto.Request{Operation: netproto.OperationDescribe, Epoch: m.expected}
}

// reply takes the source's answer.
func (m *describeMachine) reply(header []byte) {
	m.again = false
	reply, err := netproto.DecodeReply(header)
	switch {
	case err != nil:
		m.violate(err)
	case reply.Status == netproto.StatusEpochMismatch && m.expected.IsZero() && !reply.Epoch.IsZero():
		m.expected, m.again = reply.Epoch, true
	case reply.Status == netproto.StatusSuccess && reply.Epoch == m.expected && reply.Length > 0 && reply.Length <= netproto.DescriptorSizeMax:
		m.length, m.body = reply.Length, true
	case refusal(reply.Status):
		m.fault = &lanes.Fault{Cause: lanes.Refused, Stage: "describe", Status: reply.Status, Actual: reply.Epoch, Expected: m.expected}
	default:
		m.violate(errUnexpectedReply)
	}
}

func (m *describeMachine) violate(err error) {
	m.fault, m.violated = &lanes.Fault{Cause: lanes.Violated, Stage: "describe", Err: err}, true
}
