package reactor

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestLettersArriveInOrderAndCoalesce(t *testing.T) {
	l := manualLoop(t, newFakeKernel(), Options{})
	letters := make([]Letter, 5)
	var got []int
	r := recipientFunc(func(m *Letter, _ Instant) {
		if m.Waiting() {
			t.Error("a letter still waits when it is received")
		}
		for i := range letters {
			if m == &letters[i] {
				got = append(got, i)
			}
		}
	})
	other := recipientFunc(func(*Letter, Instant) { t.Error("a coalesced letter went to its second recipient") })
	for i := range letters {
		if err := l.Post(&letters[i], r); err != nil {
			t.Fatal(err)
		}
		if err := l.Post(&letters[i], other); err != nil || !letters[i].Waiting() {
			t.Fatalf("second post: %v, waiting %v", err, letters[i].Waiting())
		}
	}
	l.Turn(Forever) // must not block: there are letters
	if !slices.Equal(got, []int{0, 1, 2, 3, 4}) {
		t.Fatalf("received %v", got)
	}
	if l.Turn(Past) {
		t.Fatal("a letter was received again")
	}
}

func TestLetterPostedWhileReceivedWaitsForTheNextTurn(t *testing.T) {
	l := manualLoop(t, newFakeKernel(), Options{})
	var m Letter
	received := 0
	var r recipientFunc
	r = func(m *Letter, _ Instant) {
		received++
		if err := l.Post(m, r); err != nil {
			t.Error(err)
		}
	}
	_ = l.Post(&m, r)
	for turn := 1; turn <= 3; turn++ {
		l.Turn(Forever)
		if received != turn {
			t.Fatalf("after turn %d received %d times", turn, received)
		}
	}
}

func TestPostWakesOnlyASleepingLoop(t *testing.T) {
	k := newFakeKernel()
	l := manualLoop(t, k, Options{})
	var a, b, c Letter
	r := recipientFunc(func(*Letter, Instant) {})
	_ = l.Post(&a, r)
	if k.wakes.Load() != 0 {
		t.Fatal("Post woke a loop that is awake")
	}
	l.Turn(Past)
	k.onPoll = func() { // the loop is on its way to sleep
		_ = l.Post(&b, r)
		_ = l.Post(&c, r)
	}
	l.Turn(Forever)
	if k.wakes.Load() != 1 {
		t.Fatalf("two letters for one sleep made %d wake-ups", k.wakes.Load())
	}
}

func TestCloseDeliversWhatWasAcceptedAndRefusesTheRest(t *testing.T) {
	k := newFakeKernel()
	l := manualLoop(t, k, Options{Letters: 1})
	var a, b, c Letter
	got := 0
	r := recipientFunc(func(*Letter, Instant) {
		got++
		if err := l.Post(&c, ignoreLetter); !errors.Is(err, ErrStopped) || c.Waiting() {
			t.Errorf("post into a closing loop: %v", err)
		}
	})
	_ = l.Post(&a, r)
	_ = l.Post(&b, r)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got != 2 || k.shutdowns != 1 {
		t.Fatalf("%d letters received, %d shutdowns", got, k.shutdowns)
	}
	if err := l.Post(&a, r); !errors.Is(err, ErrStopped) {
		t.Fatalf("post after close: %v", err)
	}
}

var ignoreLetter = recipientFunc(func(*Letter, Instant) {})

// Each accepted letter is received exactly once, whoever else posts and whenever the loop closes.
func TestPostersRacingCloseLoseNoAcceptedLetter(t *testing.T) {
	const posters = 4
	for range 200 {
		k := newFakeKernel()
		l := NewLoop(k, Options{Mode: EventDriven})
		var accepted, received atomic.Int64
		count := recipientFunc(func(*Letter, Instant) { received.Add(1) })
		var group sync.WaitGroup
		for range posters {
			group.Go(func() {
				for {
					if l.Post(new(Letter), count) != nil {
						return
					}
					accepted.Add(1)
					runtime.Gosched()
				}
			})
		}
		ran := make(chan error)
		go func() { ran <- l.Run() }()
		for accepted.Load() < 20 {
			runtime.Gosched()
		}
		l.Stop()
		if err := <-ran; err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		group.Wait()
		if accepted.Load() != received.Load() {
			t.Fatalf("%d letters accepted, %d received", accepted.Load(), received.Load())
		}
	}
}

// A wake-up that is lost leaves the loop asleep for ever: each poster waits for its letter before it
// posts the next one, so that the loop goes to sleep all the time.
func TestNoWakeUpIsLost(t *testing.T) {
	for _, mode := range []Mode{EventDriven, Adaptive} {
		t.Run(mode.String(), func(t *testing.T) {
			k := newFakeKernel()
			k.step = 1
			l := NewLoop(k, Options{Mode: mode, Spin: time.Nanosecond})
			ran := make(chan error)
			go func() { ran <- l.Run() }()
			var group sync.WaitGroup
			for range 3 {
				group.Go(func() {
					var m Letter
					back := make(chan struct{}, 1)
					r := recipientFunc(func(*Letter, Instant) { back <- struct{}{} })
					for range 5000 {
						if err := l.Post(&m, r); err != nil {
							t.Error(err)
							return
						}
						select {
						case <-back:
						case <-time.After(20 * time.Second):
							t.Error("a letter was not received: the wake-up was lost")
							return
						}
					}
				})
			}
			group.Wait()
			l.Stop()
			if err := <-ran; err != nil {
				t.Fatal(err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if s := l.Stats(); s.Letters != 15000 || s.Sleeps == 0 {
				t.Fatalf("%d letters, %d sleeps", s.Letters, s.Sleeps)
			}
		})
	}
}
