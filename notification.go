package orbitte

import (
	"context"
	"errors"
	"fmt"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
)

// Notification is a UTF-8 name and message; empty ones and repeats are fine (SPEC N-1).
type Notification struct {
	Name, Message string
}

func (n *Notification) size() uint64 { return uint64(len(n.Name)) + uint64(len(n.Message)) }

// NotificationStatus is the fate of a notification that followed data.
type NotificationStatus uint8

const (
	// NotNotified: none was asked for.
	NotNotified NotificationStatus = iota
	// Skipped: the batch was empty or failed, so it was not sent.
	Skipped
	// Delivered: it is in the peer's inbox; whether the peer has consumed it is not known.
	Delivered
	// Failed: it was not delivered, or Effect is EffectUnknown.
	Failed
)

func (s NotificationStatus) String() string {
	names := [...]string{"none", "skipped", "delivered", "failed"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("notification status %d", uint8(s))
}

// NotificationReport says what became of a notification. Data that was moved stays moved.
type NotificationReport struct {
	Status NotificationStatus
	// Effect is EffectNone, EffectComplete, or EffectUnknown: the body was sent, the receipt did not come. A
	// repeated notification may then be doubled.
	Effect Effect
	Err    error
}

var (
	errOnePeer    = errors.New("all requests of SubmitAndNotify go to one peer; use Submit with NotifyAfter for several")
	errNoChannel  = errors.New("TCPNotifications and NotificationRPCFallback are both off")
	errTextFormat = errors.New("name and message must be valid UTF-8")
)

func (e *Engine) checkNotification(n Notification) error {
	note := netproto.Notification{Name: n.Name, Message: n.Message}
	if size := n.size(); size > e.policy.NotificationBytesMax {
		return &budgets.Exhausted{Budget: "one notification", Unit: "bytes", Asked: int64(size), Limit: int64(e.policy.NotificationBytesMax)}
	}
	if note.Check() != nil {
		return &Error{Index: -1, Class: ErrInvalid, Cause: errTextFormat}
	}
	return nil
}

// courier takes one notification to one peer: through each installed channel in order; only one that is
// unavailable without any effect permits the next (SPEC N-5).
type courier struct {
	engine   *Engine
	segment  *Segment
	delivery control.Delivery
	start    reactor.Letter
	cancel   reactor.Letter
	channel  error // the last channel's error, when the fallback was tried
	report   NotificationReport
	done     func(*courier) // on the lane
}

func newCourier(e *Engine, s *Segment, n Notification, deadline reactor.Instant, done func(*courier)) *courier {
	c := &courier{engine: e, segment: s, done: done}
	c.delivery = control.Delivery{
		Notification: netproto.Notification{Name: n.Name, Message: n.Message}, Epoch: s.epoch, Deadline: deadline, Done: c.delivered,
	}
	return c
}

// runner is whose lane carries the notification.
func (c *courier) runner() *runner {
	if c.segment.Local() {
		return c.engine.runners[0]
	}
	return c.segment.peer.runner
}

// Receive starts or cancels on the lane (reactor.Recipient).
func (c *courier) Receive(letter *reactor.Letter, _ reactor.Instant) {
	if letter == &c.cancel {
		c.delivery.Cancel()
		return
	}
	config := &c.engine.config
	switch {
	case c.segment.Local():
		c.deliverOwn()
	case config.TCPNotifications.on(true):
		c.deliver(netproto.OperationNotify)
	case config.NotificationRPCFallback.on(true):
		c.deliver(netproto.OperationControlNotify)
	default:
		c.end(lanes.EffectNone, &Error{Index: -1, Class: ErrUnavailable, Cause: errNoChannel})
	}
}

func (c *courier) deliver(op netproto.Operation) {
	c.delivery.Operation = op
	c.delivery.Start(c.segment.peer.channel)
}

// deliverOwn puts the notification into the engine's own inbox, under the same budgets.
func (c *courier) deliverOwn() {
	if !c.engine.admission.Gate.Enter() {
		c.end(lanes.EffectNone, &lanes.Fault{Cause: lanes.Refused, Stage: "request", Status: netproto.StatusSourceClosed})
		return
	}
	defer c.engine.admission.Gate.Leave()
	n := c.delivery.Notification
	message, err := c.engine.inbox.Reserve(uint64(len(n.Name) + len(n.Message)))
	if err != nil {
		c.end(lanes.EffectNone, &lanes.Fault{Cause: lanes.Refused, Stage: "request", Status: netproto.StatusExhausted, Err: err})
		return
	}
	message.Name, message.Text = n.Name, n.Message
	c.engine.inbox.Put(message)
	c.end(lanes.EffectComplete, nil)
}

// delivered takes one channel's word.
func (c *courier) delivered(d *control.Delivery) {
	o := d.Outcome
	var fault *lanes.Fault
	unavailable := errors.As(o.Err, &fault) && fault.Cause == lanes.Refused && fault.Status == netproto.StatusBackendUnavailable
	if unavailable && d.Operation == netproto.OperationNotify && c.engine.config.NotificationRPCFallback.on(true) {
		c.channel = o.Err
		c.deliver(netproto.OperationControlNotify)
		return
	}
	c.end(o.Remote, o.Err)
}

func (c *courier) end(effect Effect, err error) {
	c.report = NotificationReport{Status: Delivered, Effect: effect}
	if err != nil {
		c.report.Status = Failed
		wrapped, own := err.(*Error)
		if !own {
			wrapped = &Error{Index: -1, Class: classOf(err), Cause: err}
		}
		wrapped.Op, wrapped.Endpoint, wrapped.situation = "SendNotification", c.segment.endpoint, notifying
		if c.channel != nil { // keep what the channel before the fallback said
			wrapped.Cause = fmt.Errorf("control RPC: %w; TCP channel before it: %w", err, c.channel)
		}
		c.report.Err = wrapped
	}
	c.done(c)
}

// SendNotification delivers to the peer's inbox: nil is the receipt for the enqueue, not for the
// consumption. Errors: as OpenSegment, ErrUnavailable when no channel is installed on both sides,
// ErrExhausted when the peer's inbox is full. The report's Effect says whether it may have arrived; its Err is
// the error returned.
func (e *Engine) SendNotification(ctx context.Context, s *Segment, n Notification) (NotificationReport, error) {
	report, err := e.notify(ctx, s, n)
	if err != nil {
		report = NotificationReport{Status: Failed, Err: failure("SendNotification", err)}
	}
	return report, report.Err
}

func (e *Engine) notify(ctx context.Context, s *Segment, n Notification) (report NotificationReport, err error) {
	if err := ctx.Err(); err != nil {
		return report, in(unposted, err)
	}
	if err := e.checkNotification(n); err != nil {
		return report, err
	}
	if err := e.enterSegment(s); err != nil {
		return report, err
	}
	defer s.gate.Leave()
	err = e.admitted(n.size(), func() error {
		report, err = e.carry(ctx, s, n)
		return err
	})
	return report, err
}

// carry sends one notification whose place, bytes and segment the caller holds. The error says that
// nothing was started; a failed delivery is in the report.
func (e *Engine) carry(ctx context.Context, s *Segment, n Notification) (NotificationReport, error) {
	if err := ctx.Err(); err != nil { // after data that it was just long enough for: nothing is sent, not even a part
		return NotificationReport{}, in(unposted, err)
	}
	done := make(chan struct{})
	c := newCourier(e, s, n, e.deadline(ctx), func(*courier) { close(done) })
	r := c.runner()
	if r.lane.Post(&c.start, c) != nil {
		return NotificationReport{}, &Error{Index: -1, Class: ErrClosed}
	}
	stop := context.AfterFunc(ctx, func() { _ = r.lane.Post(&c.cancel, c) }) // a lane that ended has ended the courier
	defer stop()
	if err := e.waitOn(context.Background(), done, r.stopped); err != nil {
		return NotificationReport{}, err
	}
	c.report.Err = underContext(ctx, c.report.Err)
	return c.report, nil
}

// SubmitAndNotify runs requests like SubmitAndWait and then, once all have succeeded, sends n to their
// one peer. The error is the data's; the notification's fate is Report.Notification. An empty or failed
// batch skips it (SPEC N-3). It is one submission in the budgets, and everything is charged before the
// first effect.
func (e *Engine) SubmitAndNotify(ctx context.Context, requests []Request, n Notification) (Report, error) {
	report, err := e.submitAndNotify(ctx, requests, n)
	return report, failure("SubmitAndNotify", err)
}

func (e *Engine) submitAndNotify(ctx context.Context, requests []Request, n Notification) (Report, error) {
	skipped := NotificationReport{Status: Skipped}
	none := Report{Failed: -1, LocallyDrained: true, Notification: skipped}
	if err := e.checkNotification(n); err != nil {
		return none, err
	}
	destinations := destinationsOf(requests)
	if len(destinations) > 1 {
		return none, &Error{Index: -1, Class: ErrInvalid, Cause: errOnePeer}
	}
	for _, s := range destinations { // at most one
		if err := e.enterSegment(s); err != nil {
			return none, err
		}
		defer s.gate.Leave()
	}
	bytes, err := e.budgets.submittedBytes.Take(int64(n.size()))
	if err != nil {
		return none, err
	}
	defer bytes.Repay()
	var kept place
	var report Report
	err = e.submitAndWait(ctx, requests, &report, &kept)
	report.Notification = skipped
	if kept.held() {
		defer kept.leave()
	}
	if err != nil || len(requests) == 0 {
		return report, err
	}
	report.Notification, err = e.carry(ctx, destinations[0], n)
	if err != nil {
		report.Notification = NotificationReport{Status: Failed, Err: failure("SubmitAndNotify", err)}
	}
	return report, nil
}

// destinationsOf lists one segment for each peer that requests go to, in order. Two segments of one peer
// have its epoch in common. Requests without a segment are for the checks to refuse.
func destinationsOf(requests []Request) []*Segment {
	var list []*Segment
next:
	for i := range requests {
		wanted := requests[i].Segment
		if wanted == nil {
			continue
		}
		for _, s := range list {
			if s.epoch == wanted.epoch {
				continue next
			}
		}
		list = append(list, wanted)
	}
	return list
}

// ReceiveNotifications takes everything out of the inbox in one step, in order; concurrent callers get
// disjoint notifications (SPEC N-2). It never blocks; nil when there is none.
func (e *Engine) ReceiveNotifications() []Notification {
	messages := e.inbox.Drain()
	if len(messages) == 0 {
		return nil
	}
	notes := make([]Notification, len(messages))
	for i, m := range messages {
		notes[i] = Notification{Name: m.Name, Message: m.Text}
	}
	return notes
}

// AwaitNotifications is ReceiveNotifications that waits until there is at least one. Errors: ErrDeadline,
// ErrCancelled, and ErrClosed once the source is closed and the inbox empty.
func (e *Engine) AwaitNotifications(ctx context.Context) ([]Notification, error) {
	for {
		if notes := e.ReceiveNotifications(); notes != nil {
			return notes, nil
		}
		if err := e.waitOn(ctx, e.inbox.Arrived(), e.admission.Gate.Quiet()); err != nil {
			return nil, failure("AwaitNotifications", in(waiting, err))
		}
	}
}
