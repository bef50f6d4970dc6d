//go:build cgo

package libcuda

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/orbitte/orbitte/cuda/cudatest"
)

// counts are the objects that are in all stand-in drivers together.
func (c *control) counts() [5]int64 {
	return [5]int64{
		atomic.LoadInt64(&c.contexts), atomic.LoadInt64(&c.allocations), atomic.LoadInt64(&c.pinnedBlocks),
		atomic.LoadInt64(&c.streamCount), atomic.LoadInt64(&c.eventCount),
	}
}

// copyFake is a stand-in that nobody has loaded: a copy of the file is another driver to the loader.
func copyFake(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(buildFake(t))
	check(t, err)
	path := filepath.Join(t.TempDir(), "libcuda.so.1")
	check(t, os.WriteFile(path, text, 0o755))
	return path
}

func freshFake(t *testing.T) *library {
	t.Helper()
	l, err := load(copyFake(t), nodeFolder)
	check(t, err)
	t.Cleanup(func() { page.settle(t) })
	return l
}

// standIn is the suite's harness of a fresh stand-in with two GPUs.
func standIn(t *testing.T) cudatest.Harness {
	l := freshFake(t)
	facts := cudatest.TwinFacts()
	facts.RefusesOverrun.Why, facts.ForgetsFreed.Why, facts.Idle.Why = "testdata/fake.c", "testdata/fake.c", "testdata/fake.c"
	h := cudatest.Real(l, facts, 0, 1)
	h.Fail = func(f cudatest.Failure) {
		more := uint32(max(f.Count, 1) - 1)
		if f.Count < 0 {
			more = ^uint32(0)
		}
		// A call that failed in doubt may have done its work. So does a pop that fails: where it really leaves the context
		// on the thread, nothing can take it off.
		page.failMore(t, f.Call, uint32(f.Index)+1, more, uint32(f.Result), f.Maybe || f.Call == "cuCtxPopCurrent_v2")
	}
	before := page.counts()
	h.Done = func(kept bool) error {
		page.rules = [8]rule{}
		if after := page.counts(); after != before && !kept {
			return fmt.Errorf("contexts, allocations, pinned blocks, streams, events: %v before, %v after", before, after)
		}
		return nil
	}
	return h
}

// proves C-5
func TestTheStandInDriverConforms(t *testing.T) {
	buildFake(t) // or skip once
	for _, delay := range []uint32{0, 30} {
		t.Run(fmt.Sprintf("delay-%dus", delay), func(t *testing.T) {
			cudatest.Run(t, func(t *testing.T) cudatest.Harness {
				h := standIn(t)
				set(&page.delay, delay)
				set(&page.callbackDelay, delay)
				return h
			})
		})
	}
}

// The suite as the gate runs it on a GPU, where no call can be made to fail: what is skipped leaves nothing behind.
func TestTheStandInDriverConformsWithoutFaults(t *testing.T) {
	l := freshFake(t)
	before := page.counts()
	cudatest.Run(t, func(t *testing.T) cudatest.Harness { return cudatest.Real(l, cudatest.DriverFacts(), 0, 1) })
	if after := page.counts(); after != before {
		t.Errorf("contexts, allocations, pinned blocks, streams, events: %v before, %v after", before, after)
	}
}

// TestTheRealDriverConforms is the gate's part cudatest: all GPUs that the process sees, two at most.
func TestTheRealDriverConforms(t *testing.T) {
	l, err := load("libcuda.so.1", nodeFolder)
	for _, absent := range []error{ErrNoLibrary, ErrNoDevice, ErrTooOld, ErrStub, ErrPermission, ErrNotReady} {
		if errors.Is(err, absent) {
			t.Skipf("absent: %v", err)
		}
	}
	check(t, err)
	devices := must(l.Devices())(t)
	t.Logf("%+v", l.Library())
	var ordinals []int
	for _, d := range devices {
		t.Logf("%+v", d)
		if !d.Prohibited && len(ordinals) < 2 {
			ordinals = append(ordinals, d.Ordinal)
		}
	}
	if len(ordinals) == 0 {
		t.Skip("absent: every GPU forbids contexts")
	}
	cudatest.Run(t, func(*testing.T) cudatest.Harness {
		return cudatest.Real(l, cudatest.DriverFacts(), ordinals...)
	})
}
