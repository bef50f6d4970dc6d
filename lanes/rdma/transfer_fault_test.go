package rdma

import (
	"fmt"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// trial is one transfer among others, with what its ranges held before.
type trial struct {
	*attempt
	local, remote *memory
}

// trials makes READs and WRITEs of several slices, each with ranges of its own.
func (e *ends) trials(n int, size uint64) []*trial {
	e.t.Helper()
	var all []*trial
	for i := range n {
		d := lanes.Read
		if i%2 == 1 {
			d = lanes.Write
		}
		x := &trial{local: e.from.memory(size, netproto.LocalOnly, 2), remote: e.to.memory(size, netproto.ReadWrite, 1)}
		x.attempt = e.transfer(d, x.local, x.remote, 0)
		x.Deadline = e.world.Now().After(4 * time.Second)
		all = append(all, x)
	}
	return all
}

func (e *ends) startAll(all []*trial) {
	e.t.Helper()
	e.on(e.from.lanes[0].Loop, func() {
		for _, x := range all {
			e.begin(x.attempt)
		}
	})
}

func (e *ends) waitAll(all []*trial) {
	e.t.Helper()
	e.until("the end of all transfers", func() bool {
		for _, x := range all {
			if x.done == 0 {
				return false
			}
		}
		return true
	})
}

// judge holds what became of a transfer against what its ranges hold.
func (x *trial) judge(t testing.TB) {
	t.Helper()
	o := x.Outcome
	changed, right := !x.local.holds(2), x.local.holds(1)
	effect := o.Local
	if x.Direction == lanes.Write {
		changed, right, effect = !x.remote.holds(1), x.remote.holds(2), o.Remote
	}
	switch {
	case x.done != 1:
		t.Errorf("Done was called %d times", x.done)
	case o.Err == nil && (!right || effect != lanes.EffectComplete || o.Bytes != x.Length || !o.Drained):
		t.Errorf("%v succeeded: %+v, and the bytes are right: %v", x.Direction, o, right)
	case o.Err != nil && effect == lanes.EffectComplete:
		t.Errorf("%v failed: %+v", x.Direction, o)
	case o.Err != nil && effect == lanes.EffectNone && changed:
		t.Errorf("%v failed without an effect, and changed bytes: %v", x.Direction, o.Err)
	}
}

// settleAll closes everything. What is left is listed and charged; what is not listed is gone and repaid.
func (e *ends) settleAll() (retained bool) {
	t := e.t
	t.Helper()
	e.idle()
	e.guards()
	e.retire()
	for _, n := range []*engine{e.from, e.to} {
		var ending []*Registered
		for _, g := range n.registers {
			if g.Uses() == 0 || len(n.transport.Residues()) == 0 { // a residue keeps its registration for good
				ending = append(ending, g)
			}
		}
		n.registers = ending
	}
	e.rig.close()
	for _, n := range []*engine{e.from, e.to} {
		listed := len(n.transport.Retained()) > 0 || len(n.transport.Residues()) > 0
		retained = retained || listed
		live := n.native.Live()
		if !live.Empty() && !listed {
			t.Errorf("%s: nothing is listed as retained, and %+v are left", n.name, live)
		}
		residues := len(n.transport.Residues())
		for _, owed := range n.ledger.Owed() {
			transfers := owed.Name == "grants" || owed.Name == "direct bytes" || owed.Name == "staging bytes"
			if !listed || transfers && residues == 0 {
				t.Errorf("%s: not repaid: %+v (retained %v, residues %+v)", n.name, owed, n.transport.Retained(), n.transport.Residues())
			}
		}
		for _, m := range n.memories {
			if residues == 0 && (m.Loans() != 0 || Of(m.Registration).Uses() != 0 || !m.backing.Quiet()) {
				t.Errorf("%s: %d loans, %d uses, leases free: %v, and no residue is listed", n.name, m.Loans(), Of(m.Registration).Uses(), m.backing.Quiet())
			}
		}
	}
	e.endLoops()
	return retained
}

// toll is what ordeals met.
type toll struct{ offered, ordeals, failed, retained, staged int }

// check fails when the faults hardly met anything.
func (c *toll) check(t *testing.T) {
	t.Helper()
	t.Logf("%+v", *c)
	if c.failed < c.ordeals/4 || c.retained < 3/sampled || c.staged < c.ordeals/4 {
		t.Errorf("the faults met too little: %+v", *c)
	}
}

// ordeal runs transfers while something fails, then more of them. Every third one stages at the source, at the requester.
func (c *toll) ordeal(t *testing.T, p simverbs.Personality, mode Progress, plan ...simverbs.Fault) {
	t.Helper()
	if c.offered++; c.offered%sampled != 0 {
		return
	}
	var o endsOptions
	switch c.ordeals++; c.ordeals % 4 {
	case 0:
		o.to.config.Host = netproto.HostStaged
		c.staged++
	case 2:
		o.from.config.Host = netproto.HostStaged
		c.staged++
	}
	t.Run(fmt.Sprint(p, " ", mode, " ", o.from.config.Host, o.to.config.Host, " ", plan), func(t *testing.T) {
		o.from.config.Progress, o.to.config.Progress = mode, mode
		e := newEnds(t, p, o)
		all := e.trials(8, 320<<10)
		e.fabric.Plan(plan...)
		var over bool
		for _, round := range [][]*trial{all[:4], all[4:6], all[6:]} {
			for _, x := range round {
				x.Deadline = e.world.Now().After(4 * time.Second)
			}
			struck, planned := e.fabric.Struck()
			over = struck == planned
			e.startAll(round)
			e.waitAll(round)
			e.pass(2 * time.Second) // queues that broke are replaced once a second
		}
		failed := 0
		for _, x := range all {
			x.judge(t)
			if x.Outcome.Err != nil {
				failed = 1
			}
		}
		c.failed += failed
		retained := e.settleAll()
		if retained {
			c.retained++
		}
		if retained || !over || plan[0].Count < 0 || plan[0].Kind == simverbs.DropPair {
			return
		}
		for _, x := range all[6:] { // what failed once is drained and built anew
			if x.Outcome.Err != nil {
				t.Errorf("after a single failure that left nothing, a %v failed: %v", x.Direction, x.Outcome.Err)
			}
		}
	})
}

// Whatever native call fails while transfers run, their outcomes tell what became of the bytes, and nothing is lost.
//
// proves, U-1
func TestTransfersSurviveTheFailureOfEachNativeCall(t *testing.T) {
	calls := []simverbs.Call{
		simverbs.CallQueueEvent, simverbs.CallArm, simverbs.CallPoll, simverbs.CallCreatePair, simverbs.CallModifyPair, simverbs.CallDestroyPair, simverbs.CallRegister,
		simverbs.CallDeregister, simverbs.CallAllocateWindow, simverbs.CallFreeWindow, simverbs.CallPostSend, simverbs.CallPostReceive,
	}
	var c toll
	defer func() { c.check(t) }()
	for i, call := range calls {
		for _, process := range []string{"a", "b"} {
			for j, index := range []int{0, 1, 5} {
				for k, count := range []int{1, -1} {
					p, mode := simverbs.Personality((i+j)%2), Progress((j+k)%2)
					c.ordeal(t, p, mode, simverbs.Fault{Kind: simverbs.FailCall, Process: process, Call: call, Index: index, Count: count})
				}
			}
		}
	}
}

// proves
func TestTransfersSurviveEachFailureOfPostsAndCompletions(t *testing.T) {
	kinds := []simverbs.Fault{
		{Kind: simverbs.BadWork}, {Kind: simverbs.BadWork, Element: 1}, {Kind: simverbs.UnknownBadWork, Element: 1}, {Kind: simverbs.BadWork, Call: simverbs.CallPostReceive},
		{Kind: simverbs.UnknownBadWork, Call: simverbs.CallPostReceive}, {Kind: simverbs.FailWork}, {Kind: simverbs.FailWork, Status: verbs.WorkRemoteAccess},
		{Kind: simverbs.LoseCompletion}, {Kind: simverbs.LateCompletion, By: time.Millisecond}, {Kind: simverbs.LateCompletion, By: 20 * time.Second}, {Kind: simverbs.DoubleCompletion},
		{Kind: simverbs.ForeignID}, {Kind: simverbs.ForeignPair}, {Kind: simverbs.FullQueue}, {Kind: simverbs.LosePacket}, {Kind: simverbs.DropPair},
	}
	var c toll
	defer func() { c.check(t) }()
	for i, fault := range kinds {
		for _, process := range []string{"a", "b"} {
			for j, index := range []int{0, 1, 3, 8, 21} {
				fault.Process, fault.Index = process, index
				c.ordeal(t, simverbs.Personality((i+j)%2), Progress(j/2%2), fault)
			}
		}
	}
}
