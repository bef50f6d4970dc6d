package segments

import (
	"fmt"
	"math/bits"
	"sync/atomic"
)

// The lease table arbitrates without a lock. A claimant takes a free slot, writes its range there,
// announces the claim, and only then looks at all other slots. Atomic operations in Go have one total
// order, so of two claimants at least one sees the other. Between two unfinished claims the earlier slot has
// precedence: the later one withdraws, or is doomed by the earlier. Nobody waits for anybody.
const (
	chunkSlots = 64 // one word of bits
	chunksMax  = 64
	leasesMax  = chunkSlots * chunksMax // leases of one memory object at a time
)

// The phases of a slot, in the low bits of its state word. Above them stand the access bit and a
// generation that rises with each claim, so that a state word names one claim for good.
const (
	free     = iota
	claiming // announced, still looking
	held     // the lease is out
	doomed   // an earlier claimant refused it; its owner will find out

	phaseBits  = 3
	accessBit  = 4
	generation = 8
)

// slot is one claim or lease. Its words are written by the owner of the slot's bit only, except that another
// claimant may change claiming to doomed.
type slot struct {
	state      atomic.Uint64
	start, end atomic.Uint64
	marks      atomic.Pointer[marks] // nil: all of start to end
}

// chunk is a part of the table. Chunks are added when all slots are taken and stay until the Backing goes.
type chunk struct {
	taken atomic.Uint64 // a bit for each slot that has an owner
	slots [chunkSlots]slot
	next  atomic.Pointer[chunk]
}

// leaseTable is part of a Backing. The zero value is empty.
type leaseTable struct {
	first chunk
}

type verdict uint8

const (
	granted verdict = iota
	refused         // conflict with a lease or an earlier claim
	outrun          // doomed by an earlier claim
	full            // no free slot
)

// standing is what a scan met.
type standing struct {
	extent Range
	access Access
}

// claim tries to get the lease's extent. When granted, chunk, place and claim of the lease are set.
func (t *leaseTable) claim(l *Lease, a Access) (standing, verdict) {
	rank, ok := t.announce(l, a)
	if !ok {
		return standing{}, full
	}
	found, clear := t.scan(l, a, rank)
	return found, l.decide(clear)
}

// announce takes a slot and shows the claim to everybody. It returns the slot's rank in the table.
func (t *leaseTable) announce(l *Lease, a Access) (rank int, ok bool) {
	rank, ok = t.take(l)
	if !ok {
		return 0, false
	}
	s := &l.chunk.slots[l.place]
	s.start.Store(l.extent.Start)
	s.end.Store(l.extent.End())
	if s.marks.Load() != l.marks {
		s.marks.Store(l.marks)
	}
	fresh := (s.state.Load()/generation + 1) * generation
	l.claim = fresh | uint64(a)*accessBit | held
	s.state.Store(l.claim - held + claiming)
	return rank, true
}

// decide ends an announced claim: held when the scan was clear and no earlier claim has doomed it
// since, withdrawn otherwise.
func (l *Lease) decide(clear bool) verdict {
	s := &l.chunk.slots[l.place]
	if clear && s.state.CompareAndSwap(l.claim-held+claiming, l.claim) {
		return granted
	}
	s.state.Store(l.claim - held + free)
	clearBit(&l.chunk.taken, l.place)
	if clear {
		return outrun
	}
	return refused
}

// take gets a free slot and its rank in the table.
func (t *leaseTable) take(l *Lease) (rank int, ok bool) {
	c := &t.first
	for n := 0; ; n++ {
		if place, ok := takeBit(&c.taken); ok {
			l.chunk, l.place = c, place
			return n*chunkSlots + place, true
		}
		if n+1 == chunksMax {
			return 0, false
		}
		c = c.successor()
	}
}

func (c *chunk) successor() *chunk {
	if next := c.next.Load(); next != nil {
		return next
	}
	c.next.CompareAndSwap(nil, new(chunk)) // whoever loses takes the winner's
	return c.next.Load()
}

// scan looks at every other slot in use. It is clear when nothing that stands there excludes the claim,
// apart from later claims, which it has doomed.
func (t *leaseTable) scan(l *Lease, a Access, rank int) (standing, bool) {
	base := 0
	for c := &t.first; c != nil; c = c.next.Load() {
		for used := c.taken.Load(); used != 0; used &= used - 1 {
			place := bits.TrailingZeros64(used)
			if base+place == rank {
				continue
			}
			if found, clear := c.slots[place].yields(l, a, base+place > rank); !clear {
				return found, false
			}
		}
		base += chunkSlots
	}
	return standing{}, true
}

// yields reports whether the slot leaves the asked range alone. later says that an unfinished claim in it
// has to give way. The loop repeats only when the slot changed meanwhile, that is when others got on.
func (s *slot) yields(asked *Lease, a Access, later bool) (standing, bool) {
	for {
		state := s.state.Load()
		phase := state & phaseBits
		if phase == free || phase == doomed {
			return standing{}, true
		}
		other := standing{Range{Start: s.start.Load()}, Access(state / accessBit % 2)}
		other.extent.Length = s.end.Load() - other.extent.Start
		if s.state.Load() != state {
			continue // the range just read may belong to another claim
		}
		if !a.conflicts(other.access) || !asked.extent.Overlaps(other.extent) {
			return standing{}, true
		}
		if of := s.marks.Load(); asked.marks != nil || of != nil {
			apart, stands := s.apart(asked, other.extent, of, state)
			if !stands {
				continue
			}
			if apart {
				return standing{}, true
			}
		}
		if phase == held || !later {
			return other, false
		}
		if s.state.CompareAndSwap(state, state-claiming+doomed) {
			return standing{}, true
		}
	}
}

// apart reports whether the asked ranges and those of the slot's claim share no byte; stands is false when the claim with this
// state word stands no longer: extent and marks may be another's, and the marks are being written then.
func (s *slot) apart(asked *Lease, extent Range, of *marks, state uint64) (apart, stands bool) {
	if of == nil {
		return !share(asked.extent, asked.marks, extent, nil), s.state.Load() == state
	}
	of.readers.Add(1) // before the look at the state: see marks
	defer of.readers.Add(-1)
	if s.state.Load() != state {
		return false, false
	}
	return !share(asked.extent, asked.marks, extent, of), true
}

// release ends a held lease: the state word proves that it is this lease and that it is still out.
func (c *chunk) release(place int, claim uint64) {
	s := &c.slots[place]
	if !s.state.CompareAndSwap(claim, claim-held+free) {
		panic(fmt.Sprintf("segments: Return of lease %#x while its slot is in state %#x: a copy was returned before", claim, s.state.Load()))
	}
	clearBit(&c.taken, place)
}

// quiet reports whether no slot has an owner.
func (t *leaseTable) quiet() bool {
	for c := &t.first; c != nil; c = c.next.Load() {
		if c.taken.Load() != 0 {
			return false
		}
	}
	return true
}
