package delegate

import (
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
)

// step is what a transfer does next. One thing at a time is asked on the stream; what the source copies meanwhile is what
// was delegated before.
type step uint8

const (
	stepWait     step = iota // for what is under way
	stepPin                  // ask for slots
	stepDelegate             // tell the source to copy
	stepPayload              // begin to move one part between local range and slot
	stepUnpin                // give the slots back
	stepDone
)

// transferMachine decides the steps of one READ or WRITE at the requester. The parts of a transfer, each as long as a slot
// but for the last one, take the slots in turn. Of the counts, which never pass length's parts,
//
//	READ:  moved ≤ begun ≤ ordered ≤ moved + slots       WRITE: ordered ≤ moved ≤ begun ≤ ordered + slots
//
// and of those that are begun, at most wide are under way.
type transferMachine struct {
	write   bool
	shared  bool // payload and questions take turns on the stream
	wide    int  // parts whose payload may be under way at a time
	length  uint64
	part    uint64       // bytes of a slot; 0 before the pin
	slots   uint64       // 0: none now
	ordered uint64       // parts whose copy at the source was delegated
	begun   uint64       // parts whose payload was begun
	moved   uint64       // parts whose payload, and that of all before, is through
	through uint32       // parts behind moved whose payload is through, a bit for each slot
	flying  int          // parts whose payload is under way
	strayed bool         // true exactly when the stream is lost, and the pin with it, until all that is under way has ended
	touched bool         // true exactly when a part of a READ is here
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

// next is the step to take; asking: a question is under way.
func (m *transferMachine) next(asking bool) step {
	switch busy := asking || m.flying > 0; {
	case busy && (m.fault != nil || m.strayed || m.shared):
		return stepWait
	case m.fault != nil && m.pinned:
		return stepUnpin
	case m.fault != nil:
		return stepDone
	case !asking && m.slots == 0:
		return stepPin
	case !asking && m.orders() > 0:
		return stepDelegate
	case m.begins():
		return stepPayload
	case busy:
		return stepWait
	case m.pinned:
		return stepUnpin
	}
	return stepDone
}

// begins is true exactly when the payload of one more part may begin: at the latest with the end of a copy that the source
// was told of, its slot has the part's bytes, or no other's any more.
func (m *transferMachine) begins() bool {
	switch {
	case m.slots == 0 || m.flying >= m.wide:
		return false
	case m.write:
		return m.begun < min(m.parts(), m.ordered+m.slots)
	}
	return m.begun < m.ordered
}

// begin takes the next part.
func (m *transferMachine) begin() (part uint64) {
	part = m.begun
	m.begun++
	m.flying++
	return part
}

// ended takes the end of a part's payload. Parts end in any order.
func (m *transferMachine) ended(part uint64, whole bool, local lanes.Effect) {
	m.flying--
	if !whole {
		if local != lanes.EffectNone {
			m.local = local
		}
		return
	}
	m.touched = m.touched || !m.write
	m.through |= 1 << m.slot(part)
	for m.moved < m.begun && m.through&(1<<m.slot(m.moved)) != 0 {
		m.through &^= 1 << m.slot(m.moved)
		m.moved++
	}
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
	m.pinned, m.slots, m.strayed, m.through = false, 0, false, 0
	if m.fault != nil || m.write && m.posted {
		return false
	}
	if m.write {
		m.moved = 0
	}
	m.ordered, m.begun = m.moved, m.moved
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
	case m.touched:
		local = lanes.EffectPartial
	default:
		local = m.local
	}
	return local, remote
}
