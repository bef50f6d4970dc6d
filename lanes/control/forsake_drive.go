package control

import (
	"errors"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
)

// forsakenPatience is how long the reply for an exchange that was given up may keep others waiting.
const forsakenPatience = time.Second

var errForsaken = errors.New("an exchange on it was given up, and the others have ended")

// forsake ends a framed exchange without ending its stream, for the sake of the others on it: somebody else takes its reply.
// Nothing more is posted on the stream, which is retired once they have ended (SPEC T-5). False: there are no others, or
// memory of the work's is with the system.
func (c *Channel) forsake(x *Exchange, fault *lanes.Fault) bool {
	work := framed(x)
	if work == nil || c.stream.ending != nil || c.alone(x) {
		return false
	}
	if x == c.active && (work.Replying() || c.stream.sending() && !c.convoy.sending) {
		return false
	}
	heir := &forsaken{}
	y := &heir.exchange
	*y = Exchange{work: heir, channel: c, deadline: c.pool.lane.Now().After(forsakenPatience), rank: x.rank, wave: x.wave, state: x.state, next: x.next}
	if x == c.active {
		c.active = y
	} else {
		c.convoy.replace(x, y)
	}
	x.next = nil
	c.convoy.doomed = true
	c.pool.lane.Arm(&y.timer, y.deadline, y)
	c.fail(x, Failure{Fault: fault, Begun: true})
	return true
}

// alone is true exactly when no other exchange on the stream has somebody who waits for it.
func (c *Channel) alone(x *Exchange) bool {
	waited := func(y *Exchange) bool {
		_, given := y.work.(*forsaken)
		return y != x && !given
	}
	if waited(c.active) {
		return false
	}
	for y := c.convoy.head; y != nil; y = y.next {
		if waited(y) {
			return false
		}
	}
	return true
}

func (v *convoy) replace(x, y *Exchange) {
	if v.head == x {
		v.head = y
	} else {
		before := v.head
		for before.next != x {
			before = before.next
		}
		before.next = y
	}
	if v.tail == x {
		v.tail = y
	}
}

// forsaken takes the reply of an exchange that was given up.
type forsaken struct {
	exchange Exchange
	begun    bool   // true exactly when the reply's header is there
	left     uint64 // bytes of its payload that are to come
}

// FrameSize, Frame and Replying: it is posted already, and counts as framed (Framed).
func (f *forsaken) FrameSize() int { return 0 }

// Frame (Framed).
func (f *forsaken) Frame(dst []byte) []byte { return dst }

// Replying (Framed).
func (f *forsaken) Replying() bool { return true }

// Begin does not happen (Work).
func (f *forsaken) Begin(*Channel) {}

// Sent waits for the reply (Work).
func (f *forsaken) Sent(int) {
	c := f.exchange.channel
	c.Receive(c.In()[:netproto.ReplySize], nil, netproto.ReplySize)
}

// Received throws the reply away (Work).
func (f *forsaken) Received(n int) {
	c := f.exchange.channel
	if f.begun {
		f.left -= uint64(n)
	} else {
		reply, err := netproto.DecodeReply(c.In()[:netproto.ReplySize])
		if err != nil || reply.Status == netproto.StatusReady || reply.Length > batchBytes {
			c.Break("", errors.Join(err, errUnasked))
			return
		}
		f.begun, f.left = true, reply.Length
	}
	if f.left == 0 {
		c.Finish()
		return
	}
	piece := c.In()[:min(f.left, uint64(len(c.In())))]
	c.Receive(piece, nil, len(piece))
}

// Failed: nobody waits for it (Work).
func (f *forsaken) Failed(Failure) {}
