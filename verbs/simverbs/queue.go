package simverbs

import (
	"slices"
	"syscall"
	"time"

	"github.com/orbitte/orbitte/verbs"
)

// channel is a completion channel.
type channel struct {
	handle  verbs.ChannelHandle
	context *context
	signal  signal
	events  []*queue
	users   int
}

func (c *channel) end() {
	c.context.users--
	delete(c.context.process.channels, c.handle)
	c.signal.end()
}

// CreateChannel implements verbs.Calls.
func (p *Process) CreateChannel(h verbs.DeviceHandle) (verbs.ChannelHandle, error) {
	if err := p.begin(CallCreateChannel, "device"); err != nil {
		return 0, err
	}
	defer p.fabric.leave()
	d, err := p.context(CallCreateChannel, h)
	if err != nil {
		return 0, err
	}
	s, errno := p.fabric.newSignal(p)
	if errno != 0 {
		return 0, fail(CallCreateChannel, d.device.spec.Name, errno)
	}
	c := &channel{handle: verbs.ChannelHandle(p.fabric.handle()), context: d, signal: s}
	d.users++
	p.channels[c.handle] = c
	return c.handle, nil
}

// DestroyChannel implements verbs.Calls.
func (p *Process) DestroyChannel(h verbs.ChannelHandle) error {
	if err := p.begin(CallDestroyChannel, "channel"); err != nil {
		return err
	}
	defer p.fabric.leave()
	c := p.channels[h]
	switch {
	case c == nil:
		return p.lost(CallDestroyChannel, "channel", uint64(h))
	case c.users > 0:
		return fail(CallDestroyChannel, "channel", syscall.EBUSY)
	}
	c.end()
	return nil
}

// ChannelDescriptor implements verbs.Calls.
func (p *Process) ChannelDescriptor(h verbs.ChannelHandle) int {
	p.fabric.enter()
	defer p.fabric.leave()
	c := p.channels[h]
	if c == nil {
		_ = p.lost(CallQueueEvent, "channel", uint64(h))
		return -1
	}
	return c.signal.descriptor
}

// NextEvent implements verbs.Calls.
func (p *Process) NextEvent(h verbs.ChannelHandle) (verbs.QueueHandle, bool, error) {
	p.fabric.enter()
	defer p.fabric.leave()
	p.counts[CallQueueEvent]++
	c := p.channels[h]
	if c == nil {
		return 0, false, p.lost(CallQueueEvent, "channel", uint64(h))
	}
	if errno := p.fabric.planCall(p, CallQueueEvent); errno != 0 {
		return 0, false, fail(CallQueueEvent, "channel", errno)
	}
	if len(c.events) == 0 {
		return 0, false, nil
	}
	q := c.events[0]
	c.events = c.events[:copy(c.events, c.events[1:])]
	if len(c.events) == 0 {
		c.signal.clear()
	}
	return q.handle, true, nil
}

// entry is one completion in a queue, with the work slot that polling it frees.
type entry struct {
	completion verbs.Completion
	pair       *pair
	slots      uint64 // of the pair's send or receive queue, up to which all are free
	receive    bool
}

// queue is a completion queue.
type queue struct {
	handle  verbs.QueueHandle
	number  int // in the order of creation, for fault plans
	context *context
	channel *channel
	entries []entry // a ring
	first   int
	count   int
	users   int // pairs; one that uses it for both counts twice
	armed   bool
	broken  bool // overrun on a device that then delivers nothing more
	gone    bool
}

// end takes the queue away; an event of it that nobody took goes with it.
func (q *queue) end() {
	q.gone = true
	q.context.users--
	q.context.device.counts.Queues--
	delete(q.context.process.queues, q.handle)
	if c := q.channel; c != nil {
		c.users--
		c.events = slices.DeleteFunc(c.events, func(o *queue) bool { return o == q })
		if len(c.events) == 0 {
			c.signal.clear()
		}
	}
}

// CreateQueue implements verbs.Calls.
func (p *Process) CreateQueue(h verbs.DeviceHandle, entries int, ch verbs.ChannelHandle) (verbs.QueueHandle, error) {
	if err := p.begin(CallCreateQueue, "device"); err != nil {
		return 0, err
	}
	defer p.fabric.leave()
	c, err := p.context(CallCreateQueue, h)
	if err != nil {
		return 0, err
	}
	on := p.channels[ch]
	if ch != 0 && (on == nil || on.context != c) {
		return 0, p.lost(CallCreateQueue, "channel", uint64(ch))
	}
	l := c.device.limits
	switch {
	case entries < 1 || entries > l.QueueDepth:
		return 0, fail(CallCreateQueue, c.device.spec.Name, syscall.EINVAL)
	case c.device.counts.Queues >= l.Queues:
		return 0, fail(CallCreateQueue, c.device.spec.Name, syscall.ENOMEM)
	}
	p.fabric.queues++
	q := &queue{
		handle: verbs.QueueHandle(p.fabric.handle()), number: p.fabric.queues, context: c, channel: on,
		entries: make([]entry, p.fabric.queueDepth(entries)),
	}
	c.users++
	c.device.counts.Queues++
	if on != nil {
		on.users++
	}
	p.queues[q.handle] = q
	return q.handle, nil
}

// DestroyQueue implements verbs.Calls.
func (p *Process) DestroyQueue(h verbs.QueueHandle) error {
	if err := p.begin(CallDestroyQueue, "queue"); err != nil {
		return err
	}
	defer p.fabric.leave()
	q := p.queues[h]
	switch {
	case q == nil:
		return p.lost(CallDestroyQueue, "queue", uint64(h))
	case q.users > 0:
		return fail(CallDestroyQueue, "queue", syscall.EBUSY)
	}
	q.end()
	return nil
}

// Arm implements verbs.Calls. A device compares with what was polled, so that it raises an event for completions that
// are already there; rdma_rxe waits for the next one.
func (p *Process) Arm(h verbs.QueueHandle) error {
	p.fabric.enter()
	defer p.fabric.leave()
	p.counts[CallArm]++
	q := p.queues[h]
	if q == nil {
		return p.lost(CallArm, "queue", uint64(h))
	}
	if errno := p.fabric.planCall(p, CallArm); errno != 0 {
		return fail(CallArm, "queue", errno)
	}
	q.armed = true
	if q.count > 0 && p.fabric.eventForBacklog() {
		q.notify()
	}
	return nil
}

func (q *queue) notify() {
	if q.armed && q.channel != nil {
		q.armed = false
		q.channel.events = append(q.channel.events, q)
		q.channel.signal.set()
	}
}

// put adds a completion, unless a plan says otherwise.
func (q *queue) put(e entry) {
	f := q.context.process.fabric
	fault, fired := f.planCompletion(q, e.pair)
	if !fired {
		q.push(e)
		return
	}
	switch fault.Kind {
	case LoseCompletion:
	case DoubleCompletion:
		q.push(e)
		q.push(e)
	case LateCompletion:
		q.pushLater(fault.By, e)
	case ForeignID:
		e.completion.ID ^= 1<<63 | 1<<40 | uint64(f.random.Uint32())
		q.push(e)
	case ForeignPair:
		e.completion.Pair ^= verbs.PairNumber(1 + f.random.IntN(1<<20))
		q.push(e)
	}
}

// pushLater stands apart, so that only a completion that is late goes to the heap.
func (q *queue) pushLater(d time.Duration, e entry) {
	q.context.process.fabric.schedule(d, event{kind: eventCall, call: func() { q.push(e) }})
}

func (q *queue) push(e entry) {
	if q.gone {
		return
	}
	f := q.context.process.fabric
	if q.count == len(q.entries) || q.broken || f.planFull(q) {
		q.overrun()
		return
	}
	if e.completion.Status != verbs.WorkSuccess {
		f.scramble(&e.completion)
	}
	q.entries[(q.first+q.count)%len(q.entries)] = e
	q.count++
	q.notify()
}

// overrun loses a completion. A device then delivers nothing more through this queue and breaks the pairs that use it;
// rdma_rxe goes on.
func (q *queue) overrun() {
	f := q.context.process.fabric
	q.context.raise(verbs.AsyncEvent{Kind: verbs.AsyncQueueError, Queue: q.handle})
	if f.soft() || q.broken {
		return
	}
	q.broken = true
	for _, p := range q.context.process.pairsOf(q.context) {
		if p.sends == q || p.receives == q {
			q.context.raise(verbs.AsyncEvent{Kind: verbs.AsyncPairFatal, Pair: p.handle})
			p.toError()
		}
	}
}

// scramble fills what ibv_poll_cq(3) calls undefined after an error: all but wr_id, status, qp_num and vendor_err.
func (f *Fabric) scramble(c *verbs.Completion) {
	c.Operation = verbs.CompletionOperation(f.random.Uint32())
	c.Vendor = f.random.Uint32()
	c.Length = f.random.Uint32()
	c.Invalidated = verbs.RemoteKey(f.random.Uint32())
	c.Flags = f.random.Uint32()
}

// Poll implements verbs.Calls.
func (p *Process) Poll(sends, receives verbs.QueueHandle, out []verbs.Completion) (sent, received int, err error) {
	p.fabric.enter()
	defer p.fabric.leave()
	p.counts[CallPoll]++
	if errno := p.fabric.planCall(p, CallPoll); errno != 0 {
		return 0, 0, fail(CallPoll, "queue", errno)
	}
	if sends != 0 {
		if sent, err = p.poll(sends, out); err != nil {
			return 0, 0, err
		}
	}
	if receives != 0 {
		received, err = p.poll(receives, out[sent:])
	}
	return sent, received, err
}

func (p *Process) poll(h verbs.QueueHandle, out []verbs.Completion) (int, error) {
	q := p.queues[h]
	if q == nil {
		return 0, p.lost(CallPoll, "queue", uint64(h))
	}
	n := min(len(out), q.count)
	for i := range n {
		e := &q.entries[q.first]
		q.first = (q.first + 1) % len(q.entries)
		out[i] = e.completion
		e.freeSlots()
		e.pair = nil
	}
	q.count -= n
	return n, nil
}

// freeSlots gives back the work queue slots that a polled completion proves free.
func (e *entry) freeSlots() {
	switch {
	case e.pair == nil:
	case e.receive:
		e.pair.receiveFreed = max(e.pair.receiveFreed, e.slots)
	default:
		e.pair.sendFreed = max(e.pair.sendFreed, e.slots)
	}
}

// forget removes the completions of a pair, as mlx5 does when one is destroyed or reset.
func (q *queue) forget(p *pair) {
	kept := 0
	for i := range q.count {
		e := q.entries[(q.first+i)%len(q.entries)]
		if e.pair != p {
			q.entries[(q.first+kept)%len(q.entries)] = e
			kept++
		}
	}
	q.count = kept
}

// flushDelay is how long after an error the first flushed completions come.
const flushDelay = 2 * time.Microsecond
