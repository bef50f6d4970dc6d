package segments

import (
	"fmt"
	"math/bits"
	"runtime"
	"sync/atomic"
)

// Kind says what a memory object is and what its end means.
type Kind uint8

const (
	// Mapping is memory that Map took from the system; its end unmaps it.
	Mapping Kind = iota + 1
	// Pin is a Go slice from AdoptSlice; its end unpins it.
	Pin
	// Foreign is memory from AdoptPointer or AdoptHost; its end lets go of the owner and frees nothing.
	Foreign
	// Device is memory from AdoptDevice, which has no bytes for the CPU; its end lets go of the owner and tells it.
	Device
)

// String names the kind.
func (k Kind) String() string {
	switch k {
	case Mapping:
		return "mapping"
	case Pin:
		return "pinned slice"
	case Foreign:
		return "foreign memory"
	case Device:
		return "device memory"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// resident is the part of a memory object that must outlive a lost Backing. It stands in the process's
// table from adoption to its proven end, which keeps owner and pinned slice reachable; it never points
// back at the Backing, so that a lost one can be noticed. (A pinner the collector finds while it pins
// stops the program, one more reason for the table.)
type resident struct {
	kind    Kind
	address uint64
	length  uint64
	pinner  runtime.Pinner // Pin: holds the slice in place and alive
	owner   any            // Foreign, Device: kept alive
	ended   func()         // told of the end; may be nil
	region  mapping        // Mapping: what munmap gets, at least as large as the object
	home    *shelf         // where it stands
	place   int
	lost    atomic.Bool           // true exactly when its Backing was collected without the last Drop
	failure atomic.Pointer[error] // why its end failed; it then stays for good
}

// Resident describes one live memory object of this process, for leak checks and reports.
type Resident struct {
	Kind            Kind
	Address, Length uint64
	Lost            bool  // its Backing was collected before the last Drop; it stays for good
	Err             error // the system refused to unmap it; it stays for good
}

// String says what is there, and why when it can no longer go.
func (r Resident) String() string {
	text := fmt.Sprintf("%v of %d bytes at %#x", r.Kind, r.Length, r.Address)
	if r.Lost {
		text += ", owner lost without Drop"
	}
	if r.Err != nil {
		text += ", not released: " + r.Err.Error()
	}
	return text
}

// shelfPlaces is the number of residents on one shelf: one word of bits.
const shelfPlaces = 64

// shelf is one part of the process's table. Shelves are chained and never removed; taken has a bit for
// each place in use.
type shelf struct {
	taken  atomic.Uint64
	places [shelfPlaces]atomic.Pointer[resident]
	next   atomic.Pointer[shelf]
}

var (
	residents     shelf        // first shelf of the table
	residentCount atomic.Int64 // live objects
	residentBytes atomic.Int64 // and their lengths
	lostOwners    atomic.Int64 // Backings collected without the last Drop, ever
)

// enter puts a resident on the first free place. No lock: a bit taken by compare-and-swap owns a place.
func (r *resident) enter() {
	for s := &residents; ; s = s.successor() {
		if place, ok := takeBit(&s.taken); ok {
			r.home, r.place = s, place
			s.places[place].Store(r)
			residentCount.Add(1)
			residentBytes.Add(int64(r.length))
			return
		}
	}
}

// leave takes it off; the memory has ended.
func (r *resident) leave() {
	r.home.places[r.place].Store(nil)
	clearBit(&r.home.taken, r.place)
	residentCount.Add(-1)
	residentBytes.Add(-int64(r.length))
}

func (s *shelf) successor() *shelf {
	if next := s.next.Load(); next != nil {
		return next
	}
	s.next.CompareAndSwap(nil, new(shelf)) // whoever loses takes the winner's
	return s.next.Load()
}

// reportLost runs when a Backing was collected although it still had holders. It only takes note:
// what a peer or a NIC may still write must not be freed on the collector's word (DESIGN §5).
func reportLost(r *resident) {
	r.lost.Store(true)
	lostOwners.Add(1)
}

// Mappings counts the memory objects of this process that have not ended (mappings, pins, foreign and
// device memory) and sums their lengths in bytes. A program that dropped everything reads zero. Any
// goroutine may call it; while objects come and go the two numbers are read one after the other.
func Mappings() (count int64, bytes int64) {
	return residentCount.Load(), residentBytes.Load()
}

// Lost counts the memory objects whose Backing was collected before its last Drop, since the process
// began. Each is a mistake of its owner, and its memory stays until the process ends.
func Lost() int64 { return lostOwners.Load() }

// Residents lists the live memory objects in no particular order. Objects that come or go meanwhile may
// be missing. Any goroutine may call it; it allocates.
func Residents() []Resident {
	var all []Resident
	for s := &residents; s != nil; s = s.next.Load() {
		for i := range s.places {
			r := s.places[i].Load()
			if r == nil {
				continue
			}
			one := Resident{Kind: r.kind, Address: r.address, Length: r.length, Lost: r.lost.Load()}
			if failure := r.failure.Load(); failure != nil {
				one.Err = *failure
			}
			all = append(all, one)
		}
	}
	return all
}

// takeBit sets the lowest clear bit of a word and returns its number; false when all are set.
func takeBit(word *atomic.Uint64) (int, bool) {
	for {
		old := word.Load()
		if old == ^uint64(0) {
			return 0, false
		}
		bit := bits.TrailingZeros64(^old)
		if word.CompareAndSwap(old, old|1<<bit) {
			return bit, true
		}
	}
}

// clearBit clears a bit that the caller owns.
func clearBit(word *atomic.Uint64, bit int) {
	word.And(^(uint64(1) << bit))
}
