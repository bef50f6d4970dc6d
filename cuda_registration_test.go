package orbitte

import (
	"errors"
	"testing"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/segments"
)

// A descriptor says of each region where its bytes are and on which GPU.
//
// proves W-7, W-8
func TestPeersSeeMemoryTypeAndGPU(t *testing.T) {
	s := newCUDASim(t, 1)
	d := s.process("source", hostA, simcuda.Options{})
	source := s.engine(d, Config{CUDA: d})
	requester := s.engine(s.process("requester", hostB, simcuda.Options{}), Config{})
	for _, ordinal := range []int{0, 1} {
		registered(t, source, onGPU(t, d, ordinal, 100), ReadWrite)
	}
	registered(t, source, allocated(t, 100), ReadWrite)
	want := []struct {
		kind MemoryType
		gpu  int
	}{{MemoryCUDA, 0}, {MemoryCUDA, 1}, {MemoryHost, -1}}
	for _, segment := range []*Segment{opened(t, requester, source), opened(t, source, source)} {
		regions := segment.Regions()
		if len(regions) != len(want) {
			t.Fatalf("%d regions", len(regions))
		}
		for i, r := range regions {
			if r.Type != want[i].kind || r.GPU != want[i].gpu {
				t.Errorf("region %d is %v on GPU %d, want %v on %d", i, r.Type, r.GPU, want[i].kind, want[i].gpu)
			}
		}
	}
}

// An engine that cannot copy from and to a GPU does not take its memory; nothing of the batch is registered, and no host
// memory stands in.
//
// proves M-4; field cases F-69, F-70
func TestDeviceMemoryThatAnEngineCannotUseIsRefused(t *testing.T) {
	s := newCUDASim(t, 1)
	d, other := s.process("one", hostA, simcuda.Options{}), s.process("other", hostB, simcuda.Options{})
	host, device := allocated(t, 100), onGPU(t, d, 0, 100)
	for _, x := range []struct {
		engine *Engine
		class  error
		words  string
		fast   bool
	}{
		{s.engine(d, Config{}), ErrUnavailable, "Config.CUDA", false},
		{s.engine(other, Config{CUDA: other}), ErrInvalid, "another CUDA driver", false},
		{s.engine(d, Config{CUDA: d, HPTCP: &HPTCPConfig{}}), ErrUnavailable, "TransportTCP", true},
	} {
		before := used(x.engine)
		_, err := x.engine.RegisterBatch([]Range{{Memory: host, Length: 100, Permission: ReadWrite}, {Memory: device, Length: 100, Permission: ReadWrite, HPTCP: x.fast}})
		if own := wants(t, err, x.class); own.Index != 1 || own.Op != "RegisterBatch" {
			t.Errorf("%v", err)
		}
		mentions(t, err.Error(), x.words)
		for name, n := range used(x.engine) {
			if n != before[name] {
				t.Errorf("%d are charged to %s, before %d", n, name, before[name])
			}
		}
		if n := x.engine.tracker.Mirror().Count(); n != 0 {
			t.Errorf("%d ranges of the batch are visible", n)
		}
	}
}

// Device memory in a batch meets the same bounds as host memory; a batch that fails leaves streams and contexts as they
// were, and a range behind the end, an overlap with a foreign object and an empty one are named.
//
// proves M-4, M-5, U-3
func TestBatchWithDeviceMemoryIsRegisteredWholeOrNotAtAll(t *testing.T) {
	s := newCUDASim(t, 1)
	d := s.process("alone", hostA, simcuda.Options{})
	e := s.engine(d, Config{CUDA: d, Limits: Limits{Registrations: 3, RegisteredBytes: 1000}})
	first, second, host := onGPU(t, d, 0, 600), onGPU(t, d, 1, 600), allocated(t, 600)
	for name, x := range map[string]struct {
		index  int
		class  error
		ranges []Range
	}{
		"too many bytes": {1, ErrExhausted, []Range{{Memory: first, Length: 500}, {Memory: second, Offset: 99, Length: 501}}},
		"too many": {3, ErrExhausted, []Range{{Memory: first, Length: 1}, {Memory: second, Length: 1}, {Memory: host, Length: 1},
			{Memory: second, Offset: 1, Length: 1}}},
		"behind the end": {1, ErrInvalid, []Range{{Memory: host, Length: 1}, {Memory: second, Offset: 500, Length: 101}}},
		"overflow":       {0, ErrInvalid, []Range{{Memory: second, Offset: ^uint64(0), Length: 2}}},
		"empty":          {0, ErrInvalid, []Range{{Memory: first, Length: 0}}},
	} {
		for i := range x.ranges {
			x.ranges[i].Permission = ReadWrite
		}
		_, err := e.RegisterBatch(x.ranges)
		if own := wants(t, err, x.class); own.Index != x.index {
			t.Errorf("%s: index %d, want %d: %v", name, own.Index, x.index, err)
		}
		if n := e.tracker.Mirror().Count(); n != 0 {
			t.Errorf("%s: %d ranges are visible", name, n)
		}
	}
	list, err := e.RegisterBatch([]Range{{Memory: first, Length: 500, Permission: RemoteRead}, {Memory: second, Length: 400, Permission: LocalOnly}, {Memory: first, Length: 500}})
	must(t, err)
	if list[0] != list[2] || list[0].Permission() != RemoteRead || gauge(t, e, "registered bytes").Used != 900 {
		t.Errorf("%v, %d bytes", list, gauge(t, e, "registered bytes").Used)
	}
	for _, r := range list[:2] {
		must(t, e.Unregister(soon(t), r))
	}
}

// The pinned memory that stages is a budget: too small a limit is the configuration's error, and what the driver does not
// give is the registration's, which leaves nothing.
//
// proves U-1, U-3, C-4
func TestPinnedStagingIsBoundedAndCharged(t *testing.T) {
	s := newCUDASim(t, 1)
	d := s.process("alone", hostA, simcuda.Options{})
	_, err := Open(s.config(s.processes[d], Config{CUDA: d, Lanes: 2, Limits: Limits{PinnedStagingBytes: 7 << 10, StagingChunkBytes: 2 << 10}}, "10.0.0.1:0"))
	wants(t, err, ErrInvalid)
	mentions(t, err.Error(), "PinnedStagingBytes", "8192")
	e := s.engine(d, Config{CUDA: d, Lanes: 2, Limits: Limits{PinnedStagingBytes: 9 << 10, StagingChunkBytes: 2 << 10}})
	device := onGPU(t, d, 1, 100)
	if n := gauge(t, e, "pinned staging").Used; n != 0 || d.Live().Pinned != 0 {
		t.Errorf("%d bytes are pinned before any device memory is registered", n)
	}
	d.Plan(simcuda.Fault{Kind: simcuda.FailCall, Call: simcuda.CallAllocateHost, Index: 2, Result: cuda.OutOfMemory})
	_, err = e.Register(device, 0, 100, ReadWrite)
	own := wants(t, err, ErrExhausted)
	if own.Index != 0 || e.tracker.Mirror().Count() != 0 {
		t.Errorf("%v, %d visible", err, e.tracker.Mirror().Count())
	}
	r := registered(t, e, device, ReadWrite)
	if g := gauge(t, e, "pinned staging"); g.Used != 8<<10 || g.Limit != 9<<10 {
		t.Errorf("%+v", g)
	}
	if c := e.Stats().CUDA; c.StagingBytes != 8<<10 || c.Chunks != 4 || c.GPUs[1].Holders == 0 || c.GPUs[0].Holders != 0 || c.PinnedBytes != 8<<10 {
		t.Errorf("%+v", c)
	}
	active(t, d, false, true)
	must(t, e.Unregister(soon(t), r))
	closeEngine(t, e)
	if n := gauge(t, e, "pinned staging").Used; n != 0 || d.Live().Pinned != 0 {
		t.Errorf("%d bytes are charged after Close, %+v", n, d.Live())
	}
}

// An engine with CUDA makes no context before device memory asks for one, on that GPU only, and when all are closed each
// GPU has as many as before: also when the memory outlives the engine, or the engine the memory.
//
// proves C-1, C-2, U-2
func TestContextsAreMadeWhereAskedAndAllGivenBack(t *testing.T) {
	s := newCUDASim(t, 1)
	d := s.process("alone", hostA, simcuda.Options{Devices: make([]cuda.DeviceInfo, 3)})
	e := s.engine(d, Config{CUDA: d})
	active(t, d, false, false, false)
	host := allocated(t, 100)
	registered(t, e, host, ReadWrite)
	active(t, d, false, false, false)
	device, err := AllocateDevice(d, 2, 100)
	must(t, err)
	r, err := e.Register(device, 0, 100, ReadWrite)
	must(t, err)
	must(t, device.Close()) // the registration keeps it
	closeEngine(t, e)
	active(t, d, false, false, true)
	must(t, e.Unregister(soon(t), r))
	active(t, d, false, false, false)
	again := s.engine(d, Config{CUDA: d})
	must(t, again.Close(soon(t)))
	device = onGPU(t, d, 1, 100)
	e = s.engine(d, Config{CUDA: d})
	r, err = e.Register(device, 0, 50, ReadWrite)
	must(t, err)
	must(t, e.Unregister(soon(t), r))
	closeEngine(t, e) // the memory outlives it
	active(t, d, false, true, false)
}

// The errors of rooms below have a class and keep their cause.
func TestErrorsOfCUDAHaveAClass(t *testing.T) {
	for cause, class := range map[error]error{
		&cuda.UnquiescedError{}:                                                 ErrUnquiesced,
		&cuda.RetainedError{}:                                                   ErrUnquiesced,
		&cuda.DriverError{Cause: cuda.ErrOldDriver}:                             ErrUnavailable,
		&cuda.DeviceError{Cause: cuda.ErrProhibited}:                            ErrUnavailable,
		&cuda.AdoptionError{Cause: cuda.ErrManaged}:                             ErrInvalid,
		&cuda.AdoptionError{Cause: &cuda.CallError{}}:                           ErrSystem,
		&cuda.CallError{Result: cuda.OutOfMemory}:                               ErrExhausted,
		&cuda.CallError{Result: cuda.LaunchFailed}:                              ErrSystem,
		&cuda.BusyError{}:                                                       ErrConflict,
		&cuda.StaleError{}:                                                      ErrInvalid,
		&budgets.Exhausted{Budget: "pinned staging"}:                            ErrExhausted,
		&segments.ElementError{Err: &cuda.DeviceError{Cause: cuda.ErrNoDevice}}: ErrUnavailable,
	} {
		if err := failure("Register", cause); !errors.Is(err, class) || !errors.Is(err, cause) {
			t.Errorf("%v is %v, want %v", cause, err, class)
		}
	}
}
