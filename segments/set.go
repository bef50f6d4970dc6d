package segments

import (
	"cmp"
	"slices"
	"sync/atomic"
)

// Set is a list of ranges of one registration under one lease: pages of a pool, rows of a matrix. Other leases
// of bytes between the ranges stand beside it (SPEC M-9). The zero value is empty. It belongs to one user at a
// time, who may fill it again once no lease of it is out, and keeps its memory, so that the steady state
// allocates nothing.
type Set struct {
	registration *Registration
	extent       Range // from the first to the last byte, object-relative
	bytes        uint64
	marks        *marks
}

// Bytes is how many bytes the ranges have, each counted once: less than they have one by one exactly when they overlap.
func (s *Set) Bytes() uint64 { return s.bytes }

// marks are the ranges of a set in rising order, disjoint, object-relative: words[2i] is a start, words[2i+1] the
// end. Other claimants read them while the lease stands, or has just ended and they do not know it yet: hence
// the atomics. A claim's state word tells them afterwards whether what they read was still the claim's.
type marks struct {
	n     atomic.Int64
	words []atomic.Uint64
}

// Fill makes the set these ranges of r, relative to it. It sorts the list in place unless it is in order.
// Ranges may overlap, and empty ones are left out. The error is a *RangeError; the set is empty then.
func (s *Set) Fill(r *Registration, ranges []Range) error {
	s.registration, s.extent, s.bytes = r, Range{Start: r.offset}, 0
	order := func(a, b Range) int { return cmp.Compare(a.Start, b.Start) }
	if !slices.IsSortedFunc(ranges, order) {
		slices.SortFunc(ranges, order)
	}
	if s.marks == nil || len(s.marks.words) < 2*len(ranges) {
		s.marks = &marks{words: make([]atomic.Uint64, max(16, 4*len(ranges)))}
	}
	var last Range
	n := 0
	for _, x := range ranges {
		if !Within(x.Start, x.Length, r.Length()) {
			s.marks.n.Store(0)
			return r.leaves(x.Start, x.Length)
		}
		x.Start += r.offset
		switch {
		case x.Empty():
			continue
		case n > 0 && x.Start <= last.End():
			last.Length = max(last.End(), x.End()) - last.Start
		default:
			last = x
			n++
		}
		s.marks.words[2*n-2].Store(last.Start)
		s.marks.words[2*n-1].Store(last.End())
	}
	s.marks.n.Store(int64(n))
	for i := range n {
		s.bytes += s.marks.words[2*i+1].Load() - s.marks.words[2*i].Load()
	}
	if n > 0 {
		s.extent.Start = s.marks.words[0].Load()
		s.extent.Length = last.End() - s.extent.Start
	}
	return nil
}

// Lease claims all ranges of the set, or none. The caller holds a loan of the registration. Errors as
// Backing.Lend, but for a range outside. The lease's Bytes reach from the first to the last range: the holder
// touches only those of the ranges.
func (s *Set) Lease(a Access) (Lease, error) {
	b := s.registration.backing
	b.Hold()
	lease := Lease{backing: b, extent: s.extent, marks: s.marks}
	found, refusal := b.leases.claim(&lease, a)
	if refusal == granted {
		return lease, nil
	}
	b.Drop()
	return Lease{}, b.refuse(refusal, s.extent, a, found)
}

// share reports whether two claims share a byte, given that their extents do.
func share(a Range, in *marks, b Range, of *marks) bool {
	switch {
	case in == nil && of == nil:
		return true
	case in == nil:
		return of.touch(a)
	case of == nil:
		return in.touch(b)
	case in.n.Load() > of.n.Load():
		in, of, a, b = of, in, b, a
	}
	// Each range of the shorter list is looked for in the longer one.
	n := int(in.n.Load())
	for i := in.after(b.Start); i < n; i++ {
		start, end := in.words[2*i].Load(), in.words[2*i+1].Load()
		if start >= b.End() {
			break
		}
		if end > start && of.touch(Range{start, end - start}) {
			return true
		}
	}
	return false
}

// after is the index of the first range that ends behind at.
func (m *marks) after(at uint64) int {
	low, high := 0, int(m.n.Load())
	for low < high {
		middle := int(uint(low+high) / 2)
		if m.words[2*middle+1].Load() > at {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low
}

// touch reports whether the range shares a byte with one of the set's.
func (m *marks) touch(r Range) bool {
	i := m.after(r.Start)
	return i < int(m.n.Load()) && m.words[2*i].Load() < r.End()
}
