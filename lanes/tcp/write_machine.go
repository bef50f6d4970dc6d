package tcp

import "github.com/orbitte/orbitte/netproto"

// writeMachine decides the steps of a WRITE at the requester.
type writeMachine struct {
	machine
}

// sent: the request, or the payload, is out.
func (m *writeMachine) sent() {
	switch m.stage {
	case stageRequest:
		m.stage = stageReady
	case stagePayload:
		m.stage = stageReceipt
	}
}

// reply takes the source's word: Ready for the request, Success for the committed payload.
func (m *writeMachine) reply(header []byte) {
	reply, err := netproto.DecodeReply(header)
	switch {
	case err != nil:
		m.violate(err)
	case m.stage == stageReady && m.answers(reply, netproto.StatusReady, 0):
		m.stage = stagePayload
		if m.length == 0 {
			m.stage = stageReceipt
		}
	case m.stage == stageReceipt && m.answers(reply, netproto.StatusSuccess, 0):
		m.end()
	case m.stage == stageReady && refusal(reply.Status):
		m.refuse(reply)
	default: // a refusal after the payload breaks W-14: the source may have committed or not
		m.violate(errUnexpectedReply)
	}
}

// unsure is true exactly when payload bytes may have reached the source without a receipt (SPEC T-10).
// sent counts those that the interrupted call had moved.
func (m *writeMachine) unsure(sent int) bool {
	at := m.reached()
	return m.length > 0 && (at == stageReceipt || at == stagePayload && sent > 0)
}
