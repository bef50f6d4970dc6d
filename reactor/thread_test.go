package reactor

import (
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestRunBindsItsThreadToTheChosenCPU(t *testing.T) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	cpu := 0
	for !allowed.IsSet(cpu) {
		cpu++
	}
	k := newFakeKernel()
	var inside unix.CPUSet
	k.onPoll = func() { _ = unix.SchedGetaffinity(0, &inside) }
	l := NewLoop(k, Options{Mode: Busy, CPUs: []int{cpu}})
	runFor(t, l, k, 1)
	if inside.Count() != 1 || !inside.IsSet(cpu) {
		t.Fatalf("the loop may run on %d CPUs", inside.Count())
	}
	if s := l.Stats(); len(s.CPUs) != 1 || s.CPUs[0] != cpu {
		t.Fatalf("stats show CPUs %v", s.CPUs)
	}
}

func TestImpossibleAffinityIsATypedError(t *testing.T) {
	for _, cpus := range [][]int{{-1}, {1023}, {1 << 20}, {0, 1 << 20}} {
		l := NewLoop(newFakeKernel(), Options{Name: "lane 3", CPUs: cpus})
		l.Stop() // a loop that could be bound returns at once
		ran := make(chan error)
		go func() { ran <- l.Run() }()
		err := <-ran
		var affinity *AffinityError
		if !errors.As(err, &affinity) || !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "lane 3") {
			t.Fatalf("CPUs %v: %v", cpus, err)
		}
	}
}

func TestTheTimeAThreadWaitedForACPUIsRead(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if a, b := waitedForCPU(), waitedForCPU(); b < a || a < 0 {
		t.Fatalf("went from %v to %v", a, b)
	}
	for text, want := range map[string]time.Duration{"335760425 51129797 943\n": 51129797, "7 0 1\n": 0, "": 0, "12": 0, "1 25": 25} {
		if got := secondNumber([]byte(text)); got != want {
			t.Errorf("%q gave %v, wanted %v", text, got, want)
		}
	}
}

func TestSpinningGetsShorterWhenOthersWantTheCPU(t *testing.T) {
	s := newSpinner(16 * time.Microsecond)
	now, waited := Instant(1), time.Second
	sample := func(more time.Duration) time.Duration {
		now, waited = now.After(spinSampleEvery), waited+more
		if !s.due(now) {
			t.Fatal("a sample was due")
		}
		s.observe(now, waited)
		return s.current
	}
	if got := sample(time.Second); got != 16*time.Microsecond {
		t.Fatalf("the first reading has nothing to compare with, and set %v", got)
	}
	if s.due(now + 1) {
		t.Fatal("samples follow each other at once")
	}
	const little, much = spinSampleEvery / spinWaitedPart, spinSampleEvery/spinWaitedPart + 1
	for i, step := range []struct{ waited, want time.Duration }{
		// Two threads of one CPU are parted within a few samples.
		{much, 16000}, {much, 16000}, {much, 16000}, {little, 16000},
		// Others who stay are not.
		{much, 16000}, {much, 16000}, {much, 16000}, {much, 8000}, {much, 4000}, {little, 8000}, {0, 16000},
		{much, 16000}, {much, 16000}, {much, 16000}, {much, 8000}, {much, 4000}, {much, 2000}, {much, 0}, {much, 0},
		{0, 2000}, {0, 4000}, {0, 8000}, {0, 16000}, {0, 16000},
	} {
		if got := sample(step.waited); got != step.want {
			t.Fatalf("step %d: %v of waiting gave %v, wanted %v", i, step.waited, got, step.want)
		}
	}
	s.worked(now, spinBulkBytes-1)
	if s.patience(now) != Past || s.patience(now.After(16*time.Microsecond)) != Forever {
		t.Fatal("spins for another time than its own")
	}
	s.worked(now, spinBulkBytes)
	s.worked(now, 1) // a header behind the payload
	if s.patience(now.After(160*time.Microsecond-1)) != Past || s.patience(now.After(160*time.Microsecond)) != Forever {
		t.Fatal("spins for another time than payload asks for")
	}
	if d := newSpinner(0); d.longest != spinDefault {
		t.Fatalf("default %v", d.longest)
	}
}

func TestInstantsSaturate(t *testing.T) {
	if Instant(5).After(-time.Second) != 5 || Instant(5).After(7) != 12 {
		t.Fatal("After adds wrongly")
	}
	if Forever.After(1) != Forever || (Forever-3).After(math.MaxInt64) != Forever {
		t.Fatal("After wraps")
	}
	if l := Adaptive; l.String() != "adaptive" || EventDriven.String() != "event" || Busy.String() != "busy" || Manual.String() != "manual" || Mode(9).String() != "Mode(9)" {
		t.Fatal("names of modes")
	}
}
