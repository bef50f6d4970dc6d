package reactor

import "time"

// A guest is a goroutine that turns a loop in place of the loop's own thread, the host, for the length of one call: a
// call that waits for its own answer need not be handed to another thread and back, each of which costs a wake-up.
// One of them at a time turns the loop, and whoever does has all its rights and duties.
//
//	         ┌── Enter ── guest ── leave ──┐
//	nobody ──┤                             ├──▶ nobody: the host waits in Idle, or rests while guests come and go
//	         └────────── host ── asleep ───┘
//
// Waiting so that a guest can enter costs two system calls more than waiting in Poll. A host that has had no guest yet, or
// none in a while although it had work, as that of a source, waits in Poll, until a caller has found it there.

// Who turns the loop: Loop.turner.
const (
	nobody uint32 = iota
	host
	guest
)

// hostRest is how long the host stays away after it saw guests come and go; guests put its return off before half
// of it is over, so that it need not wake, and take a CPU, to see that there are still some. What arrives after the last
// guest has left, and was not posted, waits for twice as long at most.
const hostRest = 200 * time.Microsecond

// unvisitedMost is how often in a row the host of a loop may have found completions, and not been visited in between,
// before it waits as if there were no guests.
const unvisitedMost = 16

// GuestKernel is a Kernel that lets one thread wait while another one makes all other calls.
type GuestKernel interface {
	Kernel
	// Guests says that this kernel was opened for them.
	Guests() bool
	// Settled says that Poll would only wait: nothing that was submitted is yet to be tried. It belongs to whoever polls.
	Settled() bool
	// Idle waits until Poll of a settled kernel may find something, Rouse is called, or the clock reaches until. It takes
	// nothing.
	Idle(until Instant)
	// Alarm says when Rest ends, also to one that has begun. Whoever rests or turns the loop calls it.
	Alarm(at Instant)
	// Rest waits until Rouse is called or the alarm's instant has come, whatever else happens.
	Rest()
	// Rouse makes the current or next Idle or Rest return. Any goroutine may call it, also after Shutdown.
	Rouse()
}

// Visit is what a guest waits for.
type Visit interface {
	// Over says that there is nothing more to wait for on this loop. It becomes true in a turn, or before a letter.
	Over() bool
	// Alone says that nobody else waits for this loop.
	Alone() bool
}

// Enter makes the caller, on any goroutine, the one who turns the loop until Stay has returned; false when the loop
// takes no guests, or somebody turns it already; a host that waits in Poll is woken and ready for guests then. What the guest posts in between wakes nobody.
func (l *Loop) Enter() bool {
	if l.guests == nil {
		return false
	}
	if !l.turner.CompareAndSwap(nobody, guest) {
		if l.turner.Load() == host && !l.knocked.Swap(true) {
			l.wake() // the letter that follows need not
		}
		return false
	}
	l.sleep.Store(awake)
	return true
}

// Stay, behind Deliver, turns the loop until the visit is over, spinning and blocking as its mode has it; then it leaves.
func (l *Loop) Stay(v Visit) {
	l.counts.visits.add(1)
	end, until := l.now.After(l.spinner.current), Past
	for vain := 0; !v.Over(); {
		if l.turn(until) {
			end = max(end, l.now.After(l.spinner.span(l.moved)))
			vain = 0
		} else {
			vain = l.vainly(vain)
		}
		if until = Past; l.now >= end || l.options.Mode == EventDriven {
			until = Forever
		}
	}
	l.leave(!v.Alone())
}

// leave gives the loop back. As in fallAsleep the flag is raised before the last look for work, so that either this
// look or whoever brings work sees the other. The host is woken when there is something to do that it does not wait
// for: a resting host looks at everything when its rest is over, an idling one waits for what the kernel has seen and
// until idleUntil.
func (l *Loop) leave(handOver bool) {
	if at := Instant(l.alarm.Load()); at == Forever || at < l.now.After(hostRest/2) {
		l.putOff()
	}
	looks, resting := l.idleUntil, l.resting.Load()
	if resting {
		looks = Instant(l.alarm.Load())
	}
	if handOver {
		l.handed.Store(true)
	}
	l.sleep.Store(asleep)
	wake := l.handed.Load() || l.mail.pending() || l.stopped.Load() || l.owed() || l.timers.next() < looks
	if wake {
		l.sleep.Store(awake)
	}
	wake = wake || !resting && !l.guests.Settled()
	l.turner.Store(nobody)
	if Instant(l.alarm.Load()) == Forever { // the host lay down to rest for as long as this guest stays
		l.putOff()
	}
	if wake {
		l.counts.wakes.Add(1)
		l.guests.Rouse()
	}
}

// putOff lets the host's rest, or its next one, end hostRest from now on.
func (l *Loop) putOff() {
	at := l.kernel.Now().After(hostRest)
	l.alarm.Store(int64(at))
	l.guests.Alarm(at)
}

// rest keeps the host away for a while; it looks at everything before it waits for longer. While one guest stays, whose
// answer may take its time, there is nothing to wake for until that guest leaves and sets the alarm. As in leave, the alarm
// is taken away before the last look, so that either the guest sees that, or the host that the guest has gone.
func (l *Loop) rest(stays bool) {
	l.resting.Store(true)
	l.putOff()
	if stays {
		l.guests.Alarm(Forever)
		l.alarm.Store(int64(Forever))
		if l.turner.Load() != guest {
			l.putOff()
		}
	}
	l.guests.Rest()
}

// receiveGuests is Run for a loop that takes guests.
func (l *Loop) receiveGuests() {
	seen := uint64(0)
	for !l.stopped.Load() {
		visits := l.counts.visits.get()
		// A sleeping loop was not woken by anybody: an event came, and while guests come and go it is theirs.
		came := visits != seen
		away := came && l.sleep.Load() == asleep
		seen = visits
		if l.knocked.Swap(false) || came {
			l.unvisited = 0
		}
		if away || !l.turner.CompareAndSwap(nobody, host) {
			l.rest(!came)
			continue
		}
		if l.unvisited >= unvisitedMost {
			l.keepHouse()
			l.turner.Store(nobody)
			continue
		}
		until := l.work()
		l.turner.Store(nobody)
		if until != Past {
			l.guests.Idle(until)
		}
	}
	for !l.turner.CompareAndSwap(nobody, host) { // the last guest leaves, and no other one enters
		l.rest(true)
	}
}

// keepHouse turns the loop like one that takes no guests until somebody would have been one.
func (l *Loop) keepHouse() {
	l.handed.Store(false)
	l.resting.Store(false)
	for vain := 0; !l.stopped.Load() && !l.knocked.Load(); {
		vain = l.pass(vain)
	}
	l.rise()
}

// work turns until there is nothing left to do or to spin for, and says until when the host may idle; Past: not at all.
func (l *Loop) work() Instant {
	l.handed.Store(false)
	l.resting.Store(false)
	before := l.counts.completions.get()
	for vain := 0; ; {
		if l.turn(Past) {
			l.spinner.worked(l.now, l.moved)
			vain = 0
		} else if l.patience() != Past {
			break
		} else {
			vain = l.vainly(vain)
		}
		if l.stopped.Load() {
			l.rise()
			return Past
		}
	}
	if l.counts.completions.get() != before {
		l.unvisited++
	}
	l.idleUntil = l.timers.next()
	if l.owed() || l.idleUntil <= l.now || !l.guests.Settled() || !l.fallAsleep() {
		return Past
	}
	l.counts.sleeps.add(1)
	l.counts.show(l.kernel.Counters())
	return l.idleUntil
}
