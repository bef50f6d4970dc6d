package reactor

import "testing"

// shelf is a queue that a test fills.
type shelf struct {
	ready int
	owed  bool
	asked []int
	taken int
	then  func()
}

func (s *shelf) Owed() bool { return s.owed }

func (s *shelf) Collect(budget int, _ Instant) int {
	n := min(budget, s.ready)
	s.asked, s.ready, s.taken = append(s.asked, budget), s.ready-n, s.taken+n
	if s.then != nil {
		s.then()
	}
	return n
}

// proves L-2, R-19: a loop does not block while a queue owes something, and blocks again afterwards.
func TestLoopDoesNotBlockWhileAQueueOwes(t *testing.T) {
	k := newFakeKernel()
	l := manualLoop(t, k, Options{})
	q := &shelf{owed: true}
	l.Attach(q)
	until := k.Now() + 1000
	for range 3 {
		if l.Turn(until) {
			t.Fatal("a turn without work said that it worked")
		}
	}
	if k.waits.Load() != 0 {
		t.Fatal("the loop blocked although completions were owed")
	}
	q.ready = 1
	if !l.Turn(until) || q.taken != 1 {
		t.Fatalf("took %d", q.taken)
	}
	q.owed = false
	l.Turn(until)
	if k.waits.Load() != 1 {
		t.Fatal("the loop did not block although nothing was owed")
	}
}

// proves L-2: queues share one turn's budget of completions, and a full one starves no other.
func TestQueuesShareTheBudgetOfATurn(t *testing.T) {
	l := manualLoop(t, newFakeKernel(), Options{Completions: 8})
	a, b, c := &shelf{ready: 1000}, &shelf{ready: 1000}, &shelf{ready: 3}
	for _, q := range []*shelf{a, b, c} {
		l.Attach(q)
	}
	for turn := 1; turn <= 30; turn++ {
		before := a.taken + b.taken + c.taken
		l.Turn(Past)
		if n := a.taken + b.taken + c.taken - before; n > 8 {
			t.Fatalf("turn %d took %d", turn, n)
		}
	}
	if c.taken != 3 || a.taken < 90 || b.taken < 90 {
		t.Fatalf("30 turns of 8: %d, %d and %d of 3", a.taken, b.taken, c.taken)
	}
}

func TestQueueMayBeDetachedWhileItIsCollected(t *testing.T) {
	l := manualLoop(t, newFakeKernel(), Options{})
	a, b := &shelf{ready: 1000, owed: true}, &shelf{ready: 1000, owed: true}
	a.then = func() { l.Detach(a); l.Detach(a) }
	l.Attach(a)
	l.Attach(b)
	for range 4 {
		l.Turn(Past)
	}
	if len(a.asked) != 1 || len(b.asked) != 4 {
		t.Fatalf("collected %d and %d times", len(a.asked), len(b.asked))
	}
}

// A loop that looks again and again at a queue that owes lets others have its CPU, after a number of vain looks in a row;
// one that was given a CPU of its own does not, nor does one that finds something.
//
// proves L-2, L-4
func TestLoopYieldsBetweenVainLooks(t *testing.T) {
	const turns = 20 * looksBeforeYield
	for _, c := range []struct {
		mode   Mode
		every  int // looks between completions; 0: none come
		yields bool
	}{{EventDriven, 0, true}, {Adaptive, 0, true}, {EventDriven, looksBeforeYield, false}, {Busy, 0, false}} {
		k := newFakeKernel()
		l := NewLoop(k, Options{Mode: c.mode})
		q := &shelf{owed: true}
		looks := 0
		q.then = func() {
			if looks++; c.every > 0 && looks%c.every == 0 {
				q.ready = 1
			}
			q.asked = q.asked[:0]
		}
		l.Attach(q)
		runFor(t, l, k, turns)
		if y, n := l.Stats().Yields, l.Stats().Turns; c.yields && (y < n-2*looksBeforeYield || y > n-looksBeforeYield) || !c.yields && y > 0 {
			t.Errorf("%v, completions each %d looks: %d yields in %d turns", c.mode, c.every, y, n)
		}
	}
}
