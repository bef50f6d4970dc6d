package rdma

import (
	"fmt"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// A requester gives its grants up while its payload is on the way. Nobody else gets the range before the source has proven
// that the key has ended, and then no byte changes any more.
//
// proves, M-9
func TestARangeIsLeasedUntilTheEndOfItsGrantIsProven(t *testing.T) {
	for _, p := range []simverbs.Personality{simverbs.Hardware, simverbs.SoftRoCE} {
		for _, how := range []string{"abandoned", "silent"} {
			t.Run(fmt.Sprint(p, how), func(t *testing.T) {
				o := siteOptions{devices: single(p), config: Config{Progress: EventDriven}}
				e := newEnds(t, p, endsOptions{o, o})
				remote := e.to.memory(64<<10, netproto.ReadWrite, 1)
				h := e.hand(lanes.Write)
				equal(t, "grants", h.ask(remote.ID(), 0, 4096, 1), netproto.StatusSuccess)
				name := single(p)[0].Name
				e.fabric.Delay(e.fabric.Host("a").Device(name).Port(1), e.fabric.Host("b").Device(name).Port(1), 20*time.Millisecond, 20*time.Millisecond)
				region, _ := Of(h.local.Registration).On(h.c.Device.NIC)
				e.on(e.from.lanes[0].Loop, func() {
					w := verbs.SendWork{ID: h.c.TagSend(&holder{}, 0), Operation: verbs.Write, Address: h.local.Address(), Length: 4096, LocalKey: region.LocalKey(), Remote: h.grants[0].Address, RemoteKey: verbs.RemoteKey(h.grants[0].Key)}
					must(t, h.c.PostSend(0, []verbs.Work{{SendWork: w}}))
					if how == "abandoned" {
						q := &question{}
						q.ask(h.peer.Channel, netproto.Request{Operation: netproto.OperationRDMAAbandon, Epoch: e.to.policy.Epoch}, "test", 0, reactor.Forever, func(dst []byte) []byte {
							return netproto.AppendParent(dst, netproto.Parent{Requester: h.request.Requester, Generation: h.request.Generation, Slices: 1})
						}, func(*question) {})
					}
				})
				e.until("the end of the grant", func() bool {
					if e.to.services[0].Parents() == 0 {
						return true
					}
					if lease, err := remote.Lease(0, 1, segments.Shared); err == nil {
						lease.Return()
						if e.to.services[0].Parents() > 0 {
							t.Fatalf("the range is free, and the grant is %v", e.to.services[0].parents[0].machine.stage)
						}
					}
					return false
				})
				seen := string(remote.bytes())
				e.pass(time.Second)
				if string(remote.bytes()) != seen {
					t.Error("bytes changed after the range was free")
				}
				h.leave()
				e.end()
			})
		}
	}
}

// A key that a requester may know ends by its message or with its pair, never by the source alone while the pair is well:
// the message could still be on the way, and two ends that invalidate one window can bring a kernel down.
//
// proves
func TestARevokedKeyEndsWithItsPairSoThatItsMessageMeetsNothing(t *testing.T) {
	for _, how := range []string{"abandoned", "silent"} {
		o := siteOptions{devices: single(simverbs.SoftRoCE), config: Config{Progress: EventDriven}}
		e := newEnds(t, simverbs.SoftRoCE, endsOptions{o, o}) // whose kernel a second invalidation kills
		remote := e.to.memory(64<<10, netproto.ReadWrite, 1)
		h := e.hand(lanes.Read)
		equal(t, "grants", h.ask(remote.ID(), 0, 4096, 2), netproto.StatusSuccess)
		if how == "abandoned" {
			equal(t, "ABANDON", h.tell(netproto.OperationRDMAAbandon), netproto.StatusSuccess)
		}
		e.idle()
		if e.to.source(h.c) != nil {
			t.Errorf("%s: the source's pairs are well", how)
		}
		b := h.binding(0)
		if h.send(&b, h.grants[0].Key) == verbs.WorkSuccess {
			t.Errorf("%s: the source took the message", how)
		}
		equal(t, how+": received", e.to.transport.GrantStats().Received, 0)
		h.leave()
		e.end()
	}
}

// A source's deadline that passes in the middle of a commit does not leave the range half changed.
//
// proves R-6, T-1
func TestACommitUnderWayOutlivesTheSourcesDeadline(t *testing.T) {
	o := siteOptions{devices: single(0), config: Config{Progress: EventDriven}}
	to := o
	to.config.Host = netproto.HostStaged
	e := newEnds(t, simverbs.Hardware, endsOptions{o, to})
	remote, local := e.to.memory(3<<20, netproto.ReadWrite, 1), e.from.memory(3<<20, netproto.LocalOnly, 2)
	a := e.start(e.transfer(lanes.Write, local, remote, 0))
	s := e.to.services[0]
	e.until("a part of the commit", func() bool {
		return len(s.parents) == 1 && s.parents[0].machine.stage == parentCommit && s.parents[0].copied > 0
	})
	late := false
	e.on(e.to.lanes[0].Loop, func() {
		if len(s.parents) == 1 && s.parents[0].copied < 3<<20 {
			late = true
			s.parents[0].Expire(&s.parents[0].timer, e.world.Now())
		}
	})
	complete(t, e.wait(a), lanes.Write, 3<<20)
	if !late || !remote.holds(2) {
		t.Errorf("the deadline came in time %v; the range is whole %v", late, remote.holds(2))
	}
	e.end()
}

// A cache miss counts only before any authority. A source that says it later, and one whose answer is lost, are not asked
// again: a second grant would replay a WRITE.
//
// proves R-15
func TestNothingIsBuiltAnewOnceAuthorityMayHaveBeenGiven(t *testing.T) {
	for name, spoil := range map[string]func(e *ends) lanes.Cause{
		"a miss at the receipt": func(e *ends) lanes.Cause {
			e.to.lanes[0].server.Handle(netproto.OperationRDMADone, serviceFunc(func(s *control.Session, _ netproto.Request) {
				s.Refuse(netproto.StatusCacheMiss)
			}))
			return lanes.Refused
		},
		"the answer is lost": func(e *ends) lanes.Cause {
			real := e.to.services[0]
			e.to.lanes[0].server.Handle(netproto.OperationRDMAWriteSliced, serviceFunc(func(s *control.Session, r netproto.Request) {
				for _, c := range e.world.Connections() {
					c.Reset()
				}
				real.Serve(s, r)
			}))
			return lanes.Disconnected
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := siteOptions{devices: single(0), config: Config{Progress: EventDriven}}
			e := newEnds(t, simverbs.Hardware, endsOptions{o, o})
			remote, local := e.to.memory(128<<10, netproto.ReadWrite, 1), e.from.memory(128<<10, netproto.LocalOnly, 2)
			complete(t, e.run(e.transfer(lanes.Write, local, remote, 0)), lanes.Write, 128<<10)
			cause := spoil(e)
			a := e.transfer(lanes.Write, local, remote, 0)
			a.Deadline = e.world.Now().After(time.Minute)
			out := e.run(a)
			if f := faultIn(t, out); f.Cause != cause || !out.Drained {
				t.Errorf("%+v: %v", out, f)
			}
			s := e.from.transport.GrantStats()
			equal(t, "slices asked for", s.Asked, 4)
			equal(t, "connections built", e.from.transport.Stats().Built, 1)
			equal(t, "misses", s.Misses, 0)
			e.idle()
			e.end()
		})
	}
}
