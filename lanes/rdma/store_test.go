package rdma

import (
	"errors"
	"slices"
	"testing"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"pgregory.net/rapid"
)

func key(n uint64) ArrayKey {
	return ArrayKey{Role: Requester, Direction: lanes.Read, LocalDomain: 1, RemoteDomain: n}
}

func newStore(places int64) (*Store, *budgets.Budget) {
	b := budgets.New("endpoints", "queue pairs", places)
	return NewStore(b), b
}

func want(t *testing.T, a Answer, step Step) *Array {
	t.Helper()
	if a.Step != step {
		t.Fatalf("%+v, want step %d", a, step)
	}
	return a.Array
}

// proves R-10
func TestPlacesAreChargedBeforeTheBuildAndUntilTheDestruction(t *testing.T) {
	s, b := newStore(8)
	a := want(t, s.Acquire(key(1), 4, &Waiter{}), Build)
	if b.Used() != 4 || a.State() != Building {
		t.Fatal(b.Used(), a.State())
	}
	s.Built(a, nil)
	if !errors.Is(errorOf(s.Acquire(key(2), 5, &Waiter{})), budgets.ErrExhausted) {
		t.Fatal("a build without places")
	}
	if s.Release(a) || s.Retire(a) != true || a.State() != Ending || b.Used() != 4 {
		t.Fatal(a.State(), b.Used())
	}
	s.Ended(a, nil)
	if b.Used() != 0 || a.State() != Gone {
		t.Fatal(a.State(), b.Used())
	}
	if Width(6, 4) != 4 || Width(0, 9) != 1 || Width(99, 99) != 32 {
		t.Error("width")
	}
}

func errorOf(a Answer) error { return a.Err }

// proves R-10
func TestWaitersOfOneBuildLeaveByTheirOwnDeadlines(t *testing.T) {
	s, _ := newStore(8)
	a := want(t, s.Acquire(key(1), 1, &Waiter{}), Build)
	waiters := []*Waiter{{Deadline: 30}, {Deadline: 10}, {Deadline: 20}, {Deadline: 40}}
	for _, w := range waiters {
		want(t, s.Acquire(key(1), 1, w), Wait)
	}
	if next, ok := s.Next(); !ok || next != 10 {
		t.Fatal(next, ok)
	}
	if gone := s.Expire(20, nil); !slices.Equal(gone, []*Waiter{waiters[1], waiters[2]}) || waiters[1].Waiting() || !waiters[0].Waiting() {
		t.Fatalf("%v", gone)
	}
	s.Leave(waiters[0])
	answers := s.Built(a, nil)
	if len(answers) != 1 || answers[0].Waiter != waiters[3] || answers[0].Step != Use || a.Users() != 2 {
		t.Fatalf("%+v, %d users", answers, a.Users())
	}
	if _, ok := s.Next(); ok {
		t.Fatal("somebody still waits")
	}
	b := want(t, s.Acquire(key(1), 1, &Waiter{}), Use)
	if b != a || a.Users() != 3 {
		t.Fatal("not shared")
	}
}

// proves R-10
func TestOnlyTheLongestIdleArrayIsEvicted(t *testing.T) {
	s, b := newStore(3)
	var arrays []*Array
	for n := range uint64(3) {
		a := want(t, s.Acquire(key(n), 1, &Waiter{}), Build)
		s.Built(a, nil)
		arrays = append(arrays, a)
	}
	if got := s.Acquire(key(9), 1, &Waiter{}); got.Step != Refuse || got.Evict != nil {
		t.Fatalf("%+v with all in use", got)
	}
	s.Release(arrays[2])
	s.Release(arrays[1])
	want(t, s.Acquire(key(1), 1, &Waiter{}), Use)
	s.Release(arrays[1])
	w, behind := &Waiter{}, &Waiter{}
	got := s.Acquire(key(9), 1, w)
	if got.Step != Wait || got.Evict != arrays[2] || arrays[2].State() != Ending {
		t.Fatalf("%+v", got)
	}
	if got = s.Acquire(key(10), 1, behind); got.Step != Wait || got.Evict != nil {
		t.Fatalf("a second eviction before the first proved too few: %+v", got)
	}
	answers := s.Ended(arrays[2], nil)
	if len(answers) != 2 || answers[0].Step != Build || answers[0].Waiter != w || answers[1].Evict != arrays[1] || !behind.Waiting() {
		t.Fatalf("%+v", answers)
	}
	if answers = s.Retained(arrays[1], nil); len(answers) != 1 || answers[0].Step != Refuse || answers[0].Waiter != behind {
		t.Fatalf("with nothing on its way: %+v", answers)
	}
	if b.Used() != 3 {
		t.Fatal(b.Used())
	}
}

// proves
func TestFailedBuildAndFailedPairLeaveNobodyWaiting(t *testing.T) {
	s, b := newStore(4)
	why := errors.New("no route")
	a := want(t, s.Acquire(key(1), 2, &Waiter{}), Build)
	w := &Waiter{}
	want(t, s.Acquire(key(1), 2, w), Wait)
	answers := s.BuildFailed(a, why, true, nil)
	if len(answers) != 1 || answers[0].Waiter != w || answers[0].Err != why || a.State() != Ending || b.Used() != 2 {
		t.Fatalf("%+v", answers)
	}
	again := want(t, s.Acquire(key(1), 2, &Waiter{}), Build)
	if again == a {
		t.Fatal("an array that failed was used again")
	}
	s.Ended(a, nil)
	s.Built(again, nil)
	want(t, s.Acquire(key(1), 2, &Waiter{}), Use)
	if s.Fence(again, why) || again.State() != Retiring || again.Fault() != why {
		t.Fatal(again.State())
	}
	third := want(t, s.Acquire(key(1), 2, &Waiter{}), Build)
	if s.Release(again) || !s.Release(again) {
		t.Fatal("it ends with its last user, not before")
	}
	s.Ended(again, nil)
	s.BuildFailed(third, why, false, nil)
	if b.Used() != 0 {
		t.Fatal(b.Used())
	}
}

func TestPairsGoRound(t *testing.T) {
	a := &Array{Width: 3}
	var got []int
	for range 7 {
		got = append(got, a.Pair())
	}
	if !slices.Equal(got, []int{0, 1, 2, 0, 1, 2, 0}) {
		t.Fatal(got)
	}
}

func TestTakingAReadyArrayAllocatesNothing(t *testing.T) {
	s, _ := newStore(4)
	s.Built(want(t, s.Acquire(key(1), 1, &Waiter{}), Build), nil)
	w := &Waiter{}
	if n := testing.AllocsPerRun(100, func() {
		a := s.Acquire(key(1), 1, w)
		s.Release(a.Array)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// storeModel keeps its own account of every caller.
type storeModel struct {
	s        *Store
	b        *budgets.Budget
	building []*Array
	holders  []*Array
	ending   []*Array
	kept     int64
	waiting  map[*Waiter]bool
}

func (m *storeModel) take(t *rapid.T, answers ...Answer) {
	for _, a := range answers {
		if a.Evict != nil {
			for _, h := range m.holders {
				if h == a.Evict {
					t.Fatal("a busy array was evicted")
				}
			}
			m.ending = append(m.ending, a.Evict)
		}
		if a.Waiter != nil {
			if !m.waiting[a.Waiter] || a.Waiter.Waiting() {
				t.Fatal("an answer for somebody who does not wait, or waits on")
			}
			delete(m.waiting, a.Waiter)
		}
		switch a.Step {
		case Use:
			if a.Array.State() != Ready {
				t.Fatalf("to be used, and %s", a.Array.State())
			}
			m.holders = append(m.holders, a.Array)
		case Build:
			m.building = append(m.building, a.Array)
		}
	}
}

func pull[T any](t *rapid.T, list *[]T) T {
	if len(*list) == 0 {
		t.Skip("none")
	}
	i := rapid.IntRange(0, len(*list)-1).Draw(t, "which")
	x := (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	return x
}

func (m *storeModel) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"acquire": func(t *rapid.T) {
			w := &Waiter{Deadline: rapid.Int64Range(0, 9).Draw(t, "deadline")}
			a := m.s.Acquire(key(rapid.Uint64Range(0, 5).Draw(t, "key")), rapid.IntRange(1, 3).Draw(t, "width"), w)
			if a.Step == Wait {
				m.waiting[w] = true
			}
			m.take(t, a)
		},
		"built": func(t *rapid.T) {
			a := pull(t, &m.building)
			m.take(t, m.s.Built(a, nil)...)
			m.holders = append(m.holders, a)
		},
		"build failed": func(t *rapid.T) {
			a, left := pull(t, &m.building), rapid.Bool().Draw(t, "left")
			m.take(t, m.s.BuildFailed(a, errors.New("x"), left, nil)...)
			if left {
				m.ending = append(m.ending, a)
			}
		},
		"release": func(t *rapid.T) {
			if a := pull(t, &m.holders); m.s.Release(a) {
				m.ending = append(m.ending, a)
			}
		},
		"fence": func(t *rapid.T) {
			if len(m.holders) == 0 {
				t.Skip("none")
			}
			m.s.Fence(rapid.SampledFrom(m.holders).Draw(t, "array"), errors.New("x"))
		},
		"ended": func(t *rapid.T) { m.take(t, m.s.Ended(pull(t, &m.ending), nil)...) },
		"retained": func(t *rapid.T) {
			a := pull(t, &m.ending)
			m.kept += int64(a.Width)
			m.take(t, m.s.Retained(a, nil)...)
		},
		"expire": func(t *rapid.T) {
			for _, w := range m.s.Expire(rapid.Int64Range(0, 9).Draw(t, "now"), nil) {
				if !m.waiting[w] {
					t.Fatal("expired, and did not wait")
				}
				delete(m.waiting, w)
			}
		},
		"": m.check,
	}
}

func (m *storeModel) check(t *rapid.T) {
	sum := int64(0)
	users := map[*Array]int{}
	for _, h := range append(slices.Clone(m.holders), m.building...) {
		users[h]++
	}
	keys := map[ArrayKey]int{}
	m.s.Each(func(a *Array) {
		sum += int64(a.Width)
		if a.State() != Retained && a.Users() != users[a] {
			t.Fatalf("%d users of an array that is %s, the model says %d", a.Users(), a.State(), users[a])
		}
		if a.State() == Building || a.State() == Ready {
			keys[a.Key]++
		}
	})
	if sum != m.b.Used() || sum > m.b.Limit() {
		t.Fatalf("arrays of %d pairs, %d charged of %d", sum, m.b.Used(), m.b.Limit())
	}
	for k, n := range keys {
		if n != 1 {
			t.Fatalf("%d arrays for %+v", n, k)
		}
	}
	for w := range m.waiting {
		if !w.Waiting() {
			t.Fatal("a waiter was dropped without an answer")
		}
	}
	if len(m.waiting) > 0 && len(m.building)+len(m.ending) == 0 {
		t.Fatal("somebody waits and nothing is on its way")
	}
}

// proves R-10
func TestEveryWaiterIsAnsweredOnceAndPlacesAddUp(t *testing.T) {
	seeded(t)
	rapid.Check(t, func(t *rapid.T) {
		m := &storeModel{waiting: map[*Waiter]bool{}}
		m.s, m.b = newStore(rapid.Int64Range(1, 6).Draw(t, "places"))
		t.Repeat(m.actions())
		for len(m.building)+len(m.ending)+len(m.holders) > 0 {
			for len(m.building) > 0 {
				m.actions()["build failed"](t)
			}
			for len(m.holders) > 0 {
				a := m.holders[0]
				m.s.Fence(a, errors.New("end"))
				m.holders = m.holders[1:]
				if m.s.Release(a) {
					m.ending = append(m.ending, a)
				}
			}
			for len(m.ending) > 0 {
				m.actions()["ended"](t)
			}
		}
		var left []*Array
		m.s.Each(func(a *Array) { left = append(left, a) })
		for _, a := range left {
			if m.s.Retire(a) {
				m.ending = append(m.ending, a)
			}
		}
		for len(m.ending) > 0 {
			m.actions()["ended"](t)
		}
		if len(m.waiting) != 0 || m.b.Used() != m.kept {
			t.Fatalf("%d wait, %d places charged, %d retained", len(m.waiting), m.b.Used(), m.kept)
		}
	})
}

// proves R-10
func TestPlacesThatAreOnTheirWayAreWaitedForWithoutAnotherEviction(t *testing.T) {
	s, _ := newStore(3)
	var arrays []*Array
	for n := range uint64(3) {
		a := want(t, s.Acquire(key(n), 1, &Waiter{}), Build)
		s.Built(a, nil)
		arrays = append(arrays, a)
	}
	s.Release(arrays[0])
	if !s.Retire(arrays[0]) {
		t.Fatal(arrays[0].State())
	}
	busy := &Waiter{}
	if got := s.Acquire(key(8), 1, busy); got.Step != Wait || got.Evict != nil {
		t.Fatalf("all others are busy: %+v", got)
	}
	s.Leave(busy)
	s.Release(arrays[1])
	if got := s.Acquire(key(9), 1, busy); got.Step != Wait || got.Evict != nil || arrays[1].State() != Ready {
		t.Fatalf("an idle one was evicted while places were on their way: %+v", got)
	}
	if answers := s.Ended(arrays[0], nil); len(answers) != 1 || answers[0].Step != Build {
		t.Fatalf("%+v", answers)
	}
}
