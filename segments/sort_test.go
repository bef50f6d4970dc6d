package segments

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/orbitte/orbitte/netproto"
)

// reference is what a set of these ranges has, by sorting and joining in the plainest way.
func reference(ranges []Range, offset uint64) (list []Range, bytes uint64) {
	ranges = slices.Clone(ranges)
	slices.SortFunc(ranges, func(a, b Range) int { return cmp.Compare(a.Start, b.Start) })
	for _, x := range ranges {
		if x.Empty() {
			continue
		}
		x.Start += offset
		if n := len(list); n > 0 && x.Start <= list[n-1].End() {
			list[n-1].Length = max(list[n-1].End(), x.End()) - list[n-1].Start
		} else {
			list = append(list, x)
		}
	}
	for _, x := range list {
		bytes += x.Length
	}
	return list, bytes
}

// Lists of pages, of ranges of any size, of few and of many, near each other and far apart, of which many are the same.
//
// proves H-8, M-9
func TestASetHasItsRangesInOrderEachByteOnce(t *testing.T) {
	const seed, length = 9, 1 << 40
	t.Logf("SEED=%d; replay: go test -run TestASetHasItsRangesInOrderEachByteOnce ./segments", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	r := &Registration{offset: 1 << 13, region: netproto.Region{Length: length}}
	var s Set
	for round := range 3000 {
		ranges := make([]Range, random.IntN(1<<random.IntN(11)))
		unit := uint64(1) << random.IntN(20)
		pool := 1 + random.Uint64N(1<<random.IntN(41))/unit // starts are this many different ones at most
		for i := range ranges {
			start := random.Uint64N(pool) * unit
			ranges[i] = Range{start, min(random.Uint64N(2*unit), length-start)}
		}
		if round%3 == 0 {
			slices.SortFunc(ranges, func(a, b Range) int { return cmp.Compare(a.Start, b.Start) })
		}
		list, bytes := reference(ranges, r.offset)
		before := slices.Clone(ranges)
		if err := s.Fill(r, ranges); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(s.marks.list, list) || s.Bytes() != bytes {
			t.Fatalf("round %d: a set of %d ranges has %d bytes in %d, want %d in %d", round, len(ranges), s.Bytes(), len(s.marks.list), bytes, len(list))
		}
		if n := len(list); n > 0 && s.extent != (Range{list[0].Start, list[n-1].End() - list[0].Start}) {
			t.Fatalf("round %d: the set reaches over %v", round, s.extent)
		}
		order := func(a, b Range) int { return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Length, b.Length)) }
		slices.SortFunc(before, order)
		if slices.SortFunc(ranges, order); !slices.Equal(ranges, before) {
			t.Fatalf("round %d: the caller's list has other ranges than it had", round)
		}
	}
}

// Whoever reads a set's list for a claim that has ended meanwhile does not see it change.
//
// proves M-9
func TestASetIsNotFilledWhereSomebodyReads(t *testing.T) {
	whole, _ := setRig(t, 256)
	var s Set
	fill := func(start uint64) {
		if err := s.Fill(whole, []Range{{start, 8}, {start + 16, 8}}); err != nil {
			t.Fatal(err)
		}
	}
	fill(0)
	read := s.marks
	read.readers.Add(1)
	if fill(100); s.marks == read || read.list[0].Start != 0 {
		t.Errorf("the list that is read was written: %v", read.list)
	}
	before := s.marks
	if fill(32); s.marks != before {
		t.Error("a list that nobody reads was not used again")
	}
	lease, err := s.Lease(Exclusive)
	if err != nil || lease.Range() != (Range{32, 24}) {
		t.Fatalf("%v, %v", lease.Range(), err)
	}
	between, err := whole.Lease(40, 8, Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	between.Return()
	lease.Return()
}

// The marks of a claim that has ended are not read: they may be written just now.
//
// proves M-9
func TestMarksAreReadOnlyWhileTheirClaimStands(t *testing.T) {
	whole, _ := setRig(t, 256)
	var s Set
	if err := s.Fill(whole, []Range{{0, 8}, {16, 8}}); err != nil {
		t.Fatal(err)
	}
	lease, err := s.Lease(Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	at, state := &lease.chunk.slots[lease.place], lease.claim
	for _, asked := range []Range{{8, 8}, {12, 8}} { // between the ranges, and into the second
		if apart, stands := at.apart(&Lease{extent: asked}, lease.extent, s.marks, state); !stands || apart != (asked.Start == 8) {
			t.Errorf("%v: apart %v, stands %v", asked, apart, stands)
		}
	}
	extent := lease.extent
	lease.Return()
	s.marks.list = nil // whoever looks at it now finds nothing in the way
	for _, of := range []*marks{s.marks, nil} {
		if _, stands := at.apart(&Lease{extent: Range{16, 8}}, extent, of, state); stands {
			t.Errorf("a claim that was returned stands (marks %v)", of)
		}
	}
	if s.marks.readers.Load() != 0 {
		t.Error("a reader is counted who has gone")
	}
}
