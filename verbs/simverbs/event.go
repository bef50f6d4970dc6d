package simverbs

import "time"

type eventKind uint8

const (
	eventPacket    eventKind = iota // packet arrives
	eventRequester                  // pair sends on
	eventResponder                  // pair answers on
	eventTimer                      // pair's acknowledgement is late
	eventNotReady                   // pair tries again after "receiver not ready"
	eventFlush                      // pair in error flushes on
	eventCall                       // call
)

// event is something that lies ahead.
type event struct {
	at       time.Duration
	sequence uint64 // keeps the order of equal instants
	kind     eventKind
	pair     *pair
	epoch    uint64 // eventNotReady: which pause it ends
	packet   *packet
	call     func()
}

// eventHeap is a binary heap of values: pushing allocates only while it grows.
type eventHeap struct{ all []event }

func (h *eventHeap) next() time.Duration {
	if len(h.all) == 0 {
		return far
	}
	return h.all[0].at
}

func (h *eventHeap) less(i, j int) bool {
	a, b := &h.all[i], &h.all[j]
	return a.at < b.at || a.at == b.at && a.sequence < b.sequence
}

func (h *eventHeap) push(e event) {
	h.all = append(h.all, e)
	for i := len(h.all) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h.less(i, parent) {
			return
		}
		h.all[i], h.all[parent] = h.all[parent], h.all[i]
		i = parent
	}
}

func (h *eventHeap) pop() event {
	first := h.all[0]
	last := len(h.all) - 1
	h.all[0] = h.all[last]
	h.all[last] = event{}
	h.all = h.all[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if h.less(child, least) {
				least = child
			}
		}
		if least == i {
			return first
		}
		h.all[i], h.all[least] = h.all[least], h.all[i]
		i = least
	}
}

// schedule puts an event d ahead.
func (f *Fabric) schedule(d time.Duration, e event) { f.scheduleAt(f.now()+d, e) }

func (f *Fabric) scheduleAt(at time.Duration, e event) {
	f.sequence++
	e.at, e.sequence = at, f.sequence
	f.events.push(e)
}

func (f *Fabric) run(e event) {
	f.instant = e.at
	defer func() { f.instant = -1 }()
	switch e.kind {
	case eventPacket:
		f.arrive(e.packet)
	case eventRequester:
		e.pair.requesting = false
		e.pair.request()
	case eventResponder:
		e.pair.responding = false
		e.pair.respond()
	case eventTimer:
		e.pair.timeout()
	case eventNotReady:
		e.pair.retryNotReady(e.epoch)
	case eventFlush:
		e.pair.flushing = false
		e.pair.flush()
	case eventCall:
		e.call()
	}
}
