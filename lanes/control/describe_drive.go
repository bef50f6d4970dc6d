package control

import (
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
)

// Inquiry asks a source for its descriptor over a channel.
type Inquiry struct {
	// Epoch is the expected epoch; zero learns it (SPEC W-12). Set to the real one on success.
	Epoch    netproto.Epoch
	Deadline reactor.Instant
	// Descriptor is valid when Err is nil; both are set before Done is called.
	Descriptor netproto.Descriptor
	Err        error
	// Done is called on the lane when the inquiry has ended.
	Done func(*Inquiry)

	exchange Exchange
	channel  *Channel
	machine  describeMachine
	body     lanes.Buffer
}

// Start queues the inquiry on the channel, on its lane.
func (q *Inquiry) Start(c *Channel) {
	q.channel, q.machine = c, describeMachine{expected: q.Epoch}
	c.Run(&q.exchange, q, q.Deadline)
}

// Cancel ends the inquiry early; Done follows.
func (q *Inquiry) Cancel() { q.exchange.Cancel() }

// Begin sends the request (Work).
func (q *Inquiry) Begin(c *Channel) {
	c.Send(netproto.AppendRequest(c.Out()[:0], q.machine.request()), nil)
}

// Sent (Work).
func (q *Inquiry) Sent(int) {
	q.channel.Receive(q.channel.In()[:netproto.ReplySize], nil, netproto.ReplySize)
}

// Received takes the answer, or the descriptor (Work).
func (q *Inquiry) Received(n int) {
	if q.machine.body {
		q.decode(n)
		return
	}
	q.machine.reply(q.channel.In()[:netproto.ReplySize])
	switch {
	case q.machine.again:
		q.Begin(q.channel)
	case q.machine.violated:
		q.channel.Fail(q.machine.fault)
	case q.machine.fault != nil:
		q.channel.Finish()
		q.end(q.machine.fault)
	default:
		q.fetch()
	}
}

// fetch receives the descriptor; its length was checked by the machine.
func (q *Inquiry) fetch() {
	body, err := q.channel.Lane().Arena.Get(q.machine.length)
	if err != nil {
		q.channel.Fail(&lanes.Fault{Cause: lanes.Exhausted, Stage: "descriptor", Err: err})
		return
	}
	q.body = body
	q.channel.Receive(body.Bytes(q.machine.length), nil, int(q.machine.length))
}

func (q *Inquiry) decode(n int) {
	descriptor, err := netproto.DecodeDescriptor(q.body.Bytes(uint64(n)))
	if err != nil {
		q.channel.Fail(&lanes.Fault{Cause: lanes.Violated, Stage: "descriptor", Err: err})
		return
	}
	q.Descriptor, q.Epoch = descriptor, q.machine.expected
	q.channel.Finish()
	q.end(nil)
}

// Failed (Work).
func (q *Inquiry) Failed(f Failure) {
	if f.Fault.Stage == "" {
		f.Fault.Stage = "describe"
	}
	q.end(f.Fault)
}

func (q *Inquiry) end(err error) {
	if q.body.Held() {
		q.channel.Lane().Arena.Put(&q.body)
	}
	q.Err = err
	q.Done(q)
}

// DescribeService answers with the engine's descriptor, at the source.
type DescribeService struct {
	// describe appends the descriptor as it is now: one consistent set of regions (SPEC M-4).
	describe func(dst []byte) ([]byte, error)
}

// NewDescribeService serves one lane.
func NewDescribeService(describe func(dst []byte) ([]byte, error)) *DescribeService {
	return &DescribeService{describe: describe}
}

// description is the handler of one describe.
type description struct {
	session *Session
	body    lanes.Buffer
}

// Serve (Service).
func (d *DescribeService) Serve(s *Session, _ netproto.Request) {
	body, err := s.Lane().Arena.Get(netproto.DescriptorSizeMax)
	if err != nil {
		s.Refuse(netproto.StatusExhausted)
		return
	}
	encoded, err := d.describe(body.Bytes(netproto.DescriptorSizeMax)[:0])
	if err != nil || len(encoded) > netproto.DescriptorSizeMax {
		s.Lane().Arena.Put(&body)
		s.Refuse(netproto.StatusInternalError)
		return
	}
	h := &description{session: s, body: body}
	s.Take(h)
	s.Lane().Counts.Described.Add(1)
	s.Send(s.Header(netproto.StatusSuccess, uint64(len(encoded))), encoded)
}

// Sent ends the frame (Handler).
func (h *description) Sent(int) {
	session := h.session
	h.release()
	session.Finish()
}

// Received does not happen.
func (h *description) Received(int) {}

// Lost (Handler).
func (h *description) Lost(Loss) { h.release() }

func (h *description) release() { h.session.Lane().Arena.Put(&h.body) }
