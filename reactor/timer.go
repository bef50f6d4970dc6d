package reactor

// TimerHandler is told that a timer's instant has come. Expire runs on the loop's thread, inside
// Turn, with the reading of the clock that the whole dispatch goes by; the timer is no longer armed
// and may be armed again.
type TimerHandler interface {
	Expire(*Timer, Instant)
}

// Timer is one entry of a loop's timer heap. It is owned by its user, its zero value is ready, and
// it must not be copied or freed for other use while armed. All use is on the loop's thread.
type Timer struct {
	at      Instant
	order   uint64 // rank among timers of the same instant: armed first, expires first
	handler TimerHandler
	heap    *timerHeap
	place   int // index in the heap; meaningful exactly when heap is not nil
}

// Armed says whether the timer waits in a loop.
func (t *Timer) Armed() bool { return t.heap != nil }

// At is the instant the timer was last armed for.
func (t *Timer) At() Instant { return t.at }

// timerHeap is a binary heap by (instant, order). The order makes equal instants expire in the order
// they were armed, so that a run can be repeated exactly.
type timerHeap struct {
	entries []*Timer
	armed   uint64 // timers armed so far; the source of order
}

// next is the earliest instant, Forever when no timer is armed.
func (h *timerHeap) next() Instant {
	if len(h.entries) == 0 {
		return Forever
	}
	return h.entries[0].at
}

func (h *timerHeap) arm(t *Timer, at Instant, handler TimerHandler) {
	if handler == nil {
		panic("reactor: Arm needs a handler")
	}
	if t.heap != nil && t.heap != h {
		panic("reactor: timer is armed on another loop; disarm it there before arming it here")
	}
	h.armed++
	t.at, t.order, t.handler = at, h.armed, handler
	if t.heap == nil {
		t.heap = h
		t.place = len(h.entries)
		h.entries = append(h.entries, t)
	}
	h.restore(t.place)
}

func (h *timerHeap) disarm(t *Timer) {
	if t.heap == nil {
		return
	}
	if t.heap != h {
		panic("reactor: timer is armed on another loop; it can only be disarmed there")
	}
	place, last := t.place, len(h.entries)-1
	moved := h.entries[last]
	h.entries[last] = nil
	h.entries = h.entries[:last]
	t.heap, t.handler = nil, nil
	if moved == t {
		return
	}
	h.entries[place] = moved
	moved.place = place
	h.restore(place)
}

// expire removes the earliest timer when its instant is not later than now.
func (h *timerHeap) expire(now Instant) (*Timer, TimerHandler) {
	if len(h.entries) == 0 || h.entries[0].at > now {
		return nil, nil
	}
	t := h.entries[0]
	handler := t.handler
	h.disarm(t)
	return t, handler
}

func (h *timerHeap) before(i, j int) bool {
	a, b := h.entries[i], h.entries[j]
	return a.at < b.at || a.at == b.at && a.order < b.order
}

func (h *timerHeap) swap(i, j int) {
	e := h.entries
	e[i], e[j] = e[j], e[i]
	e[i].place, e[j].place = i, j
}

// restore moves the entry at i up or down to where it belongs.
func (h *timerHeap) restore(i int) {
	for i > 0 && h.before(i, (i-1)/2) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		child := 2*i + 1
		if child >= len(h.entries) {
			return
		}
		if child+1 < len(h.entries) && h.before(child+1, child) {
			child++
		}
		if !h.before(child, i) {
			return
		}
		h.swap(i, child)
		i = child
	}
}
