package tcp

import (
	"errors"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
)

var errUnexpectedReply = errors.New("a reply that does not answer this request")

// stage is how far a transfer has come, at the requester.
//
//	READ:  request ─sent─▶ reply ─Success─▶ payload ─complete─▶ commit ─▶ done
//	                         └─refusal─▶ done
//	WRITE: request ─sent─▶ ready ─Ready─▶ payload ─sent─▶ receipt ─Success─▶ done
//	                         └─refusal─▶ done
type stage uint8

const (
	stageRequest stage = iota
	stageReply
	stageReady
	stagePayload
	stageReceipt
	stageCommit
	stageDone
)

var stageNames = [...]string{"request", "reply", "ready", "payload", "receipt", "commit", "done"}

func (s stage) String() string { return stageNames[s] }

// machine is what read and write machines share: one exchange and how it ended.
type machine struct {
	stage    stage
	last     stage // the stage before done
	expected netproto.Epoch
	length   uint64
	fault    *lanes.Fault // why it failed, once done
	violated bool         // true exactly when the stream cannot go on
}

// reached is the last stage before the end.
func (m *machine) reached() stage {
	if m.stage == stageDone {
		return m.last
	}
	return m.stage
}

func (m *machine) end() { m.last, m.stage = m.stage, stageDone }

func (m *machine) refuse(reply netproto.Reply) {
	m.fault = &lanes.Fault{Cause: lanes.Refused, Stage: m.stage.String(), Status: reply.Status, Actual: reply.Epoch, Expected: m.expected}
	m.end()
}

func (m *machine) violate(err error) {
	m.fault, m.violated = &lanes.Fault{Cause: lanes.Violated, Stage: m.stage.String(), Err: err}, true
	m.end()
}

// answers is true exactly when the reply is the wanted one, from the expected process.
func (m *machine) answers(r netproto.Reply, status netproto.Status, length uint64) bool {
	return r.Status == status && r.Epoch == m.expected && r.Length == length
}

// refusal is true exactly for the statuses that say no.
func refusal(s netproto.Status) bool {
	return s != netproto.StatusSuccess && s != netproto.StatusReady
}

// readMachine decides the steps of a READ at the requester.
type readMachine struct {
	machine
	got uint64 // bytes received into the payload's place, whatever they are
}

// sent: the request is out.
func (m *readMachine) sent() { m.stage = stageReply }

// reply takes the header of the answer and the number of bytes that came behind it in the same call.
func (m *readMachine) reply(header []byte, behind uint64) {
	m.got = behind
	reply, err := netproto.DecodeReply(header)
	switch {
	case err != nil:
		m.violate(err)
	case m.answers(reply, netproto.StatusSuccess, m.length):
		m.stage = stagePayload
		m.payload(0)
	case refusal(reply.Status) && behind == 0:
		m.refuse(reply)
	default:
		m.violate(errUnexpectedReply)
	}
}

// payload counts further received bytes.
func (m *readMachine) payload(n uint64) {
	m.got += n
	if m.got == m.length {
		m.stage = stageCommit
	}
}

// touched is true exactly when the socket has put bytes into the payload's place: those received, and
// in the call that was interrupted at the end those behind the header, or all of them once the header
// was complete (SPEC T-2).
func (m *readMachine) touched(received int) bool {
	return m.got > 0 || received > netproto.ReplySize || m.reached() == stagePayload && received > 0
}

// committed: the range has the payload.
func (m *readMachine) committed() { m.end() }
