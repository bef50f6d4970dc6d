package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// connected is two sites with one connection, held by h.
func connected(t testing.TB, p simverbs.Personality, o siteOptions) (r *rig, a, b *site, h *holder, c *Connection) {
	t.Helper()
	r = newRig(t, p)
	a, b = r.site("a", o), r.site("b", o)
	h = a.claim(0, a.peer(0, b), lanes.Read)
	if h.claim.Err != nil {
		t.Fatal(h.claim.Err)
	}
	return r, a, b, h, h.claim.Hold.Connection
}

// Each message of the exchanges that build and end a connection is lost at each byte that matters: the claim is refused
// or served, and both sides end with nothing.
//
// proves R-10, U-1, R-14
func TestStreamLostInsideTheControlExchangeLeavesNothing(t *testing.T) {
	const request, body = netproto.RequestSize, netproto.ConnectionHeadSize + 2*netproto.ConnectionPairSize
	const reply = netproto.ReplySize
	cuts := []uint64{1, request - 1, request, request + 1, request + body - 1, request + body}
	for _, after := range []uint64{1, request, request + netproto.DisconnectSize - 1, request + netproto.DisconnectSize} {
		cuts = append(cuts, request+body+after)
	}
	back := []uint64{1, reply - 1, reply, reply + 1, reply + body - 1, reply + body, reply + body + 1, 2*reply + body - 1, 2*reply + body}
	for d, list := range map[simkernel.Direction][]uint64{simkernel.ToServer: cuts, simkernel.ToClient: back} {
		for _, cut := range list {
			for _, mode := range []Progress{Polling, EventDriven} {
				t.Run(fmt.Sprintf("%v/%d/%s", d, cut, mode), func(t *testing.T) {
					r := newRig(t, simverbs.Hardware)
					o := siteOptions{config: Config{Progress: mode, Width: 2}}
					a, b := r.site("a", o), r.site("b", o)
					first := true
					r.world.OnConnect(func(c *simkernel.Connection) {
						if first {
							c.ResetAfter(d, cut)
						}
						first = false
					})
					h := a.claim(0, a.peer(0, b), lanes.Write)
					if c := h.claim.Hold.Connection; c != nil {
						r.exchangeOnce(a, b, c)
						ended := 0
						r.on(a.lanes[0].Loop, func() {
							c.Close(func(error) { ended++ })
							h.release()
						})
						r.until("the end", func() bool { return ended == 1 })
					} else if h.claim.Err == nil {
						t.Error("neither a connection nor an error")
					}
					again := a.claim(0, a.peer(0, b), lanes.Write)
					if again.claim.Err != nil {
						t.Errorf("the next connection: %v", again.claim.Err)
					} else {
						r.on(a.lanes[0].Loop, again.release)
					}
					r.finish()
				})
			}
		}
	}
}

func (r *rig) exchangeOnce(a, b *site, c *Connection) {
	if b.source(c) == nil {
		r.t.Error("the requester has a connection that the source does not know")
		return
	}
	message(r.t.(*testing.T), r, a, b, c, 1)
}

// A source that says nothing, or is not there, costs a claim its deadline or the builder its time; nothing stays.
//
// proves R-10
func TestWaitersHaveTheirOwnDeadlinesAndDoNotCancelTheBuilder(t *testing.T) {
	r := newRig(t, simverbs.Hardware)
	a, b := r.site("a", siteOptions{}), r.site("b", siteOptions{})
	peer := a.peer(0, b)
	link := r.world.Link(netip.AddrFrom4([4]byte{10, 0, 0, 1}), b.host)
	link.BlackHole(true)
	now := r.world.Now()
	one := func(q *Claim) { q.Path = Path{} } // all four wait for the same connection
	soon := func(d time.Duration) func(*Claim) {
		return func(q *Claim) { one(q); q.Deadline = now.After(d) }
	}
	builder, waiter, patient := a.ask(0, peer, lanes.Read, soon(time.Second)), a.ask(0, peer, lanes.Read, soon(2*time.Second)), a.ask(0, peer, lanes.Read, soon(9*time.Second))
	gone := a.ask(0, peer, lanes.Read, one)
	r.on(a.lanes[0].Loop, gone.claim.Cancel)
	r.until("the first deadline", func() bool { return builder.answers == 1 })
	if at := time.Duration(r.world.Now() - now); at > 1100*time.Millisecond || waiter.answers != 0 {
		t.Errorf("the builder's claim ended after %v, the waiter was answered %d times", at, waiter.answers)
	}
	r.until("the second deadline", func() bool { return waiter.answers == 1 })
	link.BlackHole(false)
	r.until("the third answer", func() bool { return patient.answers == 1 })
	for i, h := range []*holder{builder, waiter} {
		var f *lanes.Fault
		if !errors.As(h.claim.Err, &f) || f.Cause != lanes.Deadline {
			t.Errorf("claim %d: %v", i, h.claim.Err)
		}
	}
	var f *lanes.Fault
	if !errors.As(gone.claim.Err, &f) || f.Cause != lanes.Cancelled || gone.answers != 1 {
		t.Errorf("the cancelled claim: %v", gone.claim.Err)
	}
	if patient.claim.Err != nil || a.transport.Stats().Built != 1 {
		t.Errorf("the patient claim: %v, %+v", patient.claim.Err, a.transport.Stats())
	} else {
		r.on(a.lanes[0].Loop, patient.release)
	}
	r.finish()
}

// proves R-10, U-3
func TestIdleConnectionsAreEvictedForPlacesAndBusyOnesNever(t *testing.T) {
	everyKind(t, func(t *testing.T, p simverbs.Personality, mode Progress) {
		r := newRig(t, p)
		o := siteOptions{endpoints: 2, config: Config{Progress: mode, Width: 1}}
		a, b := r.site("a", o), r.site("b", siteOptions{config: Config{Progress: mode}})
		peer := a.peer(0, b)
		route := func(nic uint8) func(*Claim) { return func(q *Claim) { q.Path = Path{Local: nic, Remote: nic} } }
		first, second := a.ask(0, peer, lanes.Read, route(0)), a.ask(0, peer, lanes.Read, route(1))
		r.until("both", func() bool { return first.answers+second.answers == 2 })
		busy := a.ask(0, peer, lanes.Write, route(0))
		r.until("a refusal", func() bool { return busy.answers == 1 })
		var f *lanes.Fault
		if !errors.As(busy.claim.Err, &f) || f.Cause != lanes.Exhausted {
			t.Fatalf("with all places in use: %v", busy.claim.Err)
		}
		idle, kept := first.claim.Hold.Connection, second.claim.Hold.Connection
		r.on(a.lanes[0].Loop, first.release)
		third := a.ask(0, peer, lanes.Write, route(0))
		r.until("the place of the idle one", func() bool { return third.answers == 1 })
		if third.claim.Err != nil || idle.state != connectionGone || kept.state != connectionOpen || a.transport.Stats().Evicted != 1 {
			t.Fatalf("%v; the idle one is %s, the busy one %s", third.claim.Err, idle.state, kept.state)
		}
		if idle.state == connectionGone && b.source(idle) != nil {
			t.Error("the source was not told of the eviction")
		}
		r.on(a.lanes[0].Loop, func() { second.release(); third.release() })
		r.finish()
	})
}

// A source that evicted a connection does not know it any more: the grant gets an explicit miss, the requester forgets
// the connection and builds another one.
//
// proves R-15
func TestEvictedSourceEndIsAMissAndTheRequesterBuildsAnew(t *testing.T) {
	r := newRig(t, simverbs.Hardware)
	a := r.site("a", siteOptions{})
	b := r.site("b", siteOptions{endpoints: 1})
	c2 := r.site("c", siteOptions{})
	h := a.claim(0, a.peer(0, b), lanes.Read)
	c := h.claim.Hold.Connection
	if c == nil || b.source(c) == nil {
		t.Fatalf("%v", h.claim.Err)
	}
	other := c2.claim(0, c2.peer(0, b), lanes.Read) // needs the only place of b, whose connection is idle there
	if other.claim.Err != nil {
		t.Fatal(other.claim.Err)
	}
	if b.source(c) != nil || b.lanes[0].rails.Find(netproto.Incarnation{1}, other.claim.Hold.Connection.Other) != nil {
		t.Fatal("the source finds what it evicted, or what another requester names")
	}
	r.on(a.lanes[0].Loop, func() { c.Forget(errors.New("cache miss")) })
	r.on(c2.lanes[0].Loop, other.release)
	again := a.claim(0, a.peer(0, b), lanes.Read)
	if again.claim.Err != nil || again.claim.Hold.Connection == c || b.source(again.claim.Hold.Connection) == nil {
		t.Fatalf("the second connection: %v", again.claim.Err)
	}
	if len(h.lost) != 1 || len(h.quiet) != 1 || !h.quiet[0] {
		t.Errorf("the user of the forgotten connection was told %v, %v", h.lost, h.quiet)
	}
	r.on(a.lanes[0].Loop, again.release)
	r.finish()
}

// proves
func TestPrivateConnectionIsNotSharedAndEndsOnBothSides(t *testing.T) {
	everyKind(t, func(t *testing.T, p simverbs.Personality, mode Progress) {
		r := newRig(t, p)
		o := siteOptions{config: Config{Progress: mode}}
		a, b := r.site("a", o), r.site("b", o)
		peer := a.peer(0, b)
		private := func(q *Claim) { q.Private, q.Path = true, Path{} }
		one, two := a.ask(0, peer, lanes.Write, private), a.ask(0, peer, lanes.Write, private)
		r.until("both", func() bool { return one.answers+two.answers == 2 })
		c := one.claim.Hold.Connection
		if c == nil || c == two.claim.Hold.Connection {
			t.Fatalf("%v, %v", one.claim.Err, two.claim.Err)
		}
		there := b.source(c)
		var ended []error
		r.on(a.lanes[0].Loop, func() {
			c.Close(func(err error) { ended = append(ended, err) })
			one.release()
		})
		r.until("the end of both sides", func() bool { return len(ended) > 0 })
		if len(ended) != 1 || ended[0] != nil || there.state != connectionGone || c.state != connectionGone {
			t.Errorf("ended %v; here %s, there %s", ended, c.state, there.state)
		}
		r.on(a.lanes[0].Loop, func() { c.Close(func(err error) { ended = append(ended, err) }) })
		if len(ended) != 2 {
			t.Error("a second close was not answered")
		}
		r.on(a.lanes[0].Loop, two.release)
		r.finish()
	})
}

// The stream of a farewell may reach another lane of the source than the connection's.
//
// proves R-16
func TestDisconnectFindsTheConnectionOnAnotherLane(t *testing.T) {
	for _, kept := range []bool{false, true} {
		r := newRig(t, simverbs.Hardware)
		a, b := r.site("a", siteOptions{}), r.site("b", siteOptions{lanes: 2})
		peer := a.peer(0, b)
		h := a.claim(0, peer, lanes.Read)
		c := h.claim.Hold.Connection
		if c == nil {
			t.Fatal(h.claim.Err)
		}
		there := b.source(c)
		elsewhere := b.lanes[1-there.rails.lane.Index].server
		for n := 0; elsewhere.Sessions() == 0; n++ { // accepted streams go round the lanes
			c.peer = a.peer(0, b)
			(&stranger{}).ask(r, a, c.peer, netproto.OperationRDMADisconnect, 0, func(dst []byte) []byte {
				return netproto.AppendDisconnect(dst, netproto.Disconnect{Requester: a.policy.Epoch, End: netproto.Incarnation{1}, SourceEnd: netproto.Incarnation{2}})
			})
			if n > 4 {
				t.Fatal("all streams are accepted by one lane")
			}
		}
		if kept {
			r.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallDestroyPair, Process: "b"})
		}
		var ended []error
		r.on(c.rails.lane.Loop, func() {
			c.Close(func(err error) { ended = append(ended, err) })
			h.release()
		})
		r.until("the end", func() bool { return len(ended) == 1 })
		if (ended[0] != nil) != kept || (there.state == connectionRetained) != kept {
			t.Errorf("kept %v: ended with %v, the source's end is %s", kept, ended[0], there.state)
		}
		if kept {
			r.settleUp()
		} else {
			r.finish()
		}
	}
}

// stranger asks a source what no engine asks.
type stranger struct {
	question
	done bool
}

func (s *stranger) ask(r *rig, from *site, p *Peer, op netproto.Operation, most int, encode func([]byte) []byte) *stranger {
	r.on(from.lanes[0].Loop, func() {
		s.question.ask(p.Channel, netproto.Request{Operation: op, Epoch: p.Epoch}, "test", most, r.world.Now().After(time.Minute), encode, func(*question) { s.done = true })
	})
	r.until("an answer", func() bool { return s.done })
	return s
}

// proves
func TestSourceRefusesWhatDoesNotMatchItsPaths(t *testing.T) {
	r := newRig(t, simverbs.Hardware)
	a, b := r.site("a", siteOptions{}), r.site("b", siteOptions{config: Config{Width: 2}})
	peer := a.peer(0, b)
	h := a.claim(0, peer, lanes.Read)
	c := h.claim.Hold.Connection
	good := func() netproto.Connection {
		d := a.transport.devices[0]
		route := d.Context.Route()
		return netproto.Connection{
			Epoch: a.policy.Epoch, Incarnation: a.transport.incarnation(), NIC: 0, PeerNIC: 0, Port: 1, Link: netproto.LinkEthernet,
			Direction: netproto.OperationRDMARead, Profile: netproto.ProfileWindow, Domain: d.Identity, PeerDomain: b.transport.devices[0].Identity,
			GID: route.GID.GID, MTU: 1024, Depth: 16, ReadsOutstanding: 1, Pairs: []netproto.PairAddress{{Number: 5, FirstPacket: 1}},
		}
	}
	for name, x := range map[string]struct {
		change func(*netproto.Connection)
		status netproto.Status
	}{
		"NIC":                {func(c *netproto.Connection) { c.PeerNIC = 9 }, netproto.StatusBackendUnavailable},
		"domain":             {func(c *netproto.Connection) { c.PeerDomain++ }, netproto.StatusBackendUnavailable},
		"domain of another":  {func(c *netproto.Connection) { c.PeerNIC = 1 }, netproto.StatusBackendUnavailable},
		"link":               {func(c *netproto.Connection) { c.Link = netproto.LinkInfiniBand }, netproto.StatusBackendUnavailable},
		"family":             {func(c *netproto.Connection) { c.GID = [16]byte{0xfe, 0x80, 15: 1} }, netproto.StatusBackendUnavailable},
		"profile":            {func(c *netproto.Connection) { c.Profile = netproto.ProfileRegion }, netproto.StatusBackendUnavailable},
		"width":              {func(c *netproto.Connection) { c.Pairs = make([]netproto.PairAddress, 3) }, netproto.StatusExhausted},
		"named end":          {func(c *netproto.Connection) { c.Peer = netproto.Incarnation{1} }, netproto.StatusProtocolError},
		"incarnation in use": {func(n *netproto.Connection) { n.Incarnation = c.Own }, netproto.StatusProtocolError},
	} {
		offer := good()
		x.change(&offer)
		s := (&stranger{}).ask(r, a, peer, netproto.OperationRDMAConnect, netproto.ConnectionSizeMax, func(dst []byte) []byte { return netproto.AppendConnection(dst, &offer) })
		var f *lanes.Fault
		if !errors.As(s.Err, &f) || f.Status != x.status {
			t.Errorf("%s: %v, want status %v", name, s.Err, x.status)
		}
	}
	if b.source(c) == nil || b.transport.config.Budgets.Endpoints.Used() != 1 {
		t.Errorf("a refusal changed the connection that was there; %d places", b.transport.config.Budgets.Endpoints.Used())
	}
	// Nobody else ends it: neither half of its name is enough.
	for _, d := range []netproto.Disconnect{{Requester: a.policy.Epoch, End: netproto.Incarnation{9}, SourceEnd: c.Other}, {Requester: netproto.Epoch{9}, End: c.Own, SourceEnd: c.Other}} {
		s := (&stranger{}).ask(r, a, peer, netproto.OperationRDMADisconnect, 0, func(dst []byte) []byte { return netproto.AppendDisconnect(dst, d) })
		if s.Err != nil || b.source(c) == nil {
			t.Errorf("a stranger's farewell: %v; the connection is there: %v", s.Err, b.source(c) != nil)
		}
	}
	r.on(a.lanes[0].Loop, h.release)
	r.finish()
}

// A source whose answer is not what its descriptor said gets no queue pair connected to it.
//
// proves R-4
func TestRequesterRefusesAnAnswerThatDoesNotMatchThePath(t *testing.T) {
	for field, lie := range map[string]func(p *netproto.Path){
		"GID":  func(p *netproto.Path) { p.GID[15]++ },
		"port": func(p *netproto.Path) { p.Port++ },
	} {
		r := newRig(t, simverbs.SoftRoCE)
		a, b := r.site("a", siteOptions{}), r.site("b", siteOptions{})
		peer := a.peer(0, b)
		for i := range peer.Paths { // what the descriptor said is not what the source is
			lie(&peer.Paths[i])
		}
		h := a.claim(0, peer, lanes.Read)
		var m *MismatchError
		var f *lanes.Fault
		if !errors.As(h.claim.Err, &m) || !errors.As(h.claim.Err, &f) || f.Cause != lanes.Violated {
			t.Errorf("%s: %v", field, h.claim.Err)
		}
		r.until("the end of the source's end", func() bool { return b.transport.config.Budgets.Endpoints.Used() == 0 })
		r.finish()
	}
}

// Places that an idle connection of another lane holds are had: at the requester and at the source. Those of one in use
// are not.
//
// proves R-10, U-3
func TestPlacesOfIdleConnectionsOnOtherLanesAreHad(t *testing.T) {
	for _, atSource := range []bool{false, true} {
		r := newRig(t, simverbs.Hardware)
		few, many := siteOptions{lanes: 2, endpoints: 1}, siteOptions{lanes: 2}
		if atSource {
			few, many = many, few
		}
		a, b := r.site("a", few), r.site("b", many)
		one := a.claim(0, a.peer(0, b), lanes.Read)
		if one.claim.Err != nil {
			t.Fatal(one.claim.Err)
		}
		c := one.claim.Hold.Connection
		hold := &holder{}
		if atSource {
			there := b.source(c)
			r.on(there.rails.lane.Loop, func() { there.Take(&hold.hold, hold) })
		}
		two := a.claim(1, a.peer(1, b), lanes.Read)
		var f *lanes.Fault
		if !errors.As(two.claim.Err, &f) || f.Cause != lanes.Exhausted && f.Status != netproto.StatusExhausted {
			t.Fatalf("at the source %v: with the place in use: %v", atSource, two.claim.Err)
		}
		if atSource {
			r.on(hold.hold.Connection.rails.lane.Loop, hold.hold.Release)
		} else {
			r.on(a.lanes[0].Loop, one.release)
		}
		for range 2 { // to and fro between the lanes
			three := a.claim(1, a.peer(1, b), lanes.Read)
			if three.claim.Err != nil {
				t.Fatalf("at the source %v: %v", atSource, three.claim.Err)
			}
			r.on(a.lanes[1].Loop, three.release)
			four := a.ask(0, a.peer(0, b), lanes.Write, func(q *Claim) { q.Deadline = r.world.Now().After(time.Minute) })
			r.until("the place to come back", func() bool { return four.answers == 1 })
			if four.claim.Err != nil {
				t.Fatalf("at the source %v: %v", atSource, four.claim.Err)
			}
			r.on(a.lanes[0].Loop, four.release)
		}
		if atSource && one.claim.Hold.Connection != nil {
			r.on(a.lanes[0].Loop, one.release)
		}
		r.finish()
	}
}
