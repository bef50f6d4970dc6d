package orbitte

import (
	"bytes"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// gpuPair is a source and a requester with RDMA devices and GPUs, and on each side memory of the host or of a GPU.
type gpuPair struct {
	*rdmaPair
	cuda                          *cudaSim
	sourceDriver, requesterDriver *simcuda.Driver
}

// gpuSide is what one side of a pair has.
type gpuSide struct {
	config Config
	device bool // its memory is on a GPU
	driver simcuda.Options
	made   func(testing.TB, *simcuda.Driver, int) *Memory // otherwise than allocated; nil: allocated
	// watched and seen stand between the engine and its driver, or its devices; nil: nothing does.
	watched func(*simcuda.Driver) cuda.Calls
	seen    func(*simverbs.Process) verbs.Calls
}

func (g *gpuSide) memory(t testing.TB, d *simcuda.Driver, size int) *Memory {
	if g.made != nil {
		return g.made(t, d, size)
	}
	return placed(t, g.config.CUDA, size, g.device)
}

func newGPUPair(t testing.TB, seed uint64, size int, source, requester gpuSide) *gpuPair {
	t.Helper()
	return newGPUPairOn(t, newRDMASim(t, seed, simverbs.Hardware), size, source, requester)
}

func newGPUPairOn(t testing.TB, s *rdmaSim, size int, source, requester gpuSide) *gpuPair {
	t.Helper()
	p := &gpuPair{rdmaPair: &rdmaPair{rdmaSim: s, pair: &pair{}}}
	p.cuda = newCUDASimOn(s.sim)
	p.sourceNative, p.requesterNative = s.native("source", hostA), s.native("requester", hostB)
	p.sourceDriver = p.cuda.driver("source", s.processes["source"], hostA, source.driver)
	p.requesterDriver = p.cuda.driver("requester", s.processes["requester"], hostB, requester.driver)
	s.gpus.drivers = map[string]*simcuda.Driver{"source": p.sourceDriver, "requester": p.requesterDriver}
	for side, native := range map[*gpuSide]*simverbs.Process{&source: p.sourceNative, &requester: p.requesterNative} {
		if side.seen != nil {
			side.config.Verbs = side.seen(native)
		}
	}
	for side, driver := range map[*gpuSide]*simcuda.Driver{&source: p.sourceDriver, &requester: p.requesterDriver} {
		if side.watched != nil {
			side.config.CUDA = side.watched(driver)
		}
	}
	if source.config.CUDA == nil {
		source.config.CUDA = p.sourceDriver
	}
	if requester.config.CUDA == nil {
		requester.config.CUDA = p.requesterDriver
	}
	p.source, p.requester = s.rdmaEngine(p.sourceNative, hostA, source.config), s.rdmaEngine(p.requesterNative, hostB, requester.config)
	p.remote, p.local = source.memory(t, p.sourceDriver, size), requester.memory(t, p.requesterDriver, size)
	p.export, p.own = registered(t, p.source, p.remote, ReadWrite), registered(t, p.requester, p.local, LocalOnly)
	p.segment = opened(t, p.requester, p.source)
	return p
}

// gpuDoor is how the twins of network devices reach the memory of the twins of GPUs, as the modules of a kernel let them.
type gpuDoor struct {
	drivers map[string]*simcuda.Driver // by process
	peermem bool                       // true exactly when the hosts have nvidia-peermem
	early   []string                   // registrations before SYNC_MEMOPS was set
}

func (g *gpuDoor) peer(p *simverbs.Process, address, length uint64) (uint64, bool) {
	d := g.drivers[p.Name()]
	if d == nil || !g.peermem {
		return 0, false
	}
	info, err := d.Attributes(address)
	if err != nil || info.Type != cuda.MemoryDevice {
		return 0, false
	}
	if !info.SyncMem && !info.Virtual {
		g.early = append(g.early, p.Name())
	}
	return d.Real(cuda.Pointer(address), length)
}

func (g *gpuDoor) export(p *simverbs.Process, descriptor int, offset, length uint64) (uint64, bool) {
	d := g.drivers[p.Name()]
	if d == nil {
		return 0, false
	}
	start, bytes, ok := d.Exported(descriptor)
	if !ok || offset > bytes || length > bytes-offset {
		return 0, false
	}
	if info, err := d.Attributes(uint64(start)); err != nil || !info.SyncMem && !info.Virtual {
		g.early = append(g.early, p.Name())
	}
	return d.Real(start+cuda.Pointer(offset), length)
}

// move runs one request over RDMA, and checks that it moved exactly its range: every byte beside it is a guard.
func (p *gpuPair) move(t testing.TB, op Operation, offset, n, seed int) Report {
	t.Helper()
	return p.exactly(t, p.sourceDriver, p.requesterDriver, p.overRDMA(op, offset, n), seed)
}

// exactly runs a request of the pair, whose memory these drivers may have, and checks that it moved its range and nothing beside
// it, the way that was foretold.
func (p *pair) exactly(t testing.TB, source, requester *simcuda.Driver, r Request, seed int) Report {
	t.Helper()
	put(t, source, p.remote, seed)
	put(t, requester, p.local, seed+100)
	here, there := content(t, requester, p.local), content(t, source, p.remote)
	if at, n := r.Local-p.local.Address(), r.Length; r.Operation == Read {
		copy(here[at:][:n], there[at:])
	} else {
		copy(there[at:][:n], here[at:])
	}
	foretold, err := p.segment.PathOf(r)
	must(t, err)
	report, err := p.requester.SubmitAndWait(soon(t), []Request{r})
	if err != nil || report.Bytes != r.Length || !report.LocallyDrained {
		t.Fatalf("%+v: %+v, %v", r, report, err)
	}
	if !bytes.Equal(content(t, requester, p.local), here) || !bytes.Equal(content(t, source, p.remote), there) {
		t.Fatalf("%+v moved not exactly its range", r)
	}
	if undeviced(report.Path) != undeviced(foretold) { // one slice takes one of the pairs of devices
		t.Errorf("the path was foretold as %q, and is %q", foretold, report.Path)
	}
	return report
}

// undeviced is a path without the devices that it names.
func undeviced(path string) string {
	return regexp.MustCompile(`(, )?mlx5_\d to mlx5_\d`).ReplaceAllString(path, "")
}

// atRest checks that no transfer holds anything any more, on both sides.
func (p *gpuPair) atRest(t testing.TB) {
	t.Helper()
	p.until(40e9, func() bool {
		for _, e := range []*Engine{p.source, p.requester} {
			for _, name := range []string{"RDMA grants", "RDMA direct bytes", "RDMA staging bytes"} {
				if gauge(t, e, name).Used != 0 {
					return false
				}
			}
		}
		return true
	})
	for _, m := range []*Memory{p.local, p.remote} {
		if !m.backing.Quiet() {
			t.Error("a range is still leased")
		}
	}
	for name, e := range map[string]*Engine{"source": p.source, "requester": p.requester} {
		if c := e.Stats().CUDA; c.CopiesInFlight != 0 || c.Waiting != 0 || c.RetainedTransfers != 0 || c.PinnedBytes != int64(c.StagingBytes) {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// Device memory is staged by default, whichever side has it and however its host memory is served, through registered
// memory that the driver has pinned; connections of its own end with each transfer.
//
// proves, C-3, C-5; field case F-69
func TestDeviceMemoryIsStagedOverRDMAByDefault(t *testing.T) {
	const size = 3<<20 + 1234
	for i, host := range []HostMemory{HostDirect, HostStaged} {
		eachPlacement(t, func(t *testing.T, there, here bool) {
			p := newGPUPair(t, uint64(60+i), size, gpuSide{config: memoryIs(host), device: there}, gpuSide{config: memoryIs(host), device: here})
			for j, n := range []int{1, 4095, 64<<10 + 1, 1<<20 + 17, size - 4099} {
				for _, op := range []Operation{Read, Write} {
					report := p.move(t, op, 3+j, n, 7*j)
					mentions(t, report.Path, "rdma, staged", "staged through pinned host memory", "mlx5_")
				}
			}
			for e, device := range map[*Engine]bool{p.source: there, p.requester: here} {
				c := e.Stats().CUDA
				if want := map[bool]uint64{true: 16}[device]; c.Copies != want || c.Callbacks == 0 && device {
					t.Errorf("an engine whose memory is on a GPU: %t, has %+v", device, c)
				}
			}
			p.atRest(t)
			s, r := p.source.rdma.transport.Stats(), p.requester.rdma.transport.Stats()
			if s.Gone != s.Accepted || r.Gone != r.Built {
				t.Error(fmt.Errorf("connections outlive their transfers: %+v, %+v", s, r))
			}
		})
	}
}

// attempt runs one request that may fail, and checks that the report tells the truth about both ranges. Retained says
// that something of either engine stays for good.
func (p *gpuPair) attempt(t testing.TB, op Operation, offset, n int) (report Report, retained bool, err error) {
	t.Helper()
	put(t, p.sourceDriver, p.remote, 3)
	put(t, p.requesterDriver, p.local, 200)
	hereBefore, thereBefore := content(t, p.requesterDriver, p.local), content(t, p.sourceDriver, p.remote)
	report, err = p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(op, offset, n)})
	here, there := content(t, p.requesterDriver, p.local), content(t, p.sourceDriver, p.remote)
	changed, before, from, effect := here, hereBefore, there, report.Local
	if op == Write {
		changed, before, from, effect = there, thereBefore, here, report.Remote
		if !bytes.Equal(here, hereBefore) {
			t.Error("a WRITE changed the local range")
		}
	} else if !bytes.Equal(there, thereBefore) {
		t.Error("a READ changed the remote range")
	}
	if !bytes.Equal(changed[:offset], before[:offset]) || !bytes.Equal(changed[offset+n:], before[offset+n:]) {
		t.Error("bytes beside the range were changed")
	}
	switch {
	case err == nil && !bytes.Equal(changed[offset:][:n], from[offset:][:n]):
		t.Error("a transfer that succeeded moved other bytes")
	case err != nil && effect == EffectNone && !bytes.Equal(changed, before):
		t.Errorf("the report says that nothing was changed: %v", err)
	case err != nil && effect == EffectComplete:
		t.Errorf("the report of a failure says that all is done: %+v, %v", report, err)
	case err == nil && !report.LocallyDrained:
		t.Errorf("%+v", report)
	}
	for name, e := range map[string]*Engine{"source": p.source, "requester": p.requester} {
		if list := e.RetainedResources(); len(list) > 0 {
			retained = true
			p.deliberate[name] = true
		}
	}
	return report, retained, err
}

// Whatever native call of the staging fails, at whichever side and in whichever direction: the bytes are there, or the report
// tells what may have become of them; what is not proven quiet is retained and charged, everything else given back.
//
// proves R-6, C-3, G-9, U-1
func TestAFailedCallOfDeviceStagingOverRDMATellsTheTruth(t *testing.T) {
	const size, offset, n = 300 << 10, 5, 200<<10 + 3
	cases := []simcuda.Fault{
		{Kind: simcuda.FailCall, Call: simcuda.CallCopy},
		{Kind: simcuda.FailCall, Call: simcuda.CallCopy, Effect: cuda.Maybe},
		{Kind: simcuda.FailCall, Call: simcuda.CallRecord},
		{Kind: simcuda.FailCall, Call: simcuda.CallCallback},
		{Kind: simcuda.FailCall, Call: simcuda.CallQuery},
		{Kind: simcuda.FailCall, Call: simcuda.CallQuery, Count: -1},
		{Kind: simcuda.LateCallback, By: 100e6, Count: -1},
		{Kind: simcuda.SlowCopy, By: 2e9},
	}
	for i, fault := range cases {
		for _, side := range []string{"source", "requester"} {
			for _, op := range []Operation{Read, Write} {
				t.Run(fmt.Sprint(i, side, op), func(t *testing.T) {
					p := newGPUPair(t, uint64(100+i), size, gpuSide{device: true}, gpuSide{device: true})
					driver := map[string]*simcuda.Driver{"source": p.sourceDriver, "requester": p.requesterDriver}[side]
					driver.Plan(fault)
					p.sim.Advance(1000)
					report, retained, err := p.attempt(t, op, offset, n)
					harmless := fault.Kind == simcuda.LateCallback || fault.Kind == simcuda.SlowCopy || fault.Call == simcuda.CallCallback
					if harmless != (err == nil) {
						t.Errorf("%+v, %v", report, err)
					}
					if retained {
						t.Fatal("something is retained after failures whose end can be proven")
					}
					p.atRest(t)
					if fault.Count >= 0 { // it goes on
						p.move(t, op, offset, n, 9)
						p.atRest(t)
					}
					p.Advance(time.Second) // late callbacks
				})
			}
		}
	}
}
