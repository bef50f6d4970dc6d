package epoll

import (
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
)

// house is a running loop that takes guests.
type house struct {
	*reactor.Loop
	ended chan error
}

func newHouse(t *testing.T) *house {
	t.Helper()
	k, err := New(Options{Guests: true})
	if err != nil {
		t.Fatal(err)
	}
	h := &house{reactor.NewLoop(k, reactor.Options{Name: "house", Mode: reactor.Adaptive, Guests: true}), make(chan error, 1)}
	go func() { h.ended <- h.Run() }()
	return h
}

func (h *house) close(t *testing.T) {
	t.Helper()
	h.Stop()
	if err := <-h.ended; err != nil {
		t.Error(err)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

// visit is over once something has happened.
type visit struct {
	happened atomic.Bool
	letter   reactor.Letter
	busy     bool
	act      func(reactor.Instant)
}

func (v *visit) Over() bool  { return v.happened.Load() }
func (v *visit) Alone() bool { return !v.busy }
func (v *visit) Receive(_ *reactor.Letter, now reactor.Instant) {
	if v.act != nil {
		v.act(now)
		return
	}
	v.happened.Store(true)
}

// enter waits for a moment in which the loop takes a guest.
func (h *house) enter() {
	for !h.Enter() {
		time.Sleep(10 * time.Microsecond)
	}
}

// proves L-4: in adaptive mode a caller turns the loop itself, and its letter wakes nobody.
func TestGuestIsServedByItselfAndWakesNobody(t *testing.T) {
	h := newHouse(t)
	defer h.close(t)
	h.enter()
	before := h.Stats().Wakes
	v := &visit{}
	if err := h.Post(&v.letter, v); err != nil {
		t.Fatal(err)
	}
	if h.Enter() {
		t.Error("two guests at once")
	}
	h.Stay(v)
	if !v.Over() {
		t.Error("the guest left before it was served")
	}
	if s := h.Stats(); s.Visits != 1 || s.Wakes != before {
		t.Errorf("%d visits, %d wake-ups", s.Visits, s.Wakes-before)
	}
}

// What a guest leaves behind is the host's: a timer that it armed, a letter, an answer that takes its time.
func TestHostGoesOnWhereTheGuestLeft(t *testing.T) {
	h := newHouse(t)
	defer h.close(t)
	for _, busy := range []bool{false, true} {
		done := make(chan struct{})
		var timer reactor.Timer
		v := &visit{busy: busy}
		v.act = func(now reactor.Instant) {
			h.Arm(&timer, now.After(2*time.Millisecond), expiry(func() { v.happened.Store(true); close(done) }))
		}
		h.enter()
		_ = h.Post(&v.letter, v)
		h.Stay(v)
		<-done
	}
	// Over at once, with a timer that nobody waits for.
	done := make(chan struct{})
	var timer reactor.Timer
	v := &visit{}
	v.act = func(now reactor.Instant) {
		h.Arm(&timer, now.After(2*time.Millisecond), expiry(func() { close(done) }))
		v.happened.Store(true)
	}
	h.enter()
	_ = h.Post(&v.letter, v)
	h.Stay(v)
	<-done
}

// A host that has work again and again and no guest waits in Poll, as that of a source does; the caller that finds it there
// makes it ready for guests again.
func TestHostWithoutGuestsKeepsHouseUntilSomebodyKnocks(t *testing.T) {
	h := newHouse(t)
	defer h.close(t)
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[1])
	defer unix.Close(ends[0])
	buffer := make([]byte, 1)
	came := make(chan struct{})
	var last atomic.Bool
	var again func(reactor.Event)
	watch := func() {
		h.Submit(reactor.Operation{Kind: reactor.Watch, Descriptor: reactor.Descriptor(ends[0])}, answer(again))
	}
	again = func(e reactor.Event) {
		_, _ = unix.Read(ends[0], buffer)
		if e.Err == nil && !last.Load() {
			watch()
		}
		came <- struct{}{}
	}
	event := func() {
		if _, err := unix.Write(ends[1], []byte{1}); err != nil {
			t.Fatal(err)
		}
		<-came
		time.Sleep(200 * time.Microsecond) // the host waits again
	}
	first := &visit{act: func(reactor.Instant) { watch() }}
	_ = h.Post(&first.letter, first)
	for n := 0; h.Enter(); n++ { // each visit starts the count anew, so the events between them become more and more
		v := &visit{}
		_ = h.Post(&v.letter, v)
		h.Stay(v)
		for range n {
			event()
		}
		if n == 100 {
			t.Fatal("the host is ready for guests for ever")
		}
	}
	v := &visit{act: func(reactor.Instant) {}}
	for !h.Enter() { // it is woken by a letter
		_ = h.Post(&v.letter, v)
	}
	over := &visit{}
	_ = h.Post(&over.letter, over)
	h.Stay(over)
	last.Store(true)
	event()
}

type expiry func()

func (f expiry) Expire(*reactor.Timer, reactor.Instant) { f() }

type answer func(reactor.Event)

func (f answer) Complete(e *reactor.Event) { f(*e) }

// While a guest waits for an answer that takes its time, the host sleeps.
//
// field case F-51
func TestHostSleepsWhileAGuestStays(t *testing.T) {
	h := newHouse(t)
	defer h.close(t)
	for range 20 {
		v := &visit{}
		h.enter()
		_ = h.Post(&v.letter, v)
		h.Stay(v)
	}
	var timer reactor.Timer
	var waits uint64
	v := &visit{}
	v.act = func(now reactor.Instant) {
		before := h.Kernel().Counters().Waits
		h.Arm(&timer, now.After(200*time.Millisecond), expiry(func() {
			waits = h.Kernel().Counters().Waits - before
			v.happened.Store(true)
		}))
	}
	h.enter()
	_ = h.Post(&v.letter, v)
	h.Stay(v)
	if waits > 20 {
		t.Errorf("guest and host waited %d times in 200 ms", waits)
	}
}

// What comes from outside after the last guest has left is found by the host, whether it idles or rests.
func TestHostFindsWhatComesAfterTheLastGuest(t *testing.T) {
	h := newHouse(t)
	defer h.close(t)
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[1])
	defer unix.Close(ends[0])
	buffer := make([]byte, 1)
	for round := range 200 {
		came := make(chan error, 1)
		v := &visit{}
		v.act = func(reactor.Instant) {
			h.Submit(reactor.Operation{Kind: reactor.Watch, Descriptor: reactor.Descriptor(ends[0])},
				answer(func(e reactor.Event) { came <- e.Err }))
			v.happened.Store(true)
		}
		h.enter()
		_ = h.Post(&v.letter, v)
		h.Stay(v)
		if round%3 == 0 {
			time.Sleep(500 * time.Microsecond) // the host has gone from rest to idling
		}
		if _, err := unix.Write(ends[1], buffer); err != nil {
			t.Fatal(err)
		}
		if err := <-came; err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Read(ends[0], buffer); err != nil {
			t.Fatal(err)
		}
	}
}

// Guests, posters, timers and the end meet in every order: each letter is received once, nothing hangs, and the loop ends.
// Replay: SEED=n go test -run TestGuestsPostersAndTheEndMeet ./reactor/epoll
func TestGuestsPostersAndTheEndMeet(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("SEED=%d", seed)
	for round := range uint64(20) {
		h := newHouse(t)
		var received, posted atomic.Int64
		var all sync.WaitGroup
		for g := range uint64(6) {
			all.Add(1)
			go func() {
				defer all.Done()
				random := rand.New(rand.NewPCG(seed, round<<8|g))
				for range 300 {
					v := &visit{busy: random.IntN(4) == 0}
					done := make(chan struct{})
					var timer reactor.Timer
					delay := time.Duration(random.IntN(80)) * time.Microsecond
					v.act = func(now reactor.Instant) {
						received.Add(1)
						h.Arm(&timer, now.After(delay), expiry(func() { v.happened.Store(true); close(done) }))
					}
					guest := random.IntN(3) > 0 && h.Enter()
					posted.Add(1)
					if err := h.Post(&v.letter, v); err != nil {
						t.Error(err)
					}
					if guest {
						h.Stay(v)
					}
					<-done
				}
			}()
		}
		all.Wait()
		h.close(t)
		if received.Load() != posted.Load() {
			t.Fatalf("SEED=%d: %d letters posted, %d received", seed, posted.Load(), received.Load())
		}
	}
}

// A loop that was stopped while a guest was inside ends after the guest, and takes no other one.
func TestStopWaitsForTheGuest(t *testing.T) {
	h := newHouse(t)
	h.enter()
	h.Stop()
	select {
	case <-h.ended:
		t.Fatal("the loop ended under its guest")
	case <-time.After(5 * time.Millisecond):
	}
	v := &visit{}
	_ = h.Post(&v.letter, v)
	h.Stay(v)
	if err := <-h.ended; err != nil {
		t.Fatal(err)
	}
	if h.Enter() {
		t.Error("a guest entered a loop that has ended")
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

// A system that refuses the wait does not make the host look again and again: it sleeps a little, for as long as it may, and
// the loop goes on.
func TestAHostThatIsNotLetWaitDoesNotSpin(t *testing.T) {
	k, err := New(Options{Guests: true})
	if err != nil {
		t.Fatal(err)
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
		if err := k.Shutdown(); err != nil {
			t.Error(err)
		}
	}()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: before.Max}); err != nil { // ppoll of two: EINVAL
		t.Fatal(err)
	}
	const ms = 20
	idles := 0
	for end := k.Now().After(ms * time.Millisecond); k.Now() < end; idles++ {
		k.Idle(end)
	}
	if idles > ms+1 { // the last may be too short by the clock's rounding
		t.Errorf("idled %d times in %d ms", idles, ms)
	}
	k.Idle(k.Now().After(-1)) // no time left
	k.Rouse()
	k.Rest() // a rouse that came before needs no wait
	k.Rest()
	if n := k.idle.waits.Load(); n != uint64(idles)+2 {
		t.Errorf("%d waits", n)
	}
}
