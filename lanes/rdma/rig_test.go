package rdma

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
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
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// patience is how long a test waits, on the virtual clock.
const patience = 20 * time.Minute

// rig is a simulated world with a fabric: sites that are engines as far as this room goes. Everything runs on the test's
// goroutine.
type rig struct {
	graves.Graves[Transfer]

	t         testing.TB
	world     *simkernel.World
	fabric    *simverbs.Fabric
	sites     []*site
	processes map[string]*simkernel.Process
	gpus      map[string]*gpus // by process
}

// siteOptions shape one site. Zero values choose the defaults named with each field.
type siteOptions struct {
	lanes     int // 0: 1
	endpoints int64
	config    Config // its budgets, epoch, random and cold loop are the rig's
	devices   []simverbs.DeviceSpec
	calls     func(verbs.Calls) verbs.Calls // stands between the owners and the twin; nil: nothing does
}

// site is one engine's lower half.
type site struct {
	rig       *rig
	name      string
	host      netip.Addr
	process   *simkernel.Process
	native    *simverbs.Process
	policy    lanes.Policy
	ledger    budgets.Ledger
	cold      *reactor.Loop
	lanes     []*siteLane
	admission control.Admission
	transport *Transport
	address   netip.AddrPort
	listener  *control.Listener
	changes   int // calls of Config.Changed
	registers []*Registered
	dead      bool // true exactly when the process was killed
}

// siteLane is one lane of a site.
type siteLane struct {
	*lanes.Lane
	pool     *control.Pool
	server   *control.Server
	rails    *Rails
	channels []*control.Channel
}

// seedOf is a test's seed: from ORBITTE_SEED, or a new one. It prints how to replay.
func seedOf(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("ORBITTE_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("SEED=%d (replay: ORBITTE_SEED=%d go test -run '%s' ./lanes/rdma)", seed, seed, t.Name())
	return seed
}

func newRig(t testing.TB, p simverbs.Personality) *rig { return newRigWith(t, p, true) }

// newRigWith makes a rig. A fabric that is not prompt goes on only in calls and when the clock is looked at; it then
// allocates nothing.
func newRigWith(t testing.TB, p simverbs.Personality, prompt bool) *rig {
	t.Helper()
	seed := seedOf(t)
	w := simkernel.NewWorld(seed, simkernel.WorldOptions{})
	r := &rig{t: t, world: w, processes: map[string]*simkernel.Process{}}
	later := w.Later
	if !prompt {
		later = nil
	}
	r.fabric = simverbs.NewFabric(seed, simverbs.Options{
		Personality: p, Peer: r.peer, Export: r.export,
		Now:       func() time.Duration { return time.Duration(w.Now()) },
		Later:     later,
		Sleep:     w.Advance,
		Violation: func(err error) { t.Error(err) },
		Signal: func(p *simverbs.Process) (int, func(), func(), func(), error) {
			process := r.processes[p.Name()]
			d, signal, err := process.Signal()
			end := func() {
				if r.killed(p.Name()) {
					return
				}
				if err := process.Kernels()[0].Close(d); err != nil {
					t.Errorf("closing a descriptor of %s: %v", p.Name(), err)
				}
			}
			return int(d), signal, func() { process.Unsignal(d) }, end, err
		},
	})
	r.beat()
	return r
}

// beat lets the clock go in small steps: a lane that polls does not tell the world when its next timer is due.
func (r *rig) beat() { r.world.Later(500*time.Millisecond, r.beat) }

// killed is true exactly when the site's process was killed.
func (r *rig) killed(name string) bool {
	for _, s := range r.sites {
		if s.name == name && s.dead {
			return true
		}
	}
	return false
}

// site starts a site with its transport, rails and services.
func (r *rig) site(name string, o siteOptions) *site {
	r.t.Helper()
	s := r.host(name, o)
	s.open(o)
	return s
}

// host prepares a site without its transport.
func (r *rig) host(name string, o siteOptions) *site {
	r.t.Helper()
	number := byte(len(r.sites) + 1)
	host := netip.AddrFrom4([4]byte{10, 0, 0, number})
	s := &site{rig: r, name: name, host: host, process: r.world.Process(name, host)}
	r.processes[name] = s.process
	s.native = r.fabric.Host(name, o.devices...).Process(name)
	s.policy = lanes.Policy{Epoch: netproto.Epoch{number, 0xe0}, PayloadBytesMax: 8 << 20, SourceTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	s.admission = control.Admission{Gate: lanes.NewGate(), Handlers: s.budget("handlers", 4), Queue: s.budget("queue", 4)}
	s.cold = r.loop(s, "cold")
	for i := range max(1, o.lanes) {
		loop := r.loop(s, "lane "+strconv.Itoa(i))
		lane := &lanes.Lane{Loop: loop, Index: i, Policy: &s.policy, Streams: s.budget(fmt.Sprintf("streams %d", i), 8), Sessions: s.budget(fmt.Sprintf("sessions %d", i), 8)}
		l := &siteLane{Lane: lane, pool: control.NewPool(lane)}
		l.server = control.NewServer(lane, &s.admission)
		s.lanes = append(s.lanes, l)
	}
	r.sites = append(r.sites, s)
	return s
}

func (r *rig) loop(s *site, name string) *reactor.Loop {
	kernel := s.process.Kernel()
	loop := reactor.NewLoop(kernel, reactor.Options{Name: name, Mode: reactor.Manual})
	must(r.t, loop.Bind())
	r.world.AddFor(func() bool { defer r.Dig(r.t); return !s.dead && loop.Turn(reactor.Forever) }, kernel)
	return loop
}

func (s *site) budget(name string, limit int64) *budgets.Budget {
	return s.ledger.Add(budgets.New(name, "units", limit))
}

// settings completes a configuration for the site.
func (s *site) settings(o siteOptions) Config {
	c := o.config
	if o.endpoints == 0 {
		o.endpoints = EndpointsDefault
	}
	c.Budgets = Budgets{
		Endpoints: s.budget("endpoints", o.endpoints), Grants: s.budget("grants", GrantsDefault),
		DirectBytes: s.budget("direct bytes", DirectBytesDefault), StagingBytes: s.budget("staging bytes", StagingBytesDefault),
		CachedRegions: s.budget("cached regions", CachedRegionsDefault), CachedBytes: s.budget("cached bytes", CachedBytesDefault),
	}
	c.Epoch, c.Cold = s.policy.Epoch, s.cold
	random := rand.New(rand.NewPCG(s.rig.fabric.Seed(), uint64(len(s.rig.sites))))
	c.Random = func(b []byte) {
		for i := range b {
			b[i] = byte(random.Uint32())
		}
	}
	c.Changed = func() { s.changes++ }
	return c
}

func (s *site) calls(o siteOptions) verbs.Calls {
	if o.calls != nil {
		return o.calls(s.native)
	}
	return s.native
}

func (s *site) open(o siteOptions) {
	t := s.rig.t
	t.Helper()
	var err error
	s.transport, err = Open(s.calls(o), s.settings(o))
	must(t, err)
	for _, l := range s.lanes {
		l.rails, err = s.transport.Rails(l.Lane)
		must(t, err)
		l.server.Handle(netproto.OperationRDMAConnect, l.rails.ConnectService())
		l.server.Handle(netproto.OperationRDMADisconnect, l.rails.DisconnectService())
	}
	s.listen()
	for _, l := range s.lanes {
		l.rails.Start()
	}
}

func (s *site) listen() {
	t := s.rig.t
	t.Helper()
	kernel := s.lanes[0].Kernel()
	descriptor, address, err := kernel.Listen(netip.AddrPortFrom(s.host, 0), reactor.SocketOptions{})
	must(t, err)
	s.address = address
	servers := make([]*control.Server, len(s.lanes))
	for i, l := range s.lanes {
		servers[i] = l.server
	}
	s.listener = control.NewListener(s.lanes[0].Lane, descriptor, servers)
	s.listener.Start()
}

// peer is what lane i of s knows of another site now.
func (s *site) peer(i int, to *site) *Peer {
	l := s.lanes[i]
	c := l.pool.NewChannel([]netip.AddrPort{to.address})
	l.channels = append(l.channels, c)
	p := to.transport.Paths()
	return &Peer{Channel: c, Epoch: to.policy.Epoch, Paths: p.Paths, PairsMax: int(p.PairsMax)}
}

// until steps the world.
func (r *rig) until(what string, done func() bool) {
	r.t.Helper()
	defer r.Dig(r.t)
	if err := r.world.RunUntil(func() bool { r.Dig(r.t); return done() }, r.world.Now().After(patience)); err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
}

// untilClosed is until for the end of a site's rails: it says what stands in their way.
func (r *rig) untilClosed(what string, s *site, done func() bool) {
	r.t.Helper()
	if err := r.world.RunUntil(done, r.world.Now().After(patience)); err != nil {
		for _, l := range s.lanes {
			for _, rail := range l.rails.rails {
				r.t.Logf("%s: pending %d, monitor %v, watch %v, broken %q, degraded %q", rail.Device.Name, l.rails.pending, s.transport.monitor.running(), rail.watch, rail.broken, rail.degraded)
				for _, c := range rail.connections {
					r.t.Logf("%s is %s with %d users, %d holds, its array %s", c, c.state, c.array.Users(), c.holds.n, c.array.State())
				}
			}
		}
		r.t.Fatalf("%s: %v", what, err)
	}
}

// pass lets time go by.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	over := false
	r.world.Later(d, func() { over = true })
	r.until("passing time", func() bool { return over })
}

// letterTo carries a function to a loop.
type letterTo struct {
	reactor.Letter
	f    func()
	done bool
}

func (l *letterTo) Receive(*reactor.Letter, reactor.Instant) { l.f(); l.done = true }

// on runs f on the loop, and waits for it.
func (r *rig) on(loop *reactor.Loop, f func()) {
	r.t.Helper()
	l := &letterTo{f: f}
	must(r.t, loop.Post(&l.Letter, l))
	r.until("a letter", func() bool { return l.done })
}

// close ends all sites in order and returns the reasons of those that had to retain something.
func (r *rig) close() (retained []error) {
	r.t.Helper()
	for _, s := range r.sites {
		s.closeRails()
	}
	for _, s := range r.sites {
		s.closeStreams()
	}
	for _, s := range r.sites {
		if s.transport == nil {
			continue
		}
		closed := false
		r.on(s.lanes[0].Loop, func() {
			s.transport.Close(func(err error) {
				closed = true
				if err != nil {
					retained = append(retained, err)
				}
			})
		})
		r.until("closing the transport of "+s.name, func() bool { return closed })
	}
	return retained
}

// finish ends all sites and checks that nothing is left.
func (r *rig) finish() {
	r.t.Helper()
	for _, err := range r.close() {
		r.t.Errorf("closing: %v", err)
	}
	for _, s := range r.sites {
		for _, owed := range s.ledger.Owed() {
			r.t.Errorf("%s: not repaid: %+v", s.name, owed)
		}
		if s.transport != nil && len(s.transport.Retained()) > 0 {
			r.t.Errorf("%s: retained: %v", s.name, s.transport.Retained())
		}
		if d := s.process.Descriptors(); d != 0 {
			r.t.Errorf("%s: %d descriptors are left", s.name, d)
		}
	}
	for _, left := range r.fabric.Live() {
		r.t.Errorf("native objects are left: %+v", left)
	}
	r.endLoops()
}

// endLoops closes the loops and checks the arenas.
func (r *rig) endLoops() {
	r.t.Helper()
	for _, s := range r.sites {
		for _, l := range s.lanes {
			if buffers, size, slots := l.Arena.Lent(); buffers != 0 || size != 0 || slots != 0 {
				r.t.Errorf("%s: the arena has lent %d buffers, %d bytes, %d slots", s.name, buffers, size, slots)
			}
			l.Arena.Close()
			if err := l.Loop.Close(); err != nil {
				r.t.Errorf("%s: %v", s.name, err)
			}
		}
		if err := s.cold.Close(); err != nil {
			r.t.Errorf("%s: %v", s.name, err)
		}
	}
}

func (s *site) closeRails() {
	s.rig.t.Helper()
	left := 0
	for _, l := range s.lanes {
		if l.rails != nil {
			left++
			s.rig.on(l.Loop, func() { l.rails.Close(func() { left-- }) })
		}
	}
	s.rig.untilClosed("closing the rails of "+s.name, s, func() bool { return left == 0 })
	for _, g := range s.registers {
		left++
		g.Retire(func(error) { left-- })
	}
	s.registers = nil
	s.rig.until("retiring the registrations of "+s.name, func() bool { return left == 0 })
}

func (s *site) closeStreams() {
	s.rig.t.Helper()
	s.admission.Fence()
	left := 0
	one := func() { left-- }
	if s.listener != nil {
		left++
		s.listener.Close(one)
	}
	for _, l := range s.lanes {
		left++
		s.rig.on(l.Loop, func() { l.server.Close(one) })
		for _, c := range l.channels {
			left++
			s.rig.on(l.Loop, func() { c.Close(one) })
		}
	}
	s.rig.until("closing the streams of "+s.name, func() bool { return left == 0 })
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// memory maps bytes that outlive the test's native objects.
func (r *rig) memory(n int) *segments.Backing {
	r.t.Helper()
	b, err := segments.Map(uint64(n))
	must(r.t, err)
	r.t.Cleanup(b.Drop)
	return b
}

// register registers memory at a site; it is retired when the rig ends.
func (s *site) register(b *segments.Backing, remote bool) *Registered {
	s.rig.t.Helper()
	g, err := s.transport.Register(b.Address(), b.Length(), remote)
	must(s.rig.t, err)
	s.registers = append(s.registers, g)
	return g
}

// holder is a user of a connection, and an owner of work on it, that writes down what it is told.
type holder struct {
	claim   Claim
	hold    Hold // of a source's user
	answers int
	lost    []error
	quiet   []bool
	reaped  []verbs.Reaped
	words   []uint64
	keep    bool // does not give its hold back when told Quiet
	onQuiet func(proven bool)
}

func (h *holder) Lost(_ *Connection, err error) { h.lost = append(h.lost, err) }

func (h *holder) Quiet(c *Connection, proven bool) {
	h.quiet = append(h.quiet, proven)
	if h.onQuiet != nil {
		h.onQuiet(proven)
	}
	if !h.keep {
		h.release()
	}
}

func (h *holder) release() {
	if h.claim.Hold.Connection != nil {
		h.claim.Hold.Release()
	} else {
		h.hold.Release()
	}
}

func (h *holder) Reaped(word uint64, c *verbs.Reaped) {
	h.words, h.reaped = append(h.words, word), append(h.reaped, *c)
}

// ask claims a connection on lane i of s, without waiting.
func (s *site) ask(i int, p *Peer, d lanes.Direction, change func(*Claim)) *holder {
	s.rig.t.Helper()
	h := &holder{}
	s.rig.on(s.lanes[i].Loop, func() {
		r := s.lanes[i].rails
		path, err := r.Choose(p.Paths, &Tiers{})
		if err != nil {
			h.answers, h.claim.Err = 1, err
			return
		}
		h.claim = Claim{Peer: p, Path: path, Direction: d, Deadline: reactor.Forever, User: h, Answered: func(*Claim) { h.answers++ }}
		if change != nil {
			change(&h.claim)
		}
		r.Claim(&h.claim)
	})
	return h
}

// claim claims a connection and waits for it.
func (s *site) claim(i int, p *Peer, d lanes.Direction) *holder {
	s.rig.t.Helper()
	h := s.ask(i, p, d, nil)
	s.rig.until("an answer to a claim", func() bool { return h.answers > 0 })
	return h
}

// source finds the other end of a requester's connection, on whatever lane it is.
func (s *site) source(c *Connection) *Connection {
	for _, l := range s.lanes {
		if found := l.rails.Find(c.Own, c.Other); found != nil {
			return found
		}
	}
	return nil
}
