package lanes

import (
	"sync/atomic"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

// Policy is what all lanes of one engine agree on. It does not change while the engine is open.
type Policy struct {
	Epoch netproto.Epoch
	// Direct is true exactly when TCP payload goes between socket and registered range without
	// owned buffers (SPEC T-2).
	Direct bool
	// PayloadBytesMax bounds one payload, requested or served (SPEC U).
	PayloadBytesMax uint64
	// NotificationBytesMax bounds name plus message, both ends.
	NotificationBytesMax uint64
	// SourceTimeout starts when a frame is accepted (SPEC T-9).
	SourceTimeout time.Duration
	// IdleTimeout is how long a stream may stay without a frame before either end closes it.
	IdleTimeout time.Duration
	// TCPNotifications accepts operation 3 (SPEC N-5).
	TCPNotifications bool
	Socket           reactor.SocketOptions
}

// Lane is one locked thread's share of an engine: its loop, its memory, its stream slots. Only its own
// thread touches it, but for what the loop's documentation allows to others.
type Lane struct {
	*reactor.Loop
	Index  int
	Policy *Policy
	Arena  Arena
	// Streams are this lane's slots for requester streams, borrowed and uncertain ones included
	// (SPEC T-4). Sessions are its slots for accepted streams (SPEC T-6).
	Streams, Sessions *budgets.Budget
	// Tracker answers for the registrations; the lane only reads it, without a lock.
	Tracker *segments.Tracker
	// Staging is the lane's share of device memory's staging (*staging.Stage); nil: the engine has no CUDA.
	Staging any
	Counts  Counts
	Journal Journal
	// Congestion is the congestion control that the last connected stream really has; nil before.
	Congestion atomic.Pointer[string]
}
