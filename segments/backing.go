package segments

import (
	"fmt"
	"runtime"
	"sync/atomic"
)

// Backing is one memory object: its bytes, its address, its kind, and one lease table that arbitrates
// all access to it, whatever registrations, aliases or engines share it (SPEC M-3, M-9).
//
// Map and the Adopt functions return it with one holder, the caller. Each holder ends with Drop; the last
// Drop ends the object on the dropping goroutine. Leases and registrations are holders of their own.
// All methods may be called from any goroutine that is, or borrows from, a holder.
type Backing struct {
	bytes    []byte // the object, off the movable heap; capacity equals length; nil for device memory
	resident *resident
	holders  atomic.Int64
	cleanup  runtime.Cleanup
	leases   leaseTable
}

// settle completes a new object: it enters the table and has one holder.
func settle(bytes []byte, r *resident) *Backing {
	b := &Backing{bytes: bytes, resident: r}
	b.holders.Store(1)
	r.enter()
	b.cleanup = runtime.AddCleanup(b, reportLost, r)
	return b
}

// Bytes is the object's memory. The slice is good while the caller is a holder; access that may meet a
// transfer needs a lease. For foreign memory it is only as readable as the memory itself: a device
// pointer stays unreadable (SPEC M-2). Memory from AdoptDevice has none: nil.
func (b *Backing) Bytes() []byte { return b.bytes }

// Address is the address of the first byte.
func (b *Backing) Address() uint64 { return b.resident.address }

// Length is the number of bytes, at least one.
func (b *Backing) Length() uint64 { return b.resident.length }

// Kind says how the object came to be.
func (b *Backing) Kind() Kind { return b.resident.kind }

// Range is the object's address range.
func (b *Backing) Range() Range { return Range{b.resident.address, b.resident.length} }

// Hold adds a holder. The caller is, or borrows from, a holder already; holding an ended object panics.
func (b *Backing) Hold() {
	if before := b.holders.Add(1) - 1; before < 1 {
		panic(fmt.Sprintf("segments: Hold of %v with %d holders, want at least 1: it has ended", b, before))
	}
}

// TryHold adds a holder unless the object has ended, and reports whether it did. It is for a caller that is
// no holder itself, such as a user's handle that may be closed at the same moment.
func (b *Backing) TryHold() bool {
	for {
		n := b.holders.Load()
		if n < 1 {
			return false
		}
		if b.holders.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Drop ends one holder. The last one ends the object: a mapping is unmapped, a slice unpinned, an owner let
// go and told. When the system refuses to unmap, the memory stays counted by Mappings and listed by Residents. A
// Drop too many panics.
func (b *Backing) Drop() {
	switch left := b.holders.Add(-1); {
	case left < 0:
		panic(fmt.Sprintf("segments: Drop of %v without a holder, want 1 or more: it has ended", b))
	case left == 0: // proof: leases and registrations are holders, so none is out
		b.cleanup.Stop()
		b.resident.end()
	}
}

// Holders counts the holders, leases and registrations included. It is a reading for reports.
func (b *Backing) Holders() int64 { return b.holders.Load() }

// Quiet reports whether no lease was out when it looked.
func (b *Backing) Quiet() bool { return b.leases.quiet() }

// String says kind, length and address.
func (b *Backing) String() string {
	return fmt.Sprintf("%v of %d bytes at %#x", b.Kind(), b.Length(), b.Address())
}

// end releases the memory according to its kind and leaves the table. What cannot be released stays.
func (r *resident) end() {
	switch r.kind {
	case Mapping:
		if err := r.region.unmap(); err != nil {
			var failure error = &MemoryError{Call: "munmap", Address: r.address, Length: r.length, Err: err}
			r.failure.Store(&failure)
			return
		}
	case Pin:
		r.pinner.Unpin()
	}
	ended := r.ended
	r.owner, r.region, r.ended = nil, mapping{}, nil
	r.leave()
	if ended != nil {
		ended()
	}
}
