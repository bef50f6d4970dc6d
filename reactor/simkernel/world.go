package simkernel

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/orbitte/orbitte/reactor"
)

// WorldOptions shape a world. Zero values choose the defaults named with each field.
type WorldOptions struct {
	// DelayMin and DelayMax bound how long each packet travels on a link that has no conditions of its
	// own; 0: 5 µs and 50 µs.
	DelayMin, DelayMax time.Duration
	// ChopReceive and ChopSend make transfers short: each moves at most a number of bytes drawn from
	// 1…Chop, half of the time from 1…16; 0 moves all that fits.
	ChopReceive, ChopSend int
	// Buffer is how many bytes one direction of a connection holds, in both socket buffers and on the
	// way together; 0: 256 KiB.
	Buffer int
	// Descriptors is the descriptor limit of each process; 0: 1,024.
	Descriptors int
	// EphemeralPorts is how many local ports a host has for connecting; 0: 28,232.
	EphemeralPorts int
	// Reorder is how many of those in front of it an operation that is ready may overtake; how many it does is drawn each
	// time, and one in front that was overtaken 16 times is next. 0: operations are done in the order in which they became
	// ready. Real kernels let small operations overtake payload, and a ring answers in an order of its own.
	Reorder int
	// CallCost is how much the clock moves for each try of an operation and each look at nothing, so that
	// a busy lane cannot stop the time; 0: 1 µs.
	CallCost time.Duration
	// Wall is the wall-clock time at the start; zero: the year 2100, so that a context whose deadline
	// was made from World.Time never ends by the real clock.
	Wall time.Time
}

func (o *WorldOptions) complete() {
	if o.DelayMin <= 0 && o.DelayMax <= 0 {
		o.DelayMin, o.DelayMax = 5*time.Microsecond, 50*time.Microsecond
	}
	o.DelayMax = max(o.DelayMin, o.DelayMax)
	if o.Buffer <= 0 {
		o.Buffer = 256 << 10
	}
	if o.Descriptors <= 0 {
		o.Descriptors = 1024
	}
	if o.EphemeralPorts <= 0 {
		o.EphemeralPorts = ephemeralPorts
	}
	if o.CallCost <= 0 {
		o.CallCost = time.Microsecond
	}
	if o.Wall.IsZero() {
		o.Wall = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
	}
}

const (
	// startOfTime is the clock of a new world: not zero, so that zero instants are in the past.
	startOfTime = reactor.Instant(time.Second)
	// fruitlessMax is how many waits without end and without anything ahead are taken for a deadlock.
	fruitlessMax = 1000
)

// World is one simulated network with one virtual clock. It is used from one goroutine.
type World struct {
	options WorldOptions
	seed    uint64
	random  *rand.Rand
	now     atomic.Int64 // an Instant; read by Clock methods from any goroutine
	offset  atomic.Int64 // how far the wall clock was stepped, in nanoseconds

	events    eventHeap
	waits     waitHeap               // kernels that wait for an instant
	wakes     atomic.Pointer[Kernel] // those that Wake was called on, newest first
	line      []*Task                // to run in the next round
	stepping  bool
	rounds    int
	roused    int // the last round in or after which somebody who waited got work
	fruitless int
	kernels   int                  // so far
	hosts     map[netip.Addr]*host // looked up by key only
	links     map[route]*Link      // looked up by key only
	oldest    *Connection          // of those that have an end left
	newest    *Connection
	opened    int // connections so far
	onConnect func(*Connection)
	rings     ringPool
}

// NewWorld makes a world whose every choice follows from the seed and the calls made.
func NewWorld(seed uint64, o WorldOptions) *World {
	o.complete()
	w := &World{
		options: o, seed: seed, random: rand.New(rand.NewPCG(seed, 0x6f72626974746521)),
		hosts: map[netip.Addr]*host{}, links: map[route]*Link{},
	}
	w.now.Store(int64(startOfTime))
	return w
}

// Seed is the number the world was made from; tests print it.
func (w *World) Seed() uint64 { return w.seed }

// Now reads the virtual clock.
func (w *World) Now() reactor.Instant { return reactor.Instant(w.now.Load()) }

// Time is the world's wall clock. Deadlines of contexts are made from it.
func (w *World) Time() time.Time {
	return w.options.Wall.Add(time.Duration(w.Now()-startOfTime) + time.Duration(w.offset.Load()))
}

// at converts a wall-clock time by the wall clock as it stands now.
func (w *World) at(t time.Time) reactor.Instant {
	ahead := t.Sub(w.Time())
	if ahead > 0 {
		return w.Now().After(ahead)
	}
	if now := w.Now(); reactor.Instant(ahead) > reactor.Past+now {
		return now + reactor.Instant(ahead)
	}
	return reactor.Past
}

// Later calls f once when d has passed on the virtual clock.
func (w *World) Later(d time.Duration, f func()) {
	w.schedule(event{at: w.Now().After(d), kind: eventCall, call: f})
}

// Step runs every added function that may have something to do once, in an order drawn from the seed. If
// none did anything, it moves the clock to the next event or to the next instant a kernel waits for. False
// means that nothing was done and nothing lies ahead. Inside a step it does nothing.
func (w *World) Step() bool {
	if w.stepping {
		return false
	}
	return w.round() || w.tick(reactor.Forever)
}

// RunUntil steps until done, and fails when the clock reaches limit or nothing lies ahead.
func (w *World) RunUntil(done func() bool, limit reactor.Instant) error {
	for !done() {
		if w.Now() >= limit {
			return &StuckError{Seed: w.seed, Now: w.Now(), Limit: limit}
		}
		if !w.round() && !w.tick(limit) {
			return &StuckError{Seed: w.seed, Now: w.Now(), Limit: limit, Deadlock: true}
		}
	}
	return nil
}

// StuckError says that a world did not get where a test wanted it. The seed replays it.
type StuckError struct {
	Seed       uint64
	Now, Limit reactor.Instant
	Deadlock   bool // nothing lay ahead; otherwise the limit was reached
}

func (e *StuckError) Error() string {
	if e.Deadlock {
		return fmt.Sprintf("simkernel: deadlock at %v: no step did anything and nothing lies ahead; SEED=%d", time.Duration(e.Now), e.Seed)
	}
	return fmt.Sprintf("simkernel: not done at the limit %v; SEED=%d", time.Duration(e.Limit), e.Seed)
}

// tick moves the clock to what comes next, but not past limit, and lets it happen. It says whether
// anything came.
func (w *World) tick(limit reactor.Instant) bool {
	if w.attend() {
		return true
	}
	next := min(limit, w.events.next(), w.waits.next())
	if next == reactor.Forever {
		return false
	}
	w.moveTo(next)
	w.fruitless = 0
	return true
}

// wait serves a Poll that blocks outside any step: others go on, or the clock moves.
func (w *World) wait(until reactor.Instant) {
	if w.round() || w.tick(until) {
		return
	}
	w.fruitless++
	if w.fruitless > fruitlessMax {
		panic((&StuckError{Seed: w.seed, Now: w.Now(), Limit: until, Deadlock: true}).Error())
	}
}

// look serves a Poll outside any step that found nothing and must not block: it costs time, and others
// go on meanwhile.
func (w *World) look() {
	w.round()
	w.Advance(w.options.CallCost)
}

// moveTo sets the clock, unless that lies behind, and runs what is due.
func (w *World) moveTo(t reactor.Instant) {
	for {
		e, due := w.events.pop(max(t, w.Now()))
		if !due {
			break
		}
		if e.at > w.Now() {
			w.now.Store(int64(e.at))
		}
		w.run(e)
	}
	if t > w.Now() {
		w.now.Store(int64(t))
	}
}

// Advance moves the clock by d at once, as when the machine was suspended: timers are late, packets
// that were due have arrived.
func (w *World) Advance(d time.Duration) { w.moveTo(w.Now().After(d)) }

// StepWall moves the wall clock by d, forwards or back; the monotonic clock stays.
func (w *World) StepWall(d time.Duration) { w.offset.Add(int64(d)) }
