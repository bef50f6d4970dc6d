package orbitte

import (
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// cudaSim is a simulated world whose processes have GPUs, each process a driver of its own.
type cudaSim struct {
	*sim
	processes  map[*simcuda.Driver]*simkernel.Process
	hosts      map[*simcuda.Driver]netip.Addr
	deliberate map[*simcuda.Driver]bool // drivers whose objects are left on purpose
}

func newCUDASim(t testing.TB, seed uint64) *cudaSim {
	t.Helper()
	return newCUDASimOn(newSim(t, seed, simkernel.WorldOptions{}))
}

func newCUDASimOn(s *sim) *cudaSim {
	return &cudaSim{sim: s, processes: map[*simcuda.Driver]*simkernel.Process{}, hosts: map[*simcuda.Driver]netip.Addr{}, deliberate: map[*simcuda.Driver]bool{}}
}

// process starts a process with a driver, which must be empty when the test ends.
func (s *cudaSim) process(name string, host netip.Addr, o simcuda.Options) *simcuda.Driver {
	s.t.Helper()
	return s.driver(name, s.Process(name, host), host, o)
}

// driver gives a process a driver.
func (s *cudaSim) driver(name string, process *simkernel.Process, host netip.Addr, o simcuda.Options) *simcuda.Driver {
	s.t.Helper()
	kernel := process.Kernel() // the driver's own: a callback may come when the engine is closed
	s.t.Cleanup(func() { must(s.t, kernel.Shutdown()) })
	o.Now = func() time.Duration { return time.Duration(s.Now()) }
	o.Later = s.Later
	o.Sleep = s.Advance
	var driver *simcuda.Driver
	o.Signal = func(*simcuda.Driver) (int, func(), func(), func(), error) {
		d, set, err := process.Signal()
		end := func() {
			if err := kernel.Close(d); err != nil && !s.deliberate[driver] {
				s.t.Errorf("closing a descriptor of %s: %v", name, err)
			}
		}
		return int(d), set, func() { process.Unsignal(d) }, end, err
	}
	driver = simcuda.New(uint64(len(s.processes))+1, o)
	s.processes[driver], s.hosts[driver] = process, host
	s.t.Cleanup(func() { driverEnds(s.t, driver, s.deliberate[driver]) })
	return driver
}

// driverEnds checks that a driver has nothing left, that no rule of its use was broken, and ends it.
func driverEnds(t testing.TB, d *simcuda.Driver, deliberate bool) {
	t.Helper()
	if left := d.Live(); left != (simcuda.Live{}) && !deliberate {
		t.Errorf("left on the driver: %+v; retained: %v", left, RetainedByCUDA())
	}
	if first, err := cuda.Open(d); err == nil && !deliberate { // once nobody has it open, each Open looks at it anew
		must(t, first.Close())
		second, err := cuda.Open(d)
		must(t, err)
		must(t, second.Close())
		if first == second {
			t.Error("somebody still has the driver open")
		}
	}
	for _, violation := range d.Violations() {
		t.Error(violation)
	}
	d.Kill()
}

// engine starts an engine in a driver's process, with CUDA unless the configuration is told otherwise.
func (s *cudaSim) engine(d *simcuda.Driver, c Config) *Engine {
	s.t.Helper()
	process := s.processes[d]
	e := newEngine(s.t, s.config(process, c, netip.AddrPortFrom(s.hosts[d], 0).String()))
	s.Add(func() bool { return e.Progress(time.Minute) })
	s.t.Cleanup(func() { closeEngine(s.t, e) })
	return e
}

// onGPU is device memory that is closed when the test ends.
func onGPU(t testing.TB, driver cuda.Calls, ordinal, length int) *Memory {
	t.Helper()
	m, err := AllocateDevice(driver, ordinal, length)
	must(t, err)
	t.Cleanup(func() { must(t, m.Close()) })
	return m
}

// peek is what device memory holds.
func peek(t testing.TB, d *simcuda.Driver, m *Memory) []byte {
	t.Helper()
	b := make([]byte, m.Len())
	if !d.Peek(cuda.Pointer(m.Address()), b) {
		t.Fatal("the memory is not there")
	}
	return b
}

func poke(t testing.TB, d *simcuda.Driver, m *Memory, b []byte) {
	t.Helper()
	if !d.Poke(cuda.Pointer(m.Address()), b) {
		t.Fatal("the memory is not there")
	}
}

// realTwin is a driver on the real clock, whose descriptors a real kernel can watch.
func realTwin(t testing.TB, o simcuda.Options) *simcuda.Driver {
	t.Helper()
	leavesNothing(t)
	began := time.Now()
	var pending atomic.Int64 // timers that will still call the driver
	o.Now = func() time.Duration { return time.Since(began) }
	o.Later = func(d time.Duration, f func()) {
		pending.Add(1)
		time.AfterFunc(d, func() {
			defer pending.Add(-1)
			f()
		})
	}
	o.Sleep = time.Sleep
	o.Signal = pipeSignal
	driver := simcuda.New(1, o)
	t.Cleanup(func() {
		driverEnds(t, driver, false)
		for pending.Load() > 0 {
			time.Sleep(time.Millisecond)
		}
	})
	return driver
}

// pipeSignal is a descriptor that is readable exactly from set to clear.
func pipeSignal(*simcuda.Driver) (descriptor int, set, clear, end func(), err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, nil, nil, nil, err
	}
	full, one := false, make([]byte, 1)
	set = func() {
		if !full {
			full = true
			_, _ = w.Write(one)
		}
	}
	clear = func() {
		if full {
			full = false
			_, _ = r.Read(one)
		}
	}
	return int(r.Fd()), set, clear, func() { _ = r.Close(); _ = w.Close() }, nil
}
