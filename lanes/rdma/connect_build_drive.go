package rdma

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/verbs"
)

// What queue pairs are made with. Retries and timeout find a dead peer in about half a second: 4.096 µs · 2^14 · 7.
const (
	pairTimeout          = 14
	pairRetries          = 6 // soft-RoCE takes 7 for "for ever"
	pairNotReadyRetries  = 6
	pairReceiverNotReady = 12 // 0.64 ms
	pairHopLimit         = 64
	pairReadsMax         = 16
	requesterReceives    = 1 // a requester takes no messages; a queue pair has a receive queue all the same
)

// builder makes the queue pairs of one array at the requester (SPEC R-10): it began when the store said Build, its places
// are charged, and it goes on whatever becomes of the claim that began it.
//
//	making ──▶ asking ──▶ connecting ──▶ built
//	  └───────────┴────────────┴──▶ failed: what was made is destroyed
type builder struct {
	c        *Connection
	claim    *Claim // nil when it was answered or cancelled meanwhile
	question question
	own      netproto.Connection
	answer   netproto.Connection
	route    verbs.Route
	err      error
	left     bool // true exactly when something that was made could not be destroyed
}

// build begins (petitioner).
func (q *Claim) build(a *Array) {
	r := q.rails
	rail := r.Rail(q.Path.Local)
	path := q.Peer.path(q.Path.Remote)
	c := r.newConnection(a, rail, Requester, q.Direction)
	c.peer, c.OtherEpoch, c.OtherNIC, c.OtherDomain = q.Peer, q.Peer.Epoch, path.NIC, path.PD
	c.profile = max(q.Profile, netproto.ProfileWindow)
	b := &builder{c: c, claim: q}
	q.makes = b
	if q.Deadline != reactor.Forever {
		r.lane.Arm(&q.timer, q.Deadline, q)
	}
	c.errand.send(r.transport.config.Cold, r.lane.Loop, b.make, b.made)
	if q.quit != nil { // the builder goes on
		q.refuse(q.quit)
	}
}

// newConnection makes the drive of an array that is being built.
func (r *Rails) newConnection(a *Array, rail *Rail, role Role, d lanes.Direction) *Connection {
	c := &Connection{Role: role, Direction: d, Device: rail.Device, Own: r.transport.incarnation(), rails: r, rail: rail, array: a}
	a.Data = c
	r.ends[c.Own] = c
	r.pending++
	rail.building++
	return c
}

// make creates the pairs and moves them to Init. On the cold loop.
func (b *builder) make() {
	b.route = b.c.Device.Context.Route()
	b.err = b.c.create(b.route, requesterReceives)
	if b.err != nil {
		b.left = b.c.unmake()
	}
}

// create makes the pairs of a connection, in state Init. On the cold loop.
func (c *Connection) create(route verbs.Route, receives int) error {
	config := &c.rails.transport.config
	if c.private != nil {
		if err := c.private.open(c.Device); err != nil {
			return err
		}
		receives = 1
	}
	for range c.array.Width {
		p, err := c.domain().CreatePair(verbs.PairPlan{
			Sends: c.rail.sends, Receives: c.rail.receives, SendDepth: config.SendDepth, ReceiveDepth: receives, Shared: true,
		})
		if err != nil {
			return err
		}
		c.pairs = append(c.pairs, p)
		if err := p.Move(verbs.Transition{To: verbs.PairInit, Port: route.Port, Access: c.access()}); err != nil {
			return err
		}
	}
	return nil
}

// access is what the peer may do over the pairs at all: nothing at a requester.
func (c *Connection) access() verbs.Access {
	switch {
	case c.Role == Requester:
		return 0
	case c.Direction == lanes.Read:
		return verbs.AccessRemoteRead
	}
	return verbs.AccessRemoteWrite
}

// unmake destroys pairs that were never attached. True: something is left, and is in the context's book. On the cold
// loop.
func (c *Connection) unmake() (left bool) {
	var stay error
	for _, p := range c.pairs {
		_ = p.Drain() // nothing was posted; a refusal retains the pair, and the next call answers the same
		if err := p.Destroy(); err != nil {
			stay = err
		}
	}
	return c.endPrivate(stay) != nil
}

// describe is this end as the wire has it.
func (c *Connection) describe(route verbs.Route, starts []uint32) netproto.Connection {
	config := &c.rails.transport.config
	d := netproto.Connection{
		Epoch: config.Epoch, Incarnation: c.Own, Peer: c.Other, NIC: c.Device.NIC, PeerNIC: c.OtherNIC, Port: route.Port,
		Link: netproto.LinkInfiniBand, Direction: operation(c.Direction), Profile: c.profile,
		Domain: c.identity(), PeerDomain: c.OtherDomain, GID: route.GID.GID, LID: route.LID, MTU: uint16(route.MTU),
		Depth: uint16(min(config.SendDepth, 1<<16-1)), ReadsOutstanding: uint8(c.readsAnswered()),
	}
	if route.Ethernet {
		d.Link = netproto.LinkEthernet
	}
	for i, p := range c.pairs {
		d.Pairs = append(d.Pairs, netproto.PairAddress{Number: uint32(p.Number()), FirstPacket: starts[i]})
	}
	return d
}

// readsAnswered is how many READs of the peer one pair answers at a time.
func (c *Connection) readsAnswered() int {
	return max(1, min(c.Device.Context.Limits().ReadAtomic, pairReadsMax))
}

// starts draws the first packet number of each pair.
func (c *Connection) starts() []uint32 {
	starts := make([]uint32, c.array.Width)
	for i := range starts {
		var b [4]byte
		c.rails.transport.config.Random(b[:])
		starts[i] = binary.BigEndian.Uint32(b[:]) >> 8
	}
	return starts
}

// connect moves the pairs to ReadyToSend towards the other end. On the cold loop; the first step is slow.
func (c *Connection) connect(route verbs.Route, own, other *netproto.Connection) error {
	c.OtherDepth, c.OtherPairs = int(other.Depth), other.Pairs
	c.ReadsAsked = min(int(other.ReadsOutstanding), c.readsAnswered())
	for i, p := range c.pairs {
		err := p.Move(verbs.Transition{
			To: verbs.PairReadyToReceive, Port: route.Port, Remote: verbs.PairNumber(other.Pairs[i].Number), ReceiveStart: other.Pairs[i].FirstPacket,
			MTU: min(route.MTU, int(other.MTU)), SourceGID: route.GID.Index, RemoteGID: other.GID, RemoteLID: other.LID,
			HopLimit: pairHopLimit, ReadsAnswered: uint8(c.readsAnswered()), ReceiverNotReady: pairReceiverNotReady,
		})
		if err == nil {
			err = p.Move(verbs.Transition{
				To: verbs.PairReadyToSend, SendStart: own.Pairs[i].FirstPacket, Timeout: pairTimeout, Retries: pairRetries,
				NotReadyRetries: pairNotReadyRetries, ReadsAsked: uint8(c.ReadsAsked),
			})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// made goes on with the exchange.
func (b *builder) made(now reactor.Instant) {
	c := b.c
	if b.err != nil {
		b.fail("make queue pairs")
		return
	}
	b.own = c.describe(b.route, c.starts())
	request := netproto.Request{Operation: netproto.OperationRDMAConnect, Epoch: c.OtherEpoch}
	b.question.ask(c.peer.Channel, request, "RDMA connect", netproto.ConnectionSizeMax, now.After(c.rails.transport.config.ConnectTimeout),
		func(dst []byte) []byte { return netproto.AppendConnection(dst, &b.own) }, b.asked)
}

// asked takes the source's end.
func (b *builder) asked(q *question) {
	c := b.c
	b.err = q.Err
	if b.err == nil {
		b.answer, b.err = netproto.DecodeConnection(q.Payload())
	}
	if b.err == nil {
		c.Other = b.answer.Incarnation // from here on the source is told of the end
		if path := c.peer.path(c.OtherNIC); path == nil {
			b.err = mismatch("NIC", "gone", fmt.Sprint(c.OtherNIC))
		} else {
			b.err = checkAnswer(&b.own, &b.answer, c.OtherEpoch, path)
		}
	}
	run := func() { b.err = c.connect(b.route, &b.own, &b.answer) }
	if b.err != nil {
		refused := b.err
		run = func() { b.err = refused }
	}
	c.errand.send(c.rails.transport.config.Cold, c.rails.lane.Loop, func() {
		if run(); b.err != nil {
			b.left = c.unmake()
		}
	}, b.connected)
}

// connected opens the connection for its users, or ends what there is.
func (b *builder) connected(reactor.Instant) {
	c := b.c
	if b.err != nil {
		b.fail("connect queue pairs")
		return
	}
	if err := c.attach(); err != nil {
		b.err = err
		c.errand.send(c.rails.transport.config.Cold, c.rails.lane.Loop, func() { b.left = c.unmake() }, func(reactor.Instant) { b.fail("attach queue pairs") })
		return
	}
	c.rails.transport.counts.built.Add(1)
	c.rails.transport.closeGaps(func(g *Gap) bool { return g.joins(c.OtherEpoch, c.Device.NIC, c.OtherNIC) })
	c.rails.built(c)
	if q := b.claim; q != nil {
		q.use(c.array)
	} else {
		c.released() // nobody waits for the builder's own hold
	}
	c.rails.doneBuilding(c)
}

// attach lets completions find the pairs, unless the way was closed while they were made. On failure none is attached.
func (c *Connection) attach() error {
	if !c.Device.Active() {
		state, why := c.Device.State()
		return &verbs.FencedError{Object: c.Device.Context.String(), State: state.String(), Reason: why}
	}
	if c.rails.fenced {
		return ErrClosed
	}
	for i, p := range c.pairs {
		err := p.Attach()
		if err == nil && p.Fenced() != "" {
			err = &verbs.FencedError{Object: p.String(), State: "fenced", Reason: p.Fenced()}
			i++ // it is attached
		}
		if err != nil {
			for _, attached := range c.pairs[:i] {
				_ = attached.Drain() // nothing was posted on it
				_ = attached.Detach()
			}
			return err
		}
	}
	c.rail.connections = append(c.rail.connections, c)
	c.listed = true
	c.state = connectionOpen
	return nil
}

// built tells those who wait for the array.
func (r *Rails) built(c *Connection) {
	r.serveAll(r.store.Built(c.array, nil))
}

// doneBuilding counts a builder out.
func (r *Rails) doneBuilding(c *Connection) {
	c.rail.building--
	r.pending--
	c.rail.mend()
	r.settle()
}

// fail ends a builder whose pairs are destroyed, or retained.
func (b *builder) fail(stage string) {
	c := b.c
	c.rails.transport.counts.refused.Add(1)
	err := b.err
	if _, ok := err.(*lanes.Fault); !ok {
		cause := lanes.Unreachable
		var lie *MismatchError
		var garbage *netproto.FrameError
		switch {
		case errors.As(err, &lie), errors.As(err, &garbage):
			cause = lanes.Violated
		case errors.Is(err, verbs.ErrCredit):
			cause = lanes.Exhausted
		}
		err = fault(cause, stage, err)
	}
	if b.unreachable() {
		err = b.bar(err.(*lanes.Fault))
	}
	b.tell()
	c.buildFailed(err, b.left)
	if q := b.claim; q != nil { // those who were told may have taken it back
		q.refuse(err)
	}
	c.rails.doneBuilding(c)
}

// tell lets the source end what it made for a connection that this side could not build.
func (b *builder) tell() {
	if !b.c.Other.IsZero() {
		b.c.depart(b.c.rails.lane.Now().After(b.c.rails.transport.config.ConnectTimeout))
	}
}

// buildFailed ends an array that was never open.
func (c *Connection) buildFailed(err error, left bool) {
	c.err = err
	r := c.rails
	answers := r.store.BuildFailed(c.array, err, left, nil)
	if left {
		c.state = connectionRetained
		r.transport.counts.retained.Add(1)
		answers = r.store.Retained(c.array, answers)
	} else {
		c.state = connectionGone
		r.forget(c)
		r.transport.repaid()
	}
	r.serveAll(answers)
}
