package delegate

import (
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
)

// step is what a transfer does next. One thing at a time is asked on the stream; what the source copies meanwhile is what
// was delegated before.
type step uint8

const (
	stepPin      step = iota // ask for slots
	stepDelegate             // tell the source to copy
	stepPayload              // move one part between local range and slot
	stepUnpin                // give the slots back
	stepDone
)

// transferMachine decides the steps of one READ or WRITE at the requester. The parts of a transfer, each as long as a slot
// but for the last one, take the slots in turn. Of the two counts, which never pass length's parts,
//
//	READ:  moved ≤ ordered ≤ moved + slots       WRITE: ordered ≤ moved ≤ ordered + 1
type transferMachine struct {
	write   bool
	length  uint64
	part    uint64       // bytes of a slot; 0 before the pin
	slots   uint64       // 0: none now
	ordered uint64       // parts whose copy at the source was delegated
	moved   uint64       // parts whose payload is through
	posted  bool         // true exactly when a delegate may have reached the source
	fault   *lanes.Fault // the first one
	pinned  bool         // true exactly while the source may hold slots for us, on a stream that is there
	receipt bool         // true exactly when the source said that all copies that it began are whole
	local   lanes.Effect // of a failed part
}

func (m *transferMachine) parts() uint64 { return (m.length-1)/m.part + 1 }

// span is where part i is in the range, and how long it is.
func (m *transferMachine) span(i uint64) (offset, length uint64) {
	offset = i * m.part
	return offset, min(m.part, m.length-offset)
}

func (m *transferMachine) slot(i uint64) uint8 { return uint8(i % m.slots) }

// next is the step to take.
func (m *transferMachine) next() step {
	switch {
	case m.fault != nil && m.pinned:
		return stepUnpin
	case m.fault != nil:
		return stepDone
	case m.slots == 0:
		return stepPin
	case m.orders() > 0:
		return stepDelegate
	case m.moved < m.parts():
		return stepPayload
	case m.pinned:
		return stepUnpin
	}
	return stepDone
}

// orders is how many parts are to be delegated now. READ: as many as there are free slots; WRITE: what has just arrived.
func (m *transferMachine) orders() uint64 {
	if m.write {
		return m.moved - m.ordered
	}
	return min(m.parts()-m.ordered, m.slots-(m.ordered-m.moved))
}

// granted takes the slots; false: they are of another size than those before.
func (m *transferMachine) granted(p netproto.Pinned) bool {
	before := m.part
	m.part, m.slots, m.pinned = p.SlotBytes, uint64(p.Slots), true
	return before == 0 || before == m.part
}

// lost takes the end of the pin with its stream, while no exchange of the transfer was on it: somebody else's end retired
// it. What is not here yet may be asked for through another pin, and so may a WRITE of which nothing was delegated; a
// WRITE that may have begun is never repeated (SPEC T-5, T-10). False: it cannot go on.
func (m *transferMachine) lost() bool {
	m.pinned, m.slots = false, 0
	if m.fault != nil || m.write && m.posted {
		return false
	}
	if m.write {
		m.moved = 0
	}
	m.ordered = m.moved
	return true
}

// fail notes a fault; the first one stays.
func (m *transferMachine) fail(f *lanes.Fault) {
	if m.fault == nil {
		m.fault = f
	}
}

// unpinned takes the end of the pin.
func (m *transferMachine) unpinned(f *lanes.Fault) {
	m.pinned = false
	if f == nil {
		m.receipt = true
	} else if m.write { // the payload of a READ is here whatever becomes of the pin
		m.fail(f)
	}
}

// effects are what is known of both ranges at the end. A WRITE whose delegates have no receipt may have changed anything
// of its range (SPEC T-10); with one, exactly the parts that were delegated have changed.
func (m *transferMachine) effects() (local, remote lanes.Effect) {
	whole := m.fault == nil
	switch {
	case m.write && whole:
		remote = lanes.EffectComplete
	case m.write && m.posted && m.receipt && m.ordered == 0:
	case m.write && m.posted && m.receipt:
		remote = lanes.EffectPartial
	case m.write && m.posted:
		remote = lanes.EffectUnknown
	case m.write:
	case whole:
		local = lanes.EffectComplete
	case m.moved > 0:
		local = lanes.EffectPartial
	default:
		local = m.local
	}
	return local, remote
}
