package reactor

import (
	"runtime"
	"testing"
	"time"
)

// proves L-4: a caller that a lane wakes needs one of the Go scheduler's processors, and a thread that spins keeps its own.
func TestLoopsThatSpinLeaveAProcessorToTheirCallers(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	worked := func() *Loop {
		l := NewLoop(newFakeKernel(), Options{Spin: time.Millisecond})
		l.spinner.worked(l.now, 0)
		return l
	}
	first, second := worked(), worked()
	if first.patience() != Past {
		t.Fatal("a loop that is alone does not spin")
	}
	if first.patience() != Past || second.patience() != Forever || second.patience() != Forever {
		t.Fatal("two loops spin on both processors")
	}
	first.now = first.spinner.end
	if first.patience() != Forever || second.patience() != Past {
		t.Fatal("the place of a loop that blocks is not free")
	}
	second.rise()
	runtime.GOMAXPROCS(1)
	if first = worked(); first.patience() != Forever {
		t.Fatal("a loop spins on the only processor")
	}
	if n := spinning.Load(); n != 0 {
		t.Fatal(n, " places are taken by nobody")
	}
}
