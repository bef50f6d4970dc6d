package segments

import (
	"slices"
	"sync/atomic"

	"github.com/orbitte/orbitte/netproto"
)

// Mirror is what was visible at one moment: an immutable snapshot that any goroutine reads without a
// lock. A registration found in it may have been retired since; Lend tells.
type Mirror struct {
	order     index
	byAddress []*Registration // in the order of SPEC M-7
	ids       []uint64        // rising
	byID      []*Registration
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
	i, ok := m.order.cover(asked)
	if !ok {
		return nil, &Uncovered{Owner: "this engine", Asked: asked}
	}
	return m.byAddress[i], nil
}

// Find returns the visible registration with this ID, or nil. O(log n), no allocation.
func (m *Mirror) Find(id uint64) *Registration {
	if i := search(m.ids, id); i < len(m.ids) && m.ids[i] == id {
		return m.byID[i]
	}
	return nil
}

// Count is the number of visible registrations, the local-only ones included.
func (m *Mirror) Count() int { return len(m.byID) }

// All lists every visible registration in ID order. The slice is shared: read only.
func (m *Mirror) All() []*Registration { return m.byID }

// Regions lists what peers may see, in ID order: every registration but the local-only ones (SPEC M-8). The
// slice is shared: read only.
func (m *Mirror) Regions() []netproto.Region {
	if made := m.exported.Load(); made != nil {
		return *made
	}
	regions := make([]netproto.Region, 0, len(m.byID))
	for _, r := range m.byID {
		if r.Permission() != netproto.LocalOnly {
			regions = append(regions, r.region)
		}
	}
	m.exported.Store(&regions) // two first readers make the same list
	return regions
}

// exact returns the registration of exactly this range, or nil. There is at most one.
func (m *Mirror) exact(extent Range) *Registration {
	i, ok := slices.BinarySearchFunc(m.byAddress, extent, func(r *Registration, want Range) int { return before(r.Range(), want) })
	if !ok {
		return nil
	}
	return m.byAddress[i]
}

// alias returns a registration of another memory object that shares a byte with extent, or nil. It walks
// down from the last one that starts early enough, and stops where nothing before reaches the range.
func (m *Mirror) alias(extent Range, b *Backing) *Registration {
	for i := m.order.startingBy(extent.End()-1) - 1; i >= 0 && m.order.maxima[i] > extent.Start; i-- {
		if r := m.byAddress[i]; r.backing != b && r.Range().Overlaps(extent) {
			return r
		}
	}
	return nil
}

// with returns a snapshot that also shows fresh, whose IDs are above all others.
func (m *Mirror) with(fresh []*Registration) *Mirror {
	added := slices.SortedFunc(slices.Values(fresh), inOrder)
	n := len(m.byID) + len(fresh)
	next := &Mirror{order: newIndex(n), byAddress: make([]*Registration, 0, n), ids: make([]uint64, 0, n), byID: make([]*Registration, 0, n)}
	old := m.byAddress
	for len(old) > 0 || len(added) > 0 {
		if len(added) == 0 || len(old) > 0 && inOrder(old[0], added[0]) < 0 {
			next.append(old[0])
			old = old[1:]
		} else {
			next.append(added[0])
			added = added[1:]
		}
	}
	next.ids, next.byID = append(next.ids, m.ids...), append(next.byID, m.byID...)
	for _, r := range fresh {
		next.ids, next.byID = append(next.ids, r.ID()), append(next.byID, r)
	}
	return next
}

// without returns a snapshot that no longer shows gone.
func (m *Mirror) without(gone *Registration) *Mirror {
	n := len(m.byID) - 1
	next := &Mirror{order: newIndex(n), byAddress: make([]*Registration, 0, n)}
	for _, r := range m.byAddress {
		if r != gone {
			next.append(r)
		}
	}
	i := search(m.ids, gone.ID())
	next.ids = slices.Concat(m.ids[:i], m.ids[i+1:])
	next.byID = slices.Concat(m.byID[:i], m.byID[i+1:])
	return next
}

// append adds the next registration in address order.
func (m *Mirror) append(r *Registration) {
	m.order.add(r.Range())
	m.byAddress = append(m.byAddress, r)
}

func inOrder(a, b *Registration) int { return before(a.Range(), b.Range()) }

// overflow describes an address range that wraps.
func overflow(asked Range) error {
	return &RangeError{Object: "address", ID: asked.Start, Offset: 0, Length: asked.Length}
}
