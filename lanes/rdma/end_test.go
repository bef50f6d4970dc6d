package rdma

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// post posts n sends, of which no receive is known, on a pair.
func (r *rig) post(s *site, c *Connection, pair, n int, owner Owner) (err error) {
	r.t.Helper()
	if len(s.registers) == 0 {
		s.register(r.memory(4096), false)
	}
	g := s.registers[0]
	r.on(c.rails.lane.Loop, func() {
		local, _ := g.On(c.Device.NIC)
		address, _ := g.Range()
		var list []verbs.Work
		for i := range n {
			list = append(list, verbs.Work{SendWork: verbs.SendWork{ID: c.TagSend(owner, uint64(i)), Operation: verbs.Send, Address: address, Length: 8, LocalKey: local.LocalKey()}})
		}
		err = c.PostSend(pair, list)
	})
	return err
}

// Every user of a failed connection is told that it is lost, then that it is quiet, each once; nothing is delivered
// afterwards, and the connections beside it go on.
//
// proves R-17
func TestUsersOfAFailedConnectionAreToldOnceThatItIsLostAndOnceThatItIsQuiet(t *testing.T) {
	everyKind(t, func(t *testing.T, p simverbs.Personality, mode Progress) {
		r := newRig(t, p)
		o := siteOptions{config: Config{Progress: mode, Width: 2}}
		a, b := r.site("a", o), r.site("b", o)
		peer := a.peer(0, b)
		same := func(q *Claim) { q.Path = Path{} }
		one, two, beside := a.ask(0, peer, lanes.Read, same), a.ask(0, peer, lanes.Read, same), a.ask(0, peer, lanes.Write, same)
		r.until("three", func() bool { return one.answers+two.answers+beside.answers == 3 })
		c := one.claim.Hold.Connection
		r.fabric.Plan(simverbs.Fault{Kind: simverbs.FailWork, Process: "a", Index: 1, Status: verbs.WorkRemoteAccess})
		must(t, r.post(a, c, 0, 4, one))
		must(t, r.post(a, c, 1, 3, two))
		r.until("the end", func() bool { return len(one.quiet) == 1 && len(two.quiet) == 1 })
		r.pass(time.Minute)
		for _, h := range []*holder{one, two} {
			var w *WorkError
			if len(h.lost) != 1 || !errors.As(h.lost[0], &w) || len(h.quiet) != 1 || !h.quiet[0] {
				t.Errorf("told %v, %v", h.lost, h.quiet)
			}
		}
		if len(one.reaped) != 4 || len(two.reaped) != 3 || c.rail.sending != 0 || c.state != connectionGone {
			t.Errorf("%d and %d completions, %d sends are counted, the connection is %s", len(one.reaped), len(two.reaped), c.rail.sending, c.state)
		}
		if len(beside.lost) != 0 {
			t.Error("the connection beside it was lost")
		}
		message(t, r, a, b, beside.claim.Hold.Connection, 1)
		r.on(a.lanes[0].Loop, beside.release)
		r.finish()
	})
}

// proves R-17
func TestFailedPostReleasesOnlyWhatTheDeviceCertainlyDidNotTake(t *testing.T) {
	for _, unknown := range []bool{false, true} {
		r, a, _, h, c := connected(t, simverbs.Hardware, siteOptions{})
		kind := simverbs.BadWork
		if unknown {
			kind = simverbs.UnknownBadWork
		}
		r.fabric.Plan(simverbs.Fault{Kind: kind, Process: "a", Element: 2})
		err := r.post(a, c, 0, 5, h)
		var partial *verbs.PostError
		if !errors.As(err, &partial) || partial.Unknown != unknown || partial.Posted != map[bool]int{false: 2, true: 5}[unknown] {
			t.Fatalf("%v", err)
		}
		if c.rail.sending != partial.Posted || c.Open() == unknown || len(h.lost) != map[bool]int{true: 1}[unknown] {
			t.Errorf("unknown %v: %d sends are counted, open %v, told %v", unknown, c.rail.sending, c.Open(), h.lost)
		}
		if !unknown {
			r.on(a.lanes[0].Loop, func() { c.Fail(err, 0) })
		}
		r.until("quiet", func() bool { return len(h.quiet) == 1 })
		if !h.quiet[0] || len(h.reaped) < 2 {
			t.Errorf("%v, %d completions", h.quiet, len(h.reaped))
		}
		r.until("the end", func() bool { return c.state == connectionGone })
		if c.rail.sending != 0 || c.rail.free == noTag {
			t.Errorf("%d sends are counted", c.rail.sending)
		}
		r.finish()
	}
}

// The native calls that end things come in the order of the contract: error state, windows, pairs, queues, regions,
// domain, context. None is made twice.
//
// proves R-18
func TestTeardownKeepsTheOrder(t *testing.T) {
	r := newRig(t, simverbs.SoftRoCE)
	spy := &tamper{}
	a := r.site("a", siteOptions{devices: oneDevice, config: Config{Progress: EventDriven}})
	b := r.site("b", siteOptions{devices: oneDevice, config: Config{Progress: EventDriven}, calls: func(c verbs.Calls) verbs.Calls { spy.Calls = c; return spy }})
	h := a.claim(0, a.peer(0, b), lanes.Read)
	there := b.source(h.claim.Hold.Connection)
	g := b.register(r.memory(4096), true)
	user := &holder{}
	var window *verbs.MemoryWindow
	user.onQuiet = func(bool) { must(t, window.Free()) }
	r.on(b.lanes[0].Loop, func() {
		var err error
		window, err = there.Device.Domain.AllocateWindow()
		must(t, err)
		_, parent := g.On(0)
		address, length := g.Range()
		work, err := window.PrepareBind(there.TagSend(user, 1), there.Pair(0), parent, address, length, verbs.AccessRemoteRead)
		must(t, err)
		if !there.Take(&user.hold, user) {
			t.Fatal("an open connection is not taken")
		}
		must(t, there.PostSend(0, []verbs.Work{work}))
	})
	r.until("the bind", func() bool { return len(user.reaped) == 1 })
	r.on(b.lanes[0].Loop, func() { window.Publish(); there.Fail(errors.New("planned"), 0) })
	r.until("the end", func() bool { return there.state == connectionGone })
	r.on(a.lanes[0].Loop, h.release)
	r.finish()
	want := []string{
		"error state", "free window", "destroy pair", "destroy queue", "destroy queue", "destroy channel", "deregister", "deregister", "free domain", "close device",
	}
	if !slices.Equal(spy.trace, want) {
		t.Errorf("the order was %q, want %q", spy.trace, want)
	}
}

// Work whose end is never proven keeps its connection for good once the window is over: its places stay charged, its
// users are told, and it is listed; what shares the window with an earlier failure does not get another one.
//
// proves R-18
func TestUnprovenEndIsRetainedAfterTheSharedWindow(t *testing.T) {
	everyKind(t, func(t *testing.T, p simverbs.Personality, mode Progress) {
		for _, shared := range []time.Duration{0, 12 * time.Second} {
			r, a, _, h, c := connected(t, p, siteOptions{config: Config{Progress: mode, Width: 2}})
			r.fabric.Plan(simverbs.Fault{Kind: simverbs.LoseCompletion, Process: "a", Count: -1})
			must(t, r.post(a, c, 0, 2, h))
			began := r.world.Now()
			r.on(a.lanes[0].Loop, func() {
				c.Fail(errors.New("first"), 0)
				if shared > 0 {
					c.Fail(errors.New("second"), began.After(shared))
				}
			})
			r.until("the end of the window", func() bool { return len(h.quiet) == 1 })
			took, want := time.Duration(r.world.Now()-began), CleanupWindow
			if shared > 0 {
				want = shared
			}
			if h.quiet[0] || took < want || took > want+time.Second || c.state != connectionRetained {
				t.Errorf("told %v after %v, want %v; %s", h.quiet, took, want, c.state)
			}
			if used := a.transport.config.Budgets.Endpoints.Used(); used != 2 || a.transport.Stats().RetainedConnections != 1 {
				t.Errorf("%d places are charged", used)
			}
			text := ""
			for _, x := range a.transport.Retained() {
				text += x.Object + "\n"
			}
			if strings.Count(text, "queue pair") != 2 {
				t.Errorf("retained: %s", text)
			}
			var err error
			r.on(a.lanes[0].Loop, func() { c.Close(func(e error) { err = e }) })
			if !errors.Is(err, verbs.ErrRetained) {
				t.Errorf("a close of what is retained says %v", err)
			}
			r.settleUp()
			if left := a.native.Live(); left.Pairs != 2 {
				t.Errorf("a retained pair was destroyed after all: %+v", left)
			}
		}
	})
}

// A user that does not clean up in time keeps the pairs, not the lane.
//
// proves R-18
func TestUserThatKeepsItsHoldIsGivenUpAtTheEndOfTheWindow(t *testing.T) {
	r, a, _, h, c := connected(t, simverbs.Hardware, siteOptions{})
	h.keep = true
	r.on(a.lanes[0].Loop, func() { c.Fail(errors.New("planned"), 0) })
	r.until("quiet", func() bool { return len(h.quiet) == 1 })
	r.pass(CleanupWindow + time.Second)
	if c.state != connectionRetained || len(h.quiet) != 1 || !h.quiet[0] {
		t.Errorf("%s, told %v", c.state, h.quiet)
	}
	r.on(a.lanes[0].Loop, h.release)
	r.settleUp()
}

// proves L-6
func TestPostingAndReapingAllocateNothing(t *testing.T) {
	r := newRigWith(t, simverbs.Hardware, false)
	a, b := r.site("a", siteOptions{}), r.site("b", siteOptions{})
	h := a.claim(0, a.peer(0, b), lanes.Read)
	c := h.claim.Hold.Connection
	there := b.source(c)
	from, to := a.register(r.memory(4096), false), b.register(r.memory(4096), false)
	local, _ := from.On(c.Device.NIC)
	remote, _ := to.On(there.Device.NIC)
	source, _ := from.Range()
	target, _ := to.Range()
	sink := &sink{}
	sends, receives := make([]verbs.Work, 1), make([]verbs.ReceiveWork, 1)
	round := func() {
		receives[0] = verbs.ReceiveWork{ID: there.TagReceive(sink, 1), Address: target, Length: 64, LocalKey: remote.LocalKey()}
		sends[0] = verbs.Work{SendWork: verbs.SendWork{ID: c.TagSend(sink, 2), Operation: verbs.Send, Address: source, Length: 8, LocalKey: local.LocalKey()}}
		if there.PostReceive(0, receives) != nil || c.PostSend(0, sends) != nil {
			t.Fatal("a post failed")
		}
		for want := sink.n + 2; sink.n < want; {
			r.world.Advance(10 * time.Microsecond)
			c.rail.Collect(64, 0)
			there.rail.Collect(64, 0)
		}
	}
	for range 50 {
		round()
	}
	if n := testing.AllocsPerRun(200, round); n >= 1 {
		t.Errorf("a message allocates %v times", n)
	}
	r.on(a.lanes[0].Loop, h.release)
	r.finish()
}

type sink struct{ n int }

func (s *sink) Reaped(uint64, *verbs.Reaped) { s.n++ }

// A failure and the flush behind it may be taken in one look: all of it is handed out before the connection is quiet.
//
// proves R-17
func TestFlushThatWasTakenWithTheFailureIsHandedOutBeforeQuiet(t *testing.T) {
	for _, p := range []simverbs.Personality{simverbs.Hardware, simverbs.SoftRoCE} {
		r, a, _, h, c := connected(t, p, siteOptions{})
		g := a.register(r.memory(4096), false)
		r.fabric.Plan(simverbs.Fault{Kind: simverbs.FailWork, Process: "a", Status: verbs.WorkRemoteAccess})
		seen := -1
		h.onQuiet = func(bool) { seen = len(h.reaped) }
		r.on(a.lanes[0].Loop, func() {
			local, _ := g.On(c.Device.NIC)
			address, _ := g.Range()
			var list []verbs.Work
			for i := range 5 {
				list = append(list, verbs.Work{SendWork: verbs.SendWork{ID: c.TagSend(h, uint64(i)), Operation: verbs.Send, Address: address, Length: 8, LocalKey: local.LocalKey()}})
			}
			must(t, c.PostSend(0, list))
			r.world.Advance(10 * time.Millisecond) // the lane looks only when everything has failed
		})
		r.until("quiet", func() bool { return len(h.quiet) == 1 })
		if seen != 5 {
			t.Errorf("%s: %d of 5 completions came before quiet", p, seen)
		}
		r.finish()
	}
}
