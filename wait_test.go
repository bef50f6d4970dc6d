package orbitte

import (
	"context"
	"testing"

	"github.com/orbitte/orbitte/reactor/simkernel"
)

// proves L-3: of two ends that come in one turn chance does not choose: what was waited for counts.
func TestWaitWhoseContextEndsInTheSameTurnSaysDone(t *testing.T) {
	s := newSim(t, 1, simkernel.WorldOptions{})
	e, _ := s.engine("one", hostA, Config{})
	for range 100 {
		ctx, cancel := context.WithCancel(context.Background())
		c := &call{do: cancel, done: make(chan struct{})}
		must(t, e.runners[0].lane.Post(&c.letter, c))
		if err := e.waitOn(ctx, c.done, nil); err != nil {
			t.Fatalf("the wait ended with %v although it had its end", err)
		}
	}
}

// proves L-3: a wait whose context ended before returns at once; it does not drive the lanes now and then.
func TestWaitWithAnEndedContextDrivesNothing(t *testing.T) {
	s := newSim(t, 2, simkernel.WorldOptions{})
	e, _ := s.engine("one", hostA, Config{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	before := e.Stats().Lanes[0].Loop.Turns
	for range 100 {
		if err := e.waitOn(ctx, make(chan struct{}), nil); err == nil {
			t.Fatal("a wait for nothing succeeded")
		}
	}
	if after := e.Stats().Lanes[0].Loop.Turns; after != before {
		t.Fatalf("waits that were over before they began took %d turns", after-before)
	}
}
