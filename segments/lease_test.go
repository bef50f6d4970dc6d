package segments

import (
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

func lent(t *testing.T, b *Backing, offset, length uint64, a Access) Lease {
	t.Helper()
	lease, err := b.Lend(offset, length, a)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// proves M-9
func TestExactRangesArbitrateAccess(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 100)
	defer b.Drop()
	reader := lent(t, b, 10, 20, Shared) // bytes 10 to 29
	for _, c := range []struct {
		offset, length uint64
		access         Access
		refused        bool
	}{
		{10, 20, Shared, false}, {0, 100, Shared, false},
		{10, 20, Exclusive, true}, {29, 1, Exclusive, true}, {0, 11, Exclusive, true}, {0, 100, Exclusive, true},
		{15, 2, Exclusive, true},
		{30, 70, Exclusive, false}, {0, 10, Exclusive, false},
		{15, 0, Exclusive, false}, {100, 0, Exclusive, false},
	} {
		lease, err := b.Lend(c.offset, c.length, c.access)
		var conflict *Conflict
		if errors.As(err, &conflict) != c.refused || errors.Is(err, ErrConflict) != c.refused {
			t.Fatalf("%+v: %v", c, err)
		}
		if !c.refused {
			lease.Return()
		} else if conflict.Held != (Range{10, 20}) || conflict.HeldAccess != Shared || conflict.Simultaneous || lease.Held() {
			t.Fatalf("%+v: %+v", c, conflict)
		}
	}
	reader.Return()
	writer := lent(t, b, 10, 20, Exclusive)
	if _, err := b.Lend(29, 1, Shared); !errors.Is(err, ErrConflict) {
		t.Fatalf("reading under a writer: %v", err)
	}
	writer.Return()
	if !b.Quiet() || b.Holders() != 1 {
		t.Fatalf("quiet %v, %d holders", b.Quiet(), b.Holders())
	}
}

// proves M-9
func TestAliasesRegistrationsAndEnginesShareOneTable(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 100)
	one, two := newLedger(9, 1000), newLedger(9, 1000) // two engines
	first, err := one.tracker().Register([]Spec{{Backing: b, Offset: 0, Length: 60}, {Backing: b, Offset: 40, Length: 60}})
	if err != nil {
		t.Fatal(err)
	}
	second, err := two.tracker().Register([]Spec{{Backing: b, Offset: 50, Length: 50}})
	if err != nil {
		t.Fatal(err)
	}
	views := []*Registration{first[0], first[1], second[0]}
	for _, view := range views {
		if !view.Lend() {
			t.Fatal("not lent")
		}
	}
	if !b.Quiet() {
		t.Fatal("a registration holds a lease")
	}
	held, err := views[0].Lease(55, 1, Exclusive) // byte 55 of the object
	if err != nil {
		t.Fatal(err)
	}
	for i, offset := range []uint64{55, 15, 5} {
		if _, err := views[i].Lease(offset, 1, Shared); !errors.Is(err, ErrConflict) {
			t.Fatalf("view %d: %v", i, err)
		}
		beside, err := views[i].Lease(offset-1, 1, Exclusive)
		if err != nil {
			t.Fatalf("view %d, the byte beside: %v", i, err)
		}
		beside.Return()
	}
	if _, err := views[0].Lease(60, 1, Shared); !errors.Is(err, ErrRange) {
		t.Fatalf("outside the registration, inside the object: %v", err)
	}
	held.Return()
	for _, view := range views {
		view.Return()
		view.retire()
	}
	b.Drop()
}

func TestLeaseOutsideTheObjectIsRefused(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 100)
	defer b.Drop()
	for _, r := range []Range{{0, 101}, {100, 1}, {101, 0}, {1, math.MaxUint64}, {math.MaxUint64, 1}, {math.MaxUint64, math.MaxUint64}, {50, 51}} {
		lease, err := b.Lend(r.Start, r.Length, Shared)
		if !errors.Is(err, ErrRange) || lease.Held() || b.Holders() != 1 || !b.Quiet() {
			t.Fatalf("%v: %v", r, err)
		}
	}
}

func TestLeaseReturnsExactlyOnce(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 10)
	lease := lent(t, b, 0, 10, Exclusive)
	copied := lease
	lease.Return()
	if text := panics(t, lease.Return); !strings.Contains(text, "empty") {
		t.Fatal(text)
	}
	if text := panics(t, copied.Return); !strings.Contains(text, "copy") {
		t.Fatal(text)
	}
	again := lent(t, b, 0, 10, Exclusive) // the same slot, one generation on
	if text := panics(t, copied.Return); !strings.Contains(text, "copy") {
		t.Fatal(text)
	}
	if again.Held() != true || len(lease.Bytes()) != 0 || b.Holders() != 2 {
		t.Fatal("a false Return touched the lease that is out")
	}
	again.Return()
	if text := panics(t, func() { _, _ = b.Lend(0, 1, 2) }); !strings.Contains(text, "access 2") {
		t.Fatal(text)
	}
	b.Drop()
}

func TestTableGrowsToItsLimitAndNoFurther(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, leasesMax+1)
	defer b.Drop()
	all := make([]Lease, leasesMax)
	for i := range all { // lent without the look at the others, which would be 8 million looks
		b.Hold()
		all[i] = Lease{backing: b, extent: Range{uint64(i), 1}}
		if rank, ok := b.leases.announce(&all[i], Exclusive); !ok || rank != i || all[i].decide(true) != granted {
			t.Fatalf("lease %d: slot %d, %v", i, rank, ok)
		}
	}
	var limit *LeaseLimit
	if _, err := b.Lend(leasesMax, 1, Shared); !errors.As(err, &limit) || !errors.Is(err, ErrLeaseLimit) || limit.Limit != leasesMax {
		t.Fatalf("%v", err)
	}
	all[2000].Return()
	for _, i := range []uint64{0, 1999, 2001, leasesMax - 1} {
		if _, err := b.Lend(i, 1, Shared); !errors.Is(err, ErrConflict) {
			t.Fatalf("byte %d: %v", i, err)
		}
	}
	all[2000] = lent(t, b, 2000, 1, Exclusive)
	for i := range all {
		if i%32 == 0 && b.Quiet() {
			t.Fatalf("quiet with %d leases out", leasesMax-i)
		}
		all[i].Return()
	}
	if !b.Quiet() || b.Holders() != 1 {
		t.Fatal("not quiet")
	}
}

// proves M-9
func TestLaterClaimWithdrawsBeforeAnEarlierOne(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 10)
	defer b.Drop()
	earlier := Lease{extent: Range{2, 3}}
	rank, _ := b.leases.announce(&earlier, Exclusive) // and does not get on for a while
	_, err := b.Lend(4, 3, Exclusive)
	var conflict *Conflict
	if !errors.As(err, &conflict) || conflict.Held != (Range{2, 3}) || conflict.HeldAccess != Exclusive || conflict.Simultaneous {
		t.Fatalf("beside an earlier claim: %v", err)
	}
	beside := lent(t, b, 5, 5, Exclusive)
	if _, clear := b.leases.scan(&earlier, Exclusive, rank); !clear || earlier.decide(clear) != granted {
		t.Fatal("the earlier claim was lost")
	}
	beside.Return()
	earlier.chunk.release(earlier.place, earlier.claim)
}

// proves M-9
func TestEarlierClaimDoomsALaterOneThatSawNothing(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 10)
	defer b.Drop()
	first := lent(t, b, 9, 1, Shared) // the first slot is taken for a while
	later := Lease{extent: Range{2, 3}}
	rank, _ := b.leases.announce(&later, Exclusive)
	first.Return()
	_, clear := b.leases.scan(&later, Exclusive, rank)
	if !clear {
		t.Fatal("met a conflict where none is")
	}
	earlier := lent(t, b, 4, 3, Shared) // announced after the later one looked
	if verdict := later.decide(clear); verdict != outrun {
		t.Fatalf("verdict %d: two conflicting leases stand side by side", verdict)
	}
	var conflict *Conflict
	if err := b.refuse(outrun, later.extent, Exclusive, standing{}); !errors.As(err, &conflict) || !conflict.Simultaneous {
		t.Fatalf("%v", err)
	}
	if _, err := b.Lend(2, 3, Exclusive); !errors.Is(err, ErrConflict) {
		t.Fatalf("%v", err)
	}
	earlier.Return()
	again := lent(t, b, 2, 3, Exclusive)
	again.Return()
}

// proves M-9
func TestExactlyOneOfTwoSimultaneousClaimsWins(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 128)
	defer b.Drop()
	var others [chunkSlots]Lease // make the scan long, so that claims meet in it
	for i := range others {
		others[i] = lent(t, b, 64+uint64(i), 1, Exclusive)
	}
	others[0].Return() // the two claims take these slots
	others[1].Return()
	const rounds = 2000
	var ready, tried, wins atomic.Int64
	contend := func() {
		for round := range int64(rounds) {
			meet(&ready, 2*(round+1))
			lease, err := b.Lend(uint64(round%32), 32, Exclusive)
			if err == nil {
				wins.Add(1)
			}
			meet(&tried, 2*(round+1))
			if err == nil {
				lease.Return()
			}
		}
	}
	var both sync.WaitGroup
	both.Go(contend)
	both.Go(contend)
	both.Wait()
	for i := range others[2:] {
		others[2+i].Return()
	}
	if wins.Load() != rounds {
		t.Fatalf("%d claims won in %d rounds of two", wins.Load(), rounds)
	}
}

// meet waits until everybody has come.
func meet(come *atomic.Int64, all int64) {
	come.Add(1)
	for spins := 0; come.Load() < all; spins++ {
		if spins > 1000 { // spinning at first makes both leave at the same moment
			runtime.Gosched()
		}
	}
}

// proves M-9
func TestSlotThatChangesHandsNeverRefusesADisjointClaim(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 100)
	defer b.Drop()
	var done atomic.Bool
	var both sync.WaitGroup
	both.Go(func() { // one slot, in turn below and above the middle
		for i := uint64(0); !done.Load(); i++ {
			lease, err := b.Lend(i%2*90, 10, Exclusive)
			if err != nil {
				t.Error(err)
				return
			}
			lease.Return()
		}
	})
	for range 30_000 {
		lease, err := b.Lend(40, 20, Exclusive)
		if err != nil {
			t.Error(err)
			break
		}
		lease.Return()
	}
	done.Store(true)
	both.Wait()
}

// proves M-9
func TestLeaseTableAgreesWithANaiveList(t *testing.T) {
	leavesNothing(t)
	seeded(t)
	rapid.Check(t, func(t *rapid.T) {
		const size = 24
		b, err := AdoptSlice(make([]byte, size))
		if err != nil {
			t.Fatal(err)
		}
		type entry struct {
			lease  Lease
			extent Range
			access Access
		}
		var out []entry
		defer func() { // also after a failure
			for i := range out {
				out[i].lease.Return()
			}
			b.Drop()
		}()
		t.Repeat(map[string]func(*rapid.T){
			"lend": func(t *rapid.T) {
				asked := Range{rapid.Uint64Range(0, size+1).Draw(t, "offset"), rapid.Uint64Range(0, size+1).Draw(t, "length")}
				access := Access(rapid.IntRange(0, 1).Draw(t, "access"))
				lease, err := b.Lend(asked.Start, asked.Length, access)
				if asked.Start+asked.Length > size {
					if !errors.Is(err, ErrRange) {
						t.Fatalf("%v: %v", asked, err)
					}
					return
				}
				conflict := false
				for _, e := range out {
					for i := asked.Start; i < asked.Start+asked.Length; i++ {
						inside := i >= e.extent.Start && i < e.extent.Start+e.extent.Length
						conflict = conflict || inside && (access == Exclusive || e.access == Exclusive)
					}
				}
				if conflict != errors.Is(err, ErrConflict) || !conflict && err != nil {
					t.Fatalf("%v %v beside %+v: %v", access, asked, out, err)
				}
				if err == nil {
					out = append(out, entry{lease, asked, access})
				}
			},
			"return": func(t *rapid.T) {
				if len(out) == 0 {
					t.Skip("none out")
				}
				i := rapid.IntRange(0, len(out)-1).Draw(t, "which")
				out[i].lease.Return()
				out = append(out[:i], out[i+1:]...)
			},
			"": func(t *rapid.T) {
				if b.Quiet() != (len(out) == 0) || b.Holders() != int64(1+len(out)) {
					t.Fatalf("quiet %v and %d holders with %d leases out", b.Quiet(), b.Holders(), len(out))
				}
			},
		})
	})
}

// proves M-9
func TestNoTwoConflictingLeasesStandSideBySideUnderContention(t *testing.T) {
	leavesNothing(t)
	seed := seeded(t)
	const size, workers, rounds = 200, 100, 400
	b := adopted(t, size) // on the Go heap: the race detector watches the bytes
	defer b.Drop()
	var readers, writers [size]atomic.Int32
	var granted, refused atomic.Int64
	var all sync.WaitGroup
	for w := range workers {
		random := rand.New(rand.NewPCG(seed, uint64(w)))
		all.Go(func() {
			for range rounds {
				offset := random.Uint64N(size)
				length, access := random.Uint64N(min(24, size-offset)+1), Access(random.IntN(2))
				lease, err := b.Lend(offset, length, access)
				if err != nil {
					refused.Add(1)
					continue
				}
				granted.Add(1)
				inspect(t, &lease, access, &readers, &writers)
				lease.Return()
			}
		})
	}
	all.Wait()
	if !b.Quiet() || b.Holders() != 1 || granted.Load() == 0 || refused.Load() == 0 {
		t.Fatalf("quiet %v, %d holders, %d granted, %d refused", b.Quiet(), b.Holders(), granted.Load(), refused.Load())
	}
}

// inspect notes for each byte who has it, looks for company, and uses the bytes as the access allows.
func inspect(t *testing.T, lease *Lease, access Access, readers, writers *[200]atomic.Int32) {
	start, end := lease.Range().Start, lease.Range().End()
	mine := readers
	if access == Exclusive {
		mine = writers
	}
	for i := start; i < end; i++ {
		mine[i].Add(1)
	}
	runtime.Gosched()
	sum := byte(0)
	for i := start; i < end; i++ {
		r, w := readers[i].Load(), writers[i].Load()
		if access == Exclusive && (w != 1 || r != 0) || access == Shared && w != 0 {
			t.Errorf("%v lease of byte %d beside %d readers and %d writers", access, i, r, w)
		}
		if access == Exclusive {
			lease.Bytes()[i-start]++
		}
		sum += lease.Bytes()[i-start]
	}
	for i := start; i < end; i++ {
		mine[i].Add(-1)
	}
	_ = sum
}

// field case F-11
// proves M-6, M-9
func TestSlowReaderNeverSeesReusedBytes(t *testing.T) {
	leavesNothing(t)
	const size = 256
	b := adopted(t, size)
	l := newLedger(4, 1<<20)
	tracker := l.tracker()
	made, err := tracker.Register([]Spec{{Backing: b, Length: size}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := tracker.Borrow(b.Address(), size)
	if err != nil {
		t.Fatal(err)
	}
	reading, err := r.Lease(0, size, Shared)
	if err != nil {
		t.Fatal(err)
	}
	if last, err := tracker.Unregister(made[0].ID()); !last || err != nil { // taken back
		t.Fatal(last, err)
	}
	for i := range uint64(size) { // the reader gets on byte by byte, the owner tries to reuse each time
		if _, err := b.Lend(i, size-i, Exclusive); !errors.Is(err, ErrConflict) {
			t.Fatalf("the owner may write under the reader at byte %d: %v", i, err)
		}
		if reading.Bytes()[i] != 0 {
			t.Fatalf("byte %d changed under the reader", i)
		}
	}
	reading.Return()
	r.Return()
	writing := lent(t, b, 0, size, Exclusive) // now it is the owner's again
	writing.Bytes()[0] = 1
	writing.Return()
	b.Drop()
	l.owes(t, 0, 0)
}
