package delegate

import (
	"bytes"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/lanes/staging"
	"github.com/orbitte/orbitte/lanes/tcp"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/test/graves"
)

var (
	sourceHost    = netip.MustParseAddr("10.0.0.1")
	requesterHost = netip.MustParseAddr("10.0.0.2")
	thirdHost     = netip.MustParseAddr("10.0.0.3")
)

const (
	patience  = 20 * time.Minute // virtual
	slotBytes = 100
)

// setup is what tests vary about a node.
type setup struct {
	slots, peerSlots int // 0: 4, and as many
	direct           bool
	sourceTimeout    time.Duration // 0: 5 s
	sessions         int64         // 0: 8
	idle             time.Duration // 0: a minute
	handlers         int64         // 0: 4
	slow             time.Duration // of every copy
	bare             bool          // it offers no slots
	device           bool          // the range of a requester of a pair is on a GPU
	still            bool          // GPUs go on only in calls; they then allocate nothing
	rdma             bool          // it has RDMA devices, and payload goes over them
	change           func(*rdma.Config)
}

// rig is a simulated world of nodes with one lane and two GPUs each.
type rig struct {
	graves.Graves[Transfer]

	t     testing.TB
	seed  uint64
	world *simkernel.World
	nodes []*node
	nets  *networks // nil: no node has RDMA
	leaks func()
	sound bool // it has finished, and nothing had failed by then
}

// newRig makes a world of a seed, unless ORBITTE_SEED gives another one.
func newRig(t testing.TB, seed uint64) *rig {
	t.Helper()
	if text := os.Getenv("ORBITTE_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	r := &rig{t: t, seed: seed, world: simkernel.NewWorld(seed, simkernel.WorldOptions{})}
	count, size := segments.Mappings()
	r.leaks = func() {
		if c, s := segments.Mappings(); c != count || s != size {
			t.Errorf("%d mappings with %d bytes at the start, %d with %d at the end", count, size, c, s)
		}
	}
	t.Cleanup(func() {
		if t.Failed() && !r.sound {
			t.Logf("SEED=%d (replay: ORBITTE_SEED=%d go test -run '%s' ./lanes/delegate)", seed, seed, t.Name())
		}
	})
	return r
}

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

// node is one engine's lane with what rides on it, as the root wires it.
type node struct {
	*rig
	process   *simkernel.Process
	policy    lanes.Policy
	lane      *lanes.Lane
	cold      *reactor.Loop
	pool      *control.Pool
	server    *control.Server
	listener  *control.Listener
	service   *Service
	address   netip.AddrPort
	admission control.Admission
	tracker   *segments.Tracker
	ledger    budgets.Ledger
	slots     *budgets.Budget
	driver    *simcuda.Driver
	platform  *cuda.Platform
	stage     *staging.Stage
	memories  []*memory
	device    *device // nil: it has no RDMA
	channels  []*control.Channel
	tasks     []*simkernel.Task
	lasting   bool // the test means something to stay retained
	trial     bool // what is listed as retained may stay
	dead      bool // the process was killed
}

func (r *rig) node(host netip.Addr, s setup) *node {
	r.t.Helper()
	def := func(p *int64, standard int64) int64 {
		if *p == 0 {
			*p = standard
		}
		return *p
	}
	if s.slots == 0 {
		s.slots = 4
	}
	if s.peerSlots == 0 {
		s.peerSlots = s.slots
	}
	n := &node{rig: r, process: r.world.Process(host.String(), host)}
	n.policy = lanes.Policy{
		Epoch: netproto.Epoch(host.As16()), Direct: s.direct, PayloadBytesMax: 1 << 20, SourceTimeout: s.sourceTimeout, IdleTimeout: s.idle,
	}
	if n.policy.SourceTimeout == 0 {
		n.policy.SourceTimeout = 5 * time.Second
	}
	if n.policy.IdleTimeout == 0 {
		n.policy.IdleTimeout = time.Minute
	}
	budget := func(name string, limit int64) *budgets.Budget { return n.ledger.Add(budgets.New(name, "units", limit)) }
	n.tracker = segments.NewTracker(budget("registrations", 64), budget("registered bytes", 1<<30), nil)
	n.admission = control.Admission{Gate: lanes.NewGate(), Handlers: budget("handlers", def(&s.handlers, 4)), Queue: budget("queue", 4)}
	n.slots = budget("remote staging slots", int64(s.slots))
	n.lane = &lanes.Lane{
		Loop: n.loop("lane", false), Policy: &n.policy, Tracker: n.tracker, Streams: budget("streams", 8), Sessions: budget("sessions", def(&s.sessions, 8)),
	}
	n.cold = n.loop("cold", true)
	n.gpus(s)
	n.pool, n.server = control.NewPool(n.lane), control.NewServer(n.lane, &n.admission)
	payload := tcp.NewService(n.server)
	if !s.bare {
		n.service = NewService(n.server, payload, Config{Slots: n.slots, PeerSlots: s.peerSlots})
	}
	if s.rdma {
		n.connect(s)
	}
	d, address, err := n.lane.Kernel().Listen(netip.AddrPortFrom(host, 0), reactor.SocketOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	n.address, n.listener = address, control.NewListener(n.lane, d, []*control.Server{n.server})
	n.listener.Start()
	if n.device != nil {
		n.device.rails.Start()
	}
	r.nodes = append(r.nodes, n)
	return n
}

// loop makes a loop; one that rests is only to be reached by letters.
func (n *node) loop(name string, rests bool) *reactor.Loop {
	kernel := n.process.Kernel()
	loop := reactor.NewLoop(kernel, reactor.Options{Name: name, Mode: reactor.Manual})
	if err := loop.Bind(); err != nil {
		n.t.Fatal(err)
	}
	turn := func() bool { defer n.Dig(n.t); return loop.Turn(reactor.Forever) }
	if rests {
		n.tasks = append(n.tasks, n.world.AddFor(turn, kernel))
	} else {
		n.tasks = append(n.tasks, n.world.Add(turn))
	}
	return loop
}

func (n *node) gpus(s setup) {
	w := n.world
	o := simcuda.Options{Now: func() time.Duration { return time.Duration(w.Now()) }, Sleep: w.Advance, Memory: 64 << 20}
	if !s.still {
		o.Later = w.Later
	}
	o.Violation = func(err error) { n.t.Error(err) }
	o.Signal = func(*simcuda.Driver) (int, func(), func(), func(), error) {
		d, set, err := n.process.Signal()
		end := func() {
			if open := n.process.Kernels(); len(open) > 0 {
				_ = open[0].Close(d)
			}
		}
		return int(d), set, func() { n.process.Unsignal(d) }, end, err
	}
	n.driver = simcuda.New(n.seed, o)
	n.t.Cleanup(n.driver.Kill)
	if s.slow > 0 {
		n.driver.Plan(simcuda.Fault{Kind: simcuda.SlowCopy, By: s.slow, Count: 1 << 20})
	}
	platform, err := cuda.Open(n.driver)
	if err != nil {
		n.t.Fatal(err)
	}
	n.platform = platform
	n.stage = staging.New(n.lane, staging.Config{
		ChunkBytes: slotBytes, Chunks: 2, Slots: s.slots, Budget: n.ledger.Add(budgets.New("pinned staging", "bytes", 1<<30)), Cold: n.cold,
	})
	n.lane.Staging = n.stage
}

// memory is a registered range of its own memory object.
type memory struct {
	*segments.Registration
	node    *node
	backing *segments.Backing
	device  *cuda.Memory // nil: host memory
}

// register makes length bytes on a GPU or in host memory, with a pattern, known to peers with permission p.
func (n *node) register(device bool, length uint64, p netproto.Permission, seed byte) *memory {
	n.t.Helper()
	m := &memory{node: n}
	var err error
	if device {
		if m.device, err = n.platform.Allocate(len(n.memories)%2, length); err == nil {
			m.backing, err = segments.AdoptDevice(uint64(m.device.Pointer()), length, m.device, nil)
			n.driver.Poke(m.device.Pointer(), pattern(length, seed))
		}
		if err == nil {
			err = n.stage.Prepare(m.device)
		}
	} else if m.backing, err = segments.Map(length); err == nil {
		copy(m.backing.Bytes(), pattern(length, seed))
	}
	if err != nil {
		n.t.Fatal(err)
	}
	list, err := n.tracker.Register([]segments.Spec{{Backing: m.backing, Length: length, Permission: p}})
	if err != nil {
		n.t.Fatal(err)
	}
	m.Registration = list[0]
	n.reach(m)
	n.memories = append(n.memories, m)
	return m
}

func (m *memory) set(b []byte) {
	if m.device != nil {
		m.node.driver.Poke(m.device.Pointer(), b)
		return
	}
	copy(m.backing.Bytes(), b)
}

func (m *memory) bytes() []byte {
	if m.device == nil {
		return bytes.Clone(m.backing.Bytes()[:m.Length()])
	}
	b := make([]byte, m.Length())
	m.node.driver.Peek(m.device.Pointer(), b)
	return b
}

func pattern(length uint64, seed byte) []byte {
	b := make([]byte, length)
	for i := range b {
		b[i] = byte(i*7+i>>8)&0x3f | seed<<6
	}
	return b
}

// channel makes a channel to another node.
func (n *node) channel(to *node) *control.Channel {
	c := n.pool.NewChannel([]netip.AddrPort{to.address})
	n.channels = append(n.channels, c)
	return c
}

// attempt is one transfer of a test.
type attempt struct {
	Transfer
	done     int
	node, to *node
}

// ask prepares a transfer of length bytes between two ranges.
func (n *node) ask(d lanes.Direction, to *node, local, remote *memory, localAt, remoteAt, length uint64, slots int) *attempt {
	a := &attempt{}
	a.Direction, a.Local, a.LocalOffset = d, local.Registration, localAt
	a.Region, a.Offset, a.Length, a.Slots = remote.ID(), remoteAt, length, uint8(slots)
	a.Epoch, a.Requester, a.Deadline = to.policy.Epoch, n.policy.Epoch, n.lane.Kernel().Now().After(time.Minute)
	a.Done = func(t *Transfer) {
		a.done++
		if t.Outcome.Drained {
			t.Local.Return()
		}
		n.Inter(t, sentinel)
	}
	a.node, a.to = n, to
	return a
}

func (a *attempt) start(c *control.Channel) *attempt {
	if !a.Local.Lend() {
		panic("the local registration is retired")
	}
	if a.node.device != nil {
		a.Rails, a.Peer = a.node.device.rails, a.node.peer(c, a.to)
	}
	a.Start(c)
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

func fault(t testing.TB, o lanes.Outcome) *lanes.Fault {
	t.Helper()
	f, ok := o.Err.(*lanes.Fault)
	if !ok {
		t.Fatalf("outcome %+v has no fault", o)
	}
	return f
}

// raw is one question that a test asks by itself.
type raw struct {
	question
	done bool
}

// say asks and waits; the answer is the source's status.
func (n *node) say(c *control.Channel, r netproto.Request, want int, body []byte) netproto.Status {
	n.t.Helper()
	q := n.whisper(c, r, want, body)
	n.until("an answer", func() bool { return q.done })
	switch {
	case q.fault == nil:
		return netproto.StatusSuccess
	case q.fault.Cause == lanes.Refused:
		return q.fault.Status
	}
	n.t.Fatalf("%v: %v", r.Operation, q.fault)
	return 0
}

func (n *node) whisper(c *control.Channel, r netproto.Request, want int, body []byte) *raw {
	q := &raw{}
	q.answered = func() { q.done = true }
	q.ask(c, r, "test", want, n.lane.Kernel().Now().After(time.Minute), func(b []byte) []byte { return append(b, body...) })
	return q
}

// pinned pins slots by hand.
func (n *node) pinned(c *control.Channel, to *node, m *memory, slots uint8, d netproto.PinDirection, generation uint64) netproto.PinName {
	n.t.Helper()
	asked := netproto.Pin{Requester: n.policy.Epoch, Generation: generation, Slots: slots, Direction: d}
	r := netproto.Request{Operation: netproto.OperationPin, Epoch: to.policy.Epoch, Region: m.ID(), Length: m.Length()}
	q := n.whisper(c, r, netproto.PinnedSize, netproto.AppendPin(nil, asked))
	n.until("a pin", func() bool { return q.done })
	if q.fault != nil {
		n.t.Fatal(q.fault)
	}
	p, err := netproto.DecodePinned(asked, q.payload[:])
	if err != nil {
		n.t.Fatal(err)
	}
	return netproto.PinName{Requester: n.policy.Epoch, Generation: generation, Number: p.Number}
}

// pin asks for slots by hand and says what the source answers.
func (n *node) pin(c *control.Channel, to *node, m *memory, slots uint8, d netproto.PinDirection, generation uint64) netproto.Status {
	n.t.Helper()
	r := netproto.Request{Operation: netproto.OperationPin, Epoch: to.policy.Epoch, Region: m.ID(), Length: m.Length()}
	return n.say(c, r, netproto.PinnedSize, netproto.AppendPin(nil, netproto.Pin{Requester: n.policy.Epoch, Generation: generation, Slots: slots, Direction: d}))
}

// order delegates copies by hand.
func (n *node) order(c *control.Channel, to *node, name netproto.PinName, copies ...netproto.DelegateCopy) netproto.Status {
	n.t.Helper()
	return n.say(c, netproto.Request{Operation: netproto.OperationDelegate, Epoch: to.policy.Epoch}, 0, netproto.AppendDelegate(nil, &netproto.Delegate{Pin: name, Copies: copies}))
}

// unpin gives slots back by hand.
func (n *node) unpin(c *control.Channel, to *node, name netproto.PinName) netproto.Status {
	n.t.Helper()
	return n.say(c, netproto.Request{Operation: netproto.OperationUnpin, Epoch: to.policy.Epoch}, 0, netproto.AppendUnpin(nil, name))
}

// load moves bytes between local memory and a slot by hand.
func (n *node) load(c *control.Channel, to *node, d lanes.Direction, local *memory, name netproto.PinName, slot uint8, offset, length uint64) lanes.Outcome {
	n.t.Helper()
	done := false
	x := &tcp.Transfer{
		Direction: d, Local: local.Registration, Region: netproto.SlotRegion(name.Number, slot), Offset: offset, Length: length,
		Epoch: to.policy.Epoch, Deadline: n.lane.Kernel().Now().After(time.Minute), Done: func(*tcp.Transfer) { done = true },
	}
	x.Start(c)
	n.until("payload", func() bool { return done })
	return x.Outcome
}

// kill ends the node's process: its streams are reset, and its GPUs gone.
func (n *node) kill() {
	n.t.Helper()
	n.dead = true
	for _, task := range n.tasks {
		task.Remove()
	}
	n.driver.Kill()
	if n.device != nil {
		n.device.native.Kill()
	}
	n.process.Kill()
}

// bury takes the host memory of a killed process back.
func (n *node) bury() {
	n.tracker.RetireAll()
	for _, m := range n.memories {
		for m.Loans() > 0 {
			m.Return()
		}
		m.backing.Drop()
	}
	n.lane.Arena.Close()
}

// finish closes everything and checks that nothing is left: charges, slots, buffers, leases, native objects.
func (r *rig) finish() {
	r.t.Helper()
	defer func() { r.sound = !r.t.Failed() }()
	for _, n := range r.nodes {
		if n.dead {
			continue
		}
		left := n.close()
		r.until("closing a node", func() bool { return *left == 0 })
	}
	for _, n := range r.nodes {
		if n.dead {
			n.bury()
			continue
		}
		n.closeTransport()
		closed := false
		n.stage.Close(func() { closed = true })
		r.until("closing a stage", func() bool { return closed })
		r.pass(time.Second) // late callbacks
		n.check()
	}
	for _, n := range r.nodes {
		if n.dead || n.lasting { // the kernel takes back what a killed process has; what is retained stays mapped
			return
		}
	}
	r.leaks()
}

// close ends source, listener, sessions and channels, as the root does; the answer counts what has not ended.
func (n *node) close() *int {
	n.t.Helper()
	n.admission.Fence()
	if n.service != nil {
		n.service.Fence()
	}
	n.until("a quiet source", func() bool { return n.admission.Gate.Inside() == 0 })
	n.closeRails()
	left := 2 + len(n.channels)
	one := func() { left-- }
	n.listener.Close(one)
	n.server.Close(one)
	for _, c := range n.channels {
		c.Close(one)
	}
	return &left
}

// check looks for leaks.
func (n *node) check() {
	n.t.Helper()
	var stats Stats
	if n.service != nil {
		stats = n.service.Stats()
	}
	if stats.Pins != 0 || stats.Slots != stats.Lost || stats.Slots != n.slots.Used() || n.service != nil && len(n.service.pins) != 0 {
		n.t.Errorf("pins are left: %+v, charged %d", stats, n.slots.Used())
	}
	n.tracker.RetireAll()
	for _, m := range n.memories {
		if !m.backing.Quiet() && !n.lasting {
			n.t.Errorf("a lease is left on %v", m.backing)
		}
		m.backing.Drop()
		if m.device != nil {
			if err := m.device.Drop(); err != nil && !n.lasting {
				n.t.Error(err)
			}
		}
	}
	if buffers, size, headers := n.lane.Arena.Lent(); buffers != 0 || size != 0 || headers != 0 {
		n.t.Errorf("the arena has lent %d buffers, %d bytes, %d headers", buffers, size, headers)
	}
	n.lane.Arena.Close()
	for _, loop := range []*reactor.Loop{n.lane.Loop, n.cold} {
		if left := loop.Outstanding(); left != 0 {
			n.t.Errorf("%d operations are outstanding", left)
		}
		if err := loop.Close(); err != nil {
			n.t.Error(err)
		}
	}
	if n.lasting {
		return
	}
	for _, owed := range n.ledger.Owed() {
		n.t.Errorf("not repaid: %+v", owed)
	}
	if got := n.stage.Stats(); got.PinnedBytes != 0 || got.InUse != 0 || got.Retained != 0 || got.Flying != 0 {
		n.t.Errorf("left: %+v", got)
	}
	if live := n.driver.Live(); live != (simcuda.Live{}) {
		n.t.Errorf("native objects are left: %+v", live)
	}
	if err := n.platform.Close(); err != nil {
		n.t.Error(err)
	}
}
