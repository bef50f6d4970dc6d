package rdma

import (
	"fmt"
	"sync/atomic"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/reactor"
)

// FlushHung says that the driver did not return from making the writes of network devices visible to a GPU, within the
// cleanup window (SPEC R-18). Its memory and whatever may still reach it are kept. As long as the call hangs, nothing
// is written to that GPU's memory without one: transfers that need a flush of it end so, too, at once.
type FlushHung struct{ Ordinal int }

func (e *FlushHung) Error() string {
	return fmt.Sprintf("the driver does not return from cuFlushGPUDirectRDMAWrites on GPU %d: what devices wrote there is not proven visible; only a new process can be sure of it", e.Ordinal)
}

// flush makes writes that network devices have finished visible to a GPU (SPEC C-7): a native call on a thread of its own,
// since it waits for hardware, and whatever hangs on it holds up nobody else's slow calls. It is made for one try, and may
// outlive whoever asked.
//
//	made ──begin──▶ away ──returned──▶ told
//	                  └──window passed: told that it hangs──▶ forsaken ──returned──▶ gone
type flush struct {
	rails    *Rails
	memory   *cuda.Memory
	told     func(error)
	err      error
	forsaken bool // true exactly when told was called without an answer
	errand   errand
	letter   reactor.Letter
	timer    reactor.Timer
}

// hungMax is how many GPUs are told apart.
const hungMax = 64

// hung counts the flushes of each GPU that were given up and have not returned.
type hung [hungMax]atomic.Int32

// flush asks for one, at the latest until by; told follows on the lane, perhaps at once: nil is the proof.
func (r *Rails) flush(m *cuda.Memory, by reactor.Instant, told func(error)) {
	t := r.transport
	if t.hung[m.Ordinal()%hungMax].Load() > 0 {
		told(&FlushHung{m.Ordinal()})
		return
	}
	x := &flush{rails: r, memory: m, told: told}
	now := r.lane.Now()
	if window := now.After(CleanupWindow); by == 0 || by > window {
		by = window
	}
	r.lane.Arm(&x.timer, by, x)
	if t.config.Thread == nil {
		x.errand.send(t.config.Cold, r.lane.Loop, x.call, x.returned)
		return
	}
	t.config.Thread(func() {
		x.call()
		_ = r.lane.Post(&x.letter, x) // a lane that has ended had given it up before
	})
}

func (x *flush) call() { x.err = x.memory.FlushWrites(false) }

// Receive comes home from a thread of its own (reactor.Recipient).
func (x *flush) Receive(_ *reactor.Letter, now reactor.Instant) { x.returned(now) }

func (x *flush) returned(reactor.Instant) {
	if x.forsaken { // what was kept stays
		x.rails.transport.hung[x.memory.Ordinal()%hungMax].Add(-1)
		return
	}
	x.rails.lane.Disarm(&x.timer)
	x.told(x.err)
}

// Expire gives it up (reactor.TimerHandler).
func (x *flush) Expire(*reactor.Timer, reactor.Instant) {
	x.forsaken = true
	x.rails.transport.hung[x.memory.Ordinal()%hungMax].Add(1)
	why := &FlushHung{x.memory.Ordinal()}
	x.memory.Retain(why) // its end could hang as well
	x.told(why)
}
