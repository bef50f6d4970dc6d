package orbitte

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/orbitte/orbitte/reactor"
)

const (
	// manualStep is how long a waiting call in manual mode lets a lane block before it looks around.
	manualStep = time.Millisecond
	// manualSpins is how many turns without work, of about 1 µs each, come before a waiting call in manual
	// mode blocks: waking a sleeping core costs about 12 µs.
	manualSpins = 40
)

// call runs something on a lane.
type call struct {
	letter reactor.Letter
	do     func()
	done   chan struct{}
}

// Receive does it (reactor.Recipient).
func (c *call) Receive(*reactor.Letter, reactor.Instant) {
	c.do()
	close(c.done)
}

// call runs do on the runner's lane and waits until it has run. The error is the context's, the loop's,
// or ErrClosed; then do may still run later, unless the lane has stopped.
func (r *runner) call(ctx context.Context, e *Engine, do func()) error {
	c := &call{do: do, done: make(chan struct{})}
	if r.lane.Post(&c.letter, c) != nil { // the loop delivers its last letters before it says stopped
		<-r.stopped
		return e.stoppedError(nil)
	}
	return e.waitOn(ctx, c.done, r.stopped)
}

// waitOn waits for done; in manual mode one of those who wait drives the lanes for all (SPEC L-4). Nil
// also when done came together with another end. Only a lane that has ended closes stopped; nil: none.
func (e *Engine) waitOn(ctx context.Context, done, stopped <-chan struct{}) error {
	select {
	case <-done:
		return nil
	default:
	}
	if err := ctx.Err(); err != nil { // whether this or the driver's place comes first is not for chance to say
		return err
	}
	if e.driver.take() {
		return e.driveUntilDone(ctx, done, stopped)
	}
	e.driver.waiting.Add(1)
	defer e.driver.waiting.Add(-1)
	for !e.driver.take() {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return unless(done, ctx.Err())
		case <-stopped:
			return e.stoppedError(done)
		case <-e.driver.left:
		}
	}
	return e.driveUntilDone(ctx, done, stopped)
}

// unless is the error of a wait that something else than done has ended; nil when done had come, too.
func unless(done <-chan struct{}, err error) error {
	select {
	case <-done:
		return nil
	default:
		return err
	}
}

// driveUntilDone drives until one of the ends comes, and gives the driver's place back. The others who wait are told by what
// they wait for, and one of them goes on driving.
func (e *Engine) driveUntilDone(ctx context.Context, done, stopped <-chan struct{}) error {
	defer e.driver.leave()
	return e.driveUntil(ctx, func() bool { return ready(done) }, stopped)
}

// driveUntil drives until over, or another end comes; nil: over. For the driver.
func (e *Engine) driveUntil(ctx context.Context, over func() bool, stopped <-chan struct{}) error {
	quit := ctx.Done()
	for idle := 0; ; idle++ {
		switch { // one look each: a choice among several channels locks them all
		case over():
			return nil
		case ready(quit):
			if over() {
				return nil
			}
			return ctx.Err()
		case ready(stopped):
			if over() {
				return nil
			}
			return e.stoppedError(nil)
		}
		step := time.Duration(0)
		if idle >= manualSpins {
			step = manualStep
		}
		if e.drive(step) {
			idle = 0
		}
	}
}

// ready receives from a channel if there is something to receive, or it is closed.
func ready(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// stoppedError tells a lane that ended by itself from work that finished just before the end.
func (e *Engine) stoppedError(done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	default:
	}
	for _, r := range e.loops() {
		select {
		case <-r.stopped:
			if r.err != nil {
				return &Error{Index: -1, Class: ErrSystem, Cause: r.err}
			}
		default:
		}
	}
	return &Error{Index: -1, Class: ErrClosed}
}

// drive gives every loop one turn; if none had work, the first lane waits for some, at most for d.
func (e *Engine) drive(d time.Duration) bool {
	worked := false
	for _, r := range e.runners {
		worked = r.lane.Turn(reactor.Past) || worked
	}
	if e.rdma != nil { // its letters come from the lanes, or can wait for as long as a lane may
		worked = e.rdma.slow.lane.Turn(reactor.Past) || worked
	}
	if e.cuda != nil {
		worked = e.cuda.slow.lane.Turn(reactor.Past) || worked
	}
	if !worked && d > 0 {
		if len(e.runners) > 1 {
			d = min(d, 50*time.Microsecond) // the other lanes have no thread to wait on
		}
		worked = e.runners[0].lane.Turn(e.clock().Now().After(d))
	}
	return worked
}

// Progress drives the lanes of an engine in manual mode on the calling goroutine: one turn each, and
// up to d of waiting when there was nothing to do. It says whether anything was done. While another
// call drives the engine it returns false at once. In the other modes it panics.
func (e *Engine) Progress(d time.Duration) bool {
	if e.config.Progress != Manual {
		panic("orbitte: Progress on an engine whose lanes have threads of their own")
	}
	if !e.driver.take() {
		return false
	}
	worked := e.drive(d)
	e.driver.leave()
	return worked
}

// driverSeat is the place of the one who drives in manual mode; in the others nobody gets it. To take and to leave it
// costs an atomic operation each, a tenth of what a channel that holds a token does.
type driverSeat struct {
	free    atomic.Bool
	waiting atomic.Int32  // those who wait for left, or are about to
	left    chan struct{} // has a token when the seat became free while somebody waited; whoever gets it looks at the seat
}

// take takes the seat if it is free. The look comes first, since each caller of each engine asks: a swap in vain would send
// the line around between the processors.
func (s *driverSeat) take() bool { return s.free.Load() && s.free.CompareAndSwap(true, false) }

// seize waits until it is free.
func (s *driverSeat) seize() {
	s.waiting.Add(1)
	for !s.take() {
		<-s.left
	}
	s.waiting.Add(-1)
}

// leave makes the seat free and then looks for those who wait. They say that they wait and then look at the seat: of the
// two, one sees the other.
func (s *driverSeat) leave() {
	s.free.Store(true)
	if s.waiting.Load() > 0 {
		select {
		case s.left <- struct{}{}:
		default: // the token is there already
		}
	}
}
