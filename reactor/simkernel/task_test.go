package simkernel_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// rest is a step that may rest: it says until when its loop would wait.
func (e *echo) rest() bool { return e.loop.Turn(e.loop.Kernel().Now().After(time.Hour)) }

func (e *echo) kernel() *simkernel.Kernel { return e.loop.Kernel().(*simkernel.Kernel) }

// pairs is a world of several clients with a server each.
func pairs(t *testing.T, seed uint64, n int, add func(w *simkernel.World, e *echo)) (w *simkernel.World, clients []*echo) {
	w = simkernel.NewWorld(seed, simkernel.WorldOptions{ChopReceive: 40})
	var all []*echo
	for i := range n {
		a, b := netip.AddrFrom4([4]byte{10, 0, byte(i), 1}), netip.AddrFrom4([4]byte{10, 0, byte(i), 2})
		server, client := newEcho(t, w.Process(fmt.Sprintf("server %d", i), a)), newEcho(t, w.Process(fmt.Sprintf("client %d", i), b))
		client.dial(server.serve(netip.AddrPortFrom(a, 7000)))
		all = append(all, server, client)
		clients = append(clients, client)
	}
	for _, e := range all {
		add(w, e)
	}
	return w, clients
}

func busyWorld(w *simkernel.World, e *echo)    { w.Add(e.rest) }
func restfulWorld(w *simkernel.World, e *echo) { w.AddFor(e.rest, e.kernel()) }

// Frames, timers and letters come to the same end whether everything is run in each step or only what has
// something to do. A wake-up that was lost would show as a deadlock, since nothing else lies ahead.
func TestRunnableSetComesToTheSameEnds(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("SEED=%d", seed) // replay: set seed to the printed number
	var got [2][]int
	for way, add := range []func(*simkernel.World, *echo){busyWorld, restfulWorld} {
		w, clients := pairs(t, seed, 20, add)
		for _, c := range clients {
			c.limit = 30
		}
		done := func() bool {
			for _, c := range clients {
				if c.got < 30*64 {
					return false
				}
			}
			return true
		}
		if err := w.RunUntil(done, w.Now().After(time.Minute)); err != nil {
			t.Fatal(err)
		}
		for _, c := range clients {
			got[way] = append(got[way], c.got)
		}
	}
	if fmt.Sprint(got[0]) != fmt.Sprint(got[1]) {
		t.Fatalf("bytes that came back: %v and %v", got[0], got[1])
	}
}

// proves L-3: a seed replays the history of a world whose tasks rest.
func TestSameSeedGivesTheSameHistoryWithTasksThatRest(t *testing.T) {
	run := func(seed uint64) (log []string) {
		w, clients := pairs(t, seed, 5, restfulWorld)
		for i, c := range clients {
			c.log = func(format string, a ...any) { log = append(log, fmt.Sprint(i, w.Now())+fmt.Sprintf(format, a...)) }
		}
		if err := w.RunUntil(func() bool { return clients[0].frames >= 50 }, w.Now().After(time.Minute)); err != nil {
			t.Fatal(err)
		}
		return log
	}
	seed := rand.Uint64()
	t.Logf("SEED=%d", seed)
	if a, b := fmt.Sprint(run(seed)), fmt.Sprint(run(seed)); a != b || len(a) < 100 {
		t.Fatal("two runs of one seed differ")
	}
}

// field case F-51: what has nothing to do costs nothing, however much of it there is.
func TestRestingTasksAreNotRun(t *testing.T) {
	runs := func(idle int) uint64 {
		w := simkernel.NewWorld(12, simkernel.WorldOptions{})
		var resting []*echo
		for i := range idle {
			e := newEcho(t, w.Process("idle", netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})))
			w.AddFor(e.rest, e.kernel())
			resting = append(resting, e)
		}
		server, client := newEcho(t, w.Process("server", hostA)), newEcho(t, w.Process("client", hostB))
		w.AddFor(server.rest, server.kernel())
		w.AddFor(client.rest, client.kernel())
		client.dial(server.serve(netip.AddrPortFrom(hostA, 7000)))
		if err := w.RunUntil(func() bool { return client.frames >= 100 }, w.Now().After(time.Minute)); err != nil {
			t.Fatal(err)
		}
		sum := uint64(0)
		for _, e := range resting {
			sum += e.loop.Stats().Turns
		}
		return sum
	}
	if n := runs(500); n > 500 {
		t.Fatalf("500 idle loops made %d turns", n)
	}
}

// Whatever can end a rest ends it, at once.
func TestEachWayOutOfARest(t *testing.T) {
	w := simkernel.NewWorld(13, simkernel.WorldOptions{})
	p := w.Process("p", hostA)
	e := newEcho(t, p)
	ran := 0
	task := w.AddFor(func() bool { ran++; return e.rest() }, e.kernel())
	d, signal, err := p.Signal()
	if err != nil {
		t.Fatal(err)
	}
	var watch countingHandler
	e.loop.Submit(reactor.Operation{Kind: reactor.Watch, Descriptor: d}, &watch)
	settle := func() {
		t.Helper()
		pass := func() { _ = w.RunUntil(func() bool { return false }, w.Now().After(time.Millisecond)) }
		pass()
		before := ran
		if pass(); ran != before {
			t.Fatal("the task does not rest")
		}
	}
	var letter reactor.Letter
	received := 0
	var timer reactor.Timer
	expired := reactor.Instant(0)
	var ticket reactor.Ticket
	watchAgain := func() { ticket = e.loop.Submit(reactor.Operation{Kind: reactor.Watch, Descriptor: d}, &watch) }
	for _, c := range []struct {
		name  string
		rouse func()
	}{
		{"letter", func() { _ = e.loop.Post(&letter, recipient(func() { received++ })) }},
		{"wake", func() { e.kernel().Wake() }},
		{"completion", signal},
		{"submission", func() { p.Unsignal(d); watchAgain() }},
		{"cancel", func() { e.loop.Cancel(ticket) }},
		{"ready", func() { e.loop.Arm(&timer, w.Now(), expiry(func(now reactor.Instant) { expired = now })); task.Ready() }},
		{"foreign poll", func() { e.loop.Turn(reactor.Past) }},
	} {
		settle()
		before, now := ran, w.Now()
		c.rouse()
		if err := w.RunUntil(func() bool { return ran > before }, now.After(time.Millisecond)); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
	}
	settle()
	if received != 1 || watch.count != 2 || expired == 0 {
		t.Fatalf("%d letters, %d ends of watches, timer at %d", received, watch.count, expired)
	}
	at := w.Now().After(time.Second)
	e.loop.Arm(&timer, at, expiry(func(now reactor.Instant) { expired = now }))
	task.Ready()
	if err := w.RunUntil(func() bool { return expired >= at }, at.After(time.Hour)); err != nil || expired > at.After(time.Millisecond) {
		t.Fatalf("timer for %d at %d: %v", at, expired, err)
	}
	task.Remove()
	before := ran
	_ = e.loop.Post(&letter, recipient(func() {}))
	if w.Step(); ran != before {
		t.Fatal("a removed task was run")
	}
}

type recipient func()

func (f recipient) Receive(*reactor.Letter, reactor.Instant) { f() }

type expiry func(reactor.Instant)

func (f expiry) Expire(_ *reactor.Timer, now reactor.Instant) { f(now) }

// A step that does not say until when it waits is run in each step: it cannot be told when to come back.
func TestTaskThatDoesNotWaitIsRunInEachStep(t *testing.T) {
	w := simkernel.NewWorld(14, simkernel.WorldOptions{})
	e := newEcho(t, w.Process("p", hostA))
	ran := 0
	w.AddFor(func() bool { ran++; return e.loop.Turn(reactor.Past) }, e.kernel())
	for i := range 10 {
		w.Later(time.Duration(i+1)*time.Millisecond, func() {})
		w.Step()
	}
	if ran != 10 {
		t.Fatalf("ran %d times in 10 steps", ran)
	}
	defer func() {
		if recover() == nil {
			t.Fatal("a kernel was given to two tasks")
		}
	}()
	w.AddFor(e.rest, e.kernel())
}

// A world in which everybody rests and nothing lies ahead says so instead of running on.
func TestRestWithoutEndIsADeadlock(t *testing.T) {
	w := simkernel.NewWorld(15, simkernel.WorldOptions{})
	e := newEcho(t, w.Process("p", hostA))
	w.AddFor(func() bool { return e.loop.Turn(reactor.Forever) }, e.kernel())
	var stuck *simkernel.StuckError
	if err := w.RunUntil(func() bool { return false }, reactor.Forever); !errors.As(err, &stuck) || !stuck.Deadlock {
		t.Fatalf("error %v", err)
	}
	p := w.Process("q", hostB)
	e = newEcho(t, p)
	ran := 0
	w.AddFor(func() bool { ran++; return e.rest() }, e.kernel())
	w.Step()
	p.Kill()
	if w.Step(); ran != 1 {
		t.Fatalf("a killed process was run %d times", ran-1)
	}
}

// Calls that block run side by side in one goroutine: each lets the others go on, and the clock, where it waits.
func TestCallsOfManyTasksWaitSideBySide(t *testing.T) {
	const n = 10
	seed := rand.Uint64()
	t.Logf("SEED=%d", seed) // replay: set seed to the printed number
	tasks := map[*echo]*simkernel.Task{}
	w, clients := pairs(t, seed, n, func(w *simkernel.World, e *echo) { tasks[e] = w.AddFor(e.rest, e.kernel()) })
	inside, most, ended := 0, 0, 0
	for _, c := range clients {
		task := tasks[c]
		task.Call(func() {
			inside++
			most = max(most, inside)
			for c.got < 640 {
				c.loop.Turn(w.Now().After(time.Minute))
			}
			for c.got < 1280 { // driven by the task's own function meanwhile
				task.Pause()
			}
			inside--
			ended++
		})
	}
	start := w.Now()
	if err := w.RunUntil(func() bool { return ended == n }, start.After(time.Second)); err != nil {
		t.Fatal(err)
	}
	if most != n {
		t.Fatalf("at most %d calls were under way at once", most)
	}
	for _, misuse := range []func(task *simkernel.Task){
		func(task *simkernel.Task) { task.Pause() },
		func(task *simkernel.Task) { task.Call(func() {}); task.Call(func() {}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("misuse was accepted")
				}
			}()
			misuse(tasks[clients[0]])
		}()
	}
	w.Step() // ends the call that was accepted
}

// What a call did before it paused is seen by its loop before the clock moves on, however far the next event is.
func TestPauseLetsTheOwnLoopGoFirst(t *testing.T) {
	w := simkernel.NewWorld(16, simkernel.WorldOptions{})
	e := newEcho(t, w.Process("p", hostA))
	task := w.AddFor(e.rest, e.kernel())
	_ = w.RunUntil(func() bool { return false }, w.Now().After(time.Millisecond)) // the loop rests
	w.Later(time.Minute, func() {})
	posted, received := w.Now(), reactor.Instant(0)
	task.Call(func() {
		e.loop.Turn(reactor.Past) // no rest that a letter could end
		_ = e.loop.Post(&reactor.Letter{}, recipient(func() { received = w.Now() }))
		for received == 0 {
			task.Pause()
		}
	})
	if err := w.RunUntil(func() bool { return received != 0 }, posted.After(time.Hour)); err != nil || received > posted.After(time.Millisecond) {
		t.Fatalf("received %v late: %v", time.Duration(received-posted), err)
	}
}
