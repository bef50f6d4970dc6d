package world

import (
	"errors"
	"slices"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
)

// vault is the CUDA driver of a life. As long as the process lives it only remembers which copies are not proven to have
// ended, since nobody may rely on a byte that one of them writes: on a GPU it is garbage meanwhile. When the process was
// killed its work on GPUs has ended, and with it every native object: from then on the driver says so, whatever it is asked
// to end, and makes nothing new. So an engine that is buried can prove that its memory is quiet (see tomb).
type vault struct {
	cuda.Calls
	driver  *simcuda.Driver
	life    *life
	closed  bool // true exactly when the process was killed
	flights []flight
	asked   [gpusMax]bool              // by GPU: some memory was asked for on it
	owners  map[cuda.ContextHandle]int // GPUs, by their context
}

// flight is what one copy may write, from its start to the proof of its end: the event behind it, or its empty stream. One
// without a proof stays for good.
type flight struct {
	to, bytes uint64
	stream    cuda.StreamHandle
	event     cuda.EventHandle
	step      int // of the life
}

// happened is true exactly when what was asked of the driver has happened.
func happened(err error) bool {
	var call *cuda.CallError
	return err == nil || errors.As(err, &call) && call.Effect == cuda.Done
}

// dead is the answer to whoever wants something new.
func dead(call string) error {
	return &cuda.CallError{Call: call, Object: "a driver of a killed process", Result: cuda.Deinitialized, Name: "CUDA_ERROR_DEINITIALIZED"}
}

// Submit (cuda.Calls).
func (v *vault) Submit(c cuda.ContextHandle, s cuda.StreamHandle, copies []cuda.Copy, e cuda.EventHandle, g cuda.SignalHandle) (cuda.Submitted, error) {
	if v.closed {
		return cuda.Submitted{}, dead("cuMemcpyAsync")
	}
	done, err := v.Calls.Submit(c, s, copies, e, g)
	taken := done.Copies
	if done.Unknown && taken < len(copies) {
		taken++
	}
	for _, x := range copies[:taken] {
		v.flights = append(v.flights, flight{uint64(x.To), x.Bytes, s, e, v.life.steps})
	}
	return done, err
}

// Query (cuda.Calls).
func (v *vault) Query(c cuda.ContextHandle, e cuda.EventHandle) (bool, error) {
	if v.closed {
		return true, nil
	}
	done, err := v.Calls.Query(c, e)
	if done && happened(err) {
		v.landed(func(f flight) bool { return f.event == e })
	}
	return done, err
}

// Synchronize (cuda.Calls).
func (v *vault) Synchronize(c cuda.ContextHandle, s cuda.StreamHandle) error {
	if v.closed {
		return nil
	}
	err := v.Calls.Synchronize(c, s)
	if happened(err) {
		v.landed(func(f flight) bool { return f.stream == s })
	}
	return err
}

// landed takes a proof. The model sees what it proves at once, before anybody can build on it.
func (v *vault) landed(which func(flight) bool) {
	before := len(v.flights)
	for _, f := range v.flights {
		if which(f) {
			v.reveal(f.to, f.bytes)
		}
	}
	if v.flights = slices.DeleteFunc(v.flights, which); len(v.flights) < before && v.life.engine != nil && v.life.alive() {
		v.life.run.explain(v.life)
	}
}

// end is what ends an object: the process has done so.
func (v *vault) end(native func() error) error {
	if v.closed {
		return nil
	}
	return native()
}

// made is what makes one.
func made[H ~uint64](v *vault, call string, native func() (H, error)) (H, error) {
	if v.closed {
		return 0, dead(call)
	}
	return native()
}

// The rest of cuda.Calls that makes or ends something.

func (v *vault) AcquirePrimary(ordinal int) (cuda.ContextHandle, error) {
	h, err := made(v, "cuDevicePrimaryCtxRetain", func() (cuda.ContextHandle, error) { return v.Calls.AcquirePrimary(ordinal) })
	if happened(err) {
		v.owners[h] = ordinal
	}
	return h, err
}

func (v *vault) ReleasePrimary(ordinal int) error {
	return v.end(func() error { return v.Calls.ReleasePrimary(ordinal) })
}

func (v *vault) Allocate(c cuda.ContextHandle, bytes uint64) (cuda.Pointer, error) {
	return made(v, "cuMemAlloc_v2", func() (cuda.Pointer, error) { return v.Calls.Allocate(c, bytes) })
}

func (v *vault) Free(c cuda.ContextHandle, p cuda.Pointer) error {
	return v.end(func() error { return v.Calls.Free(c, p) })
}

func (v *vault) AllocateHost(c cuda.ContextHandle, bytes uint64) (uint64, error) {
	return made(v, "cuMemHostAlloc", func() (uint64, error) { return v.Calls.AllocateHost(c, bytes) })
}

func (v *vault) FreeHost(c cuda.ContextHandle, address uint64) error {
	return v.end(func() error { return v.Calls.FreeHost(c, address) })
}

func (v *vault) CreateStream(c cuda.ContextHandle) (cuda.StreamHandle, error) {
	return made(v, "cuStreamCreate", func() (cuda.StreamHandle, error) { return v.Calls.CreateStream(c) })
}

func (v *vault) DestroyStream(c cuda.ContextHandle, s cuda.StreamHandle) error {
	return v.end(func() error { return v.Calls.DestroyStream(c, s) })
}

func (v *vault) CreateEvent(c cuda.ContextHandle) (cuda.EventHandle, error) {
	return made(v, "cuEventCreate", func() (cuda.EventHandle, error) { return v.Calls.CreateEvent(c) })
}

func (v *vault) DestroyEvent(c cuda.ContextHandle, e cuda.EventHandle) error {
	return v.end(func() error { return v.Calls.DestroyEvent(c, e) })
}

func (v *vault) OpenSignal() (cuda.SignalHandle, error) {
	return made(v, "eventfd", v.Calls.OpenSignal)
}

func (v *vault) CloseSignal(g cuda.SignalHandle) int {
	if v.closed {
		return 0
	}
	return v.Calls.CloseSignal(g)
}

func (v *vault) TakeSignal(g cuda.SignalHandle) (uint64, error) {
	if v.closed {
		return 0, nil
	}
	return v.Calls.TakeSignal(g)
}

func (v *vault) Zero(c cuda.ContextHandle, s cuda.StreamHandle, p cuda.Pointer, bytes uint64) error {
	return v.end(func() error { return v.Calls.Zero(c, s, p, bytes) })
}
