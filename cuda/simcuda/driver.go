package simcuda

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/orbitte/orbitte/cuda"
)

// Options shape a driver. Zero values choose the defaults named with each field.
type Options struct {
	// Devices are the GPUs; a zero DeviceInfo becomes one like an H200. Nil: two of those.
	Devices []cuda.DeviceInfo
	// None makes a driver without devices.
	None bool
	// Version is cuDriverGetVersion; 0: 12040.
	Version int
	// Now is the clock that the devices live by: a simulated world's, or a real one. Nil: a clock of their own, which
	// Step and Advance move.
	Now func() time.Duration
	// Later runs f once when d has passed (simkernel.World.Later, or time.AfterFunc for a real clock). It is asked for
	// whenever something lies ahead. Nil: what is due happens in Step, Pump, and in every call, when the clock has passed
	// it, so that a query finds it done.
	Later func(d time.Duration, f func())
	// Sleep lets d pass for a slow call, on the goroutine of the call. Nil: a clock of the driver's own moves; with a
	// clock that was given, what a slow call waits for happens at once.
	Sleep func(d time.Duration)
	// Signal makes a descriptor for callbacks: set makes it readable, clear ends that, end closes it. They are called
	// inside the gate and must not call the driver. Nil: descriptors are numbers that only Readable knows.
	Signal func(d *Driver) (descriptor int, set, clear, end func(), err error)
	// Violation is told of each broken rule of use that the real driver answers with a crash or silent corruption, and
	// of each that this program's owners must never break. They are kept in Violations as well.
	Violation func(error)

	// DelayMin and DelayMax bound what a copy takes beside its bytes; 0: 2 µs and 40 µs.
	DelayMin, DelayMax time.Duration
	// BytesPerSecond is how fast a copy is after that; 0: 25 GB/s.
	BytesPerSecond float64
	// CallbackMax bounds how late a host callback is; 0: 20 µs.
	CallbackMax time.Duration
	// Granule is what device allocations begin at multiples of; 0: 512, as cuMemAlloc does. A DMA-BUF needs whole pages.
	Granule uint64
	// Memory is the real memory behind all device allocations, at most; 0: 1 GiB. The devices may say that they have more.
	Memory uint64
}

func (o *Options) complete() {
	if o.Devices == nil && !o.None {
		o.Devices = make([]cuda.DeviceInfo, 2)
	}
	if o.Version == 0 {
		o.Version = 12040
	}
	if o.DelayMin <= 0 && o.DelayMax <= 0 {
		o.DelayMin, o.DelayMax = 2*time.Microsecond, 40*time.Microsecond
	}
	o.DelayMax = max(o.DelayMin, o.DelayMax)
	if o.BytesPerSecond == 0 {
		o.BytesPerSecond = 25e9
	}
	if o.CallbackMax == 0 {
		o.CallbackMax = 20 * time.Microsecond
	}
	if o.Granule == 0 {
		o.Granule = granule
	}
	if o.Memory == 0 {
		o.Memory = 1 << 30
	}
}

// Driver is one process's driver. It implements cuda.Calls. All methods may be called from any goroutine; one that finds
// the gate taken waits. Every choice follows from the seed and the order of calls.
type Driver struct {
	gate    chan struct{} // holds one token while somebody is inside
	options Options
	seed    uint64
	random  *rand.Rand
	clock   time.Duration // of its own, when Options.Now is nil
	instant time.Duration // of the event that is happening; negative: none

	events   eventHeap
	sequence uint64
	promised time.Duration // the instant for which Later was last asked; far: none
	woken    func()        // wake, made once

	devices    []*device
	contexts   map[cuda.ContextHandle]*context
	streams    map[cuda.StreamHandle]*stream
	marks      map[cuda.EventHandle]*mark
	signals    map[cuda.SignalHandle]*signal
	memories   []*memory // by address
	space      []byte    // the reserved addresses of device memory
	taken      uint64    // real bytes behind device memory
	handles    uint64
	buffers    uint64
	descriptor int
	readable   map[int]bool // by invented descriptor; looked up only
	exports    map[int]export
	streamsAll int // streams made so far, for fault plans
	killed     bool

	counts     [callKinds]uint64
	plan       []*planned
	violations []error
}

var _ cuda.Calls = (*Driver)(nil)

const far = time.Duration(1<<63 - 1)

// New makes a driver. Tests print the seed. Kill gives back what it holds.
func New(seed uint64, o Options) *Driver {
	o.complete()
	d := &Driver{
		gate: make(chan struct{}, 1), options: o, seed: seed, promised: far, instant: -1, descriptor: 1 << 20, readable: map[int]bool{},
		random:   rand.New(rand.NewPCG(seed, 0x63756461)),
		contexts: map[cuda.ContextHandle]*context{}, streams: map[cuda.StreamHandle]*stream{}, marks: map[cuda.EventHandle]*mark{},
		signals: map[cuda.SignalHandle]*signal{}, exports: map[int]export{},
	}
	d.woken = d.wake
	for i, info := range o.Devices {
		d.devices = append(d.devices, newDevice(d, i, info))
	}
	return d
}

// Seed is the number that the driver was made from.
func (d *Driver) Seed() uint64 { return d.seed }

// enter takes the gate, and lets happen what is due. A one-place channel serves as the lock, since a caller that waits
// in it is visibly blocked for testing/synctest.
func (d *Driver) enter() {
	d.gate <- struct{}{}
	d.runDue()
}

// leave gives the gate back and makes sure that Later comes in time for what lies ahead.
func (d *Driver) leave() {
	var ask time.Duration
	later := d.options.Later
	if next := d.events.next(); later != nil && next < d.promised {
		d.promised = next
		ask = max(next-d.now(), 1)
	}
	<-d.gate
	if ask > 0 {
		later(ask, d.woken)
	}
}

// wake is what Later runs.
func (d *Driver) wake() {
	d.gate <- struct{}{}
	d.promised = far
	d.runDue()
	d.leave()
}

// now is the clock, and inside an event the instant for which it was planned, so that everything is late together when
// the clock ran ahead.
func (d *Driver) now() time.Duration {
	if d.instant >= 0 {
		return d.instant
	}
	if d.options.Now != nil {
		return d.options.Now()
	}
	return d.clock
}

// Now reads the clock.
func (d *Driver) Now() time.Duration {
	d.gate <- struct{}{}
	defer d.leave()
	return d.now()
}

func (d *Driver) runDue() {
	if len(d.events.all) == 0 {
		return
	}
	now := d.now()
	for d.events.next() <= now {
		d.run(d.events.pop())
	}
}

// Step lets the next event happen, and moves a clock of the driver's own to it. False: nothing lies ahead, or it lies
// ahead on a clock that was given.
func (d *Driver) Step() bool {
	d.enter()
	defer d.leave()
	next := d.events.next()
	if next == far || d.options.Now != nil {
		return false
	}
	d.clock = max(d.clock, next)
	d.run(d.events.pop())
	return true
}

// Advance moves a clock of the driver's own by t and lets happen what falls into it.
func (d *Driver) Advance(t time.Duration) {
	d.enter()
	defer d.leave()
	end := d.clock + t
	for d.options.Now == nil && d.events.next() <= end {
		d.clock = max(d.clock, d.events.next())
		d.run(d.events.pop())
	}
	d.clock = end
}

// Pump lets happen what is due and says how long nothing will be due after that; negative: nothing lies ahead.
func (d *Driver) Pump() time.Duration {
	d.enter()
	defer d.leave()
	if next := d.events.next(); next != far {
		return max(0, next-d.now())
	}
	return -1
}

// await lets things happen until done, for a slow call inside the gate. False: nothing more will happen.
func (d *Driver) await(done func() bool) bool {
	for !done() {
		next := d.events.next()
		switch {
		case next == far:
			return false
		case d.options.Now == nil:
			d.clock = max(d.clock, next)
			d.run(d.events.pop())
		case d.options.Sleep != nil && next > d.now():
			wait := next - d.now()
			d.leave()
			d.options.Sleep(wait)
			d.enter()
		default:
			d.run(d.events.pop())
		}
	}
	return true
}

// sleep lets time pass for a slow call, inside the gate.
func (d *Driver) sleep(t time.Duration) {
	switch {
	case d.options.Now == nil:
		end := d.clock + t
		for d.events.next() <= end {
			d.clock = max(d.clock, d.events.next())
			d.run(d.events.pop())
		}
		d.clock = end
	case d.options.Sleep != nil:
		d.leave()
		d.options.Sleep(t)
		d.enter()
	}
}

// draw chooses a duration between two bounds.
func (d *Driver) draw(shortest, longest time.Duration) time.Duration {
	return shortest + time.Duration(d.random.Int64N(int64(longest-shortest)+1))
}

// coin is true half of the time.
func (d *Driver) coin() bool { return d.random.IntN(2) == 0 }

func (d *Driver) handle() uint64 {
	d.handles++
	return 0x5500_0000_0000 | d.seed<<32&0xff_0000_0000 | d.handles<<4
}

// A ViolationError is a use that the real driver does not survive, or does not notice.
type ViolationError struct {
	What string
	Seed uint64
}

func (e *ViolationError) Error() string { return fmt.Sprintf("simcuda: %s; SEED=%d", e.What, e.Seed) }

func (d *Driver) violate(format string, arguments ...any) {
	if d.killed {
		return
	}
	err := &ViolationError{What: fmt.Sprintf(format, arguments...), Seed: d.seed}
	d.violations = append(d.violations, err)
	if d.options.Violation != nil {
		d.options.Violation(err)
	}
}

// Violations lists the rules of use that were broken, oldest first.
func (d *Driver) Violations() []error {
	d.enter()
	defer d.leave()
	return append([]error(nil), d.violations...)
}

// Live counts objects by kind.
type Live struct {
	References                                                           int // to primary contexts
	Allocations, Pinned, Streams, Events, Signals, Callbacks, Operations int
}

// Live counts what is left: Signals are descriptors that are open, Callbacks those that are owed, Operations copies and
// fills that are not done. Memory made for tests (Make…) does not count.
func (d *Driver) Live() Live {
	d.enter()
	defer d.leave()
	l := Live{Streams: len(d.streams), Events: len(d.marks), Signals: len(d.signals)}
	for _, v := range d.devices {
		l.References += v.primary.references
	}
	for _, m := range d.memories {
		switch {
		case m.made:
		case m.kind == pinnedMemory:
			l.Pinned++
		default:
			l.Allocations++
		}
	}
	for _, s := range d.signals { // sums only, in any order
		l.Callbacks += s.owed
	}
	for _, v := range d.devices {
		l.Operations += v.operations
	}
	return l
}

// Kill ends the process at once, as SIGKILL does: its work stops, its memory and descriptors are gone, its callbacks
// never run, and every call fails.
func (d *Driver) Kill() {
	d.enter()
	defer d.leave()
	if d.killed {
		return
	}
	d.killed = true
	d.events.all = nil
	for _, h := range sorted(d.signals) {
		d.signals[h].end()
	}
	clear(d.signals)
	clear(d.streams)
	clear(d.marks)
	clear(d.contexts)
	for _, m := range d.memories {
		m.unmap()
	}
	d.memories = nil
	for _, v := range d.devices {
		v.primary, v.operations, v.used = context{device: v}, 0, 0
	}
	d.unreserve()
}
