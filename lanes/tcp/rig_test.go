package tcp

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/lanes/staging"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/test/graves"
)

var (
	sourceHost    = netip.MustParseAddr("10.0.0.1")
	requesterHost = netip.MustParseAddr("10.0.0.2")
	scriptHost    = netip.MustParseAddr("10.0.0.9")

	epoch      = netproto.Epoch{0xaa, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	otherEpoch = netproto.Epoch{0xbb}
)

const (
	patience = 20 * time.Minute // virtual; longer than any timeout in use
	soon     = 10 * time.Millisecond
)

// setup is what tests vary about a node.
type setup struct {
	direct                             bool
	streams, sessions, handlers, queue int64
	payload                            uint64
	sourceTimeout, idle                time.Duration
	backlog                            int
	socket                             reactor.SocketOptions
	wrap                               func(reactor.Kernel) reactor.Kernel
	beside                             *node           // another lane of the same engine: one admission for both
	gpu                                *staging.Config // two simulated GPUs, and how memory of theirs is staged
	still                              bool            // GPUs go on only in calls; they then allocate nothing
}

func (s *setup) complete() {
	for _, d := range []struct {
		value    *int64
		standard int64
	}{{&s.streams, 8}, {&s.sessions, 8}, {&s.handlers, 4}, {&s.queue, 4}} {
		if *d.value == 0 {
			*d.value = d.standard
		}
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
}

// rig is a simulated world with nodes of one lane each, and scripted peers that speak raw bytes.
type rig struct {
	graves.Graves[Transfer]

	t       testing.TB
	world   *simkernel.World
	process *simkernel.Process // of the scripts
	loop    *reactor.Loop
	nodes   []*node
	wires   []*wire
	ports   []*port
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
	rig      *rig // nil over real kernels
	t        testing.TB
	process  *simkernel.Process
	policy   lanes.Policy
	lane     *lanes.Lane
	pool     *control.Pool
	server   *control.Server
	listener *control.Listener
	service  *Service
	address  netip.AddrPort

	admission                        control.Admission
	tracker                          *segments.Tracker
	inbox                            *control.Inbox
	ledger                           budgets.Ledger
	memories                         []*memory
	channels                         []*control.Channel
	registrations, registrationBytes *budgets.Budget
	gpu                              *gpu // nil: none
}

func (r *rig) node(host netip.Addr, s setup) *node {
	r.t.Helper()
	process := r.world.Process(host.String(), host)
	n := newNode(r.t, process.Kernel(), netip.AddrPortFrom(host, 0), reactor.Manual, s)
	n.rig, n.process = r, process
	if err := n.lane.Bind(); err != nil {
		r.t.Fatal(err)
	}
	if s.gpu != nil {
		n.gpu = n.newGPU(*s.gpu, s.still)
	}
	n.listener.Start()
	r.world.Add(func() bool { defer r.Dig(r.t); return n.lane.Turn(reactor.Forever) })
	r.nodes = append(r.nodes, n)
	return n
}

func newNode(t testing.TB, kernel reactor.Kernel, bind netip.AddrPort, mode reactor.Mode, s setup) *node {
	t.Helper()
	s.complete()
	n := &node{t: t}
	n.policy = lanes.Policy{
		Epoch: epoch, Direct: s.direct, PayloadBytesMax: s.payload, NotificationBytesMax: 64 << 10,
		SourceTimeout: s.sourceTimeout, IdleTimeout: s.idle, TCPNotifications: true, Socket: s.socket,
	}
	budget := func(name string, limit int64) *budgets.Budget { return n.ledger.Add(budgets.New(name, "units", limit)) }
	n.registrations, n.registrationBytes = budget("registrations", 64), budget("registered bytes", 1<<30)
	n.tracker = segments.NewTracker(n.registrations, n.registrationBytes, nil)
	n.inbox = control.NewInbox(budget("notifications", 16), budget("notification bytes", 1<<20))
	n.admission = control.Admission{Gate: lanes.NewGate(), Handlers: budget("handlers", s.handlers), Queue: budget("queue", s.queue)}
	if s.wrap != nil {
		kernel = s.wrap(kernel)
	}
	n.lane = &lanes.Lane{
		Loop: reactor.NewLoop(kernel, reactor.Options{Name: "lane", Mode: mode}), Policy: &n.policy, Tracker: n.tracker,
		Streams: budget("streams", s.streams), Sessions: budget("sessions", s.sessions),
	}
	n.pool = control.NewPool(n.lane)
	admission := &n.admission
	if s.beside != nil {
		admission = &s.beside.admission
	}
	n.server = control.NewServer(n.lane, admission)
	n.service = NewService(n.server)
	notify := control.NewNotifyService(n.inbox)
	n.server.Handle(netproto.OperationNotify, notify)
	n.server.Handle(netproto.OperationControlNotify, notify)
	n.server.Handle(netproto.OperationDescribe, control.NewDescribeService(func(dst []byte) ([]byte, error) {
		d := netproto.Descriptor{
			Capabilities: netproto.Capabilities{Bits: netproto.CapabilityTCP, TransferBytesMax: s.payload}, Regions: n.tracker.Mirror().Regions(),
		}
		return netproto.AppendDescriptor(dst, &d), d.Check()
	}))
	options := s.socket
	options.Backlog = s.backlog
	d, address, err := kernel.Listen(bind, options)
	if err != nil {
		t.Fatal(err)
	}
	n.address, n.listener = address, control.NewListener(n.lane, d, []*control.Server{n.server})
	return n
}

// memory is a registered range of its own memory object.
type memory struct {
	*segments.Registration
	backing *segments.Backing
	device  *cuda.Memory // nil: host memory
	gpu     *gpu
}

// register maps and registers n bytes, filled with a pattern that differs between seeds at each byte.
func (n *node) register(length uint64, p netproto.Permission, seed byte) *memory {
	n.t.Helper()
	backing, err := segments.Map(length)
	if err != nil {
		n.t.Fatal(err)
	}
	copy(backing.Bytes(), pattern(length, seed))
	list, err := n.tracker.Register([]segments.Spec{{Backing: backing, Length: length, Permission: p}})
	if err != nil {
		n.t.Fatal(err)
	}
	m := &memory{Registration: list[0], backing: backing}
	n.memories = append(n.memories, m)
	return m
}

func (m *memory) bytes() []byte {
	if m.device != nil {
		b := make([]byte, m.Length())
		m.gpu.driver.Peek(m.device.Pointer(), b)
		return b
	}
	return m.backing.Bytes()[:m.Length()]
}

// holds checks that the memory has exactly the pattern.
func (m *memory) holds(seed byte) bool { return bytes.Equal(m.bytes(), pattern(m.Length(), seed)) }

func pattern(length uint64, seed byte) []byte {
	b := make([]byte, length)
	for i := range b {
		b[i] = byte(i*7+i>>8)&0x3f | seed<<6
	}
	return b
}

// channel makes a channel that the node closes at its end.
func (n *node) channel(addresses ...netip.AddrPort) *control.Channel {
	c := n.pool.NewChannel(addresses)
	n.channels = append(n.channels, c)
	return c
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
	a.Epoch, a.Deadline = epoch, n.lane.Kernel().Now().After(time.Second)
	a.Done = func(t *Transfer) {
		a.done++
		a.at = n.lane.Now()
		t.Local.Return()
		if n.rig != nil {
			n.rig.Inter(t, sentinel) // last
		}
	}
	return a
}

// start runs it; the local registration is borrowed until Done, as the root does.
func (a *attempt) start(c *control.Channel) *attempt {
	if !a.Local.Lend() {
		panic("the local registration is retired")
	}
	a.Start(c)
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

// finish closes everything and checks that nothing is left: charges, buffers, operations, descriptors.
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
		n.gpu.close()
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

// close ends listener, sessions and channels, as the root does; the answer counts what has not ended.
func (n *node) close() *int {
	n.admission.Fence()
	left := 2 + len(n.channels)
	one := func() { left-- }
	n.listener.Close(one)
	n.server.Close(one)
	for _, c := range n.channels {
		c.Close(one)
	}
	return &left
}

// check takes the memory back and looks for leaks.
func (n *node) check() {
	n.t.Helper()
	n.inbox.Drain()
	n.tracker.RetireAll()
	for _, m := range n.memories {
		m.backing.Drop()
	}
	n.gpu.check()
	if buffers, size, slots := n.lane.Arena.Lent(); buffers != 0 || size != 0 || slots != 0 {
		n.t.Errorf("the arena has lent %d buffers, %d bytes, %d slots", buffers, size, slots)
	}
	n.lane.Arena.Close()
	for _, owed := range n.ledger.Owed() {
		if n.gpu != nil && n.gpu.lasting { // a registration of memory that is retained stays charged
			continue
		}
		n.t.Errorf("not repaid: %+v", owed)
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

func addresses(n *node) []netip.AddrPort { return []netip.AddrPort{n.address} }
