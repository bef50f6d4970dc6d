package staging

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
)

const patience = 5 * time.Minute // virtual

// rig is one process with two GPUs, a data lane with its stage, and a cold loop.
type rig struct {
	t        testing.TB
	seed     uint64
	world    *simkernel.World
	process  *simkernel.Process
	lane     *lanes.Lane
	cold     *reactor.Loop
	driver   *simcuda.Driver
	platform *cuda.Platform
	stage    *Stage
	ledger   budgets.Ledger
	pinned   *budgets.Budget
	devices  []*deviceMemory
	lasting  bool // the test means something to stay retained
}

func seedOf(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("ORBITTE_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	return seed
}

func newRig(t testing.TB, c Config) *rig { return newRigWith(t, c, seedOf(t), true) }

// newRigWith makes a rig. Devices that are not prompt go on only in calls; they then allocate nothing.
func newRigWith(t testing.TB, c Config, seed uint64, prompt bool) *rig {
	t.Helper()
	t.Logf("SEED=%d (replay: ORBITTE_SEED=%d go test -run '%s' ./lanes/staging)", seed, seed, t.Name())
	w := simkernel.NewWorld(seed, simkernel.WorldOptions{})
	r := &rig{t: t, seed: seed, world: w, process: w.Process("host", netip.MustParseAddr("10.0.0.1"))}
	o := simcuda.Options{Now: func() time.Duration { return time.Duration(w.Now()) }, Sleep: w.Advance}
	if prompt {
		o.Later = w.Later
	}
	o.Violation = func(err error) { t.Error(err) }
	o.Signal = func(*simcuda.Driver) (int, func(), func(), func(), error) {
		d, set, err := r.process.Signal()
		end := func() {
			if open := r.process.Kernels(); len(open) > 0 {
				_ = open[0].Close(d)
			}
		}
		return int(d), set, func() { r.process.Unsignal(d) }, end, err
	}
	r.driver = simcuda.New(seed, o)
	t.Cleanup(r.driver.Kill)
	platform, err := cuda.Open(r.driver)
	if err != nil {
		t.Fatal(err)
	}
	r.platform = platform
	r.lane = &lanes.Lane{Loop: r.loop("lane"), Policy: &lanes.Policy{}}
	r.cold = r.loop("cold")
	r.pinned = r.ledger.Add(budgets.New("pinned staging", "bytes", 1<<30))
	c.Budget, c.Cold = r.pinned, r.cold
	r.stage = New(r.lane, c)
	r.lane.Staging = r.stage
	return r
}

func (r *rig) loop(name string) *reactor.Loop {
	kernel := r.process.Kernel()
	loop := reactor.NewLoop(kernel, reactor.Options{Name: name, Mode: reactor.Manual})
	if err := loop.Bind(); err != nil {
		r.t.Fatal(err)
	}
	r.world.AddFor(func() bool { return loop.Turn(reactor.Forever) }, kernel)
	return loop
}

func (r *rig) until(what string, done func() bool) {
	r.t.Helper()
	if err := r.world.RunUntil(done, r.world.Now().After(patience)); err != nil {
		r.t.Fatalf("%s: %v; %+v", what, err, r.stage.Stats())
	}
}

// pass lets d pass, and the lane look at the clock.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	over := false
	letter := &post{do: func() { over = true }}
	r.world.Later(d, func() { _ = r.lane.Post(&letter.letter, letter) })
	r.until("passing time", func() bool { return over })
}

// deviceMemory is an allocation with the lease table that its owner's companion is.
type deviceMemory struct {
	rig     *rig
	memory  *cuda.Memory
	backing *segments.Backing
}

// allocate makes device memory with a pattern, and prepares the stage for it.
func (r *rig) allocate(ordinal int, length uint64, seed byte) *deviceMemory {
	r.t.Helper()
	d := r.unprepared(ordinal, length, seed)
	if err := r.stage.Prepare(d.memory); err != nil {
		r.t.Fatal(err)
	}
	return d
}

func (r *rig) unprepared(ordinal int, length uint64, seed byte) *deviceMemory {
	r.t.Helper()
	m, err := r.platform.Allocate(ordinal, length)
	if err != nil {
		r.t.Fatal(err)
	}
	d := &deviceMemory{rig: r, memory: m}
	if d.backing, err = segments.AdoptDevice(uint64(m.Pointer()), length, m, nil); err != nil {
		r.t.Fatal(err)
	}
	r.driver.Poke(m.Pointer(), pattern(length, seed))
	r.devices = append(r.devices, d)
	return d
}

func (d *deviceMemory) bytes() []byte {
	b := make([]byte, d.memory.Bytes())
	d.rig.driver.Peek(d.memory.Pointer(), b)
	return b
}

func pattern(length uint64, seed byte) []byte {
	b := make([]byte, length)
	for i := range b {
		b[i] = byte(i*7+i>>8)&0x3f | seed<<6
	}
	return b
}

// pipe is a flow's user with a wire that takes and brings a piece in wire, or never when that is negative.
type pipe struct {
	flow    Flow
	rig     *rig
	plan    Plan
	lease   segments.Lease
	wire    time.Duration
	bytes   []byte // that went out, or are to come in
	moved   int
	busy    bool // the wire has a chunk
	lazy    bool // does nothing by itself
	advance int
	fault   *lanes.Fault
	ended   int
	proven  bool
	order   *[]*pipe // those that got their first chunk, in order
	started bool
	ending  bool
	overlap int // times that the wire had a chunk while a copy was under way
}

// pipe makes a user for a range of device memory; in: the bytes that come.
func (r *rig) pipe(d *deviceMemory, w Way, offset, length uint64, in []byte) *pipe {
	return &pipe{rig: r, bytes: in, wire: 10 * time.Microsecond, plan: Plan{
		Way: w, Memory: d.memory, Address: uint64(d.memory.Pointer()) + offset, Length: length, Deadline: r.world.Now().After(time.Minute),
	}}
}

// start leases and starts; the answer is why not.
func (p *pipe) start(d *deviceMemory) *lanes.Fault {
	access := segments.Exclusive
	if p.plan.Way == Out {
		access = segments.Shared
	}
	lease, err := d.backing.Lend(p.plan.Address-uint64(d.memory.Pointer()), p.plan.Length, access)
	if err != nil {
		p.rig.t.Fatal(err)
	}
	if fault := p.flow.Start(p.rig.stage, p, p.plan); fault != nil {
		lease.Return()
		return fault
	}
	p.lease, p.started = lease, true
	p.Advanced(&p.flow)
	return nil
}

func (p *pipe) Advanced(f *Flow) {
	p.advance++
	if p.order != nil && f.held > 0 {
		*p.order, p.order = append(*p.order, p), nil
	}
	if p.ending || p.lazy {
		return
	}
	if p.fault = f.Fault(); p.fault != nil || f.Whole() {
		if !p.busy {
			p.end()
		}
		return
	}
	p.step()
}

func (p *pipe) step() {
	if p.busy {
		return
	}
	f := &p.flow
	if p.plan.Way == Out {
		if piece := f.Piece(); piece != nil {
			p.send(func() { p.bytes = append(p.bytes, piece...); f.Release() })
		}
	} else if p.plan.Way == In {
		if room := f.Room(); room != nil {
			p.send(func() { p.moved += copy(room, p.bytes[p.moved:]); f.Filled() })
		}
	}
}

// send gives a chunk to the wire; what it does to the chunk it does in the last moment.
func (p *pipe) send(done func()) {
	p.busy = true
	if p.flow.flying > 0 {
		p.overlap++
	}
	if p.wire < 0 {
		return
	}
	letter := &post{func() {
		p.busy = false
		if p.ending {
			return
		}
		if p.flow.Fault() == nil {
			done()
		}
		p.Advanced(&p.flow)
	}, reactor.Letter{}}
	p.rig.world.Later(p.wire, func() { _ = p.rig.lane.Post(&letter.letter, letter) })
}

type post struct {
	do     func()
	letter reactor.Letter
}

func (p *post) Receive(*reactor.Letter, reactor.Instant) { p.do() }

func (p *pipe) end() {
	p.ending = true
	p.flow.End()
}

func (p *pipe) Ended(f *Flow, proven bool) {
	p.ended++
	p.proven = proven
	if f.Active() {
		p.rig.t.Error("a flow has ended and is active")
	}
	if !proven {
		f.Keep(p.lease)
		p.lease = segments.Lease{}
		return
	}
	p.lease.Return()
}

// run starts and waits for the end.
func (r *rig) run(p *pipe, d *deviceMemory) {
	r.t.Helper()
	if fault := p.start(d); fault != nil {
		r.t.Fatal(fault)
	}
	r.until("a flow", func() bool { return p.ended > 0 })
}

// finish closes the stage and looks for leaks: charges, chunks, leases, descriptors, native objects.
func (r *rig) finish() {
	r.t.Helper()
	closed := false
	r.stage.Close(func() { closed = true })
	r.until("closing the stage", func() bool { return closed })
	if got := r.stage.Stats(); !r.lasting && (got.PinnedBytes != 0 || got.Chunks != 0 || got.InUse != 0 || got.Waiting != 0 || got.Flying != 0 || got.Retained != 0) {
		r.t.Errorf("left: %+v", got)
	}
	for _, d := range r.devices {
		if !d.backing.Quiet() && !r.lasting {
			r.t.Error("a lease is left")
		}
		d.backing.Drop()
		if err := d.memory.Drop(); err != nil && !r.lasting {
			r.t.Error(err)
		}
	}
	r.pass(time.Second) // late callbacks
	for _, loop := range []*reactor.Loop{r.lane.Loop, r.cold} {
		if err := loop.Close(); err != nil {
			r.t.Error(err)
		}
	}
	if r.lasting {
		return
	}
	if live := r.driver.Live(); live != (simcuda.Live{}) {
		r.t.Errorf("native objects are left: %+v", live)
	}
	for _, owed := range r.ledger.Owed() {
		r.t.Errorf("not repaid: %+v", owed)
	}
	if d := r.process.Descriptors(); d != 0 {
		r.t.Errorf("%d descriptors are left", d)
	}
	if err := r.platform.Close(); err != nil {
		r.t.Error(err)
	}
}

// mappings checks at the end that all memory objects have ended.
func mappings(t testing.TB) {
	count, size := segments.Mappings()
	t.Cleanup(func() {
		if c, s := segments.Mappings(); c != count || s != size {
			t.Errorf("%d memory objects with %d bytes at the start, %d with %d at the end", count, size, c, s)
		}
	})
}

// guarded says whether b is the pattern of seed with in at offset.
func guarded(b []byte, seed byte, offset uint64, in []byte) bool {
	want := pattern(uint64(len(b)), seed)
	copy(want[offset:], in)
	return bytes.Equal(b, want)
}
