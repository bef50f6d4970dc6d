package tcp

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
)

// life is three nodes, each source and requester, under random traffic and faults.
type life struct {
	*rig
	t       *testing.T
	seed    uint64
	random  *rand.Rand
	members []*node
	peers   map[*node]map[*node]*control.Channel
	running []*exchange
	ended   int
	unsure  int
}

// exchange is a transfer with ranges of its own on both sides.
type exchange struct {
	*attempt
	local, remote *memory
	source        *node
	requester     *node
}

func newLife(t *testing.T, seed uint64, direct bool) *life {
	l := &life{t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 1)), peers: map[*node]map[*node]*control.Channel{}}
	l.rig = newRig(t, seed, simkernel.WorldOptions{Buffer: 4096, ChopReceive: 3000, ChopSend: 3000})
	for i := range 4 {
		n := l.node(netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}), setup{
			direct: direct, streams: 2, sessions: 3, handlers: 2, queue: 1, backlog: 1, sourceTimeout: 200 * time.Millisecond, idle: 50 * time.Millisecond,
		})
		l.members = append(l.members, n)
	}
	for _, a := range l.members {
		l.peers[a] = map[*node]*control.Channel{}
		for _, b := range l.members {
			l.peers[a][b] = a.channel(b.address)
		}
	}
	return l
}

func (l *life) between(low, high time.Duration) time.Duration {
	return low + time.Duration(l.random.Int64N(int64(high-low)))
}

// begin starts a transfer between two members.
func (l *life) begin() {
	a, b := l.members[l.random.IntN(4)], l.members[l.random.IntN(4)]
	length := uint64(1 + l.random.IntN(6000))
	x := &exchange{local: a.register(length, netproto.LocalOnly, 2), remote: b.register(length, netproto.ReadWrite, 1), source: b, requester: a}
	x.attempt = a.ask(lanes.Direction(1+l.random.IntN(2)), x.local, x.remote.ID())
	x.Deadline = a.lane.Now().After(l.between(10*time.Microsecond, 300*time.Millisecond))
	l.running = append(l.running, x)
	x.start(l.peers[a][b])
}

// harm does something to what runs.
func (l *life) harm() {
	connections := l.world.Connections()
	switch k := l.random.IntN(8); {
	case k < 2 && len(l.running) > 0:
		l.running[l.random.IntN(len(l.running))].Cancel()
	case k == 2 && len(connections) > 0:
		connections[l.random.IntN(len(connections))].Reset()
	case k == 3 && len(connections) > 0:
		c, way := connections[l.random.IntN(len(connections))], simkernel.Direction(l.random.IntN(2))
		c.Stall(way, true)
		l.world.Later(l.between(time.Microsecond, 500*time.Millisecond), func() { c.Stall(way, false) })
	case k == 4 && len(connections) > 0:
		c := connections[l.random.IntN(len(connections))]
		c.HalfClose(simkernel.Direction(l.random.IntN(2)))
	case k == 5 && len(l.running) > 0:
		x := l.running[l.random.IntN(len(l.running))]
		m := []*memory{x.local, x.remote}[l.random.IntN(2)]
		if lease, err := m.backing.Lend(0, 1, segments.Exclusive); err == nil {
			l.world.Later(l.between(time.Microsecond, 300*time.Millisecond), lease.Return)
		}
	case k == 6:
		l.world.Advance(l.between(time.Microsecond, 2*time.Millisecond))
	}
}

// judge holds what has ended against its ranges, and frees them.
func (l *life) judge(direct bool) {
	kept := l.running[:0]
	for _, x := range l.running {
		if x.done == 0 {
			kept = append(kept, x)
			continue
		}
		l.ended++
		o := x.Outcome
		want := map[lanes.Effect][]byte{lanes.EffectNone: {2, 1}, lanes.EffectComplete: {1, 1}}[o.Local]
		if x.Direction == lanes.Write {
			want = map[lanes.Effect][]byte{lanes.EffectNone: {2, 1}, lanes.EffectComplete: {2, 2}}[o.Remote]
		}
		switch {
		case x.done != 1 || !o.Drained:
			l.t.Errorf("SEED=%d: done %d times, %+v", l.seed, x.done, o)
		case want == nil && o.Remote == lanes.EffectUnknown && x.Direction == lanes.Write:
			l.unsure++
			if !direct && !x.remote.holds(1) && !x.remote.holds(2) {
				l.t.Errorf("SEED=%d: the remote range is a mixture", l.seed)
			}
		case want == nil && o.Local == lanes.EffectPartial && direct:
		case want == nil || !x.local.holds(want[0]) || !x.remote.holds(want[1]):
			l.t.Errorf("SEED=%d: %v ended with %+v, which its ranges deny", l.seed, x.Direction, o)
		}
	}
	l.running = kept
}

// Random traffic between four engines with too few streams, sessions, handlers and places in the queue,
// under resets, stalls, half closes, conflicting leases, late lanes and cancellations: each transfer ends
// once, as its ranges show, and nothing is left. Replay by the printed seed.
//
// proves T-1, T-3, T-4, T-6, U-1
func TestRandomLifeLeavesNothing(t *testing.T) {
	mappings(t)
	first := rand.Uint64() >> 1
	t.Logf("SEED=%d and the following; replay with newLife(t, seed, seed%%2 == 1)", first)
	total, unsure := 0, 0
	for seed := first; seed < first+12; seed++ {
		direct := seed%2 == 1
		l := newLife(t, seed, direct)
		for range 400 {
			if len(l.running) < 8 && l.random.IntN(3) == 0 && l.members[0].registrations.Used() < 40 {
				l.begin()
			}
			if l.random.IntN(6) == 0 {
				l.harm()
			}
			for range l.random.IntN(12) {
				l.world.Step()
			}
			l.judge(direct)
			l.forget()
		}
		l.until("the last transfers", func() bool { l.judge(direct); return len(l.running) == 0 })
		l.pass(time.Second) // leases of tests, stalls
		total += l.ended
		unsure += l.unsure
		l.finish()
		if t.Failed() {
			return
		}
	}
	if total < 200 {
		t.Errorf("only %d transfers", total)
	}
	t.Logf("%d transfers, %d of them unsure", total, unsure)
}

// forget takes back the ranges of ended transfers that are quiet.
func (l *life) forget() {
	for _, n := range l.members {
		kept := n.memories[:0]
		for _, m := range n.memories {
			if l.uses(m) || m.Loans() > 0 || !m.backing.Quiet() {
				kept = append(kept, m)
				continue
			}
			if _, err := n.tracker.Unregister(m.ID()); err != nil {
				l.t.Errorf("SEED=%d: %v", l.seed, err)
			}
			m.backing.Drop()
		}
		n.memories = kept
	}
}

func (l *life) uses(m *memory) bool {
	for _, x := range l.running {
		if x.local == m || x.remote == m {
			return true
		}
	}
	return false
}
