package tcp

// serveStage is how far one admitted frame has come, at the source.
//
//	READ:  snapshot ─leased, or copied─▶ sending ─sent─▶ done
//	                                     └─short─▶ keeping ─copied─▶ sending
//	WRITE: readying ─sent─▶ receiving ─complete─▶ commit ─leased, copied─▶ acking ─sent─▶ done
//
// Direct placement leases in snapshot (READ) or before readying (WRITE: lease) and holds the lease
// until the socket is done with the range.
type serveStage uint8

const (
	serveSnapshot serveStage = iota
	serveSending
	serveKeeping
	serveLease
	serveReadying
	serveReceiving
	serveCommit
	serveAcking
	serveDone
)

// serveMachine decides the steps of one frame at the source.
type serveMachine struct {
	stage  serveStage
	length uint64
}

func newServe(write, direct bool, length uint64) serveMachine {
	switch {
	case !write:
		return serveMachine{stage: serveSnapshot, length: length}
	case direct:
		return serveMachine{stage: serveLease, length: length}
	}
	return serveMachine{stage: serveReadying, length: length}
}

// leased: the lease that the stage waits for is held.
func (m *serveMachine) leased() {
	switch m.stage {
	case serveSnapshot, serveKeeping:
		m.stage = serveSending
	case serveLease:
		m.stage = serveReadying
	case serveCommit:
		m.stage = serveAcking
	}
}

// short: not all of a payload that is sent from the leased range itself went at once.
func (m *serveMachine) short() { m.stage = serveKeeping }

// sent: the reply header, with payload or without, is out. An empty WRITE has no payload to wait for.
func (m *serveMachine) sent() {
	switch {
	case m.stage == serveReadying && m.length > 0:
		m.stage = serveReceiving
	case m.stage == serveReadying:
		m.stage = serveCommit
	default:
		m.stage = serveDone
	}
}

// received: the whole payload is here.
func (m *serveMachine) received() { m.stage = serveCommit }
