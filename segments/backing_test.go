package segments

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// proves M-1
func TestMappedMemoryIsZeroedPageAlignedAndGoneAfterTheLastDrop(t *testing.T) {
	leavesNothing(t)
	page := uint64(os.Getpagesize())
	for _, length := range []uint64{1, page - 1, page, page + 1, hugePage - 1, hugePage, hugePage + 1, 3*hugePage + 17} {
		b := mapped(t, length)
		align := page
		if length >= hugePage {
			align = hugePage
		}
		if b.Address()%align != 0 || b.Length() != length || uint64(len(b.Bytes())) != length || cap(b.Bytes()) != len(b.Bytes()) {
			t.Fatalf("%v: want %d bytes aligned to %d", b, length, align)
		}
		if b.Bytes()[0] != 0 || b.Bytes()[length-1] != 0 {
			t.Fatalf("%v is not zeroed", b)
		}
		b.Bytes()[0], b.Bytes()[length-1] = 1, 2
		if err := b.Prefault(0, length); err != nil {
			t.Fatal(err)
		}
		if b.Bytes()[length-1] != 2 {
			t.Fatal("Prefault changed a byte")
		}
		region := b.resident.region
		b.Hold()
		b.Drop()
		if !present(region) {
			t.Fatal("unmapped while a holder is left")
		}
		b.Drop()
		if present(region) {
			t.Fatal("still mapped after the last Drop")
		}
	}
}

// proves M-1
func TestPrefaultMakesPagesPresentInTheAskedRangeOnly(t *testing.T) {
	leavesNothing(t)
	page := uint64(os.Getpagesize())
	b := mapped(t, 8*page) // too small for huge pages
	defer b.Drop()
	if err := b.Prefault(2*page+5, page); err != nil { // touches pages 2 and 3
		t.Fatal(err)
	}
	core := make([]byte, 8)
	if err := mincore(b, core); err != nil {
		t.Fatal(err)
	}
	for i, c := range core {
		if want := i == 2 || i == 3; c&1 == 1 != want {
			t.Fatalf("page %d present: %v, want %v", i, c&1 == 1, want)
		}
	}
	if err := b.Prefault(8*page, 1); !errors.Is(err, ErrRange) {
		t.Fatalf("beyond the end: %v", err)
	}
	slice := adopted(t, 10)
	defer slice.Drop()
	if err := slice.Prefault(0, 10); err != nil {
		t.Fatalf("an adopted slice is left alone, got %v", err)
	}
}

// proves M-1
func TestAdoptedSliceIsPinnedAndItsNeighboursAreNotTaken(t *testing.T) {
	leavesNothing(t)
	array := []byte("before|the range|after")
	b, err := AdoptSlice(array[7:16])
	if err != nil {
		t.Fatal(err)
	}
	if string(b.Bytes()) != "the range" || cap(b.Bytes()) != 9 || b.Kind() != Pin {
		t.Fatalf("%q, capacity %d, %v", b.Bytes(), cap(b.Bytes()), b.Kind())
	}
	for range 3 {
		runtime.GC() // a pinner that the collector finds while it pins would stop the program
	}
	copy(b.Bytes(), "THE RANGE")
	if string(array) != "before|THE RANGE|after" {
		t.Fatalf("%q", array)
	}
	b.Drop()
}

// proves M-1, M-6
func TestLeaseAndRegistrationKeepTheBackingAlive(t *testing.T) {
	leavesNothing(t)
	b := mapped(t, 4096)
	region := b.resident.region
	lease, err := b.Lend(0, 10, Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	l := newLedger(10, 1<<20)
	tracker := l.tracker()
	if _, err := tracker.Register([]Spec{{Backing: b, Length: 4096}}); err != nil {
		t.Fatal(err)
	}
	loan, err := tracker.Borrow(b.Address(), 4096)
	if err != nil {
		t.Fatal(err)
	}
	b.Drop()
	tracker.RetireAll()
	lease.Bytes()[9] = 1
	lease.Return()
	l.owes(t, 1, 4096)
	loan.Backing().Bytes()[4095] = 1
	if !present(region) {
		t.Fatal("unmapped under an admitted transfer")
	}
	loan.Return()
	l.owes(t, 0, 0)
	if present(region) {
		t.Fatal("mapped after the last loan")
	}
}

func TestMemoryObjectsThatCannotBeAreRefused(t *testing.T) {
	leavesNothing(t)
	if _, err := Map(0); !errors.Is(err, ErrMemory) || !errors.Is(err, unix.EINVAL) {
		t.Fatalf("Map(0): %v", err)
	}
	for _, length := range []uint64{1 << 62, 1<<63 - 1, 1 << 63, 1<<64 - 1} {
		if _, err := Map(length); !errors.Is(err, ErrMemory) {
			t.Fatalf("Map(%d): %v", length, err)
		}
	}
	if _, err := AdoptSlice(nil); !errors.Is(err, ErrMemory) {
		t.Fatalf("AdoptSlice(nil): %v", err)
	}
	if _, err := AdoptPointer(nil, 4, nil); !errors.Is(err, ErrMemory) {
		t.Fatalf("AdoptPointer(nil): %v", err)
	}
}

func TestHoldAndDropOfAnEndedObjectPanicWithItsState(t *testing.T) {
	leavesNothing(t)
	for _, misuse := range []func(*Backing){(*Backing).Hold, (*Backing).Drop} {
		b := adopted(t, 8)
		b.Drop()
		if text := panics(t, func() { misuse(b) }); !strings.Contains(text, "ended") {
			t.Fatal(text)
		}
	}
}

// proves M-1
func TestHandleClosedAtTheSameMomentHoldsOrIsRefused(t *testing.T) {
	leavesNothing(t)
	for range 200 {
		b := mapped(t, 4096)
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				for b.TryHold() {
					if b.Bytes()[100] != 0 { // a fault, when it has ended
						t.Error("not zero")
					}
					b.Drop()
					runtime.Gosched()
				}
			})
		}
		b.Drop()
		all.Wait()
		if b.TryHold() || b.Holders() != 0 {
			t.Fatalf("held after its end: %d holders", b.Holders())
		}
	}
}

func TestLostOwnerIsReportedAndItsMemoryStays(t *testing.T) {
	leavesNothing(t)
	before := Lost()
	payload := make([]byte, 64)
	payload[63] = 42
	lose(t, payload)
	for i := 0; Lost() != before+2; i++ {
		if i == 10_000 {
			t.Fatalf("%d lost owners reported, want 2", Lost()-before)
		}
		runtime.GC()
		runtime.Gosched()
	}
	lost := 0
	for s := &residents; s != nil; s = s.next.Load() {
		for i := range s.places {
			r := s.places[i].Load()
			if r == nil || !r.lost.Load() {
				continue
			}
			lost++
			if r.kind == Mapping && !present(r.region) {
				t.Fatal("a lost mapping was unmapped")
			}
			r.end() // the test alone may: nothing can touch these bytes
		}
	}
	if lost != 2 || payload[63] != 42 {
		t.Fatalf("%d lost objects in the table, want 2", lost)
	}
}

// lose makes two memory objects and forgets them.
func lose(t *testing.T, payload []byte) {
	mapped(t, 4096)
	if _, err := AdoptSlice(payload); err != nil {
		t.Fatal(err)
	}
}

func TestEndedObjectIsNotReportedAsLost(t *testing.T) {
	leavesNothing(t)
	before := Lost()
	for range 100 {
		adopted(t, 16).Drop()
	}
	for range 3 {
		runtime.GC()
	}
	runtime.Gosched()
	if Lost() != before {
		t.Fatalf("%d ended objects reported as lost", Lost()-before)
	}
}

func TestMappingThatTheSystemKeepsStaysListedWithItsError(t *testing.T) {
	b := mapped(t, 4096)
	good := b.resident.region
	b.resident.region.start = misaligned(good) // munmap answers EINVAL
	b.Drop()
	var found *Resident
	for _, r := range Residents() {
		if r.Err != nil {
			found = &r
		}
	}
	if found == nil || !errors.Is(found.Err, unix.EINVAL) || !strings.Contains(found.String(), "not released") {
		t.Fatalf("%v", Residents())
	}
	if count, _ := Mappings(); count != 1 {
		t.Fatalf("Mappings counts %d, want 1", count)
	}
	b.resident.region = good
	b.resident.end()
}

func TestTableOfResidentsGrowsAndIsReused(t *testing.T) {
	leavesNothing(t)
	count, _ := Mappings()
	var all []*Backing
	for range 3 * shelfPlaces {
		all = append(all, adopted(t, 8))
	}
	if now, _ := Mappings(); now != count+3*shelfPlaces || len(Residents()) != int(now) {
		t.Fatalf("%d counted, %d listed", now, len(Residents()))
	}
	for _, b := range all {
		b.Drop()
	}
	shelves := func() (n int) {
		for s := &residents; s != nil; s = s.next.Load() {
			n++
		}
		return n
	}
	before := shelves()
	for range 2 * shelfPlaces * before {
		adopted(t, 8).Drop()
	}
	if shelves() != before {
		t.Fatalf("%d shelves became %d though all places are free", before, shelves())
	}
}
