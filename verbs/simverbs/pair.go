package simverbs

import (
	"syscall"
	"time"

	"github.com/orbitte/orbitte/verbs"
)

// pair is a queue pair of a reliable connection. Its send queue is carried out in request (requester.go), what the
// peer asks in arriveRequest (responder.go).
type pair struct {
	handle          verbs.PairHandle
	number          verbs.PairNumber
	ordinal         int // in the order of creation, from 1, for fault plans
	domain          *domain
	sends, receives *queue
	gone            bool
	state           verbs.PairState
	attributes      verbs.Transition // all that transitions have set
	port            *Port
	gid             verbs.GID // of this side, as it was when the pair learned it
	windows         int       // bound to it
	established     bool      // COMM_EST was raised

	requester
	responder
	flushing bool
}

func (q *pair) process() *Process { return q.domain.context.process }
func (q *pair) fabric() *Fabric   { return q.domain.context.process.fabric }
func (q *pair) device() *Device   { return q.domain.context.device }

// CreatePair implements verbs.Calls.
func (p *Process) CreatePair(h verbs.DomainHandle, o verbs.PairOptions) (verbs.PairHandle, verbs.PairNumber, error) {
	if err := p.begin(CallCreatePair, "domain"); err != nil {
		return 0, 0, err
	}
	defer p.fabric.leave()
	d, err := p.domain(CallCreatePair, h)
	if err != nil {
		return 0, 0, err
	}
	sends, receives := p.queues[o.Sends], p.queues[o.Receives]
	if sends == nil || receives == nil {
		return 0, 0, p.lost(CallCreatePair, "queue", uint64(min(o.Sends, o.Receives)))
	}
	device, l := d.context.device, d.context.device.limits
	switch {
	case sends.context != d.context || receives.context != d.context:
		err = fail(CallCreatePair, device.spec.Name, syscall.EINVAL)
	case o.SendDepth < 1 || o.ReceiveDepth < 0 || o.SendDepth > l.PairWork || o.ReceiveDepth > l.PairWork || o.Inline > inlineMax || o.Inline < 0:
		err = fail(CallCreatePair, device.spec.Name, syscall.EINVAL)
	case device.counts.Pairs >= l.Pairs:
		err = fail(CallCreatePair, device.spec.Name, syscall.ENOMEM)
	}
	if err != nil {
		return 0, 0, err
	}
	f := p.fabric
	f.pairs++
	q := &pair{handle: verbs.PairHandle(f.handle()), number: device.newNumber(), ordinal: f.pairs, domain: d, sends: sends, receives: receives}
	q.sendRing = make([]work, f.depth(o.SendDepth))
	q.inlineMax = o.Inline
	q.receiveRing = make([]verbs.ReceiveWork, f.depth(o.ReceiveDepth))
	device.pairs[q.number] = q
	device.counts.Pairs++
	d.users++
	sends.users++
	receives.users++
	p.pairs[q.handle] = q
	return q.handle, q.number, nil
}

// newNumber chooses a number for a pair. One that came free may come back at once.
func (d *Device) newNumber() verbs.PairNumber {
	f := d.host.fabric
	if n := d.freedPair; n != 0 && d.pairs[n] == nil && f.chance(4) {
		return n
	}
	for {
		d.nextPair = (d.nextPair + 1) & 0xffffff
		if d.nextPair > 1 && d.pairs[d.nextPair] == nil {
			return d.nextPair
		}
	}
}

// end takes the pair away: its work ends without completions, packets on their way go on.
func (q *pair) end() {
	q.gone = true
	q.state = verbs.PairReset
	d := q.domain
	d.users--
	q.sends.users--
	q.receives.users--
	if q.fabric().forgetsCompletions() {
		q.sends.forget(q)
		q.receives.forget(q)
	}
	d.context.device.counts.Pairs--
	d.context.device.freedPair = q.number
	delete(d.context.device.pairs, q.number)
	delete(d.context.process.pairs, q.handle)
}

// DestroyPair implements verbs.Calls.
func (p *Process) DestroyPair(h verbs.PairHandle) error {
	if err := p.begin(CallDestroyPair, "pair"); err != nil {
		return err
	}
	q := p.pairs[h]
	if q != nil && q.windows > 0 && p.fabric.orphanDelay() > 0 {
		p.fabric.leave()
		p.fabric.sleep(p.fabric.orphanDelay())
		p.fabric.enter()
		q = p.pairs[h]
	}
	defer p.fabric.leave()
	if q == nil {
		return p.lost(CallDestroyPair, "pair", uint64(h))
	}
	q.end()
	return nil
}

// QueryPair implements verbs.Calls.
func (p *Process) QueryPair(h verbs.PairHandle) (verbs.PairState, error) {
	if err := p.begin(CallQueryPair, "pair"); err != nil {
		return 0, err
	}
	defer p.fabric.leave()
	q := p.pairs[h]
	switch {
	case q == nil:
		return 0, p.lost(CallQueryPair, "pair", uint64(h))
	case q.device().removed:
		return 0, fail(CallQueryPair, "pair", syscall.EIO)
	}
	return q.state, nil
}

// ModifyPair implements verbs.Calls.
func (p *Process) ModifyPair(h verbs.PairHandle, t verbs.Transition) error {
	if err := p.begin(CallModifyPair, "pair"); err != nil {
		return err
	}
	defer p.fabric.leave()
	q := p.pairs[h]
	if q == nil {
		return p.lost(CallModifyPair, "pair", uint64(h))
	}
	errno := syscall.EINVAL
	switch {
	case q.device().removed:
		errno = syscall.EIO
		if t.To == verbs.PairError || t.To == verbs.PairReset {
			errno = 0 // everything is flushed already
		}
	case t.To == verbs.PairReset:
		q.reset()
		errno = 0
	case t.To == verbs.PairError && q.state != verbs.PairReset:
		q.toError()
		errno = 0
	case t.To == verbs.PairInit && (q.state == verbs.PairReset || q.state == verbs.PairInit):
		errno = q.toInit(&t)
	case t.To == verbs.PairReadyToReceive && q.state == verbs.PairInit:
		errno = q.toReceive(&t)
		if errno == syscall.ETIMEDOUT {
			p.fabric.leave()
			p.fabric.sleep(unreachableDelay)
			p.fabric.enter()
		}
	case t.To == verbs.PairReadyToSend && (q.state == verbs.PairReadyToReceive || q.state == verbs.PairReadyToSend):
		errno = q.toSend(&t)
	}
	if errno != 0 {
		return fail(CallModifyPair, "pair", errno)
	}
	return nil
}

func (q *pair) reset() {
	q.state = verbs.PairReset
	q.requester = requester{sendRing: q.sendRing, inlineMax: q.inlineMax, inline: q.inline, requesting: q.requesting, timing: q.timing}
	q.responder = responder{receiveRing: q.receiveRing, responding: q.responding}
	if q.fabric().forgetsCompletions() {
		q.sends.forget(q)
		q.receives.forget(q)
	}
}

func (q *pair) toInit(t *verbs.Transition) syscall.Errno {
	port := q.domain.context.port(t.Port)
	if port == nil {
		return syscall.EINVAL
	}
	q.state, q.port = verbs.PairInit, port
	q.attributes = verbs.Transition{Port: t.Port, Access: t.Access}
	return 0
}

func (q *pair) toReceive(t *verbs.Transition) syscall.Errno {
	if t.MTU < 256 || t.MTU > 4096 || t.MTU&(t.MTU-1) != 0 || t.MTU > q.port.spec.MTU {
		return syscall.EINVAL
	}
	if int(t.ReadsAnswered) > q.device().limits.ReadAtomic || t.ReceiveStart > 0xffffff || t.Remote > 0xffffff || t.ReceiverNotReady > 31 {
		return syscall.EINVAL
	}
	if t.SourceGID < 0 || t.SourceGID >= q.port.spec.TableSize {
		return syscall.EINVAL
	}
	own, ok := q.port.gid(t.SourceGID)
	if !ok {
		return syscall.ENODATA
	}
	if !q.port.spec.InfiniBand {
		if mapped(own.GID) != mapped(t.RemoteGID) {
			return syscall.EINVAL
		}
		if q.port.find(t.RemoteGID) == nil {
			return syscall.ETIMEDOUT
		}
	}
	a := &q.attributes
	port, access := a.Port, a.Access
	*a = *t
	a.Port, a.Access = port, access
	q.gid = own.GID
	q.expected = t.ReceiveStart
	q.state = verbs.PairReadyToReceive
	return 0
}

// mapped says whether a GID stands for an IPv4 address.
func mapped(g verbs.GID) bool {
	return [12]byte(g[:12]) == [12]byte{10: 0xff, 11: 0xff}
}

func (q *pair) toSend(t *verbs.Transition) syscall.Errno {
	if t.Retries > 7 || t.NotReadyRetries > 7 || t.Timeout > 31 || t.SendStart > 0xffffff || int(t.ReadsAsked) > q.device().limits.ReadAtomic {
		return syscall.EINVAL
	}
	a := &q.attributes
	a.SendStart, a.Timeout, a.Retries, a.NotReadyRetries, a.ReadsAsked = t.SendStart, t.Timeout, t.Retries, t.NotReadyRetries, t.ReadsAsked
	if q.state == verbs.PairReadyToReceive {
		q.nextPSN = t.SendStart
	}
	q.retriesLeft, q.notReadyLeft = t.Retries, t.NotReadyRetries
	q.state = verbs.PairReadyToSend
	return 0
}

// toError stops the pair at once: nothing of its memory is touched from here on. What it still has is flushed, in the
// order it was posted, a little later.
func (q *pair) toError() {
	if q.gone {
		return
	}
	q.receivesAtError = q.receiveTail
	if q.state == verbs.PairError {
		q.scheduleFlush() // moved there again: the device looks at what came meanwhile
		return
	}
	q.state = verbs.PairError
	q.answers, q.answered, q.dying = q.answers[:0], 0, false
	q.scheduleFlush()
}

func (q *pair) scheduleFlush() {
	if !q.flushing {
		q.flushing = true
		q.fabric().schedule(q.fabric().draw(0, flushDelay), event{kind: eventFlush, pair: q})
	}
}

// flush ends some of the work of a pair in error. IBTA 10.3.1: all of it completes, unsignaled work included.
func (q *pair) flush() {
	if q.gone || q.state != verbs.PairError {
		return
	}
	f := q.fabric()
	for n := 1 + f.random.IntN(8); n > 0 && q.sendDone < q.sendTail; n-- {
		w := q.work(q.sendDone)
		q.sendDone++
		q.completeSend(w, verbs.WorkFlushed)
	}
	for n := 1 + f.random.IntN(8); n > 0 && q.receiveDone < q.flushable(); n-- {
		q.completeReceive(verbs.Completion{Status: verbs.WorkFlushed})
	}
	if q.sendDone < q.sendTail || q.receiveDone < q.flushable() {
		q.scheduleFlush()
	}
}

// flushable is up to where receives are flushed.
func (q *pair) flushable() uint64 {
	if q.fabric().flushesLateReceives() {
		return q.receiveTail
	}
	return q.receivesAtError
}

// notReadyDelay is the time that a code of the RNR NAK timer stands for (IBTA table 45).
func notReadyDelay(code uint8) time.Duration {
	codes := [32]uint32{ // in units of 10 µs
		65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
		256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
	}
	return time.Duration(codes[code&31]) * 10 * time.Microsecond
}
