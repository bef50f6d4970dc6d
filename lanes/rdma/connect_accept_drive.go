package rdma

import (
	"errors"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/verbs"
)

// ConnectService makes the other end of a connection, at the source (operation 64). One serves one lane: the lane of the
// requester's control stream, on which its grants will be asked for.
type ConnectService struct{ rails *Rails }

// ConnectService serves operation 64 on the lane of the rails.
func (r *Rails) ConnectService() *ConnectService { return &ConnectService{r} }

// acceptance is the handler of one question (control.Handler).
//
//	waiting for places ──▶ making ──▶ answering ──▶ done
//	        └────────────────┴──▶ refused
type acceptance struct {
	rails   *Rails
	session *control.Session // nil: the stream is gone
	offer   netproto.Connection
	own     netproto.Connection
	c       *Connection
	waiter  Waiter
	hunt    *hunt // that looks for places on other lanes; nil: none
	buffer  lanes.Buffer
	route   verbs.Route
	err     error
	left    bool
	sending bool // true exactly while the answer is on its way
}

// Serve (control.Service).
func (s *ConnectService) Serve(session *control.Session, _ netproto.Request) {
	r := s.rails
	offer, err := netproto.DecodeConnection(session.Body())
	if err != nil {
		session.Violate(err)
		return
	}
	var own *netproto.Path
	rail := r.Rail(offer.PeerNIC)
	if rail != nil && rail.Device.NoSource == nil {
		path := rail.Device.path()
		own = &path
		if rail.broken != "" {
			own.State = netproto.PathPaused
		}
	}
	known := r.peers[offer.Incarnation] != nil
	if status, err := checkOffer(&offer, own, r.transport.config.Width, r.transport.config.Device == DeviceDirect, known); err != nil {
		r.transport.counts.refused.Add(1)
		session.Refuse(status)
		return
	}
	if r.fenced {
		session.Refuse(netproto.StatusSourceClosed)
		return
	}
	a := &acceptance{rails: r, session: session, offer: offer}
	session.Take(a)
	key := ArrayKey{
		Role: Source, Direction: direction(offer.Direction), LocalNIC: offer.PeerNIC, RemoteNIC: offer.NIC,
		LocalDomain: offer.PeerDomain, RemoteDomain: offer.Domain, Remote: offer.Epoch, Private: offer.Incarnation,
	}
	a.waiter.Data, a.waiter.Deadline = a, int64(reactor.Forever) // the session's own deadline takes it back
	r.acquire(key, len(offer.Pairs), &a.waiter, a)
}

// hunts (hunter).
func (a *acceptance) hunts(h *hunt) { a.hunt = h }

// use does not happen: nobody shares the key of one requester's incarnation (petitioner).
func (a *acceptance) use(*Array) {
	panic("rdma: a source's array has a second user, want one question for each")
}

// refuse (petitioner).
func (a *acceptance) refuse(error) {
	a.rails.transport.counts.refused.Add(1)
	a.answer(netproto.StatusExhausted)
}

// answer ends the frame without a connection.
func (a *acceptance) answer(status netproto.Status) {
	session := a.session
	a.session = nil
	if session != nil {
		session.Refuse(status)
	}
}

// build (petitioner).
func (a *acceptance) build(array *Array) {
	r := a.rails
	if r.peers[a.offer.Incarnation] != nil || r.fenced { // another one came first, or the lane closes, while this one waited
		status := netproto.StatusProtocolError
		if r.fenced { // no fault of the peer's
			status = netproto.StatusSourceClosed
		}
		r.serveAll(r.store.BuildFailed(array, ErrClosed, false, nil))
		a.answer(status)
		return
	}
	c := r.newConnection(array, r.Rail(a.offer.PeerNIC), Source, direction(a.offer.Direction))
	c.Other, c.OtherEpoch, c.OtherNIC, c.OtherDomain = a.offer.Incarnation, a.offer.Epoch, a.offer.NIC, a.offer.Domain
	if c.profile = a.offer.Profile; c.profile == netproto.ProfileRegion {
		c.private = &privateEnd{identity: r.transport.identity()}
	}
	r.peers[c.Other] = c
	a.c = c
	starts := c.starts()
	c.errand.send(r.transport.config.Cold, r.lane.Loop, func() { a.make(starts) }, a.made)
}

// make builds and connects the pairs. On the cold loop.
func (a *acceptance) make(starts []uint32) {
	c := a.c
	a.route = c.Device.Context.Route()
	a.err = c.create(a.route, c.rails.transport.config.ReceiveDepth)
	if a.err == nil {
		a.own = c.describe(a.route, starts)
		a.err = c.connect(a.route, &a.own, &a.offer)
	}
	if a.err != nil {
		a.left = c.unmake()
	}
}

// made answers.
func (a *acceptance) made(reactor.Instant) {
	c := a.c
	if a.err == nil {
		if a.err = c.attach(); a.err != nil {
			c.errand.send(c.rails.transport.config.Cold, c.rails.lane.Loop, func() { a.left = c.unmake() }, a.failed)
			return
		}
	}
	if a.err != nil {
		a.failed(0)
		return
	}
	c.rails.transport.counts.accepted.Add(1)
	c.rails.built(c)
	a.reply()
	if c.private == nil || !c.await() {
		c.released() // the builder's own hold: it is idle until the first grant
	}
	c.rails.doneBuilding(c)
}

// failed ends a build that failed, when what it made is destroyed or retained.
func (a *acceptance) failed(reactor.Instant) {
	a.rails.transport.counts.refused.Add(1)
	if buildStatus(a.err) == netproto.StatusNativeError {
		a.rails.note(a.c, a.err)
	}
	a.answer(buildStatus(a.err))
	a.c.buildFailed(a.err, a.left)
	a.c.rails.doneBuilding(a.c)
}

// note writes down why the peer of a connection is told of a native failure: it is sent to this side's log.
func (r *Rails) note(c *Connection, err error) {
	r.lane.Journal.Add(r.lane.Now(), lanes.Note{Kind: lanes.NoteDevice, Where: c.String(), Err: err})
}

// buildStatus is what the requester hears of a failed build.
func buildStatus(err error) netproto.Status {
	switch {
	case errors.Is(err, verbs.ErrCredit):
		return netproto.StatusExhausted
	case errors.Is(err, verbs.ErrFenced):
		return netproto.StatusBackendUnavailable
	case errors.Is(err, ErrClosed):
		return netproto.StatusSourceClosed
	}
	return netproto.StatusNativeError
}

// reply tells the requester this end. When that cannot be, the connection is of no use to anybody.
func (a *acceptance) reply() {
	session := a.session
	if session == nil {
		a.abandon()
		return
	}
	buffer, err := a.rails.lane.Arena.Get(netproto.ConnectionSizeMax)
	if err != nil {
		a.answer(netproto.StatusExhausted)
		a.abandon()
		return
	}
	a.buffer, a.sending = buffer, true
	payload := netproto.AppendConnection(buffer.Bytes(netproto.ConnectionSizeMax)[:0], &a.own)
	session.Send(session.Header(netproto.StatusSuccess, uint64(len(payload))), payload)
}

// abandon ends a connection that its requester has never heard of.
func (a *acceptance) abandon() {
	a.c.Fail(errPeerLeft, 0)
}

// Sent ends the frame (control.Handler).
func (a *acceptance) Sent(int) {
	session := a.session
	a.session, a.sending = nil, false
	a.rails.lane.Arena.Put(&a.buffer)
	session.Finish()
}

// Received does not happen: the body came before (control.Handler).
func (a *acceptance) Received(int) {}

// Lost: the requester will not hear the answer (control.Handler).
func (a *acceptance) Lost(control.Loss) {
	a.session = nil
	a.rails.store.Leave(&a.waiter)
	if a.hunt != nil {
		a.hunt.who, a.hunt = nil, nil
	}
	if a.buffer.Held() {
		a.rails.lane.Arena.Put(&a.buffer)
	}
	if a.sending {
		a.sending = false
		a.abandon()
	}
}

// DisconnectService ends this side's end of a connection, at the source (operation 67): its success says that the queue
// pairs are destroyed. The connection may live on another lane than the stream that asks.
type DisconnectService struct{ rails *Rails }

// DisconnectService serves operation 67 on the lane of the rails.
func (r *Rails) DisconnectService() *DisconnectService { return &DisconnectService{r} }

// departure is the handler of one question. Its letter visits the lanes until one knows the connection.
type departure struct {
	home    *Rails
	at      int              // index of the lane that is visited
	session *control.Session // nil: the stream is gone
	what    netproto.Disconnect
	letter  reactor.Letter
	status  netproto.Status
	done    bool // true exactly when the answer is known
}

// Serve (control.Service).
func (s *DisconnectService) Serve(session *control.Session, _ netproto.Request) {
	what, err := netproto.DecodeDisconnect(session.Body())
	if err != nil {
		session.Violate(err)
		return
	}
	d := &departure{home: s.rails, session: session, what: what, at: -1}
	session.Take(d)
	if !d.visit(s.rails) {
		d.hop()
	}
}

// hop goes to the next lane, or home with the answer: nobody knows the connection, so its pairs were destroyed before,
// or never were.
func (d *departure) hop() {
	all := d.home.transport.rails
	for d.at++; d.at < len(all); d.at++ {
		if all[d.at] != d.home && all[d.at].lane.Post(&d.letter, d) == nil {
			return
		}
	}
	d.answer(netproto.StatusSuccess)
}

// Receive looks on the lane that is visited, or answers at home (reactor.Recipient).
func (d *departure) Receive(*reactor.Letter, reactor.Instant) {
	if d.done {
		d.reply()
		return
	}
	if !d.visit(d.home.transport.rails[d.at]) {
		d.hop()
	}
}

// visit ends the connection if it belongs to this lane.
func (d *departure) visit(r *Rails) bool {
	c := r.ends[d.what.SourceEnd]
	if c == nil || c.Role != Source || c.Other != d.what.End || c.OtherEpoch != d.what.Requester {
		return false
	}
	c.onEnd(func(err error) {
		if err != nil {
			d.answer(netproto.StatusNativeError)
			return
		}
		d.answer(netproto.StatusSuccess)
	})
	if c.unawait(); c.array.Users() > 0 {
		c.Fail(errPeerLeft, 0)
	} else if r.store.Retire(c.array) {
		c.finish()
	}
	return true
}

// answer takes the answer home.
func (d *departure) answer(status netproto.Status) {
	d.status, d.done = status, true
	// A lane that is closed has no sessions left.
	_ = d.home.lane.Post(&d.letter, d)
}

func (d *departure) reply() {
	if d.session == nil {
		return
	}
	if d.status != netproto.StatusSuccess {
		session := d.session
		d.session = nil
		session.Refuse(d.status)
		return
	}
	d.session.Send(d.session.Header(d.status, 0), nil)
}

// Sent ends the frame (control.Handler).
func (d *departure) Sent(int) {
	session := d.session
	d.session = nil
	session.Finish()
}

// Received does not happen (control.Handler).
func (d *departure) Received(int) {}

// Lost (control.Handler).
func (d *departure) Lost(control.Loss) { d.session = nil }
