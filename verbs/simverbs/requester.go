package simverbs

import (
	"time"

	"github.com/orbitte/orbitte/verbs"
)

// work is one piece of send work with its progress.
type work struct {
	verbs.SendWork
	psn     uint32 // of its first packet
	packets uint32
	got     uint32 // Read: responses so far
	order   order
	started bool
	done    bool             // true exactly when nothing more happens to it but its retirement
	status  verbs.WorkStatus // when done
}

// requester is the sending half of a pair. Indices grow for ever: done ≤ next ≤ tail.
type requester struct {
	sendRing  []work
	inline    []byte // bytes of inline work, by slot; nil until the first
	inlineMax int
	sendFreed uint64 // slots up to here were proven free by polled completions
	sendDone  uint64 // retired
	sendNext  uint64 // the work whose packets go out
	sendStep  uint32 // its next packet
	sendTail  uint64

	nextPSN      uint32
	reads        int // started READs that are not done
	retriesLeft  uint8
	notReadyLeft uint8
	paused       bool   // true exactly when an RNR timer runs
	pauses       uint64 // counts them, so that an old timer does nothing
	requesting   bool   // true exactly when an eventRequester lies ahead
	timing       bool   // true exactly when an eventTimer lies ahead
	deadline     time.Duration
	lastRequest  time.Duration // arrival of the last packet sent
}

func (q *pair) work(index uint64) *work { return &q.sendRing[index%uint64(len(q.sendRing))] }

// kick makes the requester go on after d.
func (q *pair) kick(d time.Duration) {
	if !q.requesting && q.state == verbs.PairReadyToSend && q.sendNext < q.sendTail {
		q.requesting = true
		q.fabric().schedule(d, event{kind: eventRequester, pair: q})
	}
}

const (
	burst     = 8                     // packets in one event
	burstTime = 500 * time.Nanosecond // between two
)

// request carries out send work, a few packets at a time.
func (q *pair) request() {
	for range burst {
		if q.gone || q.state != verbs.PairReadyToSend || q.paused || q.sendNext == q.sendTail {
			return
		}
		w := q.work(q.sendNext)
		if !w.started && !q.start(w) {
			return
		}
		if w.done && w.status != verbs.WorkSuccess {
			return // it fails as soon as those before it are done
		}
		if w.done {
			q.sendNext, q.sendStep = q.sendNext+1, 0
			q.retire()
			continue
		}
		if !q.emit(w) {
			return
		}
	}
	q.kick(burstTime)
}

// start checks a piece of work and gives it its packet numbers. False: it has to wait, or failed.
func (q *pair) start(w *work) bool {
	f := q.fabric()
	if w.Flags&verbs.Fence != 0 && q.reads > 0 {
		return false // IBTA 10.8.3.3: until all prior READs are complete
	}
	if w.Operation == verbs.Read && q.reads >= int(q.attributes.ReadsAsked) {
		return false
	}
	if status := f.planWork(q); status != verbs.WorkSuccess {
		return q.stop(w, status)
	}
	switch w.Operation {
	case verbs.BindWindow:
		if !q.bind(&w.SendWork) {
			return q.stop(w, f.local(verbs.WorkBind))
		}
		w.started, w.done = true, true
		return true
	case verbs.LocalInvalidate:
		if !q.invalidate(w.RemoteKey) {
			return q.stop(w, f.local(verbs.WorkBind))
		}
		w.started, w.done = true, true
		return true
	}
	if w.Length > f.messageMax() {
		return q.stop(w, f.local(verbs.WorkLocalLength))
	}
	if w.Length > 0 && w.Flags&verbs.Inline == 0 {
		if _, ok := q.local(w.LocalKey, w.Address, uint64(w.Length), w.Operation == verbs.Read); !ok {
			return q.stop(w, f.local(verbs.WorkLocalProtection))
		}
	}
	if w.Operation == verbs.Read {
		q.reads++
	}
	w.started = true
	w.psn, w.packets = q.nextPSN, packetsOf(w.Length, q.attributes.MTU)
	w.order = f.newOrder(w.packets)
	q.nextPSN = addPSN(q.nextPSN, w.packets)
	return true
}

// stop lets a piece of work fail as soon as those before it are done; nothing behind it is started.
func (q *pair) stop(w *work, status verbs.WorkStatus) bool {
	w.started = true
	q.failWork(w, status)
	return false
}

// failWork ends a piece of work with an error; it is reported when those before it are done.
func (q *pair) failWork(w *work, status verbs.WorkStatus) {
	w.done, w.status = true, status
	q.retire()
}

// emit sends one packet of a started piece of work. False: the pair goes no further.
func (q *pair) emit(w *work) bool {
	f := q.fabric()
	p := f.newPacket()
	p.psn, p.first, p.last = addPSN(w.psn, q.sendStep), q.sendStep == 0, q.sendStep == w.packets-1
	p.address, p.length, p.key, p.order = w.Remote, w.Length, w.RemoteKey, w.order
	switch w.Operation {
	case verbs.Read:
		p.kind, p.skip = packetRead, w.got
		p.psn, p.first, p.last = addPSN(w.psn, w.got), true, true
		q.sendStep = w.packets // one request stands for all its responses
	default:
		p.kind = packetWrite
		if w.Operation != verbs.Write {
			p.kind, p.invalidates = packetSend, w.Operation == verbs.SendWithInvalidate
			p.order = order{1, 0, w.packets}
		}
		if !q.fill(p, w) {
			f.freePacket(p)
			return q.stop(w, f.local(verbs.WorkLocalProtection))
		}
		q.sendStep++
	}
	if !q.transmit(p, &q.lastRequest) && f.flushesDeadPort() {
		q.failWork(w, f.local(verbs.WorkFlushed))
		return false
	}
	if q.sendStep == w.packets {
		q.sendNext, q.sendStep = q.sendNext+1, 0
	}
	q.startTimer()
	return true
}

// fill reads the packet's payload from this side's memory.
func (q *pair) fill(p *packet, w *work) bool {
	if w.Length == 0 {
		return true
	}
	offset, n := p.order.span(q.sendStep, w.Length, q.attributes.MTU)
	p.offset = offset
	if w.Flags&verbs.Inline != 0 {
		copy(p.payload(n), q.inlineBytes(q.sendNext, int(w.Length))[offset:offset+n])
		return true
	}
	address, ok := q.local(w.LocalKey, w.Address+uint64(offset), uint64(n), false)
	if ok {
		load(p.payload(n), address)
	}
	return ok
}

// startTimer runs the acknowledgement timer while packets are out: 4.096 µs · 2^Timeout, 0: never.
func (q *pair) startTimer() {
	if q.attributes.Timeout == 0 {
		return
	}
	if !q.timing {
		q.timing = true
		q.deadline = q.fabric().now() + q.patience()
		q.fabric().scheduleAt(q.deadline, event{kind: eventTimer, pair: q})
	}
}

func (q *pair) patience() time.Duration { return 4096 * time.Nanosecond << q.attributes.Timeout }

// oldest is the first piece of work that waits for its peer.
func (q *pair) oldest() *work {
	if q.sendDone == q.sendTail {
		return nil
	}
	w := q.work(q.sendDone)
	if !w.started || w.done || q.sendNext == q.sendDone && q.sendStep == 0 {
		return nil
	}
	return w
}

// timeout is the acknowledgement timer's end.
func (q *pair) timeout() {
	q.timing = false
	w := q.oldest()
	if q.gone || q.state != verbs.PairReadyToSend || w == nil {
		return
	}
	f := q.fabric()
	if q.paused {
		q.deadline = f.now() + q.patience()
	}
	if f.now() < q.deadline {
		q.timing = true
		f.scheduleAt(q.deadline, event{kind: eventTimer, pair: q})
		return
	}
	if q.retriesLeft == 0 {
		q.failWork(w, verbs.WorkRetryExceeded)
		return
	}
	if !f.endlessRetries(q.attributes.Retries) {
		q.retriesLeft--
	}
	q.back(q.sendDone, 0)
	q.startTimer()
}

// back goes back to a packet of a piece of work and sends all from there again.
func (q *pair) back(index uint64, step uint32) {
	q.sendNext, q.sendStep = index, step
	if q.work(index).Operation == verbs.Read {
		q.sendStep = 0
	}
	q.kick(0)
}

// holding finds the started piece of work that a packet number belongs to.
func (q *pair) holding(psn uint32) (uint64, *work) {
	for i := q.sendDone; i < q.sendTail; i++ {
		w := q.work(i)
		if !w.started {
			break
		}
		if w.packets > 0 && !w.done && distance(psn, w.psn) >= 0 && distance(psn, addPSN(w.psn, w.packets-1)) <= 0 {
			return i, w
		}
	}
	return 0, nil
}

// acknowledge ends what lies up to a packet number, but no READ, which ends with its last response.
func (q *pair) acknowledge(psn uint32) {
	progressed := false
	for i := q.sendDone; i < q.sendTail; i++ {
		w := q.work(i)
		if !w.started {
			break
		}
		if w.done {
			continue
		}
		if w.Operation == verbs.Read || distance(psn, addPSN(w.psn, w.packets-1)) < 0 {
			break
		}
		w.done, progressed = true, true
	}
	if progressed {
		q.progress()
	}
}

// progress starts the counts of retries and the timer anew.
func (q *pair) progress() {
	q.retriesLeft, q.notReadyLeft = q.attributes.Retries, q.attributes.NotReadyRetries
	q.deadline = q.fabric().now() + q.patience()
	q.retire()
}

// arriveAnswer takes what the peer says about this side's work.
func (q *pair) arriveAnswer(p *packet) {
	switch p.kind {
	case packetAcknowledge:
		q.acknowledge(p.psn)
	case packetData:
		q.acknowledge(addPSN(p.psn, 0xffffff))
		q.takeData(p)
	case packetSequence:
		q.acknowledge(addPSN(p.psn, 0xffffff))
		if i, w := q.holding(p.psn); w != nil {
			q.back(i, uint32(distance(p.psn, w.psn)))
		}
	case packetNotReady:
		q.acknowledge(addPSN(p.psn, 0xffffff))
		q.notReady(p)
	case packetRefuse:
		q.acknowledge(addPSN(p.psn, 0xffffff))
		if _, w := q.holding(p.psn); w != nil {
			q.failWork(w, p.status)
		}
	}
}

// takeData places a READ response, if it is the next one.
func (q *pair) takeData(p *packet) {
	_, w := q.holding(p.psn)
	if w == nil || w.Operation != verbs.Read || p.psn != addPSN(w.psn, w.got) {
		return
	}
	if w.Length > 0 {
		offset, n := w.order.span(w.got, w.Length, q.attributes.MTU)
		address, ok := q.local(w.LocalKey, w.Address+uint64(offset), uint64(n), true)
		if !ok {
			q.reads--
			q.failWork(w, q.fabric().local(verbs.WorkLocalProtection))
			return
		}
		store(address, p.data)
	}
	w.got++
	if w.got == w.packets {
		w.done = true
		q.reads--
	}
	q.progress()
	q.kick(0)
}

// notReady waits as long as the peer asks, then sends again.
func (q *pair) notReady(p *packet) {
	i, w := q.holding(p.psn)
	if w == nil {
		return
	}
	if q.notReadyLeft == 0 {
		q.failWork(w, verbs.WorkNotReadyExceeded)
		return
	}
	if q.attributes.NotReadyRetries < 7 {
		q.notReadyLeft--
	}
	q.sendNext, q.sendStep = i, 0
	q.paused = true
	q.pauses++
	q.fabric().schedule(notReadyDelay(p.code), event{kind: eventNotReady, pair: q, epoch: q.pauses})
}

func (q *pair) retryNotReady(epoch uint64) {
	if !q.gone && q.paused && q.pauses == epoch {
		q.paused = false
		q.kick(0)
	}
}

// retire completes what is done, in the order it was posted. A failed one takes the pair to Error.
func (q *pair) retire() {
	for q.sendDone < q.sendTail {
		w := q.work(q.sendDone)
		if !w.done {
			return
		}
		q.sendDone++
		if q.sendNext < q.sendDone {
			q.sendNext, q.sendStep = q.sendDone, 0
		}
		q.completeSend(w, w.status)
		if w.status != verbs.WorkSuccess {
			q.toError()
			return
		}
	}
}

// completeSend reports a piece of work that was just retired.
func (q *pair) completeSend(w *work, status verbs.WorkStatus) {
	if status == verbs.WorkSuccess && w.Flags&verbs.Signaled == 0 {
		return
	}
	c := verbs.Completion{ID: w.ID, Status: status, Pair: q.number}
	switch w.Operation {
	case verbs.Write:
		c.Operation = verbs.CompletedWrite
	case verbs.Read:
		c.Operation, c.Length = verbs.CompletedRead, w.Length
	case verbs.BindWindow:
		c.Operation = verbs.CompletedBind
	case verbs.LocalInvalidate:
		c.Operation = verbs.CompletedLocalInvalidate
	}
	q.sends.put(entry{completion: c, pair: q, slots: q.sendDone})
}
