package delegate

import (
	"errors"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
)

var (
	errUnexpectedReply = errors.New("a reply that does not fit the question")
	errUnknownEpoch    = errors.New("a reply of another epoch than the one that was asked")
)

// question is one control exchange about a pin: a request with the body behind it, its reply, and the reply's payload. It
// is part of a transfer, and can be asked again from inside answered.
//
//	idle ──ask──▶ queued ──▶ sent ──▶ reply ──▶ payload ──▶ answered
type question struct {
	fault    *lanes.Fault // nil: a success, of the wanted length
	begun    bool         // true exactly when something of the request may have reached the source
	retained bool         // true exactly when the stream's descriptor could not be closed
	payload  [netproto.PinnedSize]byte

	channel  *control.Channel
	exchange control.Exchange
	request  netproto.Request
	body     lanes.Buffer
	size     int // of the body
	want     int // bytes of payload that a success has
	stage    string
	reading  bool // true exactly while the payload is received
	answered func()
}

// ask runs the exchange; the body was appended by encode, which gets memory off the Go heap. Answered follows, perhaps at
// once.
func (q *question) ask(c *control.Channel, r netproto.Request, stage string, want int, deadline reactor.Instant, encode func([]byte) []byte) {
	q.fault, q.begun, q.retained, q.reading = nil, false, false, false
	q.channel, q.request, q.stage, q.want = c, r, stage, want
	body, err := c.Lane().Arena.Get(netproto.DelegateSizeMax)
	if err != nil {
		q.end(&lanes.Fault{Cause: lanes.Exhausted, Stage: stage, Err: err})
		return
	}
	q.body = body
	q.size = len(encode(body.Bytes(netproto.DelegateSizeMax)[:0]))
	if r.Operation != netproto.OperationPin { // whose length is that of the range
		q.request.Length = uint64(q.size)
	}
	c.Run(&q.exchange, q, deadline)
}

// Begin (control.Work).
func (q *question) Begin(c *control.Channel) {
	q.begun = true
	c.Send(netproto.AppendRequest(c.Out()[:0], q.request), q.body.Bytes(uint64(q.size)))
}

// Sent waits for the answer (control.Work).
func (q *question) Sent(int) {
	q.channel.Receive(q.channel.In()[:netproto.ReplySize], nil, netproto.ReplySize)
}

// Received takes the reply's header, then its payload (control.Work).
func (q *question) Received(n int) {
	if q.reading {
		copy(q.payload[:], q.channel.In()[:n])
		q.channel.Finish()
		q.end(nil)
		return
	}
	reply, err := netproto.DecodeReply(q.channel.In()[:netproto.ReplySize])
	success := err == nil && reply.Status == netproto.StatusSuccess
	switch {
	case err != nil:
		q.channel.Break(q.stage, err) // Failed follows
	case reply.Status == netproto.StatusReady || success && reply.Length != uint64(q.want):
		q.channel.Break(q.stage, errUnexpectedReply)
	case success && reply.Epoch != q.request.Epoch:
		q.channel.Break(q.stage, errUnknownEpoch)
	case !success:
		q.channel.Finish()
		q.end(&lanes.Fault{Cause: lanes.Refused, Stage: q.stage, Status: reply.Status, Actual: reply.Epoch, Expected: q.request.Epoch})
	case q.want == 0:
		q.channel.Finish()
		q.end(nil)
	default:
		q.reading = true
		q.channel.Receive(q.channel.In()[:q.want], nil, q.want)
	}
}

// Failed (control.Work).
func (q *question) Failed(f control.Failure) {
	if f.Fault.Stage == "" {
		f.Fault.Stage = q.stage
	}
	q.begun, q.retained = f.Begun, f.Retained
	q.end(f.Fault)
}

func (q *question) end(f *lanes.Fault) {
	if q.body.Held() {
		q.channel.Lane().Arena.Put(&q.body) // proof: the exchange has ended, so that the kernel has given everything back
	}
	q.fault = f
	q.answered()
}
