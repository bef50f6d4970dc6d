package rdma

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// tryOpen opens a site; what fails is left as it is.
func (s *site) tryOpen(o siteOptions) error {
	var err error
	s.transport, err = Open(s.calls(o), s.settings(o))
	if err != nil {
		return err
	}
	for _, l := range s.lanes {
		if l.rails, err = s.transport.Rails(l.Lane); err != nil {
			return err
		}
		l.server.Handle(netproto.OperationRDMAConnect, l.rails.ConnectService())
		l.server.Handle(netproto.OperationRDMADisconnect, l.rails.DisconnectService())
	}
	s.listen()
	for _, l := range s.lanes {
		l.rails.Start()
	}
	return nil
}

// life is what two sites do when anything may fail: open, register, connect, send messages, disconnect, connect again
// while the first connection fails, close. It ends whatever happens.
func life(r *rig, o siteOptions) {
	a, b := r.host("a", o), r.host("b", o)
	errA, errB := a.tryOpen(o), b.tryOpen(o)
	if errA == nil && errB == nil {
		for _, s := range r.sites {
			for _, remote := range []bool{false, true} {
				m := r.memory(8192)
				if g, err := s.transport.Register(m.Address(), m.Length(), remote); err == nil {
					s.registers = append(s.registers, g)
				}
			}
		}
		peer := a.peer(0, b)
		for round := range 3 {
			h := a.claim(0, peer, lanes.Read)
			c := h.claim.Hold.Connection
			if c == nil {
				continue
			}
			r.exchange(a, b, c)
			r.on(a.lanes[0].Loop, func() {
				switch round {
				case 0:
					if c.Open() {
						c.Close(func(error) {})
					}
				case 1:
					c.Fail(errors.New("planned"), 0)
					return // told Quiet, it gives its hold back
				}
				if h.claim.Hold.Connection != nil {
					h.release()
				}
			})
		}
	}
}

// exchange sends one message in each direction of a pair, as far as that is possible.
func (r *rig) exchange(a, b *site, c *Connection) {
	there := b.source(c)
	if there == nil || len(a.registers) == 0 || len(b.registers) == 0 {
		return
	}
	for _, way := range [][2]*Connection{{c, there}, {there, c}} {
		from, to := way[0], way[1]
		ends := &holder{}
		posted := 0
		post := func(c *Connection, g *Registered, receive bool) {
			local, _ := g.On(c.Device.NIC)
			address, _ := g.Range()
			if local == nil || !c.Open() {
				return
			}
			var err error
			if receive {
				c.Rail().Expect(1)
				err = c.PostReceive(0, []verbs.ReceiveWork{{ID: c.TagReceive(ends, 1), Address: address, Length: 64, LocalKey: local.LocalKey()}})
			} else {
				err = c.PostSend(0, []verbs.Work{{SendWork: verbs.SendWork{ID: c.TagSend(ends, 2), Operation: verbs.Send, Address: address, Length: 32, LocalKey: local.LocalKey()}}})
			}
			if err == nil {
				posted++
			}
		}
		sites := map[*Connection]*site{c: a, there: b}
		r.on(to.rails.lane.Loop, func() { post(to, sites[to].registers[0], true) })
		expected := posted
		r.on(from.rails.lane.Loop, func() { post(from, sites[from].registers[0], false) })
		limit := r.world.Now().After(CleanupWindow * 3)
		_ = r.world.RunUntil(func() bool { return len(ends.reaped) >= posted || !from.Open() || !to.Open() }, limit)
		r.on(to.rails.lane.Loop, func() {
			if expected == 1 {
				to.Rail().Expect(-1)
			}
			if expected == 1 && len(ends.reaped) == 0 {
				to.Fail(errors.New("no message came"), 0)
			}
		})
		r.on(from.rails.lane.Loop, func() {
			if len(ends.reaped) < posted {
				from.Fail(errors.New("no answer came"), 0)
			}
		})
	}
}

// settleUp closes everything and checks that each thing that is left is listed and charged.
func (r *rig) settleUp() {
	r.t.Helper()
	r.close()
	for _, s := range r.sites {
		live, b := s.native.Live(), s.transport
		if b == nil {
			if !live.Empty() {
				r.t.Errorf("%s: no transport, and %+v are left", s.name, live)
			}
			continue
		}
		budget := &b.config.Budgets
		if listed := len(b.Retained()); !live.Empty() && listed == 0 {
			r.t.Errorf("%s: nothing is listed as retained, and %+v are left", s.name, live)
		}
		if used := int(budget.Endpoints.Used()); used < live.Pairs || live.Pairs == 0 && used != 0 {
			r.t.Errorf("%s: %d places are charged for %d queue pairs; retained: %v", s.name, used, live.Pairs, b.Retained())
		}
		if used := int(budget.CachedRegions.Used()); used != live.Regions {
			r.t.Errorf("%s: %d regions are charged, %d are left", s.name, used, live.Regions)
		}
		if (budget.CachedBytes.Used() == 0) != (live.Regions == 0) {
			r.t.Errorf("%s: %d bytes are charged for %d regions", s.name, budget.CachedBytes.Used(), live.Regions)
		}
		if d := s.process.Descriptors(); d != live.Devices+live.Channels {
			r.t.Errorf("%s: %d descriptors are left for %d devices and %d channels", s.name, d, live.Devices, live.Channels)
		}
		for _, owed := range s.ledger.Owed() {
			switch owed.Name {
			case "endpoints", "cached regions", "cached bytes":
			default:
				r.t.Errorf("%s: not repaid: %+v", s.name, owed)
			}
		}
	}
	r.endLoops()
}

// Whatever native call fails once, or for ever, nothing is lost: it is gone and repaid, or listed and charged.
//
// proves, U-1
func TestFailureOfEachNativeCallLeavesNothingThatIsNotListed(t *testing.T) {
	for _, p := range []simverbs.Personality{simverbs.Hardware, simverbs.SoftRoCE} {
		for _, mode := range []Progress{Polling, EventDriven} {
			for call := simverbs.CallListDevices; call <= simverbs.CallPostReceive; call++ {
				for _, process := range []string{"a", "b"} {
					sweep(t, p, mode, call, process)
				}
			}
		}
	}
}

func sweep(t *testing.T, p simverbs.Personality, mode Progress, call simverbs.Call, process string) {
	indexes := []int{0, 1, 2, 3, 5, 8, 13}
	for _, index := range indexes[:max(1, len(indexes)/sampled)] {
		for _, count := range []int{1, -1} {
			struck := false
			name := fmt.Sprintf("%s/%s/%s/%s/%d/%d", p, mode, call, process, index, count)
			t.Run(name, func(t *testing.T) {
				r := newRig(t, p)
				r.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: call, Process: process, Index: index, Count: count})
				life(r, siteOptions{config: Config{Progress: mode, Width: 2}})
				r.settleUp()
				n, _ := r.fabric.Struck()
				struck = n > 0
			})
			if !struck {
				return
			}
		}
	}
}

// proves
func TestNothingIsLostWhenCompletionsAre(t *testing.T) {
	for kind := simverbs.BadWork; kind <= simverbs.FullQueue; kind++ {
		for _, p := range []simverbs.Personality{simverbs.Hardware, simverbs.SoftRoCE} {
			for _, mode := range []Progress{Polling, EventDriven} {
				for _, process := range []string{"a", "b"} {
					for _, fault := range []simverbs.Fault{{Index: 0}, {Index: 1}, {Index: 2}, {Index: 3}, {Index: 0, Count: -1}, {Call: simverbs.CallPostReceive}} {
						fault.Kind, fault.Process, fault.By = kind, process, 40e9
						t.Run(fault.String()+"/"+p.String()+"/"+mode.String(), func(t *testing.T) {
							r := newRig(t, p)
							r.fabric.Plan(fault)
							life(r, siteOptions{config: Config{Progress: mode, Width: 2}})
							r.settleUp()
						})
					}
				}
			}
		}
	}
}

// Devices go, ports flap and addresses move at any moment of a life.
//
// proves
func TestNothingIsLostWhenDevicesAndPortsChangeAtAnyTime(t *testing.T) {
	for _, kind := range []simverbs.FaultKind{simverbs.PortDown, simverbs.GIDRemove, simverbs.GIDMove, simverbs.DeviceRemove} {
		for _, p := range []simverbs.Personality{simverbs.Hardware, simverbs.SoftRoCE} {
			for _, mode := range []Progress{Polling, EventDriven} {
				for _, host := range []string{"a", "b"} {
					for _, at := range []time.Duration{0, 20e3, 60e3, 100e3, 150e3, 200e3, 300e3, 400e3, 600e3, 1e6, 3e6} {
						fault := simverbs.Fault{Kind: kind, Host: host, GID: 1, To: 5, At: at}
						t.Run(fault.String()+"/"+p.String()+"/"+mode.String(), func(t *testing.T) {
							r := newRig(t, p)
							r.world.Later(at, func() { // the host's devices are there by then
								r.fabric.Plan(simverbs.Fault{Kind: kind, Host: host, GID: 1, To: 5},
									simverbs.Fault{Kind: simverbs.PortUp, Host: host, At: 2 * time.Second})
							})
							life(r, siteOptions{lanes: 2, config: Config{Progress: mode, Width: 2}})
							r.pass(5 * time.Second)
							life2(r, kind == simverbs.PortDown || kind == simverbs.GIDMove)
							r.settleUp()
						})
					}
				}
			}
		}
	}
}

// life2 goes on after the fault. Recovers says that everything works again.
func life2(r *rig, recovers bool) {
	a, b := r.sites[0], r.sites[1]
	for lane := range a.lanes {
		h := a.claim(lane, a.peer(lane, b), lanes.Write)
		if recovers && h.claim.Err != nil {
			r.t.Errorf("after the recovery: %v", h.claim.Err)
		}
		if c := h.claim.Hold.Connection; c != nil {
			r.exchange(a, b, c)
			r.on(c.rails.lane.Loop, func() {
				if h.claim.Hold.Connection != nil && c.Open() {
					h.release()
				}
			})
		}
	}
}
