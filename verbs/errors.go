package verbs

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// What errors.Is matches. Each has one type that carries the facts.
var (
	ErrRetained  = errors.New("native object retained")        // *RetainedError
	ErrBusy      = errors.New("native object still in use")    // *BusyError
	ErrFenced    = errors.New("native object fenced")          // *FencedError
	ErrCredit    = errors.New("no queue credit")               // *CreditError
	ErrPost      = errors.New("posting failed")                // *PostError
	ErrKeys      = errors.New("no fresh window key")           // *KeyError
	ErrRoute     = errors.New("no usable address")             // *RouteError
	ErrSelection = errors.New("no such device")                // *SelectionError
	ErrViolated  = errors.New("the device broke its contract") // *ViolationError
	ErrNoWindows = errors.New("no memory windows of type 2B")  // *NoWindowsError
)

// NoWindowsError says that a device cannot be a source: without windows of type 2B it can make no grant, and a remotely
// enabled region is no substitute (SPEC R-11). It can carry the requests of its own side.
type NoWindowsError struct{ Device string }

func (e *NoWindowsError) Error() string {
	return fmt.Sprintf("RDMA device %q has no memory windows of type 2B (IBV_DEVICE_MEM_WINDOW_TYPE_2B), without which no grant can be made: "+
		"it carries this engine's own requests only, and no peer is told of it; serve from another device", e.Device)
}

// Is matches ErrNoWindows.
func (e *NoWindowsError) Is(target error) bool { return target == ErrNoWindows }

// CallError is a native call that failed.
type CallError struct {
	Call   string // the C name, such as "ibv_create_qp"
	Object string // what it was about, such as "rxe0 port 1"
	Errno  syscall.Errno
}

func (e *CallError) Error() string {
	return fmt.Sprintf("verbs: %s of %s: %v (errno %d)", e.Call, e.Object, e.Errno, int(e.Errno))
}

// Unwrap makes errors.Is(err, syscall.ENOMEM) and the like work.
func (e *CallError) Unwrap() error { return e.Errno }

// RetainedError says that the end of an object was asked for and refused by the native library. The object, its
// memory and its charges stay for the life of the process: nobody can prove that the device is done with them, and
// the call is never made again (SPEC R-18).
type RetainedError struct {
	Object string
	Call   string // what was refused
	Err    error  // why
}

func (e *RetainedError) Error() string {
	return fmt.Sprintf("%s is retained: %s was refused (%v) and is not repeated; it stays charged until the process ends; see RetainedResources",
		e.Object, e.Call, e.Err)
}

// Is matches ErrRetained.
func (e *RetainedError) Is(target error) bool { return target == ErrRetained }

// Unwrap gives the native error.
func (e *RetainedError) Unwrap() error { return e.Err }

// Debt is one kind of thing that an object still owes or holds, and how many.
type Debt struct {
	What  string
	Count int64
}

// BusyError refuses to end, or to move on, an object that still owes something. Nothing was changed.
type BusyError struct {
	Object string
	Owes   []Debt
	// Kept is true exactly when everything that it owes is retained itself, so that waiting cannot help.
	Kept bool
}

func (e *BusyError) Error() string {
	var owes []string
	for _, d := range e.Owes {
		owes = append(owes, fmt.Sprintf("%d %s", d.Count, d.What))
	}
	remedy := "end those first, then ask again"
	if e.Kept {
		remedy = "those are retained, so this stays as well"
	}
	return fmt.Sprintf("%s still has %s; nothing was changed; %s", e.Object, strings.Join(owes, ", "), remedy)
}

// Is matches ErrBusy.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// busy builds the refusal from those debts that are not zero; nil: nothing is owed.
func busy(object string, kept bool, debts ...Debt) *BusyError {
	e := &BusyError{Object: object, Kept: kept}
	for _, d := range debts {
		if d.Count != 0 {
			e.Owes = append(e.Owes, d)
		}
	}
	if len(e.Owes) == 0 {
		return nil
	}
	return e
}

// FencedError refuses new work on an object that is fenced or paused. Nothing was posted or made.
type FencedError struct {
	Object string
	State  string // "fenced", "paused", "draining"
	Reason string // what fenced it
}

func (e *FencedError) Error() string {
	remedy := "drain and destroy it, then build another"
	if e.State == Paused.String() {
		remedy = "wait for its port to recover, or use another rail"
	}
	return fmt.Sprintf("%s is %s (%s); nothing was posted; %s", e.Object, e.State, e.Reason, remedy)
}

// Is matches ErrFenced.
func (e *FencedError) Is(target error) bool { return target == ErrFenced }

// CreditError says that work does not fit a queue. Nothing was posted or reserved.
type CreditError struct {
	Queue       string
	Asked, Used int
	Limit       int
}

func (e *CreditError) Error() string {
	remedy := "wait for completions"
	if e.Asked > e.Limit {
		remedy = "this can never fit: raise max_send_wr or max_cqes, or ask for less"
	}
	return fmt.Sprintf("%s: asked %d, in use %d, limit %d; nothing was begun; %s", e.Queue, e.Asked, e.Used, e.Limit, remedy)
}

// Is matches ErrCredit.
func (e *CreditError) Is(target error) bool { return target == ErrCredit }

// PostError says that the device did not take a whole list. What it took stays charged until its completion.
type PostError struct {
	Object string
	Posted int // accepted, or charged because it may have been; the rest is proven not to be with the device
	Asked  int
	// Unknown is true exactly when the library did not say what it took: all of it stays charged and the pair is fenced.
	Unknown bool
	Err     error
}

func (e *PostError) Error() string {
	if e.Unknown {
		return fmt.Sprintf("%s: posting %d work requests failed without saying which were taken (%v); all stay charged and the pair is fenced; drain it",
			e.Object, e.Asked, e.Err)
	}
	return fmt.Sprintf("%s: %d of %d work requests were taken, the others certainly not (%v)", e.Object, e.Posted, e.Asked, e.Err)
}

// Is matches ErrPost.
func (e *PostError) Is(target error) bool { return target == ErrPost }

// Unwrap gives the native error.
func (e *PostError) Unwrap() error { return e.Err }

// KeyError says that no window key is to be had that never gave authority before (SPEC R-12).
type KeyError struct {
	Object  string
	Indices int // historical indices of the domain
	Limit   int
	Why     string
}

func (e *KeyError) Error() string {
	return fmt.Sprintf("%s: %s (%d of %d key indices in its history); no grant was made; raise max_window_key_indices or reopen the engine",
		e.Object, e.Why, e.Indices, e.Limit)
}

// Is matches ErrKeys.
func (e *KeyError) Is(target error) bool { return target == ErrKeys }

// ViolationError says that a device or its library answered what the standard excludes.
type ViolationError struct {
	Object string
	What   string
}

func (e *ViolationError) Error() string {
	return fmt.Sprintf("%s: %s; what it concerns is kept and fenced; report it to the maker of the driver", e.Object, e.What)
}

// Is matches ErrViolated.
func (e *ViolationError) Is(target error) bool { return target == ErrViolated }
