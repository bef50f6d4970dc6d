package segments

import "sync/atomic"

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

// marks are the ranges of a set in rising order, disjoint, object-relative. Other claimants read the list while a lease of it
// stands. It is written only while none does and nobody reads: a claimant first counts itself, and then looks whether the
// claim that it read about still stands, so that a set that finds nobody counted, once its lease has ended, is alone with it.
type marks struct {
	readers atomic.Int32
	list    []Range
}

// Fill makes the set these ranges of r, relative to it. It may change their order in the list. Ranges may overlap, and empty
// ones are left out. The error is a *RangeError; the set is empty then.
func (s *Set) Fill(r *Registration, ranges []Range) error {
	s.registration, s.extent, s.bytes = r, Range{Start: r.offset}, 0
	list, length := s.room(len(ranges)), r.Length()
	inOrder, differs, last := true, uint64(0), uint64(0)
	for i := range ranges {
		x := &ranges[i]
		if !Within(x.Start, x.Length, length) {
			return r.leaves(x.Start, x.Length)
		}
		inOrder = inOrder && x.Start >= last
		differs, last = differs|(x.Start^ranges[0].Start), x.Start
	}
	if !inOrder {
		ranges = sorted(ranges, list[:len(ranges)], differs)
	}
	s.marks.list = s.merge(list, ranges)
	return nil
}

// room is an empty list for n ranges that nobody reads, and makes the set empty.
func (s *Set) room(n int) []Range {
	had := 0
	if s.marks != nil {
		had = cap(s.marks.list)
	}
	switch {
	case had < n:
		s.marks = &marks{list: make([]Range, 0, max(16, n, 2*had))}
	case s.marks == nil || s.marks.readers.Load() != 0:
		s.marks = &marks{list: make([]Range, 0, had)}
	}
	s.marks.list = s.marks.list[:0]
	return s.marks.list
}

// merge appends the ranges, which are in order, each byte once; they may be in the list's own memory.
func (s *Set) merge(list, ranges []Range) []Range {
	var last Range
	for _, x := range ranges {
		x.Start += s.registration.offset
		switch n := len(list); {
		case x.Empty():
			continue
		case n > 0 && x.Start <= last.End():
			last.Length = max(last.End(), x.End()) - last.Start
			list[n-1] = last
		default:
			last = x
			list = append(list, x)
		}
	}
	for i := range list {
		s.bytes += list[i].Length
	}
	if len(list) > 0 {
		s.extent.Start = list[0].Start
		s.extent.Length = last.End() - s.extent.Start
	}
	return list
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
	case len(in.list) > len(of.list):
		in, of, a, b = of, in, b, a
	}
	// Each range of the shorter list is looked for in the longer one.
	for _, x := range in.list[in.after(b.Start):] {
		if x.Start >= b.End() {
			break
		}
		if of.touch(x) {
			return true
		}
	}
	return false
}

// after is the index of the first range that ends behind at.
func (m *marks) after(at uint64) int {
	low, high := 0, len(m.list)
	for low < high {
		middle := int(uint(low+high) / 2)
		if m.list[middle].End() > at {
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
	return i < len(m.list) && m.list[i].Start < r.End()
}
