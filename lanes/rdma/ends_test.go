package rdma

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// guardBytes stand on each side of a registered range; nobody may change them.
const guardBytes = 4096

// ends is a rig with a requester and a source that have everything that transfers need.
type ends struct {
	*rig
	from, to *engine
	peer     *Peer
}

// engine is a site with registrations and the upper half on each lane.
type engine struct {
	*site
	tracker  *segments.Tracker
	memories []*memory
	services []*GrantService
}

// endsOptions shape both; o is each side's.
type endsOptions struct{ from, to siteOptions }

func newEnds(t testing.TB, p simverbs.Personality, o endsOptions) *ends {
	t.Helper()
	r := newRig(t, p)
	e := &ends{rig: r, from: r.engine("a", o.from), to: r.engine("b", o.to)}
	e.peer = e.from.knows(0, e.to)
	return e
}

// single is one device for each side.
func single(p simverbs.Personality) []simverbs.DeviceSpec {
	if p == simverbs.Hardware {
		return []simverbs.DeviceSpec{{Name: "mlx5_0"}}
	}
	return []simverbs.DeviceSpec{{Name: "rxe0"}}
}

func (r *rig) engine(name string, o siteOptions) *engine {
	r.t.Helper()
	e := &engine{site: r.site(name, o)}
	e.tracker = segments.NewTracker(e.budget("registrations", 64), e.budget("registered bytes", 1<<30), nil)
	for _, l := range e.lanes {
		l.Tracker = e.tracker
		e.services = append(e.services, l.rails.Serve(l.server))
		check := emptyService{l.Lane}
		l.server.Handle(netproto.OperationTCPRead, check)
		l.server.Handle(netproto.OperationTCPWrite, check)
	}
	return e
}

// knows is what lane i of an engine knows of another one.
func (e *engine) knows(i int, to *engine) *Peer {
	p := e.peer(i, to.site)
	paths := to.transport.Paths()
	p.SlicesMax, p.Host = int(paths.SlicesMax), paths.Host
	return p
}

// emptyService answers operations 1 and 2 for empty ranges, as the TCP transport does.
type emptyService struct{ lane *lanes.Lane }

type emptyFrame struct {
	session *control.Session
	ready   bool
}

func (s emptyService) Serve(session *control.Session, r netproto.Request) {
	want := netproto.RemoteRead
	if r.Operation == netproto.OperationTCPWrite {
		want = netproto.RemoteWrite
	}
	registration, err := s.lane.Tracker.Admit(r.Region, r.Offset, r.Length, want)
	if err != nil {
		session.Refuse(netproto.StatusOf(err))
		return
	}
	registration.Return()
	f := &emptyFrame{session: session}
	session.Take(f)
	status := netproto.StatusSuccess
	if want == netproto.RemoteWrite {
		f.ready, status = true, netproto.StatusReady
	}
	session.Send(session.Header(status, 0), nil)
}

func (f *emptyFrame) Sent(int) {
	if f.ready {
		f.ready = false
		f.session.Send(f.session.Header(netproto.StatusSuccess, 0), nil)
		return
	}
	f.session.Finish()
}
func (f *emptyFrame) Received(int)      {}
func (f *emptyFrame) Lost(control.Loss) {}

// memory is a registered range between two guards.
type memory struct {
	*segments.Registration
	backing *segments.Backing
	engine  *engine
}

func pattern(n uint64, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7+i>>8)&0x3f | seed<<6
	}
	return b
}

// memory registers n bytes with a pattern, on all devices.
func (e *engine) memory(n uint64, p netproto.Permission, seed byte) *memory {
	t := e.rig.t
	t.Helper()
	m := &memory{backing: e.rig.memory(int(n) + 2*guardBytes), engine: e}
	for i := range m.backing.Bytes() {
		m.backing.Bytes()[i] = 0xee
	}
	copy(m.backing.Bytes()[guardBytes:], pattern(n, seed))
	list, err := e.tracker.Register([]segments.Spec{{Backing: m.backing, Offset: guardBytes, Length: n, Permission: p}})
	must(t, err)
	m.Registration = list[0]
	g, err := e.transport.Register(m.Address(), n, p != netproto.LocalOnly)
	must(t, err)
	e.registers = append(e.registers, g)
	m.Attach(g)
	e.memories = append(e.memories, m)
	return m
}

func (m *memory) bytes() []byte { return m.backing.Bytes()[guardBytes:][:m.Length()] }

// holds is true exactly when the memory has the pattern.
func (m *memory) holds(seed byte) bool { return bytes.Equal(m.bytes(), pattern(m.Length(), seed)) }

// attempt is one transfer of a test.
type attempt struct {
	Transfer
	done int
	at   reactor.Instant
}

// transfer prepares one between all of the local memory and the remote range from offset on.
func (e *ends) transfer(d lanes.Direction, local, remote *memory, offset uint64) *attempt {
	a := &attempt{}
	a.Direction, a.Local, a.Region, a.Offset, a.Length = d, local.Registration, remote.ID(), offset, local.Length()
	a.Epoch, a.Deadline = e.to.policy.Epoch, e.world.Now().After(time.Second)
	a.Done = func(t *Transfer) {
		a.done++
		a.at = e.from.lanes[0].Now()
		if t.Outcome.Drained {
			t.Local.Return()
		}
		e.Inter(t, sentinel)
	}
	return a
}

// start runs it on the first lane.
func (e *ends) start(a *attempt) *attempt {
	e.t.Helper()
	e.on(e.from.lanes[0].Loop, func() { e.begin(a) })
	return a
}

// begin runs it; on the lane.
func (e *ends) begin(a *attempt) {
	if !a.Local.Lend() {
		panic("the local registration is retired")
	}
	a.Start(e.from.lanes[0].rails, e.peer)
}

func (e *ends) wait(a *attempt) lanes.Outcome {
	e.t.Helper()
	e.until("a transfer's end", func() bool { return a.done > 0 })
	if a.done != 1 {
		e.t.Fatalf("Done was called %d times", a.done)
	}
	return a.Outcome
}

// run starts a transfer and waits for it.
func (e *ends) run(a *attempt) lanes.Outcome {
	e.t.Helper()
	return e.wait(e.start(a))
}

// idle waits until no parent is left at the source.
func (e *ends) idle() {
	e.t.Helper()
	e.until("the source's grants", func() bool {
		for _, s := range e.to.services {
			if s.Parents() > 0 {
				return false
			}
		}
		return true
	})
}

// guards checks that nothing around the ranges was changed.
func (e *ends) guards() {
	e.t.Helper()
	for _, n := range []*engine{e.from, e.to} {
		for _, m := range n.memories {
			b := m.backing.Bytes()
			for _, g := range [][]byte{b[:guardBytes], b[guardBytes+m.Length():][:guardBytes]} {
				if bytes.Count(g, []byte{0xee}) != guardBytes {
					e.t.Errorf("%s: bytes beside a range were changed", n.name)
				}
			}
		}
	}
}

// quiet checks that nothing is lent, leased or charged by a transfer or a grant.
func (e *ends) quiet() {
	e.t.Helper()
	e.idle()
	for _, n := range []*engine{e.from, e.to} {
		for _, m := range n.memories {
			if g := Of(m.Registration); m.Loans() != 0 || g.Uses() != 0 || !m.backing.Quiet() {
				e.t.Errorf("%s: %d loans, %d users of the devices' registration, leases free %v", n.name, m.Loans(), g.Uses(), m.backing.Quiet())
			}
		}
		b := &n.transport.config.Budgets
		if b.Grants.Used()+b.DirectBytes.Used() != 0 {
			e.t.Errorf("%s: %d grants and %d direct bytes are charged", n.name, b.Grants.Used(), b.DirectBytes.Used())
		}
		for _, d := range n.transport.devices {
			if d.load.Load() != 0 {
				e.t.Errorf("%s: %d bytes are charged to %s", n.name, d.load.Load(), d.Name)
			}
		}
		for _, l := range n.lanes {
			for _, rail := range l.rails.rails {
				if rail.expected != 0 {
					e.t.Errorf("%s: %d receipts are still expected on %s: a polling lane would never rest", n.name, rail.expected, rail.Device.Name)
				}
			}
		}
		if left := n.transport.Residues(); len(left) != 0 {
			e.t.Errorf("%s: residues %+v", n.name, left)
		}
	}
}

// end checks that nothing is left, and closes.
func (e *ends) end() {
	e.t.Helper()
	e.quiet()
	e.guards()
	e.retire()
	e.finish()
}

func (e *ends) retire() {
	e.from.tracker.RetireAll()
	e.to.tracker.RetireAll()
}

// faultOfOutcome is an outcome's fault.
func faultIn(t testing.TB, o lanes.Outcome) *lanes.Fault {
	t.Helper()
	var f *lanes.Fault
	if !errors.As(o.Err, &f) {
		t.Fatalf("outcome %+v has no fault", o)
	}
	return f
}
