package cudatest

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/cuda"
)

// Fact is something in which drivers differ.
type Fact struct {
	Holds bool
	Why   string // where it was seen
}

// Facts are what a driver does where the suite cannot ask for one answer.
type Facts struct {
	// RefusesOverrun: a copy that leaves its allocation is refused when it is submitted.
	RefusesOverrun Fact
	// ForgetsFreed: the address of freed memory is unknown at once; otherwise a pool behind cuMemFree may still know it.
	ForgetsFreed Fact
	// Idle: nobody else in the process holds a primary context, so that the last release ends it.
	Idle Fact
}

// TwinFacts are those of cuda/simcuda.
func TwinFacts() Facts {
	const why = "cuda/simcuda"
	return Facts{RefusesOverrun: Fact{true, why}, ForgetsFreed: Fact{true, why}, Idle: Fact{true, why}}
}

// DriverFacts are those of the real driver, where the reference says so.
func DriverFacts() Facts {
	return Facts{
		RefusesOverrun: Fact{false, "the reference does not promise it"},
		ForgetsFreed:   Fact{true, "cuPointerGetAttributes: memory that was not allocated by, mapped by or registered with CUDA"},
		Idle:           Fact{true, "a test binary of its own"},
	}
}

// Failure is one driver call that is to fail.
type Failure struct {
	Call   string // the C name
	Index  int    // how many of these calls pass first, from now
	Count  int    // how many are hit; 0: one; negative: all
	Result cuda.Result
	Maybe  bool // the failure leaves open whether it happened
}

// Harness is what a test sees: a driver, its GPUs, and time.
type Harness struct {
	Calls    cuda.Calls
	Ordinals []int // GPUs to test; one at least
	Facts    Facts
	// Now is the clock that deadlines are measured by.
	Now func() time.Duration
	// Pass lets what lies ahead go on for a moment: a step of a twin, a short sleep for a device. Several goroutines may
	// call it.
	Pass func()
	// Readable says whether a descriptor has something.
	Readable func(descriptor int) bool
	// Fail plans a failure. Nil: failures are not tested.
	Fail func(Failure)
	// Done is called after all of a test's objects ended; it reports what is left, beside what the owners retained, when
	// kept is true: then native objects are left on purpose. Nil: nobody knows.
	Done func(kept bool) error
}

// Real is the harness of the native library in a process that sees the GPUs.
func Real(calls cuda.Calls, facts Facts, ordinals ...int) Harness {
	began := time.Now()
	return Harness{
		Calls: calls, Ordinals: ordinals, Facts: facts,
		Now:      func() time.Duration { return time.Since(began) },
		Pass:     func() { runtime.Gosched(); time.Sleep(20 * time.Microsecond) },
		Readable: Readable,
	}
}

// Readable polls a real descriptor.
func Readable(descriptor int) bool {
	fds := []unix.PollFd{{Fd: int32(descriptor), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	for err == unix.EINTR { // the runtime preempts by a signal
		n, err = unix.Poll(fds, 0)
	}
	return err == nil && n == 1 && fds[0].Revents&unix.POLLIN != 0
}

// Eventfd makes a real descriptor for a twin's signals (simcuda.Options.Signal).
func Eventfd() (descriptor int, set, clear, end func(), err error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	one, sink := []byte{1, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 8)
	set = func() { _, _ = unix.Write(fd, one) }   // the counter cannot be full
	clear = func() { _, _ = unix.Read(fd, sink) } // empty is as good
	return fd, set, clear, func() { _ = unix.Close(fd) }, err
}

// Run runs the suite. open is called once for each test and may use t.Cleanup for what it makes.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	groups := []struct {
		name  string
		cases []conformance
	}{
		{"Life", lifeCases}, {"Memory", memoryCases}, {"Copy", copyCases}, {"Event", eventCases}, {"Signal", signalCases},
		{"Failure", failureCases}, {"Owner", ownerCases}, {"Random", randomCases},
	}
	for _, group := range groups {
		t.Run(group.name, func(t *testing.T) {
			for _, c := range group.cases {
				t.Run(c.name, func(t *testing.T) { c.run(newRig(t, open(t))) })
			}
		})
	}
}

type conformance struct {
	name string
	run  func(*rig)
}

// patience is how long the suite waits for something that must happen.
const patience = 20 * time.Second
