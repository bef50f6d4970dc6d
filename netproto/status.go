package netproto

import "fmt"

// Status is the answer to a request (W-5).
type Status uint8

// The statuses of version 19.
const (
	StatusSuccess            Status = 0
	StatusEpochMismatch      Status = 1  // the reply's epoch is the real one
	StatusUnknownRegion      Status = 2  // no such region is published
	StatusPermissionDenied   Status = 3  // the region does not allow this direction
	StatusInvalidRange       Status = 4  // the range overflows or leaves the region
	StatusSourceClosed       Status = 5  // the source no longer admits
	StatusExhausted          Status = 6  // over a budget or a protocol limit
	StatusProtocolError      Status = 7  // the frame breaks the protocol
	StatusInternalError      Status = 8  // the source failed for a reason of its own
	StatusReady              Status = 9  // send the payload now
	StatusBackendUnavailable Status = 10 // the source has no such transport
	StatusNativeError        Status = 11 // the source's native backend failed
	StatusCacheMiss          Status = 12 // explicit RDMA cache miss, before any authority
)

var statusNames = [...]string{
	"success", "epoch mismatch", "unknown region", "permission denied", "invalid range", "source closed",
	"exhausted", "protocol error", "internal error", "ready", "backend unavailable",
	"remote native backend error", "RDMA cache miss",
}

// Known reports whether version 19 defines the status.
func (s Status) Known() bool { return int(s) < len(statusNames) }

// String names the status as in W-5.
func (s Status) String() string {
	if !s.Known() {
		return fmt.Sprintf("unknown status %d", uint8(s))
	}
	return statusNames[s]
}

// mayCarryPayload reports whether a reply with this status may announce payload bytes. Refusals never
// do.
func (s Status) mayCarryPayload() bool { return s == StatusSuccess || s == StatusReady }
