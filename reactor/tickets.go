package reactor

import "math"

// Handler is told the end of an operation. Complete runs on the loop's thread, inside Turn; it may
// submit, cancel, arm and post, and must not block. The event is the loop's, and good until Complete returns.
type Handler interface {
	Complete(*Event)
}

// Event is the end of one operation together with what it was.
type Event struct {
	Completion
	Kind Kind
}

// noSlot ends the list of free slots.
const noSlot = -1

// ticketSlot is one place in the table. It is in use exactly when handler is not nil; otherwise next
// is the following free slot.
type ticketSlot struct {
	handler    Handler
	generation uint32
	next       int32
	kind       Kind
}

// ticketTable gives operations their tickets. A slot's generation moves on at each end, so that a
// late or double completion finds nobody. It grows to the largest number of operations that were
// ever outstanding together and never shrinks.
type ticketTable struct {
	slots       []ticketSlot
	free        int32
	outstanding int
}

func newTicketTable(capacity int) ticketTable {
	return ticketTable{slots: make([]ticketSlot, 0, capacity), free: noSlot}
}

func makeTicket(slot int32, generation uint32) Ticket {
	return Ticket(generation)<<32 | Ticket(uint32(slot))
}

// take reserves a slot for an operation of this kind. Generations start at 1: ticket zero is never
// given out.
func (t *ticketTable) take(kind Kind, h Handler) Ticket {
	slot := t.free
	if slot == noSlot {
		if len(t.slots) == math.MaxInt32 {
			panic("reactor: ticket table is full: 2147483647 operations outstanding, wanted one more")
		}
		slot = int32(len(t.slots))
		t.slots = append(t.slots, ticketSlot{generation: 1})
	} else {
		t.free = t.slots[slot].next
	}
	s := &t.slots[slot]
	s.handler, s.kind, s.next = h, kind, noSlot
	t.outstanding++
	return makeTicket(slot, s.generation)
}

// find returns the slot a ticket names, or nil when the ticket is stale or was never given out.
func (t *ticketTable) find(ticket Ticket) *ticketSlot {
	slot := uint64(uint32(ticket))
	if slot >= uint64(len(t.slots)) {
		return nil
	}
	s := &t.slots[slot]
	if s.handler == nil || s.generation != uint32(ticket>>32) {
		return nil
	}
	return s
}

// end frees a ticket's slot and returns whom to tell; a nil handler means that the ticket was stale.
func (t *ticketTable) end(ticket Ticket) (Handler, Kind) {
	s := t.find(ticket)
	if s == nil {
		return nil, 0
	}
	h, kind := s.handler, s.kind
	s.handler = nil
	s.generation++
	if s.generation == 0 {
		s.generation = 1
	}
	s.next = t.free
	t.free = int32(uint32(ticket))
	t.outstanding--
	return h, kind
}
