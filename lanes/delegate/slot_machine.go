package delegate

import "github.com/orbitte/orbitte/netproto"

type slotState uint8

const (
	slotEmpty   slotState = iota // has no bytes of this pin
	slotFull                     // content bytes at its front are this pin's
	slotLeasing                  // waits for the lease of the device range
	slotCopying                  // a copy may touch it
	slotFailed                   // its last copy failed, and has ended
	slotLost                     // its last copy, or a grant, is not proven to have ended
)

var slotStateNames = [...]string{"empty", "full", "leasing", "copying", "failed", "lost"}

func (s slotState) String() string { return slotStateNames[s] }

// slotMachine decides what may be done with one slot. Nobody reads bytes in it that this pin has not put there: they could
// be another peer's.
type slotMachine struct {
	state   slotState
	write   bool   // the pin is for a WRITE
	size    uint64 // of the slot
	content uint64 // bytes at its front that are this pin's, once it is full; while a READ's copy is under way: will be
	inside  bool   // true exactly while a frame of payload has it
	failure netproto.Status
}

// busy is true exactly while a copy is under way, or is to begin.
func (m *slotMachine) busy() bool { return m.state == slotLeasing || m.state == slotCopying }

// quiet is true exactly when neither frame nor copy touches it.
func (m *slotMachine) quiet() bool { return !m.busy() && !m.inside }

// order says whether a copy of length bytes may begin now.
func (m *slotMachine) order(length uint64) netproto.Status {
	switch {
	case m.state == slotFailed || m.state == slotLost:
		return m.failure
	case length > m.size:
		return netproto.StatusInvalidRange
	case m.busy() || m.inside:
		return netproto.StatusProtocolError
	case m.write && (m.state != slotFull || m.content != length):
		return netproto.StatusProtocolError
	}
	return netproto.StatusSuccess
}

// begin takes an order that order has let pass.
func (m *slotMachine) begin(length uint64) { m.state, m.content = slotLeasing, length }

// leased: the copy begins.
func (m *slotMachine) leased() { m.state = slotCopying }

// copied takes the end of a copy; failure is StatusSuccess when it is whole.
func (m *slotMachine) copied(failure netproto.Status, proven bool) {
	switch {
	case !proven:
		m.state, m.failure = slotLost, netproto.StatusNativeError
	case failure != netproto.StatusSuccess:
		m.state, m.failure = slotFailed, failure
	case m.write:
		m.state, m.content = slotEmpty, 0
	default:
		m.state = slotFull
	}
}

// lose takes the end of grants without the proof that the device is done with the slot.
func (m *slotMachine) lose() { m.state, m.failure = slotLost, netproto.StatusNativeError }

// admit says whether a frame of payload may have the slot, now or when its copy has ended.
func (m *slotMachine) admit(write bool, offset, length uint64) netproto.Status {
	switch {
	case write != m.write:
		return netproto.StatusPermissionDenied
	case m.inside:
		return netproto.StatusProtocolError
	case m.state == slotFailed || m.state == slotLost:
		return m.failure
	case write && (offset != 0 || length > m.size):
		return netproto.StatusInvalidRange
	case write:
		return netproto.StatusSuccess
	case m.state == slotEmpty || offset > m.content || length > m.content-offset:
		return netproto.StatusInvalidRange
	}
	return netproto.StatusSuccess
}

// enter lends the slot to a frame.
func (m *slotMachine) enter() { m.inside = true }

// usable says whether the frame that has the slot may use it, once no copy is under way.
func (m *slotMachine) usable() netproto.Status {
	if m.state == slotFailed || m.state == slotLost {
		return m.failure
	}
	return netproto.StatusSuccess
}

// leave ends the frame; length: what a whole WRITE has put into the slot, 0 otherwise.
func (m *slotMachine) leave(length uint64) {
	m.inside = false
	if m.write && !m.busy() && m.state != slotFailed && m.state != slotLost {
		m.state, m.content = slotEmpty, length
		if length > 0 {
			m.state = slotFull
		}
	}
}
