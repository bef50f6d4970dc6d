package simverbs

import (
	"syscall"

	"github.com/orbitte/orbitte/verbs"
)

// PostSend implements verbs.Calls.
func (p *Process) PostSend(h verbs.PairHandle, list []verbs.SendWork) (int, error) {
	f := p.fabric
	f.enter()
	defer f.leave()
	p.counts[CallPostSend]++
	q := p.pairs[h]
	if q == nil {
		return 0, p.lost(CallPostSend, "pair", uint64(h))
	}
	stop, known, errno := f.planPost(q, CallPostSend, len(list))
	for i := range list {
		if errno != 0 && i == stop {
			break
		}
		if e := q.post(&list[i]); e != 0 {
			errno, stop, known = e, i, true
			break
		}
	}
	q.posted()
	if errno == 0 && q.early() && len(list) > 0 {
		return -1, fail(CallPostSend, "pair", syscall.EINVAL)
	}
	if errno == 0 {
		return len(list), nil
	}
	if !known {
		stop = -1
	}
	return stop, fail(CallPostSend, "pair", errno)
}

func (q *pair) posted() {
	if q.state == verbs.PairError {
		if q.fabric().options.Personality == SoftRoCE {
			q.receivesAtError = q.receiveTail
		}
		q.scheduleFlush()
	} else {
		q.kick(0)
	}
}

// early is true exactly when the pair takes no sends yet.
func (q *pair) early() bool {
	return q.state != verbs.PairReadyToSend && q.state != verbs.PairError
}

// post puts one piece of work into the send queue.
func (q *pair) post(w *verbs.SendWork) syscall.Errno {
	if q.early() && !q.fabric().keepsEarlySends() {
		return syscall.EINVAL
	}
	if w.Operation < verbs.Write || w.Operation > verbs.LocalInvalidate {
		return syscall.EINVAL
	}
	inline := w.Flags&verbs.Inline != 0 && w.Operation != verbs.BindWindow && w.Operation != verbs.LocalInvalidate
	if inline && (int(w.Length) > q.inlineMax || w.Operation == verbs.Read) {
		return syscall.EINVAL
	}
	used := q.sendFreed
	if !q.fabric().slotsAtPoll() {
		used = q.sendDone
	}
	if int(q.sendTail-used) >= len(q.sendRing) {
		return syscall.ENOMEM
	}
	slot := q.work(q.sendTail)
	*slot = work{SendWork: *w}
	if inline {
		if q.inline == nil {
			q.inline = make([]byte, len(q.sendRing)*q.inlineMax)
		}
		load(q.inlineBytes(q.sendTail, int(w.Length)), w.Address)
	}
	q.sendTail++
	return 0
}

func (q *pair) inlineBytes(index uint64, n int) []byte {
	at := int(index%uint64(len(q.sendRing))) * q.inlineMax
	return q.inline[at : at+n]
}

// PostReceive implements verbs.Calls.
func (p *Process) PostReceive(h verbs.PairHandle, list []verbs.ReceiveWork) (int, error) {
	f := p.fabric
	f.enter()
	defer f.leave()
	p.counts[CallPostReceive]++
	q := p.pairs[h]
	if q == nil {
		return 0, p.lost(CallPostReceive, "pair", uint64(h))
	}
	stop, known, errno := f.planPost(q, CallPostReceive, len(list))
	for i := range list {
		if errno != 0 && i == stop {
			break
		}
		if e := q.postReceive(list[i]); e != 0 {
			errno, stop, known = e, i, true
			break
		}
	}
	if q.state == verbs.PairError && f.flushesLateReceives() {
		q.scheduleFlush()
	}
	if errno == 0 {
		return len(list), nil
	}
	if !known {
		stop = -1
	}
	return stop, fail(CallPostReceive, "pair", errno)
}

func (q *pair) postReceive(w verbs.ReceiveWork) syscall.Errno {
	if q.state == verbs.PairReset {
		return syscall.EINVAL
	}
	used := q.receiveFreed
	if !q.fabric().slotsAtPoll() {
		used = q.receiveDone
	}
	if int(q.receiveTail-used) >= len(q.receiveRing) {
		return syscall.ENOMEM
	}
	q.receiveRing[q.receiveTail%uint64(len(q.receiveRing))] = w
	q.receiveTail++
	return 0
}
