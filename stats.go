package orbitte

import (
	"sync/atomic"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/reactor"
)

// Gauge is one budget: what is used of it now, the most it was, its limit, and how often it refused
// (SPEC U-1). Refusals counts what a caller or peer was refused, and frames that had to wait for a handler;
// a stream slot for which an idle stream is evicted is no refusal (Traffic.Evicted).
type Gauge = budgets.Snapshot

// Stats is a reading of an engine. Numbers are read one after the other while work goes on.
type Stats struct {
	Endpoint string
	Epoch    Epoch
	// Gauges lists every budget once, each by a name of its own. Limits.PeerSegments is split over the lanes:
	// "peer streams, lane 0" and so on, whose limits add up to it, and the same for "accepted streams"; so is
	// HPTCP.Limits.Streams over "HP-TCP peer streams, lane 0" and "HP-TCP accepted streams, lane 0". The caps of
	// one call (Limits.BatchRequests, PayloadBytes, NotificationBytes) have no gauge: nothing is held against them.
	//
	// Used is zero in all of them after a full drain: each registration was unregistered, each batch has ended and
	// was freed, the notifications were received, each segment was closed and nothing is in flight. An accepted
	// stream, even an idle one, is held until its peer closes it, IdleTimeout passes, or the engine is closed, and so is an
	// RDMA queue pair until the peer closes its segment, its place is needed, or the engine is closed;
	// after Close only what is the caller's (registrations, batches, notifications) can still be charged.
	Gauges []Gauge
	// Kernel is "io_uring", "epoll" or "sim"; KernelReason says why.
	Kernel, KernelReason string
	Lanes                []LaneStats
	// Totals sums the lanes' traffic.
	Totals Traffic
	// Unquiesced counts calls that returned ErrUnquiesced and whose work has not ended yet.
	Unquiesced int64
	// RDMA is nil for an engine without it.
	RDMA *RDMAStats
	// HPTCP is nil for an engine without it.
	HPTCP *HPTCPStats
	// CUDA is nil for an engine without it.
	CUDA *CUDAStats
	// RemoteStaging is nil unless peers may direct the staging here.
	RemoteStaging *RemoteStagingStats
}

// LaneStats is one lane's share.
type LaneStats struct {
	Index int
	Loop  reactor.Stats
	// Congestion is the congestion control that the last connected stream has; empty before.
	Congestion string
	// DroppedNotes counts log lines lost because nobody wrote them in time.
	DroppedNotes uint64
	Traffic      Traffic
}

// Traffic counts what was done since the engine was opened. Over HP-TCP the source side counts chunks, and the requester side
// whole transfers, on the lane that the peer belongs to, whichever lanes carried them (Loop.Bytes says what each lane moved).
type Traffic struct {
	// Source side.
	ReadsServed, WritesServed, BytesServed, BytesStored uint64
	Described, NotificationsReceived, FramesRefused     uint64
	// Of FramesRefused, by status. The rest broke the protocol, asked for what this engine has not, or were a
	// describe that learns the epoch.
	RefusedStaleEpoch, RefusedUnknownRegion, RefusedPermission uint64
	RefusedRange, RefusedExhausted, RefusedClosed              uint64
	Accepted, AcceptErrors, Overflowed, SourceTimeouts         uint64
	// Requester side.
	ReadsDone, WritesDone, BytesRead, BytesWritten, TransfersFailed uint64
	Connects, ConnectErrors, StreamsReused, StreamsRetired          uint64
	LocalCopies                                                     uint64
	// Both.
	Evicted, IdleClosed, ConflictRetries, RetainedDescriptors uint64
}

// Stats reads the engine.
func (e *Engine) Stats() Stats {
	s := Stats{
		Endpoint: e.endpoint, Epoch: e.policy.Epoch, Kernel: e.runners[0].lane.Kernel().Name(), KernelReason: e.kernel,
		Gauges: e.budgets.ledger.Snapshot(), Unquiesced: e.counts.unquiesced.Load(), RDMA: e.rdma.stats(), HPTCP: e.hptcp.stats(), CUDA: e.cuda.stats(), RemoteStaging: e.slotStats(),
	}
	for _, r := range e.runners {
		l := LaneStats{Index: r.lane.Index, Loop: r.lane.Loop.Stats(), DroppedNotes: r.lane.Journal.Dropped(), Traffic: trafficOf(&r.lane.Counts)}
		if congestion := r.lane.Congestion.Load(); congestion != nil {
			l.Congestion = *congestion
		}
		s.Lanes = append(s.Lanes, l)
		s.Totals.add(&l.Traffic)
	}
	return s
}

func trafficOf(c *lanes.Counts) Traffic {
	var t Traffic
	for _, pair := range t.pairs(c) {
		*pair.to = pair.from.Load()
	}
	return t
}

type countPair struct {
	to   *uint64
	from *atomic.Uint64
}

// pairs says which field shows which count.
func (t *Traffic) pairs(c *lanes.Counts) []countPair {
	return []countPair{
		{&t.ReadsServed, &c.ReadsServed}, {&t.WritesServed, &c.WritesServed}, {&t.BytesServed, &c.BytesServed}, {&t.BytesStored, &c.BytesStored},
		{&t.Described, &c.Described}, {&t.NotificationsReceived, &c.Notified}, {&t.FramesRefused, &c.RefusedFrames},
		{&t.RefusedStaleEpoch, &c.RefusedEpoch}, {&t.RefusedUnknownRegion, &c.RefusedRegion}, {&t.RefusedPermission, &c.RefusedPermission},
		{&t.RefusedRange, &c.RefusedRange}, {&t.RefusedExhausted, &c.RefusedExhausted}, {&t.RefusedClosed, &c.RefusedClosed},
		{&t.Accepted, &c.Accepted}, {&t.AcceptErrors, &c.AcceptErrors}, {&t.Overflowed, &c.OverflowedSessions}, {&t.SourceTimeouts, &c.SourceTimeouts},
		{&t.ReadsDone, &c.ReadsDone}, {&t.WritesDone, &c.WritesDone}, {&t.BytesRead, &c.BytesRead}, {&t.BytesWritten, &c.BytesWritten},
		{&t.TransfersFailed, &c.TransfersFailed}, {&t.Connects, &c.Connects}, {&t.ConnectErrors, &c.ConnectErrors},
		{&t.StreamsReused, &c.Reused}, {&t.StreamsRetired, &c.StreamsRetired}, {&t.LocalCopies, &c.LocalCopies},
		{&t.Evicted, &c.Evicted}, {&t.IdleClosed, &c.IdleClosed}, {&t.ConflictRetries, &c.ConflictRetries}, {&t.RetainedDescriptors, &c.RetainedDescriptors},
	}
}

// add sums another reading into this one.
func (t *Traffic) add(other *Traffic) {
	var none lanes.Counts
	from := other.pairs(&none)
	for i, pair := range t.pairs(&none) {
		*pair.to += *from[i].to
	}
}
