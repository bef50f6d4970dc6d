package verbs

import "fmt"

// Drain takes the pair to the error state and posts a flush barrier behind the work of each queue that still owes some.
// From then on it takes no work. Poll goes on; Drained tells when the device is done with everything. A refusal to go
// to the error state retains the pair: nothing can be proven about it any more. It may be called again and then
// answers as before. A pair that is not attached has posted nothing and is drained at once.
func (q *QueuePair) Drain() error {
	if done, err := q.life.ended(); done {
		return err
	}
	if q.draining {
		return nil
	}
	q.draining = true
	q.Fence("draining")
	if q.state == PairReset { // nothing can have been posted, and the error state is not reachable from here
		return nil
	}
	q.postReceiveBarrier()
	if err := q.calls.ModifyPair(q.handle, Transition{To: PairError}); err != nil {
		return q.retain("ibv_modify_qp to the error state", err)
	}
	q.state = PairError
	q.postSendBarrier()
	return nil
}

// A barrier is one more request behind all others of a queue. The error state flushes in order, so its end proves that
// the device has done with the rest, even if completions of the rest were lost.

// postReceiveBarrier comes before the move to the error state, because soft-RoCE does not look at receives that are
// posted later until something else happens (seen with verbstest). Should the pair be in error already, the move is
// that something. A message of the peer may end the barrier in the meantime, which proves as much.
func (q *QueuePair) postReceiveBarrier() {
	if q.receives.taken == 0 {
		return
	}
	id := q.receives.fill(receiveBarrierSpace, int32(q.receives.depth()), place{barrier: true, expects: CompletedReceive})
	list := [1]ReceiveWork{{ID: id}} // no bytes
	accepted, err := q.calls.PostReceive(q.handle, list[:])
	q.receives.barrierPost(accepted, err)
}

// postSendBarrier comes after the move, when nothing can carry it to the peer any more.
func (q *QueuePair) postSendBarrier() {
	if q.sends.taken == 0 {
		return
	}
	id := q.sends.fill(sendBarrierSpace, int32(q.sends.depth()), place{barrier: true, expects: neverSucceeds})
	list := [1]SendWork{{ID: id, Operation: Send, Flags: Signaled}} // no bytes
	accepted, err := q.calls.PostSend(q.handle, list[:])
	q.sends.barrierPost(accepted, err)
}

func (w *workQueue) barrierPost(accepted int, err error) {
	if err != nil && accepted == 0 {
		w.places[w.depth()] = place{}
		w.barrier = barrierRefused
		return
	}
	w.barrier = barrierPosted
}

// Retain keeps the pair for good because the proof of its drain did not come in time. Completions that come later
// still pay what they name; windows whose bind or invalidate is unresolved are retained with it.
func (q *QueuePair) Retain(why error) error {
	if done, err := q.life.ended(); done {
		return err
	}
	q.Fence("retained")
	return q.retain("waiting for its flush", why)
}

func (q *QueuePair) retain(call string, why error) error {
	for i := range q.sends.places {
		if w := q.sends.places[i].window; w != nil {
			w.retainWith(q, call, why)
		}
	}
	return q.life.retain(&q.domain.context.book, q.String(), call, why, q.parents()...)
}

// Drained is true exactly when the device has certainly done with all work of the pair: every completion was reaped, or
// the flush barrier behind the missing ones was.
func (q *QueuePair) Drained() bool {
	return (q.draining || q.state == PairReset) && q.sends.drained() && q.receives.drained()
}

// debts is what stands between the pair and its end; nil: nothing.
func (q *QueuePair) debts(more ...Debt) *BusyError {
	undrained := int64(0)
	if !q.Drained() {
		undrained = 1
	}
	missing := int64(0)
	for _, w := range [...]*workQueue{&q.sends, &q.receives} {
		if !w.drained() {
			missing += int64(w.taken)
			if w.barrier == barrierPosted {
				missing++
			}
		}
	}
	if undrained == 1 && missing > 0 {
		undrained = 0 // said more exactly by the work that is missing
	}
	bound := q.bound.live.Load()
	kept := bound > 0 && q.bound.allKept() && undrained == 0 && missing == 0
	return busy(q.String(), kept, append([]Debt{
		{"unproven work requests", missing}, {"drain to come", undrained}, {"bound memory windows", bound},
	}, more...)...)
}

// Detach takes a drained pair without bound windows out of its completion queues: *BusyError otherwise. Afterwards
// Destroy may run on the cold loop. A pair that was never attached is simply left so.
func (q *QueuePair) Detach() error {
	if done, err := q.life.ended(); done {
		return err
	}
	if left := q.debts(); left != nil {
		return q.life.wait(&q.domain.context.book, left, q.parents()...)
	}
	if q.attached {
		delete(q.sends.completes.pairs, q.number)
		delete(q.receives.completes.pairs, q.number)
		q.attached = false
	}
	return nil
}

// Lost gives back the tags of work whose completion never came, once: the pair is destroyed, and its queues were
// drained before, so the device is done with it. It returns how many it wrote; call it until that is zero.
func (q *QueuePair) Lost(out []Tag) int {
	if !q.Gone() {
		panic(fmt.Sprintf("verbs: Lost of %s which is %s, want gone", q, q.life.stage()))
	}
	n := 0
	for _, w := range [...]*workQueue{&q.sends, &q.receives} {
		for slot := range w.depth() {
			if p := w.places[slot]; p.generation != 0 && n < len(out) {
				out[n] = Tag{Value: p.tag, Receive: w.kind == receiveSpace}
				n++
				w.release(int32(slot))
			}
		}
	}
	return n
}

// Tag is the caller's word for one work request.
type Tag struct {
	Value   uint64
	Receive bool
}
