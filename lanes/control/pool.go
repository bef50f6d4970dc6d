package control

import (
	"errors"
	"syscall"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
)

// Pool holds the channels of one lane and decides about their slots (SPEC T-4): a slot is charged
// from before the socket is made until its close is proven.
type Pool struct {
	lane    *lanes.Lane
	oldest  *Channel // idle, clean channels, the longest idle first
	newest  *Channel
	waiting []*Channel // for a slot that is being freed
	live    int        // streams started and not lost
	closed  func()     // non-nil from Close until it is called
}

// NewPool makes the pool of a lane.
func NewPool(lane *lanes.Lane) *Pool { return &Pool{lane: lane} }

// Close calls closed once no stream of the lane is left but retained ones, also of channels that were
// closed before and are on their way. The owner closes all channels first, and runs nothing any more.
func (p *Pool) Close(closed func()) {
	p.closed = closed
	p.settle()
}

// settle reports the end of a closing pool.
func (p *Pool) settle() {
	if closed := p.closed; closed != nil && p.live == 0 {
		p.closed = nil
		closed()
	}
}

func (p *Pool) list(c *Channel) {
	c.listed, c.older, c.newer = true, p.newest, nil
	if p.newest == nil {
		p.oldest = c
	} else {
		p.newest.newer = c
	}
	p.newest = c
}

func (p *Pool) delist(c *Channel) {
	if !c.listed {
		return
	}
	if c.older == nil {
		p.oldest = c.newer
	} else {
		c.older.newer = c.newer
	}
	if c.newer == nil {
		p.newest = c.older
	} else {
		c.newer.older = c.older
	}
	c.listed, c.older, c.newer = false, nil, nil
}

// evict retires the longest idle stream; false when every stream is in use.
func (p *Pool) evict() bool {
	c := p.oldest
	if c == nil {
		return false
	}
	p.delist(c)
	p.lane.Counts.Evicted.Add(1)
	c.stream.Retire(errEvicted)
	return true
}

// freed hands a free slot to the channel that has waited longest.
func (p *Pool) freed() {
	for len(p.waiting) > 0 {
		c := p.waiting[0]
		p.waiting = append(p.waiting[:0], p.waiting[1:]...)
		if c.state == channelWaiting {
			c.state = channelAbsent
			c.pump()
			if c.state != channelAbsent {
				return
			}
			c.settle()
		}
	}
}

// obtain charges a slot and starts to connect. At the limit it waits for the slot of an idle stream,
// which it evicts; so no more channels wait than streams are being evicted. With every stream in use
// it is refused at once.
func (c *Channel) obtain() {
	streams := c.pool.lane.Streams
	if streams.Used() == streams.Limit() { // only this lane charges it; a slot that is made free is no refusal
		c.state = channelWaiting
		c.pool.waiting = append(c.pool.waiting, c)
		if c.pool.evict() || c.state != channelWaiting {
			return
		}
		c.forget()
		c.state = channelAbsent
	}
	slot, err := streams.Take(1)
	if err != nil {
		c.failQueued(lanes.Fault{Cause: lanes.Exhausted, Stage: "connect", Err: err})
		return
	}
	c.slot, c.address = slot, 0
	if len(c.addresses) == 0 {
		c.unconnected(lanes.Fault{Cause: lanes.Unreachable, Stage: "connect", Err: errNoAddress})
		return
	}
	c.connect()
}

// forget takes a channel out of those that wait.
func (c *Channel) forget() {
	kept := c.pool.waiting[:0]
	for _, other := range c.pool.waiting {
		if other != c {
			kept = append(kept, other)
		}
	}
	c.pool.waiting = kept
}

// connect tries the addresses from the present one on; the slot is held. One of a family that the
// host does not have is passed over.
func (c *Channel) connect() {
	lane := c.pool.lane
	if c.header == nil {
		header, err := lane.Arena.Slot()
		if err != nil {
			c.unconnected(lanes.Fault{Cause: lanes.Exhausted, Stage: "connect", Err: err})
			return
		}
		c.header = header
	}
	for {
		address := c.at()
		descriptor, err := lane.Kernel().Open(address, lane.Policy.Socket)
		if err == nil {
			c.state = channelConnecting
			c.pool.live++
			c.stream.start(lane, descriptor, c)
			c.stream.readAhead(c.header[2*outBytes:][:netproto.ReplySize])
			lane.Arm(&c.idle, lane.Now().After(lanes.ConnectPatience), c)
			c.stream.connect(reactor.Operation{Address: address})
			return
		}
		cause := openCause(err)
		if cause == lanes.Exhausted || c.address+1 == len(c.addresses) {
			c.unconnected(lanes.Fault{Cause: cause, Stage: "connect", Err: err})
			return
		}
		c.address++
	}
}

func openCause(err error) lanes.Cause {
	for _, exhausted := range [...]syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, exhausted) {
			return lanes.Exhausted
		}
	}
	return lanes.Unreachable
}

// unconnected gives the slot back and fails those who waited for the connection.
func (c *Channel) unconnected(fault lanes.Fault) {
	c.pool.lane.Counts.ConnectErrors.Add(1)
	c.release()
	c.failQueued(fault)
	c.afterLoss()
}

// release pays back what a stream holds. Proof: the stream was never opened, or Lost said that its
// descriptor is closed.
func (c *Channel) release() {
	c.state, c.used, c.watched, c.abandoned = channelAbsent, false, false, false
	if c.header != nil {
		c.pool.lane.Arena.PutSlot(c.header)
		c.header = nil
	}
	c.slot.Repay()
}

// Connected: the stream is ready for its first exchange.
func (c *Channel) Connected() {
	lane := c.pool.lane
	lane.Counts.Connects.Add(1)
	if congestion, err := lane.Kernel().Tune(c.stream.descriptor, lane.Policy.Socket); err != nil {
		c.fault = &lanes.Fault{Cause: lanes.Unreachable, Stage: "connect", Err: err}
		c.stream.Retire(c.fault)
		return
	} else if congestion != "" {
		lane.Congestion.Store(&congestion)
	}
	c.state = channelReady
	c.next()
}

// Lost: the stream is gone, in whatever state it was (User).
func (c *Channel) Lost(loss Loss) {
	c.pool.live--
	c.lost(loss)
	c.pool.settle()
}

func (c *Channel) lost(loss Loss) {
	lane, was := c.pool.lane, c.state
	c.life++
	c.pool.delist(c)
	lane.Disarm(&c.idle)
	fault := c.fault
	c.fault = nil
	if fault == nil {
		fault = &lanes.Fault{Cause: lanes.Disconnected, Err: loss.Err}
	}
	if loss.Retained {
		c.state = channelRetained
		lane.Journal.Add(lane.Now(), lanes.Note{Kind: lanes.NoteRetained, Where: c.at().String(), Err: loss.Err})
		c.end(fault, loss)
		c.failQueued(*c.refusal(reactor.Forever))
		c.settle()
		c.pool.freed() // who waited for this slot looks for another one
		return
	}
	if loss.Err == lanes.ErrSilent { // the next address is the first one from here on, for those who wait and those who come
		c.first, c.address = (c.first+c.address+1)%len(c.addresses), 0
		if lane.Counts.ConnectErrors.Add(1); c.head != nil && !c.abandoned {
			c.connect()
			return
		}
	}
	switch {
	case was != channelConnecting:
		lane.Counts.StreamsRetired.Add(1)
	case !c.abandoned:
		c.unreached(loss.Err)
		return
	}
	c.release()
	c.end(fault, loss)
	c.afterLoss()
}

// end fails the active exchange with what the stream's end left behind, and before it the follower, or the convoy, of
// which nothing but the requests was posted.
func (c *Channel) end(fault *lanes.Fault, loss Loss) {
	x := c.active
	if x == nil {
		c.disband()
		return
	}
	follower, gone := c.follower, c.disband()
	c.active, c.follower, c.trailer = nil, nil, nil
	for gone != nil {
		y, own := gone, *fault
		gone, y.next = y.next, nil
		c.fail(y, Failure{Fault: &own, Begun: true, Retained: loss.Retained})
	}
	if follower != nil {
		own := *fault
		c.fail(follower, Failure{Fault: &own, Begun: true, Retained: loss.Retained})
	}
	c.fail(x, Failure{Fault: fault, Begun: true, Sent: loss.Sent, Received: loss.Received, Retained: loss.Retained})
}

// afterLoss hands the slot to whoever waits for it, goes on with what is queued here, on a new
// stream, or ends a closing channel.
func (c *Channel) afterLoss() {
	c.pool.freed()
	c.pump()
	c.settle()
}

// unreached tries the peer's next address, or gives up.
func (c *Channel) unreached(err error) {
	if c.address+1 < len(c.addresses) && c.head != nil {
		c.address++
		c.connect()
		return
	}
	c.unconnected(lanes.Fault{Cause: lanes.Unreachable, Stage: "connect", Err: err})
}
