package lanes

import (
	"math/bits"

	"github.com/orbitte/orbitte/segments"
)

const (
	// bufferBytesMin is the smallest staging buffer: one page.
	bufferBytesMin = 4 << 10
	// idleBufferBytesMax bounds what an arena keeps mapped for reuse: one largest payload.
	idleBufferBytesMax = 64 << 20
	// slotBytes is one slot for a stream's frame headers: two cache lines each way, and two for those of a neighbouring
	// frame that travel along.
	slotBytes = 384
	// slabBytes is how much is mapped for slots at a time.
	slabBytes = 64 << 10
)

// Buffer is a run of staging memory off the Go heap, owned by whoever took it until Put.
type Buffer struct {
	backing *segments.Backing
	class   int
}

// Bytes returns the first n bytes of the buffer.
func (b Buffer) Bytes(n uint64) []byte { return b.backing.Bytes()[:n:n] }

// Held is true exactly when the buffer was taken and not put back.
func (b Buffer) Held() bool { return b.backing != nil }

// Arena lends staging buffers and header slots to the machines of one lane. It is used by the
// lane's thread alone, so that first touch places its pages on the lane's NUMA node (SPEC L-5). What is
// lent is bounded by the budgets of those who borrow (requester bytes in flight, source handlers);
// what lies idle is bounded by idleBufferBytesMax.
type Arena struct {
	// Refuse, unless nil, is asked before a buffer is mapped, and its error stands for the system's: the door for
	// simulated systems that have no memory.
	Refuse func(bytes uint64) error

	idle      [48][]*segments.Backing // by size class: 1 << class bytes
	idleBytes uint64
	lentBytes uint64
	lent      int
	slabs     []*segments.Backing
	slots     [][]byte
	slotsLent int
}

func classOf(n uint64) int {
	if n <= bufferBytesMin {
		return bits.Len64(bufferBytesMin - 1)
	}
	return bits.Len64(n - 1)
}

// Get lends a buffer of at least n bytes; the most recently returned one first, since it is warm.
func (a *Arena) Get(n uint64) (Buffer, error) {
	class := classOf(n)
	size := uint64(1) << class
	if list := a.idle[class]; len(list) > 0 {
		backing := list[len(list)-1]
		list[len(list)-1] = nil
		a.idle[class] = list[:len(list)-1]
		a.idleBytes -= size
		a.lend(size)
		return Buffer{backing, class}, nil
	}
	if a.Refuse != nil {
		if err := a.Refuse(size); err != nil {
			return Buffer{}, err
		}
	}
	a.trim(size)
	backing, err := segments.Map(size)
	if err != nil {
		return Buffer{}, err
	}
	a.lend(size)
	return Buffer{backing, class}, nil
}

func (a *Arena) lend(size uint64) {
	a.lent++
	a.lentBytes += size
}

// trim unmaps idle buffers, the largest first, until size more would fit under the idle bound: a
// changed mix of sizes does not pile up mappings.
func (a *Arena) trim(size uint64) {
	for class := len(a.idle) - 1; class >= 0 && a.idleBytes+size > idleBufferBytesMax; class-- {
		for list := a.idle[class]; len(list) > 0 && a.idleBytes+size > idleBufferBytesMax; list = a.idle[class] {
			list[len(list)-1].Drop()
			list[len(list)-1] = nil
			a.idle[class] = list[:len(list)-1]
			a.idleBytes -= uint64(1) << class
		}
	}
}

// Put takes a buffer back and empties the holder's value.
func (a *Arena) Put(b *Buffer) {
	if b.backing == nil {
		panic("lanes: a buffer was put back twice")
	}
	size := uint64(1) << b.class
	a.lent--
	a.lentBytes -= size
	if a.idleBytes+size > idleBufferBytesMax {
		b.backing.Drop()
	} else {
		a.idle[b.class] = append(a.idle[b.class], b.backing)
		a.idleBytes += size
	}
	*b = Buffer{}
}

// Slot lends memory for frame headers.
func (a *Arena) Slot() ([]byte, error) {
	if len(a.slots) == 0 {
		slab, err := segments.Map(slabBytes)
		if err != nil {
			return nil, err
		}
		a.slabs = append(a.slabs, slab)
		for bytes := slab.Bytes(); len(bytes) >= slotBytes; bytes = bytes[slotBytes:] {
			a.slots = append(a.slots, bytes[:slotBytes:slotBytes])
		}
	}
	slot := a.slots[len(a.slots)-1]
	a.slots = a.slots[:len(a.slots)-1]
	a.slotsLent++
	return slot, nil
}

// PutSlot takes a slot back.
func (a *Arena) PutSlot(slot []byte) {
	a.slots = append(a.slots, slot)
	a.slotsLent--
}

// Lent says how many buffers, bytes of buffers and slots are out.
func (a *Arena) Lent() (buffers int, bytes uint64, slots int) {
	return a.lent, a.lentBytes, a.slotsLent
}

// Close unmaps what is idle. What is still lent stays mapped, with its borrower.
func (a *Arena) Close() {
	for class, list := range a.idle {
		for _, backing := range list {
			backing.Drop()
		}
		a.idle[class] = nil
	}
	a.idleBytes = 0
	if a.slotsLent == 0 {
		for _, slab := range a.slabs {
			slab.Drop()
		}
		a.slabs, a.slots = nil, nil
	}
}
