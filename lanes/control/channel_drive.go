package control

import (
	"errors"
	"net/netip"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/reactor"
)

const (
	// watchDelay is how long a finished stream stays unwatched: a request that follows at once then
	// pays for no watch. A stream that is idle longer is watched, so that its end is known before
	// the next request is posted (SPEC T-5).
	watchDelay = time.Millisecond

	outBytes = 128 // first part of a header slot: what is sent; the rest: what is received
)

var (
	errEvicted   = errors.New("evicted: its slot was needed for another peer")
	errIdle      = errors.New("idle for too long")
	errNoAddress = errors.New("the peer has no address")
	errUnasked   = errors.New("bytes that nobody asked for on an idle stream")
)

// Work is one request and its reply on a channel. Its methods are called on the channel's lane. It
// ends with Channel.Finish (the stream is clean and goes on) or with Failed.
type Work interface {
	// Begin: the channel's stream is connected and this work's alone until it ends.
	Begin(*Channel)
	Sent(n int)
	Received(n int)
	// Failed: this work has ended without Finish; no buffer of its is touched any more.
	Failed(Failure)
}

// Follower is a work that may post its request behind another one's.
type Follower interface {
	Work
	// Posted: the request is with the system, and Sent will follow once the stream is this work's own.
	Posted()
}

// Failure is how a work ended without Finish.
type Failure struct {
	Fault *lanes.Fault
	// Begun is true exactly when Begin was called: something may have been posted.
	Begun bool
	// Sent and Received count the bytes that the interrupted Send and Receive had moved.
	Sent, Received int
	// Retained is true exactly when the descriptor could not be closed (SPEC G-9).
	Retained bool
}

type exchangeState uint8

const (
	exchangeIdle exchangeState = iota
	exchangeQueued
	exchangeActive
	exchangeAhead // its request is posted behind the active one's
)

// Exchange is the place of one work in its channel's queue. It is part of the work's owner and can
// be run again after it ended.
type Exchange struct {
	work       Work
	deadline   reactor.Instant
	channel    *Channel
	timer      reactor.Timer
	prev, next *Exchange
	rank       uint64 // order among the exchanges of its channel
	wave       uint64 // of a convoy: which send its request is part of
	state      exchangeState
}

// Expire ends the exchange at its deadline (reactor.TimerHandler).
func (x *Exchange) Expire(*reactor.Timer, reactor.Instant) {
	x.end(&lanes.Fault{Cause: lanes.Deadline})
}

// Cancel ends the exchange: queued, nothing is posted; active, its stream is retired and Failed
// follows once the system has let go of every buffer (SPEC G-8, B-3). Does nothing when it has ended.
func (x *Exchange) Cancel() { x.end(&lanes.Fault{Cause: lanes.Cancelled}) }

func (x *Exchange) end(fault *lanes.Fault) {
	switch c := x.channel; x.state {
	case exchangeQueued:
		fault.Stage = "waiting for the stream"
		if c.state == channelConnecting {
			fault.Stage = "connect"
		}
		c.unlink(x)
		c.fail(x, Failure{Fault: fault})
		if c.head == nil && c.state == channelConnecting {
			c.abandoned = true
			if fault.Cause == lanes.Deadline {
				c.stream.Retire(lanes.ErrSilent)
			} else {
				c.stream.Retire(fault)
			}
		}
		c.settle()
	case exchangeActive, exchangeAhead:
		if !c.forsake(x, fault) {
			c.retire(fault)
		}
	}
}

type channelState uint8

const (
	channelAbsent     channelState = iota // no stream
	channelWaiting                        // for a slot that is being freed
	channelConnecting                     //
	channelReady                          // connected; active says whether it is in use
	channelRetained                       // its descriptor could not be closed: never used again
)

// Channel is the requester's side of one peer: at most one stream, one exchange after the other, in the order of Run
// (SPEC T-3); the requests of framed ones are posted ahead of their turn. It belongs to one lane and is used on that lane only.
type Channel struct {
	pool       *Pool
	addresses  []netip.AddrPort
	first      int // index of the address that is tried first
	address    int // how many behind it the one is that is tried or connected
	state      channelState
	stream     Stream
	slot       budgets.Charge
	header     []byte
	head, tail *Exchange
	active     *Exchange
	follower   *Exchange    // has posted its request behind the active exchange; nil without an active one
	posted     int          // bytes of that request that are sent; 0 while it is on its way
	closing    bool         // true exactly while the active work's SendLast asks who follows
	trailer    []byte       // that request, while it is sent together with the active work's last bytes; nil: it is not
	convoy     convoy       // framed exchanges behind the active one; empty while there is a follower
	ranks      uint64       // exchanges queued so far
	life       uint64       // see Life
	numbers    uint64       // the last one that Number gave
	fault      *lanes.Fault // why the active exchange's stream is being retired, if this side decided
	abandoned  bool         // true exactly while connecting is being ended because nobody waits for it any more
	used       bool         // true exactly when the stream has finished at least one exchange
	idle       reactor.Timer
	watched    bool // true exactly while the idle stream is watched
	older      *Channel
	newer      *Channel
	listed     bool   // true exactly while in the pool's list of idle channels
	closed     func() // non-nil from Close on; called once, when the stream is gone
	ended      bool   // true exactly when closed was called
}

// NewChannel makes the channel to a peer that is reachable at any of the addresses. Any goroutine may
// call it; everything else about the channel happens on the pool's lane.
func (p *Pool) NewChannel(addresses []netip.AddrPort) *Channel {
	return &Channel{pool: p, addresses: addresses}
}

// at is the address that is tried or connected.
func (c *Channel) at() netip.AddrPort { return c.addresses[(c.first+c.address)%len(c.addresses)] }

// Lane is the lane that the channel belongs to.
func (c *Channel) Lane() *lanes.Lane { return c.pool.lane }

// Life changes each time that the channel's stream is gone: what a source keeps for a stream ended with it.
func (c *Channel) Life() uint64 { return c.life }

// Number is one that was never given before on this channel, from 1 on.
func (c *Channel) Number() uint64 {
	c.numbers++
	return c.numbers
}

// Out is memory for the frame that is being sent, In for the header being received.
func (c *Channel) Out() []byte { return c.header[:outBytes] }

// In is memory for the header that is being received.
func (c *Channel) In() []byte { return c.header[outBytes : 2*outBytes] }

// Send and Receive move bytes for the active work (see Stream).
func (c *Channel) Send(a, b []byte) {
	if c.closing {
		c.trailer = a
		return
	}
	c.stream.Send(a, b)
}

// SendLast sends a, after which the active work has nothing more to send. It calls free before, in which another work may
// Follow: that one's request goes out in the same call.
func (c *Channel) SendLast(a []byte, free func()) {
	c.close(free)
	c.stream.Send(a, c.trailer)
}

// close lets another work Follow, whose request is the trailer then.
func (c *Channel) close(free func()) {
	if free != nil {
		c.closing = true
		free()
		c.closing = false
	}
}

// SendLent is Send, and SendLentLast SendLast, of what is only lent (see Stream).
func (c *Channel) SendLent(a []byte, lender Lender) { c.stream.SendLent(a, nil, 0, lender) }

// SendLentLast is SendLast of what is only lent.
func (c *Channel) SendLentLast(a []byte, free func(), lender Lender) {
	c.close(free)
	c.stream.SendLent(a, c.trailer, 0, lender)
}

// Instead goes on with a Send that was Short (see Stream).
func (c *Channel) Instead(a []byte) { c.stream.Instead(a) }

// Receive fills a, then b; the work's Received follows once least bytes are there.
func (c *Channel) Receive(a, b []byte, least int) { c.stream.Receive(a, b, least) }

// ReceiveLone is Receive of one buffer, behind which nothing can come yet: nobody follows.
func (c *Channel) ReceiveLone(a []byte, least int) { c.stream.receive(a, nil, least, true) }

// Run queues work; it ends with Failed or with its own Finish.
func (c *Channel) Run(x *Exchange, work Work, deadline reactor.Instant) {
	if x.state != exchangeIdle {
		panic("control: exchange run while " + map[exchangeState]string{exchangeQueued: "queued", exchangeActive: "active", exchangeAhead: "ahead"}[x.state])
	}
	x.work, x.deadline, x.channel = work, deadline, c
	if fault := c.refusal(deadline); fault != nil {
		work.Failed(Failure{Fault: fault})
		return
	}
	c.ranks++
	x.state, x.prev, x.rank = exchangeQueued, c.tail, c.ranks
	if c.tail == nil {
		c.head = x
	} else {
		c.tail.next = x
	}
	c.tail = x
	if deadline != reactor.Forever {
		c.pool.lane.Arm(&x.timer, deadline, x)
	}
	c.pump()
}

// refusal says why nothing can be queued now.
func (c *Channel) refusal(deadline reactor.Instant) *lanes.Fault {
	switch {
	case c.closed != nil:
		return &lanes.Fault{Cause: lanes.Closed}
	case c.state == channelRetained:
		return &lanes.Fault{Cause: lanes.Exhausted, Stage: "connect", Err: errors.New("the descriptor of this peer's last stream could not be closed and holds its slot")}
	case deadline <= c.pool.lane.Now():
		return late()
	}
	return nil
}

func (c *Channel) unlink(x *Exchange) {
	if x.prev == nil {
		c.head = x.next
	} else {
		x.prev.next = x.next
	}
	if x.next == nil {
		c.tail = x.prev
	} else {
		x.next.prev = x.prev
	}
	x.prev, x.next = nil, nil
}

// fail ends an exchange that is no longer linked or active.
func (c *Channel) fail(x *Exchange, f Failure) {
	c.pool.lane.Disarm(&x.timer)
	x.state = exchangeIdle
	x.work.Failed(f)
}

// failQueued ends everything that waits now. Whoever is told may run or cancel exchanges of this
// channel: those stay in the queue, or leave it, like at any other time.
func (c *Channel) failQueued(fault lanes.Fault) {
	for last := c.ranks; c.head != nil && c.head.rank <= last; {
		x, own := c.head, fault
		c.unlink(x)
		c.fail(x, Failure{Fault: &own})
	}
}

// pump starts what can be started.
func (c *Channel) pump() {
	if c.head == nil {
		return
	}
	if c.active != nil {
		c.join()
		return
	}
	switch c.state {
	case channelAbsent:
		c.obtain()
	case channelReady:
		c.next()
	}
}

// free is true exactly when the stream can take an exchange.
func (c *Channel) free() bool {
	return c.state == channelReady && c.active == nil && c.stream.ending == nil
}

// next gives the free stream to the oldest exchange whose deadline has not passed: a request that is
// late already is not posted, so that ending it costs no stream.
func (c *Channel) next() {
	for c.head != nil && c.free() {
		x := c.head
		c.unlink(x)
		if x.deadline > c.pool.lane.Now() {
			c.begin(x)
			return
		}
		c.fail(x, Failure{Fault: late()})
	}
	if c.free() && !c.listed {
		c.rest()
	}
}

func late() *lanes.Fault {
	return &lanes.Fault{Cause: lanes.Deadline, Stage: "waiting for the stream"}
}

// begin gives the stream to an exchange.
func (c *Channel) begin(x *Exchange) {
	c.active, x.state = x, exchangeActive
	c.pool.delist(c)
	c.pool.lane.Disarm(&c.idle)
	if c.watched {
		c.watched = false
		c.stream.Unwatch()
	}
	if c.used {
		c.pool.lane.Counts.Reused.Add(1)
	}
	x.work.Begin(c)
	if c.active == x {
		c.join()
	}
}

// Active is the work of the active exchange; nil: none. What kind it is tells who may Follow it.
func (c *Channel) Active() Work {
	if c.active == nil {
		return nil
	}
	return c.active.work
}

// Follow lets work post its request right behind the active exchange, which has nothing more to send: the
// source then finds it as soon as it has answered, and no round trip is spent idle. Its Begin is called
// now, its Posted when the request has left, its Sent once the stream is its own. False when that is not to be
// had, as when somebody else waits for the stream; then nothing was done. If the stream is lost, Failed comes to
// the follower first.
func (c *Channel) Follow(x *Exchange, work Follower, deadline reactor.Instant) bool {
	alone := c.active != nil && c.head == nil && c.follower == nil && c.convoy.n == 0 && c.closed == nil
	if !alone || c.stream.ending != nil || c.stream.sending() || deadline <= c.pool.lane.Now() {
		return false
	}
	x.work, x.deadline, x.channel, x.state = work, deadline, c, exchangeAhead
	c.follower, c.posted = x, 0
	work.Begin(c)
	return true
}

// Finish ends the active work with a clean stream. Its follower, or the next queued exchange, goes on at
// once.
func (c *Channel) Finish() {
	x := c.active
	if x == nil {
		panic("control: Finish without an active exchange")
	}
	c.pool.lane.Disarm(&x.timer)
	x.state, c.active, c.used = exchangeIdle, nil, true
	if c.follower != nil {
		c.promote()
		return
	}
	if c.convoy.n > 0 {
		c.advance()
		return
	}
	switch {
	case c.convoy.doomed:
		c.stream.Retire(errForsaken)
	case c.stream.unasked():
		c.stream.Retire(errUnasked)
	default:
		c.next()
	}
}

// promote makes the follower the active exchange.
func (c *Channel) promote() {
	x := c.follower
	c.active, c.follower, x.state = x, nil, exchangeActive
	c.pool.lane.Counts.Reused.Add(1)
	if x.deadline != reactor.Forever {
		c.pool.lane.Arm(&x.timer, x.deadline, x)
	}
	if c.posted > 0 {
		x.work.Sent(c.posted)
	}
}

// rest lists the idle stream and starts its clock.
func (c *Channel) rest() {
	if c.closed != nil {
		c.stream.Retire(errIdle)
		return
	}
	c.pool.list(c)
	c.pool.lane.Arm(&c.idle, c.pool.lane.Now().After(watchDelay), c)
}

// Expire ends a connect that nobody answers, watches a stream that stays idle, and later closes it (reactor.TimerHandler).
func (c *Channel) Expire(*reactor.Timer, reactor.Instant) {
	if c.stream.ending != nil {
		return // evicted, and its watch has not come back yet
	}
	if c.state == channelConnecting {
		c.stream.Retire(lanes.ErrSilent)
		return
	}
	if c.watched {
		c.pool.lane.Counts.IdleClosed.Add(1)
		c.stream.Retire(errIdle)
		return
	}
	c.watched = true
	c.stream.Watch()
	c.pool.lane.Arm(&c.idle, c.pool.lane.Now().After(c.pool.lane.Policy.IdleTimeout), c)
}

// Break retires the stream because the peer broke the protocol; the active work's Failed follows.
func (c *Channel) Break(stage string, err error) {
	c.pool.lane.Journal.Add(c.pool.lane.Now(), lanes.Note{Kind: lanes.NoteProtocol, Where: c.at().String(), Err: err})
	c.retire(&lanes.Fault{Cause: lanes.Violated, Stage: stage, Err: err})
}

// Fail retires the stream for a reason of the active work's own; its Failed follows.
func (c *Channel) Fail(fault *lanes.Fault) { c.retire(fault) }

// retire ends the stream under the active exchange. The first reason stays: a deadline that passes
// while the system gives the buffers back does not hide what happened before.
func (c *Channel) retire(fault *lanes.Fault) {
	if c.stream.ending == nil {
		c.fault = fault
	}
	c.stream.Retire(fault)
}

// Sent passes on to the active work (User). A follower is the last to have sent; it hears of it when its
// turn comes.
func (c *Channel) Sent(n int) {
	switch {
	case c.convoy.sending:
		c.landed()
	case c.trailer != nil:
		c.posted, c.trailer = len(c.trailer), nil
		c.active.work.Sent(n - c.posted)
		c.follower.work.(Follower).Posted()
	case c.follower != nil:
		c.posted = n
		c.follower.work.(Follower).Posted()
	default:
		c.active.work.Sent(n)
		c.depart()
	}
}

// Received passes on to the active work.
func (c *Channel) Received(n int) { c.active.work.Received(n) }

// Readable: an idle stream has ended, or its peer speaks out of turn; either way it is retired.
func (c *Channel) Readable() { c.stream.Retire(errUnasked) }

// Close ends the channel once its queue has run dry; closed is called when the stream is gone. What
// is still queued goes on; nothing new is accepted (SPEC G-5). It may be called again, when a segment and
// its engine are closed at the same time; everybody is told.
func (c *Channel) Close(closed func()) {
	if c.ended {
		closed()
		return
	}
	if earlier := c.closed; earlier != nil {
		later := closed
		closed = func() { earlier(); later() }
	}
	c.closed = closed
	if c.state == channelReady && c.active == nil && c.head == nil {
		c.stream.Retire(errIdle)
	}
	c.settle()
}

// settle ends a closing channel when nothing is queued and its stream is gone or retained.
func (c *Channel) settle() {
	streamless := c.state == channelAbsent || c.state == channelWaiting || c.state == channelRetained
	if c.closed == nil || c.ended || c.active != nil || c.head != nil || !streamless {
		return
	}
	c.ended = true
	c.forget()
	c.closed()
}
