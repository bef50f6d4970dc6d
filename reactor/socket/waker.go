package socket

import (
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Waker ends the blocking wait of one sleeper, its owner, from any goroutine. It costs the caller a system
// call only when the owner really sleeps, and only once per sleep.
//
// No wake-up is lost: the owner says it is asleep and then looks for a pending wake; a caller leaves a pending
// wake and then looks whether the owner is asleep. Whatever the order, one of them sees the other.
type Waker struct {
	fd      int
	pending atomic.Bool  // true from Wake until Take
	asleep  atomic.Bool  // true while the owner blocks or is about to
	users   atomic.Int32 // callers inside Wake; closedWaker is added once by Close
}

// closedWaker is far above every possible number of callers.
const closedWaker = 1 << 30

// NewWaker makes the eventfd; it ends with Close.
func NewWaker() (*Waker, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, callError("eventfd", "wake-up", err)
	}
	return &Waker{fd: fd}, nil
}

// Descriptor is the eventfd, which becomes readable when a sleeping owner is woken.
func (w *Waker) Descriptor() int { return w.fd }

// Wake leaves a pending wake and ends the owner's sleep. After Close it does nothing.
func (w *Waker) Wake() {
	if w.pending.Swap(true) || !w.asleep.Load() {
		return
	}
	if w.users.Add(1) < closedWaker {
		raise(w.fd)
	}
	w.users.Add(-1)
}

// Sleep announces that the owner is about to block; false when a wake is pending and it must not. The owner
// calls Risen afterwards in both cases.
func (w *Waker) Sleep() bool {
	w.asleep.Store(true)
	return !w.pending.Load()
}

// Risen ends what Sleep began.
func (w *Waker) Risen() { w.asleep.Store(false) }

// Take consumes a pending wake and says whether there was one.
func (w *Waker) Take() bool {
	return w.pending.Load() && w.pending.Swap(false)
}

// Drain sets the eventfd back to zero, for owners that watch its level.
func (w *Waker) Drain() { drain(w.fd) }

// Close closes the eventfd once no caller is inside Wake, so that a late wake never writes to a stranger's
// descriptor. The owner calls it, once.
func (w *Waker) Close() error {
	for w.users.Add(closedWaker) != closedWaker {
		w.users.Add(-closedWaker)
		runtime.Gosched()
	}
	return unix.Close(w.fd)
}
