package simverbs

import (
	"time"

	"github.com/orbitte/orbitte/verbs"
)

// answer is something that the responder still has to send, in order.
type answer struct {
	kind   packetKind // packetAcknowledge, packetNotReady, packetRefuse, packetSequence, or packetData for a READ
	psn    uint32
	status verbs.WorkStatus // Refuse
	event  verbs.AsyncKind  // Refuse: what this side's program is told; 0: nothing
	// Data: what was asked.
	address uint64
	length  uint32
	key     verbs.RemoteKey
	order   order
	next    uint32
}

// responder is the half of a pair that does what its peer asks.
type responder struct {
	receiveRing  []verbs.ReceiveWork
	receiveFreed uint64 // slots up to here were proven free by polled completions
	receiveDone  uint64
	receiveTail  uint64
	// receivesAtError is receiveTail at the moment of the error.
	receivesAtError uint64

	expected   uint32 // the next packet number
	refused    bool   // true exactly when a NAK for expected is out
	dying      bool   // true exactly when a NAK that ends the connection waits to be sent
	placed     uint32 // bytes of the SEND that is arriving
	answers    []answer
	answered   int // answers that are sent
	pending    int // READs in answers
	responding bool
	lastAnswer time.Duration
}

// arriveRequest takes a packet of the peer's work.
func (q *pair) arriveRequest(p *packet) {
	if q.dying {
		return
	}
	if q.state == verbs.PairReadyToReceive && !q.established {
		q.established = true
		q.domain.context.raise(verbs.AsyncEvent{Kind: verbs.AsyncCommunicationEstablished, Pair: q.handle})
	}
	switch d := distance(p.psn, q.expected); {
	case d < 0:
		q.repeat(p)
	case d > 0:
		if !q.refused {
			q.refused = true
			q.answer(answer{kind: packetSequence, psn: q.expected})
		}
	default:
		q.refused = false
		q.accept(p)
	}
}

// repeat answers a packet that was here before: a READ is done again, the end of anything else acknowledged again.
func (q *pair) repeat(p *packet) {
	switch {
	case p.kind == packetRead:
		q.acceptRead(p, false)
	case p.last:
		q.answer(answer{kind: packetAcknowledge, psn: p.psn})
	}
}

func (q *pair) accept(p *packet) {
	switch p.kind {
	case packetWrite:
		if q.acceptWrite(p) {
			q.advance(p)
		}
	case packetSend:
		q.acceptSend(p)
	case packetRead:
		q.acceptRead(p, true)
	}
}

// advance expects the next packet and acknowledges a message that is complete.
func (q *pair) advance(p *packet) {
	q.expected = addPSN(q.expected, 1)
	if p.last {
		q.answer(answer{kind: packetAcknowledge, psn: p.psn})
	}
}

// refuse ends the connection: the peer's work fails with this status, this side's pair goes to Error.
func (q *pair) refuse(psn uint32, status verbs.WorkStatus, kind verbs.AsyncKind) {
	q.dying = true
	q.answer(answer{kind: packetRefuse, psn: psn, status: status, event: kind})
}

// acceptWrite places a packet of a WRITE. The key is looked at for each packet, so that a window that ends stops the
// rest of a message. IBTA 9.4.3: without length, the key is not looked at.
func (q *pair) acceptWrite(p *packet) bool {
	if q.attributes.Access&verbs.AccessRemoteWrite == 0 {
		q.refuse(p.psn, verbs.WorkRemoteRequest, verbs.AsyncPairRequestError)
		return false
	}
	if p.length == 0 {
		return true
	}
	address, ok := q.remote(p.key, p.address, uint64(p.length), verbs.AccessRemoteWrite)
	if !ok {
		q.refuse(p.psn, verbs.WorkRemoteAccess, verbs.AsyncPairAccessError)
		return false
	}
	store(address+uint64(p.offset), p.data)
	return true
}

// acceptRead queues the responses of a READ. They come later, and read the memory then.
func (q *pair) acceptRead(p *packet, fresh bool) {
	if q.attributes.Access&verbs.AccessRemoteRead == 0 || q.pending >= max(1, int(q.attributes.ReadsAnswered)) && fresh {
		q.refuse(p.psn, verbs.WorkRemoteRequest, verbs.AsyncPairRequestError)
		return
	}
	if fresh {
		q.expected = addPSN(q.expected, p.order.n-p.skip)
	}
	q.pending++
	q.answer(answer{kind: packetData, psn: p.psn, address: p.address, length: p.length, key: p.key, order: p.order, next: p.skip})
}

// acceptSend places a packet of a SEND into the oldest receive.
func (q *pair) acceptSend(p *packet) {
	if q.receiveDone == q.receiveTail {
		q.refused = true
		q.answer(answer{kind: packetNotReady, psn: p.psn})
		return
	}
	r := q.receiveRing[q.receiveDone%uint64(len(q.receiveRing))]
	if p.first {
		q.placed = 0
	}
	if p.length > r.Length {
		here, there := q.fabric().tooLong()
		q.failReceive(p, here, there)
		return
	}
	if len(p.data) > 0 {
		address, ok := q.local(r.LocalKey, r.Address+uint64(p.offset), uint64(len(p.data)), true)
		if !ok {
			q.failReceive(p, verbs.WorkLocalProtection, verbs.WorkRemoteOperation)
			return
		}
		store(address, p.data)
	}
	q.placed += uint32(len(p.data))
	if p.last {
		c := verbs.Completion{Operation: verbs.CompletedReceive, Length: q.placed}
		if p.invalidates {
			// IBTA 9.4.1.1: the window is gone before the completion is there. A key that ends nothing is this
			// side's error; the message itself arrived, so the peer sees success.
			if !q.invalidate(p.key) {
				q.expected = addPSN(q.expected, 1)
				q.dying = true
				q.answer(answer{kind: packetAcknowledge, psn: p.psn})
				q.completeReceive(verbs.Completion{Status: verbs.WorkRemoteRequest})
				q.answer(answer{kind: packetRefuse, psn: addPSN(p.psn, 1), status: verbs.WorkRemoteOperation})
				return
			}
			c.Invalidated, c.Flags = p.key, q.fabric().invalidatedFlag()
		}
		q.completeReceive(c)
	}
	q.advance(p)
}

// failReceive ends the oldest receive with an error.
func (q *pair) failReceive(p *packet, here, there verbs.WorkStatus) {
	q.refuse(p.psn, there, 0)
	q.completeReceive(verbs.Completion{Status: here})
}

// completeReceive reports the oldest receive.
func (q *pair) completeReceive(c verbs.Completion) {
	r := q.receiveRing[q.receiveDone%uint64(len(q.receiveRing))]
	q.receiveDone++
	c.ID, c.Pair = r.ID, q.number
	q.receives.put(entry{completion: c, pair: q, slots: q.receiveDone, receive: true})
}

// answer queues something for the peer.
func (q *pair) answer(a answer) {
	if q.answered == len(q.answers) {
		q.answers, q.answered = q.answers[:0], 0
	}
	q.answers = append(q.answers, a)
	q.kickResponder(q.fabric().draw(0, answerDelay))
}

// answerDelay bounds how long a responder thinks; it is long enough for later work to overtake a READ.
const answerDelay = 3 * time.Microsecond

func (q *pair) kickResponder(d time.Duration) {
	if !q.responding {
		q.responding = true
		q.fabric().schedule(d, event{kind: eventResponder, pair: q})
	}
}

// respond sends what is due, a few packets at a time.
func (q *pair) respond() {
	for range burst {
		if q.gone || q.state != verbs.PairReadyToReceive && q.state != verbs.PairReadyToSend || q.answered == len(q.answers) {
			return
		}
		a := &q.answers[q.answered]
		if a.kind == packetData {
			if q.respondData(a) {
				q.answered++
				q.pending--
			}
			continue
		}
		q.answered++
		f := q.fabric()
		p := f.newPacket()
		p.kind, p.psn, p.status, p.code = a.kind, a.psn, a.status, q.attributes.ReceiverNotReady
		q.transmit(p, &q.lastAnswer)
		if a.kind == packetRefuse {
			if a.event != 0 && f.accessEvents() {
				q.domain.context.raise(verbs.AsyncEvent{Kind: a.event, Pair: q.handle})
			}
			q.toError()
			return
		}
	}
	q.kickResponder(burstTime)
}

// respondData sends one response of a READ; true: the last one. The key is looked at for each.
func (q *pair) respondData(a *answer) bool {
	f := q.fabric()
	p := f.newPacket()
	p.kind, p.psn = packetData, a.psn
	if a.length > 0 {
		address, ok := q.remote(a.key, a.address, uint64(a.length), verbs.AccessRemoteRead)
		if !ok {
			f.freePacket(p)
			psn := a.psn
			q.answers, q.answered, q.pending = q.answers[:0], 0, 0
			q.refuse(psn, verbs.WorkRemoteAccess, verbs.AsyncPairAccessError)
			return false
		}
		offset, n := a.order.span(a.next, a.length, q.attributes.MTU)
		load(p.payload(n), address+uint64(offset))
	}
	q.transmit(p, &q.lastAnswer)
	a.next++
	a.psn = addPSN(a.psn, 1)
	return a.next >= a.order.n
}
