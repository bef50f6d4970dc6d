package simkernel

import (
	"fmt"
	"math"
	"syscall"

	"github.com/orbitte/orbitte/reactor"
)

// chopFew is what half of all chopped transfers stay within.
const chopFew = 16

const (
	// overtakenMost is how often an operation may be overtaken, as in real kernels (socket.Operations).
	overtakenMost = 16
	// pollEndEvery is in how many completions a world that reorders ends a Poll on average, although more are ready, as
	// payload does in real kernels.
	pollEndEvery = 8
)

// operation is one submitted operation of a kernel. It is in the kernel's index of tickets until it has
// ended, and in its queue exactly while queued.
type operation struct {
	reactor.Operation
	kernel            *Kernel
	socket            *socket // nil: the descriptor was unknown
	queued, cancelled bool
	started           bool       // Connect: the request has left
	overtaken         uint8      // how often, since it is in the queue
	following         *operation // in the queue, or among the free ones
	sibling           *operation // under the same hash of tickets
}

// queue is a first-in, first-out line of operations to try.
type queue struct{ first, last *operation }

func (q *queue) push(o *operation) {
	o.queued = true
	o.following, o.overtaken = nil, 0
	if q.last == nil {
		q.first = o
	} else {
		q.last.following = o
	}
	q.last = o
}

func (q *queue) pop() *operation {
	o := q.first
	if o == nil {
		return nil
	}
	q.first = o.following
	if q.first == nil {
		q.last = nil
	}
	o.queued, o.following = false, nil
	return o
}

// overtake takes an operation that has at most so many before it, which count that; the one in front if it has been overtaken
// often enough.
func (q *queue) overtake(before int) *operation {
	front := q.first
	if front == nil || front.overtaken >= overtakenMost {
		return q.pop()
	}
	var last *operation // of those that are overtaken
	o := front
	for ; before > 0 && o.following != nil; before-- {
		o.overtaken++
		last, o = o, o.following
	}
	if last == nil {
		return q.pop()
	}
	if last.following = o.following; q.last == o {
		q.last = last
	}
	o.queued, o.following = false, nil
	return o
}

// requeue puts a parked operation back in line; nothing happens when there is none, or it is in line.
func (o *operation) requeue() {
	if o != nil && !o.queued {
		o.kernel.ready.push(o)
		o.kernel.rouse()
	}
}

// slot is where the socket keeps an operation of this kind.
func (o *operation) slot() **operation {
	switch o.Kind {
	case reactor.Accept, reactor.Receive:
		return &o.socket.receiving
	case reactor.Connect, reactor.Send:
		return &o.socket.sending
	}
	return &o.socket.watching
}

// attach takes the operation's place at its socket.
func (o *operation) attach() {
	if o.socket == nil {
		return
	}
	place := o.slot()
	if *place != nil {
		panic(fmt.Sprintf("simkernel: operation of kind %d submitted on descriptor %d while one of kind %d is outstanding there",
			o.Kind, o.Descriptor, (*place).Kind))
	}
	*place = o
}

// try performs the operation; done is false when it has to wait.
func (o *operation) try() (c reactor.Completion, done bool) {
	c.Ticket = o.Ticket
	// A cancellation and the operation's own end race: the seed decides who comes first.
	if o.cancelled && o.kernel.world.random.IntN(2) == 0 {
		c.Err = syscall.ECANCELED
		return c, true
	}
	var errno syscall.Errno
	switch {
	case o.socket == nil:
		errno, done = syscall.EBADF, true
	case o.AtOnce && o.Kind != reactor.Send:
		errno, done = syscall.EINVAL, true
	case o.Kind == reactor.Accept:
		errno, done = o.accept(&c)
	case o.Kind == reactor.Connect:
		errno, done = o.connect()
	case o.Kind == reactor.Receive:
		c.N, errno, done = o.socket.receive(&o.Operation, o.kernel.chop(o.kernel.world.options.ChopReceive))
	case o.Kind == reactor.Send:
		c.N, errno, done = o.socket.send(&o.Operation, o.kernel.chop(o.kernel.world.options.ChopSend))
	default:
		done = o.socket.ready()
	}
	if !done && o.cancelled {
		errno, done = syscall.ECANCELED, true
	}
	done = done || o.AtOnce // with nothing moved, if there was no room
	if errno != 0 {
		c.Err = errno
	}
	return c, done
}

// chop draws how many bytes one transfer may move: half of the time a few, so that frames are cut
// inside their headers too.
func (k *Kernel) chop(limit int) int {
	if limit <= 0 {
		return math.MaxInt
	}
	if k.world.random.IntN(2) == 0 {
		limit = min(limit, chopFew)
	}
	return 1 + k.world.random.IntN(limit)
}

func (o *operation) accept(c *reactor.Completion) (syscall.Errno, bool) {
	s, p := o.socket, o.kernel.process
	if s.kind != listenSocket {
		return syscall.EINVAL, true
	}
	if errno := p.faults.accept.take(); errno != 0 {
		return errno, true
	}
	if p.full() {
		return syscall.EMFILE, true
	}
	if len(s.waiting) == 0 {
		return 0, false
	}
	accepted := s.waiting[0]
	copy(s.waiting, s.waiting[1:])
	s.waiting = s.waiting[:len(s.waiting)-1]
	c.Descriptor = p.install(accepted)
	c.Address = accepted.connection.client
	return 0, true
}

func (o *operation) connect() (syscall.Errno, bool) {
	s := o.socket
	if !o.started {
		switch {
		case s.kind != streamSocket:
			return syscall.EINVAL, true
		case s.connected:
			return syscall.EISCONN, true
		case s.connecting:
			return syscall.EALREADY, true
		}
		o.started = true
		if errno := o.kernel.process.dial(s, o.Address); errno != 0 {
			return errno, true
		}
	}
	switch {
	case s.refusal != 0:
		errno := s.refusal
		s.refusal = 0
		return errno, true
	case s.connected && s.broken:
		errno := s.failure
		s.failure = 0
		return errno, true
	}
	return 0, s.connected
}

// ticketIndex finds live operations by their tickets: a hash table with lists, which allocates only to
// grow. Of several operations with one ticket it finds the newest.
type ticketIndex struct {
	lists []*operation // a power of two, or none
	count int
}

const ticketListsMin = 16

func (x *ticketIndex) list(t reactor.Ticket) **operation {
	const golden = 0x9e3779b97f4a7c15 // 2^64 over the golden ratio: spreads tickets that follow each other
	return &x.lists[uint64(t)*golden>>32&uint64(len(x.lists)-1)]
}

func (x *ticketIndex) add(o *operation) {
	if x.count == len(x.lists) {
		x.grow()
	}
	x.count++
	list := x.list(o.Ticket)
	o.sibling, *list = *list, o
}

func (x *ticketIndex) grow() {
	old := x.lists
	x.lists = make([]*operation, max(ticketListsMin, 2*len(old)))
	for _, o := range old {
		var reversed *operation // oldest first, so that the newest ends up in front again
		for o != nil {
			following := o.sibling
			o.sibling, reversed = reversed, o
			o = following
		}
		for reversed != nil {
			following := reversed.sibling
			list := x.list(reversed.Ticket)
			reversed.sibling, *list = *list, reversed
			reversed = following
		}
	}
}

func (x *ticketIndex) find(t reactor.Ticket) *operation {
	if x.count == 0 {
		return nil
	}
	o := *x.list(t)
	for o != nil && o.Ticket != t {
		o = o.sibling
	}
	return o
}

func (x *ticketIndex) remove(o *operation) {
	place := x.list(o.Ticket)
	for *place != o {
		place = &(*place).sibling
	}
	*place, o.sibling = o.sibling, nil
	x.count--
}
