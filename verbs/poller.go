package verbs

import "fmt"

// Reaped is a completion that ended work of ours. ID is the caller's tag again. Unless Status is success, only ID,
// Status, Vendor and Pair mean anything, and the rest is zero (ibv_poll_cq(3)).
type Reaped struct {
	Completion
	Pair *QueuePair
	// Window is what the work bound or invalidated; it has moved to its next phase already. Nil otherwise.
	Window *MemoryWindow
}

// Poller takes completions from the two queues of a lane in one crossing. It belongs to that lane.
type Poller struct {
	sends, receives *CompletionQueue
	scratch         []Completion
	quiet           bool // true exactly when the last Poll, since both queues were armed, found nothing
}

// NewPoller makes a poller for the queues of one context. They may be one and the same, then given twice.
func NewPoller(sends, receives *CompletionQueue, batch int) *Poller {
	if batch < 1 || sends.context != receives.context {
		panic(fmt.Sprintf("verbs: NewPoller of %s and %s with batch %d, want one context and 1 or more", sends, receives, batch))
	}
	return &Poller{sends: sends, receives: receives, scratch: make([]Completion, batch)}
}

// Poll takes up to a batch of completions, validates them, and writes those that ended work to out, which has room for
// a batch. Taken is how many the device gave, flush barriers and refused ones included; when it equals the batch, more
// may wait. An error fences both queues: completions may be lost. What was taken before the error is still returned.
// It allocates nothing when all is well.
func (p *Poller) Poll(out []Reaped) (reaped, taken int, err error) {
	if len(out) < len(p.scratch) {
		panic(fmt.Sprintf("verbs: Poll into %d places, want the batch of %d", len(out), len(p.scratch)))
	}
	receives := p.receives.handle
	if p.receives == p.sends {
		receives = 0
	}
	sent, received, err := p.sends.context.calls.Poll(p.sends.handle, receives, p.scratch)
	for i := range sent + received {
		from := p.sends
		if i >= sent {
			from = p.receives
		}
		if from.accept(&p.scratch[i], &out[reaped]) {
			reaped++
		}
	}
	p.quiet = err == nil && sent+received == 0 && p.sends.armed && p.receives.armed
	if err != nil {
		p.sends.Fence("polling failed: " + err.Error())
		p.receives.Fence("polling failed: " + err.Error())
	}
	return reaped, sent + received, err
}

// Arm arms both queues (SPEC R-19). Poll until MayBlock afterwards.
func (p *Poller) Arm() error {
	p.quiet = false
	if err := p.sends.Arm(); err != nil {
		return err
	}
	return p.receives.Arm()
}

// MayBlock is true exactly when both queues were armed and then found empty, so that the next completion raises an
// event.
func (p *Poller) MayBlock() bool { return p.quiet && p.sends.armed && p.receives.armed }

// accept ends the work that a completion names, or counts why it names none (SPEC R-14).
func (q *CompletionQueue) accept(c *Completion, out *Reaped) bool {
	pair := q.pairs[c.Pair]
	if pair == nil {
		q.counts.Foreign++
		return false
	}
	kind, slot, generation := splitIdentity(c.ID)
	w := pair.queueOf(q, kind, slot)
	if w == nil {
		q.counts.Malformed++
		pair.Fence("a completion with an impossible identity")
		return false
	}
	at := &w.places[slot]
	if at.generation != generation || generation == 0 {
		q.counts.Stale++
		if generation >= w.first { // not of a pair that had this number before
			pair.Fence("a late or double completion")
		}
		return false
	}
	if c.Status == WorkSuccess && c.Operation != at.expects {
		q.counts.Mismatch++
		pair.Fence(fmt.Sprintf("success of operation %d for work that ends in %d", c.Operation, at.expects))
		return false
	}
	if at.barrier {
		q.counts.Barriers++
		*at = place{}
		w.barrier = barrierPassed // proof: queues complete in order, and it was the last
		return false
	}
	q.counts.Paid++
	pair.reap(w, at, int32(slot), c, out)
	return true
}

// queueOf finds the queue that an identity belongs to, if it completes into q.
func (p *QueuePair) queueOf(q *CompletionQueue, kind space, slot int) *workQueue {
	for _, w := range [...]*workQueue{&p.sends, &p.receives} {
		if w.completes != q || slot >= len(w.places) {
			continue
		}
		last := slot == w.depth()
		if kind == w.kind && !last || kind == w.kind+barrierOffset && last {
			return w
		}
	}
	return nil
}

func (p *QueuePair) reap(w *workQueue, at *place, slot int32, c *Completion, out *Reaped) {
	*out = Reaped{Completion: *c, Pair: p, Window: at.window}
	if c.Status != WorkSuccess {
		out.Completion = Completion{Status: c.Status, Vendor: c.Vendor, Pair: c.Pair}
		p.Fence(c.Status.String())
	}
	out.ID = at.tag
	if at.window != nil {
		at.window.completed(c.ID, c.Status == WorkSuccess)
	}
	w.release(slot) // proof: the device's completion of exactly this use of this place
}

var workStatusNames = [...]string{
	"success", "local length error", "local queue pair error", "local EE context error", "local protection error", "flushed",
	"memory window bind error", "bad response", "local access error", "remote invalid request", "remote access error",
	"remote operation error", "retries exceeded", "receiver-not-ready retries exceeded", "local RDD violation",
	"remote invalid RD request", "remote aborted", "invalid EE context number", "invalid EE context state", "fatal error",
	"response timeout", "general error",
}

func (s WorkStatus) String() string {
	if int(s) < len(workStatusNames) {
		return workStatusNames[s]
	}
	return fmt.Sprintf("work status %d", uint32(s))
}
