package rdma

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

// question is one control exchange with a source: a request with the body behind it, its reply, and the reply's payload.
// It holds the channel's stream for that time only. It is part of its owner and can be asked again from inside answered on,
// once the payload was taken.
//
//	idle ──ask──▶ queued ──▶ sent ──▶ reply ──▶ payload ──▶ answered
type question struct {
	// Status is the source's answer; meaningful when Err is nil, or a *lanes.Fault with the cause Refused.
	Status netproto.Status
	Err    error
	// Begun is true exactly when something of the request may have reached the source.
	Begun bool
	// Retained is true exactly when the stream's descriptor could not be closed.
	Retained bool

	channel  *control.Channel
	exchange control.Exchange
	request  netproto.Request
	buffer   lanes.Buffer
	size     int // of the body, then of the payload
	most     int // bytes of payload that are accepted
	payload  bool
	stage    string
	answered func(*question)
}

// room is the memory for a body and for the payload of its reply.
const room = max(netproto.GrantRequestSizeMax, netproto.GrantsSizeMax, netproto.ConnectionSizeMax)

// ask runs the exchange. Encode appends the body to dst, which is off the Go heap. At most most bytes of payload are
// accepted. Answered is called on the lane, perhaps at once when nothing could be sent; Payload is valid inside it.
func (q *question) ask(c *control.Channel, request netproto.Request, stage string, most int, deadline reactor.Instant,
	encode func(dst []byte) []byte, answered func(*question),
) {
	q.Status, q.Err, q.Begun, q.Retained = netproto.StatusSuccess, nil, false, false
	q.channel, q.request, q.stage, q.most, q.payload, q.answered = c, request, stage, most, false, answered
	buffer, err := c.Lane().Arena.Get(room)
	if err != nil {
		q.end(fault(lanes.Exhausted, stage, err))
		return
	}
	q.buffer = buffer
	q.size = len(encode(buffer.Bytes(room)[:0]))
	if !request.Operation.Grants() {
		q.request.Length = uint64(q.size)
	}
	c.Run(&q.exchange, q, deadline)
}

// FrameSize (control.Framed).
func (q *question) FrameSize() int { return netproto.RequestSize + q.size }

// Frame posts the question behind another one (control.Framed).
func (q *question) Frame(dst []byte) []byte {
	q.Begun = true
	return append(netproto.AppendRequest(dst, q.request), q.buffer.Bytes(uint64(q.size))...)
}

// cancel ends the exchange; answered follows.
func (q *question) cancel() { q.exchange.Cancel() }

// Payload is what came with a success.
func (q *question) Payload() []byte { return q.buffer.Bytes(room)[:q.size] }

// Replying (control.Framed).
func (q *question) Replying() bool { return q.payload }

// Begin (control.Work).
func (q *question) Begin(c *control.Channel) {
	q.Begun = true
	c.Send(netproto.AppendRequest(c.Out()[:0], q.request), q.buffer.Bytes(uint64(q.size)))
}

// Sent waits for the answer (control.Work).
func (q *question) Sent(int) {
	q.channel.Receive(q.channel.In()[:netproto.ReplySize], nil, netproto.ReplySize)
}

// Failed (control.Work).
func (q *question) Failed(f control.Failure) {
	if f.Fault.Stage == "" {
		f.Fault.Stage = q.stage
	}
	q.Begun, q.Retained = f.Begun, f.Retained
	q.end(f.Fault)
}

// Received takes the reply's header, then its payload (control.Work).
func (q *question) Received(n int) {
	if q.payload {
		q.channel.Finish()
		q.size = n
		q.end(nil)
		return
	}
	reply, err := netproto.DecodeReply(q.channel.In()[:netproto.ReplySize])
	switch {
	case err != nil:
		q.channel.Break(q.stage, err)
		return
	case reply.Status == netproto.StatusReady || reply.Length > uint64(q.most):
		q.channel.Break(q.stage, errUnexpectedReply)
		return
	case reply.Status == netproto.StatusSuccess && reply.Epoch != q.request.Epoch:
		q.channel.Break(q.stage, errUnknownEpoch)
		return
	}
	q.Status = reply.Status
	if reply.Status != netproto.StatusSuccess {
		q.channel.Finish()
		q.end(&lanes.Fault{Cause: lanes.Refused, Stage: q.stage, Status: reply.Status, Actual: reply.Epoch, Expected: q.request.Epoch})
		return
	}
	q.size = int(reply.Length)
	if q.size == 0 {
		q.channel.Finish()
		q.end(nil)
		return
	}
	q.payload = true
	q.channel.Receive(q.buffer.Bytes(uint64(q.size)), nil, q.size)
}

func (q *question) end(f *lanes.Fault) {
	if f != nil {
		q.Err = f
	}
	old := q.buffer // the owner may ask again inside answered, with a buffer of its own
	q.answered(q)
	if !old.Held() {
		return
	}
	if q.buffer == old {
		q.buffer = lanes.Buffer{}
	}
	q.channel.Lane().Arena.Put(&old)
}
