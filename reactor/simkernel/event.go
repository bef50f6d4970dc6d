package simkernel

import (
	"syscall"

	"github.com/orbitte/orbitte/reactor"
)

type eventKind uint8

const (
	eventCall      eventKind = iota // a function of the test
	eventSegment                    // bytes reach the far end
	eventFinish                     // the end of one direction reaches the far end
	eventReset                      // a reset reaches the far end
	eventSyn                        // a connection request reaches its host
	eventConnected                  // the answer reaches the client
	eventFailed                     // the client's connect fails with errno
	eventUserTimer                  // bytes of one end were long enough without an answer
	eventKeepalive                  // probes of one end were long enough without an answer
	eventPort                       // a waiting port becomes free
)

// event is something that lies ahead. It is a value: scheduling allocates nothing in steady state.
type event struct {
	at         reactor.Instant
	rank       uint64 // order among events of one instant: scheduled first, happens first
	kind       eventKind
	connection *Connection
	direction  Direction
	n          int
	errno      syscall.Errno
	call       func()
}

// eventHeap is a binary heap by (at, rank).
type eventHeap struct {
	entries   []event
	scheduled uint64
}

func (h *eventHeap) next() reactor.Instant {
	if len(h.entries) == 0 {
		return reactor.Forever
	}
	return h.entries[0].at
}

func (h *eventHeap) before(i, j int) bool {
	a, b := &h.entries[i], &h.entries[j]
	return a.at < b.at || a.at == b.at && a.rank < b.rank
}

func (h *eventHeap) push(e event) {
	h.scheduled++
	e.rank = h.scheduled
	h.entries = append(h.entries, e)
	for i := len(h.entries) - 1; i > 0 && h.before(i, (i-1)/2); i = (i - 1) / 2 {
		h.entries[i], h.entries[(i-1)/2] = h.entries[(i-1)/2], h.entries[i]
	}
}

// pop takes the first event that is due at now.
func (h *eventHeap) pop(now reactor.Instant) (event, bool) {
	if h.next() > now || len(h.entries) == 0 {
		return event{}, false
	}
	first, last := h.entries[0], len(h.entries)-1
	h.entries[0] = h.entries[last]
	h.entries[last] = event{}
	h.entries = h.entries[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			break
		}
		if child+1 < last && h.before(child+1, child) {
			child++
		}
		if !h.before(child, i) {
			break
		}
		h.entries[i], h.entries[child] = h.entries[child], h.entries[i]
		i = child
	}
	return first, true
}

func (w *World) schedule(e event) { w.events.push(e) }

func (w *World) run(e event) {
	c := e.connection
	switch e.kind {
	case eventCall:
		e.call()
	case eventSegment:
		c.segmentArrives(e.direction, e.n)
	case eventFinish:
		c.finishArrives(e.direction)
	case eventReset:
		c.resetArrives(e.direction)
	case eventSyn:
		c.synArrives(e.n)
	case eventConnected:
		c.answerArrives(0)
	case eventFailed:
		c.answerArrives(e.errno)
	case eventUserTimer:
		c.userTimer(e.direction)
	case eventKeepalive:
		c.keepaliveTimer(e.direction, e.n)
	case eventPort:
		c.freePort()
	}
}
