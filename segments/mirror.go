package segments

import (
	"slices"
	"sync/atomic"

	"github.com/orbitte/orbitte/netproto"
)

// Mirror is what was visible at one moment: an immutable snapshot that any goroutine reads without a
// lock. A registration found in it may have been retired since; Lend tells. Visible ranges of different memory
// objects share no byte (SPEC M-3).
type Mirror struct {
	addresses table                             // in the order of SPEC M-7
	ids       table                             // in the order of IDs
	exported  atomic.Pointer[[]netproto.Region] // made when first asked for
}

// Cover returns the first registration, by address ascending, then length descending, that covers the
// whole range (SPEC M-7). It compares addresses and touches no memory. The error is a *RangeError when
// the range overflows, an *Uncovered otherwise. O(log n), no allocation unless it fails.
func (m *Mirror) Cover(address, length uint64) (*Registration, error) {
	asked := Range{address, length}
	if !asked.Valid() {
		return nil, overflow(asked)
	}
	// The first one that reaches the end: if it starts too late, so do all later ones, and none before reaches.
	if r := m.addresses.reaching(asked.End()); r != nil && r.Address() <= address {
		return r, nil
	}
	return nil, &Uncovered{Owner: "this engine", Asked: asked}
}

// Find returns the visible registration with this ID, or nil. O(log n), no allocation.
func (m *Mirror) Find(id uint64) *Registration {
	if r := m.ids.reaching(id); r != nil && r.ID() == id {
		return r
	}
	return nil
}

// Count is the number of visible registrations, the local-only ones included.
func (m *Mirror) Count() int { return m.ids.count }

// All lists every visible registration in ID order. The slice is the caller's.
func (m *Mirror) All() []*Registration { return m.ids.all() }

// Regions lists what peers may see, in ID order: every registration but the local-only ones (SPEC M-8). The
// slice is shared: read only.
func (m *Mirror) Regions() []netproto.Region {
	if made := m.exported.Load(); made != nil {
		return *made
	}
	regions := make([]netproto.Region, 0, m.Count())
	m.ids.from(0, 0, func(r *Registration) bool {
		if r.Permission() != netproto.LocalOnly {
			regions = append(regions, r.region)
		}
		return true
	})
	m.exported.Store(&regions) // two first readers make the same list
	return regions
}

// exact returns the registration of exactly this range, or nil. There is at most one.
func (m *Mirror) exact(extent Range) (found *Registration) {
	blocks, members := m.addresses.position(func(r *Registration) bool { return before(r.Range(), extent) < 0 })
	m.addresses.from(blocks, members, func(r *Registration) bool {
		if r.Range() == extent {
			found = r
		}
		return false
	})
	return found
}

// alias returns a registration of another memory object that shares a byte with extent, or nil. All that
// cover the first byte belong to one object, so one of them answers for all; the others that share a byte
// start behind it. O(log n), and one step for each range of b that starts inside.
func (m *Mirror) alias(extent Range, b *Backing) (other *Registration) {
	if r := m.addresses.reaching(extent.Start + 1); r != nil && r.Address() <= extent.Start && r.backing != b {
		return r
	}
	blocks, members := m.addresses.position(func(r *Registration) bool { return r.Address() <= extent.Start })
	m.addresses.from(blocks, members, func(r *Registration) bool {
		if r.Address() < extent.End() && r.backing != b {
			other = r
		}
		return r.Address() < extent.End() && other == nil
	})
	return other
}

// with returns a snapshot that also shows fresh, whose IDs rise and are above all others.
func (m *Mirror) with(fresh []*Registration) *Mirror {
	return &Mirror{
		addresses: m.addresses.with(&byAddress, slices.SortedFunc(slices.Values(fresh), byAddress.compare)),
		ids:       m.ids.with(&byID, slices.Clone(fresh)),
	}
}

// without returns a snapshot that no longer shows gone.
func (m *Mirror) without(gone *Registration) *Mirror {
	return &Mirror{addresses: m.addresses.without(&byAddress, gone), ids: m.ids.without(&byID, gone)}
}

// overflow describes an address range that wraps.
func overflow(asked Range) error {
	return &RangeError{Object: wholeSpace, ID: asked.Start, Offset: 0, Length: asked.Length}
}
