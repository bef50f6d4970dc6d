package orbitte

import (
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// A pinned chunk that no network device is proven to be done with stays, with its registration, its charges and the range on
// the GPU, on whichever side it is; nobody gets it again, and Close says so.
//
// proves C-3, C-4, G-9, R-18
func TestAChunkThatADeviceMayStillReachIsKept(t *testing.T) {
	for _, there := range []bool{false, true} {
		name := map[bool]string{false: "requester", true: "source"}[there]
		t.Run(name, func(t *testing.T) { keptChunk(t, name) })
	}
}

func keptChunk(t *testing.T, name string) {
	const size, chunk = 256 << 10, 64 << 10
	s := newRDMASim(t, 145, simverbs.Hardware)
	keepsOnPurpose(t, 3) // the range, the one chunk, and messages
	s.deliberate[name] = true
	c := newCUDASimOn(s.sim)
	keeping := chunked(chunk, 4)
	engines, memories, natives := map[string]*Engine{}, map[string]*Memory{}, map[string]*simverbs.Process{}
	for _, x := range []struct {
		name string
		host netip.Addr
	}{{"source", hostA}, {"requester", hostB}} {
		n := s.native(x.name, x.host)
		natives[x.name] = n
		if x.name != name {
			engines[x.name] = s.rdmaEngine(n, x.host, Config{RequestTimeout: 2 * time.Second, SourceTimeout: time.Second})
			memories[x.name] = allocated(t, size)
			registered(t, engines[x.name], memories[x.name], ReadWrite)
			continue
		}
		driver := c.driver(x.name, s.processes[x.name], x.host, simcuda.Options{})
		c.deliberate[driver] = true
		keeping.CUDA, keeping.RequestTimeout, keeping.SourceTimeout = driver, 2*time.Second, time.Second
		e, err := Open(s.rdmaConfig(n, x.host, keeping))
		must(t, err)
		s.drive(e)
		m, err := AllocateDevice(driver, 0, size)
		must(t, err)
		_, err = e.Register(m, 0, size, ReadWrite)
		must(t, err)
		engines[x.name], memories[x.name] = e, m
	}
	requester, e := engines["requester"], engines[name]
	segment, err := requester.OpenSegment(soon(t), engines["source"].Endpoint(), engines["source"].Epoch())
	must(t, err)
	a, z := s.fabric.Host(hostA.String()), s.fabric.Host(hostB.String())
	for _, d := range []string{"mlx5_0", "mlx5_1"} {
		s.fabric.Delay(a.Device(d).Port(1), z.Device(d).Port(1), 5*time.Millisecond, 6*time.Millisecond)
	}
	b, err := requester.Submit(soon(t), []Request{{
		Operation: Write, Transport: TransportRDMA, Segment: segment, Local: memories["requester"].Address(), Remote: memories["source"].Address(), Length: chunk,
	}})
	must(t, err)
	s.until(5*time.Second, func() bool { return natives["requester"].Calls(simverbs.CallPostSend) > 0 })
	for _, d := range []string{"mlx5_0", "mlx5_1"} { // what is posted never completes, and the pairs cannot be taken to the error state
		s.fabric.Cut(a.Device(d).Port(1), z.Device(d).Port(1), true)
	}
	s.fabric.Plan(simverbs.Fault{Kind: simverbs.LoseCompletion, Process: name, Count: -1})
	s.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallModifyPair, Process: name, Count: -1, Errno: syscall.EIO})
	for at := range 600 { // a lane that polls tells the world of no timer
		s.Later(time.Duration(at)*100*time.Millisecond, func() {})
	}
	kept := func() (n int) {
		for _, r := range e.RetainedResources() {
			if r.Kind == "GPU copy" || r.Kind == "RDMA work" {
				n++
			}
		}
		return n
	}
	s.until(2*time.Minute, func() bool {
		_, over, _ := b.Poll()
		return over && kept() == 2
	})
	report, err := b.Wait(soon(t))
	if report.Remote == EffectComplete || err == nil || report.LocallyDrained != (name == "source") {
		t.Errorf("%+v, %v", report, err)
	}
	must(t, b.Free())
	if c := e.Stats().CUDA; c.ChunksInUse != 1 || c.RetainedTransfers != 1 || gauge(t, e, "RDMA regions of pinned chunks, lane 0").Used != 8 {
		t.Errorf("%+v", c)
	}
	if memories[name].backing.Quiet() {
		t.Error("the range on the GPU is not leased any more")
	}
	text := wants(t, e.Close(soon(t)), ErrUnquiesced).Error()
	if used := gauge(t, e, "RDMA regions of pinned chunks, lane 0").Used; used != 2 {
		t.Errorf("%d regions are left, want those of the one chunk on both devices", used)
	}
	if !strings.Contains(text, "RetainedResources") {
		t.Errorf("Close says %s", text)
	}
}

// chunkedRequester is an engine with memory on a GPU, three chunks of that many bytes, and a WRITE of all of the memory over RDMA
// to the host memory of another engine.
func chunkedRequester(t *testing.T, s *rdmaSim, size int, chunk uint64) (*Engine, *Memory, *Registration, *Segment, []Request) {
	source := s.rdmaEngine(s.native("source", hostA), hostA, Config{})
	remote := allocated(t, size)
	registered(t, source, remote, ReadWrite)
	n := s.native("requester", hostB)
	c := newCUDASimOn(s.sim)
	driver := c.driver("requester", s.processes["requester"], hostB, simcuda.Options{})
	c.deliberate[driver] = true
	config := chunked(chunk, 3)
	config.CUDA = driver
	e, err := Open(s.rdmaConfig(n, hostB, config))
	must(t, err)
	s.drive(e)
	m, err := AllocateDevice(driver, 0, size)
	must(t, err)
	r, err := e.Register(m, 0, uint64(size), LocalOnly)
	must(t, err)
	segment, err := e.OpenSegment(soon(t), source.Endpoint(), source.Epoch())
	must(t, err)
	return e, m, r, segment, []Request{{Operation: Write, Transport: TransportRDMA, Segment: segment, Local: m.Address(), Remote: remote.Address(), Length: uint64(size)}}
}

// A chunk whose registration a device refuses to take back stays when the engine is closed, and only that one.
//
// proves C-4, G-9, R-18
func TestAChunkWhoseRegistrationIsRefusedItsEndIsKept(t *testing.T) {
	const size = 64 << 10
	s := newRDMASim(t, 146, simverbs.Hardware)
	keepsOnPurpose(t, 1)
	s.deliberate["requester"] = true
	e, m, r, segment, write := chunkedRequester(t, s, size, 4096)
	_, err := e.SubmitAndWait(soon(t), write)
	must(t, err)
	must(t, e.CloseSegment(soon(t), segment))
	must(t, e.Unregister(soon(t), r))
	must(t, m.Close())
	s.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallDeregister, Process: "requester", Index: 2, Errno: syscall.EBUSY}) // behind the messages of both devices
	wants(t, e.Close(soon(t)), ErrUnquiesced)
	if pinned, regions := gauge(t, e, "pinned staging").Used, gauge(t, e, "RDMA regions of pinned chunks, lane 0").Used; pinned != 4096 || regions != 1 {
		t.Errorf("%d pinned bytes and %d regions are charged, want one chunk's", pinned, regions)
	}
}

// When not all chunks can be registered, and one that was cannot be taken back, the lane stages nothing more over RDMA, and only
// that chunk stays.
//
// proves C-4, G-9, R-18
func TestAChunkWhoseRegistrationIsStuckIsKeptAndNoOtherIsMade(t *testing.T) {
	const size = 4096
	s := newRDMASim(t, 147, simverbs.Hardware)
	keepsOnPurpose(t, 1)
	s.deliberate["requester"] = true
	e, m, r, segment, request := chunkedRequester(t, s, size, size)
	regions := func() int64 { return gauge(t, e, "RDMA regions of pinned chunks, lane 0").Used }
	s.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallDeregister, Process: "requester", Errno: syscall.EBUSY})
	for i := range 8 { // behind the messages of both devices and the first chunk
		s.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallRegister, Process: "requester", Index: 3 + i, Errno: syscall.ENOMEM})
	}
	for range 3 {
		_, err := e.SubmitAndWait(soon(t), request)
		if err == nil || regions() != 1 {
			t.Errorf("%v, and %d regions of chunks", err, regions())
		}
	}
	must(t, e.CloseSegment(soon(t), segment))
	must(t, e.Unregister(soon(t), r))
	must(t, m.Close())
	wants(t, e.Close(soon(t)), ErrUnquiesced)
	if pinned := gauge(t, e, "pinned staging").Used; pinned != size || regions() != 1 {
		t.Errorf("%d pinned bytes and %d regions are charged, want one chunk's", pinned, regions())
	}
}
