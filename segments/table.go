package segments

import "slices"

// order says how a table is sorted and what it is searched by. Keys may fall along the order; a table
// searches their running maximum.
type order struct {
	compare func(a, b *Registration) int
	key     func(*Registration) uint64
}

var (
	// byAddress finds the first registration, in the order of SPEC M-7, that ends at or behind an address.
	byAddress = order{
		compare: func(a, b *Registration) int { return before(a.Range(), b.Range()) },
		key:     func(r *Registration) uint64 { return r.Range().End() },
	}
	// byID finds the first registration with an ID or a later one.
	byID = order{
		compare: func(a, b *Registration) int {
			switch {
			case a.ID() < b.ID():
				return -1
			case a.ID() > b.ID():
				return 1
			}
			return 0
		},
		key: (*Registration).ID,
	}
)

const (
	// blockMost keeps what one change copies small: a block, and the list of blocks; both about the square
	// root of the protocol's limit of 4,096 regions.
	blockMost = 64
	// blockLeast is when a block that lost a member joins its neighbour, so that blocks stay few.
	blockLeast = blockMost / 4
)

// table is an immutable sorted list of registrations. A changed table shares all but a few blocks with the
// one before, so that a change among n registrations costs about √n, and a search O(log n).
type table struct {
	bounds []uint64 // the largest key in the blocks up to each one
	blocks []*block // none is empty
	count  int
}

// block is a run of a table's members, with the running maximum of their keys inside the block.
type block struct {
	maxima  []uint64
	members []*Registration
}

func newBlock(o *order, members []*Registration) *block {
	c := &block{maxima: make([]uint64, len(members)), members: members}
	largest := uint64(0)
	for i, r := range members {
		largest = max(largest, o.key(r))
		c.maxima[i] = largest
	}
	return c
}

// reaching returns the first member whose key is at least wanted, or nil. Two searches in flat words.
func (t *table) reaching(wanted uint64) *Registration {
	i := search(t.bounds, wanted)
	if i == len(t.bounds) {
		return nil
	}
	c := t.blocks[i]
	return c.members[search(c.maxima, wanted)]
}

// position counts the members for which isBefore is true: blocks, and members of the next one. Those
// members come first in the order.
func (t *table) position(isBefore func(*Registration) bool) (blocks, members int) {
	low, high := 0, len(t.blocks)
	for low < high { // the last block whose first member is before
		middle := int(uint(low+high) >> 1)
		if isBefore(t.blocks[middle].members[0]) {
			low = middle + 1
		} else {
			high = middle
		}
	}
	if low == 0 {
		return 0, 0
	}
	list := t.blocks[low-1].members
	first, last := 0, len(list)
	for first < last {
		middle := int(uint(first+last) >> 1)
		if isBefore(list[middle]) {
			first = middle + 1
		} else {
			last = middle
		}
	}
	if first == len(list) {
		return low, 0
	}
	return low - 1, first
}

// from calls visit for the members from a position on, in order, until it returns false.
func (t *table) from(blocks, members int, visit func(*Registration) bool) {
	for ; blocks < len(t.blocks); blocks, members = blocks+1, 0 {
		for _, r := range t.blocks[blocks].members[members:] {
			if !visit(r) {
				return
			}
		}
	}
}

// all lists the members in order.
func (t *table) all() []*Registration {
	list := make([]*Registration, 0, t.count)
	for _, c := range t.blocks {
		list = append(list, c.members...)
	}
	return list
}

// with returns a table that also has added, which is sorted and has none of the members.
func (t *table) with(o *order, added []*Registration) table {
	next := table{blocks: make([]*block, 0, len(t.blocks)+2*len(added)/blockMost+1)}
	for i, c := range t.blocks {
		here := len(added)
		if i+1 < len(t.blocks) && here > 0 {
			following := t.blocks[i+1].members[0]
			here, _ = slices.BinarySearchFunc(added, following, o.compare)
		}
		if here == 0 {
			next.blocks = append(next.blocks, c)
			continue
		}
		next.append(o, merged(o, c.members, added[:here]))
		added = added[here:]
	}
	next.append(o, added)
	return next.bound()
}

// merged merges two sorted lists into a new one.
func merged(o *order, a, b []*Registration) []*Registration {
	list := make([]*Registration, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if o.compare(a[0], b[0]) < 0 {
			list, a = append(list, a[0]), a[1:]
		} else {
			list, b = append(list, b[0]), b[1:]
		}
	}
	return append(append(list, a...), b...)
}

// append adds a sorted list as blocks of like size. The list is the table's from now on.
func (t *table) append(o *order, list []*Registration) {
	for pieces := (len(list) + blockMost - 1) / blockMost; pieces > 0; pieces-- {
		n := (len(list) + pieces - 1) / pieces
		t.blocks = append(t.blocks, newBlock(o, list[:n:n]))
		list = list[n:]
	}
}

// without returns a table that no longer has gone, which is a member.
func (t *table) without(o *order, gone *Registration) table {
	i, at := t.position(func(r *Registration) bool { return o.compare(r, gone) < 0 })
	left := slices.Concat(t.blocks[i].members[:at], t.blocks[i].members[at+1:])
	first, last := i, i+1 // the blocks that are replaced
	if len(left) < blockLeast {
		switch {
		case i > 0 && len(t.blocks[i-1].members)+len(left) <= blockMost:
			first, left = i-1, slices.Concat(t.blocks[i-1].members, left)
		case last < len(t.blocks) && len(t.blocks[last].members)+len(left) <= blockMost:
			left = slices.Concat(left, t.blocks[last].members)
			last++
		}
	}
	next := table{blocks: make([]*block, 0, len(t.blocks))}
	next.blocks = append(next.blocks, t.blocks[:first]...)
	next.append(o, left)
	next.blocks = append(next.blocks, t.blocks[last:]...)
	return next.bound()
}

// bound completes a table whose blocks are in place.
func (t table) bound() table {
	t.bounds = make([]uint64, len(t.blocks))
	largest := uint64(0)
	for i, c := range t.blocks {
		t.count += len(c.members)
		largest = max(largest, c.maxima[len(c.maxima)-1])
		t.bounds[i] = largest
	}
	return t
}
