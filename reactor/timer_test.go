package reactor

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestTimersExpireByInstantThenByOrderOfArming(t *testing.T) {
	k := newFakeKernel()
	l := manualLoop(t, k, Options{})
	timers := make([]Timer, 5)
	at := []Instant{1030, 1010, 1020, 1010, 1010}
	var got []int
	h := timerFunc(func(timer *Timer, now Instant) {
		for i := range timers {
			if timer == &timers[i] {
				got = append(got, i)
			}
		}
		if now < timer.At() || timer.Armed() {
			t.Errorf("timer for %d expires at %d, armed %v", timer.At(), now, timer.Armed())
		}
	})
	for i := range timers {
		l.Arm(&timers[i], at[i], h)
	}
	l.Arm(&timers[1], 1010, h) // armed anew: behind the others of its instant
	for len(got) < 5 {
		l.Turn(Forever)
	}
	if want := []int{3, 4, 1, 2, 0}; !slices.Equal(got, want) {
		t.Fatalf("expired in order %v, wanted %v", got, want)
	}
}

func TestTurnWaitsNoLongerThanTheNextTimer(t *testing.T) {
	k := newFakeKernel()
	l := manualLoop(t, k, Options{})
	var timer Timer
	l.Arm(&timer, 5000, timerFunc(func(*Timer, Instant) {}))
	if !l.Turn(9000) {
		t.Fatal("the timer did not expire in the turn that waited for it")
	}
	if k.untils[0] != 5000 || l.Now() != 5000 {
		t.Fatalf("polled until %d, now %d", k.untils[0], l.Now())
	}
	l.Turn(7000)
	if k.untils[1] != 7000 {
		t.Fatalf("polled until %d without timers", k.untils[1])
	}
}

func TestTimerMayBeArmedAndDisarmedWhileTimersExpire(t *testing.T) {
	k := newFakeKernel()
	l := manualLoop(t, k, Options{})
	var a, b, c Timer
	var got []string
	l.Arm(&a, 1001, timerFunc(func(*Timer, Instant) {
		got = append(got, "a")
		l.Disarm(&b)
		l.Disarm(&b) // fine when not armed
		l.Arm(&c, 1002, timerFunc(func(*Timer, Instant) { got = append(got, "c") }))
	}))
	l.Arm(&b, 1001, timerFunc(func(*Timer, Instant) { got = append(got, "b") }))
	k.now.Store(2000)
	l.Turn(Past)
	if !slices.Equal(got, []string{"a", "c"}) {
		t.Fatalf("expired %v", got)
	}
}

func TestTimerArmedOnTwoLoopsPanics(t *testing.T) {
	a, b := manualLoop(t, newFakeKernel(), Options{}), manualLoop(t, newFakeKernel(), Options{})
	var timer Timer
	h := timerFunc(func(*Timer, Instant) {})
	a.Arm(&timer, 5000, h)
	mustPanic(t, func() { b.Arm(&timer, 5000, h) })
	mustPanic(t, func() { b.Disarm(&timer) })
	a.Disarm(&timer)
	b.Arm(&timer, 5000, h)
}

func mustPanic(t *testing.T, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	f()
}

// Replay: set seed to the printed number.
func TestTimerHeapAgreesWithSorting(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	var heap timerHeap
	timers := make([]Timer, 200)
	armed := map[*Timer]bool{}
	h := timerFunc(func(*Timer, Instant) {})
	for now := Instant(0); now < 3000; now++ {
		timer := &timers[random.IntN(len(timers))]
		if random.IntN(3) == 0 {
			heap.disarm(timer)
			delete(armed, timer)
		} else {
			heap.arm(timer, now+Instant(random.IntN(300)), h)
			armed[timer] = true
		}
		for {
			var want *Timer
			for timer := range armed {
				if timer.at <= now && (want == nil || timer.at < want.at || timer.at == want.at && timer.order < want.order) {
					want = timer
				}
			}
			got, _ := heap.expire(now)
			if got != want {
				t.Fatalf("at %d: expired %p, wanted %p", now, got, want)
			}
			if got == nil {
				break
			}
			delete(armed, got)
		}
		if len(heap.entries) != len(armed) {
			t.Fatalf("at %d: %d in the heap, %d armed", now, len(heap.entries), len(armed))
		}
	}
}
