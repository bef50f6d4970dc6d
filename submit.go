package orbitte

import (
	"context"
	"errors"
)

// SubmitAndWait checks all requests, runs them in order and stops at the first failure (SPEC G-3). The
// report has the completed prefix. It returns only when the engine can no longer touch the caller's
// memory on behalf of the submission, or says ErrUnquiesced (SPEC G-8). The context's deadline, or
// Config.RequestTimeout, bounds the whole. The error is an *Error; its Index names the request.
func (e *Engine) SubmitAndWait(ctx context.Context, requests []Request) (report Report, err error) {
	err = e.submitAndWait(ctx, requests, &report, nil)
	return report, failure("SubmitAndWait", err)
}

// submitAndWait fills the report, and hands the submission's place to keep, if not nil and the group has ended with its
// memory quiet; whoever asked for it leaves.
func (e *Engine) submitAndWait(ctx context.Context, requests []Request, report *Report, keep *place) error {
	report.Failed, report.LocallyDrained = -1, true
	if err := ctx.Err(); err != nil {
		return in(unposted, err)
	}
	g := e.idle.Get().(*group)
	if err := e.enter(&g.place); err != nil {
		e.idle.Put(g)
		return err
	}
	if err := g.admit(requests); err != nil {
		g.place.leave()
		e.idle.Put(g)
		if refused, ok := err.(*Error); ok {
			report.Failed = refused.Index
		}
		return err
	}
	g.ended, g.deadline, g.kept = g.told, e.ownDeadline(ctx), keep != nil
	stop := func() bool { return true }
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, g.endEarly)
	}
	g.quit = ctx.Done()
	if err := g.begin(); err != nil { // the lanes have ended: nothing was started
		stop()
		g.abort()
		return err
	}
	if err := e.awaitGroup(ctx, g); err != nil {
		report.LocallyDrained = false
		return err
	}
	err := g.report(report)
	if report.LocallyDrained && keep != nil {
		*keep = g.place.move()
	}
	if stop() && report.LocallyDrained { // otherwise a cancel letter may still name the group
		e.idle.Put(g)
	}
	return underContext(ctx, err)
}

// begin hands the group to the lane of its first task, which the caller turns itself where it may: as the driver until the
// group has ended, as a guest as long as begin lasts.
func (g *group) begin() error {
	g.driven = g.engine.driver.take()
	guest := !g.driven && g.enter()
	err := g.run(g.driven || guest)
	switch {
	case err != nil && g.driven:
		g.alight()
	case err == nil && guest:
		g.visited.lane.Stay(g)
	}
	return err
}

// alight leaves the driver's seat.
func (g *group) alight() {
	g.driven = false
	g.engine.driver.leave()
}

const (
	// guestBytesMax is how much a guest's submission moves at most. To the lane and back are two hand-overs, 60 µs for the
	// second where the lane spins, since the Go scheduler lets a thread that takes work from a running one sleep first:
	// alone, 256 KiB take half the time without, 1 MiB two thirds, and 4 MiB the same.
	guestBytesMax = 1 << 20
	// crowdMemory is how many submissions in a row must have been alone before one is a guest again.
	crowdMemory = 64
)

// enter makes the caller the guest of the first task's lane, if it takes one just now: then there is no way to another
// thread and back. Large submissions, and several callers, are better served by the lane's own thread, which stays on its
// CPU and answers all of them in one turn; guests among them would hand over each time they leave (half the rate of 16
// callers).
func (g *group) enter() bool {
	if len(g.tasks) == 0 || !g.engine.deserted(g) || g.bytes.Amount() > guestBytesMax {
		return false
	}
	g.visited = g.tasks[0].runner(g.engine)
	return g.visited.lane.Enter()
}

// deserted is true exactly when this submission is alone, as the last ones were.
func (e *Engine) deserted(g *group) bool {
	if !g.Alone() {
		e.crowd.Store(crowdMemory)
		return false
	}
	left := e.crowd.Load()
	if left > 0 { // racing callers count it down a little later
		e.crowd.Store(left - 1)
	}
	return left == 0
}

// Over: the group has ended, went on to another lane, or the caller waits no longer (reactor.Visit).
func (g *group) Over() bool {
	select {
	case <-g.quit:
		return true
	default:
		return len(g.done) > 0 || g.where.Load() != g.visited
	}
}

// Alone: this is the only submission in flight (reactor.Visit).
func (g *group) Alone() bool { return g.engine.budgets.submissions.Used() <= 1 }

// abort gives back what an admitted group holds that never ran.
func (g *group) abort() {
	g.release()
	g.bytes.Repay()
	g.place.leave()
}

// awaitGroup waits for the group's end. Once the context has ended, the lane is asked to end the group
// and has QuiesceTimeout to prove that the memory is quiet.
func (e *Engine) awaitGroup(ctx context.Context, g *group) error {
	stopped := g.where.Load()
	var stop <-chan struct{}
	if stopped != nil {
		stop = stopped.stopped
	}
	var err error
	if g.driven {
		err = g.drive(ctx, stop)
	} else {
		err = e.waitOn(ctx, g.done, stop)
	}
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.config.QuiesceTimeout)
		defer cancel()
		if err = e.waitOn(grace, g.done, stop); err == nil {
			return nil
		}
	}
	e.counts.unquiesced.Add(1)
	if !g.waiting.CompareAndSwap(waitingOn, waitingLeft) { // it ended just now
		e.counts.unquiesced.Add(-1)
		<-g.done
		return nil
	}
	return &Error{Index: -1, Class: ErrUnquiesced, Cause: err}
}

// drive drives until the group has ended, and leaves the seat.
func (g *group) drive(ctx context.Context, stopped <-chan struct{}) error {
	defer g.alight()
	return g.engine.driveUntil(ctx, func() bool { return g.waiting.Load() == waitingOver }, stopped)
}

// underContext names the caller's own reason: a cancellation that came from the context's deadline is
// a deadline.
func underContext(ctx context.Context, err error) error {
	if err == nil { // the variable below costs an allocation
		return nil
	}
	var own *Error
	if errors.As(err, &own) && own.Class == ErrCancelled && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		own.Class = ErrDeadline
	}
	return err
}
