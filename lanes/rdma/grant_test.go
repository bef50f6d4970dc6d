package rdma

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// hand is a requester that does by hand what a Transfer does, or what it never would.
type hand struct {
	*ends
	holder  *holder
	c       *Connection
	request netproto.GrantRequest
	op      netproto.Request
	grants  []netproto.Grant
	local   *memory
	message *memory
}

func (e *ends) hand(d lanes.Direction) *hand {
	e.t.Helper()
	h := &hand{ends: e, holder: e.from.claim(0, e.peer, d)}
	h.c = h.holder.claim.Hold.Connection
	if h.c == nil {
		e.t.Fatal(h.holder.claim.Err)
	}
	h.local, h.message = e.from.memory(1<<20, netproto.LocalOnly, 2), e.from.memory(4096, netproto.LocalOnly, 0)
	return h
}

// exchange asks the source one thing, on the peer's channel or another one.
func (h *hand) exchange(p *Peer, r netproto.Request, most int, encode func([]byte) []byte) (status netproto.Status, payload []byte, err error) {
	h.t.Helper()
	q, done := &question{}, false
	h.on(h.from.lanes[0].Loop, func() {
		q.ask(p.Channel, r, "test", most, reactor.Forever, encode, func(q *question) {
			done = true
			if q.Err == nil {
				payload = append(payload, q.Payload()...)
			}
		})
	})
	h.until("an answer", func() bool { return done })
	return q.Status, payload, q.Err
}

// ask asks for grants over slices of equal length.
func (h *hand) ask(region uint64, offset, length uint64, slices int) netproto.Status {
	h.t.Helper()
	generation := h.from.transport.generation(&h.from.transport.grants.parents)
	h.request = netproto.GrantRequest{
		Profile: netproto.ProfileWindow, Requester: h.from.policy.Epoch, Generation: generation,
		Connections: []netproto.GrantConnection{{Requester: h.c.Own, Source: h.c.Other}},
	}
	for i := range uint64(slices) {
		h.request.Slices = append(h.request.Slices, netproto.GrantSlice{Offset: offset + i*length/uint64(slices), Length: length / uint64(slices)})
	}
	h.op = netproto.Request{Operation: operation(h.c.Direction) + 2, Epoch: h.to.policy.Epoch, Region: region, Offset: offset, Length: length}
	return h.repeat()
}

// repeat asks the same once more.
func (h *hand) repeat() netproto.Status {
	h.t.Helper()
	status, payload, err := h.exchange(h.peer, h.op, netproto.GrantsSizeMax, func(dst []byte) []byte { return netproto.AppendGrantRequest(dst, &h.request) })
	if status == netproto.StatusSuccess {
		must(h.t, err)
		h.grants, err = netproto.DecodeGrants(nil, &h.request, payload)
		must(h.t, err)
	}
	return status
}

// tell says DONE or ABANDON.
func (h *hand) tell(o netproto.Operation) netproto.Status {
	h.t.Helper()
	return h.tellAs(h.peer, o, h.request.Requester)
}

func (h *hand) tellAs(p *Peer, o netproto.Operation, epoch netproto.Epoch) netproto.Status {
	h.t.Helper()
	status, _, _ := h.exchange(p, netproto.Request{Operation: o, Epoch: h.to.policy.Epoch}, 0, func(dst []byte) []byte {
		return netproto.AppendParent(dst, netproto.Parent{Requester: epoch, Generation: h.request.Generation, Slices: uint16(len(h.request.Slices))})
	})
	return status
}

// post posts one piece of work over a connection, and waits for its end.
func (h *hand) post(c *Connection, w verbs.SendWork) verbs.WorkStatus {
	h.t.Helper()
	sender := &holder{}
	refused := false
	h.on(h.from.lanes[0].Loop, func() {
		w.ID = c.TagSend(sender, 0)
		refused = c.PostSend(0, []verbs.Work{{SendWork: w}}) != nil
	})
	if refused {
		return verbs.WorkGeneral
	}
	h.until("a completion", func() bool { return len(sender.reaped) > 0 || !c.Open() })
	if len(sender.reaped) == 0 {
		return verbs.WorkFlushed
	}
	return sender.reaped[0].Status
}

// payload moves n bytes of a granted slice, at an offset from its start.
func (h *hand) payload(c *Connection, o verbs.SendOperation, i int, offset int64, n uint32) verbs.WorkStatus {
	h.t.Helper()
	region, _ := Of(h.local.Registration).On(c.Device.NIC)
	return h.post(c, verbs.SendWork{
		Operation: o, Address: h.local.Address(), Length: n, LocalKey: region.LocalKey(),
		Remote: h.grants[i].Address + uint64(offset), RemoteKey: verbs.RemoteKey(h.grants[i].Key),
	})
}

// binding is the right message for a slice.
func (h *hand) binding(i int) netproto.Binding {
	s, g := h.request.Slices[i], h.grants[i]
	return netproto.Binding{
		Profile: netproto.ProfileWindow, Direction: operation(h.c.Direction), Requester: h.request.Requester, Source: h.to.policy.Epoch,
		RequesterEnd: h.c.Own, SourceEnd: h.c.Other, Parent: h.request.Generation, Grant: g.Generation, Region: h.op.Region,
		Offset: s.Offset, Length: s.Length, Address: g.Address, Key: g.Key, Slice: uint16(i), Slices: uint16(len(h.request.Slices)),
		RequesterNIC: h.c.Device.NIC, SourceNIC: h.c.OtherNIC, Pair: g.Pair,
		SourcePair: h.c.OtherPairs[0].Number, RequesterPair: uint32(h.c.Pair(0).Number()),
	}
}

// send sends a message with an invalidation.
func (h *hand) send(b *netproto.Binding, key uint32) verbs.WorkStatus {
	h.t.Helper()
	netproto.PutBinding(h.message.bytes(), b)
	return h.sendBytes(netproto.BindingSize, key)
}

func (h *hand) sendBytes(n uint32, key uint32) verbs.WorkStatus {
	h.t.Helper()
	region, _ := Of(h.message.Registration).On(h.c.Device.NIC)
	return h.post(h.c, verbs.SendWork{
		Operation: verbs.SendWithInvalidate, Flags: verbs.Fence, Address: h.message.Address(), Length: n, LocalKey: region.LocalKey(), RemoteKey: verbs.RemoteKey(key),
	})
}

// leave gives the connection back.
func (h *hand) leave() {
	if h.holder.claim.Hold.Connection != nil {
		h.on(h.from.lanes[0].Loop, func() { h.holder.release() })
	}
}

func equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// DONE and the receipt may come in either order; each is needed, and each counts once.
//
// proves R-13
func TestTheSourceNeedsItsReceiptAndTheRequestersWord(t *testing.T) {
	e := newEnds(t, simverbs.Hardware, endsOptions{})
	remote := e.to.memory(64<<10, netproto.RemoteRead, 1)
	h := e.hand(lanes.Read)
	equal(t, "grants", h.ask(remote.ID(), 0, 4096, 1), netproto.StatusSuccess)
	b := h.binding(0)
	equal(t, "binding", h.send(&b, h.grants[0].Key), verbs.WorkSuccess)
	e.pass(time.Millisecond)
	equal(t, "parents after the receipt", e.to.services[0].Parents(), 1)
	equal(t, "DONE", h.tell(netproto.OperationRDMADone), netproto.StatusSuccess)
	equal(t, "parents after both", e.to.services[0].Parents(), 0)
	equal(t, "second DONE", h.tell(netproto.OperationRDMADone), netproto.StatusProtocolError)

	// DONE first: it is answered when the receipt is in.
	equal(t, "grants", h.ask(remote.ID(), 0, 4096, 1), netproto.StatusSuccess)
	q, done := &question{}, false
	ask := func() {
		q.ask(h.peer.Channel, netproto.Request{Operation: netproto.OperationRDMADone, Epoch: e.to.policy.Epoch}, "test", 0, reactor.Forever, func(dst []byte) []byte {
			return netproto.AppendParent(dst, netproto.Parent{Requester: h.request.Requester, Generation: h.request.Generation, Slices: 1})
		}, func(*question) { done = true })
	}
	e.on(e.from.lanes[0].Loop, ask)
	e.pass(10 * time.Millisecond)
	if done {
		t.Fatal("DONE was answered without the receipt")
	}
	// A second DONE on another stream changes nothing.
	equal(t, "second DONE while the first waits", h.tellAs(e.from.knows(0, e.to), netproto.OperationRDMADone, h.request.Requester), netproto.StatusProtocolError)
	b = h.binding(0)
	equal(t, "binding", h.send(&b, h.grants[0].Key), verbs.WorkSuccess)
	e.until("the answer to DONE", func() bool { return done })
	must(t, q.Err)
	h.leave()
	e.end()
}

// Every field of the message is held against the grant that it names.
//
// proves
func TestAForgedBindingEndsTheConnectionAndRevokesItsGrants(t *testing.T) {
	forged := map[string]func(*netproto.Binding){"replayed": nil}
	typ := reflect.TypeFor[netproto.Binding]()
	for i := range typ.NumField() {
		forged[typ.Field(i).Name] = func(b *netproto.Binding) {
			f := reflect.ValueOf(b).Elem().Field(i)
			switch f.Kind() {
			case reflect.Array:
				f.Index(0).SetUint(f.Index(0).Uint() ^ 0x40)
			default:
				f.SetUint(f.Uint() ^ 1)
			}
		}
	}
	for name, change := range forged {
		for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
			t.Run(fmt.Sprint(name, d), func(t *testing.T) {
				e := newEnds(t, simverbs.SoftRoCE, endsOptions{})
				remote := e.to.memory(64<<10, netproto.ReadWrite, 1)
				h := e.hand(d)
				equal(t, "grants", h.ask(remote.ID(), 0, 4096, 2), netproto.StatusSuccess)
				b := h.binding(0)
				if change == nil { // the message of an earlier grant, with the key of this one
					equal(t, "binding", h.send(&b, h.grants[0].Key), verbs.WorkSuccess)
					other := h.binding(1)
					equal(t, "binding", h.send(&other, h.grants[1].Key), verbs.WorkSuccess)
					equal(t, "DONE", h.tell(netproto.OperationRDMADone), netproto.StatusSuccess)
					equal(t, "grants", h.ask(remote.ID(), 0, 4096, 2), netproto.StatusSuccess)
				} else {
					change(&b)
				}
				h.send(&b, h.grants[0].Key)
				e.until("the violation", func() bool { return e.to.transport.GrantStats().Violations == 1 })
				if status := h.tell(netproto.OperationRDMADone); status == netproto.StatusSuccess {
					t.Error("DONE was acknowledged after a forged message")
				}
				e.idle()
				equal(t, "received", e.to.transport.GrantStats().Received, map[bool]uint64{true: 2}[change == nil])
				h.leave()
				e.end()
			})
		}
	}
}

// proves
func TestOnlyTheNamedKeyEndsAGrant(t *testing.T) {
	e := newEnds(t, simverbs.SoftRoCE, endsOptions{})
	remote := e.to.memory(64<<10, netproto.RemoteRead, 1)
	h := e.hand(lanes.Read)
	equal(t, "grants", h.ask(remote.ID(), 0, 8192, 2), netproto.StatusSuccess)
	b := h.binding(0)
	h.send(&b, h.grants[1].Key) // a live key of the same parent, and of the same pair
	e.until("the violation", func() bool { return e.to.transport.GrantStats().Violations == 1 })
	e.idle()
	equal(t, "received", e.to.transport.GrantStats().Received, 0)
	h.leave()
	e.end()
}

// proves
func TestAGrantsKeyWorksOnceInItsDirectionAndOverItsPair(t *testing.T) {
	for _, p := range []simverbs.Personality{simverbs.Hardware, simverbs.SoftRoCE} {
		cases := map[string]func(h *hand, other *hand) verbs.WorkStatus{
			"the other direction": func(h, _ *hand) verbs.WorkStatus { return h.payload(h.c, verbs.Write, 0, 0, 64) },
			"another pair":        func(h, other *hand) verbs.WorkStatus { return h.payload(other.c, verbs.Read, 0, 0, 64) },
			"after its end": func(h, _ *hand) verbs.WorkStatus {
				b := h.binding(0)
				equal(t, "binding", h.send(&b, h.grants[0].Key), verbs.WorkSuccess)
				return h.payload(h.c, verbs.Read, 0, 0, 64)
			},
		}
		if p == simverbs.Hardware {
			cases["before its range"] = func(h, _ *hand) verbs.WorkStatus { return h.payload(h.c, verbs.Read, 0, -1, 64) }
			cases["behind its range"] = func(h, _ *hand) verbs.WorkStatus { return h.payload(h.c, verbs.Read, 0, 4096-63, 64) }
		}
		for name, attempt := range cases {
			t.Run(p.String()+"/"+name, func(t *testing.T) {
				e := newEnds(t, p, endsOptions{siteOptions{devices: single(p)}, siteOptions{devices: single(p)}})
				remote := e.to.memory(64<<10, netproto.ReadWrite, 1)
				h := e.hand(lanes.Read)
				private := e.from.ask(0, e.peer, lanes.Read, func(q *Claim) { q.Private = true })
				e.until("another connection", func() bool { return private.answers > 0 })
				other := &hand{ends: e, holder: private, c: private.claim.Hold.Connection}
				equal(t, "grants", h.ask(remote.ID(), 4096, 4096, 1), netproto.StatusSuccess)
				equal(t, "the grant's own use", h.payload(h.c, verbs.Read, 0, 0, 64), verbs.WorkSuccess)
				if status := attempt(h, other); status == verbs.WorkSuccess {
					t.Error("the device took the key")
				}
				h.tell(netproto.OperationRDMAAbandon)
				e.idle()
				if !remote.holds(1) {
					t.Error("bytes at the source were changed")
				}
				h.leave()
				other.leave()
				e.end()
			})
		}
	}
}

// proves, M-8, T-11
func TestTheSourceRefusesWhatIsNotItsOwnBeforeAnyAuthority(t *testing.T) {
	e := newEnds(t, simverbs.Hardware, endsOptions{})
	remote := e.to.memory(64<<10, netproto.RemoteRead, 1)
	secret := e.to.memory(64<<10, netproto.LocalOnly, 1)
	h := e.hand(lanes.Read)
	writer := e.hand(lanes.Write)
	cases := []struct {
		name   string
		status netproto.Status
		ask    func() netproto.Status
	}{
		{"unknown region", netproto.StatusUnknownRegion, func() netproto.Status { return h.ask(999, 0, 64, 1) }},
		{"local region", netproto.StatusPermissionDenied, func() netproto.Status { return h.ask(secret.ID(), 0, 64, 1) }},
		{"direction", netproto.StatusPermissionDenied, func() netproto.Status { return writer.ask(remote.ID(), 0, 64, 1) }},
		{"range", netproto.StatusInvalidRange, func() netproto.Status { return h.ask(remote.ID(), 64<<10-63, 64, 1) }},
		{"payload", netproto.StatusExhausted, func() netproto.Status { return h.ask(remote.ID(), 0, 9<<20, 1) }},
		{"connection of the other direction", netproto.StatusProtocolError, func() netproto.Status {
			c := h.c
			h.c = writer.c
			h.ask(remote.ID(), 0, 64, 1)
			h.op.Operation = netproto.OperationRDMAReadSliced
			defer func() { h.c = c }()
			return h.repeat()
		}},
		{"pair", netproto.StatusProtocolError, func() netproto.Status {
			h.ask(999, 0, 64, 1)
			h.op.Region, h.request.Slices[0].Pair = remote.ID(), 1
			return h.repeat()
		}},
		{"unknown connection", netproto.StatusCacheMiss, func() netproto.Status {
			h.ask(999, 0, 64, 1)
			h.op.Region, h.request.Connections[0].Source[3] = remote.ID(), h.request.Connections[0].Source[3]^1
			return h.repeat()
		}},
		{"another requester's connection", netproto.StatusProtocolError, func() netproto.Status {
			h.ask(999, 0, 64, 1)
			h.op.Region, h.request.Requester = remote.ID(), netproto.Epoch{77}
			return h.repeat()
		}},
		{"profile", netproto.StatusBackendUnavailable, func() netproto.Status {
			h.ask(999, 0, 64, 1)
			h.op.Region, h.request.Profile = remote.ID(), netproto.ProfileRegion
			return h.repeat()
		}},
		{"gap between slices", netproto.StatusInvalidRange, func() netproto.Status {
			h.ask(999, 0, 64, 2)
			h.op.Region, h.request.Slices[1].Offset = remote.ID(), 33
			return h.repeat()
		}},
	}
	for _, c := range cases {
		equal(t, c.name, c.ask(), c.status)
		e.quiet()
	}
	equal(t, "grants", e.to.transport.GrantStats().Granted, 0)

	// The same parent twice, and one that another requester names.
	equal(t, "first", h.ask(remote.ID(), 0, 64, 1), netproto.StatusSuccess)
	grants := h.grants
	equal(t, "the same parent again", h.repeat(), netproto.StatusProtocolError)
	equal(t, "DONE by another requester", h.tellAs(e.peer, netproto.OperationRDMADone, netproto.Epoch{77}), netproto.StatusProtocolError)
	equal(t, "ABANDON by another requester", h.tellAs(e.peer, netproto.OperationRDMAAbandon, netproto.Epoch{77}), netproto.StatusSuccess)
	h.grants = grants
	b := h.binding(0)
	equal(t, "binding", h.send(&b, grants[0].Key), verbs.WorkSuccess)
	equal(t, "DONE", h.tell(netproto.OperationRDMADone), netproto.StatusSuccess)
	h.leave()
	writer.leave()
	e.end()
}

// proves R-9, U-3
func TestAWholeParentIsReservedOrNothing(t *testing.T) {
	o := siteOptions{config: Config{ReceiveDepth: 20, Progress: EventDriven}} // the simulated clock passes over the timers of a lane that polls
	e := newEnds(t, simverbs.Hardware, endsOptions{to: o})
	remote := e.to.memory(1<<20, netproto.ReadWrite, 1)
	h := e.hand(lanes.Read)
	equal(t, "20 slices", h.ask(remote.ID(), 0, 20*64, 20), netproto.StatusSuccess)
	first := *h
	equal(t, "one more slice than receives", h.ask(remote.ID(), 4096, 64, 1), netproto.StatusExhausted)
	equal(t, "more slices than the source admits", h.ask(remote.ID(), 4096, 21*64, 21), netproto.StatusExhausted)
	began := e.world.Now()
	equal(t, "ABANDON", first.tell(netproto.OperationRDMAAbandon), netproto.StatusSuccess)
	if took := time.Duration(e.world.Now() - began); took > 2*abandonGrace {
		t.Errorf("giving grants up took %v", took)
	}
	equal(t, "revoked", e.to.transport.GrantStats().Revoked, 20)
	h.leave()
	e.end()
}

// proves
func TestTheSourceRevokesGrantsWhoseRequesterIsSilent(t *testing.T) {
	everyKind(t, func(t *testing.T, p simverbs.Personality, mode Progress) {
		o := siteOptions{config: Config{Progress: mode}}
		e := newEnds(t, p, endsOptions{o, o})
		remote := e.to.memory(64<<10, netproto.ReadWrite, 1)
		h := e.hand(lanes.Write)
		equal(t, "grants", h.ask(remote.ID(), 0, 8192, 2), netproto.StatusSuccess)
		began := e.world.Now()
		e.idle()
		if took := time.Duration(e.world.Now() - began); took < 4*time.Second || took > 6*time.Second {
			t.Errorf("the grants were revoked after %v, want the source timeout of 5 s", took)
		}
		if status := h.payload(h.c, verbs.Write, 0, 0, 64); status == verbs.WorkSuccess {
			t.Error("a revoked key was taken")
		}
		if !remote.holds(1) {
			t.Error("bytes were changed")
		}
		equal(t, "DONE", h.tell(netproto.OperationRDMADone), statusDeadline)
		equal(t, "DONE again", h.tell(netproto.OperationRDMADone), statusDeadline)
		equal(t, "ABANDON", h.tell(netproto.OperationRDMAAbandon), netproto.StatusSuccess)
		h.leave()
		e.end()
	})
}

// A source remembers only so many of the parents that it has revoked; for a stranger's word it has other words.
//
// proves R-14
func TestASourceRemembersTheLastParentsThatItRevoked(t *testing.T) {
	var ended endedParents
	one, other := netproto.Epoch{1}, netproto.Epoch{2}
	for i := range uint64(endedMax + 3) {
		ended.add(endedParent{one, i, statusDeadline, i == 7})
	}
	for i := range uint64(endedMax + 3) {
		if found := ended.find(one, i); (found != nil) != (i >= 3) || found != nil && found.generation != i {
			t.Errorf("parent %d: %+v", i, found)
		}
	}
	if ended.find(other, 5) != nil || len(ended.list) != endedMax {
		t.Error("another requester's parent is known, or too many are")
	}
	equal(t, "DONE", ended.find(one, 7).answer(false), statusDeadline)
	equal(t, "ABANDON of what is not proven quiet", ended.find(one, 7).answer(true), netproto.StatusNativeError)
	equal(t, "ABANDON", ended.find(one, 8).answer(true), netproto.StatusSuccess)
}

// A window that has no fresh key left is put aside, and another one takes its place; when the history of keys is full the
// source refuses, and what it has goes on.
//
// proves R-12
func TestUsedUpWindowsAreParkedUntilTheHistoryOfKeysIsFull(t *testing.T) {
	o := siteOptions{devices: single(0), config: Config{KeyIndices: 3}}
	e := newEnds(t, simverbs.Hardware, endsOptions{siteOptions{devices: single(0)}, o})
	remote, local := e.to.memory(4096, netproto.ReadWrite, 1), e.from.memory(4096, netproto.LocalOnly, 2)
	run := func() lanes.Outcome { return e.run(e.transfer(lanes.Read, local, remote, 0)) }
	served := 0
	var last lanes.Outcome
	for range 900 {
		if last = run(); last.Err != nil {
			break
		}
		served++
	}
	if served != 3*256 {
		t.Errorf("%d grants out of 3 indices, want 256 of each", served)
	}
	if f := faultIn(t, last); f.Status != netproto.StatusExhausted || !last.Drained || last.Local != lanes.EffectNone {
		t.Errorf("%+v", last)
	}
	counts := e.to.transport.devices[0].Domain.Counts()
	equal(t, "windows", counts.Windows, 3)
	equal(t, "parked", counts.Parked, 3)
	e.end()
}

// A requester's streams may be on any lane of the source.
//
// proves R-13
func TestDoneAndAbandonFindTheirParentOnAnotherLane(t *testing.T) {
	e := newEnds(t, simverbs.Hardware, endsOptions{to: siteOptions{lanes: 3}})
	remote := e.to.memory(64<<10, netproto.RemoteRead, 1)
	h := e.hand(lanes.Read)
	for range 4 { // each peer has a stream of its own
		other := e.from.knows(0, e.to)
		equal(t, "grants", h.ask(remote.ID(), 0, 4096, 1), netproto.StatusSuccess)
		b := h.binding(0)
		equal(t, "binding", h.send(&b, h.grants[0].Key), verbs.WorkSuccess)
		equal(t, "DONE", h.tellAs(other, netproto.OperationRDMADone, h.request.Requester), netproto.StatusSuccess)
		equal(t, "DONE again", h.tellAs(other, netproto.OperationRDMADone, h.request.Requester), netproto.StatusProtocolError)
	}
	sessions := 0
	for _, l := range e.to.lanes {
		if l.server.Sessions() > 0 {
			sessions++
		}
	}
	if sessions < 2 {
		t.Error("all streams are on one lane: nothing was shown")
	}
	equal(t, "grants", h.ask(remote.ID(), 0, 4096, 1), netproto.StatusSuccess)
	equal(t, "ABANDON", h.tellAs(e.from.knows(0, e.to), netproto.OperationRDMAAbandon, h.request.Requester), netproto.StatusSuccess)
	e.quiet()
	h.leave()
	e.end()
}

// What a device refuses is said as such; what the source has too little of, too.
//
// proves R-11, U-3
func TestASourcesRefusalNamesItsKind(t *testing.T) {
	cases := map[string]struct {
		plan   simverbs.Fault
		before func(e *ends) func()
		status netproto.Status
	}{
		"window":  {plan: simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallAllocateWindow}, status: netproto.StatusNativeError},
		"bind":    {plan: simverbs.Fault{Kind: simverbs.BadWork}, status: netproto.StatusNativeError},
		"receive": {plan: simverbs.Fault{Kind: simverbs.BadWork, Call: simverbs.CallPostReceive}, status: netproto.StatusNativeError},
		"grants": {before: func(e *ends) func() {
			c, err := e.to.transport.config.Budgets.Grants.Take(GrantsDefault)
			must(e.t, err)
			return c.Repay
		}, status: netproto.StatusExhausted},
		"bytes": {before: func(e *ends) func() {
			c, err := e.to.transport.config.Budgets.DirectBytes.Take(DirectBytesDefault - 10)
			must(e.t, err)
			return c.Repay
		}, status: netproto.StatusExhausted},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			e := newEnds(t, simverbs.Hardware, endsOptions{siteOptions{devices: single(0)}, siteOptions{devices: single(0)}})
			remote := e.to.memory(64<<10, netproto.RemoteRead, 1)
			h := e.hand(lanes.Read)
			after := func() {}
			if c.before != nil {
				after = c.before(e)
			} else {
				c.plan.Process = "b"
				e.fabric.Plan(c.plan)
			}
			equal(t, "grants", h.ask(remote.ID(), 0, 4096, 2), c.status)
			after()
			e.quiet()
			h.leave()
			e.end()
		})
	}
}

// binds writes down what windows are bound to, and how many receives were posted before.
type binds struct {
	verbs.Calls
	works    []verbs.SendWork
	receives []int // posted before each
	posted   int
}

func (b *binds) PostSend(p verbs.PairHandle, list []verbs.SendWork) (int, error) {
	for _, w := range list {
		if w.Operation == verbs.BindWindow {
			b.works, b.receives = append(b.works, w), append(b.receives, b.posted)
		}
	}
	return b.Calls.PostSend(p, list)
}

func (b *binds) PostReceive(p verbs.PairHandle, list []verbs.ReceiveWork) (int, error) {
	b.posted += len(list)
	return b.Calls.PostReceive(p, list)
}

// proves R-11
func TestAWindowIsBoundToExactlyItsGrant(t *testing.T) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		var b *binds
		o := siteOptions{devices: single(0), calls: func(c verbs.Calls) verbs.Calls {
			b = &binds{Calls: c}
			return b
		}}
		e := newEnds(t, simverbs.Hardware, endsOptions{siteOptions{devices: single(0)}, o})
		remote := e.to.memory(64<<10, netproto.ReadWrite, 1)
		h := e.hand(d)
		equal(t, "grants", h.ask(remote.ID(), 300, 3000, 3), netproto.StatusSuccess)
		want := map[lanes.Direction]verbs.Access{lanes.Read: verbs.AccessRemoteRead, lanes.Write: verbs.AccessRemoteWrite}[d]
		if len(b.works) != 3 {
			t.Fatalf("%d windows were bound, want 3", len(b.works))
		}
		for i, w := range b.works {
			if w.Access != want || w.Remote != remote.Address()+300+uint64(i)*1000 || w.Span != 1000 || uint32(w.RemoteKey) != h.grants[i].Key || b.receives[i] < 3 {
				t.Errorf("%v: window %d: %+v for the grant %+v, after %d receives", d, i, w, h.grants[i], b.receives[i])
			}
		}
		equal(t, "ABANDON", h.tell(netproto.OperationRDMAAbandon), netproto.StatusSuccess)
		h.leave()
		e.end()
	}
}

// A receive whose flush is lost gives its memory back when its pair is destroyed.
//
// proves
func TestALostFlushOfAReceiveLeavesNothing(t *testing.T) {
	e := newEnds(t, simverbs.Hardware, endsOptions{siteOptions{devices: single(0)}, siteOptions{devices: single(0)}})
	remote := e.to.memory(64<<10, netproto.RemoteRead, 1)
	h := e.hand(lanes.Read)
	equal(t, "grants", h.ask(remote.ID(), 0, 4096, 2), netproto.StatusSuccess)
	e.fabric.Plan(simverbs.Fault{Kind: simverbs.LoseCompletion, Process: "b"})
	equal(t, "ABANDON", h.tell(netproto.OperationRDMAAbandon), netproto.StatusSuccess)
	if struck, planned := e.fabric.Struck(); struck != planned {
		t.Error("no completion was lost")
	}
	h.leave()
	e.end()
}
