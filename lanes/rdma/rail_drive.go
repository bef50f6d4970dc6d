package rdma

import (
	"fmt"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/verbs"
)

// mendDelay is how long broken completion queues wait at least before they are replaced.
const mendDelay = time.Second

// pollBatch is how many completions one crossing takes at most.
const pollBatch = 32

// Owner posted work and is told its end, on its lane. Word is what it gave to TagSend or TagReceive. It may post,
// release and fail connections.
type Owner interface {
	Reaped(word uint64, c *verbs.Reaped)
}

// tagSlot is one tag that may be with the device. It is in use exactly when owner is not nil.
type tagSlot struct {
	owner      Owner
	connection *Connection
	word       uint64
	generation uint32
	next       int32 // free slots
	receive    bool
}

// Rail is one device on one lane: its completion queues and whom their completions are for. It belongs to its lane.
type Rail struct {
	Device *Device

	rails           *Rails
	position        int            // among its lane's
	channel         *verbs.Channel // nil when polling
	sends, receives *verbs.CompletionQueue
	poller          *verbs.Poller
	out             []verbs.Reaped
	tags            []tagSlot
	free            int32
	connections     []*Connection // attached ones, and those that wait for their end
	sending         int           // sends with the device
	expected        int           // receives that something waits for, see Expect
	draining        int           // connections whose flush is awaited
	dispatching     bool          // true exactly while completions that were taken are handed out

	watch    reactor.Ticket  // non-zero exactly while the channel's descriptor is watched
	dirty    bool            // event-driven: true exactly when the queues are not known to be armed and empty
	degraded string          // why events are not relied on; empty: they are
	broken   string          // why the completion queues are not trusted; empty: they are
	mendAt   reactor.Instant // when the broken queues may be replaced
	mending  reactor.Timer
	building int            // builders that use the queues
	ended    bool           // true exactly when there are no queues to look at
	kept     bool           // true exactly when they could not be destroyed: they are in the context's book, and never replaced
	letter   reactor.Letter // says that the device's state changed
	stock    stock          // message slots and windows of the upper half

	starved   []starved // lines that wait for places in the send completion queue, in order
	relieving bool      // true exactly inside relieve
	promised  int       // receives that are reserved for parents and not posted
}

// starved is one line of a connection.
type starved struct {
	c    *Connection
	pair int
}

// Rails is one lane's share of the transport: a Rail for each device, and the connections of the lane. It is made
// before its lane starts; everything else happens on the lane.
type Rails struct {
	transport *Transport
	lane      *lanes.Lane
	rails     []*Rail // by position of the device
	store     *Store
	selector  Selector
	locals    []LocalNIC
	loads     Loads
	ends      map[netproto.Incarnation]*Connection // by this side's incarnation
	peers     map[netproto.Incarnation]*Connection // accepted ones, by the requester's incarnation
	pending   int                                  // builders, closing exchanges and errands under way
	closed    func()                               // non-nil from Close until it is called
	fenced    bool
	letter    reactor.Letter // says that another lane repaid places
	hunts     []*hunt        // wait for places that another lane gives back
	upper     upper          // transfers and grants of the lane
}

// Rails makes the queues of one lane. On failure nothing is left, except what Retained lists. The first lane gets the
// monitor. Close ends them.
func (t *Transport) Rails(lane *lanes.Lane) (*Rails, error) {
	r := &Rails{
		transport: t, lane: lane, store: NewStore(t.config.Budgets.Endpoints), selector: Selector{Mask: t.config.Mask},
		ends: map[netproto.Incarnation]*Connection{}, peers: map[netproto.Incarnation]*Connection{},
	}
	for _, d := range t.devices {
		rail := &Rail{Device: d, rails: r, position: len(r.rails), out: make([]verbs.Reaped, pollBatch), free: noTag}
		r.rails = append(r.rails, rail)
		r.share(rail)
		if err := rail.open(); err != nil {
			r.abandon()
			return nil, err
		}
	}
	r.openChunks()
	t.rails = append(t.rails, r)
	return r, nil
}

// share bounds the pairs that complete in a rail's queues.
func (r *Rails) share(rail *Rail) {
	name := fmt.Sprintf("RDMA completion entries, lane %d, %s", r.lane.Index, rail.Device.Name)
	b := budgets.New(name, "queue pairs", int64(r.transport.config.sharers()))
	r.store.Near(rail.Device.NIC, b)
	if gauge := r.transport.config.Gauge; gauge != nil {
		gauge(b)
	}
}

// abandon ends rails that were never used; refusals are in the contexts' books.
func (r *Rails) abandon() {
	for _, rail := range r.rails {
		_ = rail.destroy()
	}
}

// Start lets the lane look at its rails, and the first lane begin to watch the devices. It is called on the lane.
func (r *Rails) Start() {
	for _, rail := range r.rails {
		r.lane.Attach(rail)
		rail.begin()
	}
	if r == r.transport.rails[0] {
		r.transport.monitor.start(r)
	}
}

// Transport is what the rails belong to.
func (r *Rails) Transport() *Transport { return r.transport }

// Lane is the lane of the rails.
func (r *Rails) Lane() *lanes.Lane { return r.lane }

// Rail returns the rail of a NIC; nil: there is none.
func (r *Rails) Rail(nic uint8) *Rail {
	for _, rail := range r.rails {
		if rail.Device.NIC == nic {
			return rail
		}
	}
	return nil
}

// Choose takes a path for one slice to a peer that has these paths (SPEC R-3); tiers say how near each NIC is to the
// local memory. It allocates only when it refuses, with *NoPath.
func (r *Rails) Choose(remote []netproto.Path, tiers *Tiers) (Path, error) {
	r.locals = r.locals[:0]
	for _, rail := range r.rails {
		local := rail.Device.local()
		local.Active = local.Active && rail.broken == ""
		r.locals = append(r.locals, local)
		r.loads[local.NIC] = uint64(rail.Device.load.Load())
	}
	return r.selector.Choose(r.locals, remote, tiers, &r.loads)
}

// open makes the channel and the queues.
func (r *Rail) open() (err error) {
	t := r.rails.transport
	if t.config.Progress == EventDriven {
		if r.channel, err = r.Device.Context.CreateChannel(); err != nil {
			return err
		}
	}
	if r.sends, err = r.Device.Context.CreateQueue(t.config.QueueEntries, r.channel); err != nil {
		return err
	}
	if r.receives, err = r.Device.Context.CreateQueue(t.config.QueueEntries, r.channel); err != nil {
		return err
	}
	r.sends.Share(t.config.sharers())
	r.receives.Share(t.config.sharers())
	r.poller = verbs.NewPoller(r.sends, r.receives, pollBatch)
	r.broken, r.degraded = "", ""
	return nil
}

// destroy ends queues and channel: the first refusal.
func (r *Rail) destroy() error {
	var first error
	note := func(err error) {
		if first == nil {
			first = err
		}
	}
	if r.sends != nil {
		note(r.sends.Destroy())
	}
	if r.receives != nil {
		note(r.receives.Destroy())
	}
	if r.channel != nil {
		note(r.channel.Destroy())
	}
	return first
}

// begin arms an event-driven rail.
func (r *Rail) begin() {
	if r.channel != nil {
		r.dirty = true
		r.rewatch()
	}
}

func (r *Rail) rewatch() {
	r.watch = r.rails.lane.Submit(reactor.Operation{Kind: reactor.Watch, Descriptor: reactor.Descriptor(r.channel.Descriptor())}, r)
}

// Complete takes the events of the channel (reactor.Handler). They are only hints: the queues are looked at.
func (r *Rail) Complete(e *reactor.Event) {
	r.watch = 0
	switch {
	case r.rails.fenced && e.Err != nil: // cancelled by the end of the rails
		r.rails.settle()
		return
	case r.broken != "":
		r.mend()
		return
	case e.Err != nil:
		r.degrade("its channel cannot be watched: " + e.Err.Error())
		return
	}
	for {
		q, err := r.channel.NextEvent()
		if err != nil {
			r.degrade("its events cannot be read: " + err.Error())
			return
		}
		if q == nil {
			break
		}
	}
	r.dirty = true
	r.rewatch()
	r.rails.settle()
}

// degrade goes over to polling: wake-ups may be lost.
func (r *Rail) degrade(why string) {
	if r.degraded == "" {
		r.degraded = why
	}
	r.dirty = true
}

// Owed (reactor.Queue).
func (r *Rail) Owed() bool {
	if r.ended {
		return false
	}
	if r.channel != nil && r.degraded == "" {
		return r.dirty
	}
	return r.sending > 0 || r.expected > 0 || r.draining > 0
}

// Expect says that n more (or fewer) receives are waited for: a polling lane does not block meanwhile.
func (r *Rail) Expect(n int) {
	if r.expected += n; r.expected < 0 {
		panic(fmt.Sprintf("rdma: Expect(%d) leaves %d receives expected, want 0 or more", n, r.expected))
	}
}

// Collect takes completions and hands each to its owner (reactor.Queue).
func (r *Rail) Collect(budget int, _ reactor.Instant) int {
	if r.ended || r.channel != nil && r.degraded == "" && !r.dirty {
		return 0
	}
	done := 0
	for done < budget {
		reaped, taken, err := r.poller.Poll(r.out)
		r.dispatching = true
		for i := range reaped {
			r.dispatch(&r.out[i])
		}
		r.dispatching = false
		r.relieve()
		done += taken
		if err != nil {
			r.breakDown("polling failed: " + err.Error())
			break
		}
		if reaped < taken || taken > 0 && r.draining > 0 {
			r.sweep() // barriers, completions that fenced a pair, or the last of a flush
		}
		if taken == pollBatch {
			continue
		}
		if taken > 0 || r.settled() {
			break
		}
	}
	return done
}

// settled ends a look that found nothing: an event-driven rail arms, looks again, and only then rests.
func (r *Rail) settled() bool {
	if r.channel == nil || r.degraded != "" {
		return true
	}
	if r.poller.MayBlock() {
		r.dirty = false
		return true
	}
	if err := r.poller.Arm(); err != nil {
		r.degrade("arming failed: " + err.Error())
		return true
	}
	return false
}

const noTag = -1

// tag takes a slot for one piece of work.
func (r *Rail) tag(c *Connection, owner Owner, word uint64, receive bool) uint64 {
	if owner == nil {
		panic("rdma: a tag needs an owner")
	}
	slot := r.free
	if slot == noTag {
		slot = int32(len(r.tags))
		r.tags = append(r.tags, tagSlot{generation: 1})
	} else {
		r.free = r.tags[slot].next
	}
	s := &r.tags[slot]
	s.owner, s.connection, s.word, s.receive = owner, c, word, receive
	return uint64(s.generation)<<32 | uint64(uint32(slot))
}

// untag ends a tag and says what it was; a stale one has no owner.
func (r *Rail) untag(tag uint64) tagSlot {
	slot := uint64(uint32(tag))
	if slot >= uint64(len(r.tags)) || r.tags[slot].owner == nil || r.tags[slot].generation != uint32(tag>>32) {
		return tagSlot{}
	}
	s := &r.tags[slot]
	was := *s
	s.owner, s.connection = nil, nil
	if s.generation++; s.generation == 0 {
		s.generation = 1
	}
	s.next, r.free = r.free, int32(uint32(tag))
	if !was.receive {
		was.connection.rail.sending--
	}
	return was
}

// dispatch hands one completion to the owner behind its tag; a late one pays nobody.
func (r *Rail) dispatch(c *verbs.Reaped) {
	was := r.untag(c.ID)
	if was.owner == nil || was.connection.quieted() {
		r.rails.transport.counts.late.Add(1)
		return
	}
	status, vendor := c.Status, c.Vendor
	was.owner.Reaped(was.word, c)
	if status != verbs.WorkSuccess {
		was.connection.Fail(&WorkError{Connection: was.connection.String(), Status: status, Vendor: vendor}, 0)
	}
}

// WorkError says that a device ended work without success: the pair takes no more, and its connection ends.
type WorkError struct {
	Connection string
	Status     verbs.WorkStatus
	Vendor     uint32 // the device's own code; its meaning is the vendor's
}

func (e *WorkError) Error() string {
	return fmt.Sprintf("%s: the device ended work with %q (vendor code %#x); the connection is drained and built anew when needed", e.Connection, e.Status.String(), e.Vendor)
}

// sweep fails the connections whose pairs were fenced behind their owners' backs, and lets draining ones go on.
func (r *Rail) sweep() {
	for i := len(r.connections) - 1; i >= 0; i-- {
		if i < len(r.connections) {
			c := r.connections[i]
			if why := c.fencedPair(); why != "" && c.state == connectionOpen {
				c.Fail(&verbs.FencedError{Object: c.String(), State: "fenced", Reason: why}, 0)
			}
			c.advance()
		}
	}
}

// breakDown ends everything that completes here: completions may be lost (SPEC R-17). When all of it is gone the queues
// are made anew.
func (r *Rail) breakDown(why string) {
	if r.broken == "" {
		r.broken = why
		r.mendAt = r.rails.lane.Now().After(mendDelay)
	}
	r.degrade(why)
	r.sends.Fence(why)
	r.receives.Fence(why)
	r.sweep()
	r.mend()
}

// Expire looks again whether the queues can be replaced (reactor.TimerHandler).
func (r *Rail) Expire(*reactor.Timer, reactor.Instant) { r.mend() }

// mend replaces queues that are not trusted, once nobody uses them (SPEC R-19, progress recovery). A device whose queues
// break again and again is tried once in mendDelay.
func (r *Rail) mend() {
	if r.broken == "" || r.kept || len(r.connections) > 0 || r.building > 0 || r.rails.fenced {
		return
	}
	if r.rails.lane.Now() < r.mendAt {
		r.rails.lane.Arm(&r.mending, r.mendAt, r)
		return
	}
	if r.watch != 0 {
		r.rails.lane.Cancel(r.watch)
		return // Complete goes on
	}
	r.ended = true
	if r.destroy() != nil {
		r.kept = true
		return
	}
	if err := r.open(); err != nil {
		_ = r.destroy() // what was made of it
		r.broken = "new completion queues cannot be made: " + err.Error()
		r.mendAt = r.rails.lane.Now().After(mendDelay)
		r.rails.lane.Arm(&r.mending, r.mendAt, r)
		return
	}
	r.ended = false
	r.rails.transport.counts.progress.Add(1)
	r.begin()
}
