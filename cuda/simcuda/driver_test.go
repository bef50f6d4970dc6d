package simcuda_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"runtime/debug"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// bench is a GPU with one of everything.
type bench struct {
	testing.TB
	*simcuda.Driver
	context cuda.ContextHandle
	stream  cuda.StreamHandle
	event   cuda.EventHandle
	signal  cuda.SignalHandle
	memory  cuda.Pointer
	host    uint64
	bytes   []byte
}

const size = 10_000

func hostBytes(address uint64, n int) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&address)), n)
}

func newBench(t testing.TB, d *simcuda.Driver) *bench {
	b := &bench{TB: t, Driver: d}
	var err error
	b.context, err = d.AcquirePrimary(0)
	b.must(err)
	b.stream, err = d.CreateStream(b.context)
	b.must(err)
	b.event, err = d.CreateEvent(b.context)
	b.must(err)
	b.signal, err = d.OpenSignal()
	b.must(err)
	b.memory, err = d.Allocate(b.context, size)
	b.must(err)
	b.host, err = d.AllocateHost(b.context, size)
	b.must(err)
	b.bytes = hostBytes(b.host, size)
	return b
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) up() []cuda.Copy {
	return []cuda.Copy{{To: b.memory, From: cuda.Pointer(b.host), Bytes: size}}
}

func (b *bench) down() []cuda.Copy {
	return []cuda.Copy{{To: cuda.Pointer(b.host), From: b.memory, Bytes: size}}
}

func (b *bench) submit(copies []cuda.Copy) {
	b.Helper()
	done, err := b.Submit(b.context, b.stream, copies, b.event, b.signal)
	if err != nil || !done.Recorded || !done.Signaled {
		b.Fatalf("%+v, %v", done, err)
	}
}

func (b *bench) complete() bool {
	b.Helper()
	done, err := b.Query(b.context, b.event)
	b.must(err)
	return done
}

func TestDeviceMemoryCannotBeTouchedFromTheHost(t *testing.T) {
	b := newBench(t, newDriver(t, simcuda.Options{}))
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() == nil {
			t.Error("device memory was read by the host")
		}
	}()
	sink = hostBytes(uint64(b.memory), 1)[0]
}

var sink byte

func TestFreshMemoryIsScrambled(t *testing.T) {
	b := newBench(t, newDriver(t, simcuda.Options{}))
	got := make([]byte, size)
	if !b.Peek(b.memory, got) || bytes.Equal(got, make([]byte, size)) || bytes.Equal(b.bytes, make([]byte, size)) {
		t.Error("fresh memory is zero")
	}
	if b.Peek(b.memory+1, got) || b.Poke(b.memory+1, got) {
		t.Error("more was seen than there is")
	}
}

// A copy's target is garbage until it is done, and its source is read at the last moment.
func TestCopiesTakeEffectWhenTheyAreDone(t *testing.T) {
	b := newBench(t, newDriver(t, simcuda.Options{}))
	clear(b.bytes)
	b.submit(b.up())
	if b.complete() {
		t.Error("a copy is complete at once")
	}
	b.bytes[5] = 77 // too early: the program's mistake shows
	for b.Step() {
	}
	got := make([]byte, size)
	b.Peek(b.memory, got)
	if !b.complete() || got[5] != 77 {
		t.Errorf("complete %t, byte %d", b.complete(), got[5])
	}
	b.submit(b.down())
	if bytes.Equal(b.bytes, got) {
		t.Error("the target shows the bytes before the copy is done")
	}
	for b.Step() {
	}
	if !bytes.Equal(b.bytes, got) {
		t.Error("wrong bytes")
	}
}

func TestARunIsRepeatedFromItsSeed(t *testing.T) {
	run := func(seed uint64) string {
		d := simcuda.New(seed, simcuda.Options{})
		defer d.Kill()
		b := newBench(t, d)
		var log strings.Builder
		for i := range 20 {
			d.Plan(simcuda.Fault{Kind: simcuda.FailCall, Call: simcuda.CallCopy, Index: i, Effect: cuda.Maybe, Result: cuda.Unknown})
			done, err := b.Submit(b.context, b.stream, b.down(), b.event, b.signal)
			fmt.Fprintln(&log, done, err, b.bytes[:9])
			for d.Step() {
				fmt.Fprintln(&log, d.Now(), d.Live())
			}
		}
		return log.String()
	}
	seed := seedOf(t)
	if a, b := run(seed), run(seed); a != b {
		t.Errorf("two runs differ:\n%s\n%s", a, b)
	}
	if run(seed) == run(seed+1) {
		t.Error("the seed changes nothing")
	}
}

// Each use that the real driver does not survive is reported, and so is each that our owners must not make.
func TestBrokenRulesOfUseAreReported(t *testing.T) {
	for what, breaks := range map[string]func(b *bench){
		"a stream in another context":        func(b *bench) { _ = b.Synchronize(b.other(), b.stream) },
		"an event in another context":        func(b *bench) { _, _ = b.Query(b.other(), b.event) },
		"a submission in another context":    func(b *bench) { _, _ = b.Submit(b.other(), b.stream, b.up(), b.event, 0) },
		"memory freed in another context":    func(b *bench) { _ = b.Free(b.other(), b.memory) },
		"a context that is gone":             func(b *bench) { h := b.other(); b.EndContext(h); _, _ = b.CreateStream(h) },
		"a stream that is gone":              func(b *bench) { _ = b.DestroyStream(b.context, b.stream); _ = b.DestroyStream(b.context, b.stream) },
		"an event that is gone":              func(b *bench) { _ = b.DestroyEvent(b.context, b.event); _, _ = b.Query(b.context, b.event) },
		"a stream destroyed with work":       func(b *bench) { b.submit(b.up()); _ = b.DestroyStream(b.context, b.stream) },
		"an event destroyed with work":       func(b *bench) { b.submit(b.up()); _ = b.DestroyEvent(b.context, b.event) },
		"device memory freed with a copy":    func(b *bench) { b.submit(b.up()); _ = b.Free(b.context, b.memory) },
		"pinned memory freed with a copy":    func(b *bench) { b.submit(b.up()); _ = b.FreeHost(b.context, b.host) },
		"a context released once too often":  func(b *bench) { _ = b.ReleasePrimary(1) },
		"a context released before the rest": func(b *bench) { _ = b.ReleasePrimary(0) },
		"a signal that is gone":              func(b *bench) { b.CloseSignal(b.signal); _, _ = b.TakeSignal(b.signal) },
		"a callback for a signal that is gone": func(b *bench) {
			b.CloseSignal(b.signal)
			_, _ = b.Submit(b.context, b.stream, b.up(), b.event, b.signal)
		},
		"a signal closed twice": func(b *bench) { b.CloseSignal(b.signal); b.CloseSignal(b.signal) },
	} {
		t.Run(what, func(t *testing.T) {
			var told []error
			b := newBench(t, newDriver(t, simcuda.Options{Violation: func(err error) { told = append(told, err) }}))
			breaks(b)
			var facts *simcuda.ViolationError
			if len(told) != 1 || len(b.Violations()) != 1 || !errors.As(told[0], &facts) || facts.Seed != b.Seed() {
				t.Errorf("told of %v", told)
			}
		})
	}
}

func (b *bench) other() cuda.ContextHandle { return b.NewContext(0) }

func TestAddressesAreGivenOutAgain(t *testing.T) {
	b := newBench(t, newDriver(t, simcuda.Options{Memory: 1 << 20}))
	was, err := b.Attributes(uint64(b.memory))
	b.must(err)
	b.must(b.Free(b.context, b.memory))
	again, err := b.Allocate(b.context, size)
	b.must(err)
	now, err := b.Attributes(uint64(again))
	b.must(err)
	if again != b.memory || now.BufferID == was.BufferID {
		t.Errorf("%#x and %#x, buffers %d and %d", b.memory, again, was.BufferID, now.BufferID)
	}
	if _, err := b.Allocate(b.context, 1<<20); !errors.Is(err, &cuda.CallError{Result: cuda.OutOfMemory}) {
		t.Errorf("more memory than there is: %v", err)
	}
	next, err := b.Allocate(b.context, 1)
	b.must(err)
	if next%512 != 0 || next < again+size+512 && next+512 > again {
		t.Errorf("%d bytes at %#x, and one at %#x", size, again, next)
	}
	for range 20 { // nothing leaks
		p, err := b.Allocate(b.context, 300<<10)
		b.must(err)
		b.must(b.Free(b.context, p))
	}
}

func TestCallbacksAreLostLateAndDoubled(t *testing.T) {
	for plan, want := range map[string][2]uint64{ // callbacks at once, and after an hour
		"":                        {1, 0},
		"(lose-callback)":         {0, 0},
		"(late-callback (by 1m))": {0, 1},
		"(double-callback)":       {2, 0},
	} {
		b := newBench(t, newDriver(t, simcuda.Options{}))
		faults, err := simcuda.ParsePlan(plan)
		b.must(err)
		b.Plan(faults...)
		b.submit(b.up())
		b.Advance(time.Second)
		first, err := b.TakeSignal(b.signal)
		b.must(err)
		b.Advance(time.Hour)
		second, err := b.TakeSignal(b.signal)
		b.must(err)
		if !b.complete() || [2]uint64{first, second} != want {
			t.Errorf("%q: %d and %d callbacks, want %v", plan, first, second, want)
		}
		if struck, planned := b.Struck(); struck != planned {
			t.Errorf("%q: %d of %d struck", plan, struck, planned)
		}
		owed := map[bool]int{true: 1}[plan == "(lose-callback)"]
		if got := b.CloseSignal(b.signal); got != owed || b.Live().Callbacks != owed {
			t.Errorf("%q: %d callbacks are owed, %+v", plan, got, b.Live())
		}
	}
}

func TestALostDeviceFailsForGoodAndAlone(t *testing.T) {
	b := newBench(t, newDriver(t, simcuda.Options{}))
	b.submit(b.up())
	b.Plan(simcuda.Fault{Kind: simcuda.LoseDevice, Device: 1, Result: cuda.LaunchFailed})
	b.Advance(time.Second)
	for what, err := range map[string]error{
		"query":   func() error { _, err := b.Query(b.context, b.event); return err }(),
		"wait":    b.Synchronize(b.context, b.stream),
		"copy":    func() error { _, err := b.Submit(b.context, b.stream, b.up(), b.event, 0); return err }(),
		"free":    b.Free(b.context, b.memory),
		"release": b.ReleasePrimary(0),
		"acquire": func() error { _, err := b.AcquirePrimary(0); return err }(),
	} {
		var call *cuda.CallError
		if !errors.As(err, &call) || call.Result != cuda.LaunchFailed || call.Effect != cuda.Maybe {
			t.Errorf("%s on a lost device: %v", what, err)
		}
	}
	if n, err := b.TakeSignal(b.signal); n != 0 || err != nil || b.Live().Operations != 1 {
		t.Errorf("%d callbacks from a lost device, %+v", n, b.Live())
	}
	h, err := b.AcquirePrimary(1)
	b.must(err)
	_, err = b.Allocate(h, 10)
	b.must(err)
}

func TestAKilledProcessIsGone(t *testing.T) {
	b := newBench(t, newDriver(t, simcuda.Options{}))
	b.submit(b.up())
	b.Kill()
	b.Kill()
	if b.Live() != (simcuda.Live{}) || b.Step() {
		t.Errorf("%+v", b.Live())
	}
	if _, err := b.Query(b.context, b.event); !errors.Is(err, &cuda.CallError{Result: cuda.Deinitialized}) {
		t.Errorf("a call of a killed process: %v", err)
	}
	if _, err := b.OpenSignal(); err == nil {
		t.Error("a killed process opened a signal")
	}
}

func TestExportsStandForTheirBytes(t *testing.T) {
	b := newBench(t, newDriver(t, simcuda.Options{}))
	p, err := b.Allocate(b.context, 3*4096)
	b.must(err)
	page := (p + 4095) &^ 4095
	d, err := b.ExportRange(b.context, page, 4096)
	b.must(err)
	if at, n, ok := b.Exported(d); !ok || at != page || n != 4096 {
		t.Errorf("%#x, %d, %t", at, n, ok)
	}
	b.must(closeDescriptor(d))
	real, ok := b.Real(page, 4096)
	if !ok {
		t.Fatal("no bytes")
	}
	hostBytes(real, 4096)[7] = 99
	one := make([]byte, 1)
	if !b.Peek(page+7, one) || one[0] != 99 {
		t.Error("a NIC's twin would write elsewhere")
	}
	for what, try := range map[string]func() (int, error){
		"a part of a page":  func() (int, error) { return b.ExportRange(b.context, page, 100) },
		"between two pages": func() (int, error) { return b.ExportRange(b.context, page+8, 4096) },
		"too much":          func() (int, error) { return b.ExportRange(b.context, page, 1<<20) },
		"host memory":       func() (int, error) { return b.ExportRange(b.context, cuda.Pointer(b.host), 4096) },
		"incapable memory":  func() (int, error) { return b.ExportRange(b.context, b.MakeVirtual(0, 1<<16, false), 4096) },
	} {
		if d, err := try(); err == nil || d != -1 {
			t.Errorf("export of %s: %d, %v", what, d, err)
		}
	}
}

// A loop of the simulated world waits for a signal; nothing else moves the clock.
func TestADriverLivesInASimulatedWorld(t *testing.T) {
	w := simkernel.NewWorld(seedOf(t), simkernel.WorldOptions{})
	process := w.Process("a", netip.MustParseAddr("10.0.0.1"))
	d := newDriver(t, simcuda.Options{
		Now: func() time.Duration { return time.Duration(w.Now()) }, Later: w.Later,
		Signal: func(*simcuda.Driver) (int, func(), func(), func(), error) {
			descriptor, signal, err := process.Signal()
			return int(descriptor), signal, func() { process.Unsignal(descriptor) }, func() {}, err
		},
	})
	b := newBench(t, d)
	kernel := process.Kernel()
	b.must(kernel.Bind())
	out := make([]reactor.Completion, 4)
	for round := range 10 {
		kernel.Submit(&reactor.Operation{Kind: reactor.Watch, Ticket: reactor.Ticket(round + 1), Descriptor: reactor.Descriptor(b.SignalDescriptor(b.signal))})
		b.bytes[0] = byte(round)
		b.submit(b.up())
		before := w.Now()
		if n := kernel.Poll(out, kernel.Now().After(time.Second)); n != 1 {
			t.Fatalf("round %d: the signal's descriptor stays quiet", round)
		}
		one := make([]byte, 1)
		if n, err := b.TakeSignal(b.signal); n != 1 || err != nil || !b.complete() || !b.Peek(b.memory, one) || one[0] != byte(round) || w.Now() == before {
			t.Errorf("round %d: %d callbacks, %v", round, n, err)
		}
	}
	// A slow call cannot move a clock that was given: what it waits for happens at once.
	b.submit(b.up())
	before := w.Now()
	b.must(b.Synchronize(b.context, b.stream))
	if !b.complete() || w.Now() != before {
		t.Errorf("complete %t, at %v after %v", b.complete(), w.Now(), before)
	}
}

func TestTheLaneSideAllocatesNothing(t *testing.T) {
	b := newBench(t, newDriver(t, simcuda.Options{}))
	copies := append(b.up(), b.down()...)
	round := func() {
		b.submit(copies)
		for b.Step() {
		}
		if n, err := b.TakeSignal(b.signal); n != 1 || err != nil || !b.complete() {
			t.Errorf("%d callbacks, %v", n, err)
		}
		if _, err := b.Attributes(uint64(b.memory)); err != nil {
			t.Error(err)
		}
	}
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(200, round); n != 0 {
		t.Errorf("a submission allocates %v times", n)
	}
}

func BenchmarkCopy(b *testing.B) {
	bench := newBench(b, newDriver(b, simcuda.Options{}))
	copies := bench.up()
	b.SetBytes(size)
	for b.Loop() {
		bench.submit(copies)
		for bench.Step() {
		}
	}
}
