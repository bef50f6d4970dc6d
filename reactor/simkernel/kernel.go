package simkernel

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/orbitte/orbitte/reactor"
)

// Kernel is one kernel of a simulated process; it implements reactor.Kernel. A blocking Poll outside
// the world's steps lets the other parts of the world go on and moves the clock; inside a step it notes
// until when it would wait and returns.
type Kernel struct {
	world    *World
	process  *Process
	ready    queue
	tickets  ticketIndex // of all live operations
	free     *operation
	live     int
	counters reactor.Counters
	dead     bool

	task      *Task           // what runs this kernel's loop in each step; nil: unknown
	until     reactor.Instant // what an empty Poll waits for; Past otherwise
	noted     int             // the round in which until was set
	number    int
	waitPlace int // in World.waits; 0: none
	woken     atomic.Bool
	inWakes   atomic.Bool // in World.wakes, followed by wokenNext
	wokenNext *Kernel
}

var _ reactor.Kernel = (*Kernel)(nil)

// Kernel opens one more kernel of the process: one for each loop.
func (p *Process) Kernel() *Kernel {
	k := &Kernel{world: p.world, process: p, until: reactor.Past, dead: p.killed, number: p.world.kernels}
	p.world.kernels++
	p.kernels = append(p.kernels, k)
	return k
}

// Kernels are those the process has opened and not shut down, oldest first. The slice is the caller's.
func (p *Process) Kernels() []*Kernel { return append([]*Kernel(nil), p.kernels...) }

// Name is "sim".
func (k *Kernel) Name() string { return "sim" }

// Now reads the virtual clock.
func (k *Kernel) Now() reactor.Instant { return k.world.Now() }

// At converts a time of World.Time's wall clock.
func (k *Kernel) At(t time.Time) reactor.Instant { return k.world.at(t) }

// Bind succeeds, unless the process was killed (ESRCH).
func (k *Kernel) Bind() error {
	if k.dead {
		return syscall.ESRCH
	}
	return nil
}

// Listen makes a listener on the process's host.
func (k *Kernel) Listen(a netip.AddrPort, o reactor.SocketOptions) (reactor.Descriptor, netip.AddrPort, error) {
	if k.dead {
		return reactor.NoDescriptor, netip.AddrPort{}, syscall.ESRCH
	}
	s, err := k.process.listen(a, o)
	if err != nil {
		return reactor.NoDescriptor, netip.AddrPort{}, err
	}
	return s.descriptor, s.address, nil
}

// Open makes an unconnected stream.
func (k *Kernel) Open(a netip.AddrPort, o reactor.SocketOptions) (reactor.Descriptor, error) {
	p := k.process
	switch errno := p.faults.open.take(); {
	case k.dead:
		return reactor.NoDescriptor, syscall.ESRCH
	case !a.Addr().IsValid():
		return reactor.NoDescriptor, syscall.EAFNOSUPPORT
	case errno != 0:
		return reactor.NoDescriptor, errno
	case p.full():
		return reactor.NoDescriptor, syscall.EMFILE
	}
	s := &socket{family: a.Addr(), options: o}
	if _, err := s.congestion(o); err != nil {
		return reactor.NoDescriptor, err
	}
	return p.install(s), nil
}

// Tune replaces a stream's options.
func (k *Kernel) Tune(d reactor.Descriptor, o reactor.SocketOptions) (string, error) {
	s := k.process.find(d)
	if s == nil || k.dead {
		return "", syscall.EBADF
	}
	name, err := s.congestion(o)
	if err != nil {
		return "", err
	}
	s.options = o
	if c := s.connection; c != nil && (c.dark(ToServer) || c.dark(ToClient)) {
		c.startKeepalive(s.side)
	}
	return name, nil
}

// Submit puts an operation in line; it is tried in Poll.
func (k *Kernel) Submit(op *reactor.Operation) {
	if k.dead {
		return
	}
	if (op.Kind == reactor.Receive || op.Kind == reactor.Send) && op.Size() == 0 {
		panic("simkernel: receive or send submitted with empty buffers only, which says nothing")
	}
	o := k.free
	if o == nil {
		o = &operation{kernel: k}
	} else {
		k.free = o.following
	}
	*o = operation{Operation: *op, kernel: k, socket: k.process.find(op.Descriptor)}
	k.tickets.add(o)
	k.live++
	k.counters.Submitted++
	o.attach()
	o.requeue()
}

// Cancel marks an operation; whether it ends cancelled is decided when it is tried.
func (k *Kernel) Cancel(t reactor.Ticket) {
	if o := k.tickets.find(t); o != nil {
		o.cancelled = true
		o.requeue()
	}
}

// release ends an operation and keeps its memory for the next one.
func (k *Kernel) release(o *operation) {
	if o.socket != nil {
		*o.slot() = nil
	}
	k.tickets.remove(o)
	*o = operation{kernel: k, following: k.free}
	k.free = o
	k.live--
}

// Poll tries what is in line; see Kernel for how it waits.
func (k *Kernel) Poll(out []reactor.Completion, until reactor.Instant) int {
	k.unnote()
	if k.task != nil {
		k.task.enlist() // whoever polls, the task says anew whether it rests
	}
	k.world.moveTo(k.world.Now())
	waited := false
	for {
		if n := k.perform(out); n > 0 {
			return n
		}
		if k.ready.first != nil {
			continue // what became ready while the tries cost time
		}
		if !waited && until <= k.world.Now() && !k.world.stepping {
			k.world.look()
		}
		switch {
		case until <= k.world.Now():
			return 0
		case k.dead && k.task.waits():
			continue
		case k.dead:
			return 0
		}
		if k.woken.Swap(false) {
			k.world.roused = k.world.rounds // inside a step: it has not said yet until when it waits
			return 0
		}
		if !waited {
			waited = true
			k.counters.Waits++
			k.counters.Crossings++
		} else if until == reactor.Forever && k.world.fruitless > 0 {
			return 0 // nothing lies ahead; only a Wake could help
		}
		if k.world.stepping {
			k.note(until)
			if !k.task.waits() {
				return 0
			}
			k.unnote()
			continue
		}
		k.world.wait(until)
	}
}

func (k *Kernel) perform(out []reactor.Completion) int {
	n, tries := 0, 0
	for n < len(out) {
		o := k.next(n)
		if o == nil {
			break
		}
		k.counters.Crossings++
		tries++
		c, done := o.try()
		if k.dead {
			return 0 // a fault killed the process meanwhile
		}
		if !done {
			continue
		}
		if c.Err == syscall.ECANCELED {
			k.counters.Cancelled++
		}
		k.counters.Completed++
		out[n] = c
		n++
		k.release(o)
	}
	if tries > 0 {
		k.world.Advance(time.Duration(tries) * k.world.options.CallCost)
	}
	return n
}

// next takes the operation to be tried next, after so many completions of this Poll; nil ends it.
func (k *Kernel) next(completions int) *operation {
	most := k.world.options.Reorder
	switch {
	case most == 0 || k.ready.first == nil:
		return k.ready.pop()
	case completions > 0 && k.world.random.IntN(pollEndEvery) == 0:
		return nil
	}
	return k.ready.overtake(k.world.random.IntN(most + 1))
}

// Close ends a descriptor of the process.
func (k *Kernel) Close(d reactor.Descriptor) error {
	s := k.process.find(d)
	if s == nil || k.dead {
		return syscall.EBADF
	}
	if s.busy() {
		return syscall.EBUSY
	}
	s.end(false)
	k.process.remove(s)
	return nil
}

// Shutdown takes the kernel out of its world.
func (k *Kernel) Shutdown() error {
	if k.live > 0 {
		return syscall.EBUSY
	}
	k.die()
	p := k.process
	p.kernels = slices.DeleteFunc(p.kernels, func(other *Kernel) bool { return other == k })
	return nil
}

// die ends the kernel with whatever is outstanding.
func (k *Kernel) die() {
	k.dead = true
	k.unnote()
	k.ready, k.tickets, k.free, k.live = queue{}, ticketIndex{}, nil, 0
}

// Counters are exact: a crossing is one try of an operation, or one wait.
func (k *Kernel) Counters() reactor.Counters { return k.counters }
