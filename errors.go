package orbitte

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/delegate"
	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/verbs"
)

// Classes of errors, for errors.Is. Each error of this package is an *Error of one class; its text says
// what is known and what to do.
var (
	ErrInvalid       = errors.New("invalid argument")
	ErrClosed        = errors.New("closed")
	ErrExhausted     = budgets.ErrExhausted
	ErrUncovered     = errors.New("no registration covers the local range")
	ErrUnknownRegion = errors.New("no published region covers the remote range")
	ErrPermission    = errors.New("permission denied")
	ErrConflict      = errors.New("range is in use by a conflicting access")
	ErrUnavailable   = errors.New("path unavailable")
	ErrStaleEpoch    = errors.New("the peer is not the process that the segment was opened for")
	ErrUnreachable   = errors.New("peer unreachable")
	ErrDisconnected  = errors.New("connection lost")
	ErrDeadline      = errors.New("deadline passed")
	ErrCancelled     = errors.New("cancelled")
	ErrProtocol      = errors.New("protocol violated by the peer")
	ErrPeer          = errors.New("the peer failed")
	ErrUnquiesced    = errors.New("not proven quiet")
	ErrSystem        = errors.New("the system refused")
	ErrDevice        = errors.New("the GPU failed")
)

// Error says what failed, where, what is known and what to do.
type Error struct {
	// Op is the call, such as "SubmitAndWait"; Index the request or range in its batch, -1 if it is not about
	// one.
	Op    string
	Index int
	// Endpoint of the peer, if one was involved.
	Endpoint string
	// Class is one of the Err variables.
	Class error
	// Cause is the underlying error: a *lanes.Fault, *budgets.Exhausted, a syscall.Errno, …; may be nil.
	Cause error

	situation situation // of the call, where it decides what is known
	unknown   bool      // true exactly when a WRITE's effect on the remote range is unknown
}

// Known says what is certain in spite of the error.
func (e *Error) Known() string { return e.advice().known }

// Remedy says what to do.
func (e *Error) Remedy() string {
	if e.unknown {
		return e.advice().remedy + unknownRemedy
	}
	return e.advice().remedy
}

func (e *Error) Error() string {
	var text strings.Builder
	text.WriteString("orbitte: ")
	if e.Op != "" {
		text.WriteString(e.Op + ": ")
	}
	if e.Index >= 0 {
		text.WriteString(e.item() + " " + strconv.Itoa(e.Index) + ": ")
	}
	if e.Endpoint != "" {
		text.WriteString("peer " + e.Endpoint + ": ")
	}
	text.WriteString(e.fact())
	text.WriteString(" (known: " + e.Known() + "; remedy: " + e.Remedy() + ")")
	return text.String()
}

// fact is class and cause; a cause that begins with the class's words says them once.
func (e *Error) fact() string {
	class := e.Class.Error()
	if e.Cause == nil {
		return class
	}
	if own, ok := e.Cause.(*budgets.Exhausted); ok { // its own text has a remedy too
		return class + ": " + amounts(own)
	}
	if own, ok := e.Cause.(*copiesError); ok {
		return fmt.Sprintf("%s: %s; %d range(s) on %d device(s), each twice there if peers may use it", class, amounts(own.Exhausted), own.ranges, own.devices)
	}
	cause := e.Cause.Error()
	if strings.HasPrefix(cause, class) {
		return cause
	}
	return class + ": " + cause
}

func amounts(x *budgets.Exhausted) string {
	return fmt.Sprintf("%s: asked %d, in use %d, limit %d %s", x.Budget, x.Asked, x.Used, x.Limit, x.Unit)
}

// item is what Index counts.
func (e *Error) item() string {
	if strings.HasPrefix(e.Op, "Register") {
		return "range"
	}
	return "request"
}

// Unwrap gives class and cause to errors.Is and errors.As.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Class}
	}
	return []error{e.Class, e.Cause}
}

// Is makes deadline and cancellation match the context package's errors too.
func (e *Error) Is(target error) bool {
	return target == context.DeadlineExceeded && e.Class == ErrDeadline || target == context.Canceled && e.Class == ErrCancelled
}

// lack is what a path or engine misses, with what helps: the class's own words cannot know.
type lack struct {
	err    error
	remedy string
}

func lacking(what, remedy string) *lack { return &lack{errors.New(what), remedy} }

func (l *lack) Error() string { return l.err.Error() }

// Unwrap returns what is missed.
func (l *lack) Unwrap() error { return l.err }

// classOf sorts an error of the rooms below.
func classOf(err error) error {
	var own *Error
	var fault *lanes.Fault
	var path *rdma.NoPath
	var left *rdma.RollbackError
	var miss *rdma.MissError
	var direct *rdma.DirectError
	switch {
	case errors.As(err, &own):
		return own.Class
	case errors.As(err, &path):
		return ErrUnavailable
	case errors.As(err, &miss): // of places for queue pairs, at the source
		return ErrExhausted
	case errors.As(err, &left):
		return ErrUnquiesced
	case errors.As(err, &direct):
		return ErrUnavailable
	case errors.Is(err, delegate.ErrTakenBack):
		return ErrPeer
	case errors.Is(err, delegate.ErrOccupied):
		return ErrDeadline
	case errors.As(err, &fault):
		return classOfFault(fault)
	case classOfCUDA(err) != nil:
		return classOfCUDA(err)
	case errors.Is(err, budgets.ErrExhausted), errors.Is(err, segments.ErrRegionLimit), errors.Is(err, segments.ErrLeaseLimit),
		errors.Is(err, verbs.ErrMemlock), errors.Is(err, verbs.ErrKeys), errors.Is(err, verbs.ErrCredit):
		return ErrExhausted
	case errors.Is(err, segments.ErrConflict):
		return ErrConflict
	case errors.Is(err, segments.ErrUncovered):
		return ErrUncovered
	case errors.Is(err, segments.ErrPermission):
		return ErrPermission
	case errors.Is(err, segments.ErrRange), errors.Is(err, segments.ErrForeignAlias):
		return ErrInvalid
	case errors.Is(err, segments.ErrUnknownRegion):
		return ErrInvalid
	case errors.Is(err, context.DeadlineExceeded):
		return ErrDeadline
	case errors.Is(err, context.Canceled):
		return ErrCancelled
	}
	return ErrSystem
}

func classOfFault(f *lanes.Fault) error {
	switch f.Cause {
	case lanes.Refused:
		return classOfStatus(f.Status)
	case lanes.Unreachable:
		return ErrUnreachable
	case lanes.Disconnected:
		return ErrDisconnected
	case lanes.Deadline:
		return ErrDeadline
	case lanes.Cancelled:
		return ErrCancelled
	case lanes.Violated:
		return ErrProtocol
	case lanes.Conflicted:
		return ErrConflict
	case lanes.Exhausted:
		return ErrExhausted
	case lanes.Closed:
		return ErrClosed
	case lanes.DeviceFailed:
		return ErrDevice
	}
	return ErrSystem
}

func classOfStatus(s netproto.Status) error {
	switch s {
	case netproto.StatusEpochMismatch:
		return ErrStaleEpoch
	case netproto.StatusUnknownRegion, netproto.StatusInvalidRange:
		return ErrUnknownRegion
	case netproto.StatusPermissionDenied:
		return ErrPermission
	case netproto.StatusSourceClosed:
		return ErrClosed
	case netproto.StatusExhausted:
		return ErrExhausted
	case netproto.StatusBackendUnavailable:
		return ErrUnavailable
	case netproto.StatusProtocolError:
		return ErrProtocol
	}
	return ErrPeer
}

// failure wraps an error of the rooms below into an *Error about a call.
func failure(op string, err error) error {
	if err == nil {
		return nil
	}
	var own *Error
	if errors.As(err, &own) {
		if own.Op == "" {
			own.Op = op
		}
		return own
	}
	return &Error{Op: op, Index: -1, Class: classOf(err), Cause: err}
}

// in is an error of the rooms below, or of a context, that came up in a situation.
func in(s situation, err error) error {
	if err == nil {
		return nil
	}
	own, ok := err.(*Error)
	if !ok {
		own = &Error{Index: -1, Class: classOf(err), Cause: err}
	}
	own.situation = s
	return own
}
