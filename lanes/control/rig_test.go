package control

import (
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
)

var (
	nodeHost   = netip.MustParseAddr("10.0.0.1")
	otherHost  = netip.MustParseAddr("10.0.0.2")
	scriptHost = netip.MustParseAddr("10.0.0.9")

	epoch      = netproto.Epoch{0xaa, 1, 2, 3}
	otherEpoch = netproto.Epoch{0xbb}
)

const (
	patience = 20 * time.Minute // virtual
	soon     = 10 * time.Millisecond
)

// rig is a simulated world with nodes of one lane, and scripted peers that speak raw bytes.
type rig struct {
	t     testing.TB
	world *simkernel.World
	loop  *reactor.Loop // of the scripts
	nodes []*node
	wires []*wire
}

func newRig(t testing.TB, seed uint64) *rig { return rigWith(t, seed, simkernel.WorldOptions{}) }

func rigWith(t testing.TB, seed uint64, o simkernel.WorldOptions) *rig {
	count, size := segments.Mappings()
	t.Cleanup(func() {
		if c, s := segments.Mappings(); c != count || s != size {
			t.Errorf("%d mappings with %d bytes at the start, %d with %d at the end", count, size, c, s)
		}
	})
	r := &rig{t: t, world: simkernel.NewWorld(seed, o)}
	r.loop = reactor.NewLoop(r.world.Process("script", scriptHost).Kernel(), reactor.Options{Name: "script", Mode: reactor.Manual})
	r.world.Add(func() bool { return r.loop.Turn(reactor.Forever) })
	return r
}

func (r *rig) until(what string, done func() bool) {
	r.t.Helper()
	if err := r.world.RunUntil(done, r.world.Now().After(patience)); err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
}

func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	over := false
	r.world.Later(d, func() { over = true })
	r.until("passing time", func() bool { return over })
}

// node is one lane with pool, server and listener.
type node struct {
	rig        *rig
	process    *simkernel.Process
	policy     lanes.Policy
	lane       *lanes.Lane
	pool       *Pool
	server     *Server
	listener   *Listener
	address    netip.AddrPort
	descriptor reactor.Descriptor // of the listener
	admission  Admission
	inbox      *Inbox
	described  netproto.Descriptor
	ledger     budgets.Ledger
	channels   []*Channel
}

func (r *rig) node(host netip.Addr, streams int64) *node {
	r.t.Helper()
	n := &node{rig: r, process: r.world.Process(host.String(), host)}
	n.policy = lanes.Policy{
		Epoch: epoch, PayloadBytesMax: 8 << 20, NotificationBytesMax: 1 << 10, SourceTimeout: 5 * time.Second, IdleTimeout: time.Minute, TCPNotifications: true,
	}
	budget := func(name string, limit int64) *budgets.Budget { return n.ledger.Add(budgets.New(name, "units", limit)) }
	n.inbox = NewInbox(budget("notifications", 4), budget("notification bytes", 2<<10))
	n.admission = Admission{Gate: lanes.NewGate(), Handlers: budget("handlers", 4), Queue: budget("queue", 4)}
	kernel := n.process.Kernel()
	n.lane = &lanes.Lane{
		Loop: reactor.NewLoop(kernel, reactor.Options{Name: "lane", Mode: reactor.Manual}), Policy: &n.policy,
		Streams: budget("streams", streams), Sessions: budget("sessions", 8),
	}
	n.pool, n.server = NewPool(n.lane), NewServer(n.lane, &n.admission)
	notify := NewNotifyService(n.inbox)
	n.server.Handle(netproto.OperationNotify, notify)
	n.server.Handle(netproto.OperationControlNotify, notify)
	n.described = netproto.Descriptor{Capabilities: netproto.Capabilities{Bits: netproto.CapabilityTCP, TransferBytesMax: 8 << 20}}
	n.server.Handle(netproto.OperationDescribe, NewDescribeService(func(dst []byte) ([]byte, error) {
		return netproto.AppendDescriptor(dst, &n.described), n.described.Check()
	}))
	var err error
	if n.descriptor, n.address, err = kernel.Listen(netip.AddrPortFrom(host, 0), reactor.SocketOptions{}); err != nil {
		r.t.Fatal(err)
	}
	n.listener = NewListener(n.lane, n.descriptor, []*Server{n.server})
	if err := n.lane.Bind(); err != nil {
		r.t.Fatal(err)
	}
	n.listener.Start()
	r.world.Add(func() bool { return n.lane.Turn(reactor.Forever) })
	r.nodes = append(r.nodes, n)
	return n
}

func (n *node) channel(addresses ...netip.AddrPort) *Channel {
	c := n.pool.NewChannel(addresses)
	n.channels = append(n.channels, c)
	return c
}

func (n *node) soon() reactor.Instant { return n.rig.world.Now().After(time.Second) }

// finish closes everything and checks that nothing is left.
func (r *rig) finish() {
	r.t.Helper()
	for _, w := range r.wires {
		w.close()
	}
	for _, n := range r.nodes {
		n.close()
	}
	for _, n := range r.nodes {
		n.check()
	}
	if err := r.loop.Close(); err != nil {
		r.t.Error(err)
	}
}

func (n *node) close() {
	n.admission.Fence()
	left := 2
	one := func() { left-- }
	n.listener.Close(one)
	n.server.Close(one)
	for _, c := range n.channels {
		if c.closed == nil {
			left++
			c.Close(one)
		}
	}
	n.rig.until("closing a node", func() bool { return left == 0 })
}

func (n *node) check() {
	t := n.rig.t
	t.Helper()
	n.inbox.Drain()
	if buffers, size, slots := n.lane.Arena.Lent(); buffers != 0 || size != 0 || slots != 0 {
		t.Errorf("the arena has lent %d buffers, %d bytes, %d slots", buffers, size, slots)
	}
	n.lane.Arena.Close()
	for _, owed := range n.ledger.Owed() {
		t.Errorf("not repaid: %+v", owed)
	}
	if left := n.lane.Outstanding(); left != 0 {
		t.Errorf("%d operations are outstanding", left)
	}
	if d := n.process.Descriptors(); d != 0 {
		t.Errorf("%d descriptors are left", d)
	}
	if len(n.pool.waiting) != 0 || n.pool.oldest != nil || n.pool.newest != nil {
		t.Error("the pool still lists channels")
	}
	if err := n.lane.Loop.Close(); err != nil {
		t.Error(err)
	}
}

// wire is a scripted peer's socket: a connection, or a listener.
type wire struct {
	rig        *rig
	descriptor reactor.Descriptor
	address    netip.AddrPort // of a listener
	event      reactor.Event
	answered   bool
	dead       bool
}

// Complete (reactor.Handler).
func (w *wire) Complete(e *reactor.Event) { w.event, w.answered = *e, true }

func (w *wire) do(op reactor.Operation) reactor.Event {
	w.rig.t.Helper()
	op.Descriptor, w.answered = w.descriptor, false
	w.rig.loop.Submit(op, w)
	w.rig.until("a scripted operation", func() bool { return w.answered })
	return w.event
}

func (r *rig) dial(to netip.AddrPort) *wire {
	r.t.Helper()
	d, err := r.loop.Kernel().Open(to, reactor.SocketOptions{})
	must(r.t, err)
	w := &wire{rig: r, descriptor: d}
	r.wires = append(r.wires, w)
	must(r.t, w.do(reactor.Operation{Kind: reactor.Connect, Address: to}).Err)
	return w
}

func (r *rig) listen() *wire {
	r.t.Helper()
	d, address, err := r.loop.Kernel().Listen(netip.AddrPortFrom(scriptHost, 0), reactor.SocketOptions{})
	must(r.t, err)
	w := &wire{rig: r, descriptor: d, address: address}
	r.wires = append(r.wires, w)
	return w
}

func (w *wire) accept() *wire {
	w.rig.t.Helper()
	e := w.do(reactor.Operation{Kind: reactor.Accept})
	must(w.rig.t, e.Err)
	accepted := &wire{rig: w.rig, descriptor: e.Descriptor}
	w.rig.wires = append(w.rig.wires, accepted)
	return accepted
}

func (w *wire) send(b []byte) error {
	w.rig.t.Helper()
	for len(b) > 0 {
		e := w.do(reactor.Operation{Kind: reactor.Send, Buffers: [2][]byte{b}})
		if e.Err != nil {
			return e.Err
		}
		b = b[e.N:]
	}
	return nil
}

func (w *wire) receive(n int) ([]byte, error) {
	w.rig.t.Helper()
	b := make([]byte, n)
	for got := 0; got < n; {
		e := w.do(reactor.Operation{Kind: reactor.Receive, Buffers: [2][]byte{b[got:]}})
		if e.Err != nil {
			return b[:got], e.Err
		}
		if got += e.N; e.N == 0 {
			return b[:got], io.EOF
		}
	}
	return b, nil
}

func (w *wire) request() netproto.Request {
	w.rig.t.Helper()
	b, err := w.receive(netproto.RequestSize)
	must(w.rig.t, err)
	q, err := netproto.DecodeRequest(b)
	must(w.rig.t, err)
	return q
}

func (w *wire) reply() netproto.Reply {
	w.rig.t.Helper()
	b, err := w.receive(netproto.ReplySize)
	must(w.rig.t, err)
	p, err := netproto.DecodeReply(b)
	must(w.rig.t, err)
	return p
}

// ends checks that the other side closes without another byte.
func (w *wire) ends() {
	w.rig.t.Helper()
	if b, err := w.receive(1); err == nil {
		w.rig.t.Fatalf("got byte %#x, want the end of the stream", b[0])
	}
}

func (w *wire) close() {
	if !w.dead {
		w.dead = true
		must(w.rig.t, w.rig.loop.Kernel().Close(w.descriptor))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func replyBytes(status netproto.Status, length uint64) []byte {
	return netproto.AppendReply(nil, netproto.Reply{Status: status, Epoch: epoch, Length: length})
}
