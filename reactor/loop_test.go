package reactor

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// proves L-2: with more of each kind of work than a turn may do, every turn does its share of each.
func TestEachKindOfWorkKeepsToItsBudgetAndStarvesNoOther(t *testing.T) {
	k := newFakeKernel()
	k.echo = true
	l := manualLoop(t, k, Options{Completions: 3, Timers: 2, Letters: 4})
	var completions, timers, letters int
	var again handlerFunc
	again = func(Event) { completions++; l.Submit(Operation{Kind: Send}, again) }
	for range 10 {
		l.Submit(Operation{Kind: Send}, again)
	}
	var rearm timerFunc
	rearm = func(timer *Timer, now Instant) { timers++; l.Arm(timer, now, rearm) }
	armed := make([]Timer, 10)
	for i := range armed {
		l.Arm(&armed[i], 1, rearm)
	}
	var repost recipientFunc
	repost = func(m *Letter, _ Instant) { letters++; _ = l.Post(m, repost) }
	posted := make([]Letter, 10)
	for i := range posted {
		_ = l.Post(&posted[i], repost)
	}
	for turn := 1; turn <= 30; turn++ {
		if !l.Turn(Forever) {
			t.Fatal("a turn with work did nothing")
		}
		if completions != 3*turn || timers != 2*turn {
			t.Fatalf("after turn %d: %d completions, %d timers", turn, completions, timers)
		}
	}
	// Ten letters take turns of 4, 4 and 2.
	if letters != 100 {
		t.Fatalf("30 turns received %d letters", letters)
	}
}

// proves L-2: bytes are budgeted as well; one huge payload makes the next turns shorter.
func TestLargeTransfersShortenTheNextTurns(t *testing.T) {
	k := newFakeKernel()
	k.echo, k.moves = true, 1<<20
	l := manualLoop(t, k, Options{Completions: 64, Bytes: 8 << 20})
	var again handlerFunc
	again = func(Event) { l.Submit(Operation{Kind: Send}, again) }
	for range 100 {
		l.Submit(Operation{Kind: Send}, again)
	}
	for range 10 {
		l.Turn(Past)
	}
	if k.asked[0] != 64 || !slices.Equal(k.asked[1:10], slices.Repeat([]int{8}, 9)) {
		t.Fatalf("asked for %v completions of 1 MiB", k.asked)
	}
	k.moves = 1000
	for range 100 / 8 * 2 {
		l.Turn(Past)
	}
	if last := k.asked[len(k.asked)-1]; last != 64 {
		t.Fatalf("small transfers again, and still %d completions a turn", last)
	}
}

// script drives a loop by random work from a seed and writes down what happened.
func script(t *testing.T, seed uint64) []string {
	random := rand.New(rand.NewPCG(seed, 3))
	k := newFakeKernel()
	l := manualLoop(t, k, Options{Completions: 2, Timers: 2, Letters: 2})
	var log []string
	note := func(format string, a ...any) {
		log = append(log, fmt.Sprintf("%d ", l.Now())+fmt.Sprintf(format, a...))
	}
	var timers [5]Timer
	var letters [5]Letter
	var h handlerFunc
	var act func()
	expire := timerFunc(func(timer *Timer, now Instant) { note("timer for %d at %d", timer.At(), now); act() })
	receive := recipientFunc(func(*Letter, Instant) { note("letter"); act() })
	h = func(e Event) { note("completion %#x %d %d", e.Ticket, e.N, e.Kind); act() }
	act = func() {
		switch random.IntN(6) {
		case 0, 1:
			note("submit %#x", l.Submit(Operation{Kind: Kind(1 + random.IntN(5))}, h))
		case 2:
			l.Arm(&timers[random.IntN(5)], l.Now().After(time.Duration(random.IntN(50))), expire)
		case 3:
			_ = l.Post(&letters[random.IntN(5)], receive)
		case 4:
			l.Disarm(&timers[random.IntN(5)])
		case 5:
			l.Cancel(Ticket(random.IntN(3)) | 1<<32)
		}
	}
	for range 400 {
		act()
		for len(k.submitted) > 0 && random.IntN(3) > 0 {
			k.finish(Completion{Ticket: k.submitted[0].Ticket, N: random.IntN(100)})
			k.submitted = k.submitted[1:]
		}
		l.Turn(k.Now() + Instant(random.IntN(20)))
		note("turn")
	}
	return log
}

// proves L-3: the same completions and clock readings give the same steps.
func TestSameCompletionsAndReadingsGiveTheSameSteps(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("SEED=%d", seed)
	a, b := script(t, seed), script(t, seed)
	if len(a) < 500 {
		t.Fatalf("only %d steps", len(a))
	}
	if !slices.Equal(a, b) {
		t.Fatalf("two runs differ: %d and %d steps", len(a), len(b))
	}
}

// proves L-3: everything dispatched in one turn sees one reading of the clock.
func TestOneTurnGoesByOneReading(t *testing.T) {
	k := newFakeKernel()
	l := manualLoop(t, k, Options{})
	var seen []Instant
	look := func() { seen = append(seen, l.Now()); k.now.Add(100) }
	ticket := l.Submit(Operation{Kind: Send}, handlerFunc(func(Event) { look() }))
	k.finish(Completion{Ticket: ticket})
	var timer Timer
	l.Arm(&timer, 900, timerFunc(func(_ *Timer, now Instant) { seen = append(seen, now); look() }))
	var m Letter
	_ = l.Post(&m, recipientFunc(func(_ *Letter, now Instant) { seen = append(seen, now); look() }))
	l.Turn(Past)
	if !slices.Equal(seen, []Instant{1000, 1000, 1000, 1000, 1000}) {
		t.Fatalf("one turn saw %v", seen)
	}
}

// runFor runs a loop on its own goroutine until it has polled n times.
func runFor(t *testing.T, l *Loop, k *fakeKernel, n int64) {
	t.Helper()
	ran := make(chan error, 1)
	go func() { ran <- l.Run() }()
	for k.polls.Load() < n {
		runtime.Gosched()
	}
	l.Stop()
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// proves L-4: event-driven blocks at once. field case F-51: without work it makes one turn.
func TestEventDrivenLoopBlocksWhenIdle(t *testing.T) {
	k := newFakeKernel()
	l := NewLoop(k, Options{Mode: EventDriven})
	runFor(t, l, k, 1)
	if s := l.Stats(); s.Turns > 2 || s.Spins != 0 || s.Sleeps != s.Turns || k.polls.Load() > 2 {
		t.Fatalf("an idle loop made %d turns, %d spins, %d sleeps, %d polls", s.Turns, s.Spins, s.Sleeps, k.polls.Load())
	}
}

// proves L-4: adaptive spins for its time after work and then blocks. field case F-51
func TestAdaptiveLoopSpinsThenBlocks(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // on the only processor no loop spins
	k := newFakeKernel()
	k.step = int64(time.Microsecond)
	l := NewLoop(k, Options{Mode: Adaptive, Spin: 20 * time.Microsecond})
	var m Letter
	_ = l.Post(&m, ignoreLetter)
	runFor(t, l, k, 22)
	s := l.Stats()
	if s.Spins < 18 || s.Spins > 21 || s.Sleeps != 1 || s.Turns > 24 {
		t.Fatalf("spun %d times for 20 µs of 1 µs polls, then slept %d times, %d turns", s.Spins, s.Sleeps, s.Turns)
	}
	if s.Yields != s.Spins/spinsBeforeYield {
		t.Fatalf("let others run %d times in %d turns that found nothing", s.Yields, s.Spins)
	}
}

// proves L-4: busy never blocks, and asks the kernel not to read its clock.
func TestBusyLoopNeverBlocks(t *testing.T) {
	k := newFakeKernel()
	l := NewLoop(k, Options{Mode: Busy})
	runFor(t, l, k, 500)
	if s := l.Stats(); k.waits.Load() != 0 || s.Sleeps != 0 || s.Spins != s.Turns {
		t.Fatalf("%d waits, %d sleeps, %d spins in %d turns", k.waits.Load(), s.Sleeps, s.Spins, s.Turns)
	}
	for _, until := range k.untils {
		if until != Past {
			t.Fatalf("polled until %d", until)
		}
	}
}

// Deliver is a letter without a mailbox: it comes with a fresh reading, never before letters that wait, nor inside a turn, nor
// to a closed loop.
func TestDeliverBringsAtOnceWhatALetterWould(t *testing.T) {
	k := newFakeKernel()
	l := manualLoop(t, k, Options{})
	var at []Instant
	r := recipientFunc(func(_ *Letter, now Instant) {
		at = append(at, now)
		mustPanic(t, func() { l.Turn(Past) })
	})
	k.now.Add(500)
	if !l.Deliver(r) || len(at) != 1 || at[0] != k.Now() || l.Now() != k.Now() || l.Stats().Letters != 1 {
		t.Fatalf("delivered at %v, the clock is %d", at, k.Now())
	}
	var m Letter
	order := ""
	_ = l.Post(&m, recipientFunc(func(*Letter, Instant) {
		order += "letter"
		if l.Deliver(r) {
			t.Error("delivered inside a turn")
		}
	}))
	if l.Deliver(r) || order != "" || len(at) != 1 {
		t.Fatal("delivered before a letter that waits")
	}
	if l.Turn(Past); order != "letter" || !l.Deliver(r) {
		t.Fatalf("after %q nothing is delivered", order)
	}
	if err := l.Close(); err != nil || l.Deliver(r) {
		t.Fatalf("a closed loop (%v) takes more", err)
	}
}

// What a spinning loop waits for is not kept waiting by the clock: that is read before the poll. Behind a wait, or a turn that
// found work, it is read after it.
func TestClockIsReadBeforeAPollThatFollowsATurnInVain(t *testing.T) {
	k := newFakeKernel()
	k.step = 100 // each poll takes that long
	l := manualLoop(t, k, Options{})
	var m Letter
	for _, c := range []struct {
		what  string
		post  bool
		until Instant
		after bool
	}{
		{"behind nothing", false, Past, false}, {"in vain again", false, Past, false}, {"a wait", false, Forever - 1, true},
		{"behind a wait in vain, with work", true, Past, false}, {"behind work", false, Past, true}, {"in vain", false, Past, false},
	} {
		if c.post {
			_ = l.Post(&m, ignoreLetter)
		}
		if before := k.Now(); c.until == Past {
			l.Turn(Past)
			if read := l.Now() != before; read != c.after {
				t.Errorf("%s: the clock was read after the poll: %v, want %v", c.what, read, c.after)
			}
		} else if l.Turn(k.Now() + 50); l.Now() != k.Now() {
			t.Errorf("%s: the reading is %d, the clock %d", c.what, l.Now(), k.Now())
		}
	}
	l.Deliver(ignoreLetter)
	if l.Turn(Past); l.Now() != k.Now() {
		t.Errorf("behind a delivery: the reading is %d, the clock %d", l.Now(), k.Now())
	}
}

// proves L-4: manual mode runs on the caller's thread and only there.
func TestManualLoopTurnsOnlyWhenAsked(t *testing.T) {
	k := newFakeKernel()
	l := manualLoop(t, k, Options{})
	mustPanic(t, func() { _ = l.Run() })
	if l.Turn(k.Now() + 50) {
		t.Fatal("an empty turn says it did something")
	}
	if k.polls.Load() != 1 || k.Now() != 1050 {
		t.Fatalf("%d polls, clock %d", k.polls.Load(), k.Now())
	}
	l.Stop() // a stopped manual loop may still wait, so that it can be drained
	l.Turn(k.Now() + 50)
	if k.Now() != 1100 {
		t.Fatalf("clock %d", k.Now())
	}
}

// proves L-1: a loop stays on one locked thread.
func TestRunStaysOnOneThread(t *testing.T) {
	k := newFakeKernel()
	threads := map[int]bool{}
	k.onPoll = func() { threads[unix.Gettid()] = true; runtime.Gosched() }
	l := NewLoop(k, Options{Mode: Busy})
	runFor(t, l, k, 2000)
	if len(threads) != 1 {
		t.Fatalf("polled from threads %v", threads)
	}
}

func TestStaleTicketsAreIgnoredAndCounted(t *testing.T) {
	k := newFakeKernel()
	l := manualLoop(t, k, Options{})
	ended := 0
	ticket := l.Submit(Operation{Kind: Receive, Ticket: 99}, handlerFunc(func(e Event) {
		ended++
		if e.Kind != Receive || e.N != 7 || !errors.Is(e.Err, unix.ECONNRESET) {
			t.Errorf("event %+v", e)
		}
	}))
	if k.submitted[0].Ticket != ticket || l.Outstanding() != 1 {
		t.Fatalf("submitted as %#x, returned %#x, %d outstanding", k.submitted[0].Ticket, ticket, l.Outstanding())
	}
	l.Cancel(ticket)
	end := Completion{Ticket: ticket, N: 7, Err: unix.ECONNRESET}
	k.finish(end)
	k.finish(end) // double
	l.Turn(Past)
	k.finish(end) // late
	l.Turn(Past)
	l.Cancel(ticket)
	if ended != 1 || l.Stats().Stale != 3 || len(k.cancelled) != 1 || l.Outstanding() != 0 {
		t.Fatalf("%d ends, %d stale, %d cancelled, %d outstanding", ended, l.Stats().Stale, len(k.cancelled), l.Outstanding())
	}
}

func TestHandlerMaySubmitOnItsOwnSlot(t *testing.T) {
	k := newFakeKernel()
	l := manualLoop(t, k, Options{})
	var second Ticket
	first := l.Submit(Operation{Kind: Send}, handlerFunc(func(e Event) {
		second = l.Submit(Operation{Kind: Send}, ignore)
	}))
	k.finish(Completion{Ticket: first})
	l.Turn(Past)
	if uint32(second) != uint32(first) || second == first {
		t.Fatalf("first %#x, second %#x", first, second)
	}
}

func TestCloseWaitsForOutstandingOperations(t *testing.T) {
	k := newFakeKernel()
	l := manualLoop(t, k, Options{Name: "data 0"})
	ticket := l.Submit(Operation{Kind: Send}, ignore)
	var outstanding *OutstandingError
	if err := l.Close(); !errors.As(err, &outstanding) || outstanding.Count != 1 || outstanding.Loop != "data 0" {
		t.Fatalf("close with an operation outstanding: %v", err)
	}
	if k.shutdowns != 0 {
		t.Fatal("the kernel was shut down under an operation")
	}
	k.finish(Completion{Ticket: ticket})
	if !l.Turn(Past) {
		t.Fatal("a loop that is closing does not turn")
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTurnInsideATurn(t *testing.T) {
	k := newFakeKernel()
	l := manualLoop(t, k, Options{})
	nested := true
	k.onPoll = func() { nested = l.Turn(Past) } // a simulated kernel steps others while it waits
	l.Turn(Past)
	if nested || k.polls.Load() != 1 {
		t.Fatal("a turn inside Poll did something")
	}
	k.onPoll = nil
	var m Letter
	_ = l.Post(&m, recipientFunc(func(*Letter, Instant) {
		mustPanic(t, func() { l.Turn(Past) })
		mustPanic(t, func() { _ = l.Close() })
	}))
	l.Turn(Past)
}

func TestRunReportsAFailedBind(t *testing.T) {
	k := newFakeKernel()
	k.bindError = unix.EPERM
	l := NewLoop(k, Options{})
	ran := make(chan error)
	go func() { ran <- l.Run() }()
	if err := <-ran; !errors.Is(err, unix.EPERM) {
		t.Fatalf("Run: %v", err)
	}
	if k.polls.Load() != 0 {
		t.Fatal("an unbound kernel was polled")
	}
}

func TestStopBeforeRunAndStatsWhileRunning(t *testing.T) {
	k := newFakeKernel()
	l := NewLoop(k, Options{Name: "cold", Mode: EventDriven, CPUs: nil})
	l.Stop()
	done := make(chan error)
	go func() { done <- l.Run() }()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	// Stop comes between Run's look at the flag and its turn: the turn must not sleep.
	if l.Turn(Forever); k.waits.Load() != 0 {
		t.Fatal("a stopped loop went to sleep")
	}
	k = newFakeKernel()
	l = NewLoop(k, Options{Name: "busy", Mode: Busy})
	go func() { done <- l.Run() }()
	for range 200 {
		if s := l.Stats(); s.Name != "busy" || s.Kernel != "fake" || s.Mode != Busy || s.Counters.Crossings > uint64(k.polls.Load()) {
			t.Fatalf("stats %+v", s)
		}
		runtime.Gosched()
	}
	l.Stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A loop that spins shows what its kernel did as soon as it has nothing to do, not when it has spun for long.
func TestCountersAreShownWhenTheWorkIsDone(t *testing.T) {
	k := newFakeKernel()
	k.echo = true
	l := NewLoop(k, Options{Mode: Manual})
	l.Submit(Operation{Kind: Receive}, handlerFunc(func(Event) {}))
	if !l.Turn(Past) || l.Turn(Past) {
		t.Fatal("not one turn with work and one without")
	}
	if s, polls := l.Stats(), uint64(k.polls.Load()); s.Counters.Crossings != polls {
		t.Errorf("%d crossings shown of %d", s.Counters.Crossings, polls)
	}
}

// proves L-6: a turn with completions, submissions, cancellations, timers and letters allocates
// nothing once the tables have grown.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	k := newFakeKernel()
	k.echo, k.moves = true, 10
	l := manualLoop(t, k, Options{})
	s := &steady{loop: l}
	for range 50 {
		s.Complete(&Event{})
	}
	l.Arm(&s.timer, 0, s)
	_ = l.Post(&s.letter, s)
	turn := func() { l.Turn(Past) }
	for range 1000 {
		turn()
	}
	if n := testing.AllocsPerRun(200, turn); n != 0 {
		t.Fatalf("a turn allocates %v times", n)
	}
	if got := l.Stats(); got.Completions < 60000 || got.Timers < 1200 || got.Letters < 1200 {
		t.Fatalf("too little was done: %+v", got)
	}
}

type steady struct {
	loop   *Loop
	timer  Timer
	letter Letter
	buffer [64]byte
}

func (s *steady) Complete(*Event) {
	t := s.loop.Submit(Operation{Kind: Send, Buffers: [2][]byte{s.buffer[:4], s.buffer[4:]}}, s)
	s.loop.Cancel(t ^ 1<<40) // stale
}
func (s *steady) Expire(t *Timer, now Instant) { s.loop.Arm(t, now.After(0), s) }
func (s *steady) Receive(m *Letter, _ Instant) { _ = s.loop.Post(m, s) }
