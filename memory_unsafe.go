package orbitte

import (
	"unsafe"

	"github.com/orbitte/orbitte/segments"
)

// AdoptPointer takes over length bytes at p that are stable, readable and writable until the memory has
// ended; owner is kept alive as long. It neither pins pages nor makes a device pointer host-readable
// (SPEC M-2). Unsafe: nothing can check that the memory is there. Errors: ErrInvalid.
func AdoptPointer(p unsafe.Pointer, length uintptr, owner any) (*Memory, error) {
	backing, err := segments.AdoptPointer(p, uint64(length), owner)
	if err != nil {
		return nil, &Error{Op: "AdoptPointer", Index: -1, Class: ErrInvalid, Cause: err}
	}
	return memoryOf(backing), nil
}
