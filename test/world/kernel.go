package world

import (
	"fmt"
	"iter"
	"runtime/debug"
	"time"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// door is one lane's kernel as the engine sees it: the twin, and a place where a call that waits steps aside
// so that the rest of the world goes on.
type door struct {
	*simkernel.Kernel
	life  *life
	tap   tap
	ghost bool // the process was killed and is being buried, see bury
	echo  echo
}

// Poll (reactor.Kernel). In a waiting call it hands the turn back to the world after work and before it
// would block; a lane that polls its completion queues never does.
func (d *door) Poll(out []reactor.Completion, until reactor.Instant) int {
	if d.ghost {
		return d.haunt(out, until)
	}
	n := d.Kernel.Poll(out, until)
	d.tap.completed(out[:n])
	n = d.echo.add(out, n)
	if c := d.life.caller; c != nil && c.running && (n > 0 || until > d.Now() || d.spins()) {
		d.life.looks = 0
		c.aside(n > 0)
	}
	return n
}

// spins is true exactly when a lane of an RDMA engine polls its completion queues, and so never blocks: it has looked
// many times and found nothing.
func (d *door) spins() bool {
	if d.life.native == nil {
		return false
	}
	d.life.looks++
	return d.life.looks >= looksMax
}

// looksMax is some twenty turns of all lanes: as long as there are letters between them, they work.
const looksMax = 64

// Submit (reactor.Kernel).
func (d *door) Submit(o *reactor.Operation) {
	d.tap.submitted(o)
	d.Kernel.Submit(o)
}

// haunt is the Poll of a ghost: whatever is outstanding has failed, and time passes as fast as anyone waits.
func (d *door) haunt(out []reactor.Completion, until reactor.Instant) int {
	n := d.tap.fail(out)
	switch {
	case n > 0:
		d.life.looks = 0
	case until > d.Now() && until < reactor.Forever:
		d.life.skew += time.Duration(until - d.Now())
	case d.spins(): // a lane that polls its completion queues waits for nothing but its timers
		d.life.skew += railBeat
	}
	return n
}

// Now (reactor.Clock).
func (d *door) Now() reactor.Instant { return d.Kernel.Now() + reactor.Instant(d.life.skew) }

// abandoned unwinds a waiting call whose process was killed.
type abandoned struct{}

// caller is one call that waits, such as SubmitAndWait: a coroutine that runs only inside its engine's step.
//
//	running ──Poll would block, or had work──▶ aside ──the engine's next step──▶ running
//	   └──returned──▶ over                       └──the process is killed──▶ over
type caller struct {
	what    string
	context *lease
	running bool
	next    func() (bool, bool)
	stop    func()
	yield   func(bool) bool
	since   reactor.Instant
}

func newCaller(what string, since reactor.Instant, ctx *lease, do func()) *caller {
	c := &caller{what: what, since: since, context: ctx}
	c.next, c.stop = iter.Pull(func(yield func(bool) bool) {
		defer func() {
			if p := recover(); p != nil {
				if _, ok := p.(abandoned); !ok {
					panic(fmt.Sprintf("%v\n%s", p, debug.Stack())) // iter.Pull tells nothing of where it was
				}
			}
		}()
		c.yield = yield
		do()
	})
	return c
}

// resume lets the call go on; worked says whether it did anything, over whether it has returned.
func (c *caller) resume() (worked, over bool) {
	c.running = true
	worked, more := c.next()
	c.running = false
	return worked || !more, !more
}

func (c *caller) aside(worked bool) {
	if !c.yield(worked) {
		panic(abandoned{})
	}
}
