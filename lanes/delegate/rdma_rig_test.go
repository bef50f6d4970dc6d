package delegate

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// networks is the fabric of a rig.
type networks struct {
	*simverbs.Fabric
	processes map[string]*simkernel.Process
	dead      map[string]bool
}

// fabric makes it with the first node that needs it. A still one goes on only in calls and when the clock is looked at.
func (r *rig) fabric(still bool) *networks {
	if r.nets != nil {
		return r.nets
	}
	w := r.world
	n := &networks{processes: map[string]*simkernel.Process{}, dead: map[string]bool{}}
	later := w.Later
	if still {
		later = nil
	}
	n.Fabric = simverbs.NewFabric(r.seed, simverbs.Options{
		Personality: simverbs.Hardware,
		Now:         func() time.Duration { return time.Duration(w.Now()) }, Later: later, Sleep: w.Advance,
		Violation: func(err error) { r.t.Error(err) },
		Signal: func(p *simverbs.Process) (int, func(), func(), func(), error) {
			process := n.processes[p.Name()]
			d, signal, err := process.Signal()
			end := func() {
				if open := process.Kernels(); len(open) > 0 {
					_ = open[0].Close(d)
				}
			}
			return int(d), signal, func() { process.Unsignal(d) }, end, err
		},
	})
	r.nets = n
	pause := 500 * time.Millisecond // a lane that polls tells the world no timer
	if still {
		pause = 5 * time.Microsecond // nor does the fabric
	}
	var beat func()
	beat = func() { w.Later(pause, beat) }
	beat()
	return n
}

// device is what a node with RDMA has besides.
type device struct {
	native    *simverbs.Process
	transport *rdma.Transport
	rails     *rdma.Rails
	all       []reached
	peers     map[*control.Channel]*rdma.Peer
}

// reached is memory that devices reach. It is held until they are proven unable to.
type reached struct {
	*rdma.Registered
	backing *segments.Backing
}

// connect gives the node a NIC with two ports' worth of paths, and its server what answers for grants.
func (n *node) connect(s setup) {
	n.t.Helper()
	f := n.fabric(s.still)
	name := n.process.Name()
	f.processes[name] = n.process
	d := &device{native: f.Host(name, simverbs.DeviceSpec{Name: "mlx5_0"}).Process(name), peers: map[*control.Channel]*rdma.Peer{}}
	budget := func(name string, limit int64) *budgets.Budget { return n.ledger.Add(budgets.New(name, "units", limit)) }
	random := rand.New(rand.NewPCG(n.seed, uint64(len(n.nodes))))
	c := rdma.Config{
		Progress: rdma.EventDriven, Width: 2, Epoch: n.policy.Epoch, Cold: n.cold,
		Random: func(b []byte) {
			for i := range b {
				b[i] = byte(random.Uint32())
			}
		},
		Budgets: rdma.Budgets{
			Endpoints: budget("endpoints", 16), Grants: budget("grants", 64), DirectBytes: budget("direct bytes", 1<<20),
			StagingBytes: budget("staging bytes", 1<<20), CachedRegions: budget("cached regions", 64), CachedBytes: budget("cached bytes", 1<<20),
		},
	}
	if s.change != nil {
		s.change(&c)
	}
	var err error
	if d.transport, err = rdma.Open(d.native, c); err != nil {
		n.t.Fatal(err)
	}
	if d.rails, err = d.transport.Rails(n.lane); err != nil {
		n.t.Fatal(err)
	}
	source := d.rails.Serve(n.server)
	if n.service != nil {
		source.Pinned(n.service)
	}
	n.device = d
}

// reach registers host memory, and the slots once they are there, as the root does.
func (n *node) reach(m *memory) {
	n.t.Helper()
	if n.device == nil {
		return
	}
	t := n.device.transport
	attach := func(r *segments.Registration, g *rdma.Registered, err error) {
		n.t.Helper()
		if err != nil {
			n.t.Fatal(err)
		}
		r.Attach(g)
		r.Backing().Hold()
		n.device.all = append(n.device.all, reached{g, r.Backing()})
	}
	if m.device == nil && t.Config().Host == netproto.HostDirect {
		g, err := t.Register(m.Address(), m.Length(), m.Permission() != netproto.LocalOnly)
		attach(m.Registration, g, err)
	}
	for _, r := range n.stage.Slots() {
		if rdma.Of(r) == nil {
			g, err := t.RegisterSlot(r.Address(), r.Length())
			attach(r, g, err)
		}
	}
}

// peer is what the node knows of another one's devices.
func (n *node) peer(c *control.Channel, to *node) *rdma.Peer {
	d := n.device
	if d.peers[c] == nil {
		p := to.device.transport.Paths()
		d.peers[c] = &rdma.Peer{Channel: c, Epoch: to.policy.Epoch, Paths: p.Paths, PairsMax: int(p.PairsMax), SlicesMax: int(p.SlicesMax), Host: p.Host}
	}
	return d.peers[c]
}

// closeRails ends connections, while the streams still carry what must be said.
func (n *node) closeRails() {
	n.t.Helper()
	if n.device == nil {
		return
	}
	closed := false
	n.device.rails.Close(func() { closed = true })
	n.until("closing rails", func() bool { return closed })
}

// closeTransport deregisters everything, and closes the devices.
func (n *node) closeTransport() {
	n.t.Helper()
	d := n.device
	if d == nil {
		return
	}
	left := 0
	for _, g := range d.all {
		if g.Uses() > 0 {
			if !n.lasting {
				n.t.Errorf("a registration has %d users", g.Uses())
			}
			continue
		}
		left++
		g.Retire(func(err error) {
			if left--; err == nil {
				g.backing.Drop()
			}
		})
	}
	n.until("retiring", func() bool { return left == 0 })
	closed := false
	var refused error
	d.transport.Close(func(err error) { closed, refused = true, err })
	n.until("closing devices", func() bool { return closed })
	if n.trial && len(d.transport.Retained()) > 0 { // what the devices refuse is listed
		n.lasting = true
	}
	if refused != nil && !n.lasting {
		n.t.Error(refused)
	}
	if live := d.native.Live(); !live.Empty() && !n.lasting {
		n.t.Errorf("native objects are left: %+v", live)
	}
}

// over is a setup with RDMA.
func over(s setup) setup {
	s.rdma = true
	return s
}

// staged is one whose host memory is staged for RDMA.
func staged(s setup) setup {
	s = over(s)
	s.change = func(c *rdma.Config) { c.Host = netproto.HostStaged }
	return s
}

// newRDMAPair is newPair with devices on both sides.
func newRDMAPair(t testing.TB, there, here setup, length uint64) *pairOf {
	t.Helper()
	return newPairOf(t, rand.Uint64(), over(there), over(here), length)
}

// grant moves bytes between local memory and a slot by hand.
func (n *node) grant(c *control.Channel, to *node, d lanes.Direction, local *memory, name netproto.PinName, slot uint8, offset, length uint64) lanes.Outcome {
	n.t.Helper()
	done := false
	x := &rdma.Transfer{
		Direction: d, Local: local.Registration, Region: netproto.SlotRegion(name.Number, slot), Offset: offset, Length: length, Remote: rdma.RemoteSlot,
		Epoch: to.policy.Epoch, Deadline: n.lane.Kernel().Now().After(time.Minute), Done: func(*rdma.Transfer) { done = true },
	}
	x.Start(n.device.rails, n.peer(c, to))
	n.until("payload", func() bool { return done })
	return x.Outcome
}
