package epoll

import (
	"net/netip"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/socket"
)

// Options of New. The zero value serves.
type Options struct {
	// AnyThread leaves the thread of Bind alone, for callers that do not stay on one.
	AnyThread bool
	// Guests makes room for a reactor.Loop that takes guests: two more descriptors.
	Guests bool
	// Operations is for how many outstanding operations room is made at once; 0 means 256. More are fine.
	Operations int
}

// eventsPerLook bounds what one look at epoll returns; the rest comes with the next.
const eventsPerLook = 128

// Kernel implements reactor.Kernel. All methods but Now, At and Wake belong to one thread at a time.
type Kernel struct {
	socket.Clock
	options    Options
	descriptor int
	waker      *socket.Waker
	operations *socket.Operations
	endpoints  socket.Endpoints
	counters   reactor.Counters
	// hot is the slot of the Receive that parked last, the likeliest to be answered next.
	hot int32
	// glances counts those since the last look for events, trust is how many there may be; see glance.
	glances, trust int
	// load is the work done since the last look for events; see due.
	load    int
	coarse  bool // true exactly when epoll_pwait2 was refused
	idle    idle
	closed  atomic.Bool
	timeout unix.Timespec
	events  [eventsPerLook]unix.EpollEvent
}

var _ reactor.GuestKernel = (*Kernel)(nil)

// New opens a kernel; Shutdown ends it.
func New(o Options) (*Kernel, error) {
	if o.Operations <= 0 {
		o.Operations = 256
	}
	descriptor, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, &socket.CallError{Call: "epoll_create1", Object: "kernel", Errno: err.(syscall.Errno),
			Remedy: "see RLIMIT_NOFILE and fs.epoll.max_user_instances"}
	}
	waker, err := socket.NewWaker()
	if err != nil {
		_ = unix.Close(descriptor)
		return nil, err
	}
	k := &Kernel{options: o, descriptor: descriptor, waker: waker,
		operations: socket.NewOperations(o.Operations), hot: socket.NoSlot, trust: 1}
	if o.Guests {
		if err := k.idle.open(); err != nil {
			_ = waker.Close()
			_ = unix.Close(descriptor)
			return nil, err
		}
	}
	// Edge-triggered: every signal makes an event of its own, so nobody has to read the eventfd.
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(waker.Descriptor()), Pad: wakeGeneration}
	if e := k.control(unix.EPOLL_CTL_ADD, waker.Descriptor(), &event); e != 0 {
		_ = waker.Close()
		_ = unix.Close(descriptor)
		_ = k.idle.close()
		return nil, &socket.CallError{Call: "epoll_ctl", Object: "wake-up", Errno: e, Remedy: "see fs.epoll.max_user_watches"}
	}
	return k, nil
}

// Name is "epoll".
func (k *Kernel) Name() string { return "epoll" }

// Bind asks for exact timers on the lane's thread: by default Linux may delay each wake-up by 50 µs to
// save power (PR_SET_TIMERSLACK, prctl(2)).
func (k *Kernel) Bind() error {
	if k.options.AnyThread {
		return nil
	}
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // a matter of speed only
	return nil
}

// Listen makes a listener; see reactor.Kernel.
func (k *Kernel) Listen(at netip.AddrPort, o reactor.SocketOptions) (reactor.Descriptor, netip.AddrPort, error) {
	fd, bound, err := socket.Listen(at, &o)
	if err != nil {
		return reactor.NoDescriptor, bound, err
	}
	k.endpoints.Begin(reactor.Descriptor(fd), false)
	return reactor.Descriptor(fd), bound, nil
}

// Open makes an unconnected stream; see reactor.Kernel.
func (k *Kernel) Open(peer netip.AddrPort, o reactor.SocketOptions) (reactor.Descriptor, error) {
	fd, err := socket.Open(peer, &o)
	if err != nil {
		return reactor.NoDescriptor, err
	}
	k.endpoints.Begin(reactor.Descriptor(fd), true)
	return reactor.Descriptor(fd), nil
}

// Tune sets options of a stream, which may come from another lane: what this kernel remembers of an idle
// descriptor of that number is forgotten, and arm finds out whether it is still registered.
func (k *Kernel) Tune(d reactor.Descriptor, o reactor.SocketOptions) (string, error) {
	congestion, err := socket.Tune(int(d), &o)
	if err == nil {
		k.endpoints.Begin(d, true)
	}
	return congestion, err
}

// Submit starts an operation. One whose direction is known to be blocked waits without a system call.
func (k *Kernel) Submit(op *reactor.Operation) {
	k.counters.Submitted++
	slot := k.operations.Add(op)
	r := k.operations.At(slot)
	if e := socket.Check(op); e != 0 {
		k.refuse(slot, e)
		return
	}
	endpoint := k.endpoints.At(op.Descriptor)
	if endpoint == nil {
		k.refuse(slot, unix.EBADF)
		return
	}
	seat := socket.SeatOf(op.Kind)
	if endpoint.Seated[seat] != socket.NoSlot {
		k.refuse(slot, unix.EBUSY)
		return
	}
	endpoint.Seated[seat] = slot
	if op.AtOnce || !k.blocked(endpoint, seat) {
		k.operations.Push(slot)
		return
	}
	r.State = socket.Parked
	if op.Kind == reactor.Receive {
		k.hot = slot
	}
}

// refuse lets an operation complete with an error that was found before any system call.
func (k *Kernel) refuse(slot int32, e syscall.Errno) {
	k.operations.At(slot).Refused = e
	k.operations.Push(slot)
}

// blocked says whether trying an operation of that seat would be in vain until an event comes.
func (k *Kernel) blocked(e *socket.Endpoint, seat socket.Seat) bool {
	if seat == socket.Side {
		return e.Armed&edgeInput != 0 && e.Blocked[socket.Input]
	}
	return e.Blocked[seat]
}

// Cancel ends an operation early; its completion (ECANCELED) comes in its turn.
func (k *Kernel) Cancel(ticket reactor.Ticket) {
	slot := k.operations.Find(ticket)
	if slot == socket.NoSlot {
		return
	}
	r := k.operations.At(slot)
	if r.Cancelled {
		return
	}
	r.Cancelled = true
	k.counters.Cancelled++
	k.operations.Push(slot)
}

// Close closes an idle descriptor. The registration is removed by hand first: a forked child may hold the
// same open file, and then closing our descriptor alone would leave it in the epoll set.
func (k *Kernel) Close(d reactor.Descriptor) error {
	if d < 0 {
		return unix.EBADF
	}
	endpoint := k.endpoints.At(d)
	if endpoint != nil && !endpoint.Idle() {
		return unix.EBUSY
	}
	if endpoint != nil {
		if endpoint.Armed != 0 {
			k.control(unix.EPOLL_CTL_DEL, int(d), &unix.EpollEvent{})
		}
		k.endpoints.Begin(d, false)
	}
	return socket.Close(int(d))
}

// Wake ends the current or next blocking Poll.
func (k *Kernel) Wake() { k.waker.Wake() }

// Shutdown closes the kernel's descriptors; the second call does nothing. With outstanding operations it
// answers EBUSY and changes nothing: cancel them, poll their completions, and call it again.
func (k *Kernel) Shutdown() error {
	if k.operations.Len() > 0 {
		return unix.EBUSY
	}
	if k.closed.Swap(true) {
		return nil
	}
	err := k.waker.Close()
	if e := unix.Close(k.descriptor); err == nil {
		err = e
	}
	if e := k.idle.close(); err == nil {
		err = e
	}
	return err
}

// Counters are the counts so far.
func (k *Kernel) Counters() reactor.Counters {
	counters := k.counters
	waits := k.idle.waits.Load()
	counters.Crossings += waits
	counters.Waits += waits
	return counters
}
