package orbitte

import (
	"errors"
	"fmt"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/segments"
)

// Operation is the direction of a request.
type Operation = lanes.Direction

const (
	Read  = lanes.Read  // source → local range
	Write = lanes.Write // local range → source
)

// Transport is the path that a request names. None silently becomes another (SPEC G-4).
type Transport uint8

const (
	// TransportTCP: host memory over the peer's control stream; a copy in this process when the segment is
	// the engine's own.
	TransportTCP Transport = iota
	// TransportRDMA: host memory over RDMA devices of both sides (Config.RDMA); a copy in this process when the segment
	// is the engine's own. Refused with ErrUnavailable, which names what is missing, by an engine without RDMA, for a
	// peer that publishes none, and while no device of both sides reaches the other.
	TransportRDMA
	// TransportHPTCP is refused with ErrUnavailable.
	TransportHPTCP
)

func (t Transport) String() string {
	switch t {
	case TransportTCP:
		return "tcp"
	case TransportRDMA:
		return "rdma"
	case TransportHPTCP:
		return "hptcp"
	}
	return fmt.Sprintf("transport %d", uint8(t))
}

// Effect says what happened to a range.
type Effect = lanes.Effect

const (
	EffectNone     = lanes.EffectNone     // not one byte was changed
	EffectComplete = lanes.EffectComplete // every byte is in place
	EffectPartial  = lanes.EffectPartial  // some bytes may have been changed (Direct placement, RDMA with HostDirect)
	EffectUnknown  = lanes.EffectUnknown  // changed or not, and this side cannot tell
)

// Request is one transfer between a local and a remote address range. Addresses carry no authority: both
// must be covered by one registration on their side (SPEC G-2).
type Request struct {
	Operation     Operation
	Transport     Transport
	Segment       *Segment
	Local, Remote uint64 // addresses
	Length        uint64 // bytes, at most Segment.TransferBytesMax; zero is checked like any other and moves nothing
}

// Report says what a submission did. A batch is no transaction: the first Completed requests succeeded,
// the next one failed (Failed), the others were not started.
type Report struct {
	Completed int
	Bytes     uint64 // of the completed requests
	Failed    int    // index of the request that failed, or that the checks refused (the error's Index); -1 if none
	// Local and Remote say what the failed request did to the range that it writes.
	Local, Remote Effect
	// LocallyDrained is true exactly when nothing can touch the caller's memory any more on behalf of the
	// submission (SPEC G-8, G-9).
	LocallyDrained bool
	// Path is what carried the payload of the last request that ran: "tcp", "tcp direct", "local copy", or for RDMA how
	// both sides' memory was used and by which devices, as Segment.Path says before; empty when nothing ran.
	Path string
	// Notification is the fate of SubmitAndNotify's notification, apart from the data's (SPEC N-3).
	Notification NotificationReport
}

var (
	errOperation = errors.New("the operation is neither Read nor Write")
	errTransport = errors.New("this engine has no such transport")
	errNoTCP     = errors.New("the source does not serve TCP READ and WRITE")
	errOverlap   = errors.New("local and remote range of a request to the engine itself overlap")
)

// TaskState is where one request of a batch stands.
type TaskState uint32

const (
	TaskQueued TaskState = iota + 1 // zero is no state: there is no such task
	TaskRunning
	TaskSucceeded // terminal
	TaskFailed    // terminal
	TaskSkipped   // terminal: an earlier one failed, or the batch was cancelled; this one changed nothing
)

func (s TaskState) String() string {
	names := [...]string{"no task", "queued", "running", "succeeded", "failed", "skipped"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state %d", uint32(s))
}

// Terminal is true exactly when the state does not change any more.
func (s TaskState) Terminal() bool { return s >= TaskSucceeded }

// resolved is a request with everything that it needs borrowed.
type resolved struct {
	direction    lanes.Direction
	transport    Transport
	segment      *Segment
	local        *segments.Registration // borrowed until the task has ended
	localOffset  uint64
	region       uint64
	offset, size uint64
	remote       uint64 // address at the source, as the request has it
}

// resolveRequest checks one request and borrows what it needs, before any effect (SPEC G-2, G-4, G-7). The
// caller gives back with release.
func (e *Engine) resolveRequest(r *Request) (resolved, error) {
	switch {
	case r.Operation != Read && r.Operation != Write:
		return resolved{}, &Error{Class: ErrInvalid, Cause: errOperation}
	case r.Segment == nil || r.Segment.engine != e:
		return resolved{}, &Error{Class: ErrInvalid, Cause: errSegment}
	case r.Segment.gate.Fenced(): // whatever the request asks for
		return resolved{}, &Error{Class: ErrClosed, Cause: errSegment}
	}
	if err := e.preflight(r); err != nil {
		return resolved{}, err
	}
	switch {
	case r.Segment.Local() && overlap(r.Local, r.Remote, r.Length):
		return resolved{}, &Error{Class: ErrInvalid, Cause: errOverlap} // it would wait for its own lease
	case r.Length > r.Segment.TransferBytesMax():
		return resolved{}, &budgets.Exhausted{Budget: payloadBudget, Unit: "bytes", Asked: int64(min(r.Length, 1<<62)), Limit: int64(r.Segment.TransferBytesMax())}
	}
	region, offset, err := r.Segment.view().Cover(r.Remote, r.Length)
	if err != nil {
		class := ErrUnknownRegion
		if errors.Is(err, segments.ErrRange) {
			class = ErrInvalid
		}
		return resolved{}, &Error{Class: class, Cause: err}
	}
	want := netproto.RemoteRead
	if r.Operation == Write {
		want = netproto.RemoteWrite
	}
	if region.Permission&want != want {
		return resolved{}, &segments.PermissionError{ID: region.ID, Has: region.Permission, Want: want}
	}
	local, err := e.tracker.Borrow(r.Local, r.Length)
	if err != nil {
		return resolved{}, err
	}
	if !r.Segment.gate.Enter() {
		local.Return()
		return resolved{}, &Error{Class: ErrClosed, Cause: errSegment}
	}
	return resolved{
		direction: r.Operation, transport: r.Transport, segment: r.Segment, local: local, localOffset: r.Local - local.Address(),
		region: region.ID, offset: offset, size: r.Length, remote: r.Remote,
	}, nil
}

// preflight refuses a transport that cannot carry the request now; none becomes another (SPEC G-4).
func (e *Engine) preflight(r *Request) error {
	switch r.Transport {
	case TransportTCP:
		if !r.Segment.view().Descriptor().Capabilities.Has(netproto.CapabilityTCP) {
			return &Error{Class: ErrUnavailable, Cause: errNoTCP}
		}
		return nil
	case TransportRDMA:
		return e.preflightRDMA(r.Segment)
	}
	return &Error{Class: ErrUnavailable, Cause: fmt.Errorf("%w: %v", errTransport, r.Transport)}
}

// overlap is true exactly when two ranges of one address space share a byte.
func overlap(a, b, length uint64) bool {
	return max(a, b)-min(a, b) < length
}

// release gives back what resolve borrowed.
func (r *resolved) release() {
	r.segment.gate.Leave()
	r.local.Return()
	r.local = nil
}
