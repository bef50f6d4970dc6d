package reactor

import "sync/atomic"

// Stats is what a loop counted since it was made. It is read without stopping the loop, so the
// numbers may come from two neighbouring turns.
type Stats struct {
	Name   string
	Mode   Mode
	Kernel string
	CPUs   []int

	Turns       uint64 // passes
	Spins       uint64 // passes that found nothing and did not block
	Yields      uint64 // passes after which other threads were let run first, while a queue owed or the loop spun
	Sleeps      uint64 // passes that were ready to block
	Wakes       uint64 // wake-ups asked of the kernel by Post, Stop and guests that left work behind
	Visits      uint64 // calls that turned the loop themselves
	Letters     uint64
	Timers      uint64
	Completions uint64
	Bytes       uint64 // received and sent
	Stale       uint64 // completions and cancellations whose ticket had ended
	Outstanding uint64 // operations submitted and not ended

	// Counters of the kernel, as of the last time the loop was about to sleep or at most 64 turns ago.
	Counters Counters
}

// countersEvery is how many turns a spinning loop may make before it shows the kernel's counters.
const countersEvery = 64

// tally is a number that only the loop's thread changes and anybody reads.
type tally struct{ value atomic.Uint64 }

func (t *tally) add(n uint64) {
	if n != 0 {
		t.value.Store(t.value.Load() + n)
	}
}

func (t *tally) set(n uint64) {
	if t.value.Load() != n {
		t.value.Store(n)
	}
}

func (t *tally) get() uint64 { return t.value.Load() }

type loopCounts struct {
	turns, spins, yields, sleeps, visits, letters, timers, completions, bytes, stale, outstanding tally

	submitted, completed, crossings, waits, cancelled, unwatched tally

	wakes atomic.Uint64 // changed by any goroutine
}

func (c *loopCounts) show(k Counters) {
	c.submitted.set(k.Submitted)
	c.completed.set(k.Completed)
	c.crossings.set(k.Crossings)
	c.waits.set(k.Waits)
	c.cancelled.set(k.Cancelled)
	c.unwatched.set(k.Unwatched)
}

// Stats may be called from any goroutine, also after Close.
func (l *Loop) Stats() Stats {
	c := &l.counts
	return Stats{
		Name: l.options.Name, Mode: l.options.Mode, Kernel: l.kernelName,
		CPUs:  append([]int(nil), l.options.CPUs...),
		Turns: c.turns.get(), Spins: c.spins.get(), Yields: c.yields.get(), Sleeps: c.sleeps.get(), Wakes: c.wakes.Load(), Visits: c.visits.get(),
		Letters: c.letters.get(), Timers: c.timers.get(), Completions: c.completions.get(),
		Bytes: c.bytes.get(), Stale: c.stale.get(), Outstanding: c.outstanding.get(),
		Counters: Counters{
			Submitted: c.submitted.get(), Completed: c.completed.get(), Crossings: c.crossings.get(),
			Waits: c.waits.get(), Cancelled: c.cancelled.get(), Unwatched: c.unwatched.get(),
		},
	}
}
