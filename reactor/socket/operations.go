package socket

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
)

// NoSlot is never an operation's slot.
const NoSlot int32 = -1

const (
	// SmallBytes is the most that an operation asks for that is not large. One try of it takes some microseconds, one of a
	// large one up to 200 (SPEC L-2).
	SmallBytes = 64 << 10
	// smallInARow is how many operations that are not large come before a large one that has waited longer.
	smallInARow = 16
)

// State says where an outstanding operation is.
type State uint8

const (
	// Queued is true exactly while the operation is in the queue.
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
	// Passed counts the kernel's passes that left the operation in the queue for a further try.
	Passed uint8
	// Large is true exactly when the operation asks for more than SmallBytes.
	Large bool
	// Asked is how many bytes one Try of the operation asks for.
	Asked int
	// Refused is the error found when the operation was submitted, or 0. Such an operation has no seat.
	Refused syscall.Errno
	// Note is the kernel's own, zero at first.
	Note uint32

	next int32
}

// Operations holds the outstanding operations of one kernel, and the queue of those to be tried next: the oldest first, but
// large ones behind the others, of which at most smallInARow come before a large one that waits. Slots are small numbers
// that are used again. It grows and never shrinks, so that the steady state allocates nothing. One thread at a time.
type Operations struct {
	records []Record
	// tickets[i] belongs to records[i]. They stand apart so that Find, which only Cancel uses, walks over
	// dense memory instead of making every operation pay for an index.
	tickets []reactor.Ticket
	used    []bool
	free    int32 // head of the free list, linked by next
	small   fifo  // queued operations that are not large
	large   fifo  // the others
	row     int   // operations that came before a large one that waits
	queued  int
	live    int
}

// fifo is a list of operations, linked by next.
type fifo struct{ head, tail int32 }

// NewOperations makes room for n operations at once.
func NewOperations(n int) *Operations {
	o := &Operations{free: NoSlot, small: fifo{NoSlot, NoSlot}, large: fifo{NoSlot, NoSlot}}
	o.records = make([]Record, 0, n)
	o.tickets = make([]reactor.Ticket, 0, n)
	o.used = make([]bool, 0, n)
	return o
}

// Len is the number of outstanding operations, Queued those in the queue.
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
	asked := asked(op)
	r := &o.records[slot] // which Remove has emptied
	r.Operation, r.Asked, r.Large, r.next = *op, asked, asked > SmallBytes, NoSlot
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

// Push puts an operation at the end of the queue; one that is already there stays where it is.
func (o *Operations) Push(slot int32) {
	r := &o.records[slot]
	if r.State == Queued {
		return
	}
	f := &o.small
	if r.Large {
		f = &o.large
	}
	r.State, r.next = Queued, NoSlot
	if f.tail == NoSlot {
		f.head = slot
	} else {
		o.records[f.tail].next = slot
	}
	f.tail = slot
	o.queued++
}

// Pop takes the next operation out of the queue, or returns NoSlot. It is Parked then.
func (o *Operations) Pop() int32 {
	slot := o.Peek()
	if slot == NoSlot {
		return NoSlot
	}
	r := &o.records[slot]
	f := &o.small
	switch {
	case r.Large:
		f, o.row = &o.large, 0
	case o.large.head != NoSlot:
		o.row++
	}
	f.head = r.next
	if f.head == NoSlot {
		f.tail = NoSlot
	}
	r.State, r.next = Parked, NoSlot
	o.queued--
	return slot
}

// Peek returns the operation that Pop would take.
func (o *Operations) Peek() int32 {
	if o.large.head != NoSlot && (o.small.head == NoSlot || o.row >= smallInARow) {
		return o.large.head
	}
	return o.small.head
}

// LargeNext says that Pop would take a large operation.
func (o *Operations) LargeNext() bool {
	slot := o.Peek()
	return slot != NoSlot && o.records[slot].Large
}

// Valid says that a slot holds an operation; any number may be asked for.
func (o *Operations) Valid(slot int32) bool {
	return slot >= 0 && int(slot) < len(o.used) && o.used[slot]
}

// Slots is above every slot in use.
func (o *Operations) Slots() int32 { return int32(len(o.used)) }

// Cancelled fills c for an operation that Cancel ended before the system did anything.
func Cancelled(op *reactor.Operation, c *reactor.Completion) {
	*c = reactor.Completion{Ticket: op.Ticket, Descriptor: op.Descriptor, Err: unix.ECANCELED}
}
