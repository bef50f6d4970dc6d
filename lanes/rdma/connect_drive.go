package rdma

import (
	"errors"
	"fmt"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/verbs"
)

// Peer is what this lane knows of one source. It belongs to the lane of its channel and lives until its last connection
// is gone.
type Peer struct {
	Channel  *control.Channel
	Epoch    netproto.Epoch
	Paths    []netproto.Path
	PairsMax int // of netproto.RDMAPaths
	// SlicesMax and Host are of netproto.RDMAPaths, too; SlicesMax 0: the peer said nothing.
	SlicesMax int
	Host      netproto.HostMemoryPolicy
	// StagedPart is of netproto.RDMAPaths as well.
	StagedPart uint64

	direct int // places that transfers from and to its GPUs have in the lane's turnstile
}

// path returns what the peer published about one of its NICs.
func (p *Peer) path(nic uint8) *netproto.Path {
	for i := range p.Paths {
		if p.Paths[i].NIC == nic {
			return &p.Paths[i]
		}
	}
	return nil
}

// User is a transfer or a grant that holds a connection. It is told on the connection's lane.
type User interface {
	// Lost: the connection has failed. The user posts nothing more on it; completions of what it posted still come.
	Lost(c *Connection, err error)
	// Quiet follows Lost, once: nothing more is delivered for this connection. Proven is true exactly when the device is
	// certainly done with all its work: the user then frees the windows it bound on these pairs, returns its memory and
	// gives back its hold, all within the connection's cleanup window. Otherwise what it posted may still touch memory:
	// it keeps that for good, counts it, and gives back its hold.
	Quiet(c *Connection, proven bool)
}

// Hold is one user's hold on a connection. It is part of its owner; the zero value holds nothing.
type Hold struct {
	Connection *Connection // nil: nothing is held
	User       User

	prev, next *Hold
	quiet      bool // true exactly when Quiet was told
}

// Release gives the hold back. The user has no work with the device and no bound window on the connection, or was told
// Quiet.
func (h *Hold) Release() {
	c := h.Connection
	if c == nil {
		panic("rdma: Release of a hold that holds nothing")
	}
	c.holds.remove(h)
	h.Connection = nil
	c.released()
}

// holdList is the users of one connection, in order of arrival.
type holdList struct {
	head, tail *Hold
	n          int
}

func (l *holdList) add(h *Hold) {
	h.prev, h.next = l.tail, nil
	if l.tail == nil {
		l.head = h
	} else {
		l.tail.next = h
	}
	l.tail = h
	l.n++
}

func (l *holdList) remove(h *Hold) {
	if h.prev == nil {
		l.head = h.next
	} else {
		h.prev.next = h.next
	}
	if h.next == nil {
		l.tail = h.prev
	} else {
		h.next.prev = h.prev
	}
	h.prev, h.next = nil, nil
	l.n--
}

type connectionState uint8

const (
	connectionBuilding connectionState = iota
	connectionOpen
	connectionDraining   // its pairs are in error; their flush is awaited
	connectionQuiet      // proven drained; its users clean up, then its pairs are destroyed
	connectionDestroying // the cold loop destroys the pairs
	connectionRetained
	connectionGone
)

var connectionStateNames = [...]string{"building", "open", "draining", "quiet", "being destroyed", "retained", "gone"}

func (s connectionState) String() string { return connectionStateNames[s] }

// Connection is an array of connected queue pairs: the drive of an Array. It belongs to one lane.
//
//	building ──▶ open ──Fail, or the end of the array──▶ draining ──all flushed──▶ quiet ──users gone──▶ being destroyed ──▶ gone
//	                                                         └──────30 s passed, a refusal──────┴────────────────┴──▶ retained
type Connection struct {
	Role      Role
	Direction lanes.Direction
	Device    *Device // this side's
	// Own and Other are the incarnations of this side's end and the other's.
	Own, Other netproto.Incarnation
	// OtherEpoch, OtherNIC, OtherDomain say who the other side is.
	OtherEpoch  netproto.Epoch
	OtherNIC    uint8
	OtherDomain uint64
	// OtherDepth is how many sends the other side may have outstanding on one pair, ReadsAsked how many READs this side.
	OtherDepth, ReadsAsked int
	// OtherPairs are the other side's queue pair numbers.
	OtherPairs []netproto.PairAddress

	profile netproto.GrantProfile
	awaits  bool        // true exactly while it is kept for the grant that it was made for, see await
	private *privateEnd // at the source of a grant on a GPU; nil: it shares its device's domain

	rails  *Rails
	rail   *Rail
	array  *Array
	peer   *Peer // requester only
	pairs  []*verbs.QueuePair
	state  connectionState
	holds  holdList
	err    error           // why it failed; nil: it did not
	by     reactor.Instant // end of the cleanup window; 0 before
	timer  reactor.Timer
	errand errand
	leave  *question // requester: the exchange that ends the source's side; nil: not begun
	left   error     // what it came to
	ends   []func(error)
	busy   bool   // true exactly inside advance
	forgot bool   // true exactly when the source does not know the connection any more
	listed bool   // in rail.connections
	lines  []line // what the upper half does on each pair; nil before it did anything
	well   *well  // at the source: the receives of the upper half; nil before the first
}

func (c *Connection) String() string {
	side := "requester's"
	if c.Role == Source {
		side = "source's"
	}
	return fmt.Sprintf("%s RDMA connection %x on %s to NIC %d", side, c.Own[:4], c.Device.Name, c.OtherNIC)
}

// Width is how many queue pairs it has.
func (c *Connection) Width() int { return len(c.pairs) }

// Pair is one of its queue pairs. Users post through PostSend and PostReceive.
func (c *Connection) Pair(i int) *verbs.QueuePair { return c.pairs[i] }

// NextPair gives users the pairs in turn.
func (c *Connection) NextPair() int { return c.array.Pair() }

// Rail is the rail whose queues the connection's completions come from.
func (c *Connection) Rail() *Rail { return c.rail }

// Peer is the source behind a requester's connection.
func (c *Connection) Peer() *Peer { return c.peer }

// Open is true exactly when work may be posted.
func (c *Connection) Open() bool { return c.state == connectionOpen }

// Err is why it failed; nil: it did not.
func (c *Connection) Err() error { return c.err }

// quieted is true from the moment on when nothing is delivered any more.
func (c *Connection) quieted() bool { return c.state >= connectionQuiet }

// fencedPair is why one of the pairs takes no work; empty: all do.
func (c *Connection) fencedPair() string {
	for _, p := range c.pairs {
		if why := p.Fenced(); why != "" {
			return why
		}
	}
	return ""
}

// Take adds a user to an open connection; false: it is not open.
func (c *Connection) Take(h *Hold, u User) bool {
	if c.state != connectionOpen || c.array.State() != Ready {
		return false
	}
	c.rails.store.hold(c.array)
	c.give(h, u)
	return true
}

func (c *Connection) give(h *Hold, u User) {
	if h.Connection != nil || u == nil {
		panic("rdma: a hold given twice, or to nobody")
	}
	*h = Hold{Connection: c, User: u}
	c.holds.add(h)
}

// released follows the end of a hold.
func (c *Connection) released() {
	if c.rails.store.Release(c.array) {
		c.finish()
	}
}

// TagSend and TagReceive make the tag of one piece of work for PostSend and PostReceive. Its owner is told the end of the
// work with its word, once, unless the connection is quiet before.
func (c *Connection) TagSend(owner Owner, word uint64) uint64 {
	tag := c.rail.tag(c, owner, word, false)
	c.rail.sending++
	return tag
}

// TagReceive is TagSend for a receive.
func (c *Connection) TagReceive(owner Owner, word uint64) uint64 {
	return c.rail.tag(c, owner, word, true)
}

// Untag takes back the tag of work that was not posted.
func (c *Connection) Untag(tag uint64) { c.rail.untag(tag) }

// PostSend posts work on a pair, in order. Each ID is a tag of TagSend. On an error the tags of the suffix that was
// certainly not taken are gone: a *verbs.PostError says how much was taken; any other error means nothing, and windows of
// the list are still prepared (verbs.QueuePair.PostSend). When nobody can say what was taken the connection fails, and the users hear it before PostSend returns (SPEC R-17).
func (c *Connection) PostSend(pair int, list []verbs.Work) error {
	if c.state != connectionOpen {
		for i := range list {
			c.rail.untag(list[i].ID)
		}
		return c.refusal()
	}
	err := c.pairs[pair].PostSend(list)
	if err == nil {
		return nil
	}
	for i := posted(err); i < len(list); i++ {
		c.rail.untag(list[i].ID)
	}
	c.posted(pair, err)
	return err
}

// PostReceive posts receives on a pair; otherwise it is like PostSend.
func (c *Connection) PostReceive(pair int, list []verbs.ReceiveWork) error {
	if c.state != connectionOpen {
		for i := range list {
			c.rail.untag(list[i].ID)
		}
		return c.refusal()
	}
	err := c.pairs[pair].PostReceive(list)
	if err == nil {
		return nil
	}
	for i := posted(err); i < len(list); i++ {
		c.rail.untag(list[i].ID)
	}
	c.posted(pair, err)
	return err
}

// posted is how much of a list stays with the device after an error.
func posted(err error) int {
	var partial *verbs.PostError
	if errors.As(err, &partial) {
		return partial.Posted
	}
	return 0
}

// posted fails the connection when the pair was fenced by the failed post.
func (c *Connection) posted(pair int, err error) {
	if c.pairs[pair].Fenced() != "" {
		c.Fail(err, 0)
	}
}

func (c *Connection) refusal() error {
	why := "it ends"
	if c.err != nil {
		why = c.err.Error()
	}
	return &verbs.FencedError{Object: c.String(), State: c.state.String(), Reason: why}
}

// Claim is one request for a connection of a requester. Its owner fills the exported fields; it can be used again once it
// was answered.
type Claim struct {
	Peer      *Peer
	Path      Path // as Rails.Choose found it
	Direction lanes.Direction
	// Private asks for a connection of its own, which no other claim shares (SPEC R-16).
	Private bool
	// Profile says how the grants over it will end; one that ends by regions (netproto.ProfileRegion) is private, and has
	// one queue pair. 0: ProfileWindow.
	Profile  netproto.GrantProfile
	Deadline reactor.Instant
	User     User
	// Answered is called on the lane, perhaps inside Rails.Claim: Hold has the connection, or Err says why there is none.
	Answered func(*Claim)
	Hold     Hold
	Err      error

	rails  *Rails
	waiter Waiter
	timer  reactor.Timer
	asked  bool     // true exactly while Answered is owed
	quit   error    // why it gave up while its answer was being handed out, which may be a refusal as well; nil: it did not
	makes  *builder // that began for this claim and has not ended; nil: none
	hunt   *hunt    // that looks for places on other lanes; nil: none
}

// Claim asks for a connection. Pair of the answer is free to choose: Connection.NextPair.
func (r *Rails) Claim(q *Claim) {
	if q.asked {
		panic("rdma: Claim while an answer is owed")
	}
	q.rails, q.asked, q.Err, q.quit = r, true, nil, nil
	rail, path := r.Rail(q.Path.Local), q.Peer.path(q.Path.Remote)
	switch {
	case r.fenced:
		q.refuse(fault(lanes.Closed, "RDMA connection", ErrClosed))
		return
	case rail == nil || path == nil:
		q.refuse(fault(lanes.Unreachable, "RDMA connection", &NoPath{Rails: len(r.rails), Remote: len(q.Peer.Paths)}))
		return
	case rail.broken != "":
		q.refuse(fault(lanes.Unreachable, "RDMA connection", &verbs.FencedError{Object: rail.Device.Context.String(), State: "fenced", Reason: rail.broken}))
		return
	case q.Deadline <= r.lane.Now():
		q.refuse(&lanes.Fault{Cause: lanes.Deadline, Stage: "RDMA connection"})
		return
	}
	key := ArrayKey{
		Role: Requester, Direction: q.Direction, LocalNIC: q.Path.Local, RemoteNIC: q.Path.Remote,
		LocalDomain: rail.Device.Identity, RemoteDomain: path.PD, Remote: q.Peer.Epoch,
	}
	if q.Private {
		key.Private = r.transport.incarnation()
	}
	width := Width(r.transport.config.Width, q.Peer.PairsMax)
	if q.Profile == netproto.ProfileRegion {
		width = 1
	}
	q.waiter.Data, q.waiter.Deadline = q, int64(q.Deadline)
	if r.acquire(key, width, &q.waiter, q) == Wait && q.Deadline != reactor.Forever {
		r.lane.Arm(&q.timer, q.Deadline, q)
	}
}

// hunts (hunter).
func (q *Claim) hunts(h *hunt) { q.hunt = h }

// Cancel takes the claim back, if it is not answered yet: Answered follows at once, or, when the answers to several claims are
// being handed out, in its turn. What it waited for goes on.
func (q *Claim) Cancel() { q.giveUp(&lanes.Fault{Cause: lanes.Cancelled, Stage: "RDMA connection"}) }

// Expire ends the wait at the deadline (reactor.TimerHandler).
func (q *Claim) Expire(*reactor.Timer, reactor.Instant) {
	q.giveUp(&lanes.Fault{Cause: lanes.Deadline, Stage: "RDMA connection"})
}

func (q *Claim) giveUp(f *lanes.Fault) {
	switch {
	case !q.asked:
	case q.waiter.promised: // serve takes it back
		q.quit = f
	default:
		q.rails.store.Leave(&q.waiter)
		q.refuse(f)
	}
}

func (q *Claim) refuse(err error) {
	q.settled()
	q.Err = err
	q.Answered(q)
}

// settled ends the claim's part in whatever was begun for it.
func (q *Claim) settled() {
	q.rails.lane.Disarm(&q.timer)
	q.asked = false
	if q.makes != nil {
		q.makes.claim, q.makes = nil, nil
	}
	if q.hunt != nil {
		q.hunt.who, q.hunt = nil, nil
	}
}

// use hands the connection over; the store counts the hold already.
func (q *Claim) use(a *Array) {
	c := a.Data.(*Connection)
	if q.quit != nil {
		c.released()
		q.refuse(q.quit)
		return
	}
	q.settled()
	c.give(&q.Hold, q.User)
	q.Answered(q)
}

// petitioner waits for an array: a claim of a requester, or a question at a source.
type petitioner interface {
	use(*Array)
	build(*Array)
	refuse(error)
}

// serve carries out what the store decided.
func (r *Rails) serve(a Answer) {
	var p petitioner
	if a.Waiter != nil {
		p, a.Waiter.promised = a.Waiter.Data.(petitioner), false
	}
	switch a.Step {
	case Use:
		p.use(a.Array)
	case Build:
		p.build(a.Array)
	case Refuse:
		p.refuse(asFault(a.Err))
	}
	if a.Evict != nil {
		r.transport.counts.evicted.Add(1)
		a.Evict.Data.(*Connection).finish()
	}
}

// serveAll carries out a list of answers. Who is told may call the rails again: each call has its own list.
func (r *Rails) serveAll(answers []Answer) {
	for _, a := range answers {
		r.serve(a)
	}
}

// Find returns the open connection that a grant names at the source; nil: it is not known on this lane (SPEC R-15).
func (r *Rails) Find(requester, source netproto.Incarnation) *Connection {
	c := r.ends[source]
	if c == nil || c.Role != Source || c.Other != requester || c.state != connectionOpen {
		return nil
	}
	return c
}

// asFault is a refusal of the store: its own, for lack of places, or what a builder failed with.
func asFault(err error) error {
	var f *lanes.Fault
	if errors.As(err, &f) {
		return f
	}
	return fault(lanes.Exhausted, "RDMA connection", err)
}
