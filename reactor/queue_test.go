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
