package control

import (
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/reactor"
)

// aheadMax is how many framed exchanges may be posted behind the active one: with it, as many as a source answers at
// a time on one stream.
const aheadMax = slipsMax - 1

// Framed is a work whose request is one small frame, and whose reply comes without anything else being sent. Several may
// be posted on a stream before the first is answered, in one send; their replies come in the order of their requests.
type Framed interface {
	Work
	// FrameSize is the size of the request with the body behind it: at most batchBytes.
	FrameSize() int
	// Frame appends it to dst. It is posted from here on, instead of by Begin; Sent follows when the exchanges
	// before it have ended.
	Frame(dst []byte) []byte
	// Replying is true exactly when memory of the work's own is being received into.
	Replying() bool
}

// convoy are the framed exchanges posted behind the active one of a channel, in order.
type convoy struct {
	head, tail *Exchange
	n          int
	buffer     lanes.Buffer // two halves of requests, one being filled and one being sent; a third part for what is received ahead
	half       int          // that is being filled: 0 or 1
	filled     int          // bytes in it
	wave       uint64       // number of that filling; the first is 1
	doomed     bool         // true exactly when nothing more is posted on the stream, see forsake
	sending    bool         // true exactly while the send under way is a wave
	flush      reactor.Timer
}

const convoyBytes = 4 * batchBytes

func (v *convoy) filling() []byte {
	at := v.half * batchBytes
	return v.buffer.Bytes(convoyBytes)[at : at+v.filled : at+batchBytes]
}

func framed(x *Exchange) Framed {
	work, _ := x.work.(Framed)
	return work
}

// join posts what waits behind the active exchange, as far as that is framed and there is room.
func (c *Channel) join() {
	v := &c.convoy
	for c.active != nil && c.head != nil && v.n < aheadMax && c.follower == nil && !v.doomed && c.state == channelReady && c.stream.ending == nil {
		x := c.head
		work := framed(x)
		if work == nil || framed(c.active) == nil || !c.equip() || v.filled+work.FrameSize() > batchBytes || x.deadline <= c.pool.lane.Now() {
			return
		}
		c.unlink(x)
		if x.state, x.wave = exchangeAhead, v.wave; v.tail == nil {
			v.head = x
		} else {
			v.tail.next = x
		}
		v.tail = x
		v.n++
		v.filled = len(work.Frame(v.filling()))
		c.pool.lane.Arm(&v.flush, c.pool.lane.Now(), (*convoyFlush)(c))
	}
}

// equip gets the memory for a convoy; false: there is none, and exchanges follow each other one by one.
func (c *Channel) equip() bool {
	v := &c.convoy
	if v.buffer.Held() {
		return true
	}
	buffer, err := c.pool.lane.Arena.Get(convoyBytes)
	if err != nil {
		return false
	}
	v.buffer, v.wave = buffer, 1
	c.stream.readAhead(buffer.Bytes(convoyBytes)[2*batchBytes:])
	return true
}

// convoyFlush sends what a turn has put into a wave.
type convoyFlush Channel

// Expire (reactor.TimerHandler).
func (f *convoyFlush) Expire(*reactor.Timer, reactor.Instant) { (*Channel)(f).depart() }

// depart sends the wave that was filled, unless something is being sent: then it goes after that.
func (c *Channel) depart() {
	v := &c.convoy
	if v.filled == 0 || c.stream.ending != nil || c.stream.sending() || v.sending {
		return
	}
	b := v.filling()
	v.half, v.filled, v.sending = 1-v.half, 0, true
	v.wave++
	c.stream.Send(b, nil)
}

// landed takes the end of a wave's send.
func (c *Channel) landed() {
	c.convoy.sending = false
	c.depart()
}

// advance makes the first of the convoy the active exchange.
func (c *Channel) advance() {
	v := &c.convoy
	x := v.head
	if v.head = x.next; v.head == nil {
		v.tail = nil
	}
	v.n--
	x.next = nil
	c.active, x.state = x, exchangeActive
	c.pool.lane.Counts.Reused.Add(1)
	x.work.Sent(0) // or soon will be: whatever is received before that nobody has asked for
	c.join()
}

// disband ends the convoy of a stream that is gone. What had not left goes back to the front of the queue; the others
// are returned, linked, to be failed.
func (c *Channel) disband() (gone *Exchange) {
	v := &c.convoy
	var last *Exchange
	for v.head != nil && v.head.wave < v.wave {
		x := v.head
		v.head = x.next
		if x.next = nil; last == nil {
			gone = x
		} else {
			last.next = x
		}
		last = x
	}
	if v.head != nil {
		for x := v.head; x != nil; x = x.next {
			x.state = exchangeQueued
			if x.next != nil {
				x.next.prev = x
			}
		}
		v.head.prev, v.tail.next = nil, c.head
		if c.head == nil {
			c.tail = v.tail
		} else {
			c.head.prev = v.tail
		}
		c.head = v.head
	}
	c.pool.lane.Disarm(&v.flush)
	if v.buffer.Held() {
		c.pool.lane.Arena.Put(&v.buffer)
	}
	*v = convoy{}
	return gone
}
