package cuda_test

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
)

// pair is an allocation with pinned memory of the same size.
func (r *rig) pair(n uint64) (*cuda.Memory, *cuda.Pinned, []byte) {
	r.Helper()
	m := r.allocate(n)
	h, b := r.pinned(n)
	for i := range b {
		b[i] = byte(i) * 7
	}
	return m, h, b
}

func (r *rig) end(m *cuda.Memory, h *cuda.Pinned) {
	r.Helper()
	r.must(m.Drop())
	r.must(h.Free())
	r.close()
}

// proves C-3
func TestOnlyTheEventExposesBytes(t *testing.T) {
	r := newRig(t, simcuda.Options{})
	m, h, b := r.pair(10_000)
	want := bytes.Clone(b)
	p, err := m.Start(up(m, h), h, nil)
	r.must(err)
	if done, err := p.Confirm(); done || err != nil {
		t.Errorf("a copy that takes time is complete %t at once, %v", done, err)
	}
	r.finish(p)
	clear(b)
	p, err = m.Start(down(m, h), h, nil)
	r.must(err)
	if bytes.Equal(b, want) || bytes.Equal(b, make([]byte, len(b))) {
		t.Error("the twin does not scramble what a copy writes to")
	}
	if n := r.platform.Counts(); n.Copies != 1 {
		t.Errorf("%+v", n)
	}
	r.finish(p)
	if !bytes.Equal(b, want) {
		t.Error("confirmed bytes are wrong")
	}
	r.end(m, h)
}

// proves C-3
func TestAStreamIsMadeWhenItIsFirstNeeded(t *testing.T) {
	r := newRig(t, simcuda.Options{})
	raw := r.driver.MakeForeign(r.framework(0), 4096)
	m, err := r.platform.Adopt(0, raw, 4096, nil)
	r.must(err)
	h, _ := r.pinned(4096)
	if n := r.platform.Counts(); n.Streams != 0 || n.Events != 0 || m.Prepared() {
		t.Errorf("%+v", n)
	}
	_, err = m.Start(up(m, h), h, nil)
	r.is("a copy before Prepare", err, cuda.ErrFenced)
	r.plan("(fail-call (call cuStreamCreate))\n(fail-call (call cuEventCreate) (index 3))")
	for range 2 {
		r.is("Prepare without a driver", m.Prepare(), &cuda.CallError{Result: cuda.Unknown})
		if n := r.platform.Counts(); n.Streams != 0 || n.Events != 0 || n.Retained != 0 || m.Prepared() {
			t.Errorf("a failed Prepare left %+v", n)
		}
	}
	r.must(m.Prepare())
	r.must(m.Prepare())
	if n := r.platform.Counts(); n.Streams != 1 || n.Events != cuda.Slots || !m.Prepared() {
		t.Errorf("%+v", n)
	}
	r.must(m.Drop())
	r.must(h.Free())
	r.must(r.driver.ReleasePrimary(0))
	r.driver.Unmake(raw)
	r.close()
}

func TestCopiesMustLieBetweenTheirObjects(t *testing.T) {
	r := newRig(t, simcuda.Options{})
	m, h, _ := r.pair(1000)
	other := r.allocate(1000)
	p, a := m.Pointer(), cuda.Pointer(h.Address())
	for what, c := range map[string]cuda.Copy{
		"no bytes": {To: p, From: a}, "too many": {To: p, From: a, Bytes: 1001}, "behind the memory": {To: p + 1, From: a, Bytes: 1000},
		"before the memory": {To: p - 1, From: a, Bytes: 10}, "behind the partner": {To: p, From: a + 999, Bytes: 2},
		"before the partner": {From: p, To: a - 1, Bytes: 5}, "between others": {To: other.Pointer(), From: a, Bytes: 10}, "around": {To: p, From: a, Bytes: ^uint64(0)},
	} {
		if pending, err := m.Start([]cuda.Copy{c}, h, nil); !errors.Is(err, cuda.ErrRange) || pending.Started() {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := m.Start(nil, h, nil)
	r.is("no copies", err, cuda.ErrRange)
	_, err = m.Start([]cuda.Copy{{To: a, From: a + 500, Bytes: 100}}, nil, nil)
	r.is("a copy that is not about this memory", err, cuda.ErrRange)
	for _, c := range []struct {
		copy    cuda.Copy
		partner cuda.Partner
	}{
		{cuda.Copy{To: p, From: p + 500, Bytes: 500}, h}, {cuda.Copy{To: p, From: p + 500, Bytes: 500}, nil},
		{cuda.Copy{To: p, From: other.Pointer(), Bytes: 1000}, other}, {cuda.Copy{To: other.Pointer(), From: p, Bytes: 1000}, other},
		{cuda.Copy{To: a, From: p, Bytes: 1000}, nil},
	} {
		pending, err := m.Start([]cuda.Copy{c.copy}, c.partner, nil)
		r.must(err)
		if c.partner == cuda.Partner(other) {
			r.is("the end of a partner in use", other.Drop(), cuda.ErrBusy)
		}
		r.finish(pending)
	}
	r.must(other.Drop())
	r.end(m, h)
}

// failure is what one fault does to one operation of two copies.
type failure struct {
	name, plan string
	start      bool // Start gives an operation
	started    error
	drain      bool // Confirm fails and Drain is due
	silent     bool
	kept       string // what is retained at the end; empty: nothing
}

// proves C-3
func TestFailedSubmissionsAreDrainedOrNeverBegan(t *testing.T) {
	const keptContext = "map[primary context:1]"
	for _, f := range []failure{
		{name: "the first copy", plan: "(fail-call (call cuMemcpyAsync) (result CUDA_ERROR_INVALID_VALUE))", started: cuda.ErrCopy},
		{name: "the second copy", plan: "(fail-call (call cuMemcpyAsync) (index 1))", start: true, started: cuda.ErrCopy, drain: true},
		{name: "the first copy, perhaps", plan: "(fail-call (call cuMemcpyAsync) (effect maybe))", start: true, started: cuda.ErrCopy, drain: true},
		{name: "the record", plan: "(fail-call (call cuEventRecord))", start: true, started: cuda.ErrCopy, drain: true},
		{name: "the record, perhaps", plan: "(fail-call (call cuEventRecord) (effect maybe))", start: true, started: cuda.ErrCopy, drain: true},
		{name: "the callback", plan: "(fail-call (call cuLaunchHostFunc))", start: true, silent: true},
		{name: "the callback, perhaps", plan: "(fail-call (call cuLaunchHostFunc) (effect maybe))", start: true, silent: true},
		{name: "a lost callback", plan: "(lose-callback)", start: true},
		{name: "a late callback", plan: "(late-callback (by 1s))", start: true},
		{name: "two callbacks", plan: "(double-callback)", start: true},
		{name: "a slow copy", plan: "(slow-copy (by 1s))", start: true},
		{name: "the query", plan: "(fail-call (call cuEventQuery))", start: true, drain: true},
		{name: "the context after the submission", plan: "(fail-call (call cuCtxPopCurrent_v2))", start: true, kept: keptContext},
		{name: "the context after the query", plan: "(fail-call (call cuCtxPopCurrent_v2) (index 1))", start: true, kept: keptContext},
	} {
		t.Run(f.name, func(t *testing.T) { f.run(newRig(t, simcuda.Options{})) })
	}
}

func (f *failure) run(r *rig) {
	m, h, b := r.pair(1000)
	signal, err := r.platform.OpenSignal()
	r.must(err)
	want := bytes.Clone(b)
	r.plan(f.plan)
	p, a := m.Pointer(), cuda.Pointer(h.Address())
	pending, err := m.Start([]cuda.Copy{{To: p, From: a, Bytes: 400}, {To: p + 400, From: a + 400, Bytes: 600}}, h, signal)
	if pending.Started() != f.start || !errors.Is(err, f.started) || pending.Silent() != f.silent {
		r.Fatalf("started %t, silent %t, %v", pending.Started(), pending.Silent(), err)
	}
	if h.Uses() != map[bool]int64{false: 0, true: 1}[f.start] {
		r.Errorf("the partner has %d uses", h.Uses())
	}
	r.settle()
	drain := f.drain
	if f.start && f.started == nil {
		done, err := pending.Confirm()
		drain = err != nil
		if done == f.drain || drain != f.drain || drain && !errors.Is(err, cuda.ErrCopy) {
			r.Errorf("the operation is complete %t, %v", done, err)
		}
	}
	if drain {
		_, err := m.Start(up(m, h), h, nil)
		r.is("a copy before the drain", err, cuda.ErrFenced)
		r.is("the end before the drain", m.Drop(), cuda.ErrBusy)
		r.must(pending.Drain())
	}
	pending, err = m.Start(up(m, h), h, nil) // the memory is good for others
	r.must(err)
	r.finish(pending)
	clear(b)
	pending, err = m.Start(down(m, h), h, nil)
	r.must(err)
	r.finish(pending)
	if !bytes.Equal(b, want) {
		r.Error("bytes after a failed operation are wrong")
	}
	r.must(m.Drop())
	r.must(h.Free())
	signal.Close()
	f.ended(r)
}

// ended looks at what is left.
func (f *failure) ended(r *rig) {
	if f.kept == "" {
		if strings.HasPrefix(f.plan, "(lose") {
			r.must(r.platform.Close())
			if live := r.driver.Live(); live != (simcuda.Live{Signals: 1, Callbacks: 1}) {
				r.Errorf("after a lost callback: %+v", live)
			}
			return
		}
		r.close()
		return
	}
	if got := r.kinds(); got != f.kept {
		r.Errorf("retained are %v, want %v", got, f.kept)
	}
	r.must(r.platform.Close())
	if live := r.driver.Live(); live != (simcuda.Live{References: 1}) {
		r.Errorf("the driver has %+v", live)
	}
}

// proves C-3, G-9
func TestWhatCannotBeDrainedIsRetained(t *testing.T) {
	r := newRig(t, simcuda.Options{})
	m, h, _ := r.pair(1000)
	other, _ := r.pinned(1000)
	bystander, err := m.Start([]cuda.Copy{{To: m.Pointer(), From: cuda.Pointer(other.Address()), Bytes: 10}}, other, nil)
	r.must(err)
	r.plan("(fail-call (call cuMemcpyAsync) (effect maybe))\n(fail-call (call cuStreamSynchronize))")
	pending, err := m.Start(up(m, h), h, nil)
	r.is("a doubtful copy", err, cuda.ErrCopy)
	var facts *cuda.UnquiescedError
	if err := pending.Drain(); !errors.As(err, &facts) || !errors.Is(err, cuda.ErrRetained) {
		t.Fatalf("%v", err)
	}
	if got, want := r.kinds(), "map[allocation:1 pinned memory:1 stream:1 event:1]"; got != want {
		t.Errorf("retained are %v, want %v", got, want)
	}
	r.finish(bystander) // its own event still proves it
	for range 2 {
		r.is("the end of memory", m.Drop(), cuda.ErrUnquiesced)
		r.is("the end of pinned memory", h.Free(), cuda.ErrUnquiesced)
		r.is("its reason", m.Retained(), cuda.ErrUnquiesced)
		r.is("its reason", h.Retained(), cuda.ErrUnquiesced)
	}
	_, err = m.Start(up(m, other), other, nil)
	r.is("a copy of retained memory", err, cuda.ErrUnquiesced)
	fine := r.allocate(1000)
	_, err = fine.Start(up(fine, h), h, nil)
	r.is("a copy from retained memory", err, cuda.ErrUnquiesced)
	r.must(fine.Drop())
	r.must(other.Free())
	if n := r.driver.Calls(simcuda.CallFree) + r.driver.Calls(simcuda.CallRelease); n != 1 {
		t.Errorf("%d ends of memory and contexts, want that of the bystander's memory", n)
	}
	r.must(r.platform.Close())
	found := 0
	for _, k := range cuda.RetainedResources() {
		if errors.Is(k.Reason, facts) || k.Reason == error(facts) {
			found++
		}
	}
	if found != 4 {
		t.Errorf("%d of 4 retained objects are listed for the process", found)
	}
}

// proves C-3, G-9
func TestALostDeviceRetainsEverything(t *testing.T) {
	r := newRig(t, simcuda.Options{})
	m, h, b := r.pair(100_000)
	fine, err := r.platform.Allocate(1, 1000)
	r.must(err)
	pending, err := m.Start(down(m, h), h, nil)
	r.must(err)
	r.plan("(lose-device (device 1) (result CUDA_ERROR_ECC_UNCORRECTABLE))")
	r.settle()
	before := bytes.Clone(b)
	_, err = pending.Confirm()
	r.is("a copy on a lost device", err, &cuda.CallError{Result: cuda.ECCUncorrectable})
	r.is("its drain", pending.Drain(), cuda.ErrUnquiesced)
	idle := func() error { _, err := r.platform.Allocate(0, 10); return err }
	r.is("an allocation on a lost device", idle(), &cuda.CallError{Result: cuda.ECCUncorrectable})
	r.driver.Advance(time.Second)
	if !bytes.Equal(b, before) {
		t.Error("a lost device goes on")
	}
	r.is("the end of its memory", m.Drop(), cuda.ErrUnquiesced)
	r.is("the end of its pinned memory", h.Free(), cuda.ErrUnquiesced)
	r.must(fine.Drop()) // the other device is none the worse
	if n := r.platform.Counts(); n.Contexts != 1 || n.Allocations != 1 || n.Pinned != 1 || n.Retained < 4 {
		t.Errorf("%+v", n)
	}
	r.must(r.platform.Close())
}

func TestAnOperationThatIsOverIsOver(t *testing.T) {
	r := newRig(t, simcuda.Options{})
	m, h, _ := r.pair(1000)
	p, err := m.Start(up(m, h), h, nil)
	r.must(err)
	r.finish(p)
	for what, f := range map[string]func(){
		"Confirm of what is over": func() { _, _ = p.Confirm() }, "Drain of what is over": func() { _ = p.Drain() },
		"Confirm of nothing": func() { _, _ = cuda.Pending{}.Confirm() }, "Return of what nobody has": func() { h.Return() },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s passed", what)
				}
			}()
			f()
		}()
	}
	r.must(h.Lend())
	r.must(m.Drop())
	r.must(h.Free())
	r.close()
}

// proves C-4
func TestManyLoopsCopyOneObjectAtOnce(t *testing.T) {
	r := newRig(t, simcuda.Options{})
	const loops, rounds, size = 8, 60, 700
	m := r.allocate(loops * size)
	var group sync.WaitGroup
	for i := range loops {
		h, b := r.pinned(2 * size)
		at, a := m.Pointer()+cuda.Pointer(i*size), cuda.Pointer(h.Address())
		group.Go(func() {
			for round := range rounds {
				for j := range size {
					b[j] = byte(i ^ round ^ j)
				}
				two := make([]cuda.Pending, 0, 2) // both in flight; the stream keeps their order
				for _, c := range []cuda.Copy{{To: at, From: a, Bytes: size}, {To: a + size, From: at, Bytes: size}} {
					p, err := m.Start([]cuda.Copy{c}, h, nil)
					if err != nil {
						t.Error(err)
						return
					}
					two = append(two, p)
				}
				for _, p := range two {
					for done := false; !done; r.driver.Step() {
						var err error
						if done, err = p.Confirm(); err != nil {
							t.Error(err)
							return
						}
					}
				}
				if !bytes.Equal(b[:size], b[size:]) {
					t.Errorf("loop %d, round %d: bytes differ", i, round)
					return
				}
			}
			if err := h.Free(); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	r.must(m.Drop())
	r.close()
}

// proves C-5
func TestSignalsAreHints(t *testing.T) {
	r := newRig(t, simcuda.Options{})
	m, h, _ := r.pair(1000)
	signal, err := r.platform.OpenSignal()
	r.must(err)
	p, err := m.Start(up(m, h), h, signal)
	r.must(err)
	if n, err := signal.Take(); n != 0 || err != nil || r.driver.Readable(signal.Descriptor()) {
		t.Errorf("%d callbacks before the copy is complete, %v", n, err)
	}
	r.settle()
	if n, err := signal.Take(); n != 1 || err != nil {
		t.Errorf("%d callbacks, %v", n, err)
	}
	r.finish(p)
	r.plan("(late-callback (by 1h))")
	p, err = m.Start(up(m, h), h, signal)
	r.must(err)
	r.driver.Advance(time.Second)
	if done, err := p.Confirm(); !done || err != nil { // without the hint
		t.Errorf("complete %t, %v", done, err)
	}
	if owed := signal.Close(); owed != 1 || r.platform.Counts().OwedCallbacks != 1 || signal.Close() != 0 {
		t.Errorf("%d callbacks are owed", owed)
	}
	for _, f := range []func(){func() { _, _ = signal.Take() }, func() { _, _ = m.Start(up(m, h), h, signal) }} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("a closed signal was used")
				}
			}()
			f()
		}()
	}
	r.settle()
}

// A copy on a lane allocates nothing (SPEC L-6).
func TestCopiesAllocateNothing(t *testing.T) {
	r := newRig(t, simcuda.Options{})
	m, h, _ := r.pair(1000)
	signal, err := r.platform.OpenSignal()
	r.must(err)
	copies := up(m, h)
	round := func() {
		p, err := m.Start(copies, h, signal)
		r.must(err)
		for done := false; !done; {
			r.driver.Step()
			done, err = p.Confirm()
			r.must(err)
		}
		for r.driver.Step() {
		}
		_, err = signal.Take()
		r.must(err)
		m.Hold()
		r.must(m.Drop())
		r.must(m.Verify())
	}
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(200, round); n != 0 {
		t.Errorf("a copy allocates %v times", n)
	}
	signal.Close()
	r.end(m, h)
}
