package staging

import (
	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/reactor"
)

// User owns a flow and is told when to look at it again. All on the lane.
type User interface {
	// Advanced: a piece is ready (Out), there is room (In), every byte is through, or Fault is set. It comes from a
	// letter or from a look at the device, never from inside a method of the same flow, and perhaps once too often.
	Advanced(*Flow)
	// Ended answers End, perhaps from inside it. proven: no copy of this flow touches any memory any more. Otherwise
	// what it may touch is retained (Residue), and the user gives its lease and its loans to Keep.
	Ended(f *Flow, proven bool)
}

// Plan is what a flow moves. The user holds the lease of the device range, and the memory by it, until Ended.
type Plan struct {
	Role Role
	Way  Way
	// Memory is the device memory, whose stream copies; of several for Across the one that is written.
	Memory *cuda.Memory
	// Address is where the range begins on the device; Length is in bytes, at least 1. For Across it is where the target
	// begins, in the device or the host.
	Address, Length uint64
	// Partner is what is on the other side and From where reading begins; Across only. Nil: all is in Memory.
	Partner cuda.Partner
	From    uint64
	// Deadline bounds the waiting for the first chunk. What follows is bounded by the user, who calls End.
	Deadline reactor.Instant
}

type flowState uint8

const (
	flowIdle    flowState = iota
	flowWaiting           // for its first chunk
	flowRunning           // has a chunk
	flowFailed            // Fault is set; copies and drains may be under way
	flowEnding            // End was called; ends with the last copy and drain
)

var flowStateNames = [...]string{"idle", "waiting", "running", "failed", "ending"}

func (s flowState) String() string { return flowStateNames[s] }

// Flow moves one transfer's bytes between a device range and chunks. It is part of its user, belongs to one lane, and
// can be started again after Ended. It allocates nothing unless it fails.
type Flow struct {
	user           User
	stage          *Stage
	plan           Plan
	state          flowState
	span           span
	chunks         [flowChunksMax]*chunk // those that it holds, in the order of their bytes
	held           int
	flying         int  // of them: with the device, or not proven to be done with it
	kept           int  // of them: never proven; nothing waits for these any more
	touched        bool // see Touched
	unproven       error
	fault          *lanes.Fault
	residue        *Residue // during Ended of an unproven end
	before, behind *Flow    // in the pool's line
	timer          reactor.Timer
	news           bool  // true exactly while it stands among those whose users are to look
	later          *Flow // behind it there
}

// Start begins the flow, or says why not; then it has not begun and needs no End. Otherwise it is the user's to ask for
// pieces or room, now and at each Advanced, and to call End, whatever happens.
func (f *Flow) Start(s *Stage, user User, p Plan) *lanes.Fault {
	if f.state != flowIdle {
		panic("staging: Start of a flow that is " + f.state.String() + ", want idle")
	}
	if p.Way == Across {
		p.Role = Devices
	}
	if fault := s.Ready(p.Memory, p.Role); fault != nil {
		return fault
	}
	f.user, f.stage, f.plan = user, s, p
	f.span = span{length: p.Length, chunk: s.config.ChunkBytes}
	f.touched, f.fault, f.unproven, f.kept = false, nil, nil, 0
	if p.Way == Across {
		f.span.chunk = p.Length
	}
	s.flows++
	if c := f.pool().take(); c != nil {
		f.state = flowRunning
		f.hold(c)
		return nil
	}
	f.state = flowWaiting
	f.pool().wait(f)
	s.counts.waiting.Add(1)
	s.lane.Arm(&f.timer, p.Deadline, f)
	return nil
}

func (f *Flow) pool() *pool { return &f.stage.pools[f.plan.Role] }

// Fault is why the flow cannot go on; nil: it can. It stays until the next Start.
func (f *Flow) Fault() *lanes.Fault { return f.fault }

// Active is true exactly from a Start that was not refused until Ended.
func (f *Flow) Active() bool { return f.state != flowIdle }

// Waiting is true exactly while the flow waits for its first chunk.
func (f *Flow) Waiting() bool { return f.state == flowWaiting }

// Touched is true exactly when the device may have changed bytes of its range for this flow (In, Across). It stays until
// the next Start.
func (f *Flow) Touched() bool { return f.touched }

// Whole is true exactly when every byte is through: released by the user (Out), or confirmed in the device (In, Across).
func (f *Flow) Whole() bool { return f.span.whole() }

// grant gives a flow that waited its first chunk.
func (f *Flow) grant(c *chunk) {
	f.stage.lane.Disarm(&f.timer)
	f.stage.counts.waiting.Add(-1)
	f.state = flowRunning
	if lost := f.stage.lostOf(f.plan.Memory); lost != nil {
		f.stage.put(c)
		f.fail(lost)
		return
	}
	f.hold(c)
	f.stage.tell(f)
}

// hold puts a chunk that was lent to use.
func (f *Flow) hold(c *chunk) {
	f.chunks[f.held] = c
	f.held++
	f.stage.lend(c, f)
	c.offset, c.n = f.span.next()
	f.span.asked += c.n
	if f.plan.Way != In {
		f.fly(c)
	}
}

// more takes further chunks while there are bytes for them, and nobody waits for a first one.
func (f *Flow) more() {
	for f.state == flowRunning && f.span.left() && f.held < flowChunksMax {
		c := f.pool().take()
		if c == nil {
			return
		}
		f.hold(c)
	}
}

// Piece is the next bytes for the wire, in order; nil: none are ready. They stay as they are until Release (Out).
func (f *Flow) Piece() []byte {
	f.more()
	if f.state != flowRunning || f.held == 0 || f.chunks[0].state != chunkReady {
		return nil
	}
	return f.chunks[0].part()
}

// Release says that the wire is through with the piece; its chunk fetches what comes next, or goes back (Out).
func (f *Flow) Release() {
	if f.held == 0 || f.chunks[0].state != chunkReady {
		panic("staging: Release without a piece")
	}
	f.through(0)
}

// Room is an empty part of a chunk, for the next bytes from the wire; nil: there is none now (In).
func (f *Flow) Room() []byte {
	if f.state != flowRunning {
		return nil
	}
	if f.held == 0 || f.chunks[f.held-1].state != chunkRoom {
		if !f.span.left() || f.held == flowChunksMax {
			return nil
		}
		c := f.pool().take()
		if c == nil {
			return nil
		}
		f.hold(c)
	}
	return f.chunks[f.held-1].part()
}

// Filled says that the room is filled; its copy to the device starts (In).
func (f *Flow) Filled() {
	if f.held == 0 || f.chunks[f.held-1].state != chunkRoom {
		panic("staging: Filled without room")
	}
	f.fly(f.chunks[f.held-1])
}

// through settles the chunk at a place. It gets the bytes that come next, unless others wait and this flow can go on
// with another one.
func (f *Flow) through(place int) {
	c := f.chunks[place]
	f.span.settled += c.n
	copy(f.chunks[place:], f.chunks[place+1:f.held])
	f.held--
	f.chunks[f.held] = nil
	roomy := f.plan.Way == In && f.held > 0 && f.chunks[f.held-1].state == chunkRoom && !f.chunks[f.held-1].wired
	if f.state == flowRunning && f.span.left() && !roomy && (f.held == 0 || f.pool().head == nil) {
		f.hold(c)
		return
	}
	f.stage.put(c)
}

// fly starts the copy of a chunk.
func (f *Flow) fly(c *chunk) {
	f.flying++
	f.touched = f.touched || f.plan.Way != Out
	f.stage.fly(c)
}

// landed takes the proof that the copy of a chunk is complete: its event.
func (f *Flow) landed(c *chunk) {
	f.flying--
	c.state = chunkReady
	if f.state != flowRunning {
		f.finish()
		return
	}
	if f.plan.Way != Out {
		f.through(f.place(c))
	}
	f.user.Advanced(f)
}

func (f *Flow) place(c *chunk) int {
	for i, other := range f.chunks[:f.held] {
		if other == c {
			return i
		}
	}
	panic("staging: a copy has ended of a chunk that its flow does not hold")
}

// unstarted takes back a copy that was certainly not started.
func (f *Flow) unstarted(c *chunk, err error) {
	f.flying--
	c.state = chunkRoom
	f.broke(err)
	f.finish()
}

// doubted: the end of a copy that may be under way is not to be had from its event. A drain follows, and drained.
func (f *Flow) doubted(err error) {
	f.broke(err)
	if !f.timer.Armed() {
		f.stage.lane.Arm(&f.timer, f.stage.lane.Now().After(confirmWindow), f)
	}
}

// drained takes the word of the cold loop about a chunk: proof that its copy has ended, or that there is none.
func (f *Flow) drained(c *chunk, err error) {
	f.flying--
	if c.state = chunkReady; err != nil {
		f.keep(c, err)
	}
	f.finish()
}

// keep gives up the hope of a proof for a chunk.
func (f *Flow) keep(c *chunk, err error) {
	c.state = chunkKept
	f.kept++
	if f.unproven == nil {
		f.unproven = err
	}
	f.broke(err)
}

// broke fails the flow with an error of the device.
func (f *Flow) broke(err error) {
	f.fail(&lanes.Fault{Cause: lanes.DeviceFailed, Stage: "copy " + wayNames[f.plan.Way], Err: err})
}

// fail sets the fault; the first one stays.
func (f *Flow) fail(fault *lanes.Fault) {
	if f.fault != nil {
		return
	}
	f.fault = fault
	if f.state == flowRunning {
		f.state = flowFailed
		f.stage.tell(f)
	}
}

// End ends the flow: whole or not, no further copy starts, and those under way are waited for. The user's wire touches
// none of its chunks any more. Ended follows, at once when nothing is under way.
func (f *Flow) End() {
	switch f.state {
	case flowIdle, flowEnding:
		panic("staging: End of a flow that is " + f.state.String() + ", want started")
	case flowWaiting:
		f.unwait()
	}
	f.state = flowEnding
	f.stage.untell(f)
	for _, c := range f.chunks[:f.held] {
		if c.state == chunkStalled {
			f.stage.unstall(c)
			f.flying--
			c.state = chunkRoom
		}
	}
	f.finish()
}

func (f *Flow) unwait() {
	f.pool().leave(f)
	f.stage.counts.waiting.Add(-1)
	f.stage.lane.Disarm(&f.timer)
}

// finish gives back what nobody touches any more, and ends a flow that is to end once nothing is in doubt.
func (f *Flow) finish() {
	if f.state != flowEnding {
		return
	}
	left := 0
	for _, c := range f.chunks[:f.held] {
		if c.state == chunkRoom || c.state == chunkReady {
			f.stage.put(c)
			continue
		}
		f.chunks[left] = c
		left++
	}
	clear(f.chunks[left:])
	f.held = left
	if f.flying > 0 {
		return
	}
	s, proven := f.stage, f.unproven == nil
	s.lane.Disarm(&f.timer)
	if !proven {
		f.residue = s.retain(f)
	}
	f.state, f.held = flowIdle, 0
	clear(f.chunks[:])
	f.plan.Memory, f.plan.Partner = nil, nil
	f.user.Ended(f, proven)
	s.flows--
	s.settle()
}

// Keep gives the residue of an unproven end what has to stay alive for good: leases, loans. Only inside Ended.
func (f *Flow) Keep(owners ...any) {
	f.residue.owners = append(f.residue.owners, owners...)
	f.residue = nil
}

// KeepUntil says besides how that is given back, should a later proof come (Reclaim). Only inside Ended, instead of Keep.
func (f *Flow) KeepUntil(giveBack func()) {
	f.residue.giveBack = giveBack
	f.residue = nil
}

// Expire ends the waiting for a first chunk, or for a drain (reactor.TimerHandler).
func (f *Flow) Expire(*reactor.Timer, reactor.Instant) {
	if f.state == flowWaiting {
		f.unwait()
		f.stage.counts.waitsExpired.Add(1)
		f.state = flowRunning
		f.fail(&lanes.Fault{Cause: lanes.Deadline, Stage: "waiting for a pinned chunk", Err: f.stage.shortage(f.plan.Role)})
		return
	}
	for _, c := range f.chunks[:f.held] {
		if c.state == chunkDoubtful {
			f.stage.forsake(c)
			f.flying--
			f.keep(c, ErrHung)
		}
	}
	f.finish()
}
