package verbs

import "fmt"

// Work is one send work request with its owner's words: SendWork.ID is the caller's tag, given back with the
// completion. Window is the memory window that the work binds or invalidates, nil for any other work.
type Work struct {
	SendWork
	Window *MemoryWindow
}

// PairPlan is what a queue pair is made for.
type PairPlan struct {
	Sends, Receives         *CompletionQueue // may be one and the same
	SendDepth, ReceiveDepth int              // work requests outstanding at most
	Inline                  int              // bytes
	// Shared takes places of the completion queues for what is posted, and not for the whole depths: the queues are shared
	// (CompletionQueue.Share), posting is refused with *CreditError while they are full, and depths are only the pair's.
	Shared bool
}

// QueuePair is one reliable connection and everything it owes. CreatePair, Move and Destroy are slow and may run on the
// cold loop while the lane goes on, as long as the pair is not attached. From Attach to Detach it belongs to the lane
// that polls its queues.
type QueuePair struct {
	domain *Domain
	calls  Calls
	handle PairHandle
	number PairNumber
	state  PairState
	port   uint8 // from Init on

	sends, receives workQueue
	bound           family // windows bound, or perhaps bound, for this pair's peer
	attached        bool   // true exactly when completions find it
	draining        bool   // true exactly when Drain has begun
	fence           string // why no new work is taken; empty: it is

	sendList    []SendWork // scratch of PostSend
	receiveList []ReceiveWork
	life        life
}

// CreatePair makes a queue pair for a reliable connection, in state Reset. It reserves a completion for each work
// request (unless the queues are shared), and for one flush barrier on each queue, before anything is made. It is refused with *FencedError unless
// the context is active, and with *CreditError when a completion queue is too small. Slow.
func (d *Domain) CreatePair(plan PairPlan) (*QueuePair, error) {
	d.life.mustBeOpen(d.String(), "CreatePair")
	if plan.SendDepth < 1 || plan.ReceiveDepth < 1 || max(plan.SendDepth, plan.ReceiveDepth) >= workDepthMax {
		panic(fmt.Sprintf("verbs: CreatePair with depths %d and %d, want 1 to %d", plan.SendDepth, plan.ReceiveDepth, workDepthMax-1))
	}
	if plan.Sends.context != d.context || plan.Receives.context != d.context {
		panic(fmt.Sprintf("verbs: CreatePair in %s with %s and %s, want queues of its context", d, plan.Sends, plan.Receives))
	}
	d.context.building.Add(1) // counted before the state is read: Resume reads them the other way round
	defer d.context.building.Add(-1)
	return d.createPair(plan)
}

func (d *Domain) createPair(plan PairPlan) (*QueuePair, error) {
	if err := d.context.admit(); err != nil {
		return nil, err
	}
	if err := plan.Sends.admit(plan.Shared, plan.SendDepth); err != nil {
		return nil, err
	}
	if err := plan.Receives.admit(plan.Shared, plan.ReceiveDepth); err != nil {
		plan.Sends.dismiss(plan.Shared, plan.SendDepth) // nothing was made
		return nil, err
	}
	handle, number, err := d.calls.CreatePair(d.handle, PairOptions{
		Sends: plan.Sends.handle, Receives: plan.Receives.handle, Inline: plan.Inline,
		SendDepth: plan.SendDepth + 1, ReceiveDepth: plan.ReceiveDepth + 1,
	})
	q := &QueuePair{
		domain: d, calls: d.calls, handle: handle, number: number,
		sends: newWorkQueue(sendSpace, plan.SendDepth, plan.Sends, plan.Shared), receives: newWorkQueue(receiveSpace, plan.ReceiveDepth, plan.Receives, plan.Shared),
		sendList: make([]SendWork, plan.SendDepth), receiveList: make([]ReceiveWork, plan.ReceiveDepth),
	}
	if err != nil {
		q.giveBack() // nothing was made
		return nil, err
	}
	for _, f := range q.parents() {
		f.live.Add(1)
	}
	return q, nil
}

// parents are all that count the pair.
func (q *QueuePair) parents() []*family {
	return []*family{&q.domain.pairs, &q.domain.context.pairs, &q.sends.completes.refs, &q.receives.completes.refs}
}

// giveBack ends the reservations on both completion queues. Places of shared ones that lost work has go with it (Lost).
func (q *QueuePair) giveBack() {
	for _, w := range [...]*workQueue{&q.sends, &q.receives} {
		w.completes.dismiss(w.shared, w.depth())
	}
}

func (q *QueuePair) String() string {
	return fmt.Sprintf("queue pair %#x of %s", uint32(q.number), q.domain.context.info.Name)
}

// Number is what the peer connects to.
func (q *QueuePair) Number() PairNumber { return q.number }

// State is the state that this side moved the pair to.
func (q *QueuePair) State() PairState { return q.state }

// Fenced is why no new work is taken; empty: it is.
func (q *QueuePair) Fenced() string { return q.fence }

// Free is how many sends and receives may be posted now.
func (q *QueuePair) Free() (sends, receives int) { return len(q.sends.free), len(q.receives.free) }

// Outstanding is how many sends and receives are unresolved.
func (q *QueuePair) Outstanding() (sends, receives int) { return q.sends.taken, q.receives.taken }

// Fence stops new work; the first reason stays. What is outstanding stays charged until Drain.
func (q *QueuePair) Fence(why string) {
	if q.fence == "" {
		q.fence = why
	}
}

// Move takes the pair to the next state towards ReadyToSend. A refusal fences it: it was certainly not moved, and is
// to be destroyed. The port of Init is that of ReadyToReceive too, whose address names it again. To ReadyToReceive is
// slow.
func (q *QueuePair) Move(t Transition) error {
	q.life.mustBeOpen(q.String(), "Move")
	if t.To != q.state+1 || t.To > PairReadyToSend {
		panic(fmt.Sprintf("verbs: Move of %s from %s to %s, want the next state up to %s", q, q.state, t.To, PairReadyToSend))
	}
	if q.fence != "" {
		return q.refusal()
	}
	switch t.To {
	case PairInit:
		q.port = t.Port
	case PairReadyToReceive:
		t.Port = q.port
	}
	if err := q.calls.ModifyPair(q.handle, t); err != nil {
		q.Fence("moving it to " + t.To.String() + " failed")
		return err
	}
	q.state = t.To
	return nil
}

func (q *QueuePair) refusal() error {
	state := "fenced"
	if q.draining {
		state = "draining"
	}
	return &FencedError{Object: q.String(), State: state, Reason: q.fence}
}

// Attach lets completions find the pair: from here on it belongs to the lane of its queues. A number that another pair
// has is the device's mistake; both pairs are fenced then.
func (q *QueuePair) Attach() error {
	q.life.mustBeOpen(q.String(), "Attach")
	if q.attached {
		panic(fmt.Sprintf("verbs: Attach of %s which is attached, want detached", q))
	}
	for _, w := range [...]*workQueue{&q.sends, &q.receives} {
		if other := w.completes.pairs[q.number]; other != nil {
			err := &ViolationError{Object: q.String(), What: "the device gave two queue pairs one number"}
			q.Fence(err.What)
			other.Fence(err.What)
			return err
		}
	}
	for _, w := range [...]*workQueue{&q.sends, &q.receives} {
		w.completes.pairs[q.number] = q
		w.first = w.completes.sequence + 1
	}
	q.attached = true
	if why := q.sends.completes.fenced + q.receives.completes.fenced; why != "" {
		q.Fence(why)
	}
	return nil
}

// Destroy ends a pair that is detached: *BusyError otherwise; a refusal of the library is final. Its success proves
// that the device is done with everything that Lost then gives. Slow.
func (q *QueuePair) Destroy() error {
	if done, err := q.life.ended(); done {
		return err
	}
	attached := int64(0)
	if q.attached {
		attached = 1
	}
	if left := q.debts(Debt{"place in its completion queues (detach it)", attached}); left != nil {
		return q.life.wait(&q.domain.context.book, left, q.parents()...)
	}
	err := q.life.end(&q.domain.context.book, q.String(), "ibv_destroy_qp", func() error { return q.calls.DestroyPair(q.handle) }, q.parents()...)
	if err == nil {
		q.giveBack() // proof: destroyed, and its queues were drained before
	}
	return err
}

// Retained is true exactly when the library refused to move it to the error state or to destroy it, or Retain was called.
func (q *QueuePair) Retained() bool { return q.life.stage() == retained }

// Gone is true exactly when the pair is proven destroyed.
func (q *QueuePair) Gone() bool { return q.life.stage() == gone }

var pairStateNames = [...]string{"reset", "init", "ready to receive", "ready to send", "draining", "send error", "error"}

func (s PairState) String() string {
	if int(s) < len(pairStateNames) {
		return pairStateNames[s]
	}
	return fmt.Sprintf("queue pair state %d", uint8(s))
}
