package orbitte

import (
	"context"
	"runtime"
	"sync"
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

// Who drives for its own submission looks for its end itself and is told nothing else, which a later one would take for its
// own: also where that ends before a lane turns.
func TestDriverIsNotToldOfItsOwnEnd(t *testing.T) {
	p := newPair(t, Config{Progress: Manual}, Config{Progress: Manual}, 4096)
	here := allocated(t, 4096)
	registered(t, p.requester, here, ReadWrite)
	own, err := p.requester.OpenSegment(soon(t), p.requester.Endpoint(), p.requester.Epoch())
	must(t, err)
	e := p.requester
	for i := range 30 {
		list := [][]Request{nil, p.whole(Read), {{Operation: Read, Segment: own, Local: here.Address(), Remote: here.Address() + 2048, Length: 1024}}}[i%3]
		if report, err := e.SubmitAndWait(soon(t), list); err != nil || report.Completed != len(list) {
			t.Fatalf("%d of %d requests: %v", report.Completed, len(list), err)
		}
		g := e.idle.Get().(*group) // with -race the pool loses some
		if len(g.done) != 0 || g.driven || !e.driver.free.Load() {
			t.Fatalf("%d requests left %d tokens, driven %v, the seat free %v", len(list), len(g.done), g.driven, e.driver.free.Load())
		}
		e.idle.Put(g)
	}
}

// Whoever waits for the driver's seat gets it when it is left, whoever else takes it in between.
func TestDriverSeatIsLeftToWhoeverWaits(t *testing.T) {
	s := driverSeat{left: make(chan struct{}, 1)}
	inside, total := 0, 0
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 2000 {
				if !s.take() {
					s.seize()
				}
				if inside++; inside != 1 {
					t.Error("two have the seat")
				}
				total++
				runtime.Gosched() // so that others want it
				inside--
				s.leave()
			}
		})
	}
	s.leave() // it begins taken
	wait.Wait()
	if total != 16000 || !s.take() {
		t.Fatalf("%d had the seat", total)
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
