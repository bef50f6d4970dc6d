package rdma

import (
	"fmt"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// eachStep runs a world again and again, and lets something happen one step later each time, until the transfer that it
// is to disturb ends before. Stride is how many steps one run goes further than the last.
func eachStep(t *testing.T, stride int, prepare func() *ends, happen func(e *ends, x *trial), after func(e *ends, x *trial)) {
	t.Helper()
	for _, d := range []int{0, 1} {
		outcomes := map[string]int{}
		for first := 0; first < stride && len(outcomes) < 3; first++ { // a short transfer is gone through more finely
			everyStep(t, d, first, stride, outcomes, prepare, happen, after)
		}
		if len(outcomes) < 3 {
			t.Errorf("it met the stages %v only", outcomes)
		}
	}
}

// everyStep is eachStep for one direction, from one first step on; it counts the stages in which the transfers failed.
func everyStep(t *testing.T, d, first, stride int, outcomes map[string]int, prepare func() *ends, happen func(e *ends, x *trial), after func(e *ends, x *trial)) {
	t.Helper()
	for n := first; ; n += stride {
		e := prepare()
		x := e.trials(2, 200<<10)[d]
		e.startAll([]*trial{x})
		for range n {
			if x.done == 0 {
				e.world.Step()
			}
		}
		early := x.done > 0
		if !early {
			happen(e, x)
		}
		for x.done == 0 && e.world.Now() < reactor.Instant(patience) && !t.Failed() {
			e.world.Step()
			e.leased(x)
		}
		e.waitAll([]*trial{x})
		x.judge(t)
		if f, ok := x.Outcome.Err.(*lanes.Fault); ok {
			outcomes[f.Stage]++
		}
		after(e, x)
		if t.Failed() {
			t.Fatalf("step %d, %v: %+v", n, x.Direction, x.Outcome)
		}
		if early {
			return
		}
		if n > 5000 {
			t.Fatal("the transfer never ends by itself")
		}
	}
}

// leased checks that ranges which a device may touch are leased and lent.
func (e *ends) leased(x *trial) {
	e.t.Helper()
	flying := 0
	for i := range x.machine.parcels {
		flying += x.machine.parcels[i].flying
	}
	if flying > 0 && !x.private() {
		if lease, err := x.Local.Lease(0, x.Length, segments.Exclusive); err == nil {
			lease.Return()
			e.t.Errorf("%s: %d pieces of work are with the device, and the local range is free", x.machine.stage, flying)
		}
		if Of(x.Local).Uses() == 0 || e.from.transport.config.Budgets.DirectBytes.Used() < int64(x.Length) {
			e.t.Errorf("%s: %d pieces of work are with the device, and nothing is lent or charged for them", x.machine.stage, flying)
		}
	}
	for _, s := range e.to.services {
		for _, p := range s.parents {
			for i, phase := range p.machine.phases {
				if phase != childBinding && phase != childBound && phase != childPublished || p.staging != nil || e.to.dead {
					continue
				}
				if !p.lease.Held() || p.registered == nil || !p.count.Held() || !p.bytes.Held() || p.children[i].window == nil {
					e.t.Errorf("%s: a grant gives authority over a range that is not leased, lent and charged", p.machine.stage)
				}
				if phase == childPublished && p.children[i].window.Phase() != verbs.WindowPublished {
					e.t.Errorf("a published grant's window is %s", p.children[i].window.Phase())
				}
			}
		}
	}
}

// policies are all pairs of policies of requester and source.
func policies(t *testing.T, test func(t *testing.T, prepare func() *ends)) {
	for _, hosts := range append(stagedCases, [2]netproto.HostMemoryPolicy{}) {
		for mode := range Progress(2) {
			t.Run(fmt.Sprint(hosts, mode), func(t *testing.T) {
				test(t, func() *ends { return stagedEnds(t, simverbs.Personality(mode), mode, hosts[0], hosts[1]) })
			})
		}
	}
}

// proves, G-8
func TestCancellingAtEachStepLeavesNothing(t *testing.T) {
	policies(t, func(t *testing.T, prepare func() *ends) {
		eachStep(t, 7, prepare, func(e *ends, x *trial) {
			e.on(e.from.lanes[0].Loop, func() { x.Cancel() })
		}, func(e *ends, x *trial) {
			if f := x.Outcome.Err; f != nil && faultIn(t, x.Outcome).Cause != lanes.Cancelled {
				t.Errorf("it ended with %v", f)
			}
			e.end()
		})
	})
}

// proves R-18, T-9
func TestADeadlineAtEachStepLeavesNothing(t *testing.T) {
	policies(t, func(t *testing.T, prepare func() *ends) {
		for _, d := range []int{0, 1} {
			late := 0
			for after := 5 * time.Microsecond; ; after += after/8 + 3*time.Microsecond {
				e := prepare()
				x := e.trials(2, 200<<10)[d]
				x.Deadline = e.world.Now().After(after)
				e.startAll([]*trial{x})
				e.waitAll([]*trial{x})
				x.judge(t)
				if over := time.Duration(x.at - x.Deadline); x.Outcome.Err != nil && over > haltGrace+abandonTimeout+time.Second {
					t.Errorf("it ended %v after its deadline", over)
				}
				done := x.Outcome.Err == nil
				e.end()
				if t.Failed() {
					t.Fatalf("deadline after %v: %+v", after, x.Outcome)
				}
				if done {
					break
				}
				late++
			}
			if late < 5 {
				t.Errorf("only %d deadlines passed", late)
			}
		}
	})
}

// kill ends an engine's process, and its share of the fabric.
func (n *engine) kill() {
	n.dead = true
	n.native.Kill()
	n.process.Kill()
}

// proves, G-9
func TestASourceKilledAtEachStepLeavesNothingAtTheRequester(t *testing.T) {
	policies(t, func(t *testing.T, prepare func() *ends) {
		eachStep(t, 23, prepare, func(e *ends, _ *trial) { e.to.kill() }, func(e *ends, x *trial) {
			if !x.Outcome.Drained {
				t.Errorf("not drained: %+v", x.Outcome)
			}
			e.survivor(e.from)
		})
	})
}

// proves
func TestARequesterKilledAtEachStepLeavesNothingAtTheSource(t *testing.T) {
	policies(t, func(t *testing.T, prepare func() *ends) {
		for n := 0; n < 700; n += 23 {
			e := prepare()
			x := e.trials(2, 200<<10)[n%2]
			e.startAll([]*trial{x})
			for range n {
				e.world.Step()
			}
			e.from.kill()
			e.idle()
			e.survivor(e.to)
			if t.Failed() {
				t.Fatalf("step %d, %v", n, x.Direction)
			}
		}
	})
}

// survivor checks the one of two engines that was not killed, and closes it.
func (e *ends) survivor(n *engine) {
	t := e.t
	t.Helper()
	for _, m := range n.memories {
		if g := Of(m.Registration); m.Loans() != 0 || g.Uses() != 0 || !m.backing.Quiet() {
			t.Errorf("%s: %d loans, %d users of the devices' registration, leases free %v", n.name, m.Loans(), g.Uses(), m.backing.Quiet())
		}
	}
	n.tracker.RetireAll()
	n.closeRails()
	n.closeStreams()
	closed := false
	e.on(n.lanes[0].Loop, func() { n.transport.Close(func(err error) { closed = true; must(t, err) }) })
	e.until("closing the transport", func() bool { return closed })
	for _, owed := range n.ledger.Owed() {
		t.Errorf("%s: not repaid: %+v", n.name, owed)
	}
	if live := n.native.Live(); !live.Empty() {
		t.Errorf("%s: native objects are left: %+v", n.name, live)
	}
	all := e.sites
	e.sites = []*site{n.site}
	e.endLoops()
	e.sites = all
}

// proves G-6, R-17, R-18
func TestClosingALaneAtEachStepEndsItsTransfersAndGrants(t *testing.T) {
	policies(t, func(t *testing.T, prepare func() *ends) {
		for _, source := range []bool{false, true} {
			eachStep(t, 5, prepare, func(e *ends, _ *trial) {
				n := e.from
				if source {
					n = e.to
				}
				l := n.lanes[0]
				e.on(l.Loop, func() { l.rails.Close(func() {}) })
			}, func(e *ends, x *trial) {
				if x.Outcome.Err != nil && !x.Outcome.Drained {
					t.Errorf("%+v", x.Outcome)
				}
				e.end()
			})
		}
	})
}

// A transfer that waits for a peer which is silent does not keep its lane.
//
// proves G-6
func TestClosingALaneDoesNotWaitForASilentPeer(t *testing.T) {
	e := newEnds(t, simverbs.Hardware, endsOptions{})
	remote, local := e.to.memory(100, netproto.ReadWrite, 1), e.from.memory(100, netproto.LocalOnly, 2)
	complete(t, e.run(e.transfer(lanes.Read, local, remote, 0)), lanes.Read, 100)
	e.world.Link(e.to.host, e.from.host).BlackHole(true)
	var all []*attempt
	for _, n := range []uint64{0, 100} {
		a := e.transfer(lanes.Read, local, remote, 0)
		a.Length, a.Deadline = n, e.world.Now().After(time.Hour)
		all = append(all, e.start(a))
	}
	began := e.world.Now()
	e.on(e.from.lanes[0].Loop, func() { e.from.lanes[0].rails.Close(func() {}) })
	for _, a := range all {
		if o := e.wait(a); o.Err == nil || !o.Drained {
			t.Errorf("%+v", o)
		}
	}
	if took := time.Duration(e.world.Now() - began); took > time.Minute {
		t.Errorf("it took %v", took)
	}
	e.world.Link(e.to.host, e.from.host).BlackHole(false)
	e.end()
}

// A window that the source's device does not free may still give authority: range, loan and charges stay.
//
// proves, G-9
func TestAGrantWhoseWindowIsNotFreedKeepsItsRange(t *testing.T) {
	e := newEnds(t, simverbs.Hardware, endsOptions{siteOptions{devices: single(0)}, siteOptions{devices: single(0)}})
	remote, local := e.to.memory(64<<10, netproto.ReadWrite, 1), e.from.memory(64<<10, netproto.LocalOnly, 2)
	e.fabric.Plan(simverbs.Fault{Kind: simverbs.LoseCompletion, Process: "a", Count: -1}, simverbs.Fault{Kind: simverbs.FailCall, Process: "b", Call: simverbs.CallFreeWindow, Count: -1})
	if o := e.run(e.transfer(lanes.Read, local, remote, 0)); o.Err == nil {
		t.Errorf("%+v", o)
	}
	e.until("the residue", func() bool { return len(e.to.transport.Residues()) == 1 })
	if used := e.to.transport.config.Budgets.DirectBytes.Used(); remote.Loans() != 1 || Of(remote.Registration).Uses() != 1 || remote.backing.Quiet() || used != 64<<10 {
		t.Errorf("%d loans, %d uses, leases free: %v, %d bytes charged", remote.Loans(), Of(remote.Registration).Uses(), remote.backing.Quiet(), used)
	}
	if !e.settleAll() {
		t.Error("nothing was retained")
	}
}
