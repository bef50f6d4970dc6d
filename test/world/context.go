package world

import (
	"context"
	"runtime"
	"time"
)

// lease is a context on the virtual clock. It ends in a turn of the world, never by the real clock.
type lease struct {
	context.Context
	deadline time.Time
	done     chan struct{} // nil: nothing is told of its end
	err      error
	hung     []*hanging
}

// hanging is one function that hangs on a lease.
type hanging struct{ do func() }

// newLease makes a context that lasts for d; 0: until it is ended.
func (r *run) newLease(d time.Duration) *lease {
	l := &lease{Context: context.Background(), done: make(chan struct{})}
	if d > 0 {
		l.deadline = r.net.Time().Add(d)
		r.net.Later(d, func() { l.end(context.DeadlineExceeded) })
	}
	return l
}

// bare is a context whose deadline only the engine's own clock watches: nothing is told of its end.
func (r *run) bare(d time.Duration) context.Context {
	l := &lease{Context: context.Background()}
	if d > 0 {
		l.deadline = r.net.Time().Add(d)
	}
	return l
}

// Deadline (context.Context).
func (l *lease) Deadline() (time.Time, bool) { return l.deadline, !l.deadline.IsZero() }

// Done (context.Context).
func (l *lease) Done() <-chan struct{} { return l.done }

// Err (context.Context).
func (l *lease) Err() error { return l.err }

// AfterFunc makes context.AfterFunc call do from end, without a goroutine that watches the lease.
func (l *lease) AfterFunc(do func()) (stop func() bool) {
	h := &hanging{do}
	l.hung = append(l.hung, h)
	return func() bool {
		waited := h.do != nil
		h.do = nil
		return waited
	}
}

// end ends the context. The standard library runs what hangs on it on goroutines: end returns when they have
// ended, so that nothing depends on when the scheduler runs them.
func (l *lease) end(why error) {
	if l.done == nil || l.err != nil {
		return
	}
	l.err = why
	others := runtime.NumGoroutine()
	close(l.done)
	for _, h := range l.hung {
		if do := h.do; do != nil {
			h.do = nil
			do()
		}
	}
	l.hung = nil
	for range settleRounds {
		if runtime.NumGoroutine() <= others {
			return
		}
		runtime.Gosched()
	}
	panic("world: what hangs on a context has not ended")
}

// settleRounds is how often the scheduler is asked: far more than any goroutine needs that posts one letter.
const settleRounds = 1 << 22
