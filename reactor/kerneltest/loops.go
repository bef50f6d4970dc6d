package kerneltest

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/orbitte/orbitte/reactor"
)

var loopCases = []conformance{
	{"RunningLoopLosesNoWakeUp", loopWakes},
	{"IdleLoopTurnsOnlyWhenAsked", loopIdle},
}

type recipient func(*reactor.Letter, reactor.Instant)

func (f recipient) Receive(m *reactor.Letter, now reactor.Instant) { f(m, now) }

// start runs a loop of its own goroutine; the returned function ends it.
func (r *rig) start(mode reactor.Mode) (*reactor.Loop, func()) {
	r.Helper()
	k, err := r.Open()
	if err != nil {
		r.Fatalf("open a kernel: %v", err)
	}
	l := reactor.NewLoop(k, reactor.Options{Name: "test", Mode: mode, Spin: 5 * time.Microsecond})
	var running sync.WaitGroup
	var ran error
	running.Go(func() { ran = l.Run() })
	return l, func() {
		r.Helper()
		l.Stop()
		running.Wait()
		if ran != nil {
			r.Fatalf("run: %v", ran)
		}
		if err := l.Close(); err != nil {
			r.Fatalf("close: %v", err)
		}
	}
}

// loopWakes posts to a loop that is about to sleep most of the time. A lost wake-up would leave it
// asleep for ever.
func loopWakes(r *rig) {
	if !r.Concurrent {
		r.Skip("virtual-time: loops of this kernel do not run on their own")
	}
	for _, mode := range []reactor.Mode{reactor.EventDriven, reactor.Adaptive} {
		l, end := r.start(mode)
		var group sync.WaitGroup
		var lost atomic.Bool
		for range 2 {
			group.Go(func() {
				var m reactor.Letter
				back := make(chan struct{}, 1)
				for range 500 {
					_ = l.Post(&m, recipient(func(*reactor.Letter, reactor.Instant) { back <- struct{}{} }))
					select {
					case <-back:
					case <-time.After(patience):
						lost.Store(true)
						return
					}
				}
			})
		}
		group.Wait()
		if lost.Load() {
			r.Fatalf("%v: a letter was not received in %v", mode, patience)
		}
		end()
	}
}

// field case F-51: an idle loop makes no turns; only letters make it turn.
func loopIdle(r *rig) {
	if !r.Concurrent {
		r.Skip("virtual-time: loops of this kernel do not run on their own")
	}
	l, end := r.start(reactor.EventDriven)
	back := make(chan reactor.Stats, 1)
	var m reactor.Letter
	ask := func() reactor.Stats {
		_ = l.Post(&m, recipient(func(*reactor.Letter, reactor.Instant) { back <- l.Stats() }))
		return <-back
	}
	first := ask()
	time.Sleep(30 * time.Millisecond)
	second := ask()
	if turns := second.Turns - first.Turns; turns > 4 {
		r.Fatalf("an idle loop made %d turns", turns)
	}
	if waits := second.Counters.Waits - first.Counters.Waits; waits > 4 {
		r.Fatalf("an idle loop waited %d times", waits)
	}
	end()
}
