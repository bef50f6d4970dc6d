package orbitte

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/test/twins"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// hungCopy is an engine with device memory that has asked another one, also with device memory, for a transfer in which a
// copy of one of the two is not proven to have ended.
type hungCopy struct {
	*cudaSim
	hungCase
	engines  [2]*Engine
	drivers  [2]*simcuda.Driver
	memories [2]*Memory
	handles  [2]*Registration
	batch    *Batch
	report   Report
	err      error
	listed   int // retained before
}

// hungCase is which copy is to hang.
type hungCase struct {
	over      Transport
	op        Operation
	requester bool // its copy, not the source's
}

// eachHungCase runs a test for all of them.
func eachHungCase(t *testing.T, test func(t *testing.T, c hungCase)) {
	for _, over := range []Transport{TransportTCP, TransportRDMA} {
		for _, op := range []Operation{Write, Read} {
			for _, requester := range []bool{true, false} {
				c := hungCase{over, op, requester}
				t.Run(fmt.Sprintf("%v %v, requester %t", over, op, requester), func(t *testing.T) { test(t, c) })
			}
		}
	}
}

func newHungCopy(t *testing.T, c hungCase, kept int64, faults []simcuda.Fault) *hungCopy {
	t.Helper()
	s := newRDMASim(t, 7, simverbs.Hardware)
	h := &hungCopy{cudaSim: newCUDASimOn(s.sim), hungCase: c, listed: len(RetainedByCUDA())}
	keepsOnPurpose(t, kept)
	for i, host := range []netip.Addr{hostA, hostB} {
		name := []string{"requester", "source"}[i]
		n := s.native(name, host)
		h.drivers[i] = h.driver(name, s.processes[name], host, simcuda.Options{})
		config := Config{CUDA: h.drivers[i], SourceTimeout: time.Second, Limits: Limits{StagingChunkBytes: 1009, PinnedStagingBytes: 4 * 1009}}
		if c.over == TransportRDMA {
			config = s.rdmaConfig(n, host, config)
		} else {
			config = s.config(s.processes[name], config, netip.AddrPortFrom(host, 0).String())
		}
		e, err := Open(config)
		must(t, err)
		h.Add(func() bool { return e.Progress(time.Minute) })
		m, err := AllocateDevice(h.drivers[i], 0, 3000)
		must(t, err)
		r, err := e.Register(m, 0, 3000, ReadWrite)
		must(t, err)
		h.engines[i], h.memories[i], h.handles[i] = e, m, r
	}
	segment, err := h.engines[0].OpenSegment(soon(t), h.engines[1].Endpoint(), h.engines[1].Epoch())
	must(t, err)
	h.drivers[h.side()].Plan(faults...)
	h.batch, err = h.engines[0].Submit(soon(t), []Request{{
		Operation: c.op, Transport: c.over, Segment: segment, Local: h.memories[0].Address(), Remote: h.memories[1].Address(), Length: 3000,
	}})
	must(t, err)
	h.report, h.err = h.batch.Wait(soon(t))
	must(t, h.batch.Free())
	return h
}

// side is which of the two engines has the copy.
func (c hungCase) side() int {
	if c.requester {
		return 0
	}
	return 1
}

// victim is the engine whose copy it was, and which of the two that is. It waits until the engine has given the copy up.
func (h *hungCopy) victim() (e *Engine, i int) {
	i = h.side()
	h.until(5*time.Minute, func() bool { return len(h.engines[i].RetainedResources()) > 0 })
	return h.engines[i], i
}

// finish gives everything back that is the program's, and checks that nothing is left.
func (h *hungCopy) finish(t *testing.T) {
	t.Helper()
	over, stop := context.WithCancel(context.Background())
	stop()
	for i, e := range h.engines {
		must(t, e.Unregister(over, h.handles[i]))
		must(t, h.memories[i].Close())
		isDrained(t, e)
	}
	if list := RetainedByCUDA(); len(list) > h.listed {
		t.Errorf("retained: %v", list)
	}
}

// An engine that retains what a copy may still touch can be closed: Close says at once what it keeps, as often as it is
// asked, and everything stays owned and charged. Once the driver proves the end, a later Close succeeds and gives all back,
// also what its owner has closed meanwhile.
//
// proves C-3, G-6, G-9, U-1, U-2
func TestCloseGivesBackWhatACopyRetainedOnceTheDriverProvesItsEnd(t *testing.T) {
	for _, early := range []bool{true, false} { // the program gives its part back before the proof comes, or after
		eachHungCase(t, func(t *testing.T, c hungCase) {
			h := newHungCopy(t, c, 0, []simcuda.Fault{{Kind: simcuda.SlowCopy, By: time.Hour, Count: 1}})
			if c.requester {
				wants(t, h.err, ErrUnquiesced)
			}
			e, i := h.victim()
			if early {
				over, stop := context.WithTimeout(context.Background(), time.Millisecond)
				defer stop()
				wants(t, e.Unregister(over, h.handles[i]), ErrUnquiesced)
				must(t, h.memories[i].Close())
			}
			closeEngine(t, h.engines[1-i])
			for range 3 {
				mentions(t, wants(t, e.Close(soon(t)), ErrUnquiesced).Error(), "copy", "RetainedResources")
				h.keeps(t)
			}
			h.Advance(2 * time.Hour)
			closeEngine(t, e)
			closeEngine(t, e)
			h.finish(t)
		})
	}
}

// keeps checks that the victim lists and charges what its copy may still touch.
func (h *hungCopy) keeps(t *testing.T) {
	t.Helper()
	e, i := h.victim()
	kinds := map[string]int{}
	for _, r := range e.RetainedResources() {
		kinds[r.Kind]++
	}
	copies := kinds["GPU copy"] // of a walk over RDMA, whose parts are under way beside each other, perhaps two
	if c := e.Stats().CUDA; copies == 0 || copies > 1 && h.over == TransportTCP || kinds["submission"] != map[bool]int{true: 1}[h.requester] || gauge(t, e, "pinned staging").Used == 0 || c.Allocations == 0 {
		t.Errorf("retained: %v, %+v", e.RetainedResources(), c)
	}
	if used := gauge(t, e, "requester bytes in flight").Used; h.requester && used != 3000 {
		t.Errorf("%d bytes are charged", used)
	}
	if h.over == TransportRDMA && !h.requester && gauge(t, e, "RDMA grants").Used != int64(copies) {
		t.Errorf("%d copies are retained, and %d grants charged", copies, gauge(t, e, "RDMA grants").Used)
	}
	if kinds["RDMA work"] != 0 {
		t.Errorf("no device has a part in it: %v", e.RetainedResources())
	}
	if h.memories[i].backing.Quiet() {
		t.Error("the range on the GPU is not leased any more")
	}
}

// Close asks the driver once more for what a failed drain did not prove.
//
// proves C-3, G-9
func TestCloseDrainsOnceMoreWhatCouldNotBeDrained(t *testing.T) {
	eachHungCase(t, func(t *testing.T, c hungCase) {
		h := newHungCopy(t, c, 0, []simcuda.Fault{
			{Kind: simcuda.FailCall, Call: simcuda.CallQuery}, {Kind: simcuda.FailCall, Call: simcuda.CallSynchronize},
		})
		if c.requester {
			wants(t, h.err, ErrUnquiesced)
		}
		e, i := h.victim()
		h.keeps(t)
		closeEngine(t, h.engines[1-i])
		closeEngine(t, e)
		h.finish(t)
	})
}

// What a GPU that is lost may touch is kept for good: each Close says so at once.
//
// proves C-3, G-6, G-9
func TestCloseKeepsForGoodWhatALostGPUMayTouch(t *testing.T) {
	for _, over := range []Transport{TransportTCP, TransportRDMA} {
		t.Run(over.String(), func(t *testing.T) { lostGPU(t, over) })
	}
}

func lostGPU(t *testing.T, over Transport) {
	h := newHungCopy(t, hungCase{over, Write, true}, 3, []simcuda.Fault{ // the program's memory, and a chunk for each copy
		{Kind: simcuda.SlowCopy, By: time.Second}, {Kind: simcuda.LoseDevice, Device: 1, At: 10 * time.Millisecond, Result: cuda.ECCUncorrectable},
	})
	h.deliberate[h.drivers[0]] = true
	wants(t, h.err, ErrUnquiesced)
	e, _ := h.victim()
	for range 3 {
		wants(t, e.Close(soon(t)), ErrUnquiesced)
		h.Advance(time.Hour)
	}
	h.keeps(t)
	wants(t, e.CloseRequester(soon(t)), ErrUnquiesced)
	if gauge(t, e, "async batches").Used != 1 || len(RetainedByCUDA()) == h.listed {
		t.Errorf("what is retained is not charged: %+v", e.Stats().Gauges)
	}
	closeEngine(t, h.engines[1])
	must(t, h.engines[1].Unregister(soon(t), h.handles[1]))
	must(t, h.memories[1].Close())
	must(t, h.memories[0].Close())
}

// Memory on a GPU stays as long as anything holds it, its handle or a registration, whichever ends last, and whether the
// engine is open or closed; then it is freed at once.
//
// proves M-1, C-2
func TestARegistrationHoldsDeviceMemoryBeyondItsEngine(t *testing.T) {
	s := newCUDASim(t, 8)
	d := s.process("one", hostA, simcuda.Options{})
	e := s.engine(d, Config{CUDA: d})
	m, err := AllocateDevice(d, 0, 4096)
	must(t, err)
	first, err := e.Register(m, 0, 4096, ReadWrite)
	must(t, err)
	second, err := e.Register(m, 0, 100, ReadWrite)
	must(t, err)
	must(t, m.Close())
	closeEngine(t, e)
	for i, r := range []*Registration{first, second} {
		if left := d.Live().Allocations; left != 1 {
			t.Errorf("%d allocations before the end of registration %d", left, i)
		}
		must(t, e.Unregister(soon(t), r))
	}
	if left := d.Live(); left != (simcuda.Live{}) {
		t.Errorf("left after the last registration: %+v", left)
	}
	isDrained(t, e)
}

// stuckDriver is a driver whose synchronise does not return once it is told so.
type stuckDriver struct {
	cuda.Calls
	stuck   atomic.Bool
	entered chan struct{} // has one for each call that hangs
	resume  chan struct{} // closed when they go on
}

func (d *stuckDriver) Synchronize(c cuda.ContextHandle, s cuda.StreamHandle) error {
	if d.stuck.Load() {
		d.entered <- struct{}{}
		<-d.resume
	}
	return d.Calls.Synchronize(c, s)
}

// A driver that does not return from the late proof keeps no Close beyond its context, and is not asked twice at a time; a later
// Close takes the answer.
//
// proves C-3, G-6, G-9
func TestCloseDoesNotWaitForADriverThatHangsInALateProof(t *testing.T) {
	listed := len(RetainedByCUDA())
	twin := twins.CUDA(1, simcuda.Options{})
	defer twin.Kill()
	d := &stuckDriver{Calls: twin, entered: make(chan struct{}, 8), resume: make(chan struct{})}
	source, err := Open(Config{})
	must(t, err)
	e, err := Open(Config{CUDA: d})
	must(t, err)
	remote := allocated(t, 4096)
	far, err := source.Register(remote, 0, 4096, ReadWrite)
	must(t, err)
	m, err := AllocateDevice(d, 0, 4096)
	must(t, err)
	near, err := e.Register(m, 0, 4096, LocalOnly)
	must(t, err)
	segment, err := e.OpenSegment(soon(t), source.Endpoint(), source.Epoch())
	must(t, err)
	twin.Plan(simcuda.Fault{Kind: simcuda.FailCall, Call: simcuda.CallQuery}, simcuda.Fault{Kind: simcuda.FailCall, Call: simcuda.CallSynchronize})
	_, err = e.SubmitAndWait(soon(t), []Request{{Operation: Read, Segment: segment, Local: m.Address(), Remote: remote.Address(), Length: 4096}})
	wants(t, err, ErrUnquiesced)
	d.stuck.Store(true)
	for _, first := range []bool{true, false} {
		ctx, cancel := context.WithCancel(context.Background())
		over := make(chan error, 1)
		go func() { over <- e.Close(ctx) }()
		if first {
			<-d.entered
		}
		cancel()
		mentions(t, wants(t, <-over, ErrUnquiesced).Error(), "does not return")
		if len(e.RetainedResources()) == 0 || gauge(t, e, "requester bytes in flight").Used != 4096 {
			t.Errorf("not retained while nothing is proven: %v", e.RetainedResources())
		}
	}
	if len(d.entered) != 0 {
		t.Error("the driver was asked twice at a time")
	}
	close(d.resume)
	closeEngine(t, e)
	closeEngine(t, source)
	must(t, e.Unregister(soon(t), near))
	must(t, source.Unregister(soon(t), far))
	must(t, m.Close())
	isDrained(t, e)
	if left := twin.Live(); left != (simcuda.Live{}) || len(RetainedByCUDA()) > listed {
		t.Errorf("left on the driver: %+v; retained: %v", left, RetainedByCUDA())
	}
}
