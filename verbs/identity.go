package verbs

// A work request's native ID is an identity: which of a pair's queues, which place in it, and which use of that place.
// The device gives it back, and nothing else is believed.
//
//	63    60 59        40 39                    0
//	 space     slot            generation
const (
	generationBits = 40
	slotBits       = 20
	generationMask = 1<<generationBits - 1
	slotMask       = 1<<slotBits - 1

	// workDepthMax bounds a queue's depth, so that a slot fits.
	workDepthMax = 1 << slotBits
)

// space says which kind of work an identity names. Zero is none, so that no identity is zero.
type space uint8

const (
	sendSpace space = iota + 1
	receiveSpace
	sendBarrierSpace // flush barriers: the queue's own space and barrierOffset
	receiveBarrierSpace

	barrierOffset = sendBarrierSpace - sendSpace
)

func identity(s space, slot int, generation uint64) uint64 {
	return uint64(s)<<(generationBits+slotBits) | uint64(slot)<<generationBits | generation
}

func splitIdentity(id uint64) (s space, slot int, generation uint64) {
	return space(id >> (generationBits + slotBits)), int(id>>generationBits) & slotMask, id & generationMask
}

// place is one work request that a queue may have outstanding. It is taken exactly when generation is not zero.
type place struct {
	generation uint64
	tag        uint64
	window     *MemoryWindow
	expects    CompletionOperation
	barrier    bool
}

// workQueue is a pair's send or receive queue: the places, as many as were asked for, and what is known of them.
type workQueue struct {
	completes *CompletionQueue
	kind      space
	places    []place // the last one is kept for the flush barrier
	free      []int32 // places for work, used from the end
	taken     int     // work outstanding, without the barrier
	first     uint64  // generation of the queue's first work: older ones belong to a pair before this one
	barrier   barrierState
	shared    bool // true exactly when each piece of work has a place in the completion queue of its own
}

// neverSucceeds is the operation of work that can only be flushed.
const neverSucceeds CompletionOperation = 1 << 31

type barrierState uint8

const (
	noBarrier      barrierState = iota
	barrierPosted               // with the device, or perhaps
	barrierPassed               // flushed: the device has done with everything before it
	barrierRefused              // certainly not with the device
)

func newWorkQueue(kind space, depth int, completes *CompletionQueue, shared bool) workQueue {
	w := workQueue{completes: completes, kind: kind, shared: shared, places: make([]place, depth+1), free: make([]int32, depth)}
	for i := range w.free {
		w.free[i] = int32(depth - 1 - i) // lowest first
	}
	return w
}

func (w *workQueue) depth() int { return len(w.places) - 1 }

// drained is true exactly when the device has certainly done with all work of this queue.
func (w *workQueue) drained() bool {
	return w.taken == 0 && w.barrier != barrierPosted || w.barrier == barrierPassed
}

// afford checks that n more requests have places, in the queue and in the completion queue, and takes the latter.
func (w *workQueue) afford(queue string, pair *QueuePair, n int) error {
	if n > len(w.free) {
		return &CreditError{Queue: queue + " of " + pair.String(), Asked: n, Used: w.taken, Limit: w.depth()}
	}
	if w.shared {
		return w.completes.reserve(n)
	}
	return nil
}

// take fills a free place. The caller has checked that there is one.
func (w *workQueue) take(tag uint64, expects CompletionOperation, window *MemoryWindow) (id uint64, slot int32) {
	last := len(w.free) - 1
	slot = w.free[last]
	w.free = w.free[:last]
	w.taken++
	return w.fill(w.kind, slot, place{tag: tag, expects: expects, window: window}), slot
}

func (w *workQueue) fill(s space, slot int32, p place) uint64 {
	w.completes.sequence++
	if w.completes.sequence > generationMask {
		w.completes.sequence = 1
	}
	p.generation = w.completes.sequence
	w.places[slot] = p
	return identity(s, int(slot), p.generation)
}

// release empties a place whose work has ended, or was never begun.
func (w *workQueue) release(slot int32) {
	w.places[slot] = place{}
	w.free = append(w.free, slot) // never grows: as many as places for work
	w.taken--
	if w.shared {
		w.completes.reserved.Add(-1)
	}
}
