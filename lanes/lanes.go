package lanes

import (
	"fmt"

	"github.com/orbitte/orbitte/netproto"
)

// Direction says which way payload moves, as seen from the requester (SPEC, words).
type Direction uint8

const (
	// Read moves source → requester.
	Read Direction = iota + 1
	// Write moves requester → source.
	Write
)

func (d Direction) String() string {
	switch d {
	case Read:
		return "READ"
	case Write:
		return "WRITE"
	}
	return fmt.Sprintf("direction %d", uint8(d))
}

// Effect says what happened to a range that a transfer may change.
type Effect uint8

const (
	// EffectNone: not one byte was changed.
	EffectNone Effect = iota
	// EffectComplete: every byte is in place.
	EffectComplete
	// EffectPartial: some bytes may have been changed (direct placement, SPEC T-2; a range in device memory).
	EffectPartial
	// EffectUnknown: changed or not, and this side cannot tell (SPEC T-10). A source that commits whole
	// payloads has changed all bytes or none, one with direct placement perhaps some of them.
	EffectUnknown
)

func (e Effect) String() string {
	switch e {
	case EffectNone:
		return "none"
	case EffectComplete:
		return "complete"
	case EffectPartial:
		return "partial"
	case EffectUnknown:
		return "unknown"
	}
	return fmt.Sprintf("effect %d", uint8(e))
}

// Outcome is the end of one transfer. Err is nil exactly when the transfer succeeded; then Bytes
// equals the length asked for. Drained is true exactly when no system can touch the caller's
// memory any more on behalf of this transfer (SPEC G-8, G-9).
type Outcome struct {
	Bytes   uint64
	Local   Effect // on the local range: READ
	Remote  Effect // on the remote range: WRITE, or a notification's delivery
	Err     error
	Drained bool
}

// Cause sorts failures by what is known, so that a caller can decide by it.
type Cause uint8

const (
	// Refused: the source answered with a status other than success.
	Refused Cause = iota + 1
	// Unreachable: no connection could be made; nothing was posted.
	Unreachable
	// Disconnected: the stream ended in the middle.
	Disconnected
	// Deadline: the requester's deadline passed.
	Deadline
	// Cancelled: the requester ended it.
	Cancelled
	// Violated: the peer broke the protocol.
	Violated
	// Conflicted: another access holds a lease on a conflicting range.
	Conflicted
	// Exhausted: a local budget refused it; nothing was posted.
	Exhausted
	// Closed: the local engine or segment is closing; nothing was posted.
	Closed
	// DeviceFailed: a copy from or to a device's memory failed, or the device takes no more work.
	DeviceFailed
)

var causeNames = [...]string{
	Refused: "refused by the source", Unreachable: "source unreachable", Disconnected: "connection lost",
	Deadline: "deadline passed", Cancelled: "cancelled", Violated: "protocol violated by the peer",
	Conflicted: "range is leased to a conflicting access", Exhausted: "budget exhausted", Closed: "closed",
	DeviceFailed: "copy of device memory failed",
}

func (c Cause) String() string {
	if int(c) < len(causeNames) && c != 0 {
		return causeNames[c]
	}
	return fmt.Sprintf("cause %d", uint8(c))
}

// Fault is why a transfer or another exchange failed. It is made on the failing path only.
type Fault struct {
	Cause  Cause
	Stage  string          // what was being done: "connect", "request", "reply", "payload", …
	Status netproto.Status // what the source answered, when Cause is Refused
	Actual netproto.Epoch  // the epoch the source really has, when it answered
	// Expected is the epoch that the request named; zero when it named none.
	Expected netproto.Epoch
	Err      error // the underlying error, if there is one
}

func (f *Fault) Error() string {
	text := f.Cause.String()
	if f.Cause == Refused {
		text += " (" + f.Status.String() + ")"
		if f.Status == netproto.StatusEpochMismatch {
			text += ": expected epoch " + f.Expected.String() + ", the peer's is " + f.Actual.String()
		}
	}
	if f.Stage != "" {
		text += " during " + f.Stage
	}
	if f.Err != nil {
		text += ": " + f.Err.Error()
	}
	return text
}

// Unwrap returns the underlying error.
func (f *Fault) Unwrap() error { return f.Err }
