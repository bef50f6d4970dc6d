package world

import (
	"errors"
	"fmt"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/test/faults"
)

// OracleDriver finds a use of the CUDA driver that a real one does not survive, or does not notice: of what was destroyed,
// in another context than its own, of memory with copies under way.
const OracleDriver = "driver"

const (
	// copyGrace is how much later than others a request may end whose own copies have to end before it: as many as
	// a memory object has at once, and the longest pause of the timer that looks at those that nobody announced.
	copyGrace = 100 * time.Millisecond
	// hungGrace is the same where a GPU may never end a copy: it is waited for twice, for the event and for the drain.
	hungGrace = 61 * time.Second
	// hungFrom is from when on a copy counts as one that hangs; between this and 30 s nobody can know.
	hungFrom = time.Second

	gpusMax = 8
)

// powerUp gives an engine that is about to start its GPUs.
func (l *life) powerUp(c *orbitte.Config) {
	r, own := l.run, l.slot.config
	gpus := min(own.Int(faults.GPUs), gpusMax)
	if gpus == 0 {
		return
	}
	r.gpus = true
	kernel := l.process.Kernel() // the driver's own: a callback may come when the engine has ended
	seed := uint64(r.script.World.Get(faults.Seed))<<16 ^ uint64(l.slot.number)<<8 ^ uint64(l.number)
	v := &vault{life: l, owners: map[cuda.ContextHandle]int{}}
	v.driver = simcuda.New(seed, simcuda.Options{
		Devices: l.devices(gpus), Granule: l.granule(),
		Now:   func() time.Duration { return time.Duration(r.net.Now()) },
		Later: r.net.Later,
		Signal: func(*simcuda.Driver) (int, func(), func(), func(), error) {
			d, signal, err := l.process.Signal()
			return int(d), signal, func() { l.process.Unsignal(d) }, func() { _ = kernel.Close(d) }, err
		},
		Violation: func(err error) { r.violate(OracleDriver, "%v: %v", l, err) },
		DelayMin:  own.Duration(faults.CopyMin), DelayMax: own.Duration(faults.CopyMax), CallbackMax: own.Duration(faults.CallbackMax),
		Memory: 1 << 28,
	})
	v.Calls, l.vault = v.driver, v
	c.CUDA = v
	l.goDirect(c)
	lanes, chunk, chunks := uint64(c.Lanes), uint64(own.Get(faults.PinnedChunk)), uint64(own.Get(faults.PinnedChunks))
	if c.Limits.StagingChunkBytes = chunk; chunk > 0 {
		if chunks == 0 {
			chunks = 8
		}
		c.Limits.PinnedStagingBytes = 2 * lanes * chunks * chunk
	}
}

// onDevice makes a memory object of the life's driver; nil: there is no such GPU.
func (l *life) onDevice(a faults.Action) (object *orbitte.Memory, gpu bool, err error) {
	v, ordinal, length := l.vault, a.Int(faults.GPU)-1, a.Int(faults.Length)
	switch {
	case v == nil || ordinal < 0 || ordinal >= min(l.slot.config.Int(faults.GPUs), gpusMax):
		return nil, false, nil
	}
	v.asked[ordinal] = true
	switch {
	case a.Bool(faults.Pinned):
		object, err = orbitte.AllocatePinnedHost(v, ordinal, length)
		return object, false, err
	case a.Bool(faults.Adopted):
		object, err = orbitte.AdoptDevice(v, ordinal, uint64(v.driver.MakePool(ordinal, uint64(length))), length, nil)
	default:
		object, err = orbitte.AllocateDevice(v, ordinal, length)
	}
	return object, true, err
}

// look brings the model's copy of what a device reaches up to date, except for bytes that a copy may be writing: what
// they are can be told when that has ended, and nobody may look at them before.
func (m *memory) look() {
	v := m.vault
	if v == nil || m.closed {
		return
	}
	if !m.gpu {
		copy(m.data, m.object.Bytes())
	} else if m.seen != nil {
		copy(m.data, m.seen)
	} else if !v.driver.Peek(cuda.Pointer(m.object.Address()), m.data) {
		panic(fmt.Sprintf("world: memory %d of %v is not on its GPU any more", m.name, m.life))
	}
	first := m.object.Address()
	end := first + uint64(len(m.data))
	for _, f := range v.flights {
		if from, to := max(f.to, first), min(f.to+f.bytes, end); from < to {
			copy(m.data[from-first:to-first], m.shadow[from-first:to-first])
		}
	}
}

// store puts what the program wrote where it belongs.
func (m *memory) store(at, length int) {
	switch {
	case m.vault == nil:
	case m.gpu:
		m.vault.driver.Poke(cuda.Pointer(m.object.Address()+uint64(at)), m.data[at:at+length])
		if m.seen != nil {
			copy(m.seen[at:], m.data[at:at+length])
		}
	default:
		copy(m.object.Bytes()[at:], m.data[at:at+length])
	}
}

// landing is true exactly when a copy that began some steps ago may still write to what the op wrote.
func (o *op) landing() bool {
	m := o.to
	if m.vault == nil || m.closed || o.length == 0 {
		return false
	}
	first := m.object.Address() + uint64(o.toAt)
	for _, f := range m.vault.flights {
		if f.step < m.life.steps-landingSteps && f.to < first+uint64(o.length) && first < f.to+f.bytes {
			return true
		}
	}
	return false
}

// landingSteps is how many steps after an op's end its program may be told, and others have begun to use its range: a step
// of a call that waits is a look at one of several kernels.
const landingSteps = 64

// proven holds the end of an op that has used its range against the copies that are under way.
func (r *run) proven(o *op) {
	if o.copies() && o.to.life == o.local.life && o.landing() {
		r.violate(OracleQuiet, "%v: %v has ended and its memory is quiet, but a copy to it is under way", o.local.life, o)
	}
}

// contexts finds a context on a GPU on which nobody has asked for any memory (C-1).
func (r *run) contexts(l *life) {
	if l.vault == nil {
		return
	}
	for ordinal := range min(l.slot.config.Int(faults.GPUs), gpusMax) {
		if active, err := l.vault.driver.PrimaryActive(ordinal); err == nil && active && !l.vault.asked[ordinal] {
			r.violate(OracleDriver, "%v has a context on GPU %d, where it has no memory", l, ordinal)
		}
	}
}

// strewn says whether the parts of the destination come in any order.
func (o *op) strewn() bool { return o.apart() || o.to.vault != nil }

// copies says whether a device of the op's own engine copies for it.
func (o *op) copies() bool { return o.local.gpu || o.remote.gpu && o.remote.life == o.local.life }

// copyTime is how much later than others the op may end.
func (o *op) copyTime() time.Duration {
	switch l := o.local.life; {
	case !o.copies():
		return 0
	case l.hung:
		return hungGrace + l.slowed
	default:
		return copyGrace + l.slowed
	}
}

// deviceFailed holds the failure of a GPU against the faults of the world.
func (r *run) deviceFailed(s *submission, err error) {
	if o := s.failedOp(err); o == nil || !o.copies() || !s.life.hurt {
		r.violate(OracleError, "%v: %v", s.life, err)
	}
}

// sourceFailed explains what a source says of itself when its GPU has failed.
func (o *op) sourceFailed() bool { return o != nil && o.remote.gpu && o.remote.life.hurt }

// planGPU gives the driver of the engine's process a fault.
func (r *run) planGPU(a faults.Action, fault simcuda.Fault) *life {
	l := r.life(a, faults.EngineOf)
	if l == nil || l.vault == nil {
		return nil
	}
	if a.Kind.Has(faults.Index) {
		fault.Index, fault.Count = a.Int(faults.Index), max(1, min(a.Int(faults.Count), 1<<20))
	}
	l.vault.driver.Plan(fault)
	return l
}

func (r *run) slowCopy(a faults.Action) string {
	by := a.Duration(faults.By)
	if by <= 0 || by > advanceMax {
		return absent
	}
	l := r.planGPU(a, simcuda.Fault{Kind: simcuda.SlowCopy, By: by})
	switch {
	case l == nil:
		return absent
	case by >= hungFrom:
		l.hurt, l.hung, l.doubtful, l.deaf = true, true, true, true
	default:
		l.slowed += by * time.Duration(max(1, min(a.Int(faults.Count), 1<<20)))
	}
	return "ok"
}

func (r *run) spoilCallback(a faults.Action) string {
	by := a.Duration(faults.By)
	if by < 0 || by > advanceMax {
		return absent
	}
	fault := simcuda.Fault{Kind: simcuda.DoubleCallback}
	switch a.Word(faults.Way) {
	case "lose":
		fault.Kind = simcuda.LoseCallback
	case "late":
		fault.Kind, fault.By = simcuda.LateCallback, by
	}
	l := r.planGPU(a, fault)
	if l == nil {
		return absent
	}
	l.deaf = l.deaf || fault.Kind == simcuda.LoseCallback
	return "ok"
}

// ends are the driver calls without which something is not proven to have ended, or is not given back.
var ends = map[string]bool{
	"cuStreamSynchronize": true, "cuCtxPopCurrent_v2": true, "cuMemFree_v2": true, "cuMemFreeHost": true, "cuEventDestroy_v2": true,
	"cuStreamDestroy_v2": true, "cuDevicePrimaryCtxRelease_v2": true, "cuFlushGPUDirectRDMAWrites": true,
}

func (r *run) failDriver(a faults.Action) string {
	name := a.Word(faults.DriverCall)
	plan, err := simcuda.ParsePlan("(fail-call (call " + name + ") (result CUDA_ERROR_INVALID_VALUE))")
	if err != nil {
		panic("world: " + err.Error())
	}
	if a.Bool(faults.Sticky) {
		plan[0].Result = cuda.IllegalAddress
	}
	if a.Bool(faults.Unknown) {
		plan[0].Effect = cuda.Maybe
	}
	l := r.planGPU(a, plan[0])
	if l == nil {
		return absent
	}
	moves := name == "cuMemcpyAsync" || name == "cuEventRecord" || name == "cuLaunchHostFunc" || name == "cuEventQuery" || name == "read"
	l.hurt, l.doubtful = true, l.doubtful || ends[name] || a.Bool(faults.Unknown) && !moves
	l.deaf = l.deaf || name == "cuLaunchHostFunc"
	return "ok"
}

func (r *run) loseGPU(a faults.Action) string {
	by := a.Duration(faults.By)
	if by < 0 || by > advanceMax || a.Int(faults.GPU) < 1 || a.Int(faults.GPU) > gpusMax {
		return absent
	}
	l := r.planGPU(a, simcuda.Fault{Kind: simcuda.LoseDevice, Device: a.Int(faults.GPU), At: by, Result: cuda.ECCUncorrectable})
	if l == nil {
		return absent
	}
	l.hurt, l.hung, l.doubtful, l.deaf = true, true, true, true
	return "ok"
}

// descriptors counts those that are the engine's: one of a signal is open until the last callback has come that is owed to
// it, for good if that never comes (C-5).
func (l *life) descriptors() int {
	n := l.process.Descriptors()
	if l.vault != nil && n > 0 {
		n -= l.vault.driver.Live().Signals
	}
	return n
}

// retainsGPU says whether the driver keeps something for good, for a reason that the world gave.
func (l *life) retainsGPU() bool {
	if l.vault == nil || !l.doubtful {
		return false
	}
	return l.platform(func(p *cuda.Platform) bool { return len(p.Retained()) > 0 })
}

// platform looks at what the process has open of its driver.
func (l *life) platform(look func(*cuda.Platform) bool) bool {
	p, err := cuda.Open(l.vault)
	if err != nil {
		return true // it was lost
	}
	answer := look(p)
	if err := p.Close(); err != nil && !errors.Is(err, cuda.ErrBusy) {
		return true
	}
	return answer
}

// driverLeft looks for what drivers still have when all engines have ended and all memory was given back.
func (r *run) driverLeft() {
	for _, l := range r.lives {
		if l.vault == nil || l.lost {
			continue
		}
		if l.retainsGPU() {
			r.count("cuda: retained")
			r.leaks = true
			continue
		}
		if !l.platform(func(p *cuda.Platform) bool {
			c := p.Counts()
			return c.Contexts+c.Allocations+c.Adopted+c.Pinned+c.Streams+c.Events == 0
		}) {
			r.violate(OracleLeft, "%v has CUDA objects left", l)
		}
		left := l.vault.driver.Live()
		if l.deaf {
			left.Callbacks, left.Signals = 0, 0
		}
		if left != (simcuda.Live{}) && !l.killed {
			r.violate(OracleLeft, "%v: its driver has left %+v", l, left)
		}
	}
}

// callbacks says whether all host callbacks have come that will.
func (r *run) callbacks() bool {
	for _, l := range r.lives {
		if l.vault != nil && !l.deaf && !l.killed && l.vault.driver.Live().Callbacks > 0 {
			return false
		}
	}
	return true
}

// abandonDrivers ends the drivers of all processes, for which the platforms of those that retain something stay known.
func (r *run) abandonDrivers() {
	for _, l := range r.lives {
		if l.vault != nil {
			l.vault.closed = true
			l.vault.driver.Kill()
			l.vault.flights = nil
		}
	}
}
