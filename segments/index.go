package segments

// index finds, among ranges sorted by (address ascending, length descending), the first that covers
// an asked range, in O(log n). maxima[i] is the largest end among the ranges 0…i: it never falls, and the
// first i at which it reaches an end is a range that itself reaches it. Two flat slices of words
// keep the search in few cache lines. An index is immutable once built.
type index struct {
	addresses []uint64
	maxima    []uint64
}

func newIndex(n int) index {
	words := make([]uint64, 2*n) // one allocation for both
	return index{addresses: words[:0:n], maxima: words[n : n : 2*n]}
}

// add appends a valid range; ranges come in the index's order.
func (x *index) add(r Range) {
	reach := r.End()
	if n := len(x.maxima); n > 0 {
		reach = max(reach, x.maxima[n-1])
	}
	x.addresses = append(x.addresses, r.Start)
	x.maxima = append(x.maxima, reach)
}

// cover returns the position of the first range that covers asked (SPEC M-7), which must be valid.
func (x *index) cover(asked Range) (int, bool) {
	candidates := x.startingBy(asked.Start)
	i := search(x.maxima[:candidates], asked.End())
	return i, i < candidates
}

// startingBy counts the ranges that start at or below address.
func (x *index) startingBy(address uint64) int {
	if address == ^uint64(0) {
		return len(x.addresses)
	}
	return search(x.addresses, address+1)
}

// search returns the first position whose value is at least wanted in a slice that never falls, or its
// length. It is written out because sort.Search calls a function for each step.
func search(values []uint64, wanted uint64) int {
	low, high := 0, len(values)
	for low < high {
		middle := int(uint(low+high) >> 1)
		if values[middle] < wanted {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}

// before is the index's order (SPEC M-7).
func before(a, b Range) int {
	switch {
	case a.Start < b.Start:
		return -1
	case a.Start > b.Start:
		return 1
	case a.Length > b.Length:
		return -1
	case a.Length < b.Length:
		return 1
	}
	return 0
}
