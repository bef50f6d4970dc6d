package simverbs

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/orbitte/orbitte/verbs"
)

// Personality is the kind of device that a fabric imitates.
type Personality uint8

const (
	// Hardware is like mlx5: a window's range is enforced, errors have their own codes, invalidations are marked, and a
	// send slot comes free when its completion is polled.
	Hardware Personality = iota
	// SoftRoCE is like rdma_rxe: a window reaches all of its region, many local errors read "flushed", the mark of an
	// invalidation is the wrong bit, seven retries are endless, and work over a dead port is flushed.
	SoftRoCE
	// OldSoftRoCE is like the rdma_rxe of Linux 6.1: local errors read LOC_QP_OP_ERR.
	OldSoftRoCE
)

func (p Personality) String() string { return [...]string{"hardware", "softroce", "softroce-6.1"}[p] }

// Options shape a fabric. Zero values choose the defaults named with each field.
type Options struct {
	Personality Personality
	// Now is the clock that the fabric lives by: a simulated world's, or a real one. Nil: a clock of its own, which
	// Step and Advance move. Programs that wait by a real clock need it here too: on a clock of the fabric's own,
	// retries run out before they look.
	Now func() time.Duration
	// Later runs f once when d has passed (simkernel.World.Later, or time.AfterFunc for a real clock). The fabric asks for it whenever something lies
	// ahead. Nil: what is due happens in Step, Pump, and in every call, when the clock has passed it.
	Later func(d time.Duration, f func())
	// Sleep lets d pass for a slow call, on the goroutine of the call. Nil: a clock of the fabric's own moves; a clock
	// that was given does not.
	Sleep func(d time.Duration)
	// Signal makes a descriptor for a completion channel or for asynchronous events of a process: set makes it
	// readable, clear ends that, end closes it. They are called inside the gate and must not call the fabric. Nil:
	// descriptors are numbers that only Readable knows.
	Signal func(process *Process) (descriptor int, set, clear, end func(), err error)
	// Mapped says whether memory may be registered (write: for local writing). Nil: each page must be readable.
	Mapped func(address, length uint64, write bool) bool
	// Export finds the memory behind a DMA-BUF descriptor of a process. Nil: RegisterDescriptor is not supported.
	Export func(p *Process, descriptor int, offset, length uint64) (address uint64, ok bool)
	// Peer finds the bytes of memory of a device by their address, where the process's host has a module that lets network
	// devices reach them (nvidia-peermem): Register takes such addresses then. Nil: no host has one.
	Peer func(p *Process, address, length uint64) (memory uint64, ok bool)
	// Violation is told of each broken rule of use that a real library answers with a crash, a dead kernel or silent
	// corruption. They are kept in Violations as well.
	Violation func(error)

	// MTU is the largest path MTU of the ports made by default; 0: 4,096.
	MTU int
	// DelayMin and DelayMax bound how long a packet travels; 0: 1 µs and 20 µs.
	DelayMin, DelayMax time.Duration
	// Limits replaces the device's limits where a field is not zero.
	Limits verbs.Limits
	// DepthsAsked gives queues exactly the depth that was asked for, where devices round up.
	DepthsAsked bool
}

func (o *Options) complete() {
	if o.MTU == 0 {
		o.MTU = 4096
	}
	if o.DelayMin <= 0 && o.DelayMax <= 0 {
		o.DelayMin, o.DelayMax = time.Microsecond, 20*time.Microsecond
	}
	o.DelayMax = max(o.DelayMin, o.DelayMax)
}

// Fabric is hosts, devices and what travels between them. All of its methods and those of its parts may be called from
// any goroutine; one that finds the gate taken waits. Every choice follows from the seed and the order of calls.
type Fabric struct {
	gate    chan struct{} // holds one token while somebody is inside
	options Options
	seed    uint64
	random  *rand.Rand
	clock   time.Duration // of its own, when Options.Now is nil
	instant time.Duration // of the event that is happening; negative: none

	events   eventHeap
	sequence uint64
	promised time.Duration // the instant for which Later was last asked; far: none

	hosts      []*Host
	links      []*link
	handles    uint64
	descriptor int
	readable   map[int]bool // by invented descriptor; looked up only
	pairs      int          // pairs made so far, for fault plans
	queues     int
	packets    []*packet // free ones
	plan       []*planned
	violations []error
	woken      func() // wake, made once
}

const far = time.Duration(1<<63 - 1)

// NewFabric makes an empty fabric. Tests print the seed.
func NewFabric(seed uint64, o Options) *Fabric {
	o.complete()
	f := &Fabric{
		gate: make(chan struct{}, 1), options: o, seed: seed, promised: far, instant: -1, descriptor: 1 << 20, readable: map[int]bool{},
		random: rand.New(rand.NewPCG(seed, 0x7665726273)),
	}
	f.woken = f.wake
	return f
}

// Seed is the number that the fabric was made from.
func (f *Fabric) Seed() uint64 { return f.seed }

// enter takes the gate, and lets happen what is due. A one-place channel serves as the lock, since a caller that
// waits in it is visibly blocked for testing/synctest.
func (f *Fabric) enter() {
	f.gate <- struct{}{}
	f.runDue()
}

// leave gives the gate back and makes sure that Later comes in time for what lies ahead.
func (f *Fabric) leave() {
	var ask time.Duration
	later := f.options.Later
	if next := f.events.next(); later != nil && next < f.promised {
		f.promised = next
		ask = max(next-f.now(), 1)
	}
	<-f.gate
	if ask > 0 {
		later(ask, f.woken)
	}
}

// wake is what Later runs.
func (f *Fabric) wake() {
	f.gate <- struct{}{}
	f.promised = far
	f.runDue()
	f.leave()
}

// now is the clock, and inside an event the instant for which it was planned: when a real clock runs ahead of the
// fabric, everything is late together, and no timer overtakes what it waits for.
func (f *Fabric) now() time.Duration {
	if f.instant >= 0 {
		return f.instant
	}
	if f.options.Now != nil {
		return f.options.Now()
	}
	return f.clock
}

// Now reads the fabric's clock.
func (f *Fabric) Now() time.Duration {
	f.gate <- struct{}{}
	defer f.leave()
	return f.now()
}

// runDue lets everything happen that the clock has passed, in order of time.
func (f *Fabric) runDue() {
	now := f.now()
	for f.events.next() <= now {
		f.run(f.events.pop())
	}
}

// Step lets the next event happen, and moves a clock of the fabric's own to it. False: nothing lies ahead, or it lies
// ahead on a clock that was given.
func (f *Fabric) Step() bool {
	f.enter()
	defer f.leave()
	next := f.events.next()
	if next == far || f.options.Now != nil {
		return false
	}
	f.clock = max(f.clock, next)
	f.run(f.events.pop())
	return true
}

// Advance moves a clock of the fabric's own by d and lets happen what falls into it.
func (f *Fabric) Advance(d time.Duration) {
	f.enter()
	defer f.leave()
	f.advance(d)
}

func (f *Fabric) advance(d time.Duration) {
	end := f.clock + d
	for f.options.Now == nil && f.events.next() <= end {
		f.clock = max(f.clock, f.events.next())
		f.run(f.events.pop())
	}
	f.clock = end
}

// Pump lets happen what is due and says how long nothing will be due after that; negative: nothing lies ahead. A test
// with real kernels calls it from a goroutine of its own.
func (f *Fabric) Pump() time.Duration {
	f.enter()
	defer f.leave()
	if next := f.events.next(); next != far {
		return max(0, next-f.now())
	}
	return -1
}

// sleep lets time pass for a slow call. It is called outside the gate.
func (f *Fabric) sleep(d time.Duration) {
	switch {
	case d <= 0:
	case f.options.Sleep != nil:
		f.options.Sleep(d)
	case f.options.Now == nil:
		f.Advance(d)
	}
}

// draw chooses a delay between two bounds.
func (f *Fabric) draw(shortest, longest time.Duration) time.Duration {
	return shortest + time.Duration(f.random.Int64N(int64(longest-shortest)+1))
}

// chance is true once in n.
func (f *Fabric) chance(n int) bool { return f.random.IntN(n) == 0 }

// Violations lists the rules of use that were broken, oldest first.
func (f *Fabric) Violations() []error {
	f.enter()
	defer f.leave()
	return append([]error(nil), f.violations...)
}

// A ViolationError is a use that a real library or kernel does not survive, or does not notice.
type ViolationError struct {
	Host, Process string
	What          string
	Seed          uint64
}

func (e *ViolationError) Error() string {
	return fmt.Sprintf("simverbs: process %s on host %s: %s; SEED=%d", e.Process, e.Host, e.What, e.Seed)
}

func (f *Fabric) violate(p *Process, format string, arguments ...any) {
	err := &ViolationError{Host: p.host.name, Process: p.name, What: fmt.Sprintf(format, arguments...), Seed: f.seed}
	f.violations = append(f.violations, err)
	if f.options.Violation != nil {
		f.options.Violation(err)
	}
}

func (f *Fabric) handle() uint64 {
	f.handles++
	return f.handles
}
