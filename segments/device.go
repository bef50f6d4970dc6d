package segments

import (
	"math"
	"syscall"
)

// AdoptDevice takes over length bytes at an address that only a device can read: the object has an address, a
// length and a lease table like any other, and no bytes (Bytes and Lease.Bytes are nil), so that no copy by the
// CPU can be written by mistake (SPEC M-2, C-2). owner is kept alive until the object ends; ended, if not nil, is
// then called once on the goroutine that dropped last, and must not reach the Backing. The error is a *MemoryError
// for no address, no bytes, or a range that wraps.
func AdoptDevice(address, length uint64, owner any, ended func()) (*Backing, error) {
	if address == 0 || length == 0 || length > math.MaxInt || !(Range{address, length}).Valid() {
		return nil, &MemoryError{Call: "adopt device memory", Address: address, Length: length, Err: syscall.EINVAL}
	}
	return settle(nil, &resident{kind: Device, address: address, length: length, owner: owner, ended: ended}), nil
}

// Owner is what AdoptDevice, AdoptHost or AdoptPointer was given; use it as a holder. Nil for other memory objects.
func (b *Backing) Owner() any { return b.resident.owner }
