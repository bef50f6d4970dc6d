package control

import (
	"errors"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
)

var errUnexpectedReply = errors.New("a reply that does not answer this request")

// Delivery sends one notification over a channel. It is its owner's and may be used again after
// Done was called.
type Delivery struct {
	Notification netproto.Notification
	// Operation is OperationNotify (the TCP channel) or OperationControlNotify (the control RPC, SPEC N-5).
	Operation netproto.Operation
	Epoch     netproto.Epoch
	Deadline  reactor.Instant
	// Outcome is set before Done is called: Remote is the delivery's effect.
	Outcome lanes.Outcome
	// Done is called on the lane when the delivery has ended.
	Done func(*Delivery)

	exchange Exchange
	channel  *Channel
	machine  notifyMachine
	body     lanes.Buffer
}

// Start queues the delivery on the channel, on its lane.
func (d *Delivery) Start(c *Channel) {
	d.machine = notifyMachine{expected: d.Epoch}
	d.channel = c
	c.Run(&d.exchange, d, d.Deadline)
}

// Cancel ends the delivery early; Done follows.
func (d *Delivery) Cancel() { d.exchange.Cancel() }

// Begin sends the request (Work).
func (d *Delivery) Begin(c *Channel) {
	request := d.Notification.Request(d.Operation, d.Epoch)
	body, err := c.Lane().Arena.Get(uint64(request.NotifyBodySize()))
	if err != nil {
		c.Finish() // nothing was posted: the stream is clean
		d.end(lanes.EffectNone, &lanes.Fault{Cause: lanes.Exhausted, Stage: "body", Err: err}, true)
		return
	}
	d.body = body
	c.Send(netproto.AppendRequest(c.Out()[:0], request), nil)
}

// Sent (Work).
func (d *Delivery) Sent(int) {
	d.machine.sent()
	d.channel.Receive(d.channel.In()[:netproto.ReplySize], nil, netproto.ReplySize)
}

// Received takes the answer and goes on (Work).
func (d *Delivery) Received(int) {
	d.machine.reply(d.channel.In()[:netproto.ReplySize])
	switch {
	case d.machine.stage == notifyBody:
		size := uint64(d.Notification.Request(d.Operation, d.Epoch).NotifyBodySize())
		d.channel.Send(netproto.AppendNotifyBody(d.body.Bytes(size)[:0], d.Notification), nil)
	case d.machine.violated:
		d.channel.Fail(d.machine.fault) // Failed follows
	case d.machine.fault != nil:
		d.channel.Finish()
		d.end(lanes.EffectNone, d.machine.fault, true)
	default:
		d.channel.Finish()
		d.end(lanes.EffectComplete, nil, true)
	}
}

// Failed (Work).
func (d *Delivery) Failed(f Failure) {
	if f.Fault.Stage == "" {
		f.Fault.Stage = d.machine.reached().String()
	}
	d.end(d.machine.lost(f.Sent), f.Fault, !f.Retained)
}

func (d *Delivery) end(effect lanes.Effect, err error, drained bool) {
	if d.body.Held() {
		d.channel.Lane().Arena.Put(&d.body)
	}
	d.Outcome = lanes.Outcome{Remote: effect, Err: err, Drained: drained}
	d.Done(d)
}

// NotifyService takes notifications into the inbox, at the source (SPEC N-4, N-5).
type NotifyService struct {
	inbox *Inbox
	idle  []*receipt // handlers for reuse
}

// NewNotifyService serves one lane.
func NewNotifyService(inbox *Inbox) *NotifyService { return &NotifyService{inbox: inbox} }

// receipt is the handler of one incoming notification: ready → body → put → final success.
type receipt struct {
	service *NotifyService
	session *Session
	request netproto.Request
	message *Message // reserved room; nil once it is in the inbox
	body    lanes.Buffer
	ready   bool // true exactly once Ready was sent
}

// Serve reserves count and bytes before it lets the body come.
func (n *NotifyService) Serve(s *Session, r netproto.Request) {
	policy := s.Lane().Policy
	size := r.Offset + r.Length
	switch {
	case r.Operation == netproto.OperationNotify && !policy.TCPNotifications:
		s.Refuse(netproto.StatusBackendUnavailable)
		return
	case size > policy.NotificationBytesMax:
		s.Refuse(netproto.StatusExhausted)
		return
	}
	message, err := n.inbox.Reserve(size)
	if err != nil {
		s.Refuse(netproto.StatusExhausted)
		return
	}
	body, err := s.Lane().Arena.Get(uint64(r.NotifyBodySize()))
	if err != nil {
		message.Release()
		s.Refuse(netproto.StatusExhausted)
		return
	}
	h := n.take()
	h.session, h.request, h.message, h.body, h.ready = s, r, message, body, false
	s.Take(h)
	s.Send(s.Header(netproto.StatusReady, 0), nil)
}

func (n *NotifyService) take() *receipt {
	if len(n.idle) == 0 {
		return &receipt{service: n}
	}
	h := n.idle[len(n.idle)-1]
	n.idle = n.idle[:len(n.idle)-1]
	return h
}

// Sent: Ready is out and the body may come, or the receipt is out and the frame has ended.
func (h *receipt) Sent(int) {
	if !h.ready {
		h.ready = true
		size := h.request.NotifyBodySize()
		h.session.Receive(h.body.Bytes(uint64(size)), nil, size)
		return
	}
	session := h.session
	h.release()
	session.Finish()
}

// Received: the whole body is here. It enters the inbox only if it is well formed, and the receipt
// is sent only after it did.
func (h *receipt) Received(n int) {
	note, err := netproto.DecodeNotifyBody(h.request, h.body.Bytes(uint64(n)))
	if err != nil {
		session := h.session
		h.release()
		session.Violate(err)
		return
	}
	h.message.Name, h.message.Text = note.Name, note.Message
	h.service.inbox.Put(h.message)
	h.message = nil
	h.session.Lane().Counts.Notified.Add(1)
	h.session.Send(h.session.Header(netproto.StatusSuccess, 0), nil)
}

// Lost (Handler).
func (h *receipt) Lost(Loss) { h.release() }

func (h *receipt) release() {
	if h.message != nil {
		h.message.Release()
	}
	h.session.Lane().Arena.Put(&h.body)
	h.session, h.message = nil, nil
	h.service.idle = append(h.service.idle, h)
}
