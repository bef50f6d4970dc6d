package segments

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/orbitte/orbitte/netproto"
)

// firstCovering is the definition of SPEC M-7, word for word: one region covers the whole range; among those the
// lowest address, then the greatest length. It returns a position, or -1.
func firstCovering(regions []Range, asked Range) int {
	best := -1
	for i, r := range regions {
		if asked.Start < r.Start || asked.Start-r.Start > r.Length || asked.Length > r.Length-(asked.Start-r.Start) {
			continue
		}
		if best < 0 || r.Start < regions[best].Start || r.Start == regions[best].Start && r.Length > regions[best].Length {
			best = i
		}
	}
	return best
}

// addresses draws small ones, and some at the very top.
func addresses() *rapid.Generator[uint64] {
	return rapid.OneOf(rapid.Uint64Range(0, 40), rapid.Uint64Range(math.MaxUint64-20, math.MaxUint64))
}

// proves M-7
func TestCoverAgreesWithTheDefinition(t *testing.T) {
	leavesNothing(t)
	seeded(t)
	rapid.Check(t, func(t *rapid.T) {
		regions := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Range {
			start := addresses().Draw(t, "start")
			return Range{start, rapid.Uint64Range(1, 30).Draw(t, "length")}
		}).Filter(Range.Valid), 0, 30).Draw(t, "regions")
		d := netproto.Descriptor{}
		for i, r := range regions {
			d.Regions = append(d.Regions, netproto.Region{ID: uint64(3*i + 1), Base: r.Start, Length: r.Length, Permission: netproto.ReadWrite})
		}
		remote, err := NewRemote("peer:1", netproto.Epoch{1}, d)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			asked := Range{addresses().Draw(t, "address"), rapid.OneOf(rapid.Uint64Range(0, 30), rapid.Uint64()).Draw(t, "asked")}
			got, offset, err := remote.Cover(asked.Start, asked.Length)
			want := -1
			if asked.Valid() {
				want = firstCovering(regions, asked)
			}
			switch {
			case !asked.Valid() && !errors.Is(err, ErrRange), asked.Valid() && want < 0 && !errors.Is(err, ErrUncovered):
				t.Fatalf("%v: %v", asked, err)
			case want >= 0 && (err != nil || extentOf(got) != regions[want] || offset != asked.Start-regions[want].Start):
				t.Fatalf("%v: %+v at %d, %v; want %v", asked, got, offset, err, regions[want])
			}
		}
		for i := range uint64(3 * len(regions)) {
			if found, ok := remote.Find(i); ok != (i%3 == 1) || ok && extentOf(&found) != regions[i/3] {
				t.Fatalf("ID %d: %+v, %v", i, found, ok)
			}
		}
	})
}

// proves M-7
func TestRequestOverTwoAdjacentRegionsIsNotCovered(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 100)
	l := newLedger(100, 1<<20)
	tracker := l.tracker()
	made := registered(t, tracker, Spec{Backing: b, Length: 50}, Spec{Backing: b, Offset: 50, Length: 50})
	for _, c := range []struct {
		offset, length uint64
		want           *Registration
	}{
		{0, 50, made[0]}, {50, 50, made[1]}, {49, 1, made[0]}, {49, 2, nil}, {0, 100, nil}, {99, 1, made[1]}, {99, 2, nil}, {100, 1, nil},
		{50, 0, made[0]}, {100, 0, made[1]}, {101, 0, nil},
	} {
		got, err := tracker.Mirror().Cover(b.Address()+c.offset, c.length)
		if got != c.want || (err == nil) != (c.want != nil) || err != nil && !errors.Is(err, ErrUncovered) {
			t.Fatalf("%+v: %v, %v", c, got, err)
		}
	}
	if _, err := tracker.Mirror().Cover(b.Address(), math.MaxUint64); !errors.Is(err, ErrRange) {
		t.Fatalf("overflow: %v", err)
	}
	tracker.RetireAll()
	b.Drop()
}

func TestRemoteRefusesARegionThatOverflows(t *testing.T) {
	d := netproto.Descriptor{Regions: []netproto.Region{{ID: 1, Base: math.MaxUint64, Length: 1, Permission: 1}}}
	if _, err := NewRemote("peer:1", netproto.Epoch{}, d); !errors.Is(err, ErrRange) {
		t.Fatalf("%v", err)
	}
}

func TestRemoteKeepsWhatThePeerSaid(t *testing.T) {
	d := netproto.Descriptor{Regions: []netproto.Region{{ID: 4, Base: 100, Length: 10, Permission: 1}, {ID: 9, Base: 50, Length: 10, Permission: 2}}}
	remote, err := NewRemote("peer:1", netproto.Epoch{9}, d)
	if err != nil {
		t.Fatal(err)
	}
	if remote.Endpoint() != "peer:1" || remote.Epoch() != (netproto.Epoch{9}) || !slices.Equal(remote.Descriptor().Regions, d.Regions) {
		t.Fatalf("%+v", remote)
	}
}

func TestRangeArithmeticNeverWraps(t *testing.T) {
	seeded(t)
	edge := rapid.OneOf(rapid.Uint64Range(0, 20), rapid.Uint64Range(math.MaxUint64-20, math.MaxUint64), rapid.Uint64Range(math.MaxInt64-5, math.MaxInt64+5))
	rapid.Check(t, func(t *rapid.T) {
		a, b := Range{edge.Draw(t, "a"), edge.Draw(t, "an")}, Range{edge.Draw(t, "b"), edge.Draw(t, "bn")}
		aEnd, bEnd := wide(a), wide(b)
		if a.Valid() != (aEnd.high == 0) || b.Valid() != (bEnd.high == 0) {
			t.Fatalf("%v %v, %v %v", a, a.Valid(), b, b.Valid())
		}
		if Within(a.Start, a.Length, b.Length) != (aEnd.high == 0 && aEnd.low <= b.Length) {
			t.Fatalf("Within(%v, %d)", a, b.Length)
		}
		if !a.Valid() || !b.Valid() {
			return
		}
		overlap := max(a.Start, b.Start) < min(aEnd.low, bEnd.low)
		if a.Overlaps(b) != overlap || b.Overlaps(a) != overlap {
			t.Fatalf("%v overlaps %v: %v", a, b, a.Overlaps(b))
		}
		if a.Contains(b) != (b.Start >= a.Start && bEnd.low <= aEnd.low) {
			t.Fatalf("%v contains %v: %v", a, b, a.Contains(b))
		}
	})
}

type wideEnd struct{ high, low uint64 }

// wide adds in 128 bits.
func wide(r Range) wideEnd {
	low := r.Start + r.Length
	if low < r.Start {
		return wideEnd{1, low}
	}
	return wideEnd{0, low}
}
