package staging

import (
	"errors"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/reactor"
)

// Stage is one lane's share of staging: its chunks, its signal, and the copies that are under way. Only its lane touches
// it, but for Prepare, Stats, Residues and Abandon. The lane watches the signal exactly while copies are under way.
//
//	made ──Prepare──▶ prepared ──Close──▶ closing ──flows ended, cold──▶ closed
//	  └──────────────────Close───────────────────────────────────────────▲
type Stage struct {
	lane     *lanes.Lane
	config   Config
	supply   atomic.Pointer[supply] // nil before the first Prepare
	taken    bool                   // true exactly when the pools have the supply's chunks
	signal   *cuda.Signal
	pools    [roles]pool
	places   [acrossMax]chunk
	flows    int
	lent     int      // slots
	flying   list     // copies under way, in the order of their start
	stalled  list     // copies that wait for a place on their memory's stream
	landed   []*chunk // of the look at hand
	news     *Flow    // flows whose users are to look, the newest first
	letter   reactor.Letter
	watch    reactor.Ticket
	timer    reactor.Timer
	pause    time.Duration
	copies   [1]cuda.Copy
	lost     []error // by ordinal: *DeviceLost
	counts   counts
	residues atomic.Pointer[Residue]
	closing  bool
	closed   func()
	farewell farewell
}

// New makes the stage of a lane. It takes nothing from any device before the first Prepare: an engine that never sees
// device memory makes no context. The owner sets Lane.Staging.
func New(lane *lanes.Lane, c Config) *Stage {
	c.complete()
	s := &Stage{lane: lane, config: c, landed: make([]*chunk, 0, 2*c.Chunks+acrossMax)}
	for i := range s.places {
		s.places[i].stage, s.places[i].role = s, Devices
		s.pools[Devices].add(&s.places[i])
	}
	return s
}

// Stats reads the counts; any goroutine.
func (s *Stage) Stats() Stats { return s.counts.read() }

// Ready says why no flow of this memory can start on the lane now; nil: one can. The stage may be nil, and the memory.
func (s *Stage) Ready(m *cuda.Memory, role Role) *lanes.Fault {
	switch {
	case s == nil:
		return refusal(lanes.DeviceFailed, ErrAbsent)
	case s.closing:
		return refusal(lanes.Closed, ErrClosed)
	case m == nil || !m.Prepared() || !s.equip():
		return refusal(lanes.DeviceFailed, ErrUnprepared)
	case s.pools[role].whole == 0:
		return refusal(lanes.Exhausted, ErrAllRetained)
	}
	return s.lostOf(m)
}

func refusal(cause lanes.Cause, err error) *lanes.Fault {
	return &lanes.Fault{Cause: cause, Stage: "staging", Err: err}
}

// equip takes what Prepare made; false: nothing was made.
func (s *Stage) equip() bool {
	if s.taken {
		return true
	}
	made := s.supply.Load()
	if made == nil {
		return false
	}
	s.taken, s.signal = true, made.signal
	for role := range Devices {
		for i := range made.chunks[role] {
			s.pools[role].add(&made.chunks[role][i])
		}
	}
	return true
}

// tell makes a flow's user look, in a turn of its own. The letter is the stage's: one of the flow could still be on its
// way here when the flow has ended and goes on at another lane.
func (s *Stage) tell(f *Flow) {
	if f.news {
		return
	}
	f.news, f.later, s.news = true, s.news, f
	_ = s.lane.Post(&s.letter, s) // a loop that takes no letters any more has no flows: the stage is closed before it
}

// untell takes a flow out of those whose users are to look.
func (s *Stage) untell(f *Flow) {
	if !f.news {
		return
	}
	f.news = false
	for at := &s.news; *at != nil; at = &(*at).later {
		if *at == f {
			*at = f.later
			break
		}
	}
	f.later = nil
}

// Receive is the turn in which users look, in the order in which something happened to their flows
// (reactor.Recipient).
func (s *Stage) Receive(*reactor.Letter, reactor.Instant) {
	for last := s.news; last != nil; { // those that are there now
		oldest := s.news
		for oldest.later != nil {
			oldest = oldest.later
		}
		end := oldest == last
		s.untell(oldest)
		oldest.user.Advanced(oldest)
		if end || !last.news {
			break
		}
	}
	if s.news != nil {
		_ = s.lane.Post(&s.letter, s)
	}
}

// lend counts a chunk as a flow's.
func (s *Stage) lend(c *chunk, f *Flow) {
	if c.flow == nil {
		s.counts.inUse.Add(1)
	}
	if !c.mine {
		c.clean = 0
	}
	c.flow, c.state, c.wired, c.mine = f, chunkRoom, false, false
}

// put takes a chunk back, for whoever waits longest.
func (s *Stage) put(c *chunk) {
	if c.flow != nil {
		c.flow = nil
		s.counts.inUse.Add(-1)
	}
	c.state = chunkRoom
	p := &s.pools[c.role]
	p.put(c)
	if f, next := p.next(); f != nil {
		f.grant(next)
	}
}

// fly starts the copy of a chunk: copy, event, callback, in one crossing. Without a place on the memory's stream the
// copy is stalled until the next look.
func (s *Stage) fly(c *chunk) {
	f := c.flow
	if lost := s.lostOf(f.plan.Memory); lost != nil {
		f.unstarted(c, lost.Err)
		return
	}
	s.copies[0] = c.copy(&f.plan)
	pending, err := f.plan.Memory.Start(s.copies[:], c.partner(&f.plan), s.signal)
	switch {
	case err == nil:
		c.pending, c.state, c.since = pending, chunkFlying, s.lane.Now()
		s.flying.add(c)
		s.counts.flying.Add(1)
		s.listen()
	case pending.Started():
		c.pending = pending
		s.doubt(c, err)
	case errors.Is(err, cuda.ErrBusy) || errors.Is(err, cuda.ErrFenced):
		c.state = chunkStalled
		s.stalled.add(c)
		s.counts.stalled.Add(1)
		s.guard()
	default:
		s.counts.failed.Add(1)
		if errors.Is(err, cuda.ErrCopy) { // otherwise it is the reason for which memory is retained, perhaps another device's
			s.suspect(f.plan.Memory, err)
		}
		f.unstarted(c, err)
	}
}

// unstall takes a chunk out of those that wait for a place on a stream.
func (s *Stage) unstall(c *chunk) { s.stalled.remove(c) }

// listen watches the signal and arms the safety timer.
func (s *Stage) listen() {
	if s.watch == 0 {
		s.watch = s.lane.Submit(reactor.Operation{Kind: reactor.Watch, Descriptor: reactor.Descriptor(s.signal.Descriptor())}, s)
	}
	s.guard()
}

// guard arms the safety timer.
func (s *Stage) guard() {
	if !s.timer.Armed() {
		s.pause = lookMin
		s.lane.Arm(&s.timer, s.lane.Now().After(s.pause), s)
	}
}

// Complete: callbacks have run, or the watch was cancelled (reactor.Handler).
func (s *Stage) Complete(e *reactor.Event) {
	s.watch = 0
	err := e.Err
	if err == nil {
		var n uint64
		n, err = s.signal.Take()
		s.counts.callbacks.Add(n)
		s.look()
	}
	switch {
	case err == nil && s.flying.first != nil:
		s.listen()
	case err != nil && err != syscall.ECANCELED:
		s.counts.deaf.Add(1) // the timer finds the copies, and listens again: no loop turns for a signal that stays readable
	}
	s.settle()
}

// Expire looks at copies that no callback has announced, and at those that wait for a place (reactor.TimerHandler).
func (s *Stage) Expire(_ *reactor.Timer, now reactor.Instant) {
	pause := s.pause
	s.counts.timerFound.Add(uint64(s.look()))
	s.forsakeHung(now)
	if s.flying.first != nil {
		s.listen()
	}
	if s.flying.first != nil || s.stalled.first != nil {
		s.pause = min(2*pause, lookMax)
		s.lane.Arm(&s.timer, now.After(s.pause), s)
	}
}

// look asks the events of all copies that are under way, and says how many it found complete. The list is sorted out
// before anybody is told, since whoever is told starts and ends what it likes. Copies of one memory end in order.
func (s *Stage) look() (found int) {
	var busy *cuda.Memory
	landed := s.landed
	for c := s.flying.all(); c != nil; {
		next, memory := c.next, c.flow.plan.Memory
		done := false
		if memory != busy {
			done, c.failure = c.pending.Confirm()
		}
		if done || c.failure != nil {
			landed = append(landed, c)
		} else {
			busy = memory
			s.flying.add(c)
		}
		c = next
	}
	for i, c := range landed {
		landed[i] = nil
		s.counts.flying.Add(-1)
		if c.failure != nil {
			err := c.failure
			c.failure = nil
			s.doubt(c, err)
			continue
		}
		found++
		s.counts.copies.Add(1)
		s.counts.bytes.Add(c.n)
		c.pending = cuda.Pending{}
		c.flow.landed(c)
	}
	for c := s.stalled.all(); c != nil; {
		next := c.next
		s.fly(c)
		c = next
	}
	return found
}

// doubt drains the stream of a copy that may be under way and has no event to prove its end (SPEC C-3).
func (s *Stage) doubt(c *chunk, err error) {
	s.counts.failed.Add(1)
	s.suspect(c.flow.plan.Memory, err)
	c.drain()
	c.flow.doubted(err)
}

// drained goes on with a chunk that the cold loop has drained.
func (s *Stage) drained(c *chunk) {
	err := c.drained
	if c.drained = nil; err == nil {
		s.counts.drained.Add(1)
	} else {
		s.suspect(c.flow.plan.Memory, err)
	}
	c.flow.drained(c, err)
}

// forsakeHung gives copies up that are under way for too long: nothing is proven about them, nor will be.
func (s *Stage) forsakeHung(now reactor.Instant) {
	for c := s.flying.first; c != nil && now >= c.since.After(confirmWindow); c = s.flying.first {
		f := c.flow
		s.flying.remove(c)
		s.counts.flying.Add(-1)
		s.forsake(c)
		f.flying--
		f.keep(c, ErrHung)
		f.finish()
	}
}

// forsake retains what a copy touches that nobody waits for any more.
func (s *Stage) forsake(c *chunk) {
	c.forlorn = true
	c.pending.Forsake(ErrHung)
}

// suspect notes errors after which a device takes no more work in this process.
func (s *Stage) suspect(m *cuda.Memory, err error) {
	var call *cuda.CallError
	if !errors.As(err, &call) || !sticks(call.Result) {
		return
	}
	for len(s.lost) <= m.Ordinal() {
		s.lost = append(s.lost, nil)
	}
	if s.lost[m.Ordinal()] == nil {
		s.lost[m.Ordinal()] = &DeviceLost{Ordinal: m.Ordinal(), Err: err}
	}
}

// sticks is true exactly for results that stay with a context: from then on every call in it fails.
func sticks(r cuda.Result) bool {
	switch r {
	case cuda.Deinitialized, cuda.ECCUncorrectable, cuda.IllegalAddress, cuda.ContextDestroyed, cuda.LaunchFailed:
		return true
	}
	return r > cuda.ContextDestroyed && r < cuda.LaunchFailed // assertions and kinds of bad addresses
}

// lostOf refuses work for a device that takes no more; nil: it does.
func (s *Stage) lostOf(m *cuda.Memory) *lanes.Fault {
	if m.Ordinal() >= len(s.lost) || s.lost[m.Ordinal()] == nil {
		return nil
	}
	return refusal(lanes.DeviceFailed, s.lost[m.Ordinal()])
}
