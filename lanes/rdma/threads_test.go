package rdma

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/epoll"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// threaded is one site whose lanes and cold loop have threads of their own, over real sockets and event descriptors; only
// the devices are the twin's.
type threaded struct {
	t         *testing.T
	policy    lanes.Policy
	ledger    budgets.Ledger
	transport *Transport
	cold      *reactor.Loop
	lanes     []*siteLane
	admission control.Admission
	listener  *control.Listener
	address   netip.AddrPort
	ran       sync.WaitGroup
}

// eventDescriptor is an eventfd for the twin.
func eventDescriptor(*simverbs.Process) (int, func(), func(), func(), error) {
	d, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	one, all := [8]byte{1}, [8]byte{}
	return d, func() { _, _ = unix.Write(d, one[:]) }, func() { _, _ = unix.Read(d, all[:]) }, func() { _ = unix.Close(d) }, err
}

func startThreaded(t *testing.T, native *simverbs.Process, number byte, mode Progress) *threaded {
	s := &threaded{t: t}
	s.policy = lanes.Policy{Epoch: netproto.Epoch{number, 0xe1}, SourceTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	budget := func(name string, limit int64) *budgets.Budget { return s.ledger.Add(budgets.New(name, "units", limit)) }
	s.admission = control.Admission{Gate: lanes.NewGate(), Handlers: budget("handlers", 8), Queue: budget("queue", 8)}
	s.cold = s.loop("cold")
	var err error
	s.transport, err = Open(native, Config{
		Progress: mode, Width: 2, Epoch: s.policy.Epoch, Cold: s.cold, MonitorInterval: 5 * time.Millisecond,
		Random: func(b []byte) {
			for i := range b {
				b[i] = byte(rand.Uint32())
			}
		},
		Budgets: Budgets{
			Endpoints: budget("endpoints", 8), Grants: budget("grants", 8), DirectBytes: budget("direct", 1<<20), StagingBytes: budget("staging", 1<<20),
			CachedRegions: budget("regions", 64), CachedBytes: budget("region bytes", 64<<20),
		},
	})
	must(t, err)
	var servers []*control.Server
	for i := range 2 {
		loop := s.loop(fmt.Sprint("lane ", i))
		l := &siteLane{Lane: &lanes.Lane{Loop: loop, Index: i, Policy: &s.policy, Streams: budget(fmt.Sprint("streams ", i), 8), Sessions: budget(fmt.Sprint("sessions ", i), 8)}}
		l.pool, l.server = control.NewPool(l.Lane), control.NewServer(l.Lane, &s.admission)
		l.rails, err = s.transport.Rails(l.Lane)
		must(t, err)
		l.server.Handle(netproto.OperationRDMAConnect, l.rails.ConnectService())
		l.server.Handle(netproto.OperationRDMADisconnect, l.rails.DisconnectService())
		s.lanes, servers = append(s.lanes, l), append(servers, l.server)
	}
	var descriptor reactor.Descriptor
	descriptor, s.address, err = s.lanes[0].Kernel().Listen(netip.MustParseAddrPort("127.0.0.1:0"), reactor.SocketOptions{})
	must(t, err)
	s.listener = control.NewListener(s.lanes[0].Lane, descriptor, servers)
	for _, loop := range []*reactor.Loop{s.cold, s.lanes[0].Loop, s.lanes[1].Loop} {
		s.ran.Go(func() {
			if err := loop.Run(); err != nil {
				t.Error(err)
			}
		})
	}
	s.on(0, s.listener.Start)
	for i := range s.lanes {
		s.on(i, s.lanes[i].rails.Start)
	}
	return s
}

func (s *threaded) loop(name string) *reactor.Loop {
	k, err := epoll.New(epoll.Options{})
	must(s.t, err)
	return reactor.NewLoop(k, reactor.Options{Name: name, Mode: reactor.EventDriven})
}

type errandTo struct {
	reactor.Letter
	f    func()
	done chan struct{}
}

func (e *errandTo) Receive(*reactor.Letter, reactor.Instant) { e.f(); close(e.done) }

// on runs f on a lane and waits for it.
func (s *threaded) on(lane int, f func()) {
	e := &errandTo{f: f, done: make(chan struct{})}
	if err := s.lanes[lane].Post(&e.Letter, e); err != nil {
		s.t.Error(err)
		return
	}
	<-e.done
}

// waited is a user that says on a channel what it is told.
type waited struct {
	claim    Claim
	answered chan error
	quiet    chan bool
}

func (w *waited) Lost(*Connection, error) {}
func (w *waited) Quiet(_ *Connection, proven bool) {
	w.claim.Hold.Release()
	w.quiet <- proven
}

// claims asks for connections on a lane, again and again, and fails each second one.
func (s *threaded) claims(lane int, p *Peer, rounds int, other *threaded) {
	for round := range rounds {
		w := &waited{answered: make(chan error, 1), quiet: make(chan bool, 1)}
		s.on(lane, func() {
			p.Paths = other.transport.Paths().Paths // the segment is described anew
			r := s.lanes[lane].rails
			path, err := r.Choose(p.Paths, &Tiers{})
			if err != nil {
				w.answered <- err
				return
			}
			direction := lanes.Read + lanes.Direction(round/2%2)
			w.claim = Claim{Peer: p, Path: path, Direction: direction, Deadline: s.lanes[lane].Now().After(5 * time.Second), User: w, Answered: func(q *Claim) { w.answered <- q.Err }}
			r.Claim(&w.claim)
		})
		if err := <-w.answered; err != nil {
			continue // the port was down, or the places were in use
		}
		failed := make(chan bool, 1)
		s.on(lane, func() {
			c := w.claim.Hold.Connection
			if c != nil && round%2 == 0 {
				c.Fail(errors.New("planned"), 0)
				failed <- true
				return
			}
			if c != nil && c.Open() {
				w.claim.Hold.Release()
				failed <- false
				return
			}
			failed <- true
		})
		if <-failed && !<-w.quiet {
			s.t.Error("an end was not proven")
		}
	}
}

func (s *threaded) close() {
	for i := len(s.lanes) - 1; i >= 0; i-- {
		closed := make(chan struct{})
		s.on(i, func() { s.lanes[i].rails.Close(func() { close(closed) }) })
		<-closed
	}
}

func (s *threaded) end() {
	s.admission.Fence()
	var left sync.WaitGroup
	left.Add(1)
	s.on(0, func() { s.listener.Close(left.Done) })
	for i, l := range s.lanes {
		left.Add(1 + len(l.channels))
		s.on(i, func() {
			l.server.Close(left.Done)
			for _, c := range l.channels {
				c.Close(left.Done)
			}
		})
	}
	left.Wait()
	closed := make(chan error, 1)
	s.on(0, func() { s.transport.Close(func(err error) { closed <- err }) })
	if err := <-closed; err != nil {
		s.t.Error(err)
	}
	for _, loop := range []*reactor.Loop{s.lanes[0].Loop, s.lanes[1].Loop, s.cold} {
		loop.Stop()
	}
	s.ran.Wait()
	for _, l := range s.lanes {
		l.Arena.Close()
		must(s.t, l.Loop.Close())
	}
	must(s.t, s.cold.Close())
	for _, owed := range s.ledger.Owed() {
		s.t.Errorf("not repaid: %+v", owed)
	}
}

// Lanes, cold loops and registering goroutines on threads of their own, while a port goes down and up.
//
// proves
func TestLanesColdLoopAndRegistrationsOnThreadsOfTheirOwn(t *testing.T) {
	for _, mode := range []Progress{Polling, EventDriven} {
		began := time.Now()
		f := simverbs.NewFabric(seedOf(t), simverbs.Options{Now: func() time.Duration { return time.Since(began) }, Signal: eventDescriptor, Violation: func(err error) { t.Error(err) }})
		stop, pumped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(pumped)
			for {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Microsecond):
					f.Pump()
				}
			}
		}()
		a, b := startThreaded(t, f.Host("a").Process("a"), 1, mode), startThreaded(t, f.Host("b").Process("b"), 2, mode)
		var work sync.WaitGroup
		for _, way := range [][2]*threaded{{a, b}, {b, a}} {
			for lane := range way[0].lanes {
				l := way[0].lanes[lane]
				c := l.pool.NewChannel([]netip.AddrPort{way[1].address})
				l.channels = append(l.channels, c)
				p := way[1].transport.Paths()
				peer := &Peer{Channel: c, Epoch: way[1].policy.Epoch, Paths: p.Paths, PairsMax: int(p.PairsMax)}
				work.Go(func() { way[0].claims(lane, peer, 20, way[1]) })
			}
			work.Go(func() { way[0].registrations(20) })
		}
		work.Go(func() {
			for range 3 {
				port := f.Host("a").Device("mlx5_0").Port(1)
				port.Down()
				time.Sleep(20 * time.Millisecond)
				port.Up()
				time.Sleep(20 * time.Millisecond)
			}
		})
		work.Wait()
		for _, s := range []*threaded{a, b} {
			if got := s.transport.Stats(); got.Built < 5 || got.Accepted < 5 || got.MonitorTicks < 3 {
				t.Errorf("too little happened: %+v", got)
			}
		}
		if a.transport.Stats().RouteRecoveries == 0 {
			t.Error("the port never came back")
		}
		a.close()
		b.close()
		a.end()
		b.end()
		close(stop)
		<-pumped
		if left := f.Live(); len(left) > 0 {
			t.Errorf("native objects are left: %+v", left)
		}
	}
}

// registrations registers, lends and retires memory from a goroutine of its own.
func (s *threaded) registrations(rounds int) {
	for range rounds {
		m, err := segments.Map(64 << 10)
		must(s.t, err)
		g, err := s.transport.Register(m.Address(), m.Length(), true)
		if err != nil {
			s.t.Error(err)
			return
		}
		lent := g.Lend()
		done := make(chan error, 1)
		g.Retire(func(err error) { done <- err })
		if lent {
			g.Return()
		}
		if err := <-done; err != nil {
			s.t.Error(err)
		}
		m.Drop()
	}
}
