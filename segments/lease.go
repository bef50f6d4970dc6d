package segments

import "fmt"

// Access says what the holder of a lease may do, and so which leases may stand side by side.
type Access uint8

const (
	// Shared lets its holder read. Shared leases of the same bytes stand side by side.
	Shared Access = iota
	// Exclusive lets its holder read and write; no other lease of the same bytes stands beside it.
	Exclusive
)

// String names the access.
func (a Access) String() string {
	if a == Shared {
		return "shared"
	}
	return "exclusive"
}

// conflicts reports whether leases of the same bytes with these accesses exclude each other.
func (a Access) conflicts(other Access) bool { return a == Exclusive || other == Exclusive }

// Lease is the right to touch one exact range of a memory object. Exactly one holder owns it and ends it
// once with Return; it must not be copied. The object lives at least as long as the lease. The zero
// value is "no lease".
type Lease struct {
	backing *Backing // nil exactly when nothing is held
	chunk   *chunk
	claim   uint64 // the state word its slot has while this lease is held
	place   int
	extent  Range  // allocation-relative
	marks   *marks // what of the extent is claimed; nil: all of it
}

// Lend claims length bytes from offset, relative to the object, for reading (Shared) or for writing
// (Exclusive). It never waits. The error is a *Conflict when a lease that is out, or a claim made at the same
// moment, excludes it; a *RangeError when the range leaves the object; a *LeaseLimit when all places
// are taken. Of two simultaneous claims that exclude one another exactly one succeeds; where more
// meet, each may have been refused by another, so whoever is refused may try again. An empty range conflicts with nothing but is a lease like any other. No
// allocation, except when the table first grows past 64 leases and for an error.
func (b *Backing) Lend(offset, length uint64, a Access) (Lease, error) {
	if !Within(offset, length, b.Length()) {
		return Lease{}, &RangeError{Object: "memory object", ID: b.Address(), Offset: offset, Length: length, Limit: b.Length()}
	}
	if a > Exclusive {
		panic(fmt.Sprintf("segments: Lend with access %d, want Shared (0) or Exclusive (1)", a))
	}
	b.Hold()
	lease := Lease{backing: b, extent: Range{offset, length}}
	found, refusal := b.leases.claim(&lease, a)
	if refusal == granted {
		return lease, nil
	}
	b.Drop()
	return Lease{}, b.refuse(refusal, Range{offset, length}, a, found)
}

// refuse describes a refusal. It is kept apart so that Lend stays free of allocation.
func (b *Backing) refuse(why verdict, asked Range, a Access, found standing) error {
	if why == full {
		return &LeaseLimit{Address: b.Address(), Limit: leasesMax}
	}
	return &Conflict{Address: b.Address(), Asked: asked, Access: a, Held: found.extent, HeldAccess: found.access, Simultaneous: why == outrun}
}

// Return ends the lease and leaves the variable empty. The caller no longer touches the bytes, nor does anyone
// on its behalf. Returning an empty lease, or a copy of one that was returned, panics.
func (l *Lease) Return() {
	if l.backing == nil {
		panic("segments: Return of a lease that is empty, want held: never lent or returned before")
	}
	b := l.backing
	l.chunk.release(l.place, l.claim)
	*l = Lease{}
	b.Drop()
}

// Held reports whether the lease is still to be returned.
func (l *Lease) Held() bool { return l.backing != nil }

// Range is the leased range, relative to the memory object.
func (l *Lease) Range() Range { return l.extent }

// Bytes are the leased bytes. They may be touched until Return, as far as the access allows. Empty when
// the lease is, and nil for memory that only a device can read.
func (l *Lease) Bytes() []byte {
	if l.backing == nil || l.backing.bytes == nil {
		return nil
	}
	end := l.extent.End()
	return l.backing.bytes[l.extent.Start:end:end]
}

// String says range and object.
func (l *Lease) String() string {
	if l.backing == nil {
		return "no lease"
	}
	return fmt.Sprintf("lease of %v in %v", l.extent, l.backing)
}
