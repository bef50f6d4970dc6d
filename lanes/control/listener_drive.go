package control

import (
	"errors"
	"net/netip"
	"syscall"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/reactor"
)

// acceptRetry is the interval between attempts while the system has no descriptors or memory.
const acceptRetry = 100 * time.Millisecond

// acceptErrorsInRow is how many errors of single connections are passed over at once: more of them
// without a connection in between are retried at the interval, so that an error which is not the
// connection's own after all does not keep the lane busy.
const acceptErrorsInRow = 16

// Adopter is one lane's server of accepted connections.
type Adopter interface {
	// Adopt hands a descriptor to the server's lane; the error leaves it to the caller.
	Adopt(reactor.Descriptor, netip.AddrPort) error
	// Streams is how many streams are charged to the server; any goroutine may ask.
	Streams() int64
}

// Listener accepts connections on one lane and deals them out to the servers of all lanes.
type Listener struct {
	lane       *lanes.Lane
	descriptor reactor.Descriptor
	servers    []Adopter
	turn       int
	ticket     reactor.Ticket // non-zero exactly while an accept is with the kernel
	timer      reactor.Timer
	starved    bool // true exactly during a burst of resource exhaustion
	passed     int  // errors of single connections since the last accepted one
	failed     error
	closing    bool
	closed     func() // non-nil from Close until the socket is closed
	gone       bool   // true exactly when the socket was closed
}

// NewListener accepts on a descriptor that the lane's kernel made. Start begins.
func NewListener[A Adopter](lane *lanes.Lane, d reactor.Descriptor, servers []A) *Listener {
	l := &Listener{lane: lane, descriptor: d}
	for _, s := range servers {
		l.servers = append(l.servers, s)
	}
	return l
}

// Start begins to accept; on the listener's lane.
func (l *Listener) Start() {
	if l.closing || l.ticket != 0 {
		return
	}
	l.ticket = l.lane.Submit(reactor.Operation{Kind: reactor.Accept, Descriptor: l.descriptor}, l)
}

// Expire tries again after exhaustion (reactor.TimerHandler).
func (l *Listener) Expire(*reactor.Timer, reactor.Instant) { l.Start() }

// Complete takes an accepted connection, or an error (reactor.Handler).
func (l *Listener) Complete(e *reactor.Event) {
	l.ticket = 0
	if e.Err == nil {
		l.accepted(e.Descriptor, e.Address)
	}
	switch {
	case l.closing:
		l.finish()
	case e.Err == nil:
		l.Start()
	default:
		l.erred(e.Err)
	}
}

func (l *Listener) accepted(d reactor.Descriptor, peer netip.AddrPort) {
	l.passed = 0
	if l.starved {
		l.starved = false
		l.lane.Journal.Add(l.lane.Now(), lanes.Note{Kind: lanes.NoteAcceptResumed})
	}
	server := l.emptiest()
	if l.closing || server.Adopt(d, peer) != nil {
		if err := l.lane.Kernel().Close(d); err != nil {
			l.lane.Counts.RetainedDescriptors.Add(1)
		}
	}
}

// emptiest is the server with the fewest streams, in turn among equals: a lane's share of the slots is not full while
// another one has room, so that no stream is evicted for nothing.
func (l *Listener) emptiest() Adopter {
	best := l.servers[l.turn%len(l.servers)]
	for i := range l.servers {
		if s := l.servers[(l.turn+i)%len(l.servers)]; s.Streams() < best.Streams() {
			best = s
		}
	}
	l.turn++
	return best
}

// erred sorts accept errors (accept(2), "Error handling"): exhaustion is retried at an interval and
// noted once per burst, errors of the connection itself are passed over, the rest is fatal (SPEC T-7).
func (l *Listener) erred(err error) {
	l.lane.Counts.AcceptErrors.Add(1)
	switch {
	case isAny(err, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM):
		if !l.starved {
			l.starved = true
			l.lane.Journal.Add(l.lane.Now(), lanes.Note{Kind: lanes.NoteAcceptExhausted, Err: err})
		}
		l.lane.Arm(&l.timer, l.lane.Now().After(acceptRetry), l)
	case isAny(err, syscall.EBADF, syscall.EINVAL, syscall.ENOTSOCK, syscall.EOPNOTSUPP, syscall.EFAULT, syscall.ENOSYS):
		l.failed = err
		l.lane.Journal.Add(l.lane.Now(), lanes.Note{Kind: lanes.NoteListenerFailed, Err: err})
	default:
		if l.passed++; l.passed > acceptErrorsInRow {
			l.lane.Arm(&l.timer, l.lane.Now().After(acceptRetry), l)
			return
		}
		l.Start()
	}
}

func isAny(err error, errnos ...syscall.Errno) bool {
	for _, errno := range errnos {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// Failed is the error that ended the listener, if one did.
func (l *Listener) Failed() error { return l.failed }

// Close stops accepting and closes the socket; closed is called once it is closed.
func (l *Listener) Close(closed func()) {
	l.closing, l.closed = true, closed
	l.lane.Disarm(&l.timer)
	if l.ticket != 0 {
		l.lane.Cancel(l.ticket)
		return
	}
	l.finish()
}

func (l *Listener) finish() {
	if l.closed == nil {
		return
	}
	if !l.gone {
		l.gone = true
		if err := l.lane.Kernel().Close(l.descriptor); err != nil {
			l.lane.Counts.RetainedDescriptors.Add(1)
		}
	}
	closed := l.closed
	l.closed = nil
	closed()
}
