package reactor

import (
	"math"
	"net/netip"
	"time"
)

// Instant is a reading of one kernel's monotonic clock in nanoseconds. Instants of different
// kernels of one process are comparable: real kernels read CLOCK_MONOTONIC, simulated kernels of
// one world share one virtual clock.
type Instant int64

// Forever is later than every reading of a clock; Past is earlier. Poll(out, Past) never blocks and
// need not read the clock, which is what a spinning loop asks for. Poll(out, Brief) need not look for events either: the
// loop has something else to do first, and the next Poll is no brief one.
const (
	Forever Instant = math.MaxInt64
	Past    Instant = math.MinInt64
	Brief           = Past + 1
)

// After returns the instant d later; it saturates at Forever and treats a negative d as zero.
func (i Instant) After(d time.Duration) Instant {
	if d <= 0 {
		return i
	}
	if Instant(d) > Forever-i {
		return Forever
	}
	return i + Instant(d)
}

// Descriptor names a socket or another pollable object. Real kernels use the process's file
// descriptor, simulated ones a number of the simulated process, so that a descriptor may be
// accepted on one lane and served on another lane of the same process.
type Descriptor int32

// NoDescriptor is never a valid descriptor.
const NoDescriptor Descriptor = -1

// Ticket names one submitted operation: slot in the low half, generation in the high half. A late
// or double completion carries a ticket whose generation has passed and finds nobody. A kernel
// only carries tickets; it never looks inside.
type Ticket uint64

// Kind says what an operation does.
type Kind uint8

const (
	// Accept waits for one connection on a listener. Completion: Descriptor and Address of the peer.
	Accept Kind = iota + 1
	// Connect connects a descriptor from Kernel.Open to Address.
	Connect
	// Receive reads at least one byte into Buffers, the first buffer first. Completion: N bytes, 0 at
	// the end of the stream.
	Receive
	// Send writes at least one byte from Buffers, the first buffer first, unless it is AtOnce. Completion: N bytes. It never
	// raises SIGPIPE.
	Send
	// Watch waits until a descriptor is readable, closed by its peer or in error, and transfers
	// nothing. One shot. It serves idle streams and foreign descriptors (eventfd, completion channel).
	Watch
)

// Operation is what a lane asks of a kernel. The kernel copies the operation when it is submitted;
// the memory behind Buffers stays the submitter's, must lie outside movable or collectable
// memory, and may be touched by the kernel until the completion has been returned by Poll.
type Operation struct {
	Kind Kind
	// AtOnce makes a Send end without waiting for its peer: with as many bytes as there is room for when it is tried, none
	// (N is 0, Err nil) if there is no room. Its buffers are the kernel's for that long only, and what it took is copied. It has
	// the descriptor's place for a Send like any other: an earlier one that still waits is never overtaken. Other kinds
	// end with EINVAL.
	AtOnce     bool
	Descriptor Descriptor
	Ticket     Ticket
	// Buffers holds header and payload; either may be empty (Receive, Send).
	Buffers [2][]byte
	// More are further buffers behind Buffers, for payload that lies in many places. The list itself stays
	// unchanged by its owner until the completion. A kernel may move no more than fits into CallBuffers
	// of all buffers in one operation, so that a long list takes several. Not all buffers may be empty.
	More [][]byte
	// Address is the peer (Connect).
	Address netip.AddrPort
}

// CallBuffers is how many buffers one operation uses at most; further ones are left alone (IOV_MAX, writev(2)).
const CallBuffers = 1024

// Size is how many bytes the operation's buffers have together.
func (o *Operation) Size() int {
	n := len(o.Buffers[0]) + len(o.Buffers[1])
	for _, b := range o.More {
		n += len(b)
	}
	return n
}

// Part is the buffer with index i, in order.
func (o *Operation) Part(i int) []byte {
	if i < len(o.Buffers) {
		return o.Buffers[i]
	}
	return o.More[i-len(o.Buffers)]
}

// Parts is how many buffers the operation uses.
func (o *Operation) Parts() int { return min(len(o.Buffers)+len(o.More), CallBuffers) }

// Completion is the end of one operation. Exactly one is returned for each submitted operation,
// also after Cancel. Err is nil, or a syscall.Errno (ECANCELED after a Cancel that won), or an error that wraps one and
// says that the kernel itself is lost: every later operation ends with it too.
type Completion struct {
	Ticket     Ticket
	N          int
	Err        error
	Descriptor Descriptor
	Address    netip.AddrPort
}

// Clock tells the time. Its methods may be called from any goroutine.
type Clock interface {
	// Now reads the monotonic clock.
	Now() Instant
	// At converts a wall-clock time, such as a context's deadline, into an instant of this clock.
	At(time.Time) Instant
}

// SocketOptions are applied to a stream by Open and Tune, to a listener by Listen. Zero values leave
// the system's default. TCP_NODELAY is always set (SPEC T-8).
type SocketOptions struct {
	// KeepaliveIdle, KeepaliveInterval and KeepaliveCount set TCP keepalive (SPEC T-12).
	KeepaliveIdle, KeepaliveInterval time.Duration
	KeepaliveCount                   int
	// UserTimeout bounds how long sent bytes may stay unacknowledged (TCP_USER_TIMEOUT).
	UserTimeout time.Duration
	// Congestion names a congestion control; "auto" picks reno for a peer on the same host and leaves
	// the system's choice otherwise. An unavailable name is an error.
	Congestion string
	// SendBuffer and ReceiveBuffer fix the socket buffers in bytes; 0 leaves autotuning on.
	SendBuffer, ReceiveBuffer int
	// Backlog of a listener; 0 takes the kernel's default (128).
	Backlog int
	// ReuseAddress lets a restarted listener take its old port back at once; set for listeners.
	ReuseAddress bool
}

// Counters are a kernel's lifetime counts. Crossings counts system calls made on the data path, so
// that tests can hold the cost of a frame against SPEC and DESIGN.
type Counters struct {
	Submitted, Completed uint64
	Crossings            uint64 // system calls: receive, send, accept, wait, enter
	Waits                uint64 // those that could block
	Cancelled            uint64
	Unwatched            uint64 // completions for unknown operations
}

// Kernel is the door to the operating system, or to its twin. Every method but Now, At and Wake is
// called from one thread at a time: the lane's own, once Bind was called.
type Kernel interface {
	Clock

	// Name is "io_uring", "epoll" or "sim".
	Name() string

	// Bind attaches the kernel to the calling thread, which makes all further calls (unless the kernel
	// was opened for any thread). It is called once, before the first Submit.
	Bind() error

	// Listen makes a listening stream socket and returns the address it is really bound to.
	Listen(netip.AddrPort, SocketOptions) (Descriptor, netip.AddrPort, error)

	// Open makes an unconnected stream socket of the address's family.
	Open(netip.AddrPort, SocketOptions) (Descriptor, error)

	// Tune applies options to an accepted or connected stream and says which congestion control it has.
	Tune(Descriptor, SocketOptions) (congestion string, err error)

	// Submit starts an operation. It never blocks and never fails: every error arrives as a completion.
	// One Receive (or Accept, or Watch) and one Send (or Connect) may be outstanding per descriptor;
	// a Watch may stand beside a Receive.
	Submit(*Operation)

	// Cancel asks for the early end of an operation; its completion still arrives through Poll. Unknown
	// tickets are ignored.
	Cancel(Ticket)

	// Poll performs submitted operations and returns completions, at most len(out) of them, in a fair
	// order: whoever waited longest comes first, and a descriptor that was served goes behind the
	// others that are ready. A real kernel may let operations of payload wait behind others, but not for ever. If there is none it blocks until there is one, Wake is called, or the clock reaches until;
	// an until that has passed means do not block. A Wake that came before is not lost.
	Poll(out []Completion, until Instant) int

	// Close closes a descriptor without outstanding operations; EBUSY otherwise.
	Close(Descriptor) error

	// Wake makes the current or next blocking Poll return. Any goroutine may call it, also after
	// Shutdown.
	Wake()

	// Shutdown releases the kernel's own resources. It may be called from another thread once the bound
	// thread makes no more calls. While operations are outstanding it returns EBUSY and releases
	// nothing, so that what the system may still touch stays; it can be called again after Poll
	// returned their completions. After a success it does nothing and returns nil.
	Shutdown() error

	Counters() Counters
}
