package epoll

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
	// loadPerLook is how much work may be done before events are looked at although there is more to do. A
	// try weighs 1 and 64 KiB weigh 1, about 1–5 µs each, so that a look (1 µs) costs a few per cent.
	loadPerLook  = 16
	bytesPerLoad = 64 << 10
	// glancesMost is how many Polls in a row that must not block ask the hot stream directly, which saves a system call
	// if that is where the answer comes from, before one looks at events again (1 µs each).
	glancesMost = 16
)

// Poll performs what was submitted and returns completions; see reactor.Kernel.
func (k *Kernel) Poll(out []reactor.Completion, until reactor.Instant) int {
	if len(out) == 0 {
		return 0
	}
	n := k.walk(out)
	if n > 0 {
		if k.due() {
			k.look(0)
		}
		return n
	}
	if until == reactor.Brief {
		return 0
	}
	for {
		wait := time.Duration(0)
		if k.operations.Queued() == 0 {
			wait = k.remaining(until)
		}
		if wait == 0 && k.glances < k.trust {
			if hot := k.hotReceive(); hot != socket.NoSlot {
				return k.glance(hot, &out[0])
			}
		}
		woken := k.look(wait)
		n = k.walk(out)
		if n > 0 || woken || k.remaining(until) == 0 {
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

// due says that others, whose events nobody has looked at, have waited long enough.
func (k *Kernel) due() bool {
	return k.load >= loadPerLook && k.operations.Len() > k.operations.Queued()
}

// walk tries queued operations within its bounds. A large one ends it, and waits for the next one if something else is
// done already: a completion is worth more than the time that a large operation takes (SPEC L-2).
func (k *Kernel) walk(out []reactor.Completion) int {
	n := 0
	for tries := len(out) + triesBeyond; tries > 0 && n < len(out); tries-- {
		last := k.operations.LargeNext()
		if last && n > 0 {
			break
		}
		slot := k.operations.Pop()
		if slot == socket.NoSlot {
			break
		}
		if k.perform(slot, &out[n]) {
			n++
			if last {
				break
			}
		}
	}
	return n
}

// hotReceive is the Receive that parked last, if it still waits. Its slot may have been used again; any Receive that waits
// will do.
func (k *Kernel) hotReceive() int32 {
	if k.operations.Valid(k.hot) {
		if r := k.operations.At(k.hot); r.State == socket.Parked && r.Kind == reactor.Receive {
			return k.hot
		}
	}
	return socket.NoSlot
}

// glance tries the hot Receive instead of asking epoll. If it succeeds, the event that announced the bytes is dropped by
// epoll itself, which looks again before it reports. How many glances come before the next look follows from who is
// right: each that succeeds doubles it, a look that finds others' events ends it.
func (k *Kernel) glance(slot int32, c *reactor.Completion) int {
	k.glances++
	if !k.perform(slot, c) {
		return 0
	}
	k.trust = min(2*k.trust+1, glancesMost)
	return 1
}

// perform tries one operation that is in no queue; true when it is done and c is filled. Otherwise it waits
// for its event.
func (k *Kernel) perform(slot int32, c *reactor.Completion) bool {
	r := k.operations.At(slot)
	switch {
	case r.Refused != 0:
		*c = reactor.Completion{Ticket: r.Ticket, Descriptor: r.Descriptor, Err: r.Refused}
	case r.Cancelled:
		socket.Cancelled(&r.Operation, c)
	case r.Kind == reactor.Watch:
		if !k.watch(r, c) {
			return false
		}
	default:
		if !k.transfer(slot, r, c) {
			return false
		}
	}
	k.finish(slot, r)
	return true
}

// transfer tries a Receive, Send, Accept or Connect.
func (k *Kernel) transfer(slot int32, r *socket.Record, c *reactor.Completion) bool {
	seat := socket.SeatOf(r.Kind)
	endpoint := k.endpoints.At(r.Descriptor)
	try := socket.Try
	if endpoint.Blocked[seat] { // a glance
		try = socket.Look
	}
	k.counters.Crossings++
	k.load++
	if done, left := try(&r.Operation, c); done {
		k.load += c.N / bytesPerLoad
		k.learn(r, c, seat, left)
		return true
	}
	edge := edgeOf(seat)
	if r.AtOnce { // c says that it moved nothing
		endpoint.Blocked[seat] = endpoint.Armed&edge != 0
		return true
	}
	if e := k.arm(r.Descriptor, endpoint, edge); e != 0 {
		*c = reactor.Completion{Ticket: r.Ticket, Descriptor: r.Descriptor, Err: e}
		return true
	}
	// An event that came between the try and now is in epoll's list and will undo this.
	endpoint.Blocked[seat] = true
	if r.Kind == reactor.Receive {
		k.hot = slot
	}
	return false
}

// learn draws conclusions from a finished try.
func (k *Kernel) learn(r *socket.Record, c *reactor.Completion, seat socket.Seat, left int) {
	switch {
	case r.Kind == reactor.Accept && c.Err == nil:
		k.endpoints.Begin(c.Descriptor, true)
	case r.Kind == reactor.Receive || r.Kind == reactor.Send:
		endpoint := k.endpoints.At(r.Descriptor)
		// Without a registration no event would ever come, and 0 bytes are the end of the stream.
		if c.Err == nil && c.N > 0 && endpoint.Armed&edgeOf(seat) != 0 {
			endpoint.Learn(seat, c.N, r.Asked, left)
		}
	}
}

// watch performs a Watch: it is done if an event has come, and otherwise makes sure that one will.
func (k *Kernel) watch(r *socket.Record, c *reactor.Completion) bool {
	*c = reactor.Completion{Ticket: r.Ticket, Descriptor: r.Descriptor}
	if r.Ready {
		return true
	}
	endpoint := k.endpoints.At(r.Descriptor)
	if endpoint.Armed&edgeInput != 0 {
		// The edge may have come and gone, unless the last try proved that there is nothing.
		if endpoint.Blocked[socket.Input] {
			return false
		}
		k.counters.Crossings++
		k.load++
		done, _ := socket.Try(&r.Operation, c)
		endpoint.Blocked[socket.Input] = !done && endpoint.Stream
		return done
	}
	want := uint8(once)
	if endpoint.Armed&edgeOutput != 0 {
		want = edgeInput // a registration is either edge-triggered or one-shot
	}
	if e := k.arm(r.Descriptor, endpoint, want); e != 0 {
		c.Err = e
		return true
	}
	return false
}

// finish forgets an operation whose completion is out.
func (k *Kernel) finish(slot int32, r *socket.Record) {
	if r.Refused == 0 {
		k.endpoints.At(r.Descriptor).Seated[socket.SeatOf(r.Kind)] = socket.NoSlot
	}
	k.operations.Remove(slot)
	k.counters.Completed++
}

// look collects events, waiting at most wait for the first (negative: for ever), and queues the operations that
// they concern. It says whether a Wake came.
func (k *Kernel) look(wait time.Duration) bool {
	var n int
	var e syscall.Errno
	k.load = 0
	k.counters.Crossings++
	if wait != 0 && k.waker.Sleep() {
		k.counters.Waits++
		n, e = k.sleep(wait)
	} else {
		n, e = k.peek()
	}
	k.waker.Risen()
	if e != 0 && e != unix.EINTR {
		panic("epoll: waiting on descriptor " + k.state() + " failed: " + e.Error())
	}
	k.glances = 0
	hot := k.hotReceive()
	for i := range n {
		k.dispatch(&k.events[i])
	}
	if queued := k.operations.Queued(); queued > 1 || queued == 1 && k.operations.Peek() != hot {
		k.trust = 1
	}
	return k.waker.Take()
}

func (k *Kernel) state() string {
	if k.closed.Load() {
		return "of a kernel that was shut down"
	}
	return "of an open kernel"
}

// dispatch queues the operations that an event concerns.
func (k *Kernel) dispatch(event *unix.EpollEvent) {
	if event.Pad == wakeGeneration {
		return // Take tells
	}
	endpoint := k.endpoints.At(reactor.Descriptor(event.Fd))
	if endpoint == nil || int32(endpoint.Generation&generationMask) != event.Pad {
		k.counters.Unwatched++ // of an earlier life of that number
		return
	}
	const failed = unix.EPOLLHUP | unix.EPOLLERR
	if event.Events&(failed|unix.EPOLLRDHUP) != 0 {
		endpoint.Ending = true
	}
	if event.Events&(unix.EPOLLIN|unix.EPOLLPRI|unix.EPOLLRDHUP|failed) != 0 {
		endpoint.Blocked[socket.Input] = false
		k.release(endpoint.Seated[socket.Input])
		k.release(endpoint.Seated[socket.Side])
	}
	if event.Events&(unix.EPOLLOUT|failed) != 0 {
		endpoint.Blocked[socket.Output] = false
		k.release(endpoint.Seated[socket.Output])
	}
}

func (k *Kernel) release(slot int32) {
	if slot == socket.NoSlot {
		return
	}
	k.operations.At(slot).Ready = true
	k.operations.Push(slot)
}
