package orbitte

import (
	"bytes"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// witness looks at something whenever an engine polls its devices.
type witness struct {
	verbs.Calls
	look func()
}

func (w *witness) Poll(sends, receives verbs.QueueHandle, out []verbs.Completion) (int, int, error) {
	if w.look != nil {
		w.look()
	}
	return w.Calls.Poll(sends, receives, out)
}

// wholeChunk is the source's chunk in these tests, wholeBytes a request of seven parts.
const (
	wholeChunk  = 30_011
	wholeOffset = 5
	wholeBytes  = 200<<10 + 3
)

// wholePair is a requester that stages its host memory, and a source that stages its GPU's.
func wholePair(t testing.TB, seed uint64, limits RDMALimits) (*gpuPair, *witness) {
	there, here, w := chunked(wholeChunk, 3), chunked(wholeChunk, 3), &witness{}
	for _, c := range []*Config{&there, &here} {
		c.RDMA.Progress, c.RequestTimeout = RDMAEventDriven, 3*time.Second
	}
	here.RDMA.HostMemory, here.RDMA.Limits = HostStaged, limits
	seen := func(p *simverbs.Process) verbs.Calls {
		w.Calls = p
		return w
	}
	return newGPUPair(t, seed, wholeBytes+100, gpuSide{config: there, device: true}, gpuSide{config: here, seen: seen}), w
}

// A READ into host memory that this side stages is all or nothing, also when its source's chunks make it one of several parts:
// no byte is there before all are (found by the world, SEED=2998).
//
// proves, T-1
func TestAReadInPartsIntoStagedHostMemoryComesWhole(t *testing.T) {
	p, w := wholePair(t, 501, RDMALimits{})
	looks, early := 0, 0
	put(t, p.requesterDriver, p.local, 200)
	before := content(t, p.requesterDriver, p.local)
	put(t, p.sourceDriver, p.remote, 3)
	after := bytes.Clone(before)
	copy(after[wholeOffset:][:wholeBytes], content(t, p.sourceDriver, p.remote)[wholeOffset:])
	w.look = func() {
		if now := p.local.Bytes(); !bytes.Equal(now, after) {
			if looks++; !bytes.Equal(now, before) {
				early++
			}
		}
	}
	report, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Read, wholeOffset, wholeBytes)})
	if err != nil || report.Bytes != wholeBytes || !bytes.Equal(p.local.Bytes(), after) {
		t.Fatalf("%+v, %v", report, err)
	}
	if looks < 7 || early > 0 {
		t.Errorf("in %d of %d looks before its end a part of the range was changed", early, looks)
	}
	if s := p.requester.Stats().RDMA.Staged; s != 1 {
		t.Errorf("%d transfers were staged, want 1", s)
	}
	w.look = nil
	p.atRest(t)
}

// Whatever ends it early, at whichever part: the report says that nothing was changed, and nothing was.
//
// proves, T-1, U-1
func TestAFailedReadInPartsLeavesStagedHostMemoryAsItWas(t *testing.T) {
	failed := 0
	for i, plan := range []func(p *gpuPair, index int){
		func(p *gpuPair, index int) {
			p.sourceDriver.Plan(simcuda.Fault{Kind: simcuda.FailCall, Call: simcuda.CallCopy, Index: index})
		},
		func(p *gpuPair, index int) {
			p.sourceDriver.Plan(simcuda.Fault{Kind: simcuda.SlowCopy, By: 5 * time.Second, Index: index})
		},
		func(p *gpuPair, index int) {
			p.fabric.Plan(simverbs.Fault{Kind: simverbs.FailWork, Process: "requester", Index: 2 * index})
		},
		func(p *gpuPair, index int) {
			p.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallRegister, Process: "requester", Index: index, Errno: 12})
		},
	} {
		for _, index := range []int{0, 1, 3, 6} {
			t.Run(fmt.Sprint(i, index), func(t *testing.T) {
				p, _ := wholePair(t, uint64(510+10*i+index), RDMALimits{})
				plan(p, index)
				p.sim.Advance(1000)
				report, retained, err := p.attempt(t, Read, wholeOffset, wholeBytes)
				if err != nil {
					if failed++; report.Local != EffectNone {
						t.Errorf("%+v, %v", report, err)
					}
				}
				p.Advance(40 * time.Second)
				if retained {
					t.Fatalf("retained: %v", p.requester.RetainedResources())
				}
				p.atRest(t)
				p.move(t, Read, wholeOffset, wholeBytes, 9)
				p.atRest(t)
			})
		}
	}
	if failed < 10 {
		t.Errorf("only %d of 16 failed: the plans meet nothing", failed)
	}
}

// Its private memory is charged whole before anything is asked of the source; one that does not fit is refused then.
//
// proves R-6, U-1, U-3
func TestAReadInPartsIsRefusedBeforeItBeginsWhereItsStagingDoesNotFit(t *testing.T) {
	p, _ := wholePair(t, 560, RDMALimits{StagingBytes: wholeBytes - 1})
	granted := p.source.Stats().RDMA.Granted
	report, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Read, wholeOffset, wholeBytes)})
	wants(t, err, ErrExhausted)
	if now := p.source.Stats().RDMA.Granted; report.Local != EffectNone || now != granted {
		t.Errorf("%+v; %d slices were granted", report, now-granted)
	}
	p.atRest(t)
	p.move(t, Read, wholeOffset, wholeBytes-1, 4)
	p.atRest(t)
}

// Where nobody proves that the devices are done with a part, the private memory of the whole stays, charged and listed once.
//
// proves G-9, R-6, R-17
func TestAReadInPartsWhoseEndNoDeviceProvesKeepsItsStagingWhole(t *testing.T) {
	const size, chunk = 256 << 10, 64 << 10
	s := newRDMASim(t, 570, simverbs.Hardware)
	keepsOnPurpose(t, 4) // the user's memory, the staging, and messages on each device
	s.deliberate["requester"] = true
	c := &cudaSim{sim: s.sim, processes: map[*simcuda.Driver]*simkernel.Process{}, hosts: map[*simcuda.Driver]netip.Addr{}, deliberate: map[*simcuda.Driver]bool{}}
	native := s.native("source", hostA)
	config := chunked(chunk, 4)
	config.CUDA = c.driver("source", s.processes["source"], hostA, simcuda.Options{})
	source := s.rdmaEngine(native, hostA, config)
	remote := placed(t, config.CUDA, size, true)
	registered(t, source, remote, ReadWrite)
	n := s.native("requester", hostB)
	e, err := Open(s.rdmaConfig(n, hostB, Config{RDMA: &RDMAConfig{HostMemory: HostStaged}, RequestTimeout: 2 * time.Second}))
	must(t, err)
	s.drive(e)
	m, err := Allocate(size)
	must(t, err)
	before := bytes.Clone(m.Bytes())
	_, err = e.Register(m, 0, size, LocalOnly)
	must(t, err)
	segment, err := e.OpenSegment(soon(t), source.Endpoint(), source.Epoch())
	must(t, err)
	a, z := s.fabric.Host(hostA.String()), s.fabric.Host(hostB.String())
	for _, d := range []string{"mlx5_0", "mlx5_1"} {
		s.fabric.Delay(a.Device(d).Port(1), z.Device(d).Port(1), 5*time.Millisecond, 6*time.Millisecond)
	}
	b, err := e.Submit(soon(t), []Request{{Operation: Read, Transport: TransportRDMA, Segment: segment, Local: m.Address(), Remote: remote.Address(), Length: size}})
	must(t, err)
	s.until(5*time.Second, func() bool { return n.Calls(simverbs.CallPostSend) > 3 })
	for _, d := range []string{"mlx5_0", "mlx5_1"} { // what is posted never completes, and the pairs cannot be taken to the error state
		s.fabric.Cut(a.Device(d).Port(1), z.Device(d).Port(1), true)
	}
	s.fabric.Plan(simverbs.Fault{Kind: simverbs.LoseCompletion, Process: "requester", Count: -1})
	s.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallModifyPair, Process: "requester", Count: -1, Errno: syscall.EIO})
	for at := range 600 { // a lane that polls tells the world of no timer
		s.Later(time.Duration(at)*100*time.Millisecond, func() {})
	}
	s.until(2*time.Minute, func() bool {
		_, over, _ := b.Poll()
		return over
	})
	report, err := b.Wait(soon(t))
	wants(t, err, ErrUnquiesced)
	if report.LocallyDrained || report.Local != EffectNone || !bytes.Equal(m.Bytes(), before) {
		t.Errorf("%+v, %v", report, err)
	}
	must(t, b.Free())
	if used := gauge(t, e, "RDMA staging bytes").Used; used != size {
		t.Errorf("%d bytes of staging are charged, want %d", used, size)
	}
	works := 0
	for _, k := range e.RetainedResources() {
		if k.Kind == "RDMA work" {
			works++
			mentions(t, k.Object, fmt.Sprint(size))
		}
	}
	if works != 1 {
		t.Errorf("retained are %v", e.RetainedResources())
	}
	must(t, m.Close())
	wants(t, e.Close(soon(t)), ErrUnquiesced)
}
