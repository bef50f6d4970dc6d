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
	// TransportTCP: memory over the peer's control stream; a copy in this process when the segment is the engine's own.
	// Memory on a GPU is staged through pinned host memory of the engine that it is registered with, which Report.Path says.
	TransportTCP Transport = iota
	// TransportRDMA: memory of hosts and GPUs over RDMA devices of both sides (Config.RDMA, which says how each kind of
	// memory is used); a copy in this process when the segment is the engine's own. Refused with ErrUnavailable, which names what is missing, by an engine without RDMA, for a
	// peer that publishes none, and while no device of both sides reaches the other.
	TransportRDMA
	// TransportHPTCP: host memory over data streams beside the control stream (Config.HPTCP on both sides), straight from
	// and into the registered ranges: fastest for large transfers and for many pages; a copy in this process when the
	// segment is the engine's own. Refused with ErrUnavailable, which names what is missing, by an engine without HP-TCP,
	// for a peer that serves none, and for a region that its owner did not register for it.
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
	EffectPartial  = lanes.EffectPartial  // some bytes may have been changed (Direct placement, RDMA with HostDirect, HP-TCP, memory on a GPU)
	// EffectUnknown: changed or not, and this side cannot tell (SPEC T-10). What the source has received already it may
	// still commit, even after later requests for the same range have succeeded. It cannot any more once the range's owner
	// has given back the last handle of its registration (Unregister returned nil) or closed its engine.
	EffectUnknown = lanes.EffectUnknown
)

// Request is one transfer between a local and a remote address range. Addresses carry no authority: both
// must be covered by one registration on their side (SPEC G-2).
type Request struct {
	Operation     Operation
	Transport     Transport
	Segment       *Segment
	Local, Remote uint64 // addresses
	// Length in bytes. At most Segment.TransferBytesMax, but over HP-TCP, where each chunk is a payload of its own and the
	// whole may be as long as Limits.SubmittedBytes lets it. Zero is checked like any other and moves nothing.
	Length uint64

	// RemoteSlots makes this side direct how the peer stages its memory on a GPU, over TransportTCP or TransportRDMA: the peer pins so many
	// chunks of its staging memory for the request, 1 for a serial transfer, up to 16 to let its GPU work on some while
	// others travel; it may pin fewer, and the request waits for at least one. Zero, which is the default, leaves all
	// staging to each side (SPEC C-8). Never chosen by itself (SPEC G-4): both engines need Config.RemoteStaging, otherwise the
	// request is refused with ErrUnavailable. It is a number of the request and no transport, since the payload stays with
	// TCP or RDMA, under the same limits and checks. Over RDMA this side's devices read and write the slots, which the peer
	// has registered with its own, through grants of each slot, several at a time; that holds for a peer whose devices reach
	// its GPU themselves, too (DeviceDirect), since it was asked for. Memory of this side is used as RDMAConfig says. A READ that fails may have changed a part of the local range. Each of the peer's
	// copies leases its own part of the range for its own time: a request that is longer than a slot is no snapshot of what
	// others write meanwhile. A request that others share the stream with may lose its slots with it: a READ goes on, a WRITE
	// that the peer was told to copy fails, and its effect is unknown.
	RemoteSlots int

	// The rest is for TransportHPTCP. At most one of Pages, Strides and Spans makes the request one of many ranges, all in
	// one registration on each side, up to 1,048,576 in one submission; Local and Remote are what they count from, and
	// Length stays zero, since it follows. Such a request costs bytes and nanoseconds for each page, no round trip (SPEC H-8).
	Pages   *Pages
	Strides *Strides
	Spans   []Span
	// Atomic keeps the range that the request changes as it was unless all bytes are there, at the price of one copy
	// (SPEC H-5). The request is then one payload, and an Atomic WRITE has 1,000 ranges at most.
	Atomic bool
}

// Report says what a submission did. A batch is no transaction: the first Completed requests succeeded,
// the next one failed (Failed), the others were not started, but see Begun.
type Report struct {
	Completed int
	Bytes     uint64 // of the completed requests
	Failed    int    // index of the request that failed, or that the checks refused (the error's Index); -1 if none
	// Begun counts the requests behind the failed one that may have been started all the same. HP-TCP carries neighbours
	// that change different bytes through the same segment and registrations as one transfer, whose pieces come in any
	// order: after a failure each of those requests is done, in part or wholly, or not (Batch.Task says which ones are
	// meant). Zero over any other transport.
	Begun int
	// Local and Remote say what the failed request, and those that Begun counts, did to the ranges that they write.
	Local, Remote Effect
	// LocallyDrained is true exactly when nothing can touch the caller's memory any more on behalf of the
	// submission (SPEC G-8, G-9).
	LocallyDrained bool
	// Path is what carried the payload of the last request that ran: "tcp", "tcp direct", "local copy", each with what
	// happens to memory on GPUs behind it (Segment.PathOf says it before), such as "tcp, remote staging, pipelined, staged through pinned host memory there", "hptcp",
	// "hptcp, crc32c", or for RDMA how both sides' memory was used and by which devices, as Segment.Path says before; empty when nothing ran.
	Path string
	// Notification is the fate of SubmitAndNotify's notification, apart from the data's (SPEC N-3).
	Notification NotificationReport
}

var (
	errOperation = errors.New("the operation is neither Read nor Write")
	errNoTCP     = lacking("the source does not serve TCP READ and WRITE", "name a transport that the source has")
	errOverlap   = errors.New("local and remote range of a request to the engine itself overlap")
)

// TaskState is where one request of a batch stands.
type TaskState uint32

const (
	TaskQueued TaskState = iota + 1 // zero is no state: there is no such task
	TaskRunning
	TaskSucceeded // terminal
	TaskFailed    // terminal; also of a request that HP-TCP carried beside the one that failed first (Report.Begun)
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

// resolved is a request with everything that it needs borrowed. Of many ranges, offsets, address and sizes are those of
// what they reach.
type resolved struct {
	direction    lanes.Direction
	transport    Transport
	atomic       bool
	scattered    bool // true exactly when the ranges are the group's
	segment      *Segment
	local        *segments.Registration // borrowed until the task has ended
	localOffset  uint64
	localSize    uint64
	region       uint64
	offset, size uint64 // size: bytes that move
	remote       uint64 // address at the source, as the request has it
	remoteSize   uint64
	placing      placing
	slots        uint8 // of the peer's staging that this side directs; 0: none
}

// resolve checks one request and borrows what it needs, before any effect (SPEC G-2, G-4, G-7). The
// caller gives back with release. After an error it is as before.
func (t *resolved) resolve(e *Engine, r *Request) error {
	x, err := e.checkRequest(r)
	if err != nil {
		return err
	}
	remote := r.Remote + x.remote
	region, offset, err := r.Segment.view().Cover(remote, x.remoteSize)
	if err != nil {
		class := ErrUnknownRegion
		if errors.Is(err, segments.ErrRange) {
			class = ErrInvalid
		}
		if err = r.stray(err, "remote", r.Segment.covers, r.Remote); r.Segment.leaves(err) {
			err = &lack{err, leavingRemedy}
		}
		return &Error{Class: class, Cause: err}
	}
	want := netproto.RemoteRead
	if r.Operation == Write {
		want = netproto.RemoteWrite
	}
	if region.Permission&want != want {
		return &segments.PermissionError{ID: region.ID, Has: region.Permission, Want: want}
	}
	local, err := e.tracker.Borrow(r.Local+x.local, x.localSize)
	if err != nil {
		return r.stray(err, "local", e.covers, r.Local)
	}
	placing := e.placingOf(r, local, region)
	err = placing.refuse(r.Transport)
	if err == nil && r.RemoteSlots > 0 && !placing.there {
		err = &Error{Class: ErrUnavailable, Cause: errNothingStaged}
	}
	if err == nil && r.Transport == TransportHPTCP {
		err = optedIn(r.Segment, region)
	}
	if err != nil {
		local.Return()
		return err
	}
	if !r.Segment.gate.Enter() {
		local.Return()
		return &Error{Class: ErrClosed, Cause: errSegment}
	}
	*t = resolved{
		direction: r.Operation, transport: r.Transport, atomic: r.Atomic, scattered: r.scattered() && x.count > 0, segment: r.Segment,
		local: local, localOffset: r.Local + x.local - local.Address(), localSize: x.localSize,
		region: region.ID, offset: offset, size: x.bytes, remote: remote, remoteSize: x.remoteSize, placing: placing, slots: uint8(r.RemoteSlots),
	}
	return nil
}

// checkRequest checks what needs no registration, and says what the request reaches.
func (e *Engine) checkRequest(r *Request) (x extents, err error) {
	switch {
	case r.Operation != Read && r.Operation != Write:
		return x, &Error{Class: ErrInvalid, Cause: errOperation}
	case r.Segment == nil || r.Segment.engine != e:
		return x, &Error{Class: ErrInvalid, Cause: errSegment}
	case r.Segment.gate.Fenced(): // whatever the request asks for
		return x, &Error{Class: ErrClosed, Cause: errSegment}
	}
	if err := e.preflight(r); err != nil {
		return x, err
	}
	x = extents{localSize: r.Length, remoteSize: r.Length, bytes: r.Length, count: 1}
	if r.scattered() {
		if x, err = r.extents(); err != nil {
			return x, err
		}
	}
	whole := r.Transport != TransportHPTCP || r.Atomic // otherwise each chunk is a payload, and the sides agree on its size
	switch limit := r.Segment.TransferBytesMax(); {
	case x.bytes > requestBytesMax:
		return x, &Error{Class: ErrInvalid, Cause: fmt.Errorf("Length is %d; no memory has so many bytes", x.bytes)}
	case r.Segment.Local() && !r.scattered() && overlap(r.Local, r.Remote, r.Length):
		return x, &Error{Class: ErrInvalid, Cause: errOverlap} // it would wait for its own lease
	case r.Segment.Local() && r.Atomic && x.count > 1:
		return x, &Error{Class: ErrUnavailable, Cause: errAtomicOwn}
	case whole && x.bytes > limit:
		return x, &budgets.Exhausted{Budget: payloadBudget, Unit: "bytes", Asked: int64(x.bytes), Limit: int64(limit)}
	}
	return x, nil
}

// preflight refuses a transport that cannot carry the request now; none becomes another (SPEC G-4).
func (e *Engine) preflight(r *Request) error {
	switch {
	case r.Transport > TransportHPTCP:
		return &Error{Class: ErrInvalid, Cause: fmt.Errorf("Transport is %d; it must be TransportTCP, TransportRDMA or TransportHPTCP", r.Transport)}
	case r.Atomic && r.Transport != TransportHPTCP:
		return &Error{Class: ErrInvalid, Cause: errAtomicElse}
	case r.scattered() && r.Transport != TransportHPTCP:
		return &Error{Class: ErrInvalid, Cause: errLayoutElse}
	case r.RemoteSlots != 0:
		if err := e.preflightSlots(r); err != nil {
			return err
		}
	}
	switch r.Transport {
	case TransportTCP:
		if !r.Segment.view().Descriptor().Capabilities.Has(netproto.CapabilityTCP) {
			return &Error{Class: ErrUnavailable, Cause: errNoTCP}
		}
		return nil
	case TransportRDMA:
		return e.preflightRDMA(r.Segment)
	}
	return e.preflightHPTCP(r.Segment)
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
