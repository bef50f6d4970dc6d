package rdma

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// The default completion queue has room for the ends of as many pairs as max_endpoints admits, whatever their depth.
//
// proves R-10
func TestAllQueuePairsOfTheBudgetFitTheDefaultCompletionQueues(t *testing.T) {
	r := newRig(t, simverbs.Hardware)
	a := r.site("a", siteOptions{devices: single(0)})
	b := r.site("b", siteOptions{devices: single(0), endpoints: 2 * EndpointsDefault})
	peer := a.peer(0, b)
	var held []*holder
	for i := range EndpointsDefault {
		h := a.ask(0, peer, lanes.Read, func(q *Claim) { q.Private = true })
		r.until("an answer", func() bool { return h.answers > 0 })
		if h.claim.Err != nil {
			t.Fatalf("queue pair %d: %v", i+1, h.claim.Err)
		}
		held = append(held, h)
	}
	var full *budgets.Exhausted
	if h := a.claim(0, peer, lanes.Write); !errors.As(h.claim.Err, &full) || full.Budget != "endpoints" {
		t.Errorf("one more: %v", h.claim.Err)
	}
	r.on(a.lanes[0].Loop, func() {
		for _, h := range held {
			h.release()
		}
	})
	r.finish()
}

// When the pairs of one NIC run short of places in its completion queues, idle ones of that NIC give way, the one that was
// used the longest ago first; when all are in use, the refusal names the budget.
//
// proves R-10, U-3
func TestIdlePairsOfANICGiveWayWhenItsCompletionQueueRunsShort(t *testing.T) {
	r := newRig(t, simverbs.Hardware)
	a := r.site("a", siteOptions{config: Config{QueueEntries: 8, SendDepth: 3}}) // room for the ends of four pairs
	b := r.site("b", siteOptions{})
	peer := a.peer(0, b)
	over := func(nic uint8, d lanes.Direction) *holder {
		h := a.ask(0, peer, d, func(q *Claim) { q.Private, q.Path = true, Path{Local: nic, Remote: nic} })
		r.until("an answer", func() bool { return h.answers > 0 })
		return h
	}
	idle := a.ask(0, peer, lanes.Read, func(q *Claim) { q.Path = Path{Local: 1, Remote: 1} })
	r.until("an answer", func() bool { return idle.answers > 0 })
	elsewhere := idle.claim.Hold.Connection
	r.on(a.lanes[0].Loop, idle.release)
	var held []*holder
	for range 4 {
		held = append(held, over(0, lanes.Read))
		must(t, held[len(held)-1].claim.Err)
	}
	var f *lanes.Fault
	var full *budgets.Exhausted
	refused := over(0, lanes.Write)
	if !errors.As(refused.claim.Err, &f) || f.Cause != lanes.Exhausted || !errors.As(f, &full) || !strings.HasPrefix(full.Budget, "RDMA completion entries, lane 0") || full.Used != 4 || full.Limit != 4 {
		t.Fatalf("a fifth pair: %v", refused.claim.Err)
	}
	if elsewhere.state != connectionOpen {
		t.Error("an idle connection of another NIC was ended for it")
	}
	first := held[1].claim.Hold.Connection
	r.on(a.lanes[0].Loop, func() { held[1].release(); held[0].release() })
	fifth := over(0, lanes.Write)
	if fifth.claim.Err != nil || first.state != connectionOpen || held[0].claim.Err != nil || a.transport.Stats().Evicted != 1 {
		t.Errorf("%v; the connection that was used last is %s, %d were evicted", fifth.claim.Err, first.state, a.transport.Stats().Evicted)
	}
	r.on(a.lanes[0].Loop, func() { fifth.release(); held[2].release(); held[3].release() })
	r.finish()
}

// watcher looks at the send completion queues of engines whenever one of them posts.
type watcher struct {
	engines []*engine
	most    int
	starved bool
}

// watched is a library that tells a watcher.
type watched struct {
	verbs.Calls
	watcher *watcher
}

func (w *watcher) before(c verbs.Calls) verbs.Calls { return &watched{c, w} }

func (c *watched) PostSend(p verbs.PairHandle, list []verbs.SendWork) (int, error) {
	for _, n := range c.watcher.engines {
		rail := n.lanes[0].rails.rails[0]
		used, _ := rail.sends.Reserved()
		c.watcher.most = max(c.watcher.most, used)
		c.watcher.starved = c.watcher.starved || len(rail.starved) > 0
	}
	return c.Calls.PostSend(p, list)
}

// More work than a completion queue has places waits in order; none of it fails, and the queue never runs over.
//
// proves R-10
// field case F-53
func TestWorkWaitsInOrderForPlacesInTheCompletionQueue(t *testing.T) {
	for _, mode := range []Progress{Polling, EventDriven} {
		w := &watcher{}
		o := siteOptions{devices: single(0), config: Config{QueueEntries: 8, SendDepth: 3, Width: 2, Block: 1024, Progress: mode}, calls: w.before}
		e := newEnds(t, simverbs.Hardware, endsOptions{o, o})
		w.engines = []*engine{e.from, e.to}
		port := func(host string) *simverbs.Port { return e.fabric.Host(host).Device("mlx5_0").Port(1) }
		e.fabric.Delay(port("a"), port("b"), time.Millisecond, time.Millisecond) // slower than questions for grants
		remote, local := e.to.memory(64<<10, netproto.ReadWrite, 1), e.from.memory(64<<10, netproto.LocalOnly, 2)
		var all []*attempt
		for i := range 16 {
			a := e.transfer(lanes.Direction(1+i%2), local, remote, 0)
			a.Length, a.Deadline = 4096, reactor.Forever
			a.LocalOffset, a.Offset = uint64(i)*4096, uint64(i)*4096
			all = append(all, a)
		}
		e.on(e.from.lanes[0].Loop, func() {
			for _, a := range all {
				e.begin(a)
			}
		})
		e.until("all transfers", func() bool {
			done := 0
			for _, a := range all {
				done += a.done
			}
			return done == len(all)
		})
		for i, a := range all {
			if a.Outcome.Err != nil {
				t.Errorf("transfer %d: %v", i, a.Outcome.Err)
			}
		}
		if w.most != 8 || !w.starved {
			t.Errorf("%d of 8 places were used at most, and somebody waited: %v", w.most, w.starved)
		}
		for i := range uint64(16) {
			mine, other := local.bytes()[i*4096:(i+1)*4096], remote.bytes()[i*4096:(i+1)*4096]
			if string(mine) != string(other) {
				t.Errorf("%v: transfer %d moved other bytes", mode, i)
			}
		}
		e.end()
	}
}

// A source takes no parent for which its completion queue has no room, says so before any authority, and has it again when
// the others are done. Receives that revoked grants left behind on an idle connection give way.
//
// proves
func TestAParentNeedsRoomForItsReceiptsInTheCompletionQueue(t *testing.T) {
	o := siteOptions{devices: single(0)}
	to := siteOptions{devices: single(0), config: Config{QueueEntries: 16, Progress: EventDriven}}
	e := newEnds(t, simverbs.Hardware, endsOptions{o, to})
	other := &ends{rig: e.rig, from: e.rig.engine("c", o), to: e.to}
	other.peer = other.from.knows(0, e.to)
	remote := e.to.memory(64<<10, netproto.RemoteRead, 1)
	h, g := e.hand(lanes.Read), other.hand(lanes.Read)
	equal(t, "slices that the source admits", int(e.peer.SlicesMax), 8)
	equal(t, "grants", h.ask(remote.ID(), 0, 6*512, 6), netproto.StatusSuccess)
	equal(t, "three more", g.ask(remote.ID(), 4096, 3*64, 3), netproto.StatusExhausted)
	equal(t, "two more", g.ask(remote.ID(), 4096, 2*64, 2), netproto.StatusSuccess)
	for _, x := range []*hand{h, g} {
		for i := range x.grants {
			b := x.binding(i)
			equal(t, "binding", x.send(&b, x.grants[i].Key), verbs.WorkSuccess)
		}
		equal(t, "DONE", x.tell(netproto.OperationRDMADone), netproto.StatusSuccess)
	}

	// The windows of eight grants cannot be bound: their receives stay.
	e.fabric.Plan(simverbs.Fault{Kind: simverbs.BadWork, Process: "b"})
	equal(t, "grants", h.ask(remote.ID(), 0, 8*512, 8), netproto.StatusNativeError)
	h.leave()
	left := e.to.source(h.c)
	equal(t, "receives left with the device", len(left.well.out), 8)
	status := g.ask(remote.ID(), 0, 512, 1)
	for range 100 {
		if status != netproto.StatusExhausted {
			break
		}
		e.pass(roomGrace / 100)
		status = g.repeat()
	}
	equal(t, "grants behind them", status, netproto.StatusSuccess)
	equal(t, "evicted at the source", e.to.transport.Stats().Evicted, 1)
	equal(t, "ABANDON", g.tell(netproto.OperationRDMAAbandon), netproto.StatusSuccess)
	g.leave()
	rail := e.to.lanes[0].rails.rails[0]
	e.until("no receive", func() bool { used, _ := rail.receives.Reserved(); return used == 0 })
	equal(t, "promised", rail.promised, 0)
	other.from.tracker.RetireAll()
	e.end()
}

// The geometry of R-8 does not depend on how many pairs a connection has.
//
// proves R-8
func TestOnePairTakesAllSlicesOfATransfer(t *testing.T) {
	for _, width := range [][2]int{{1, 1}, {1, 4}, {3, 2}} {
		t.Run(fmt.Sprint(width), func(t *testing.T) {
			e := newEnds(t, simverbs.Hardware, endsOptions{
				siteOptions{devices: single(0), config: Config{Width: width[0]}}, siteOptions{devices: single(0), config: Config{Width: width[1]}},
			})
			remote, local := e.to.memory(5<<20, netproto.ReadWrite, 1), e.from.memory(5<<20, netproto.LocalOnly, 2)
			complete(t, e.run(e.transfer(lanes.Read, local, remote, 0)), lanes.Read, 5<<20)
			equal(t, "slices of the READ", e.to.transport.GrantStats().Received, 40)
			complete(t, e.run(e.transfer(lanes.Write, local, remote, 0)), lanes.Write, 5<<20)
			equal(t, "slices of both", e.to.transport.GrantStats().Received, 40+27)
			e.end()
		})
	}
}
