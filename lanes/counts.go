package lanes

import (
	"sync/atomic"

	"github.com/orbitte/orbitte/netproto"
)

// Counts are a lane's lifetime counts; its thread adds, anybody reads.
type Counts struct {
	ReadsServed, WritesServed, Described, Notified  atomic.Uint64 // completed frames, source side
	BytesServed, BytesStored                        atomic.Uint64 // payload out of and into registered ranges, source side
	RefusedFrames                                   atomic.Uint64 // answered with a status
	RefusedEpoch, RefusedRegion, RefusedPermission  atomic.Uint64 // of them: stale epoch, unknown region, permission denied
	RefusedRange, RefusedExhausted, RefusedClosed   atomic.Uint64 // of them: invalid range, over a budget, source closed
	OverflowedSessions                              atomic.Uint64 // closed because handlers and queue were full
	Accepted, AcceptErrors, Evicted, IdleClosed     atomic.Uint64 // listener and sessions
	Connects, ConnectErrors, StreamsRetired, Reused atomic.Uint64 // requester streams
	ReadsDone, WritesDone, BytesRead, BytesWritten  atomic.Uint64 // completed transfers, requester side
	TransfersFailed, LocalCopies, ConflictRetries   atomic.Uint64
	RetainedDescriptors, SourceTimeouts             atomic.Uint64
}

// Refused counts a frame that the source answers with a status; stale says that the frame named an epoch, so
// that a describe which learns it is no stale one.
func (c *Counts) Refused(status netproto.Status, stale bool) {
	c.RefusedFrames.Add(1)
	switch status {
	case netproto.StatusEpochMismatch:
		if stale {
			c.RefusedEpoch.Add(1)
		}
	case netproto.StatusUnknownRegion:
		c.RefusedRegion.Add(1)
	case netproto.StatusPermissionDenied:
		c.RefusedPermission.Add(1)
	case netproto.StatusInvalidRange:
		c.RefusedRange.Add(1)
	case netproto.StatusExhausted:
		c.RefusedExhausted.Add(1)
	case netproto.StatusSourceClosed:
		c.RefusedClosed.Add(1)
	}
}
