package orbitte

import (
	"sync/atomic"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/hptcp"
	"github.com/orbitte/orbitte/reactor"
)

// piecesMin is how many chunks a transfer has at least that several lanes carry; each takes one at a time. Fewer are there
// before it pays to wake another lane (measured with chunks of 1 MiB: 4 lose what 8 gain).
const piecesMin = 8

// smallFor is how long after a small request there may be others.
const smallFor = 20 * time.Millisecond

// smallRequests tells the engine of lone small requests, for which somebody waits and not for their bytes; any lane. While
// there are such, large transfers keep to one lane: on two CPUs 4 KiB beside 64 MiB take 0.15 to 0.5 ms then, and 0.6 to
// 0.9 when all lanes copy. It is written once a millisecond at most, since all lanes share it.
type smallRequests struct{ last atomic.Int64 }

func (s *smallRequests) note(now reactor.Instant) {
	if now > reactor.Instant(s.last.Load()).After(time.Millisecond) {
		s.last.Store(int64(now))
	}
}

// about is true exactly when there was one lately.
func (s *smallRequests) about(now reactor.Instant) bool {
	last := s.last.Load()
	return last != 0 && now < reactor.Instant(last).After(smallFor)
}

// team is the lanes that carry one joint together. The carrier's own transfer leads, on the group's lane; each other lane has
// a strand, which begins when the leader has the lease, and ends before the group goes on. On the group's lane, but for what
// strand says.
type team struct {
	carrier *carrier
	share   hptcp.Share
	strands []*strand
	out     int           // what must come back: the leader, strands that were started, what strands were told
	outcome lanes.Outcome // of all that have ended so far
	failed  bool          // true exactly when one of them left a gap
	prefix  uint64        // as hptcp.Transfer has them
	begun   uint64
	began   reactor.Instant
	alone   bool // true exactly when the leader carries all because of small requests
}

// whole is the Prefix of a transfer that left no gap.
const whole = ^uint64(0)

// quit says how a strand is to end early; a later one is stronger.
type quit uint8

const (
	quitNot    quit = iota
	quitIdle        // the leader is done: end unless something is under way
	quitGently      // another one failed: end with what is posted
	quitCancel      // end now
)

// strand carries pieces on one lane. Between start and ended its transfer belongs to that lane.
type strand struct {
	team                       *team
	runner                     *runner
	peer                       *hptcp.Peer // the lane's
	transfer                   hptcp.Transfer
	start, ended, order, heard reactor.Letter
	running                    bool // true exactly from start until ended
	ordered                    bool // true exactly while an order is on its way, there and back
	told, wanted               quit // the order; what it should be by now
}

// start begins with the leader.
func (m *team) start(pieces []hptcp.Piece) {
	x := &m.carrier.transfer
	m.share.Pieces = pieces
	m.share.Open()
	m.out, m.outcome, m.failed, m.prefix, m.begun = 1, lanes.Outcome{Drained: true}, false, whole, 0
	x.Share, x.Leads = &m.share, true
	m.began = m.peer().runner.lane.Now()
	if x.Leased == nil {
		x.Leased = m.leased
	}
	x.Start(m.peer().fast)
}

func (m *team) peer() *peer { return m.carrier.group.tasks[m.carrier.group.next].segment.peer }

// leased: the leader has the range, so the others may begin.
func (m *team) leased() {
	e, p := m.carrier.group.engine, m.peer()
	if m.alone = e.small.about(m.began); m.alone {
		return
	}
	for number := 1; number < p.fast.Width(); number++ {
		if len(m.strands) < number {
			m.strands = append(m.strands, newStrand(m))
		}
		r := e.runners[(p.runner.lane.Index+number)%len(e.runners)]
		m.strands[number-1].begin(r, p.side(number, r))
	}
}

func newStrand(m *team) *strand {
	s := &strand{team: m}
	s.transfer.Done = func(*hptcp.Transfer) { _ = m.carrier.group.where.Load().lane.Post(&s.ended, s) } // it lives: it has the group
	return s
}

// begin starts the strand on its lane.
func (s *strand) begin(r *runner, p *hptcp.Peer) {
	x, lead := &s.transfer, &s.team.carrier.transfer
	x.Direction, x.Local, x.LocalOffset, x.Region, x.Offset, x.Length = lead.Direction, lead.Local, lead.LocalOffset, lead.Region, lead.Offset, lead.Length
	x.Spans, x.Set, x.Share, x.Deadline = lead.Spans, lead.Set, lead.Share, lead.Deadline
	s.runner, s.peer, s.told, s.wanted = r, p, quitNot, quitNot
	if r.lane.Post(&s.start, s) == nil {
		s.running = true
		s.team.out++
	}
}

// Receive takes start and order on the strand's lane, ended and heard on the group's (reactor.Recipient).
func (s *strand) Receive(letter *reactor.Letter, _ reactor.Instant) {
	switch letter {
	case &s.start:
		s.transfer.Start(s.peer)
	case &s.order:
		if s.told == quitCancel {
			s.transfer.Cancel()
		} else {
			s.transfer.Quit(s.told == quitIdle)
		}
		_ = s.team.carrier.group.where.Load().lane.Post(&s.heard, s) // it lives: it has the group
	case &s.ended:
		s.running = false
		s.team.add(&s.transfer)
		s.team.back()
	case &s.heard:
		s.ordered = false
		s.obey()
		s.team.back()
	}
}

// obey sends the order that the strand should have by now; one at a time.
func (s *strand) obey() {
	if !s.running || s.ordered || s.wanted <= s.told {
		return
	}
	s.told = s.wanted
	if s.runner.lane.Post(&s.order, s) == nil {
		s.ordered = true
		s.team.out++
	}
}

// quit tells all strands that run.
func (m *team) quit(how quit) {
	for _, s := range m.strands {
		if s.running {
			s.wanted = max(s.wanted, how)
			s.obey()
		}
	}
}

// leaderEnded: what the others have under way, they finish.
func (m *team) leaderEnded() {
	m.add(&m.carrier.transfer)
	m.quit(quitIdle)
	m.back()
}

// add takes one transfer's end. One that failed without leaving a gap, since it had no stream or its time came between two
// pieces, is no failure of the joint: the others take what is left. The first that leaves one ends the others.
func (m *team) add(x *hptcp.Transfer) {
	o := &m.outcome
	if err := x.Outcome.Err; err != nil {
		gap := x.Prefix != whole || !x.Outcome.Drained
		if o.Err == nil || gap && !m.failed {
			o.Err = err
		}
		if gap && !m.failed {
			m.failed = true
			m.carrier.transfer.Quit(false)
			m.quit(quitGently)
		}
		m.prefix, o.Drained = min(m.prefix, x.Prefix), o.Drained && x.Outcome.Drained
	}
	m.begun = max(m.begun, x.Begun)
	if x.Begun > 0 {
		o.Local, o.Remote = max(o.Local, x.Outcome.Local), max(o.Remote, x.Outcome.Remote)
	}
}

// back counts what has come back, and ends the joint with the last of it.
func (m *team) back() {
	if m.out--; m.out > 0 {
		return
	}
	x, o := &m.carrier.transfer, &m.outcome
	untaken := m.share.Untaken()
	m.share.Close()
	switch {
	case m.failed || untaken < x.Length:
		o.Local, o.Remote = partly(o.Local), partly(o.Remote)
	case x.Direction == lanes.Read:
		m.measure()
		*o = lanes.Outcome{Bytes: x.Length, Local: lanes.EffectComplete, Drained: true}
	default:
		m.measure()
		*o = lanes.Outcome{Bytes: x.Length, Remote: lanes.EffectComplete, Drained: true}
	}
	x.Count(*o)
	m.carrier.ended(*o, min(m.prefix, untaken), m.begun)
}

func (m *team) measure() {
	if m.alone {
		return
	}
	p := m.peer()
	p.fast.Carried(m.carrier.transfer.Length, time.Duration(p.runner.lane.Now()-m.began))
}

// partly is the effect on the whole when parts are in place.
func partly(e Effect) Effect {
	if e == lanes.EffectComplete {
		return lanes.EffectPartial
	}
	return e
}
