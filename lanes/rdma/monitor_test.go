package rdma

import (
	"errors"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// oneDevice is a host with one device.
var oneDevice = []simverbs.DeviceSpec{{Name: "mlx5_0"}}

// port is the first device's port of a site's host.
func (s *site) port() *simverbs.Port {
	h := s.native.Host()
	return h.Device(s.transport.devices[0].Name).Port(1)
}

// A port that goes down takes its connections with it and pauses its path; memory can be registered meanwhile. When it is
// up again the path is back with the same domain and regions, over new connections. Events make that fast; without them
// the scan of each second finds it.
//
// proves
func TestPathOfADeadPortIsDrainedAndComesBack(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		everyKind(t, func(t *testing.T, p simverbs.Personality, mode Progress) {
			r := newRig(t, p)
			spy := &tamper{deaf: deaf}
			o := siteOptions{devices: oneDevice, config: Config{Progress: mode}}
			b := r.site("b", o)
			o.calls = func(c verbs.Calls) verbs.Calls { spy.Calls = c; return spy }
			a := r.site("a", o)
			peer := a.peer(0, b)
			h := a.claim(0, peer, lanes.Read)
			c := h.claim.Hold.Connection
			if c == nil {
				t.Fatal(h.claim.Err)
			}
			d := a.transport.devices[0]
			domain, region := d.Domain, a.register(r.memory(4096), true)
			began := r.world.Now()
			a.port().Down()
			r.until("the pause", func() bool { return !d.Active() && len(h.quiet) == 1 })
			if took := time.Duration(r.world.Now() - began); deaf == (took < 10*time.Millisecond) || took > 1500*time.Millisecond {
				t.Errorf("events lost: %v; the pause took %v", deaf, took)
			}
			if len(h.lost) != 1 || !h.quiet[0] || c.Open() {
				t.Errorf("the user was told %v, %v; the connection is %s", h.lost, h.quiet, c.state)
			}
			if paths := a.transport.Paths(); paths.Paths[0].State != netproto.PathPaused || a.changes == 0 {
				t.Errorf("the descriptor says %+v, changed %d times", paths.Paths[0], a.changes)
			}
			var none *NoPath
			if refused := a.claim(0, peer, lanes.Read); !errors.As(refused.claim.Err, &none) || none.Paused != 1 {
				t.Errorf("a claim over a dead port: %v", refused.claim.Err)
			}
			late := a.register(r.memory(4096), true)
			if local, parent := late.On(0); local == nil || parent == nil {
				t.Error("a paused device got no regions")
			}
			r.pass(3 * time.Second)
			ticks := a.transport.Stats()
			a.port().Up()
			r.until("the recovery", d.Active)
			s := a.transport.Stats()
			if s.RouteRecoveries != 1 || ticks.MonitorTicks < 3 || s.RouteQueries < ticks.MonitorTicks || d.Domain != domain {
				t.Errorf("%+v", s)
			}
			if local, _ := region.On(0); local == nil || local.Retained() {
				t.Error("the region did not survive")
			}
			again := a.claim(0, peer, lanes.Read)
			if again.claim.Err != nil || again.claim.Hold.Connection.Own == c.Own {
				t.Fatalf("after the recovery: %v", again.claim.Err)
			}
			message(t, r, a, b, again.claim.Hold.Connection, 0)
			r.on(a.lanes[0].Loop, again.release)
			r.finish()
		})
	}
}

func v4(last byte) verbs.GID { return verbs.GID{10: 0xff, 11: 0xff, 12: 10, 13: 77, 14: 1, 15: last} }

// proves R-19
func TestNewAddressIsPublishedOnlyWhenTheOldPairsAreGone(t *testing.T) {
	r := newRig(t, simverbs.Hardware)
	o := siteOptions{devices: oneDevice}
	a, b := r.site("a", o), r.site("b", o)
	h := a.claim(0, a.peer(0, b), lanes.Read)
	h.keep = true
	d := a.transport.devices[0]
	old := d.Context.Route()
	a.port().SetGID(verbs.GIDEntry{Index: old.GID.Index, GID: v4(200), Type: verbs.GIDRoCEv2, Interface: "eth0"})
	r.until("the user to be told", func() bool { return len(h.quiet) == 1 })
	r.pass(5 * time.Second)
	if d.Active() || d.Context.Route() != old || a.transport.Paths().Paths[0].GID != [16]byte(old.GID.GID) {
		t.Error("the new address is published while a pair of the old one is left")
	}
	r.on(a.lanes[0].Loop, h.release)
	r.until("the new address", d.Active)
	if got := d.Context.Route().GID.GID; got != v4(200) {
		t.Errorf("the address is %v", got)
	}
	again := a.claim(0, a.peer(0, b), lanes.Read)
	if again.claim.Err != nil {
		t.Fatal(again.claim.Err)
	}
	r.on(a.lanes[0].Loop, again.release)
	r.finish()
}

// proves
func TestPausedPathChoosesItsAddressAnewUnlessItIsPinned(t *testing.T) {
	for _, pinned := range []bool{false, true} {
		r := newRig(t, simverbs.Hardware)
		o := siteOptions{devices: []simverbs.DeviceSpec{{Name: "mlx5_0", Ports: []simverbs.PortSpec{{Network: "n", Down: true}}}}}
		if pinned {
			o.config.Pins = verbs.PinDevice("mlx5_0")
			index := 1
			o.config.Pins.GIDIndex = &index
		}
		a := r.site("a", o)
		d := a.transport.devices[0]
		if state, why := d.State(); state != verbs.Paused || a.transport.Paths().Paths[0].State != netproto.PathPaused {
			t.Fatalf("a device whose port is down is %s (%s)", state, why)
		}
		region := a.register(r.memory(4096), true)
		if _, parent := region.On(0); parent == nil {
			t.Error("a paused device got no regions")
		}
		a.port().RemoveGID(1)
		a.port().SetGID(verbs.GIDEntry{Index: 3, GID: v4(77), Type: verbs.GIDRoCEv2, Interface: "eth0"})
		a.port().Up()
		r.pass(3 * time.Second)
		if d.Active() == pinned {
			t.Fatalf("pinned %v: active %v at %v", pinned, d.Active(), d.Context.Route())
		}
		if pinned {
			a.port().SetGID(verbs.GIDEntry{Index: 1, GID: v4(78), Type: verbs.GIDRoCEv2, Interface: "eth0"})
			r.until("the pinned entry", d.Active)
		}
		if want := map[bool]int{false: 3, true: 1}[pinned]; d.Context.Route().GID.Index != want {
			t.Errorf("pinned %v: index %d, want %d", pinned, d.Context.Route().GID.Index, want)
		}
		r.finish()
	}
}

// A device that is gone takes its connections with it, and nothing else.
//
// proves
func TestLostDeviceLeavesItsSiblingAlone(t *testing.T) {
	everyKind(t, func(t *testing.T, p simverbs.Personality, mode Progress) {
		r := newRig(t, p)
		o := siteOptions{lanes: 2, config: Config{Progress: mode}}
		a, b := r.site("a", o), r.site("b", o)
		var holders []*holder
		for lane := range 2 {
			peer := a.peer(lane, b)
			for nic := range uint8(2) {
				h := a.ask(lane, peer, lanes.Read, func(q *Claim) { q.Path = Path{Local: nic, Remote: nic} })
				r.until("a connection", func() bool { return h.answers == 1 })
				if h.claim.Err != nil {
					t.Fatal(h.claim.Err)
				}
				holders = append(holders, h)
			}
		}
		a.native.Host().Device(a.transport.devices[0].Name).Remove()
		r.until("both users of the lost device to be told", func() bool { return len(holders[0].quiet) == 1 && len(holders[2].quiet) == 1 })
		if state, why := a.transport.devices[0].State(); state != verbs.Fenced || why == "" {
			t.Errorf("the lost device is %s (%s)", state, why)
		}
		for _, h := range []*holder{holders[1], holders[3]} {
			if len(h.lost) != 0 || !h.claim.Hold.Connection.Open() {
				t.Error("a connection of the sibling was lost, too")
			}
			message(t, r, a, b, h.claim.Hold.Connection, 0)
			r.on(h.claim.Hold.Connection.rails.lane.Loop, h.release)
		}
		path, err := a.lanes[0].rails.Choose(b.transport.Paths().Paths, &Tiers{})
		if err != nil || path.Local != 1 {
			t.Errorf("the path chosen is %v, %v", path, err)
		}
		r.finish()
	})
}

// Completion queues that lost something are given up with all that completes there, and made anew.
//
// proves
func TestBrokenCompletionQueuesAreReplaced(t *testing.T) {
	for _, mode := range []Progress{Polling, EventDriven} {
		r := newRig(t, simverbs.Hardware)
		o := siteOptions{devices: oneDevice, config: Config{Progress: mode}}
		a, b := r.site("a", o), r.site("b", o)
		peer := a.peer(0, b)
		h := a.claim(0, peer, lanes.Read)
		reader := a.claim(0, peer, lanes.Write)
		r.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallPoll, Process: "a"},
			simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallCreateQueue, Process: "a", Index: 1}) // the next try makes both
		r.on(a.lanes[0].Loop, func() { a.lanes[0].rails.Rail(0).Collect(1, 0); a.lanes[0].rails.Rail(0).dirty = true })
		r.until("both users to be told", func() bool { return len(h.quiet) == 1 && len(reader.quiet) == 1 })
		r.until("the new queues", func() bool { return a.transport.Stats().ProgressRecoveries == 1 })
		again := a.claim(0, peer, lanes.Read)
		if again.claim.Err != nil {
			t.Fatal(again.claim.Err)
		}
		message(t, r, a, b, again.claim.Hold.Connection, 0)
		r.on(a.lanes[0].Loop, again.release)
		r.finish()
	}
}
