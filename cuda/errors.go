package cuda

import (
	"errors"
	"fmt"
	"strings"
)

// Result is CUresult, with the driver's numbers.
type Result uint32

const (
	Success            Result = 0
	InvalidValue       Result = 1
	OutOfMemory        Result = 2
	NotInitialized     Result = 3
	Deinitialized      Result = 4 // the process is on its way out
	NoDevice           Result = 100
	InvalidDevice      Result = 101
	InvalidContext     Result = 201
	ECCUncorrectable   Result = 214
	InvalidHandle      Result = 400
	NotFound           Result = 500
	NotReady           Result = 600
	IllegalAddress     Result = 700
	ContextDestroyed   Result = 709
	LaunchFailed       Result = 719
	NotPermitted       Result = 800
	NotSupported       Result = 801
	SystemNotReady     Result = 802
	DriverMismatch     Result = 803
	CompatNotSupported Result = 804
	Unknown            Result = 999 // CUDA_ERROR_UNKNOWN
)

// Effect says what a failed call may have done.
type Effect uint8

const (
	None  Effect = iota // nothing has happened
	Maybe               // it may have happened, in part or whole
	Done                // it has happened; something behind it failed
)

var effectNames = [...]string{"nothing has happened", "it may have happened", "it has happened"}

func (e Effect) String() string { return effectNames[e] }

// CallError is a driver call that failed.
type CallError struct {
	Call   string // the C name, such as "cuMemAlloc_v2"
	Object string // what it was about, such as "GPU 0"
	Result Result
	Name   string // the driver's name of the result, such as "CUDA_ERROR_OUT_OF_MEMORY"
	Effect Effect
}

func (e *CallError) Error() string {
	return fmt.Sprintf("cuda: %s of %s: %s (%d); %v", e.Call, e.Object, e.Name, uint32(e.Result), e.Effect)
}

// Is matches another *CallError of the same result, so that errors.Is(err, &CallError{Result: OutOfMemory}) works.
func (e *CallError) Is(target error) bool {
	other, ok := target.(*CallError)
	return ok && other.Call == "" && other.Result == e.Result
}

// What errors.Is matches. Each has one type that carries the facts.
var (
	ErrOldDriver  = errors.New("the CUDA driver is too old")                  // *DriverError
	ErrNoDevice   = errors.New("no such GPU")                                 // *DriverError, *DeviceError
	ErrProhibited = errors.New("compute mode prohibits contexts on the GPU")  // *DeviceError
	ErrNotUnified = errors.New("the GPU has no unified address space")        // *DeviceError
	ErrAdoption   = errors.New("device memory refused")                       // *AdoptionError, with one of the next six
	ErrUnknown    = errors.New("the driver does not know the address")        // *AdoptionError
	ErrHostMemory = errors.New("it is host memory")                           // *AdoptionError
	ErrManaged    = errors.New("it is managed memory")                        // *AdoptionError
	ErrForeign    = errors.New("it belongs to another context")               // *AdoptionError
	ErrOrdinal    = errors.New("it is on another GPU")                        // *AdoptionError
	ErrExtent     = errors.New("the range is not inside one allocation")      // *AdoptionError
	ErrStale      = errors.New("the memory was freed by somebody else")       // *StaleError
	ErrRange      = errors.New("the copy leaves its memory objects")          // *RangeError
	ErrBusy       = errors.New("CUDA object still in use")                    // *BusyError
	ErrFenced     = errors.New("memory object takes no copies at the moment") // *FencedError
	ErrCopy       = errors.New("copy failed")                                 // *CopyError
	ErrUnquiesced = errors.New("copies not proven ended")                     // *UnquiescedError
	ErrRetained   = errors.New("CUDA object retained")                        // *RetainedError, *UnquiescedError
)

// DriverError says that a driver was loaded and cannot be used.
type DriverError struct {
	Library Library
	Cause   error // ErrOldDriver, ErrNoDevice
}

func (e *DriverError) Error() string {
	remedy := "check nvidia-smi, /dev/nvidia* and CUDA_VISIBLE_DEVICES, or leave CUDA out of the configuration"
	if e.Cause == ErrOldDriver {
		remedy = fmt.Sprintf("install one for CUDA %d.%d or later", DriverVersionMin/1000, DriverVersionMin%1000/10)
	}
	return fmt.Sprintf("cuda: %s %d.%d (%s): %v; %s", e.Library.Name, e.Library.Version/1000, e.Library.Version%1000/10, e.Library.Path, e.Cause, remedy)
}

// Unwrap gives the cause.
func (e *DriverError) Unwrap() error { return e.Cause }

// DeviceError refuses one GPU. No context was made.
type DeviceError struct {
	Ordinal int
	Name    string // empty: there is none
	Devices int    // how many the process sees
	Cause   error  // ErrNoDevice, ErrProhibited, ErrNotUnified
}

func (e *DeviceError) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("cuda: GPU %d: %v; the process sees %d, from 0; CUDA_VISIBLE_DEVICES chooses which", e.Ordinal, e.Cause, e.Devices)
	}
	remedy := "use another GPU"
	if e.Cause == ErrProhibited {
		remedy = "nvidia-smi -c DEFAULT allows them"
	}
	return fmt.Sprintf("cuda: GPU %d (%s): %v; %s", e.Ordinal, e.Name, e.Cause, remedy)
}

// Unwrap gives the cause.
func (e *DeviceError) Unwrap() error { return e.Cause }

// AdoptionError refuses to adopt a range of addresses. Nothing was kept, and no context was left behind.
type AdoptionError struct {
	Ordinal int // that was asked for; AnyOrdinal: none
	Pointer Pointer
	Bytes   uint64
	Info    PointerInfo // what the driver says
	Cause   error       // one of the six, or the driver's refusal
}

func (e *AdoptionError) Error() string {
	return fmt.Sprintf("cuda: adoption of %d bytes at %#x for GPU %d: %v (type %d, managed %t, GPU %d, allocation of %d bytes at %#x); nothing was adopted; pass device memory from cuMemAlloc in the GPU's primary context, from cuMemMap or from a pool",
		e.Bytes, uint64(e.Pointer), e.Ordinal, e.Cause, e.Info.Type, e.Info.Managed, e.Info.Ordinal, e.Info.Bytes, uint64(e.Info.Start))
}

// Is matches ErrAdoption.
func (e *AdoptionError) Is(target error) bool { return target == ErrAdoption }

// Unwrap gives the cause.
func (e *AdoptionError) Unwrap() error { return e.Cause }

// StaleError says that the allocation behind a memory object is no longer the one that was adopted: its owner freed it,
// and the address may belong to others. The object takes no more copies and frees nothing.
type StaleError struct {
	Object string
	Was    uint64 // buffer id at adoption
	Is     uint64 // buffer id now; 0: the address is free
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("cuda: %s: %v (buffer %d, now %d); nothing was copied; keep memory allocated while it is adopted", e.Object, ErrStale, e.Was, e.Is)
}

// Unwrap gives ErrStale.
func (e *StaleError) Unwrap() error { return ErrStale }

// RangeError refuses a copy. Nothing was started.
type RangeError struct {
	Object string
	Copy   Copy
}

func (e *RangeError) Error() string {
	return fmt.Sprintf("cuda: %s: copy of %d bytes from %#x to %#x: %v; nothing was started", e.Object, e.Copy.Bytes, uint64(e.Copy.From), uint64(e.Copy.To), ErrRange)
}

// Unwrap gives ErrRange.
func (e *RangeError) Unwrap() error { return ErrRange }

// Debt is one kind of thing that an object still owes or holds, and how many.
type Debt struct {
	What  string
	Count int64
}

// BusyError refuses to end an object that still owes something, or to start what has no place. Nothing was changed.
type BusyError struct {
	Object string
	Owes   []Debt
	Kept   bool // something of it is retained, so that waiting may not help
}

func (e *BusyError) Error() string {
	var owes []string
	for _, d := range e.Owes {
		owes = append(owes, fmt.Sprintf("%d %s", d.Count, d.What))
	}
	remedy := "end those first, then ask again"
	if e.Kept {
		remedy = "part of it is retained; see RetainedResources"
	}
	return fmt.Sprintf("cuda: %s still has %s; nothing was changed; %s", e.Object, strings.Join(owes, ", "), remedy)
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

// FencedError refuses a copy. Nothing was started.
type FencedError struct {
	Object string
	Why    string
}

func (e *FencedError) Error() string {
	return fmt.Sprintf("cuda: %s takes no copies: %s; nothing was started", e.Object, e.Why)
}

// Is matches ErrFenced.
func (e *FencedError) Is(target error) bool { return target == ErrFenced }

// CopyError says that copies failed, or that their end cannot be learned.
type CopyError struct {
	Object string
	Asked  int
	Taken  int // copies that the driver took
	// Undrained is true exactly when some of it may be under way: Pending.Drain has to prove the end. Otherwise nothing
	// was started.
	Undrained bool
	Err       error
}

func (e *CopyError) Error() string {
	tail := "nothing was started"
	if e.Undrained {
		tail = "some may be under way; drain before the memory is used or freed"
	}
	return fmt.Sprintf("cuda: %s: %d of %d copies were taken, then: %v; %s", e.Object, e.Taken, e.Asked, e.Err, tail)
}

// Is matches ErrCopy.
func (e *CopyError) Is(target error) bool { return target == ErrCopy }

// Unwrap gives the native error.
func (e *CopyError) Unwrap() error { return e.Err }

// UnquiescedError says that copies may go on for ever as far as anybody can prove: the stream, its event, the memory and
// the pinned staging of the copies are retained (SPEC C-3, G-9).
type UnquiescedError struct {
	Object string
	Call   string // what was to prove it
	Err    error
}

func (e *UnquiescedError) Error() string {
	return fmt.Sprintf("cuda: %s: %v: %s failed (%v); it stays, with all that its copies touch, until the process ends; see RetainedResources",
		e.Object, ErrUnquiesced, e.Call, e.Err)
}

// Is matches ErrUnquiesced and ErrRetained.
func (e *UnquiescedError) Is(target error) bool {
	return target == ErrUnquiesced || target == ErrRetained
}

// Unwrap gives the native error.
func (e *UnquiescedError) Unwrap() error { return e.Err }

// RetainedError says that the end of an object was refused by the driver. It stays for the life of the process, its
// context too, and the call is never made again.
type RetainedError struct {
	Object string
	Call   string // what was refused
	Err    error  // why
}

func (e *RetainedError) Error() string {
	return fmt.Sprintf("cuda: %s is retained: %s (%v), which is not repeated; it stays charged until the process ends; see RetainedResources",
		e.Object, e.Call, e.Err)
}

// Is matches ErrRetained.
func (e *RetainedError) Is(target error) bool { return target == ErrRetained }

// Unwrap gives the native error.
func (e *RetainedError) Unwrap() error { return e.Err }
