package orbitte

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/orbitte/orbitte/budgets"
)

var errFreed = errors.New("the batch was freed")

// Batch is an asynchronous submission (SPEC B). It belongs to the caller until Free, outlives the engine,
// and may be used from any goroutine.
type Batch struct {
	engine *Engine
	ctx    context.Context
	stop   func() bool
	group  *group
	done   chan struct{} // closed when every task is terminal, and the notification, if any, has its fate
	state  atomic.Uint32 // batchEnded | batchFreed | batchQuiet
	retry  sync.Mutex    // held by RetryNotifications
	batch  budgets.Charge
	slots  budgets.Charge
	report Report // valid once done is closed
	err    error
	hook   *hook // nil without a notification
}

const (
	batchEnded uint32 = 1 << iota
	batchFreed
	batchQuiet // its memory is proven quiet
)

// SubmitOption changes an asynchronous submission.
type SubmitOption func(*Batch) error

// NotifyAfter sends n once to the peer of each segment in the batch, after every request has succeeded
// (SPEC N-3, N-6). A failed notification never replays data; Batch.RetryNotifications tries those again
// that had no effect.
func NotifyAfter(n Notification) SubmitOption {
	return func(b *Batch) error {
		if err := b.engine.checkNotification(n); err != nil {
			return err
		}
		b.hook = &hook{batch: b, note: n}
		return nil
	}
}

// Submit checks all requests like SubmitAndWait, starts them and returns. The context bounds the work
// itself, not only this call. Errors: as the checks of SubmitAndWait, ErrExhausted for batches and slots;
// then nothing was started.
func (e *Engine) Submit(ctx context.Context, requests []Request, options ...SubmitOption) (*Batch, error) {
	b, err := e.submit(ctx, requests, options)
	if err != nil {
		return nil, failure("Submit", err)
	}
	return b, nil
}

func (e *Engine) submit(ctx context.Context, requests []Request, options []SubmitOption) (*Batch, error) {
	if err := ctx.Err(); err != nil {
		return nil, in(unposted, err)
	}
	b := &Batch{engine: e, ctx: ctx, group: newGroup(e), done: make(chan struct{})}
	g := b.group
	if err := e.enter(&g.place); err != nil {
		return nil, err
	}
	if err := b.admit(requests, options); err != nil {
		g.place.leave()
		return nil, err
	}
	g.ended, g.deadline, g.kept = b.groupEnded, e.ownDeadline(ctx), true
	b.stop = func() bool { return true }
	if ctx.Done() != nil {
		b.stop = context.AfterFunc(ctx, b.end)
	}
	if err := g.run(false); err != nil { // the lanes have ended: nothing was started
		b.stop()
		g.abort()
		b.dropHook()
		b.repay()
		return nil, err
	}
	return b, nil
}

// admit takes the batch's own charges, then what every submission takes.
func (b *Batch) admit(requests []Request, options []SubmitOption) (err error) {
	e := b.engine
	if b.batch, err = e.budgets.batches.Take(1); err != nil {
		return err
	}
	if b.slots, err = e.budgets.batchSlots.Take(int64(len(requests))); err != nil {
		b.batch.Repay()
		return err
	}
	if err = b.prepare(requests, options); err != nil {
		b.dropHook()
		b.repay()
	}
	return err
}

// prepare applies the options, then admits the notification, then the requests.
func (b *Batch) prepare(requests []Request, options []SubmitOption) error {
	for _, option := range options {
		if err := option(b); err != nil {
			return err
		}
	}
	if b.hook != nil {
		if err := b.hook.admit(requests); err != nil {
			return err
		}
	}
	return b.group.admit(requests)
}

func (b *Batch) repay() {
	b.batch.Repay()
	b.slots.Repay()
}

func (b *Batch) dropHook() {
	if b.hook != nil {
		b.hook.drop()
	}
}

// groupEnded runs on the lane when every task is terminal.
func (b *Batch) groupEnded() {
	b.err = b.group.report(&b.report)
	b.err = failure("Submit", underContext(b.ctx, b.err))
	if b.hook != nil && b.hook.fire() {
		return // finish follows
	}
	b.finish()
}

// finish makes the end visible, after everything was given back: a batch that was freed meanwhile pays
// its own charges here.
func (b *Batch) finish() {
	b.stop()
	b.dropHook()
	if b.report.LocallyDrained {
		b.settle(batchEnded | batchQuiet)
		b.group.place.leave()
	} else {
		b.group.proven = func() { b.settle(batchQuiet) }
		b.settle(batchEnded)
	}
	close(b.done)
}

// end asks for the early end of data and notification, from any goroutine.
func (b *Batch) end() {
	b.group.end()
	if b.hook != nil {
		b.hook.end()
	}
}

// settle notes what has to come before a batch's charges are paid back: its end, its memory's quiet, and Free. Work whose memory is
// not proven quiet keeps the batch charged (SPEC G-9).
func (b *Batch) settle(flag uint32) bool {
	for {
		state := b.state.Load()
		if state&flag != 0 {
			return false
		}
		if b.state.CompareAndSwap(state, state|flag) {
			if state|flag == batchEnded|batchFreed|batchQuiet {
				b.repay()
			}
			return true
		}
	}
}

// Len is the number of tasks.
func (b *Batch) Len() int { return len(b.group.tasks) }

// Done is closed when the whole batch is terminal.
func (b *Batch) Done() <-chan struct{} { return b.done }

// Wait waits for the end of the batch, driving the lanes in manual mode. When ctx ends first, its error
// comes back and the batch goes on.
func (b *Batch) Wait(ctx context.Context) (Report, error) {
	if b.state.Load()&batchFreed != 0 {
		return Report{Failed: -1}, freed("Wait")
	}
	if err := b.engine.waitOn(ctx, b.done, nil); err != nil {
		return Report{Failed: -1}, failure("Wait", in(waiting, err))
	}
	return b.report, b.err
}

func freed(op string) error { return &Error{Op: op, Index: -1, Class: ErrInvalid, Cause: errFreed} }

// Poll says whether the whole batch is terminal, and its report if so. It never blocks. After Free it is
// terminal with ErrInvalid: nothing more is to be had.
func (b *Batch) Poll() (report Report, terminal bool, err error) {
	if b.state.Load()&batchFreed != 0 {
		return Report{Failed: -1}, true, freed("Poll")
	}
	select {
	case <-b.done:
		return b.report, true, b.err
	default:
		return Report{Failed: -1}, false, nil
	}
}

// Task says where request i stands, and once that is terminal, how many bytes it moved. It never blocks. Errors:
// the task's own; ErrInvalid, with the zero state, when there is no such task or the batch was freed.
func (b *Batch) Task(i int) (state TaskState, bytes uint64, err error) {
	if b.state.Load()&batchFreed != 0 {
		return 0, 0, freed("Task")
	}
	if i < 0 || i >= len(b.group.tasks) {
		return 0, 0, &Error{Op: "Task", Index: i, Class: ErrInvalid, Cause: errNoTask}
	}
	t := &b.group.tasks[i]
	state = TaskState(t.state.Load())
	if !state.Terminal() {
		return state, 0, nil
	}
	return state, t.outcome.Bytes, failure("Submit", underContext(b.ctx, t.failure(i)))
}

var (
	errNoTask         = errors.New("the batch has no such task")
	errNoNotification = errors.New("the batch has no notification, or has not ended")
)

// Cancel asks for the early end: queued tasks post nothing, the running one ends as if its context had
// (SPEC B-3, G-8), and so does the notification. The batch is terminal when Done says so.
func (b *Batch) Cancel() {
	select {
	case <-b.done:
	default:
		b.end()
	}
}

// Free gives the batch back. One that is still running is detached: it goes on, and stays charged, until
// it is drained. Errors: ErrInvalid when it was freed before.
func (b *Batch) Free() error {
	if !b.settle(batchFreed) {
		return freed("Free")
	}
	return nil
}
