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

// A busy loop keeps its processor only while callers have one as well. Were it otherwise, each of these round trips would
// take the 10 ms after which the runtime takes a processor away, and some 100,000 turns.
//
// proves L-4
func TestBusyLoopOnTheOnlyProcessorLetsItsCallersRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	l := NewLoop(newFakeKernel(), Options{Mode: Busy})
	ended := make(chan error)
	go func() { ended <- l.Run() }()
	const calls = 50
	for range calls {
		var letter Letter
		received := make(chan struct{})
		if err := l.Post(&letter, recipientFunc(func(*Letter, Instant) { close(received) })); err != nil {
			t.Fatal(err)
		}
		<-received
	}
	l.Stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if turns := l.Stats().Turns; turns > calls*20*looksBeforeParting {
		t.Errorf("%d calls took %d turns", calls, turns)
	}
	if n := spinning.Load(); n != 0 {
		t.Errorf("%d places are taken by nobody", n)
	}
}
