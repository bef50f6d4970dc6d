package uring

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/socket"
)

const (
	// triesBeyond is how many tries of one walk may come to nothing before the lane gets its turn back.
	triesBeyond = 64
	// loadPerEnter is how much work may be done before the ring is entered although there is more to do. A
	// try weighs 1 and 64 KiB weigh 1, about 1–5 µs each, so that an enter (1 µs) costs a few per cent.
	loadPerEnter = 16
	bytesPerLoad = 64 << 10
	// batchFrom is from how many queued operations on those that are not large go to the ring together: an entry costs
	// 0.1 µs and a call of its own 1 µs. Large ones are tried at once, where the call does not matter.
	batchFrom = 4
	// passesBeforeRing is how many Polls that do not block, of about 1 µs each, try a Receive or Send before it goes to the
	// ring: an answer that comes within some microseconds then costs one call instead of two enters. lonePasses is the
	// same for payload, whose next piece takes the peer's copy, and for what nothing else is tried beside. A ring that waits is told of each
	// packet by the sender: that costs the sender 20 to 40 µs of 140 for 1 MiB, and a small answer, which takes 4, then comes
	// so late that the other side's ring waits as well, and both go on so for long.
	passesBeforeRing = 8
	lonePasses       = 200
)

// Poll performs what was submitted and returns completions; see reactor.Kernel.
func (k *Kernel) Poll(out []reactor.Completion, until reactor.Instant) int {
	if len(out) == 0 {
		return 0
	}
	if k.lost != nil {
		return k.pollLost(out, until)
	}
	left := k.remaining(until)
	n := k.pass(out, left == 0)
	if n > 0 {
		k.idle = false
		if k.due() {
			k.enter()
		}
		return n
	}
	if left == 0 {
		woken := k.wait(0)
		n = k.reap(out)
		k.idle = n == 0 && !woken
		return n
	}
	for {
		if k.operations.Queued() > 0 {
			left = 0
		}
		woken := k.wait(left)
		left = k.remaining(until)
		n = k.pass(out, false)
		if n > 0 || woken || left == 0 || k.lost != nil {
			return n
		}
	}
}

// remaining is the time left until an instant: 0 when it has passed, negative for Forever.
func (k *Kernel) remaining(until reactor.Instant) time.Duration {
	if until == reactor.Forever {
		return -1
	}
	if until <= 0 {
		return 0
	}
	return time.Duration(max(until-k.Now(), 0))
}

// pass reaps what the ring finished and then tries what is queued. A reaped operation that is submitted again
// is queued behind the others, so reaping first cannot keep them from their turn for long.
func (k *Kernel) pass(out []reactor.Completion, spinning bool) int {
	k.spinning = spinning
	n := k.reap(out)
	for n < len(out) && k.ring.CQOverflowed() {
		k.enter()
		reaped := k.reap(out[n:])
		if n += reaped; reaped == 0 {
			break
		}
	}
	n += k.walk(out[n:])
	if k.eager > 0 {
		k.enter()
		n += k.reap(out[n:])
	}
	return n
}

// due says that the ring has something to do for others: completions that found the queue full, whose turn it is,
// or work that has waited long enough.
func (k *Kernel) due() bool {
	return k.ring.CQOverflowed() || k.load >= loadPerEnter && (k.ring.SQReady() > 0 || k.ring.NeedsEnter())
}

// wait enters the ring until something completes, Wake is called or the time is up, and says whether a Wake
// came. A look that must not wait costs nothing when the ring has nothing to do.
func (k *Kernel) wait(limit time.Duration) bool {
	k.cancelEntries()
	if limit == 0 {
		if k.ring.SQReady() > 0 || k.ring.NeedsEnter() {
			k.enter()
		}
		return k.waker.Take()
	}
	if k.watchWaker() && k.waker.Sleep() {
		k.load, k.eager = 0, 0
		k.entered(k.ring.SubmitAndWait(limit))
	} else {
		k.enter()
	}
	k.waker.Risen()
	return k.waker.Take()
}

// enter hands prepared entries over and performs due work without waiting.
func (k *Kernel) enter() {
	k.load, k.eager = 0, 0
	k.entered(k.ring.Submit())
}

// entered judges the result of an enter.
func (k *Kernel) entered(e syscall.Errno) {
	switch e {
	case 0, unix.ETIME, unix.EINTR:
	case unix.EAGAIN, unix.EBUSY, unix.ENOMEM: // no memory for requests now, or completions to be reaped first
	case unix.EPERM, unix.EACCES, unix.ENOSYS: // a filter that came after New
		if k.lost == nil {
			k.lost = &LostError{e}
		}
	case unix.EEXIST:
		panic("uring: Poll on another thread than Bind's; open the kernel with AnyThread for that")
	default:
		state := "open, bound"
		if k.closed.Load() {
			state = "shut down"
		} else if !k.bound {
			state = "open, not bound"
		}
		panic("uring: entering a ring that is " + state + " failed: " + e.Error())
	}
}

// watchWaker makes sure that an entry waits for the eventfd, and says whether one does. It prefers one that
// stays, which reports each signal; so the eventfd needs to be read only when a new entry starts from its
// level.
func (k *Kernel) watchWaker() bool {
	if k.watched {
		return true
	}
	entry := k.entry()
	if entry == nil {
		return false
	}
	k.waker.Drain()
	if k.multishot {
		entry.PreparePollMultishot(int32(k.waker.Descriptor()), unix.POLLIN)
	} else {
		entry.PreparePollAdd(int32(k.waker.Descriptor()), unix.POLLIN)
	}
	entry.UserData = wakeData
	k.watched = true
	return true
}

// entry returns a submission entry; nil when the queue is full and the system takes none now.
func (k *Kernel) entry() *SubmissionEntry {
	if k.ring.SQSpaceLeft() == 0 {
		k.enter()
	}
	return k.ring.GetSQE()
}

// cancelEntries prepares what Cancel asked for.
func (k *Kernel) cancelEntries() {
	for len(k.cancels) > 0 {
		target := k.cancels[len(k.cancels)-1]
		slot, sequence := int32(uint32(target)), uint32(target>>32)
		if k.operations.Valid(slot) && k.operations.At(slot).Note == sequence {
			entry := k.entry()
			if entry == nil {
				return
			}
			entry.PrepareCancel64(target)
			entry.UserData = cancelData
			k.eager++
		}
		k.cancels = k.cancels[:len(k.cancels)-1]
	}
}

// walk performs queued operations within its bounds: at once or through the ring. A large one that is done ends it, and
// waits for the next one if something else is done already: a completion is worth more than the time that a large operation
// takes (SPEC L-2).
func (k *Kernel) walk(out []reactor.Completion) int {
	k.cancelEntries()
	n := 0
	queued := k.operations.Queued()
	batch := queued >= batchFrom
	for tries := min(queued, len(out)+triesBeyond); tries > 0 && n < len(out); tries-- {
		last := k.operations.LargeNext()
		if last && n > 0 || k.ring.SQSpaceLeft() == 0 && !k.makeSpace() {
			break
		}
		slot := k.operations.Pop()
		if k.perform(slot, &out[n], batch) {
			n++
			if last {
				break
			}
		}
	}
	return n
}

func (k *Kernel) makeSpace() bool {
	k.enter()
	return k.ring.SQSpaceLeft() > 0
}

// perform does one operation; true when it is done and c is filled. Otherwise an entry for it is prepared.
func (k *Kernel) perform(slot int32, c *reactor.Completion, batch bool) bool {
	r := k.operations.At(slot)
	switch {
	case r.Refused != 0:
		*c = reactor.Completion{Ticket: r.Ticket, Descriptor: r.Descriptor, Err: r.Refused}
	case r.Cancelled:
		socket.Cancelled(&r.Operation, c)
	case r.Kind == reactor.Watch:
		k.await(slot, r, unix.POLLIN|unix.POLLRDHUP)
		return false
	case r.Kind == reactor.Receive || r.Kind == reactor.Send:
		if !k.transfer(slot, r, c, batch) {
			return false
		}
	default:
		k.load++
		k.counters.Crossings++
		if done, _ := socket.Try(&r.Operation, c); !done {
			k.await(slot, r, readiness(r.Kind))
			return false
		}
		if r.Kind == reactor.Accept && c.Err == nil {
			k.endpoints.Begin(c.Descriptor, true)
		}
	}
	k.finish(slot, r)
	return true
}

// transfer receives or sends at once, or by an entry when that is better or the only way.
func (k *Kernel) transfer(slot int32, r *socket.Record, c *reactor.Completion, batch bool) bool {
	seat := socket.SeatOf(r.Kind)
	endpoint := k.endpoints.At(r.Descriptor)
	if r.Ready { // the ring answered "not yet", as old kernels do for non-blocking descriptors
		endpoint.Blocked[seat] = false
		batch = false
	}
	if r.AtOnce { // never the ring's, which could only wait
		k.atOnce(r, c, endpoint)
		return true
	}
	stays := !batch && k.stays(r)
	if (!endpoint.Blocked[seat] || stays && k.idle) && !(batch && !r.Large) {
		try := socket.Try
		if endpoint.Blocked[seat] { // the lane spins
			try = socket.Look
		}
		k.load++
		k.counters.Crossings++
		if done, left := try(&r.Operation, c); done {
			k.load += c.N / bytesPerLoad
			if c.Err == nil {
				endpoint.Learn(seat, c.N, r.Asked, left)
			}
			return true
		}
		endpoint.Blocked[seat] = true
		if r.Ready {
			k.await(slot, r, readiness(r.Kind))
			return false
		}
	}
	if stays {
		r.Passed++
		k.operations.Push(slot)
		return false
	}
	if len(r.More) > 0 { // many buffers: the ring waits, and a call of our own moves them
		k.await(slot, r, readiness(r.Kind))
		return false
	}
	e := k.transferEntry(slot, r, endpoint.Blocked[seat])
	if e != 0 {
		*c = reactor.Completion{Ticket: r.Ticket, Descriptor: r.Descriptor, Err: e}
		return true
	}
	return false
}

// atOnce ends a Send that does not wait, by one call.
func (k *Kernel) atOnce(r *socket.Record, c *reactor.Completion, endpoint *socket.Endpoint) {
	k.load++
	k.counters.Crossings++
	done, left := socket.Try(&r.Operation, c)
	k.load += c.N / bytesPerLoad
	if !done {
		endpoint.Blocked[socket.Output] = true // c says that it moved nothing
	} else if c.Err == nil {
		endpoint.Learn(socket.Output, c.N, r.Asked, left)
	}
}

// stays says that an operation that cannot be done now is better tried again by the next Poll, than left to the
// ring: the lane spins, and nothing else happens, or the last Poll's result is not known yet.
func (k *Kernel) stays(r *socket.Record) bool {
	if !k.spinning || r.Ready {
		return false
	}
	passes := uint8(passesBeforeRing)
	if r.Large || k.operations.Queued() == 0 {
		passes = lonePasses
	}
	return r.Passed == 0 || k.idle && r.Passed < passes
}

// readiness is the poll(2) events that an operation waits for.
func readiness(kind reactor.Kind) uint32 {
	if socket.SeatOf(kind) == socket.Output {
		return unix.POLLOUT
	}
	return unix.POLLIN | unix.POLLRDHUP
}

// finish forgets an operation whose completion is out.
func (k *Kernel) finish(slot int32, r *socket.Record) {
	if r.Refused == 0 {
		k.endpoints.At(r.Descriptor).Seated[socket.SeatOf(r.Kind)] = socket.NoSlot
	}
	k.operations.Remove(slot)
	k.counters.Completed++
}
