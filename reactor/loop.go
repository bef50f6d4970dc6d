package reactor

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
)

// Mode says how a loop waits (SPEC L-4).
type Mode uint8

const (
	// Adaptive spins for a bounded time after the last work, then blocks. It spins less when other
	// threads want the CPU.
	Adaptive Mode = iota
	// EventDriven blocks as soon as there is nothing to do.
	EventDriven
	// Busy never blocks. It is meant for a CPU of its own, and a processor of the Go scheduler.
	Busy
	// Manual has no thread of its own: the embedding program calls Bind once and then Turn.
	Manual
)

func (m Mode) String() string {
	switch m {
	case Adaptive:
		return "adaptive"
	case EventDriven:
		return "event"
	case Busy:
		return "busy"
	case Manual:
		return "manual"
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

const (
	// perTurnDefault is how many letters, timers or completions one turn handles at most.
	perTurnDefault = 64
	// bytesPerTurnDefault is how many received and sent bytes one turn should not exceed by much.
	bytesPerTurnDefault = 8 << 20
	// ticketsAtStart is how many operations fit before the table of tickets grows.
	ticketsAtStart = 256
	// looksBeforeYield is how many turns in a row, of about 1 µs each, a loop may look in vain at queues that owe before it
	// lets others have its CPU between the looks: the peer, or a device in software, may need just that.
	looksBeforeYield = 50
	// spinsBeforeYield is the same for a loop that spins: longer than an answer takes (8 µs) from a peer that runs.
	spinsBeforeYield = 12
	// looksBeforeParting is how many turns in a row a busy loop looks in vain before it leaves its processor of the Go
	// scheduler to others, if there are no more processors than loops that spin: whom it woke, and everybody else, would
	// run only when the runtime takes a processor away, each 10 ms. Parting costs two hand-overs between threads.
	looksBeforeParting = 32
)

// Options of a loop. Zero values choose the defaults named with each field.
type Options struct {
	// Name appears in errors and statistics.
	Name string
	Mode Mode
	// Spin is how long an adaptive loop spins after work before it blocks; 0: 50 µs. After work that moved 32 KiB or more it is
	// ten times as long, and less while other threads want the CPU. One loop less than GOMAXPROCS spins at a time.
	Spin time.Duration
	// CPUs is the affinity of Run's thread; empty leaves the thread as it is.
	CPUs []int
	// Guests lets callers Enter an adaptive or event-driven loop, where the kernel is a GuestKernel and no CPUs are set.
	Guests bool
	// Letters, Timers and Completions are one turn's budgets for each kind of work; 0: 64 (SPEC L-2).
	Letters, Timers, Completions int
	// Bytes is one turn's budget of received and sent bytes; 0: 8 MiB. The kernel moves whole
	// operations, so the loop keeps to it by asking for fewer completions while they are large: a turn
	// may exceed it, the following ones make up for that.
	Bytes int
}

func (o *Options) complete() {
	fill := func(n *int, standard int) {
		if *n <= 0 {
			*n = standard
		}
	}
	fill(&o.Letters, perTurnDefault)
	fill(&o.Timers, perTurnDefault)
	fill(&o.Completions, perTurnDefault)
	fill(&o.Bytes, bytesPerTurnDefault)
}

// phase says what the loop's thread is doing, to catch a turn within a turn.
type phase uint8

const (
	resting phase = iota
	polling
	dispatching
)

// States of Loop.sleep.
const (
	awake uint32 = iota
	asleep
	rested
)

// Loop is one progress loop over one kernel. Post, Stop, Enter and Stats may be called from any goroutine,
// everything else only on the loop's thread: the one in Run, the caller of Bind and Turn, or between Enter and the
// end of Stay the guest.
type Loop struct {
	kernel     Kernel
	kernelName string
	options    Options

	now     Instant
	phase   phase
	window  int // completions to ask for; shrinks when they are large
	out     []Completion
	event   Event     // of which a handler is told; one place serves all
	scratch Operation // the kernel copies operations; one place serves all submissions
	tickets ticketTable
	timers  timerHeap
	spinner spinner
	seated  bool   // true exactly while the loop counts as spinning; the own thread's
	moved   int    // bytes that the last turn's completions moved
	shown   uint64 // turn of the last look at the kernel's counters
	hidden  bool   // true exactly when the last turn found work, which they do not show yet
	queues  []Queue
	first   int  // queue that the last turn began with
	brief   bool // true exactly when the last Poll was until Brief

	mail    mailbox
	stopped atomic.Bool
	// sleep is asleep exactly while the thread may be blocked in Poll and nobody has asked for a
	// wake-up since it went there. In manual mode it is rested after a wait that found nothing, until the
	// next turn or letter: a kernel whose Poll only notes what it would wait for hears of letters too.
	sleep atomic.Uint32

	// guests is the kernel of a loop that takes guests, nil otherwise; the next seven are used by such a loop only.
	guests    GuestKernel
	turner    atomic.Uint32 // nobody, host or guest
	handed    atomic.Bool   // true exactly when a guest left something to the host and the host has not begun with it
	resting   atomic.Bool   // true exactly from the host's rest until it turns the loop again
	alarm     atomic.Int64  // the Instant at which the host's rest ends
	knocked   atomic.Bool   // true exactly when a caller found the host turning, and the host has not heeded it
	unvisited int           // how often the host found completions since the last visit or knock
	idleUntil Instant       // how long the host idles, or idled last; whoever turns the loop

	counts loopCounts
}

// NewLoop makes a loop that owns k from now on: Close shuts it down.
func NewLoop(k Kernel, o Options) *Loop {
	o.complete()
	l := &Loop{
		kernel:     k,
		kernelName: k.Name(),
		options:    o,
		now:        k.Now(),
		window:     o.Completions,
		out:        make([]Completion, o.Completions),
		tickets:    newTicketTable(ticketsAtStart),
		spinner:    newSpinner(o.Spin),
	}
	if g, ok := k.(GuestKernel); ok && g.Guests() && o.Guests && o.Mode <= EventDriven && len(o.CPUs) == 0 {
		l.guests, l.unvisited = g, unvisitedMost
	}
	return l
}

// Run locks the calling goroutine to its thread, sets the affinity, binds the kernel and turns until
// Stop. It leaves the goroutine locked: when the goroutine ends, the thread ends with it, and with
// the thread its affinity and what the kernel bound to it. The error is an *AffinityError or the
// kernel's from Bind; nothing was dispatched then.
func (l *Loop) Run() error {
	if l.options.Mode == Manual {
		panic("reactor: Run on a loop in manual mode; call Bind and Turn")
	}
	runtime.LockOSThread()
	if err := bindThread(l.options.Name, l.options.CPUs); err != nil {
		return err
	}
	if err := l.kernel.Bind(); err != nil {
		return err
	}
	if l.guests != nil {
		l.receiveGuests()
		return nil
	}
	defer l.rise()
	for vain := 0; !l.stopped.Load(); {
		vain = l.pass(vain)
	}
	return nil
}

// pass makes one turn, and says how many in a row looked in vain at queues that owe.
func (l *Loop) pass(vain int) int {
	switch {
	case l.turn(l.patience()):
		l.spinner.worked(l.now, l.moved)
		return 0
	case l.options.Mode == Busy:
		if vain++; vain%looksBeforeParting == 0 && !l.sit() {
			runtime.Gosched()
		}
	case l.owed():
		if vain++; vain > looksBeforeYield {
			l.giveWay()
		}
	default:
		vain = l.vainly(vain)
	}
	return vain
}

// vainly counts a turn that found nothing, and lets others run from time to time while the loop spins: what it waits for
// may be a peer on the same CPU, where the system puts threads that it wakes although another CPU is free.
func (l *Loop) vainly(vain int) int {
	if vain++; vain%spinsBeforeYield == 0 {
		l.giveWay()
	}
	return vain
}

func (l *Loop) giveWay() {
	l.counts.yields.add(1)
	yield()
}

// patience says until when the next turn may block, apart from timers and pending work.
func (l *Loop) patience() Instant {
	switch l.options.Mode {
	case Busy:
		return Past
	case EventDriven:
		return Forever
	}
	until := l.spinner.patience(l.now)
	if until == Past && !l.sit() {
		return Forever
	}
	if until != Past {
		l.rise()
		if l.spinner.due(l.now) {
			l.spinner.observe(l.now, waitedForCPU())
		}
	}
	return until
}

// spinning counts the loops of the process that spin. Their threads keep the Go scheduler's processors, and whoever a loop
// wakes needs one, too: were all taken, it would run only when a loop has spun in vain. The system's CPUs may be idle
// meanwhile, so that the time that threads wait for them does not tell.
var spinning atomic.Int32

// sit takes a place among those who spin, one less than there are processors; false: none is free.
func (l *Loop) sit() bool {
	if l.seated {
		return true
	}
	if int(spinning.Add(1)) >= runtime.GOMAXPROCS(0) {
		spinning.Add(-1)
		return false
	}
	l.seated = true
	return true
}

// rise gives the place back.
func (l *Loop) rise() {
	if l.seated {
		l.seated = false
		spinning.Add(-1)
	}
}

// Bind attaches the kernel to the calling thread, instead of Run. It serves manual mode.
func (l *Loop) Bind() error { return l.kernel.Bind() }

// Turn makes one pass: poll the kernel, read the clock, then dispatch completions, those of attached queues,
// timers and letters, each within its budget. A turn behind one that found nothing reads the clock first, if the poll
// cannot block: its dispatch then goes by an instant that is earlier by the length of one poll. It blocks in the kernel
// until something happens, but not past until, not past the next timer, and not at all while work is left or a queue owes
// something. It says whether anything was dispatched.
//
// A simulated kernel may step other parts of its world while this loop waits; a Turn of the same loop
// from there does nothing and returns false.
func (l *Loop) Turn(until Instant) bool { return l.turn(until) }

func (l *Loop) turn(until Instant) bool {
	switch l.phase {
	case polling:
		return false
	case dispatching:
		panic("reactor: Turn called while the loop is dispatching; handlers must return instead of waiting")
	}
	early := !l.hidden // a loop that spins in vain: what it waits for does not wait for the clock besides
	if early {
		l.now = l.kernel.Now()
	}
	blocking, n := l.poll(until)
	l.phase = dispatching
	if blocking || !early {
		l.now = l.kernel.Now()
	}
	l.counts.turns.add(1)
	worked := l.complete(n)
	worked = l.collect() || worked
	worked = l.expire() || worked
	worked = l.receive() || worked
	l.counts.outstanding.set(uint64(l.tickets.outstanding))
	l.phase = resting
	if !worked && !blocking {
		l.counts.spins.add(1)
	}
	l.reveal(worked)
	return worked
}

// reveal shows the kernel's counters in the first turn that finds nothing after work: a loop that spins has time for it then.
func (l *Loop) reveal(worked bool) {
	if l.hidden && !worked {
		l.shown = l.counts.turns.get()
		l.counts.show(l.kernel.Counters())
	}
	l.hidden = worked
}

// poll asks the kernel for completions and says whether it was allowed to block.
func (l *Loop) poll(until Instant) (blocking bool, n int) {
	until = min(until, l.timers.next())
	if l.owed() {
		until = Past
	}
	blocking = until > l.now && l.fallAsleep()
	if blocking {
		l.counts.sleeps.add(1)
	} else {
		until = Past
		if l.brief = !l.brief && l.mail.pending(); l.brief { // what they submit comes before what may have come
			until = Brief
		}
		if l.sleep.Load() != awake {
			l.sleep.Store(awake)
		}
	}
	if turns := l.counts.turns.get(); blocking || turns-l.shown >= countersEvery {
		l.shown = turns
		l.counts.show(l.kernel.Counters())
	}
	l.phase = polling
	n = l.kernel.Poll(l.out[:l.window], until)
	switch {
	case !blocking:
	case n == 0 && l.options.Mode == Manual:
		l.sleep.CompareAndSwap(asleep, rested)
	default:
		l.sleep.Store(awake)
	}
	return blocking, n
}

// fallAsleep raises the flag and only then looks for work. Post pushes and then looks at the flag, so
// one of the two always sees the other. The same holds for Stop and Run; in manual mode a
// stopped loop may wait again, since its user may have to drain it.
func (l *Loop) fallAsleep() bool {
	l.sleep.Store(asleep)
	if l.mail.pending() || l.options.Mode != Manual && l.stopped.Load() {
		l.sleep.Store(awake)
		return false
	}
	return true
}

func (l *Loop) complete(n int) bool {
	moved := 0
	for i := range l.out[:n] {
		handler, kind := l.tickets.end(l.out[i].Ticket)
		if handler == nil {
			l.counts.stale.add(1)
			continue
		}
		moved += l.out[i].N
		l.event.Completion, l.event.Kind = l.out[i], kind
		handler.Complete(&l.event)
	}
	l.counts.completions.add(uint64(n))
	l.counts.bytes.add(uint64(moved))
	l.moved = moved
	if n > 0 {
		l.adjust(n, moved)
	}
	return n > 0
}

// adjust chooses how many completions the next turn may take, so that a turn moves about its budget
// of bytes at most.
func (l *Loop) adjust(n, moved int) {
	if moved > l.options.Bytes {
		l.window = max(1, int(int64(n)*int64(l.options.Bytes)/int64(moved)))
		return
	}
	if moved <= l.options.Bytes/2 {
		l.window = min(2*l.window, l.options.Completions)
	}
}

func (l *Loop) expire() bool {
	done := 0
	for done < l.options.Timers {
		t, handler := l.timers.expire(l.now)
		if t == nil {
			break
		}
		done++
		handler.Expire(t, l.now)
	}
	l.counts.timers.add(uint64(done))
	return done > 0
}

func (l *Loop) receive() bool {
	l.mail.collect()
	done := 0
	for done < l.options.Letters {
		m, r := l.mail.next()
		if m == nil {
			break
		}
		done++
		r.Receive(m, l.now)
	}
	l.counts.letters.add(uint64(done))
	return done > 0
}

// Stop makes Run return after its turn, and in manual mode a blocked Turn return. Any goroutine may
// call it, also before Run. Drain the loop before: the kernel of a loop that ran belongs to the
// thread of Run.
func (l *Loop) Stop() {
	l.stopped.Store(true)
	if l.sleep.Load() == asleep {
		l.wake()
	}
}

// wake ends a wait, and a manual loop's rest, once.
func (l *Loop) wake() {
	for s := l.sleep.Load(); s != awake; s = l.sleep.Load() {
		if l.sleep.CompareAndSwap(s, awake) {
			l.counts.wakes.Add(1)
			if l.guests != nil {
				l.guests.Rouse() // also for a guest: it may be about to leave, and have looked for letters already
			}
			if l.guests == nil || l.turner.Load() != nobody { // the host may be in Poll, too
				l.kernel.Wake()
			}
			return
		}
	}
}

// Post hands a letter to the loop, in order with the other letters, and wakes the loop if it sleeps.
// Any goroutine may call it, handlers of the loop too. A letter that already waits is not added
// again, and its first recipient stays. Post returns ErrStopped after Close; otherwise the letter it
// added is received exactly once.
func (l *Loop) Post(m *Letter, r Recipient) error {
	added, err := l.mail.push(m, r)
	if added {
		l.wake()
	}
	return err
}

// Deliver brings r at once what a letter would, and says whether it did: not while letters wait, which come first, nor when
// the loop is closed; Post will do then. It is for whoever turns the loop, between turns (inside one it does nothing), and
// reads the clock.
func (l *Loop) Deliver(r Recipient) bool {
	if l.phase != resting {
		return false
	}
	l.now = l.kernel.Now()
	if !l.mail.empty() {
		return false
	}
	l.phase = dispatching
	r.Receive(nil, l.now)
	l.phase, l.hidden = resting, true
	l.counts.letters.add(1)
	return true
}

// OutstandingError says that a loop cannot be closed because operations have not ended. Nothing was
// released. Cancel them, turn until they have ended, and close again.
type OutstandingError struct {
	Loop  string
	Count int
}

func (e *OutstandingError) Error() string {
	return fmt.Sprintf("reactor: loop %q: %d operations are outstanding; cancel them, turn until they have ended, then close again", e.Loop, e.Count)
}

// Close ends the loop after Run has returned (any goroutine), or in manual mode on the loop's thread:
// it seals the mailbox, delivers the letters that were accepted before, and shuts the kernel down. A
// later Close goes on where an earlier one could not: with operations outstanding it returns an
// *OutstandingError and keeps everything, and in manual mode Turn still works. Armed timers are left to their users.
func (l *Loop) Close() error {
	if l.phase != resting {
		panic("reactor: Close called from inside a turn of the same loop")
	}
	l.stopped.Store(true)
	l.mail.seal()
	l.phase = dispatching
	for l.receive() {
	}
	l.phase = resting
	if l.tickets.outstanding > 0 {
		return &OutstandingError{Loop: l.options.Name, Count: l.tickets.outstanding}
	}
	l.counts.show(l.kernel.Counters())
	return l.kernel.Shutdown()
}

// Now is the reading of the clock that the current dispatch goes by; between turns it is that of the
// last turn, before the first one that of NewLoop. Decisions use only this (SPEC L-3).
func (l *Loop) Now() Instant { return l.now }

// Kernel is the loop's door to the system, for descriptors and clock conversion. Submitting, polling
// and shutting down are the loop's own.
func (l *Loop) Kernel() Kernel { return l.kernel }

// Submit starts an operation; the ticket in op is ignored, the one returned names the operation until
// h was told its end. It never fails: errors arrive as completions, in a later turn.
func (l *Loop) Submit(op Operation, h Handler) Ticket {
	if h == nil {
		panic("reactor: Submit needs a handler")
	}
	op.Ticket = l.tickets.take(op.Kind, h)
	l.scratch = op
	l.kernel.Submit(&l.scratch)
	l.scratch = Operation{}
	return op.Ticket
}

// Cancel asks for the early end of an operation; its handler is still told exactly once, with
// whatever end came first. A stale ticket is ignored and counted.
func (l *Loop) Cancel(t Ticket) {
	if l.tickets.find(t) == nil {
		l.counts.stale.add(1)
		return
	}
	l.kernel.Cancel(t)
}

// Outstanding is the number of operations that have not ended.
func (l *Loop) Outstanding() int { return l.tickets.outstanding }

// Arm sets t to expire at the given instant; arming an armed timer moves it. An instant that has
// passed expires in the next turn, after timers that are due earlier.
func (l *Loop) Arm(t *Timer, at Instant, h TimerHandler) { l.timers.arm(t, at, h) }

// Disarm takes t out of the loop; nothing happens when it is not armed.
func (l *Loop) Disarm(t *Timer) { l.timers.disarm(t) }
