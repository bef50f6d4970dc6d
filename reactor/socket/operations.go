package socket

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
)

// NoSlot is never an operation's slot.
const NoSlot int32 = -1

// State says where an outstanding operation is.
type State uint8

const (
	// Queued is true exactly while the operation is in the FIFO.
	Queued State = iota + 1
	// Parked is true exactly while it waits for its descriptor, in nobody's queue (epoll), or while the
	// ring has it (io_uring).
	Parked
)

// Record is one outstanding operation.
type Record struct {
	reactor.Operation
	State State
	// Cancelled is true exactly when Cancel named the operation and its completion is not yet out.
	Cancelled bool
	// Ready is true exactly when an event said that the descriptor is ready since the last try.
	Ready bool
	// Passed counts the kernel's passes that left the operation in the FIFO for a further try.
	Passed uint8
	// Refused is the error found when the operation was submitted, or 0. Such an operation has no seat.
	Refused syscall.Errno
	// Note is the kernel's own, zero at first.
	Note uint32

	next int32
}

// Operations holds the outstanding operations of one kernel, and the FIFO of those to be tried next. Slots are
// small numbers that are used again. It grows and never shrinks, so that the steady state allocates
// nothing. One thread at a time.
type Operations struct {
	records []Record
	// tickets[i] belongs to records[i]. They stand apart so that Find, which only Cancel uses, walks over
	// dense memory instead of making every operation pay for an index.
	tickets    []reactor.Ticket
	used       []bool
	free       int32 // head of the free list, linked by next
	head, tail int32 // of the FIFO
	queued     int
	live       int
}

// NewOperations makes room for n operations at once.
func NewOperations(n int) *Operations {
	o := &Operations{free: NoSlot, head: NoSlot, tail: NoSlot}
	o.records = make([]Record, 0, n)
	o.tickets = make([]reactor.Ticket, 0, n)
	o.used = make([]bool, 0, n)
	return o
}

// Len is the number of outstanding operations, Queued those in the FIFO.
func (o *Operations) Len() int    { return o.live }
func (o *Operations) Queued() int { return o.queued }

// At returns a slot's record. The pointer is good until the next Add.
func (o *Operations) At(slot int32) *Record { return &o.records[slot] }

// Add copies op into a free slot. It is in no queue yet.
func (o *Operations) Add(op *reactor.Operation) int32 {
	slot := o.free
	if slot == NoSlot {
		slot = int32(len(o.records))
		o.records = append(o.records, Record{})
		o.tickets = append(o.tickets, 0)
		o.used = append(o.used, false)
	} else {
		o.free = o.records[slot].next
	}
	o.records[slot] = Record{Operation: *op, next: NoSlot}
	o.tickets[slot] = op.Ticket
	o.used[slot] = true
	o.live++
	return slot
}

// Remove forgets an operation that is in no queue, its buffers included.
func (o *Operations) Remove(slot int32) {
	if !o.used[slot] || o.records[slot].State == Queued {
		panic("socket: an operation is removed that is free or queued: in use " +
			map[bool]string{true: "yes", false: "no"}[o.used[slot]])
	}
	o.records[slot] = Record{next: o.free}
	o.used[slot] = false
	o.free = slot
	o.live--
}

// Find returns the slot of a ticket, or NoSlot.
func (o *Operations) Find(ticket reactor.Ticket) int32 {
	for i, t := range o.tickets {
		if t == ticket && o.used[i] {
			return int32(i)
		}
	}
	return NoSlot
}

// Push puts an operation at the end of the FIFO; one that is already there stays where it is.
func (o *Operations) Push(slot int32) {
	r := &o.records[slot]
	if r.State == Queued {
		return
	}
	r.State, r.next = Queued, NoSlot
	if o.tail == NoSlot {
		o.head = slot
	} else {
		o.records[o.tail].next = slot
	}
	o.tail = slot
	o.queued++
}

// Pop takes the oldest operation out of the FIFO, or returns NoSlot. It is Parked then.
func (o *Operations) Pop() int32 {
	slot := o.head
	if slot == NoSlot {
		return NoSlot
	}
	r := &o.records[slot]
	o.head = r.next
	if o.head == NoSlot {
		o.tail = NoSlot
	}
	r.State, r.next = Parked, NoSlot
	o.queued--
	return slot
}

// Peek returns the oldest operation of the FIFO, or NoSlot.
func (o *Operations) Peek() int32 { return o.head }

// Valid says that a slot holds an operation; any number may be asked for.
func (o *Operations) Valid(slot int32) bool {
	return slot >= 0 && int(slot) < len(o.used) && o.used[slot]
}

// Cancelled fills c for an operation that Cancel ended before the system did anything.
func Cancelled(op *reactor.Operation, c *reactor.Completion) {
	*c = reactor.Completion{Ticket: op.Ticket, Descriptor: op.Descriptor, Err: unix.ECANCELED}
}
