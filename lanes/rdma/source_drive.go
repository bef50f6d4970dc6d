package rdma

import (
	"errors"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	flows "github.com/orbitte/orbitte/lanes/staging"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/verbs"
)

// abandonGrace is how long receipts that are with the device already have to be polled, when the requester gives a
// parent up; then the pairs of those that are missing go to the error state.
const abandonGrace = 100 * time.Millisecond

// GrantService is one lane's share of an engine's RDMA source: the grants of its requesters (operations 4 to 7, 65, 66).
type GrantService struct {
	rails   *Rails
	server  *control.Server
	parents []*parent // that hold anything, in order of arrival
	idle    []*parent // for reuse
	slots   Slots     // nil: none are pinned here
	frames  []*frame  // the same
	ended   endedParents
}

// Serve makes the lane's server answer everything about RDMA, and returns the lane's source. Once, before the lane
// starts.
func (r *Rails) Serve(server *control.Server) *GrantService {
	s := &GrantService{rails: r, server: server}
	r.upper.source = s
	for o := netproto.OperationRDMARead; o <= netproto.OperationRDMAWriteSliced; o++ {
		server.HandleDetached(o, s)
	}
	server.Handle(netproto.OperationRDMAConnect, r.ConnectService())
	server.HandleDetached(netproto.OperationRDMADone, parentService{s, false})
	server.HandleDetached(netproto.OperationRDMAAbandon, parentService{s, true})
	server.Handle(netproto.OperationRDMADisconnect, r.DisconnectService())
	return s
}

// Parents is how many requests have grants, or keep something until their end is proven.
func (s *GrantService) Parents() int { return len(s.parents) }

// parent is one request with all its grants.
type parent struct {
	source       *GrantService
	machine      parentMachine
	request      netproto.GrantRequest
	write        bool
	region       uint64
	offset       uint64 // in the region
	length       uint64
	registration *segments.Registration // lent; nil: not
	registered   *Registered            // lent; nil: not
	lease        segments.Lease
	count, bytes budgets.Charge
	staging      *staging // nil: the range itself is exposed
	slot         Slot     // that the range is; nil: it is a registration's
	copied       int
	gpu          gpuSide
	late         *grantRemains // of copies alone without proof, until it is retained; nil: none are
	part         flows.Part    // of its flow, where the range is on a GPU and staged: all of it is in one chunk
	straight     directGrant
	links        []*link
	used         int
	children     []child
	reserved     int // children that a receive is reserved for
	provision    provision
	away         bool // true exactly while the provision is fetched
	asker        asker
	ending       *frame // of DONE or ABANDON; nil: neither came
	timer        reactor.Timer
	retry        reactor.Timer
	backoff      lanes.Backoff
	deadline     reactor.Instant
	by           reactor.Instant
	forced       bool // true exactly when grants without a receipt are revoked now
	busy, again  bool
	live         bool // true exactly while among the service's parents
	inside       bool // true exactly when the source waits for it before it is closed (SPEC G-6)
}

// link is one connection of a parent, and who is told about it.
type link struct {
	parent *parent
	index  int
	hold   Hold
	c      *Connection
	dead   bool // true exactly when Lost was told
	mute   bool // true exactly when Quiet was told
}

// child is one grant.
type child struct {
	terms  grantTerms
	link   *link
	pair   int
	window *verbs.MemoryWindow // nil: none yet, or none any more
	flying bool                // true exactly while a BIND is with the device
	told   bool                // true exactly while the rail expects its receipt
	hunger hunger
}

func (s *GrantService) take() *parent {
	if len(s.idle) == 0 {
		p := &parent{source: s}
		p.asker.parent = p
		return p
	}
	p := s.idle[len(s.idle)-1]
	s.idle = s.idle[:len(s.idle)-1]
	return p
}

// Serve checks everything that the requester claims and reserves the whole parent, before any authority (SPEC R-9).
func (s *GrantService) Serve(session *control.Session, r netproto.Request) {
	p := s.take()
	if err := netproto.DecodeGrantRequest(&p.request, r, session.Body()); err != nil {
		s.idle = append(s.idle, p)
		if status := netproto.StatusOf(err); status != netproto.StatusProtocolError {
			session.Refuse(status)
			return
		}
		session.Violate(err)
		return
	}
	p.begin(r)
	if status := p.admit(session); status != netproto.StatusSuccess {
		p.giveBack()
		p.leave()
		s.idle = append(s.idle, p)
		session.Refuse(status)
		return
	}
	s.parents, p.live = append(s.parents, p), true
	s.rails.pending++ // the lane's end waits for it
	lane := s.rails.lane
	p.deadline = lane.Now().After(lane.Policy.SourceTimeout)
	lane.Arm(&p.timer, p.deadline, p)
	p.asker.asks = true
	session.Detach(&p.asker.slip, &p.asker)
	p.await()
	if p.chunked() {
		p.lineUp()
	}
	p.advance()
}

func (p *parent) begin(r netproto.Request) {
	p.machine.begin(len(p.request.Slices))
	p.write = r.Operation == netproto.OperationRDMAWrite || r.Operation == netproto.OperationRDMAWriteSliced
	p.region, p.offset, p.length = r.Region, r.Offset, r.Length
	p.used, p.reserved, p.copied = 0, 0, 0
	p.gpu.reset(nil)
	p.part = flows.Part{}
	p.straight.reset()
	p.forced, p.away, p.by, p.backoff = false, false, 0, lanes.Backoff{}
	if cap(p.children) < len(p.request.Slices) {
		p.children = make([]child, len(p.request.Slices))
	}
	p.children = p.children[:len(p.request.Slices)]
	for i := range p.children {
		p.children[i] = child{}
	}
}

// admit checks and reserves. On a refusal the caller gives back what was taken: nothing gave authority.
func (p *parent) admit(session *control.Session) netproto.Status {
	r := p.source.rails
	config := &r.transport.config
	switch {
	case r.fenced || !p.source.server.Enter():
		return netproto.StatusSourceClosed
	}
	p.inside = true
	switch {
	case p.length > r.lane.Policy.PayloadBytesMax || len(p.request.Slices) > config.slicesMax():
		return netproto.StatusExhausted
	case p.source.find(p.request.Requester, p.request.Generation) != nil:
		return netproto.StatusProtocolError
	}
	want := netproto.RemoteRead
	if p.write {
		want = netproto.RemoteWrite
	}
	registration, err := p.borrow(session, want)
	if err != nil {
		return netproto.StatusOf(err)
	}
	p.registration = registration
	p.gpu.reset(registration)
	if p.request.Profile != p.profile() {
		return netproto.StatusBackendUnavailable
	}
	if !p.exposed() {
		if f := p.gpu.ready(r.lane, registration, flows.Source); f != nil {
			return copyStatus(f)
		}
	}
	if p.chunked() && p.length > flows.Of(r.lane).SlotBytes() { // the descriptor says how much there may be
		return netproto.StatusExhausted
	}
	if status := p.name(); status != netproto.StatusSuccess {
		return status
	}
	if p.exposed() {
		g := Of(registration)
		if g == nil || !g.Lend() {
			return netproto.StatusBackendUnavailable
		}
		p.registered = g
	}
	if !p.reserve() || p.charge() != nil {
		return netproto.StatusExhausted
	}
	for _, l := range p.links[:p.used] {
		if !l.c.Take(&l.hold, l) {
			return netproto.StatusCacheMiss
		}
		l.c.unawait()
	}
	return netproto.StatusSuccess
}

// leave lets the source close without it.
func (p *parent) leave() {
	if p.inside {
		p.inside = false
		p.source.server.Leave()
	}
}

// name finds the connections that the request names, and holds them against it (SPEC ).
func (p *parent) name() netproto.Status {
	r := p.source.rails
	d := lanes.Read
	if p.write {
		d = lanes.Write
	}
	for i := range p.request.Connections {
		named := &p.request.Connections[i]
		c := r.Find(named.Requester, named.Source)
		switch {
		case c == nil:
			return netproto.StatusCacheMiss
		case c.OtherEpoch != p.request.Requester || c.Direction != d || p.names(c):
			return netproto.StatusProtocolError
		case c.profile != p.profile() || (!p.exposed() || p.direct()) && c.holds.n > 0: // one grant, one connection (SPEC R-16)
			return netproto.StatusProtocolError
		}
		if p.used == len(p.links) {
			p.links = append(p.links, &link{parent: p, index: p.used})
		}
		l := p.links[p.used]
		p.used++
		l.c, l.dead, l.mute = c, false, false
	}
	for i, slice := range p.request.Slices {
		l := p.links[slice.Connection]
		if int(slice.Pair) >= l.c.Width() {
			return netproto.StatusProtocolError
		}
		p.children[i].link, p.children[i].pair = l, int(slice.Pair)
	}
	if p.direct() && !p.alone() {
		return netproto.StatusProtocolError
	}
	return netproto.StatusSuccess
}

func (p *parent) names(c *Connection) bool {
	for _, l := range p.links[:p.used] {
		if l.c == c {
			return true
		}
	}
	return false
}

// reserve keeps a receive for each child: one that its pair has, and that there is a place for in the completion queue.
func (p *parent) reserve() bool {
	depth := p.source.rails.transport.config.ReceiveDepth
	for i := range p.children {
		c, pair := p.children[i].link.c, p.children[i].pair
		l := c.line(pair)
		if l.reserved >= depth {
			return false
		}
		c.count(pair, 1, 0)
		p.reserved++
		if c.rail.promised > c.rail.receives.Room() {
			c.rails.spare(c.rail)
			return false
		}
	}
	return true
}

// spare ends an idle connection of the rail whose pairs still have receives with the device, from grants that were revoked:
// they keep places from others (SPEC R-10).
func (r *Rails) spare(rail *Rail) {
	idle := r.store.EvictIdle(func(a *Array) bool {
		c, ok := a.Data.(*Connection)
		return ok && c.rail == rail && c.well != nil && len(c.well.out) > 0
	})
	if idle != nil {
		r.transport.counts.evicted.Add(1)
		idle.Data.(*Connection).finish()
	}
}

// charge takes the budgets, and the lease of a range that is exposed itself.
func (p *parent) charge() (err error) {
	b := &p.source.rails.transport.config.Budgets
	if p.count, err = b.Grants.Take(1); err != nil {
		return err
	}
	if p.chunked() {
		p.source.rails.transport.grants.staged.Add(1)
		p.lease, err = p.registration.Lease(p.offset, p.length, p.access())
		return err
	}
	if p.registered == nil {
		access := verbs.AccessLocalWrite | verbs.AccessWindowBind
		p.staging, err = newStaging(b.StagingBytes, p.length, access)
		if err == nil {
			p.source.rails.transport.grants.staged.Add(1)
		}
		return err
	}
	if p.bytes, err = b.DirectBytes.Take(int64(p.length)); err != nil {
		return err
	}
	p.lease, err = p.registration.Lease(p.offset, p.length, p.access())
	return err
}

func (p *parent) access() segments.Access {
	if p.write {
		return segments.Exclusive
	}
	return segments.Shared
}

// advance goes on with whatever can go on. It may be called at any time, also from inside itself.
func (p *parent) advance() {
	if p.busy {
		p.again = true
		return
	}
	p.busy = true
	for p.again = true; p.again; {
		p.again = false
		p.step()
	}
	p.busy = false
	if p.live && p.machine.stage == parentIdle {
		p.live = false
		p.recycle()
	}
}

// recycle lets the parent be used again, once it has ended and its answer is sent.
func (p *parent) recycle() {
	if !p.live && !p.asker.asks {
		p.source.idle = append(p.source.idle, p)
	}
}

func (p *parent) step() {
	m := &p.machine
	switch m.stage {
	case parentStocking:
		if p.direct() {
			p.grantRegions()
			break
		}
		p.stock()
	case parentFilling:
		if p.chunked() && p.fillChunk() || !p.chunked() && p.touch(segments.Shared) {
			p.bind()
		}
	case parentBinding:
		if m.all(childBound) {
			p.publish()
		}
	case parentGranted:
		if p.part != (flows.Part{}) && m.all(childReceived) {
			p.through()
		}
		if m.stage != parentGranted || !m.complete() {
			p.linger()
			break
		}
		m.stage, p.copied = parentCommit, 0
		p.again = true
	case parentCommit:
		if p.direct() {
			p.commitDirect()
			break
		}
		if p.chunked() {
			if p.gpu.look(); !p.gpu.flow.Active() && m.stage == parentCommit {
				p.end()
			}
			break
		}
		if p.staging == nil || !p.write || p.touch(segments.Exclusive) {
			p.end()
		}
	case parentRevoking:
		p.revoke()
	}
}

// stock takes a window for each child, and posts the receives that are reserved (SPEC R-11).
func (p *parent) stock() {
	if p.away {
		return
	}
	v := &p.provision
	v.begin(p.source.rails, p)
	for i := range p.children {
		v.add(p.children[i].link.c.rail, 0, 1)
	}
	for _, l := range p.links[:p.used] {
		for pair := range l.c.Width() {
			n := l.c.line(pair)
			v.add(l.c.rail, max(0, n.reserved-n.listening), 0)
		}
		if p.staging != nil {
			p.staging.on(l.c.Device)
		}
	}
	v.staging = p.staging
	v.chunks[flows.Source] = p.chunked()
	if v.missing() {
		p.away = true
		v.fetch()
		return
	}
	for i := range p.children {
		p.children[i].window = p.children[i].link.c.rail.stock.takeWindow()
	}
	for _, l := range p.links[:p.used] {
		for pair := range l.c.Width() {
			if err := l.c.listen(pair); err != nil {
				status := netproto.StatusNativeError
				if errors.Is(err, verbs.ErrCredit) {
					status = netproto.StatusExhausted
				}
				p.fail(status)
				return
			}
		}
	}
	if p.machine.stage != parentStocking { // a receive that failed ended a connection
		return
	}
	if p.staging != nil && !p.write || p.chunked() {
		p.machine.stage, p.again = parentFilling, true
		return
	}
	p.bind()
}

// provisioned goes on with what the cold loop made.
func (p *parent) provisioned(err error) {
	p.away = false
	if err != nil {
		status := netproto.StatusNativeError
		if errors.Is(err, verbs.ErrKeys) {
			status = netproto.StatusExhausted
		} else {
			p.source.rails.note(p.links[0].c, err)
		}
		p.fail(status)
	}
	p.advance()
}

// touch copies between range and staging under a lease, slice by slice; false while it is not done.
func (p *parent) touch(a segments.Access) bool {
	lane := p.source.rails.lane
	if !p.lease.Held() {
		lease, err := p.registration.Lease(p.offset, p.length, a)
		if err != nil {
			lane.Counts.ConflictRetries.Add(1)
			lane.Arm(&p.retry, p.backoff.Next(lane.Now(), p.deadline), (*parentRetry)(p))
			return false
		}
		p.lease, p.copied = lease, 0
	}
	to, from := p.staging.backing.Bytes(), p.lease.Bytes()
	if p.write {
		to, from = from, to
	}
	if p.copied = lanes.CopySlice(to, from, p.copied); uint64(p.copied) < p.length {
		lane.Arm(&p.retry, lane.Now().After(1), (*parentRetry)(p))
		return false
	}
	p.lease.Return()
	return true
}

// parentRetry is the handler of the timer for another look.
type parentRetry parent

// Expire (reactor.TimerHandler).
func (x *parentRetry) Expire(*reactor.Timer, reactor.Instant) { (*parent)(x).advance() }
