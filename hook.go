package orbitte

import (
	"context"
	"sync/atomic"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
)

// hook is the notification of an asynchronous batch. It keeps only the destinations that may still be
// tried: those that got it, or may have got it, leave (SPEC N-6).
type hook struct {
	batch        *Batch
	note         Notification
	destinations []*Segment
	entered      []*Segment // destinations whose gate the hook still holds, in order
	bytes        budgets.Charge
	kept         []*Segment
	report       NotificationReport
	courier      atomic.Pointer[courier] // the one under way
}

// admit enters the destinations' gates and charges the bytes, before any effect. After an error drop gives
// back what was taken.
func (h *hook) admit(requests []Request) (err error) {
	h.destinations = destinationsOf(requests)
	for i, s := range h.destinations {
		if err := h.batch.engine.enterSegment(s); err != nil {
			return err
		}
		h.entered = h.destinations[:i+1]
	}
	h.bytes, err = h.batch.engine.budgets.submittedBytes.Take(int64(h.note.size()))
	return err
}

// drop gives back what the hook still holds.
func (h *hook) drop() {
	for _, s := range h.entered {
		s.gate.Leave()
	}
	h.entered = nil
	if h.bytes.Held() {
		h.bytes.Repay()
	}
}

// fire starts after the data has ended, on the lane; false when there is nothing to send.
func (h *hook) fire() bool {
	b := h.batch
	b.report.Notification = NotificationReport{Status: Skipped}
	if b.err != nil || len(h.destinations) == 0 {
		return false
	}
	h.report = NotificationReport{Status: Delivered, Effect: lanes.EffectComplete}
	return h.proceed()
}

// proceed sends to the destination at hand; false when there is none left.
func (h *hook) proceed() bool {
	for len(h.entered) > 0 {
		class := ErrCancelled
		if !h.batch.group.cancelled.Load() {
			if h.send(h.entered[0]) {
				return true
			}
			class = ErrClosed // the lane has ended
		}
		h.settle(NotificationReport{Status: Failed, Err: &Error{Op: "NotifyAfter", Index: -1, Endpoint: h.entered[0].endpoint, Class: class}})
	}
	h.destinations, h.kept = h.kept, nil
	h.batch.report.Notification = h.report
	return false
}

// send starts a courier. The flag is looked at again after the courier can be seen: of end and send, one
// sees the other.
func (h *hook) send(s *Segment) bool {
	c := newCourier(h.batch.engine, s, h.note, h.batch.group.deadline, h.arrived)
	h.courier.Store(c)
	if c.runner().lane.Post(&c.start, c) != nil {
		return false
	}
	if h.batch.group.cancelled.Load() {
		h.end()
	}
	return true
}

// end asks for the early end of the courier under way, from any goroutine.
func (h *hook) end() {
	if c := h.courier.Load(); c != nil {
		_ = c.runner().lane.Post(&c.cancel, c) // a lane that has ended has ended the courier
	}
}

// settle takes the fate of the destination at hand. The first failure is the report's.
func (h *hook) settle(r NotificationReport) {
	s := h.entered[0]
	h.entered = h.entered[1:]
	s.gate.Leave()
	if r.Status != Failed {
		return
	}
	r.Err = underContext(h.batch.ctx, r.Err)
	if r.Effect == lanes.EffectNone {
		h.kept = append(h.kept, s)
	}
	if h.report.Status != Failed {
		h.report = r
	}
}

// arrived is a courier's end, on its lane.
func (h *hook) arrived(c *courier) {
	h.settle(c.report)
	if !h.proceed() {
		h.batch.finish()
	}
}

// RetryNotifications sends the batch's notification again to the peers that certainly did not get it, and
// says how many are left. Call it after Done. The error is the first failure's.
func (b *Batch) RetryNotifications(ctx context.Context) (left int, err error) {
	if b.state.Load()&batchFreed != 0 {
		return 0, freed("RetryNotifications")
	}
	if _, terminal, _ := b.Poll(); !terminal || b.hook == nil {
		return 0, &Error{Op: "RetryNotifications", Index: -1, Class: ErrInvalid, Cause: errNoNotification}
	}
	b.retry.Lock()
	defer b.retry.Unlock()
	h := b.hook
	if b.err != nil { // skipped for good: the data failed
		return 0, nil
	}
	var kept []*Segment
	for _, s := range h.destinations {
		report, failed := b.engine.SendNotification(ctx, s, h.note)
		if failed != nil && report.Effect == lanes.EffectNone {
			kept = append(kept, s)
		}
		if err == nil {
			err = failed
		}
	}
	h.destinations = kept
	return len(kept), err
}
