package orbitte

import (
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/tcp"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

// transferPair carries out a group's tasks over TCP, two at a time at most: while one is under way, the
// request of the next may already be posted behind it on the same stream. The next one changes nothing
// before the one at hand has succeeded, so order and stop at the first failure hold (SPEC G-3).
//
//	alone ──Free, Follow──▶ followed ──at hand succeeds──▶ alone, the follower at hand
//	                          ├─at hand fails──▶ dropping ──follower ended──▶ group fails
//	                          └─follower lost──▶ alone, its outcome kept for its turn
type transferPair struct {
	group    *group
	transfer [2]tcp.Transfer
	turn     int           // index of the transfer at hand
	followed bool          // true exactly while the other transfer follows and has not ended
	dropping bool          // true exactly while the follower of a failed transfer is being ended
	early    lanes.Outcome // of a follower that was lost before its turn; Err is nil exactly when there is none
}

func (p *transferPair) init(g *group) {
	p.group = g
	for i := range p.transfer {
		p.transfer[i].Done = func(t *tcp.Transfer) { p.ended(i, t.Outcome) }
		p.transfer[i].Free = p.follow
	}
}

func (p *transferPair) reset() {
	p.turn, p.followed, p.dropping, p.early = 0, false, false, lanes.Outcome{}
}

func (p *transferPair) at() *tcp.Transfer { return &p.transfer[p.turn] }

// start runs the task at hand.
func (p *transferPair) start(t *task, deadline reactor.Instant) {
	fill(p.at(), t, deadline)
	p.at().Start(t.segment.peer.channel)
}

func fill(x *tcp.Transfer, t *task, deadline reactor.Instant) {
	x.Direction, x.Local, x.LocalOffset = t.direction, t.local, t.localOffset
	x.Region, x.Offset, x.Length = t.region, t.offset, t.size
	x.Epoch, x.Deadline = t.segment.epoch, deadline
}

// follow posts the next task behind the one at hand, if it goes to the same peer over TCP and cannot tell that the
// one at hand has not ended. A WRITE never follows a READ: what it sends may be what the READ brings. Nor
// does a task follow another where the addresses of one's local and the other's remote range meet: engines
// of one process may share the memory object (SPEC M-9), and then the one reads, or leases, what the other
// still has to write. Memory that two processes share under different addresses is not seen here; a batch
// that passes bytes on through it is to be submitted as two.
func (p *transferPair) follow() {
	g := p.group
	if p.followed || p.early.Err != nil || g.next+1 >= len(g.tasks) || g.cancelled.Load() {
		return
	}
	now, then := &g.tasks[g.next], &g.tasks[g.next+1]
	if then.transport != TransportTCP || then.slots > 0 || then.segment.peer != now.segment.peer || now.direction == lanes.Read && then.direction == lanes.Write || entangled(now, then) {
		return
	}
	x := &p.transfer[1-p.turn]
	fill(x, then, g.deadline)
	if x.Follow(then.segment.peer.channel) {
		p.followed = true
		then.state.Store(uint32(TaskRunning))
	}
}

// entangled is true exactly when one task's local range and the other's remote range share an address.
func entangled(a, b *task) bool {
	return a.localRange().Overlaps(b.remoteRange()) || b.localRange().Overlaps(a.remoteRange())
}

func (t *task) localRange() segments.Range {
	return segments.Range{Start: t.local.Address() + t.localOffset, Length: t.localSize}
}

func (t *task) remoteRange() segments.Range {
	return segments.Range{Start: t.remote, Length: t.remoteSize}
}

// ended takes the end of a transfer.
func (p *transferPair) ended(i int, o lanes.Outcome) {
	switch {
	case i == p.turn:
		p.group.taskEnded(o)
	case p.dropping:
		p.followed = false
		p.keep(o)
		p.group.fail()
	default:
		p.followed, p.early = false, o
	}
}

// keep notes that a follower's memory is not proven quiet; its task's loans stay then.
func (p *transferPair) keep(o lanes.Outcome) {
	if !o.Drained {
		p.group.tasks[p.group.next+1].outcome = o
	}
}

// drop ends what follows a failed task; true when nothing does any more, otherwise the group fails later.
func (p *transferPair) drop() bool {
	if p.early.Err != nil {
		p.keep(p.early)
	}
	if !p.followed {
		return true
	}
	p.dropping = true
	p.transfer[1-p.turn].Cancel() // ended follows, perhaps at once
	return false
}

// proceed goes on with the follower, now that the task before it has succeeded; false when there is none.
func (p *transferPair) proceed() bool {
	if early := p.early; early.Err != nil {
		p.early = lanes.Outcome{}
		p.group.taskEnded(early)
		return true
	}
	if !p.followed {
		return false
	}
	p.followed, p.turn = false, 1-p.turn
	x := p.at()
	if p.group.cancelled.Load() { // the letter that said so came while the task before was committing
		x.Cancel()
		return true
	}
	if x.Sendless() {
		p.follow()
	}
	x.Release() // last: the group may have ended when it returns
	return true
}
