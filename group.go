package orbitte

import (
	"sync/atomic"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/delegate"
	"github.com/orbitte/orbitte/lanes/hptcp"
	"github.com/orbitte/orbitte/lanes/local"
	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/reactor"
)

// task is one request of a group. Its outcome is written before its state becomes terminal (SPEC B-4).
type task struct {
	resolved
	outcome lanes.Outcome
	state   atomic.Uint32 // TaskState
}

// group carries out the requests of one submission in their order, and stops at the first failure. It is
// the executor of synchronous and asynchronous submissions alike (SPEC G-3, B-1). From start to the
// end one lane at a time owns it: the one that owns the peer of the task at hand. Other lanes may carry parts of an HP-TCP
// transfer meanwhile (team); they know the group's lane only.
type group struct {
	engine    *Engine
	tasks     []task
	next      int             // the task at hand
	deadline  reactor.Instant // Past: Config.RequestTimeout after a lane takes the group up
	place     place
	kept      bool // true exactly when whoever is told of the end gives the place back
	bytes     budgets.Charge
	pair      transferPair
	copy      local.Transfer
	rdma      *rdma.Transfer     // nil before the first request over RDMA
	ways      []rdma.Path        // of the last request over RDMA
	directed  *delegate.Transfer // nil before the first request with remote slots
	fast      *carrier           // nil before the first request over HP-TCP
	start     reactor.Letter
	cancelled atomic.Bool
	where     atomic.Pointer[runner] // whose lane owns the group; only that lane changes it; nil before the start
	visited   *runner                // whose guest the caller of a synchronous submission is or was
	endEarly  func()                 // end, as a value made once
	quit      <-chan struct{}        // closed when that caller waits no longer; nil: never
	ended     func()                 // called last, on the lane
	proven    func()                 // called when the proof comes late that its memory is quiet; nil: nobody is told
	told      func()                 // what ended is for a synchronous submission
	done      chan struct{}          // told once, when a synchronous submission has ended, unless its caller drives
	driven    bool                   // true exactly while that caller has the driver's seat (manual mode), and looks at waiting itself
	waiting   atomic.Uint32          // waitingState of a synchronous submission
}

// waitingState settles who is last: the caller that gives up, or the lane that finishes.
type waitingState = uint32

const (
	waitingOn   waitingState = iota
	waitingOver              // the group has ended
	waitingLeft              // the caller returned ErrUnquiesced; the group goes on by itself
)

func newGroup(e *Engine) *group {
	g := &group{engine: e, done: make(chan struct{}, 1)}
	g.pair.init(g)
	g.copy.Done = func(t *local.Transfer) { g.taskEnded(t.Outcome) }
	g.told = func() {
		if !g.driven {
			g.done <- struct{}{}
		}
	}
	g.endEarly = g.end
	return g
}

// admit checks all requests, borrows what they need and charges their bytes, before any effect. A failure
// leaves nothing behind. From here on end may be called.
func (g *group) admit(requests []Request) error {
	e := g.engine
	if len(requests) > e.config.Limits.BatchRequests {
		return &Error{Index: -1, Class: ErrExhausted, Cause: &budgets.Exhausted{
			Budget: "batch descriptors", Unit: "requests", Asked: int64(len(requests)), Limit: int64(e.config.Limits.BatchRequests),
		}}
	}
	total, err := g.resolve(requests)
	if err == nil && g.fast != nil {
		err = g.fast.plan(requests)
	}
	if err == nil {
		g.bytes, err = e.budgets.submittedBytes.Take(int64(total))
	}
	if err != nil {
		g.release()
		return err
	}
	g.next = 0
	g.cancelled.Store(false)
	g.waiting.Store(waitingOn)
	g.where.Store(nil)
	g.pair.reset()
	return nil
}

func (g *group) resolve(requests []Request) (total uint64, err error) {
	if cap(g.tasks) < len(requests) {
		g.tasks = make([]task, len(requests))
	}
	g.tasks = g.tasks[:len(requests)]
	for i := range requests {
		t := &g.tasks[i]
		if err := t.resolve(g.engine, &requests[i]); err != nil {
			g.tasks = g.tasks[:i]
			return 0, requestError(i, &requests[i], err)
		}
		t.outcome = lanes.Outcome{Drained: true}
		t.state.Store(uint32(TaskQueued))
		if t.transport == TransportRDMA && g.rdma == nil {
			g.rdma = &rdma.Transfer{Done: func(x *rdma.Transfer) { g.rdmaEnded(x) }}
		}
		if t.slots > 0 && g.directed == nil {
			g.directed = &delegate.Transfer{Done: func(x *delegate.Transfer) { g.directedEnded(x) }}
		}
		if t.transport == TransportHPTCP && g.fast == nil {
			g.fast = newCarrier(g)
		}
		total = min(total+t.size, requestBytesMax) // each is at most that, so this cannot overflow
	}
	return total, nil
}

func requestError(i int, r *Request, err error) error {
	endpoint := ""
	if r.Segment != nil {
		endpoint = r.Segment.endpoint
	}
	own, ok := err.(*Error)
	if !ok {
		own = &Error{Class: classOf(err), Cause: err}
	}
	own.Index, own.Endpoint = i, endpoint
	return own
}

// release gives back what tasks that did not end still hold.
func (g *group) release() {
	for i := range g.tasks {
		if g.tasks[i].local != nil {
			g.tasks[i].release()
		}
	}
}

// runner is whose lane owns the task's peer; an engine's own segment has no peer and takes the first.
func (t *task) runner(e *Engine) *runner {
	if t.segment.peer == nil {
		return e.runners[0]
	}
	return t.segment.peer.runner
}

// run hands the group to the lane of its first task, at once where the caller turns that lane.
func (g *group) run(turns bool) error {
	if len(g.tasks) == 0 {
		g.finish()
		return nil
	}
	first := g.tasks[0].runner(g.engine)
	g.where.Store(first)
	if turns && first.lane.Deliver(g) {
		return nil
	}
	if err := first.lane.Post(&g.start, g); err != nil {
		return &Error{Index: -1, Class: ErrClosed, Cause: err}
	}
	return nil
}

// Receive goes on with the task at hand, on its lane (reactor.Recipient).
func (g *group) Receive(_ *reactor.Letter, now reactor.Instant) {
	t := &g.tasks[g.next]
	if g.deadline == reactor.Past {
		g.deadline = now.After(g.engine.config.RequestTimeout)
	}
	if g.cancelled.Load() {
		g.taskEnded(lanes.Outcome{Err: &lanes.Fault{Cause: lanes.Cancelled, Stage: "queue"}, Drained: true})
		return
	}
	t.state.Store(uint32(TaskRunning))
	if len(g.tasks) == 1 && t.size <= hptcp.SmallBytes && t.segment.peer != nil {
		g.engine.small.note(t.segment.peer.runner.lane.Now())
	}
	if t.transport == TransportHPTCP {
		g.fast.start(t)
		return
	}
	if t.segment.peer == nil {
		c := &g.copy
		c.Direction, c.Local, c.LocalOffset = t.direction, t.local, t.localOffset
		c.Region, c.Offset, c.Length, c.Deadline = t.region, t.offset, t.size, g.deadline
		c.Start(g.where.Load().lane)
		return
	}
	if t.slots > 0 && t.size > 0 {
		g.startDirected(t)
		return
	}
	if t.transport == TransportRDMA {
		g.startRDMA(t)
		return
	}
	g.pair.start(t, g.deadline)
}

// startRDMA runs the task at hand over RDMA.
func (g *group) startRDMA(t *task) {
	x := g.rdma
	x.Direction, x.Local, x.LocalOffset = t.direction, t.local, t.localOffset
	x.Region, x.Offset, x.Length = t.region, t.offset, t.size
	x.Epoch, x.Deadline, x.Remote = t.segment.epoch, g.deadline, rdma.RemoteHost
	switch {
	case t.placing.thereDirect:
		x.Remote = rdma.RemoteDirect
	case t.placing.there:
		x.Remote = rdma.RemoteStaged
	}
	x.Start(t.segment.peer.runner.rails, t.segment.peer.rdma)
}

func (g *group) rdmaEnded(x *rdma.Transfer) {
	g.ways = x.Ways(g.ways[:0])
	g.taskEnded(x.Outcome)
}

// taskEnded copies the outcome out, gives the task's loans back and goes on.
func (g *group) taskEnded(o lanes.Outcome) {
	t := &g.tasks[g.next]
	t.outcome = o
	if o.Drained { // otherwise the loans stay: the memory is not proven quiet
		t.release()
	}
	if o.Err != nil {
		t.state.Store(uint32(TaskFailed))
		if g.pair.drop() {
			g.fail()
		}
		return
	}
	t.state.Store(uint32(TaskSucceeded))
	g.next++
	g.proceed()
}

// proceed goes on behind a task that has succeeded.
func (g *group) proceed() {
	if g.next == len(g.tasks) {
		g.finish()
		return
	}
	if !g.pair.proceed() {
		g.forward()
	}
}

// fail ends the group after its failed task, once nothing follows it any more.
func (g *group) fail() {
	g.skipRest()
	g.finish()
}

// forward goes on with the next task: at once when the same lane carries it to a peer, by letter
// otherwise, so that neither another lane's state is touched nor a run of local copies keeps the lane.
func (g *group) forward() {
	here, to := g.where.Load(), g.tasks[g.next].runner(g.engine)
	if here == to && g.tasks[g.next].segment.peer != nil {
		g.Receive(nil, 0)
		return
	}
	g.where.Store(to)
	if err := to.lane.Post(&g.start, g); err != nil {
		g.taskEnded(lanes.Outcome{Err: &lanes.Fault{Cause: lanes.Closed, Err: err}, Drained: true})
	}
}

func (g *group) skipRest() {
	for i := g.next + 1; i < len(g.tasks); i++ {
		if TaskState(g.tasks[i].state.Load()).Terminal() { // it ran beside the failed one
			continue
		}
		if g.tasks[i].outcome.Drained {
			g.tasks[i].release()
		}
		g.tasks[i].state.Store(uint32(TaskSkipped))
	}
}

// finish repays the charges and tells whoever waits. Proof: every task has ended or was skipped. A group
// whose memory is not proven quiet keeps them (SPEC G-9).
func (g *group) finish() {
	left := !g.waiting.CompareAndSwap(waitingOn, waitingOver)
	if !g.drained() {
		g.engine.retained.Store(g, struct{}{})
		if left {
			g.engine.counts.unquiesced.Add(-1) // it is listed as retained from here on
		}
		g.place.retain()
		g.ended()
		return
	}
	g.bytes.Repay()
	if left || !g.kept {
		g.place.leave()
	}
	if left {
		g.engine.counts.unquiesced.Add(-1)
	}
	g.ended()
}

// reclaim gives back what a retained group keeps. Proof: that of whoever calls, for each of its tasks.
func (g *group) reclaim() {
	for i := range g.tasks {
		if t := &g.tasks[i]; !t.outcome.Drained {
			t.release()
		}
	}
	g.bytes.Repay()
	g.place.leave()
	if g.proven != nil {
		g.proven()
	}
	g.engine.retained.Delete(g)
}

// drained is true exactly when no task's memory may still be touched.
func (g *group) drained() bool {
	for i := range g.tasks {
		if !g.tasks[i].outcome.Drained {
			return false
		}
	}
	return true
}

// groupCancel asks one lane to end what a group has running there.
type groupCancel struct {
	letter reactor.Letter
	group  *group
	owner  *runner
}

// Receive cancels what runs, if this lane still has the group (reactor.Recipient). A group that moved on
// has seen the flag, which was raised before.
func (c *groupCancel) Receive(*reactor.Letter, reactor.Instant) {
	if c.group.where.Load() == c.owner {
		c.group.pair.at().Cancel()
		c.group.copy.Cancel()
		if c.group.directed != nil {
			c.group.directed.Cancel()
		}
		if c.group.rdma != nil {
			c.group.rdma.Cancel()
		}
		if c.group.fast != nil {
			c.group.fast.cancel()
		}
	}
}

// end asks for the early end of the group, from any goroutine. The flag is raised before the owner is
// read: a group that moves on meanwhile sees it on its next lane.
func (g *group) end() {
	g.cancelled.Store(true)
	if owner := g.where.Load(); owner != nil {
		c := &groupCancel{group: g, owner: owner}
		_ = owner.lane.Post(&c.letter, c) // a lane that has ended has ended the group
	}
}

// report sums the group up, after its end. The error is that of the task that failed.
func (g *group) report(report *Report) error {
	report.Failed, report.LocallyDrained = -1, g.drained()
	for i := range g.tasks {
		t := &g.tasks[i]
		report.Path = g.path(t)
		if TaskState(t.state.Load()) == TaskSucceeded {
			report.Completed++
			report.Bytes += t.outcome.Bytes
			continue
		}
		report.Failed, report.Local, report.Remote = i, t.outcome.Local, t.outcome.Remote
		for k := i + 1; k < len(g.tasks) && TaskState(g.tasks[k].state.Load()) == TaskFailed; k++ {
			report.Begun++
		}
		return t.failure(i)
	}
	return nil
}

// failure is what a failed task's owner is told; nil when it did not fail.
func (t *task) failure(i int) error {
	if t.outcome.Err == nil {
		return nil
	}
	class := classOf(t.outcome.Err)
	if !t.outcome.Drained {
		class = ErrUnquiesced
	}
	own := &Error{Index: i, Endpoint: t.segment.endpoint, Class: class, Cause: t.outcome.Err, unknown: t.outcome.Remote == EffectUnknown}
	if max(t.outcome.Local, t.outcome.Remote) > EffectNone {
		own.situation = midway
	}
	return own
}

func (g *group) path(t *task) string {
	return t.placing.way(g.carriedBy(t), t.segment.peer == nil)
}

func (g *group) carriedBy(t *task) string {
	switch {
	case t.segment.peer == nil:
		return "local copy"
	case t.transport == TransportRDMA:
		return g.engine.rdma.way(t.segment, g.ways, t.placing) + g.slotsWay(t)
	case t.transport == TransportHPTCP:
		return g.engine.hptcpWay()
	case g.engine.policy.Direct:
		return "tcp direct" + g.slotsWay(t)
	}
	if t.slots == 0 { // joining strings costs 10 ns
		return "tcp"
	}
	return "tcp" + g.slotsWay(t)
}
