package orbitte

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/lanes"
)

// cudaPair is a source and a requester, each with a driver, and on each side memory of the host or of a GPU.
type cudaPair struct {
	*cudaSim
	*pair
	sourceDriver, requesterDriver *simcuda.Driver
}

// small is staging of two chunks of odd size for each role, so that every transfer has many.
var small = Limits{StagingChunkBytes: 1009, PinnedStagingBytes: 4 * 1009}

func newCUDAPair(t testing.TB, seed uint64, source, requester Config, size int, there, here bool) *cudaPair {
	t.Helper()
	p := &cudaPair{cudaSim: newCUDASim(t, seed), pair: &pair{}}
	p.sourceDriver, p.requesterDriver = p.process("source", hostA, simcuda.Options{}), p.process("requester", hostB, simcuda.Options{})
	source.CUDA, requester.CUDA = p.sourceDriver, p.requesterDriver
	p.source, p.requester = p.cudaSim.engine(p.sourceDriver, source), p.cudaSim.engine(p.requesterDriver, requester)
	p.remote, p.local = placed(t, p.sourceDriver, size, there), placed(t, p.requesterDriver, size, here)
	p.export, p.own = registered(t, p.source, p.remote, ReadWrite), registered(t, p.requester, p.local, LocalOnly)
	p.segment = opened(t, p.requester, p.source)
	return p
}

// placed is memory on GPU 1, or of the host.
func placed(t testing.TB, d cuda.Calls, size int, device bool) *Memory {
	t.Helper()
	if device {
		return onGPU(t, d, 1, size)
	}
	return allocated(t, size)
}

// content is what memory holds, wherever it is.
func content(t testing.TB, d *simcuda.Driver, m *Memory) []byte {
	t.Helper()
	if m.Type() == MemoryHost {
		return bytes.Clone(m.Bytes())
	}
	return peek(t, d, m)
}

// put fills memory, wherever it is, with bytes that depend on their place.
func put(t testing.TB, d *simcuda.Driver, m *Memory, seed int) {
	t.Helper()
	b := make([]byte, m.Len())
	for i := range b {
		b[i] = byte(i*7 + i>>8*13 + seed)
	}
	if m.Type() == MemoryHost {
		copy(m.Bytes(), b)
		return
	}
	poke(t, d, m, b)
}

// eachPlacement runs a test for each way between host and GPU that has a GPU.
func eachPlacement(t *testing.T, test func(t *testing.T, there, here bool)) {
	for name, x := range map[string][2]bool{"host to GPU": {true, false}, "GPU to host": {false, true}, "GPU to GPU": {true, true}} {
		t.Run(name, func(t *testing.T) { test(t, x[0], x[1]) })
	}
}

// READ and WRITE move exactly the range, at odd places and of every size around a chunk's border, between host and GPU and
// between GPUs; the bytes beside it stay, and the path says what was copied.
//
// proves C-4, C-5
func TestTransfersMoveExactlyTheRangeOfDeviceMemory(t *testing.T) {
	eachPlacement(t, func(t *testing.T, there, here bool) {
		const size = 20 << 10
		for _, placement := range []Placement{Staged, Direct} {
			c := Config{Limits: small, TCPHostMemory: placement}
			s := newCUDAPair(t, 1, c, c, size, there, here)
			for i, n := range []int{1, 1008, 1009, 1010, 2017, 2018, 2019, 7 * 1009, size - 5003} {
				for _, op := range []Operation{Read, Write} {
					put(t, s.sourceDriver, s.remote, i)
					put(t, s.requesterDriver, s.local, 100+i)
					want, from := content(t, s.requesterDriver, s.local), content(t, s.sourceDriver, s.remote)
					if op == Write {
						want, from = from, want
					}
					copy(want[5003-i:][:n], from[5003-i:][:n])
					report, err := s.requester.SubmitAndWait(soon(t), []Request{s.request(op, 5003-i, n)})
					must(t, err)
					got := content(t, s.requesterDriver, s.local)
					if op == Write {
						got = content(t, s.sourceDriver, s.remote)
					}
					if !bytes.Equal(got, want) || report.Bytes != uint64(n) {
						t.Fatalf("%v of %d bytes: %+v, and not exactly the range", op, n, report)
					}
					path, err := s.segment.PathOf(s.request(op, 5003-i, n))
					must(t, err)
					if path != report.Path {
						t.Errorf("the path was foretold as %q, and is %q", path, report.Path)
					}
					mentions(t, path, "tcp", "staged through pinned host memory")
				}
			}
			for e, device := range map[*Engine]bool{s.source: there, s.requester: here} {
				if c := e.Stats().CUDA; device != (c.Copies > 0) || device != (c.Callbacks > 0) || c.ChunksInUse != 0 || c.CopiesInFlight != 0 || c.Waiting != 0 {
					t.Errorf("an engine whose memory is on a GPU: %t, has %+v", device, c)
				}
			}
		}
	})
}

// Requests of an engine to itself copy between host and GPU and from GPU to GPU, under the same checks and leases.
//
// proves M-9; field case F-71
func TestOwnSegmentCopiesDeviceMemory(t *testing.T) {
	s := newCUDASim(t, 1)
	d := s.process("alone", hostA, simcuda.Options{})
	e := s.engine(d, Config{CUDA: d, Limits: small})
	host, back := allocated(t, 10<<10), allocated(t, 10<<10)
	first, second := onGPU(t, d, 0, 10<<10), onGPU(t, d, 1, 10<<10)
	for _, m := range []*Memory{host, back, first, second} {
		registered(t, e, m, ReadWrite)
	}
	pattern(host, 5)
	own := opened(t, e, e)
	for i, x := range []struct {
		op        Operation
		at, where *Memory
		path      string
	}{{Write, host, first, "local copy, device and host"}, {Write, first, second, "local copy, device to device"},
		{Read, first, second, "local copy, device to device"}, {Read, back, second, "local copy, device and host"}, {Write, second, back, "local copy, device and host"}} {
		report, err := e.SubmitAndWait(soon(t), []Request{{Operation: x.op, Segment: own, Local: x.at.Address() + 3, Remote: x.where.Address() + 3, Length: 10<<10 - 7}})
		must(t, err)
		if report.Path != x.path {
			t.Errorf("copy %d went %q", i, report.Path)
		}
	}
	if !bytes.Equal(back.Bytes()[3:10<<10-4], host.Bytes()[3:10<<10-4]) || back.Bytes()[2] != 0 || back.Bytes()[10<<10-4] != 0 {
		t.Error("not exactly the range came back")
	}
}

// A transport that cannot carry device memory refuses before anything is posted, whichever side it is on; nothing is
// copied through the host that was not asked for.
//
// proves G-4; field case F-69
func TestTransportsThatCannotCarryDeviceMemoryRefuse(t *testing.T) {
	eachPlacement(t, func(t *testing.T, there, here bool) {
		c := Config{HPTCP: &HPTCPConfig{}}
		s := newCUDAPair(t, 1, c, c, 4096, there, here)
		for _, op := range []Operation{Read, Write} {
			r := s.request(op, 1, 100)
			r.Transport = TransportHPTCP
			before := s.source.Stats().Totals
			report, err := s.requester.SubmitAndWait(soon(t), []Request{r})
			wants(t, err, ErrUnavailable)
			mentions(t, err.Error(), "GPU", "TransportTCP")
			if report.Failed != 0 || s.source.Stats().Totals != before {
				t.Errorf("something was posted: %+v", report)
			}
			_, err = s.segment.PathOf(r)
			wants(t, err, ErrUnavailable)
		}
	})
}

// A source without CUDA cannot have device memory, and a requester without it can ask for a peer's.
func TestRequesterWithoutCUDAReachesAPeersDeviceMemory(t *testing.T) {
	s := newCUDASim(t, 1)
	d := s.process("source", hostA, simcuda.Options{})
	source := s.engine(d, Config{CUDA: d})
	plain := s.engine(s.process("requester", hostB, simcuda.Options{}), Config{})
	device, host := onGPU(t, d, 0, 1<<20), allocated(t, 1<<20)
	registered(t, source, device, RemoteRead)
	registered(t, plain, host, LocalOnly)
	put(t, d, device, 9)
	segment := opened(t, plain, source)
	report, err := plain.SubmitAndWait(soon(t), []Request{{Operation: Read, Segment: segment, Local: host.Address(), Remote: device.Address(), Length: 1 << 20}})
	must(t, err)
	if !bytes.Equal(host.Bytes(), peek(t, d, device)) || report.Path != "tcp, staged through pinned host memory there" {
		t.Errorf("%+v", report)
	}
	_, err = plain.SubmitAndWait(soon(t), []Request{{Operation: Write, Segment: segment, Local: host.Address(), Remote: device.Address(), Length: 1}})
	wants(t, err, ErrPermission)
}

// Unregister and Close while copies are under way wait for them: nothing is freed that a GPU still touches, and the
// memory ends with its last user.
//
// proves M-6, G-8, C-3
func TestDeviceMemoryLivesUntilItsCopiesHaveEnded(t *testing.T) {
	for _, end := range []string{"unregister", "close", "cancel"} {
		t.Run(end, func(t *testing.T) {
			s := newCUDASim(t, 1)
			d, far := s.process("source", hostA, simcuda.Options{}), s.process("requester", hostB, simcuda.Options{})
			source, requester := s.engine(d, Config{CUDA: d, Limits: small}), s.engine(far, Config{CUDA: far, Limits: small})
			remote, err := AllocateDevice(d, 0, 9000)
			must(t, err)
			local, err := AllocateDevice(far, 1, 9000)
			must(t, err)
			put(t, d, remote, 4)
			export, own := registered(t, source, remote, ReadWrite), registered(t, requester, local, LocalOnly)
			segment := opened(t, requester, source)
			must(t, remote.Close())
			must(t, local.Close())
			slow := simcuda.Fault{Kind: simcuda.SlowCopy, By: time.Second, Count: 2}
			d.Plan(slow)
			far.Plan(slow)
			b, err := requester.Submit(s.within(20*time.Second), []Request{{Operation: Read, Segment: segment, Local: local.Address(), Remote: remote.Address(), Length: 9000}})
			must(t, err)
			s.until(time.Second, func() bool { return source.Stats().CUDA.CopiesInFlight > 0 })
			ctx := s.within(10 * time.Second)
			switch end {
			case "unregister":
				must(t, source.Unregister(ctx, export))
				must(t, requester.Unregister(ctx, own))
				if left := d.Live(); left.Allocations != 0 {
					t.Errorf("left at the source: %+v", left)
				}
			case "close":
				must(t, source.Close(ctx))
				must(t, requester.Close(ctx))
			case "cancel":
				b.Cancel()
			}
			report, err := b.Wait(ctx)
			if end == "cancel" {
				wants(t, err, ErrCancelled)
			} else if err != nil || report.Completed != 1 {
				t.Errorf("%+v, %v", report, err)
			}
			if !report.LocallyDrained {
				t.Errorf("%+v", report)
			}
			must(t, b.Free())
		})
	}
}

// A copy that fails, and is proven to have ended, fails its transfer; what it may have changed is said, and nothing is kept.
//
// proves C-3, T-10
func TestFailedCopyFailsItsTransferAndNothingElse(t *testing.T) {
	for _, op := range []Operation{Read, Write} {
		t.Run(op.String(), func(t *testing.T) {
			s := newCUDAPair(t, 1, Config{Limits: small}, Config{Limits: small}, 9000, true, true)
			put(t, s.sourceDriver, s.remote, 1)
			s.requesterDriver.Plan(simcuda.Fault{Kind: simcuda.FailCall, Call: simcuda.CallCopy, Index: 6, Result: cuda.InvalidValue})
			report, err := s.requester.SubmitAndWait(soon(t), []Request{s.request(op, 0, 9000)})
			wants(t, err, ErrDevice)
			var call *cuda.CallError
			if !errors.As(err, &call) || !report.LocallyDrained || report.Completed != 0 {
				t.Errorf("%+v, %v", report, err)
			}
			if want := map[Operation]Effect{Read: EffectPartial, Write: EffectNone}[op]; report.Local != want {
				t.Errorf("the local range: %v, want %v", report.Local, want)
			}
			if want := map[Operation]Effect{Read: EffectNone, Write: EffectUnknown}[op]; report.Remote != want {
				t.Errorf("the remote range: %v, want %v", report.Remote, want)
			}
			_, err = s.requester.SubmitAndWait(soon(t), []Request{s.request(op, 0, 9000)})
			must(t, err)
		})
	}
}

// Callbacks that are lost, late or double change nothing: the safety timer finds the copies, and only their events count.
//
// proves C-5
func TestLostCallbacksDelayATransferAndDoNotStopIt(t *testing.T) {
	for _, kind := range []simcuda.FaultKind{simcuda.LoseCallback, simcuda.LateCallback, simcuda.DoubleCallback} {
		s := newCUDAPair(t, 1, Config{Limits: small}, Config{Limits: small}, 9000, true, true)
		put(t, s.sourceDriver, s.remote, 1)
		fault := simcuda.Fault{Kind: kind, Count: -1, By: 300 * time.Millisecond}
		s.sourceDriver.Plan(fault)
		s.requesterDriver.Plan(fault)
		_, err := s.requester.SubmitAndWait(soon(t), s.whole(Read))
		must(t, err)
		if !bytes.Equal(content(t, s.requesterDriver, s.local), content(t, s.sourceDriver, s.remote)) {
			t.Errorf("%v: the bytes differ", kind)
		}
		if c := s.requester.Stats().CUDA; kind == simcuda.LoseCallback && (c.SafetyTimer == 0 || c.Callbacks != 0) {
			t.Errorf("%v: %+v", kind, c)
		}
		if kind == simcuda.LoseCallback { // the driver owes them for good
			s.deliberate[s.sourceDriver], s.deliberate[s.requesterDriver] = true, true
		}
		s.until(time.Second, func() bool {
			return kind == simcuda.LoseCallback || s.sourceDriver.Live().Callbacks+s.requesterDriver.Live().Callbacks == 0
		})
	}
}

// A GPU that is lost in the middle proves nothing any more: what its copies touch is kept, charged and listed, the call
// says so, and other GPUs go on.
//
// proves C-3, G-8, G-9
func TestLostGPUKeepsWhatItMayTouchAndOthersGoOn(t *testing.T) {
	s := newCUDASim(t, 1)
	keepsOnPurpose(t, 5) // the user's memory, and the chunks of four copies; the lane ends, with all else
	d, far := s.process("requester", hostA, simcuda.Options{}), s.process("source", hostB, simcuda.Options{})
	s.deliberate[d] = true
	source := s.engine(far, Config{})
	remote := allocated(t, 9000)
	registered(t, source, remote, ReadWrite)
	e, err := Open(s.config(s.processes[d], Config{CUDA: d, Limits: Limits{StagingChunkBytes: 1009, PinnedStagingBytes: 16 * 1009}}, "10.0.0.1:0"))
	must(t, err)
	s.Add(func() bool { return e.Progress(time.Minute) })
	var memory [2]*Memory
	var own [2]*Registration
	for i := range memory {
		memory[i], err = AllocateDevice(d, i, 9000)
		must(t, err)
		own[i], err = e.Register(memory[i], 0, 9000, LocalOnly)
		must(t, err)
	}
	segment, err := e.OpenSegment(soon(t), source.Endpoint(), source.Epoch())
	must(t, err)
	read := func(i int) (Report, error) {
		return e.SubmitAndWait(soon(t), []Request{{Operation: Read, Segment: segment, Local: memory[i].Address(), Remote: remote.Address(), Length: 9000}})
	}
	pattern(remote, 3)
	d.Plan(simcuda.Fault{Kind: simcuda.SlowCopy, By: time.Second, Device: 2},
		simcuda.Fault{Kind: simcuda.LoseDevice, Device: 2, At: 100 * time.Millisecond, Result: cuda.ECCUncorrectable})
	report, err := read(1)
	wants(t, err, ErrUnquiesced)
	var fault *lanes.Fault
	if report.LocallyDrained || !errors.As(err, &fault) || fault.Cause != lanes.DeviceFailed || report.Local != EffectPartial {
		t.Errorf("%+v, %v", report, err)
	}
	kinds := map[string]int{}
	for _, r := range e.RetainedResources() {
		kinds[r.Kind]++
	}
	c := e.Stats().CUDA
	if kinds["GPU copy"] != 1 || kinds["submission"] != 1 || c.RetainedTransfers != 1 || c.ChunksInUse == 0 || gauge(t, e, "requester bytes in flight").Used != 9000 {
		t.Errorf("retained: %v, %+v", e.RetainedResources(), c)
	}
	_, err = read(1)
	mentions(t, wants(t, err, ErrDevice).Error(), "GPU 1", "new process")
	_, err = read(0)
	must(t, err)
	if !bytes.Equal(peek(t, d, memory[0]), remote.Bytes()) {
		t.Error("the other GPU's bytes differ")
	}
	over, stop := context.WithTimeout(context.Background(), time.Millisecond)
	defer stop()
	wants(t, e.Unregister(over, own[1]), ErrUnquiesced)
	must(t, memory[1].Close())
	must(t, e.Unregister(soon(t), own[0]))
	must(t, memory[0].Close())
	wants(t, e.Close(over), ErrUnquiesced)
}
