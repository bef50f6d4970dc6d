package uring

import (
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/socket"
)

// Options of New. The zero value serves.
type Options struct {
	// AnyThread makes a ring that serves whatever thread calls, one at a time. It is slower: the system
	// then interrupts threads to finish operations instead of leaving that to the next enter.
	AnyThread bool
	// Operations is for how many outstanding operations room is made at once; 0 means 256. More are fine.
	Operations int
	// Entries is the size of the submission queue; 0 means 256. Completions is that of the completion queue;
	// 0 means 4096. Both are rounded up to powers of two. More operations than that are fine.
	Entries, Completions int

	// flags are the sets of set-up flags to be tried; nil means those that fit AnyThread.
	flags []uint32
}

// Kernel implements reactor.Kernel. All methods but Now, At and Wake belong to one thread at a time, after
// Bind to the one that called it, unless Options.AnyThread is set.
type Kernel struct {
	socket.Clock
	options    Options
	ring       *Ring
	waker      *socket.Waker
	operations *socket.Operations
	endpoints  socket.Endpoints
	blocks     blocks
	gates      map[reactor.Descriptor]int32 // of the listeners that Listen made
	counters   reactor.Counters
	// cancels are the entries to be ended for which the submission queue has had no room yet.
	cancels []uint64
	// sequence makes the user data of each entry differ from that of its slot's earlier ones.
	sequence uint32
	// load is the work done since the last enter; see due.
	load int
	// eager counts prepared entries that are to be performed by the next enter, not to wait there.
	eager int
	// spinning is true exactly while a Poll that may not block runs; idle is true exactly when the last Poll
	// came to nothing.
	spinning, idle bool
	// pollFirst is true exactly when the system knows RECVSEND_POLL_FIRST.
	pollFirst bool
	// watched is true exactly while an entry in the ring waits for the eventfd; multishot tells which kind.
	watched, multishot bool
	bound              bool
	// lost is non-nil from the moment on at which the system refused to enter the ring; see lost.go.
	lost   *LostError
	closed atomic.Bool
	// events are the completion events being settled.
	events [32]CompletionEvent
}

var _ reactor.Kernel = (*Kernel)(nil)

// User data that belongs to no operation. Slots are never negative.
const (
	wakeData   = 1<<32 - 1
	cancelData = 1<<32 - 2
)

// New opens a kernel; Shutdown ends it. The error is an *Unavailable if io_uring cannot be used.
func New(o Options) (*Kernel, error) {
	o.Operations = standard(o.Operations, 256)
	o.Entries = standard(o.Entries, 256)
	o.Completions = max(standard(o.Completions, 4096), o.Entries, 4)
	if o.flags == nil {
		o.flags = flagSets(o.AnyThread)
	}
	if err := Probe(); err != nil { // the ring itself can be used only by the thread of Bind
		return nil, err
	}
	ring, err := openRing(uint32(o.Entries), uint32(o.Completions), o.flags)
	if err != nil {
		return nil, err
	}
	if err := ring.witness(); err != nil {
		ring.Close()
		return nil, err
	}
	waker, err := socket.NewWaker()
	if err != nil {
		ring.Close()
		return nil, err
	}
	return &Kernel{
		options: o, ring: ring, waker: waker, multishot: true, gates: map[reactor.Descriptor]int32{},
		operations: socket.NewOperations(o.Operations), cancels: make([]uint64, 0, o.Operations),
		// NO_SQARRAY (6.6) and SINGLE_ISSUER (6.0) are younger than POLL_FIRST (5.19), and COOP_TASKRUN is as old.
		pollFirst: ring.flags&(setupSingleIssuer|setupCoopTaskrun|setupNoSQArray) != 0,
	}, nil
}

func standard(value, otherwise int) int {
	if value <= 0 {
		return otherwise
	}
	return min(value, 1<<15)
}

// Name is "io_uring".
func (k *Kernel) Name() string { return "io_uring" }

// Bind enables the ring, which makes the calling thread its only issuer, and asks for exact timers on
// that thread (PR_SET_TIMERSLACK, prctl(2)).
func (k *Kernel) Bind() error {
	if k.bound {
		return unix.EALREADY
	}
	if e := k.ring.enable(); e != 0 {
		return explain(e)
	}
	k.bound = true
	if !k.options.AnyThread {
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // a matter of speed only
	}
	return nil
}

// Listen makes a listener; see reactor.Kernel.
func (k *Kernel) Listen(at netip.AddrPort, o reactor.SocketOptions) (reactor.Descriptor, netip.AddrPort, error) {
	fd, bound, err := socket.Listen(at, &o)
	if err != nil {
		return reactor.NoDescriptor, bound, err
	}
	if err := k.makeGate(fd); err != nil {
		_ = socket.Close(fd)
		return reactor.NoDescriptor, netip.AddrPort{}, err
	}
	k.endpoints.Begin(reactor.Descriptor(fd), false)
	return reactor.Descriptor(fd), bound, nil
}

// makeGate makes the epoll descriptor on which the ring waits in place of a listener. The ring keeps what it waits on
// open until the system's worker has torn it down, some time after the process is gone (io_ring_exit_work);
// a listener kept so would refuse its port to the next process. An epoll descriptor keeps nothing open.
func (k *Kernel) makeGate(fd int) error {
	gate, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.EpollCtl(gate, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
		_ = socket.Close(gate)
		return os.NewSyscallError("epoll_ctl", err)
	}
	k.gates[reactor.Descriptor(fd)] = int32(gate)
	return nil
}

// closeGate ends the gate of a listener; other descriptors have none.
func (k *Kernel) closeGate(d reactor.Descriptor) {
	if gate, ok := k.gates[d]; ok {
		delete(k.gates, d)
		_ = socket.Close(int(gate)) // nothing was written to it
	}
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

// Tune sets options of a stream, which may come from another lane.
func (k *Kernel) Tune(d reactor.Descriptor, o reactor.SocketOptions) (string, error) {
	congestion, err := socket.Tune(int(d), &o)
	if err == nil {
		k.endpoints.Begin(d, true)
	}
	return congestion, err
}

// Submit queues an operation; Poll performs it.
func (k *Kernel) Submit(op *reactor.Operation) {
	k.counters.Submitted++
	slot := k.operations.Add(op)
	if e := k.seat(slot, op); e != 0 {
		k.operations.At(slot).Refused = e
	}
	k.operations.Push(slot)
}

// seat gives an operation its place at its descriptor, or says why not.
func (k *Kernel) seat(slot int32, op *reactor.Operation) syscall.Errno {
	if e := socket.Check(op); e != 0 {
		return e
	}
	endpoint := k.endpoints.At(op.Descriptor)
	if endpoint == nil {
		return unix.EBADF
	}
	seated := &endpoint.Seated[socket.SeatOf(op.Kind)]
	if *seated != socket.NoSlot {
		return unix.EBUSY
	}
	*seated = slot
	return 0
}

// Cancel ends an operation early. One that the ring has ends when the ring says so, perhaps with a result.
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
	if r.State == socket.Parked {
		k.cancels = append(k.cancels, userData(slot, r.Note))
	}
}

// Close closes an idle descriptor, EBUSY otherwise. The ring holds nothing of it.
func (k *Kernel) Close(d reactor.Descriptor) error {
	if d < 0 {
		return unix.EBADF
	}
	if endpoint := k.endpoints.At(d); endpoint != nil {
		if !endpoint.Idle() {
			return unix.EBUSY
		}
		k.endpoints.Begin(d, false)
	}
	k.closeGate(d)
	return socket.Close(int(d))
}

// Wake ends the current or next blocking Poll.
func (k *Kernel) Wake() { k.waker.Wake() }

// Shutdown closes the ring; any thread may call it, and the second call does nothing. With outstanding
// operations it answers EBUSY and changes nothing, since the system may still touch their buffers:
// cancel them, poll their completions, and call it again.
func (k *Kernel) Shutdown() error {
	if k.operations.Len() > 0 {
		return unix.EBUSY
	}
	if k.closed.Swap(true) {
		return nil
	}
	for d := range k.gates {
		k.closeGate(d)
	}
	k.ring.Close()
	k.blocks.close()
	return k.waker.Close()
}

// Counters are the counts so far.
func (k *Kernel) Counters() reactor.Counters {
	c := k.counters
	c.Crossings += k.ring.crossings
	c.Waits += k.ring.waits
	return c
}

// userData names an entry: its slot and the sequence number that it was given.
func userData(slot int32, sequence uint32) uint64 { return uint64(sequence)<<32 | uint64(uint32(slot)) }
