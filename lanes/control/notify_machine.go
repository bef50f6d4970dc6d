package control

import (
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
)

// notifyStage is how far one notification has come, at the sender.
//
//	request ──sent──▶ ready? ──Ready──▶ body ──sent──▶ receipt? ──Success──▶ done
//	                    └─any refusal─▶ done (no effect)    └─lost─▶ done (effect unknown)
type notifyStage uint8

const (
	notifyRequest notifyStage = iota
	notifyReady
	notifyBody
	notifyReceipt
	notifyDone
)

var notifyStageNames = [...]string{"request", "reply", "body", "receipt", "done"}

func (s notifyStage) String() string { return notifyStageNames[s] }

// notifyMachine decides the sender's steps.
type notifyMachine struct {
	stage    notifyStage
	last     notifyStage // the stage before done
	expected netproto.Epoch
	fault    *lanes.Fault // why it failed, once done
	violated bool         // true exactly when the stream cannot go on
}

// sent moves on after a frame was sent.
func (m *notifyMachine) sent() {
	switch m.stage {
	case notifyRequest:
		m.stage = notifyReady
	case notifyBody:
		m.stage = notifyReceipt
	}
}

// reply takes the source's answer to the request or to the body.
func (m *notifyMachine) reply(header []byte) {
	reply, err := netproto.DecodeReply(header)
	stage := m.stage
	wanted := netproto.StatusReady
	if stage == notifyReceipt {
		wanted = netproto.StatusSuccess
	}
	switch {
	case err != nil:
		m.end(&lanes.Fault{Cause: lanes.Violated, Stage: stage.String(), Err: err}, true)
	case reply.Status == wanted && reply.Epoch == m.expected && reply.Length == 0 && stage == notifyReady:
		m.stage = notifyBody
	case reply.Status == wanted && reply.Epoch == m.expected && reply.Length == 0:
		m.stage = notifyDone
	case refusal(reply.Status):
		m.end(&lanes.Fault{Cause: lanes.Refused, Stage: stage.String(), Status: reply.Status, Actual: reply.Epoch, Expected: m.expected}, stage == notifyReceipt)
	default:
		m.end(&lanes.Fault{Cause: lanes.Violated, Stage: stage.String(), Status: reply.Status, Actual: reply.Epoch, Expected: m.expected, Err: errUnexpectedReply}, true)
	}
}

func (m *notifyMachine) end(fault *lanes.Fault, violated bool) {
	m.last, m.stage, m.fault, m.violated = m.stage, notifyDone, fault, violated
}

// reached is the last stage before the end.
func (m *notifyMachine) reached() notifyStage {
	if m.stage == notifyDone {
		return m.last
	}
	return m.stage
}

// lost says what is known about the delivery when the stream ended under it: once bytes of the body
// may have left and no receipt came, nothing is (SPEC N-4).
func (m *notifyMachine) lost(sent int) lanes.Effect {
	if at := m.reached(); at == notifyReceipt || at == notifyBody && sent > 0 {
		return lanes.EffectUnknown
	}
	return lanes.EffectNone
}

// refusal is true exactly for the statuses that say no.
func refusal(s netproto.Status) bool {
	return s != netproto.StatusSuccess && s != netproto.StatusReady
}
