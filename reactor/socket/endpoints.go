package socket

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
)

// Seat is one of the three places that a descriptor offers to outstanding operations.
type Seat uint8

const (
	Input  Seat = iota // Receive, Accept
	Output             // Send, Connect
	Side               // Watch
	seats
)

// SeatOf says where operations of a kind sit.
func SeatOf(k reactor.Kind) Seat {
	switch k {
	case reactor.Send, reactor.Connect:
		return Output
	case reactor.Watch:
		return Side
	}
	return Input
}

// Endpoint is what a kernel knows about one descriptor.
type Endpoint struct {
	// Seated are the slots of the outstanding operations, or NoSlot.
	Seated [seats]int32
	// Blocked[s] is true exactly when the last try of that direction found nothing to do and no event came
	// since: the next try would be a wasted system call.
	Blocked [seats]bool
	// Stream is true exactly for descriptors known to be TCP, where a transfer shorter than asked for means
	// that the socket's queue is empty (receive) or full (send).
	Stream bool
	// Ending is true exactly when an event said that the peer closed or the socket failed. From then on a
	// short receive proves nothing: the end of the stream comes without a further event.
	Ending bool
	// Armed is the kernel's own note about its readiness registration; zero means none.
	Armed uint8
	// Generation counts the lives of the descriptor number in this kernel.
	Generation uint32
}

// Idle says that no operation is outstanding.
func (e *Endpoint) Idle() bool {
	return e.Seated[Input] == NoSlot && e.Seated[Output] == NoSlot && e.Seated[Side] == NoSlot
}

// Learn notes how a transfer of n of asked bytes ended, and left what Try said.
func (e *Endpoint) Learn(s Seat, n, asked, left int) {
	e.Blocked[s] = e.Stream && !e.Ending && (n < asked || left == 0)
}

// Endpoints is the table of a kernel's descriptors, indexed by descriptor. One thread at a time.
type Endpoints struct{ table []Endpoint }

// At returns the entry of a descriptor that is not negative; nil when its number is beyond the table and it is
// not open, so that a wild number cannot make the table huge. The pointer is good until the next At.
func (t *Endpoints) At(d reactor.Descriptor) *Endpoint {
	if int(d) < len(t.table) {
		return &t.table[d]
	}
	if _, err := unix.FcntlInt(uintptr(d), unix.F_GETFD, 0); err != nil {
		return nil
	}
	t.table = slices.Grow(t.table, int(d)+1-len(t.table))
	for len(t.table) <= int(d) {
		t.table = append(t.table, Endpoint{Seated: [seats]int32{NoSlot, NoSlot, NoSlot}})
	}
	return &t.table[d]
}

// Begin starts a new life of a descriptor number: nothing that was learned about it holds any more.
func (t *Endpoints) Begin(d reactor.Descriptor, stream bool) {
	e := t.At(d)
	if e == nil || !e.Idle() {
		return // it lives: a table that forgot its operations would lose their completions
	}
	*e = Endpoint{Seated: e.Seated, Stream: stream, Generation: e.Generation + 1}
}
