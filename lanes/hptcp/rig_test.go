package hptcp

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/test/graves"
)

var (
	sourceHost    = netip.MustParseAddr("10.0.0.1")
	requesterHost = netip.MustParseAddr("10.0.0.2")
	otherHost     = netip.MustParseAddr("10.0.0.3")
	scriptHost    = netip.MustParseAddr("10.0.0.9")

	sourceEpoch    = netproto.Epoch{0xaa, 1, 2, 3}
	requesterEpoch = netproto.Epoch{0xbb, 4, 5, 6}
	staleEpoch     = netproto.Epoch{0xcc}
)

const (
	patience = 20 * time.Minute // virtual; longer than any timeout in use
	soon     = 10 * time.Millisecond
)

// setup is what tests vary about a node.
type setup struct {
	epoch             netproto.Epoch
	streams, sessions int64
	config            Config
	payload           uint64
	sourceTimeout     time.Duration
	idle              time.Duration
	socket            reactor.SocketOptions
	wrap              func(reactor.Kernel) reactor.Kernel
}

func (s *setup) complete() {
	if s.epoch.IsZero() {
		s.epoch = requesterEpoch
	}
	if s.streams == 0 {
		s.streams = 16
	}
	if s.sessions == 0 {
		s.sessions = 16
	}
	if s.payload == 0 {
		s.payload = 8 << 20
	}
	if s.sourceTimeout == 0 {
		s.sourceTimeout = 5 * time.Second
	}
	if s.idle == 0 {
		s.idle = time.Minute
	}
	if s.config.CPUs == 0 {
		s.config.CPUs = 4
	}
}

// rig is a simulated world with nodes of one lane each, and scripted peers that speak raw bytes.
type rig struct {
	graves.Graves[Transfer]     // of those that have ended in this step
	greeted                 int // wires so far, whose streams have numbers in turn
	t                       testing.TB
	world                   *simkernel.World
	process                 *simkernel.Process // of the scripts
	loop                    *reactor.Loop
	nodes                   []*node
	wires                   []*wire
	ports                   []*port
}

func newRig(t testing.TB, seed uint64, o simkernel.WorldOptions) *rig {
	r := &rig{t: t, world: simkernel.NewWorld(seed, o)}
	r.process = r.world.Process("script", scriptHost)
	r.loop = reactor.NewLoop(r.process.Kernel(), reactor.Options{Name: "script", Mode: reactor.Manual})
	r.world.Add(func() bool { return r.loop.Turn(reactor.Forever) })
	return r
}

// until lets the world go on until done.
func (r *rig) until(what string, done func() bool) {
	r.t.Helper()
	defer r.Dig(r.t)
	if err := r.world.RunUntil(func() bool { r.Dig(r.t); return done() }, r.world.Now().After(patience)); err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
}

// pass lets d pass.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	over := false
	r.world.Later(d, func() { over = true })
	r.until("passing time", func() bool { return over })
}

// node is one lane with everything that rides on it, as the root wires it.
type node struct {
	t        testing.TB
	rig      *rig // nil over real kernels
	process  *simkernel.Process
	policy   lanes.Policy
	config   Config
	lane     *lanes.Lane
	pool     *Pool
	service  *Service
	listener *control.Listener
	address  netip.AddrPort
	gate     *lanes.Gate
	tracker  *segments.Tracker
	ledger   budgets.Ledger
	memories []*memory
	peers    []*Peer
}

func (r *rig) node(host netip.Addr, s setup) *node {
	r.t.Helper()
	process := r.world.Process(host.String(), host)
	n := newNode(r.t, process.Kernel(), netip.AddrPortFrom(host, 0), reactor.Manual, s)
	n.process, n.rig = process, r
	if err := n.lane.Bind(); err != nil {
		r.t.Fatal(err)
	}
	n.listener.Start()
	r.world.Add(func() bool { defer r.Dig(r.t); return n.lane.Turn(reactor.Forever) })
	r.nodes = append(r.nodes, n)
	return n
}

// source and requester are the usual pair.
func (r *rig) pair(s, q setup) (source, requester *node, peer *Peer) {
	s.epoch = sourceEpoch
	source, requester = r.node(sourceHost, s), r.node(requesterHost, q)
	return source, requester, requester.peer(source)
}

func newNode(t testing.TB, kernel reactor.Kernel, bind netip.AddrPort, mode reactor.Mode, s setup) *node {
	t.Helper()
	s.complete()
	n := &node{t: t, gate: lanes.NewGate(), config: s.config}
	n.policy = lanes.Policy{Epoch: s.epoch, PayloadBytesMax: s.payload, SourceTimeout: s.sourceTimeout, IdleTimeout: s.idle, Socket: s.socket}
	budget := func(name string, limit int64) *budgets.Budget { return n.ledger.Add(budgets.New(name, "units", limit)) }
	n.tracker = segments.NewTracker(budget("registrations", 1024), budget("registered bytes", 1<<31), nil)
	if s.wrap != nil {
		kernel = s.wrap(kernel)
	}
	n.lane = &lanes.Lane{Loop: reactor.NewLoop(kernel, reactor.Options{Name: "lane", Mode: mode}), Policy: &n.policy, Tracker: n.tracker}
	n.config.Streams, n.config.Sessions, n.config.Gate = budget("data streams", s.streams), budget("data sessions", s.sessions), n.gate
	n.config.complete()
	n.pool, n.service = NewPool(n.lane, n.config), NewService(n.lane, n.config)
	d, address, err := kernel.Listen(bind, s.socket)
	if err != nil {
		t.Fatal(err)
	}
	n.address, n.listener = address, control.NewListener(n.lane, d, []*Service{n.service})
	return n
}

// peer makes the requester's side of a source.
func (n *node) peer(source *node) *Peer {
	return n.peerAt(source.address, source.policy.Epoch, *source.config.Endpoint(netproto.FamilyIPv4, source.address.Port()))
}

func (n *node) peerAt(at netip.AddrPort, epoch netproto.Epoch, e netproto.HPTCPEndpoint) *Peer {
	p := n.pool.NewPeer([]netip.AddrPort{at}, epoch, e, len(n.peers), 1)
	n.peers = append(n.peers, p)
	return p
}

// memory is a registered range of its own memory object.
type memory struct {
	*segments.Registration
	backing *segments.Backing
}

// register maps and registers n bytes for this plane, filled with a pattern that differs between seeds at each byte.
func (n *node) register(length uint64, p netproto.Permission, seed byte) *memory {
	n.t.Helper()
	return n.registerAs(length, p, seed, netproto.RegionHPTCP)
}

func (n *node) registerAs(length uint64, p netproto.Permission, seed byte, flags netproto.RegionFlags) *memory {
	n.t.Helper()
	backing, err := segments.Map(length)
	if err != nil {
		n.t.Fatal(err)
	}
	copy(backing.Bytes(), pattern(length, seed))
	list, err := n.tracker.Register([]segments.Spec{{Backing: backing, Length: length, Permission: p, Profile: netproto.Region{Flags: flags}}})
	if err != nil {
		n.t.Fatal(err)
	}
	m := &memory{list[0], backing}
	n.memories = append(n.memories, m)
	return m
}

func (m *memory) bytes() []byte { return m.backing.Bytes()[:m.Length()] }

// holds checks that the memory has exactly the pattern.
func (m *memory) holds(seed byte) bool { return bytes.Equal(m.bytes(), pattern(m.Length(), seed)) }

func pattern(length uint64, seed byte) []byte {
	b := make([]byte, length)
	for i := range b {
		b[i] = byte(i*7+i>>8)&0x3f | seed<<6
	}
	return b
}

// attempt is one transfer of a test.
type attempt struct {
	Transfer
	done int
	at   reactor.Instant
	rig  *rig // nil over real kernels
}

// Cancel ends it early, perhaps at once.
func (a *attempt) Cancel() {
	a.Transfer.Cancel()
	a.settled()
}

// settled looks whether an end was the last touch.
func (a *attempt) settled() {
	if a.rig != nil {
		a.rig.Dig(a.rig.t)
	}
}

// ask prepares a transfer between all of the local and the start of the remote range.
func (n *node) ask(d lanes.Direction, local *memory, region uint64) *attempt {
	a := &attempt{rig: n.rig}
	a.Direction, a.Local, a.Region, a.Length = d, local.Registration, region, local.Length()
	a.Deadline = n.lane.Kernel().Now().After(time.Second)
	a.Done = func(t *Transfer) {
		a.done++
		a.at = n.lane.Now()
		t.Local.Return()
		if n.rig != nil {
			n.rig.Inter(t, sentinel)
		}
	}
	return a
}

// start runs it; the local registration is borrowed until Done, as the root does.
func (a *attempt) start(p *Peer) *attempt {
	if !a.Local.Lend() {
		panic("the local registration is retired")
	}
	a.Start(p)
	a.settled()
	return a
}

// wait lets the world go on until the transfer has ended.
func (r *rig) wait(a *attempt) lanes.Outcome {
	r.t.Helper()
	r.until("a transfer's end", func() bool { return a.done > 0 })
	if a.done != 1 {
		r.t.Fatalf("Done was called %d times", a.done)
	}
	return a.Outcome
}

// fault is the outcome's fault; it fails the test when there is none.
func fault(t testing.TB, o lanes.Outcome) *lanes.Fault {
	t.Helper()
	f, ok := o.Err.(*lanes.Fault)
	if !ok {
		t.Fatalf("outcome %+v has no fault", o)
	}
	return f
}

// finish closes everything and checks that nothing is left: charges, leases, buffers, operations, descriptors.
func (r *rig) finish() {
	r.t.Helper()
	for _, w := range r.wires {
		w.close()
	}
	for _, p := range r.ports {
		p.close()
	}
	for _, n := range r.nodes {
		left := n.close()
		r.until("closing a node", func() bool { return *left == 0 })
	}
	for _, n := range r.nodes {
		n.check()
		if d := n.process.Descriptors(); d != 0 {
			r.t.Errorf("%d descriptors are left", d)
		}
	}
	if err := r.loop.Close(); err != nil {
		r.t.Error(err)
	}
}

// close ends listener, sessions and peers, as the root does; the answer counts what has not ended.
func (n *node) close() *int {
	n.gate.Fence()
	left := 3 + len(n.peers)
	one := func() { left-- }
	n.listener.Close(one)
	for _, p := range n.peers {
		p.Close(one)
	}
	n.pool.Close(one)
	n.service.Close(one)
	return &left
}

// check takes the memory back and looks for leaks.
func (n *node) check() {
	n.t.Helper()
	n.tracker.RetireAll()
	for _, m := range n.memories {
		if !m.backing.Quiet() {
			n.t.Error("a lease is left")
		}
		m.backing.Drop()
	}
	if buffers, size, slots := n.lane.Arena.Lent(); buffers != 0 || size != 0 || slots != 0 {
		n.t.Errorf("the arena has lent %d buffers, %d bytes, %d slots", buffers, size, slots)
	}
	n.lane.Arena.Close()
	for _, owed := range n.ledger.Owed() {
		n.t.Errorf("not repaid: %+v", owed)
	}
	if inside := n.gate.Inside(); inside != 0 {
		n.t.Errorf("%d requests are counted by the gate", inside)
	}
	if left := n.lane.Outstanding(); left != 0 {
		n.t.Errorf("%d operations are outstanding", left)
	}
	if err := n.lane.Loop.Close(); err != nil {
		n.t.Error(err)
	}
}

// mappings checks at the test's end that all mapped memory was given back.
func mappings(t testing.TB) {
	count, size := segments.Mappings()
	t.Cleanup(func() {
		if c, s := segments.Mappings(); c != count || s != size {
			t.Errorf("%d mappings with %d bytes at the start, %d with %d at the end", count, size, c, s)
		}
	})
}
