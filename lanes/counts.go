package lanes

import "sync/atomic"

// Counts are a lane's lifetime counts; its thread adds, anybody reads.
type Counts struct {
	ReadsServed, WritesServed, Described, Notified  atomic.Uint64 // completed frames, source side
	BytesServed, BytesStored                        atomic.Uint64 // payload out of and into registered ranges, source side
	RefusedFrames, OverflowedSessions               atomic.Uint64 // answered with a status; closed because handlers and queue were full
	Accepted, AcceptErrors, Evicted, IdleClosed     atomic.Uint64 // listener and sessions
	Connects, ConnectErrors, StreamsRetired, Reused atomic.Uint64 // requester streams
	ReadsDone, WritesDone, BytesRead, BytesWritten  atomic.Uint64 // completed transfers, requester side
	TransfersFailed, LocalCopies, ConflictRetries   atomic.Uint64
	RetainedDescriptors, SourceTimeouts             atomic.Uint64
}
