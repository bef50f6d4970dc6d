package uring

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/socket"
)

// LostError is what every operation ends with once the system refuses io_uring_enter, which New had found permitted: a
// seccomp filter or security module was installed after New. The kernel does not recover: Shutdown it and make another
// one. errors.Is finds the Errno.
//
//	working ── enter refused ──▶ lost: completions that are there are returned, the ring is abandoned, what it had not
//	                                   got fails
//	lost ── the ring is gone ──▶ what it had fails as well: the system touches no buffer any more
//
// If the ring never goes, what it had stays outstanding, its buffers stay the system's, and Shutdown answers EBUSY.
type LostError struct{ Errno syscall.Errno }

func (e *LostError) Unwrap() error { return e.Errno }

func (e *LostError) Error() string {
	return fmt.Sprintf("io_uring_enter, which was permitted before, is refused: %v; permit io_uring_enter in the seccomp filter or security module that was installed meanwhile, or use epoll, and open again", e.Errno)
}

// pollLost is Poll without a ring.
func (k *Kernel) pollLost(out []reactor.Completion, until reactor.Instant) int {
	if k.ring.descriptor >= 0 {
		if n := k.reap(out); n > 0 {
			return n
		}
		k.ring.Abandon()
	}
	for {
		n := k.lose(out)
		left := k.remaining(until)
		if n > 0 || left == 0 {
			k.waker.Take()
			return n
		}
		if k.doze(left) {
			return 0
		}
	}
}

// lose ends what the ring has not got, and when it is gone the rest.
func (k *Kernel) lose(out []reactor.Completion) int {
	n := 0
	for ; n < len(out); n++ {
		slot := k.operations.Pop()
		if slot == socket.NoSlot {
			break
		}
		r := k.operations.At(slot)
		if r.Note != 0 { // an entry of a ring that may be there waits for its end
			panic(fmt.Sprintf("uring: a queued operation has entry %d in the ring, want none", r.Note))
		}
		k.loseOne(slot, r, &out[n])
	}
	if n == len(out) || k.operations.Len() == 0 || !k.ring.Gone() {
		return n
	}
	for slot := int32(0); slot < k.operations.Slots() && n < len(out); slot++ {
		if k.operations.Valid(slot) {
			k.loseOne(slot, k.operations.At(slot), &out[n])
			n++
		}
	}
	return n
}

func (k *Kernel) loseOne(slot int32, r *socket.Record, c *reactor.Completion) {
	*c = reactor.Completion{Ticket: r.Ticket, Descriptor: r.Descriptor, Err: k.lost}
	switch {
	case r.Refused != 0:
		c.Err = r.Refused
	case r.Cancelled:
		c.Err = unix.ECANCELED
	}
	k.finish(slot, r)
}

// doze waits for Wake, for the end of a ring that has something, and at most d (negative: for ever). It says whether a
// Wake came.
func (k *Kernel) doze(d time.Duration) bool {
	if k.waker.Sleep() {
		poll := [...]unix.PollFd{{Fd: int32(k.waker.Descriptor()), Events: unix.POLLIN}, {Fd: int32(k.ring.witnessed)}}
		watched := poll[:1]
		if k.operations.Len() > 0 {
			watched = poll[:]
		}
		var timeout *unix.Timespec
		if d >= 0 {
			t := unix.NsecToTimespec(int64(d))
			timeout = &t
		}
		k.counters.Crossings++
		k.counters.Waits++
		if _, err := unix.Ppoll(watched, timeout, nil); err != nil && err != unix.EINTR {
			time.Sleep(time.Millisecond) // refused as well: the caller looks again, but not without end
		}
		if poll[0].Revents != 0 {
			k.waker.Drain()
		}
	}
	k.waker.Risen()
	return k.waker.Take()
}
