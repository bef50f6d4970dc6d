package rdma

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// Many transfers of all sizes at once, over few receives, cancelled and failing at random: each ends once and tells the
// truth about its bytes, and in the end nothing is left.
//
// proves, U-2
func TestAStormOfTransfersLeavesNothing(t *testing.T) {
	done, failed := 0, 0
	for range 25 {
		for _, o := range storm(t) {
			if done++; o.Err != nil {
				failed++
			}
		}
	}
	if failed < done/20 || failed > done*9/10 {
		t.Errorf("%d of %d transfers failed: the weather is no storm", failed, done)
	}
}

func storm(t *testing.T) (outcomes []lanes.Outcome) {
	r := rand.New(rand.NewPCG(seedOf(t), 1))
	p, mode := simverbs.Personality(r.IntN(3)), Progress(r.IntN(2))
	o := endsOptions{
		siteOptions{config: Config{Progress: mode, Width: 1 + r.IntN(3), SendDepth: 2 + r.IntN(6)}},
		siteOptions{lanes: 1 + r.IntN(2), config: Config{Progress: mode, Width: 1 + r.IntN(3), SendDepth: 2 + r.IntN(6), ReceiveDepth: 8 + r.IntN(30)}},
	}
	for _, side := range []*siteOptions{&o.from, &o.to} {
		if r.IntN(4) == 0 {
			side.config.Host = netproto.HostStaged
		}
	}
	e := newEnds(t, p, o)
	var all []*trial
	for range 12 {
		size := uint64(1 + r.IntN(1<<r.IntN(20)))
		x := &trial{local: e.from.memory(size, netproto.LocalOnly, 2), remote: e.to.memory(size, netproto.ReadWrite, 1)}
		x.attempt = e.transfer(lanes.Direction(1+r.IntN(2)), x.local, x.remote, 0)
		all = append(all, x)
	}
	kinds := []simverbs.FaultKind{
		simverbs.BadWork, simverbs.FailWork, simverbs.LoseCompletion, simverbs.LateCompletion, simverbs.LosePacket, simverbs.DelayPacket, simverbs.UnknownBadWork,
	}
	for range r.IntN(4) {
		e.fabric.Plan(simverbs.Fault{
			Kind: kinds[r.IntN(len(kinds))], Process: []string{"a", "b"}[r.IntN(2)], Index: r.IntN(60), By: time.Duration(r.IntN(int(time.Millisecond))), Element: r.IntN(3),
		})
	}
	lane := e.from.lanes[0].Loop
	for range 3 {
		for _, x := range all {
			copy(x.local.bytes(), pattern(x.Length, 2))
			copy(x.remote.bytes(), pattern(x.Length, 1))
			x.done = 0
			x.Deadline = e.world.Now().After(time.Second + time.Duration(r.IntN(int(4*time.Second))))
			if r.IntN(10) == 0 {
				x.Deadline = e.world.Now().After(time.Duration(r.IntN(int(time.Millisecond))))
			}
		}
		e.startAll(all)
		for _, x := range all {
			if r.IntN(4) == 0 {
				cancel := &letterTo{f: func() {
					if x.done == 0 {
						x.Cancel()
					}
				}}
				e.world.Later(time.Duration(r.IntN(int(2*time.Millisecond))), func() { _ = lane.Post(&cancel.Letter, cancel) })
			}
		}
		for range 3000 {
			e.world.Step()
			for _, x := range all {
				if x.done == 0 && x.machine.stage != transferIdle {
					e.leased(x)
				}
			}
			if t.Failed() {
				break
			}
		}
		e.waitAll(all)
		for _, x := range all {
			x.judge(t)
			outcomes = append(outcomes, x.Outcome)
		}
		e.idle()
		if t.Failed() {
			t.FailNow()
		}
	}
	if !e.settleAll() && (e.from.transport.Stats().RetainedConnections|e.to.transport.Stats().RetainedConnections) != 0 {
		t.Error("a retained connection is not listed")
	}
	return outcomes
}
