package orbitte

import (
	"context"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
)

// hook is the notification of an asynchronous batch. It keeps only the destinations that may still be
// tried: those that got it, or may have got it, leave (SPEC N-6).
type hook struct {
	batch        *Batch
	note         Notification
	destinations []*Segment
	bytes        budgets.Charge
	next         int // destination at hand, while firing
	kept         []*Segment
	report       NotificationReport
}

func (h *hook) size() uint64 { return uint64(len(h.note.Name) + len(h.note.Message)) }

// fire starts after the data has ended, on the lane; false when there is nothing to send.
func (h *hook) fire() bool {
	b := h.batch
	b.report.Notification = NotificationReport{Status: Skipped}
	if b.err != nil || len(h.destinations) == 0 || !b.engine.requester.Enter() {
		return false
	}
	h.report = NotificationReport{Status: Delivered, Effect: lanes.EffectComplete}
	return h.proceed()
}

// proceed sends to the destination at hand.
func (h *hook) proceed() bool {
	e := h.batch.engine
	for h.next < len(h.destinations) {
		s := h.destinations[h.next]
		if s.gate.Enter() {
			c := newCourier(e, s, h.note, h.batch.group.deadline, h.arrived)
			if c.runner().lane.Post(&c.start, c) == nil {
				return true
			}
			s.gate.Leave()
		}
		h.settle(s, NotificationReport{Status: Failed, Err: &Error{Op: "NotifyAfter", Index: -1, Endpoint: s.endpoint, Class: ErrClosed}})
	}
	h.destinations, h.kept = h.kept, nil
	h.batch.report.Notification = h.report
	e.requester.Leave()
	return false
}

// settle takes one destination's fate. The first failure is the report's.
func (h *hook) settle(s *Segment, r NotificationReport) {
	h.next++
	if r.Status == Failed {
		if r.Effect == lanes.EffectNone {
			h.kept = append(h.kept, s)
		}
		if h.report.Status != Failed {
			h.report = r
		}
	}
}

// arrived is a courier's end, on its lane.
func (h *hook) arrived(c *courier) {
	c.segment.gate.Leave()
	h.settle(c.segment, c.report)
	if !h.proceed() {
		h.batch.finish()
	}
}

// RetryNotifications sends the batch's notification again to the peers that certainly did not get it, and
// says how many are left. Call it after Done. Errors are the first failure's.
func (b *Batch) RetryNotifications(ctx context.Context) (left int, err error) {
	if _, terminal, _ := b.Poll(); !terminal || b.hook == nil {
		return 0, &Error{Op: "RetryNotifications", Index: -1, Class: ErrInvalid, Cause: errNoNotification}
	}
	b.once.Lock()
	defer b.once.Unlock()
	var kept []*Segment
	for _, s := range b.hook.destinations {
		report, failed := b.engine.SendNotification(ctx, s, b.hook.note)
		if failed == nil {
			continue
		}
		if report.Effect == lanes.EffectNone {
			kept = append(kept, s)
		}
		if err == nil {
			err = failed
		}
	}
	b.hook.destinations = kept
	return len(kept), err
}
