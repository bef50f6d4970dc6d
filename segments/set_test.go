package segments

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/netproto"
)

// setRig registers two overlapping views of one object.
func setRig(t testing.TB, length uint64) (whole, view *Registration) {
	t.Helper()
	backing, err := Map(length)
	if err != nil {
		t.Fatal(err)
	}
	tracker := NewTracker(budgets.New("registrations", "ranges", 4), budgets.New("bytes", "bytes", 1<<30), nil)
	list, err := tracker.Register([]Spec{{Backing: backing, Length: length, Permission: netproto.LocalOnly},
		{Backing: backing, Offset: 16, Length: length - 16, Permission: netproto.LocalOnly}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !backing.Quiet() {
			t.Error("a lease is left")
		}
		tracker.RetireAll()
		backing.Drop()
	})
	return list[0], list[1]
}

// Leases of lists of ranges exclude each other exactly where they share a byte, held against a map of bytes.
//
// proves M-9, H-5
func TestSetsExcludeExactlyTheirRanges(t *testing.T) {
	const seed, length = 5, 256
	t.Logf("SEED=%d; replay: go test -run TestSetsExcludeExactlyTheirRanges ./segments", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	whole, view := setRig(t, length)
	type standing struct {
		lease  Lease
		access Access
		bytes  [length]bool
	}
	var out []*standing
	granted, refused := 0, 0
	for range 20_000 {
		if len(out) > 0 && random.IntN(3) == 0 || len(out) == 8 {
			i := random.IntN(len(out))
			out[i].lease.Return()
			out = append(out[:i], out[i+1:]...)
		}
		on, base := whole, uint64(0)
		if random.IntN(2) == 0 {
			on, base = view, 16
		}
		x := &standing{access: Access(random.IntN(2))}
		var ranges []Range
		for range random.IntN(6) {
			start := random.Uint64N(on.Length())
			r := Range{start, random.Uint64N(min(12, on.Length()-start+1))}
			ranges = append(ranges, r)
			for i := range r.Length {
				x.bytes[base+r.Start+i] = true
			}
		}
		free := true
		for _, o := range out {
			for i := range x.bytes {
				free = free && !(x.bytes[i] && o.bytes[i] && x.access.conflicts(o.access))
			}
		}
		var err error
		if len(ranges) == 1 && random.IntN(2) == 0 {
			x.lease, err = on.Lease(ranges[0].Start, ranges[0].Length, x.access)
		} else {
			s := &Set{}
			if err := s.Fill(on, ranges); err != nil {
				t.Fatal(err)
			}
			x.lease, err = s.Lease(x.access)
		}
		if (err == nil) != free {
			t.Fatalf("%v of %v: %v, want free %v", x.access, ranges, err, free)
		}
		if err == nil {
			out = append(out, x)
			granted++
		} else if !errors.As(err, new(*Conflict)) {
			t.Fatal(err)
		} else {
			refused++
		}
	}
	for _, o := range out {
		o.lease.Return()
	}
	if granted < 1000 || refused < 1000 {
		t.Errorf("%d granted, %d refused: the test says little", granted, refused)
	}
}

func TestSetRefusesARangeOutsideAndKeepsNothing(t *testing.T) {
	_, view := setRig(t, 64)
	var s Set
	var outside *RangeError
	if err := s.Fill(view, []Range{{0, 4}, {47, 2}}); !errors.As(err, &outside) {
		t.Errorf("%v, want a RangeError", err)
	}
	if err := s.Fill(view, []Range{{47, 1}, {0, 4}}); err != nil {
		t.Fatal(err)
	}
	lease, err := s.Lease(Exclusive)
	if err != nil || lease.Range() != (Range{16, 48}) {
		t.Errorf("%v %v", lease.Range(), err)
	}
	lease.Return()
}

// Users of one pool, each with sets that it fills again and again, never hold the same page at once.
//
// proves M-9
func TestSetsOfManyUsersAreNeverTheSameBytes(t *testing.T) {
	const pages, users = 64, 6
	whole, _ := setRig(t, pages*16)
	var owner [pages]int // written under the lease only, so the race detector sees a shared page
	var wait sync.WaitGroup
	for user := range users {
		wait.Add(1)
		go func() {
			defer wait.Done()
			random := rand.New(rand.NewPCG(uint64(user), 1))
			var s Set
			for range 3000 {
				var ranges []Range
				for range 1 + random.IntN(5) {
					ranges = append(ranges, Range{random.Uint64N(pages) * 16, 16})
				}
				if err := s.Fill(whole, ranges); err != nil {
					t.Error(err)
				}
				lease, err := s.Lease(Exclusive)
				if err != nil {
					continue
				}
				for _, r := range ranges {
					owner[r.Start/16] = user
				}
				for _, r := range ranges {
					if owner[r.Start/16] != user {
						t.Errorf("page %d belongs to two", r.Start/16)
					}
				}
				lease.Return()
			}
		}()
	}
	wait.Wait()
}

func TestSetsAllocateNothingInTheSteadyState(t *testing.T) {
	whole, _ := setRig(t, 1<<20)
	ranges := make([]Range, 256)
	var s Set
	run := func() {
		for i := range ranges {
			ranges[i] = Range{uint64(i*7%256) * 4096, 4096}
		}
		if s.Fill(whole, ranges) != nil {
			t.Fatal("refused")
		}
		lease, err := s.Lease(Shared)
		if err != nil {
			t.Fatal(err)
		}
		lease.Return()
	}
	run()
	if n := testing.AllocsPerRun(100, run); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkSet is what a list of 128 pages of a pool of 120,000 costs, in order and not.
func BenchmarkSet(b *testing.B) {
	const pages, pool, size = 128, 120_000, 4096
	for _, name := range []string{"sorted", "scattered"} {
		b.Run(name, func(b *testing.B) {
			whole, _ := setRig(b, pool*size)
			random := rand.New(rand.NewPCG(7, 0))
			orders := make([][]Range, 64) // so that no order is learnt
			for i := range orders {
				for range pages {
					orders[i] = append(orders[i], Range{random.Uint64N(pool) * size, size})
				}
				if name == "sorted" {
					slices.SortFunc(orders[i], func(a, b Range) int { return cmp.Compare(a.Start, b.Start) })
				}
			}
			ranges := make([]Range, pages)
			var s Set
			for i := 0; b.Loop(); i++ {
				copy(ranges, orders[i%len(orders)])
				_ = s.Fill(whole, ranges)
				lease, err := s.Lease(Shared)
				if err != nil {
					b.Fatal(err)
				}
				lease.Return()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/pages, "ns/page")
		})
	}
}
