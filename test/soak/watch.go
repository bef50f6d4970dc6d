package main

import (
	"fmt"
	"sync"
	"time"
)

// grace is how long after its deadline each operation may still take: generous, since the machine is shared.
const grace = 10 * time.Second

// A watch knows every operation under way and when it must have ended. Time during which the whole process was
// stopped does not count.
type watch struct {
	peer  *peer
	mu    sync.Mutex
	next  int
	open  map[int]watched
	lapse time.Duration // all the time that this process was stopped
}

type watched struct {
	what  string
	until time.Time
	lapse time.Duration // at its begin
}

// begin watches an operation until the function that it returns is called.
func (w *watch) begin(deadline time.Time, format string, args ...any) func() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == nil {
		w.open = map[int]watched{}
	}
	w.next++
	n := w.next
	w.open[n] = watched{fmt.Sprintf(format, args...), deadline.Add(grace), w.lapse}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.open, n)
	}
}

const (
	watchTick = 250 * time.Millisecond
	stoppedIf = time.Second // a tick that is so late was stopped, not slow
)

// run looks at the operations and tells the parent that the process lives.
func (w *watch) run() {
	last := time.Now()
	for n := 1; ; n++ {
		time.Sleep(watchTick)
		now := time.Now()
		gap := now.Sub(last)
		last = now
		w.mu.Lock()
		if gap > stoppedIf {
			w.lapse += gap - watchTick
		}
		late := ""
		for _, o := range w.open {
			if now.After(o.until.Add(w.lapse - o.lapse)) {
				late = fmt.Sprintf("%s: not ended %v behind its deadline", o.what, now.Sub(o.until)+grace)
			}
		}
		w.mu.Unlock()
		if late != "" {
			w.peer.fail("%s\n%s", late, stacks())
		}
		if n%4 == 0 {
			c := &w.peer.count
			w.peer.say("beat %d %d %d %d %d %d", c.requests.Load(), c.ok.Load(), c.failed.Load(), c.bytes.Load(), c.notes.Load(), c.refused.Load())
		}
	}
}
