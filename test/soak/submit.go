package main

import (
	"context"
	"fmt"
	"time"

	"github.com/orbitte/orbitte"
)

// submitAndWait is one synchronous batch, some of them with a notification behind.
func (w *worker) submitAndWait() {
	items, ok := w.order()
	if !ok {
		return
	}
	b := w.bounds()
	defer b.cancel()
	done := w.l.p.watch.begin(b.deadline, "%s worker %d SubmitAndWait %v, %s", w.l.name(), w.n, items, b.text)
	requests := requestsOf(items)
	var report orbitte.Report
	var err error
	noted := oneTarget(items) && w.dice.IntN(4) == 0
	if noted {
		report, err = w.l.engine.SubmitAndNotify(b, requests, w.l.mail.note())
	} else {
		report, err = w.l.engine.SubmitAndWait(b, requests)
	}
	done()
	w.settle(items, report, err, b.deadline)
	w.noted(items, noted, report, err)
}

func oneTarget(items []item) bool {
	for _, i := range items {
		if i.to.segment != items[0].to.segment {
			return false
		}
	}
	return true
}

// noted checks the fate of a batch's notification, and counts it.
func (w *worker) noted(items []item, asked bool, r orbitte.Report, err error) {
	n := r.Notification
	if asked {
		w.l.mail.count(items[0].to.epoch, n)
	}
	if !asked && n.Status != orbitte.NotNotified || err != nil && (n.Status == orbitte.Delivered || n.Status == orbitte.Failed) {
		w.l.fail("worker %d: notification %v, asked for %v, data %v", w.n, n.Status, asked, err)
	}
}

// submit is one asynchronous batch: waited for in one of three ways, some cancelled meanwhile.
func (w *worker) submit() {
	items, ok := w.order()
	if !ok {
		return
	}
	b := w.bounds()
	defer b.cancel()
	var options []orbitte.SubmitOption
	noted := oneTarget(items) && w.dice.IntN(4) == 0
	if noted {
		options = append(options, orbitte.NotifyAfter(w.l.mail.note()))
	}
	done := w.l.p.watch.begin(b.deadline, "%s worker %d Submit %v, %s", w.l.name(), w.n, items, b.text)
	defer done()
	batch, err := w.l.engine.Submit(b, requestsOf(items), options...)
	if err != nil {
		w.l.judge("Submit", err, b.deadline)
		w.unchanged("after a refused Submit")
		return
	}
	if w.dice.IntN(3) == 0 {
		timer := time.AfterFunc(time.Duration(logUniform(w.dice, 1, 100_000))*time.Microsecond, batch.Cancel)
		defer timer.Stop()
	}
	report, err := w.await(batch)
	w.settle(items, report, err, b.deadline)
	w.noted(items, noted, report, err)
	w.tasks(batch, items, report)
	if noted && report.Notification.Status == orbitte.Failed && report.Notification.Effect == orbitte.EffectNone {
		w.retry(batch, items[0].to)
	}
	if err := batch.Free(); err != nil {
		w.l.fail("Free: %v", err)
	}
}

// await waits in one of the three styles (SPEC B-4).
func (w *worker) await(b *orbitte.Batch) (orbitte.Report, error) {
	switch w.dice.IntN(3) {
	case 0:
		return b.Wait(context.Background())
	case 1:
		<-b.Done()
		report, terminal, err := b.Poll()
		if !terminal {
			w.l.fail("Done, and Poll says that it is not terminal")
		}
		return report, err
	}
	before := make([]orbitte.TaskState, b.Len())
	for {
		report, terminal, err := b.Poll()
		for i := range before {
			now, _, _ := b.Task(i)
			if now < before[i] || before[i].Terminal() && now != before[i] || terminal && !now.Terminal() {
				w.l.fail("task %d was %v and is %v; terminal: %v", i, before[i], now, terminal)
			}
			before[i] = now
		}
		if terminal {
			return report, err
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// tasks holds the states of a batch that has ended to its report.
func (w *worker) tasks(b *orbitte.Batch, items []item, r orbitte.Report) {
	for i := range items {
		want := orbitte.TaskSkipped
		switch {
		case i < r.Completed:
			want = orbitte.TaskSucceeded
		case i == r.Failed:
			want = orbitte.TaskFailed
		}
		state, bytes, err := b.Task(i)
		if state != want || (err != nil) != (state == orbitte.TaskFailed) || state == orbitte.TaskSucceeded && bytes != uint64(items[i].length) {
			w.l.fail("task %d is %v with %d bytes and %v; report %+v", i, state, bytes, err, r)
		}
	}
}

// retry sends a notification again that certainly did not arrive.
func (w *worker) retry(b *orbitte.Batch, to target) {
	ctx := w.bounds()
	defer ctx.cancel()
	done := w.l.p.watch.begin(ctx.deadline, "%s worker %d RetryNotifications, %s", w.l.name(), w.n, ctx.text)
	defer done()
	left, err := b.RetryNotifications(ctx)
	report := orbitte.NotificationReport{Status: orbitte.Delivered, Effect: orbitte.EffectComplete}
	if err != nil || left > 0 {
		report = orbitte.NotificationReport{Status: orbitte.Failed, Effect: orbitte.EffectUnknown} // which of the two, it does not say
	}
	w.l.mail.count(to.epoch, report)
}

// detach frees a batch that runs. Unregister says when its memory is quiet; what has come then is old or new.
func (w *worker) detach() {
	items, ok := w.order()
	if !ok {
		return
	}
	b := w.bounds()
	defer b.cancel()
	batch, err := w.l.engine.Submit(b, requestsOf(items))
	if err != nil {
		w.l.judge("Submit", err, b.deadline)
		w.unchanged("after a refused Submit")
		return
	}
	if err := batch.Free(); err != nil {
		w.l.fail("Free: %v", err)
	}
	done := w.l.p.watch.begin(b.deadline, "%s worker %d Unregister under a detached batch %v, %s", w.l.name(), w.n, items, b.text)
	w.unregister()
	done()
	w.l.p.remember("%s/%d detached %v", w.l.name(), w.n, items)
	copy(w.now[:w.extent], w.memory.Bytes())
	w.l.p.count.requests.Add(int64(len(items)))
	for _, i := range items {
		switch {
		case i.kind == putSlot:
			w.slot(i).doubted(i.version, i.to.placement == "direct" || i.to.segment.Local())
		case i.reads():
			w.partly(i)
		}
	}
	if at := differ(w.now[:w.extent], w.image[:w.extent]); at >= 0 {
		w.l.fail("worker %d: byte %d of the local memory is wrong after a detached batch: %s", w.n, at, fmt.Sprint(items))
	}
	w.register()
}
