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

func TestInvoluntarySwitchesAreRead(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if a, b := involuntarySwitches(), involuntarySwitches(); b < a {
		t.Fatalf("went from %d to %d", a, b)
	}
}

func TestSpinningGetsShorterWhenOthersWantTheCPU(t *testing.T) {
	s := newSpinner(16 * time.Microsecond)
	now, switches := Instant(1), uint64(1000)
	sample := func(grown uint64) time.Duration {
		now, switches = now.After(spinSampleEvery), switches+grown
		if !s.due(now) {
			t.Fatal("a sample was due")
		}
		s.observe(now, switches)
		return s.current
	}
	if got := sample(500); got != 16*time.Microsecond {
		t.Fatalf("the first reading has nothing to compare with, and set %v", got)
	}
	if s.due(now + 1) {
		t.Fatal("samples follow each other at once")
	}
	for _, step := range []struct {
		grown uint64
		want  time.Duration
	}{
		{3, 8 * time.Microsecond}, {9, 4 * time.Microsecond}, {2, 8 * time.Microsecond}, {100, 4 * time.Microsecond},
		{100, 2 * time.Microsecond}, {100, 0}, {100, 0}, {0, 2 * time.Microsecond}, {0, 4 * time.Microsecond},
		{0, 8 * time.Microsecond}, {0, 16 * time.Microsecond}, {0, 16 * time.Microsecond},
	} {
		if got := sample(step.grown); got != step.want {
			t.Fatalf("%d switches gave %v, wanted %v", step.grown, got, step.want)
		}
	}
	s.worked(now)
	if s.patience(now) != Past || s.patience(now.After(16*time.Microsecond)) != Forever {
		t.Fatal("spins for another time than its own")
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
