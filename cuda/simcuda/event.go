package simcuda

import "time"

// event is something that lies ahead.
type event struct {
	at       time.Duration
	sequence uint64  // keeps the order of equal instants
	stream   *stream // whose running operation ends; nil: another kind
	signal   *signal // whose callback runs
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
	first, last := h.all[0], len(h.all)-1
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

// schedule puts an event t ahead.
func (d *Driver) schedule(t time.Duration, e event) {
	d.sequence++
	e.at, e.sequence = d.now()+t, d.sequence
	d.events.push(e)
}

func (d *Driver) run(e event) {
	d.instant = e.at
	switch {
	case e.stream != nil:
		e.stream.finish()
	case e.signal != nil:
		e.signal.called()
	default:
		e.call()
	}
	d.instant = -1
}
