package segments

import (
	"errors"
	"fmt"

	"github.com/orbitte/orbitte/netproto"
)

// What errors.Is matches. Each has one type that carries the facts.
var (
	ErrMemory        = errors.New("memory object refused")              // *MemoryError
	ErrRange         = errors.New("invalid range")                      // *RangeError
	ErrConflict      = errors.New("conflicting access")                 // *Conflict
	ErrLeaseLimit    = errors.New("too many leases")                    // *LeaseLimit
	ErrUncovered     = errors.New("no region covers the range")         // *Uncovered
	ErrUnknownRegion = errors.New("unknown region")                     // *UnknownRegion
	ErrPermission    = errors.New("permission denied")                  // *PermissionError
	ErrForeignAlias  = errors.New("overlap with another memory object") // *ForeignAlias
	ErrRegionLimit   = errors.New("too many regions")                   // *RegionLimit
)

// MemoryError says that a memory object was not made, not taken over, not prefaulted, or (in a Resident)
// not released.
type MemoryError struct {
	Call            string // "mmap", "munmap", "madvise", "adopt slice", "adopt pointer", "adopt device memory", "adopt host memory"
	Address, Length uint64
	Err             error // the system's error; EINVAL for our own refusals
}

func (e *MemoryError) Error() string {
	return fmt.Sprintf("%s of %d bytes at %#x: %v; nothing changed; check length and address, RLIMIT_AS, vm.max_map_count and free memory",
		e.Call, e.Length, e.Address, e.Err)
}

// Is matches ErrMemory.
func (e *MemoryError) Is(target error) bool { return target == ErrMemory }

// Unwrap gives the system's error.
func (e *MemoryError) Unwrap() error { return e.Err }

// RangeError says that offset and length leave an object of Limit bytes, are empty where bytes are needed, or
// overflow.
type RangeError struct {
	Object         string // "memory object", "region", "registration" or "address"
	ID             uint64 // the region's ID; for a memory object and an address, the address
	Offset, Length uint64
	Limit          uint64 // bytes of the object; 0 when the range overflows by itself
}

// wholeSpace is the object of a range that wraps.
const wholeSpace = "address"

func (e *RangeError) Error() string {
	if e.Object == wholeSpace {
		return fmt.Sprintf("a range of %d bytes from address %#x on goes beyond the end of the address space; nothing was touched; correct address or length", e.Length, e.ID)
	}
	return fmt.Sprintf("range [%d, +%d) is not within the %d bytes of %s %#x; nothing was touched; ask for a range inside",
		e.Offset, e.Length, e.Limit, e.Object, e.ID)
}

// Is matches ErrRange.
func (e *RangeError) Is(target error) bool { return target == ErrRange }

// Status is what a source answers.
func (e *RangeError) Status() netproto.Status { return netproto.StatusInvalidRange }

// Conflict says that a lease was refused because another one excludes it (SPEC M-9). Nothing was touched.
// With Simultaneous the other was a claim made at the same moment, whose range is not known; Held is zero then.
type Conflict struct {
	Address      uint64 // of the memory object
	Asked        Range  // relative to it
	Access       Access
	Held         Range // the lease or claim that excludes it
	HeldAccess   Access
	Simultaneous bool
}

func (e *Conflict) Error() string {
	other := fmt.Sprintf("%v access to %v", e.HeldAccess, e.Held)
	if e.Simultaneous {
		other = "a claim made at the same moment"
	}
	return fmt.Sprintf("%v access to %v of the memory object at %#x is excluded by %s; nothing was touched; try again when that has ended",
		e.Access, e.Asked, e.Address, other)
}

// Is matches ErrConflict.
func (e *Conflict) Is(target error) bool { return target == ErrConflict }

// LeaseLimit says that all places for leases of one memory object are taken.
type LeaseLimit struct {
	Address uint64 // of the memory object
	Limit   int    // leases of one object at a time
}

func (e *LeaseLimit) Error() string {
	return fmt.Sprintf("the memory object at %#x has all of its %d leases out; nothing was touched; try again when one has ended",
		e.Address, e.Limit)
}

// Is matches ErrLeaseLimit.
func (e *LeaseLimit) Is(target error) bool { return target == ErrLeaseLimit }

// Uncovered says that no single visible region covers an address range (SPEC M-7).
type Uncovered struct {
	Owner string // "this engine", or the peer's endpoint
	Asked Range
}

func (e *Uncovered) Error() string {
	return fmt.Sprintf("no single region of %s covers %v; nothing was touched; a request must lie in one registered region",
		e.Owner, e.Asked)
}

// Is matches ErrUncovered.
func (e *Uncovered) Is(target error) bool { return target == ErrUncovered }

// UnknownRegion says that an ID names no visible region: never given out, or unregistered. IDs are never
// reused, so it will not become known again (SPEC M-6).
type UnknownRegion struct {
	ID uint64
}

func (e *UnknownRegion) Error() string {
	return fmt.Sprintf("region %d is not registered (any more); nothing was touched; describe the segment again", e.ID)
}

// Is matches ErrUnknownRegion.
func (e *UnknownRegion) Is(target error) bool { return target == ErrUnknownRegion }

// Status is what a source answers.
func (e *UnknownRegion) Status() netproto.Status { return netproto.StatusUnknownRegion }

// PermissionError says that a region does not permit what was asked (SPEC M-8), or that a permission itself
// is not one.
type PermissionError struct {
	ID        uint64 // 0: a registration that was refused
	Has, Want netproto.Permission
}

func (e *PermissionError) Error() string {
	if e.ID == 0 {
		return fmt.Sprintf("%v is no permission; nothing was registered; use local-only, remote-read, remote-write or read-write", e.Want)
	}
	return fmt.Sprintf("region %d permits %v, asked was %v; nothing was touched; its owner decides at registration", e.ID, e.Has, e.Want)
}

// Is matches ErrPermission.
func (e *PermissionError) Is(target error) bool { return target == ErrPermission }

// Status is what a source answers.
func (e *PermissionError) Status() netproto.Status { return netproto.StatusPermissionDenied }

// ForeignAlias says that a range to be registered overlaps a registration of another memory object. One
// lease table could not decide about both (SPEC M-3).
type ForeignAlias struct {
	Asked   Range  // addresses
	Other   Range  // addresses
	OtherID uint64 // the registration in the way; 0: an element of the same batch
	Retired bool   // true exactly when it was unregistered but admitted work still holds it
}

func (e *ForeignAlias) Error() string {
	other, remedy := fmt.Sprintf("registration %d", e.OtherID), "register a subrange of its memory object"
	if e.OtherID == 0 {
		other = "an earlier element of the batch"
	}
	if e.Retired {
		remedy = "it is unregistered and ends with the work admitted before: try again then"
	}
	return fmt.Sprintf("range %v overlaps %v of %s, which has another memory object; nothing was registered; %s",
		e.Asked, e.Other, other, remedy)
}

// Is matches ErrForeignAlias.
func (e *ForeignAlias) Is(target error) bool { return target == ErrForeignAlias }

// RegionLimit says that a descriptor could not carry one more region.
type RegionLimit struct {
	Visible, Limit int
}

func (e *RegionLimit) Error() string {
	return fmt.Sprintf("%d regions are visible and a descriptor carries %d; nothing was registered; unregister some, or register larger ranges",
		e.Visible, e.Limit)
}

// Is matches ErrRegionLimit.
func (e *RegionLimit) Is(target error) bool { return target == ErrRegionLimit }

// ElementError says which element of a batch was refused and why. The whole batch had no effect (SPEC M-4).
type ElementError struct {
	Element int // index in the batch
	Err     error
}

func (e *ElementError) Error() string {
	return fmt.Sprintf("element %d of the batch: %v", e.Element, e.Err)
}

// Unwrap gives the reason.
func (e *ElementError) Unwrap() error { return e.Err }
