package simcuda_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/cudatest"
	"github.com/orbitte/orbitte/cuda/simcuda"
)

// seedOf is a test's seed: from ORBITTE_SEED, or a new one. It prints how to replay.
func seedOf(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("ORBITTE_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("SEED=%d (replay: ORBITTE_SEED=%d go test -run '%s' ./cuda/simcuda)", seed, seed, t.Name())
	return seed
}

// newDriver makes a driver that ends with its test; broken rules fail the test.
func newDriver(t testing.TB, o simcuda.Options) *simcuda.Driver {
	if o.Violation == nil {
		o.Violation = func(err error) { t.Error(err) }
	}
	d := simcuda.New(seedOf(t), o)
	t.Cleanup(d.Kill)
	return d
}

// harness is two GPUs whose clock moves when a test waits, or a real clock.
func harness(t *testing.T, d *simcuda.Driver, real bool) cudatest.Harness {
	h := cudatest.Harness{
		Calls: d, Ordinals: []int{0, 1}, Facts: cudatest.TwinFacts(), Now: d.Now, Readable: d.Readable,
		Pass: func() {
			if !d.Step() {
				d.Advance(time.Microsecond)
			}
		},
		Fail: func(f cudatest.Failure) {
			effect := ""
			if f.Maybe {
				effect = "(effect maybe)"
			}
			plan, err := simcuda.ParsePlan(fmt.Sprintf("(fail-call (call %s) (index %d) (count %d) (result %d) %s)", f.Call, f.Index, f.Count, f.Result, effect))
			if err != nil {
				t.Fatal(err)
			}
			d.Plan(plan...)
		},
		Done: func(kept bool) error {
			if left := d.Live(); left != (simcuda.Live{}) && !kept {
				return fmt.Errorf("objects are left: %+v", left)
			}
			return nil
		},
	}
	if real {
		real := cudatest.Real(d, cudatest.TwinFacts(), 0, 1)
		h.Now, h.Pass, h.Readable = real.Now, real.Pass, real.Readable
	}
	return h
}

func TestTheTwinConforms(t *testing.T) {
	cudatest.Run(t, func(t *testing.T) cudatest.Harness { return harness(t, newDriver(t, simcuda.Options{}), false) })
}

// With a real clock and real descriptors nothing but calls and timers moves the twin.
func TestTheTwinConformsInRealTime(t *testing.T) {
	cudatest.Run(t, func(t *testing.T) cudatest.Harness {
		began := time.Now()
		d := newDriver(t, simcuda.Options{
			Now: func() time.Duration { return time.Since(began) }, Sleep: time.Sleep, Signal: func(*simcuda.Driver) (int, func(), func(), func(), error) { return cudatest.Eventfd() },
			Later: func(d time.Duration, f func()) { time.AfterFunc(d, f) },
		})
		return harness(t, d, true)
	})
}

var _ cuda.Calls = (*simcuda.Driver)(nil)

func closeDescriptor(d int) error { return syscall.Close(d) }
