package orbitte

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// rdmaSim is a simulated world whose processes have RDMA devices on one fabric.
type rdmaSim struct {
	*sim
	fabric     *simverbs.Fabric
	processes  map[string]*simkernel.Process
	deliberate map[string]bool // processes that leave native objects on purpose
	gpus       gpuDoor
}

func newRDMASim(t testing.TB, seed uint64, p simverbs.Personality) *rdmaSim {
	t.Helper()
	s := &rdmaSim{sim: newSim(t, seed, simkernel.WorldOptions{}), processes: map[string]*simkernel.Process{}, deliberate: map[string]bool{}}
	s.fabric = simverbs.NewFabric(seed, simverbs.Options{
		Personality: p, Peer: s.gpus.peer, Export: s.gpus.export,
		Now:       func() time.Duration { return time.Duration(s.Now()) },
		Later:     s.Later,
		Sleep:     s.Advance,
		Violation: func(err error) { t.Error(err) },
		Signal: func(p *simverbs.Process) (int, func(), func(), func(), error) {
			process := s.processes[p.Name()]
			d, signal, err := process.Signal()
			end := func() {
				if err := process.Kernels()[0].Close(d); err != nil {
					t.Errorf("closing a descriptor of %s: %v", p.Name(), err)
				}
			}
			return int(d), signal, func() { process.Unsignal(d) }, end, err
		},
	})
	t.Cleanup(func() { // runs last: every engine is closed
		for _, left := range s.fabric.Live() {
			if !s.deliberate[left.Process] {
				t.Errorf("native objects are left: %+v", left)
			}
		}
	})
	return s
}

// drive lets the world drive an engine, and know until when it waits: its monitor looks each second.
func (s *rdmaSim) drive(e *Engine) { s.Add(func() bool { return e.Progress(time.Minute) }) }

// native starts a process with devices; without specs it has two, each on a network of its own.
func (s *rdmaSim) native(name string, host netip.Addr, devices ...simverbs.DeviceSpec) *simverbs.Process {
	s.processes[name] = s.Process(name, host)
	return s.fabric.Host(host.String(), devices...).Process(name)
}

// rdmaEngine starts an engine in a process of native, which the world drives.
func (s *rdmaSim) rdmaEngine(n *simverbs.Process, host netip.Addr, c Config) *Engine {
	s.t.Helper()
	e := newEngine(s.t, s.rdmaConfig(n, host, c))
	s.drive(e)
	p := s.processes[n.Name()]
	s.t.Cleanup(func() {
		closeEngine(s.t, e)
		if d := p.Descriptors(); d != 0 {
			s.t.Errorf("process %s has %d descriptors open after Close", n.Name(), d)
		}
	})
	return e
}

func (s *rdmaSim) rdmaConfig(n *simverbs.Process, host netip.Addr, c Config) Config {
	if c.Verbs == nil {
		c.Verbs = n
	}
	if c.RDMA == nil {
		c.RDMA = &RDMAConfig{}
	}
	return s.config(s.processes[n.Name()], c, netip.AddrPortFrom(host, 0).String())
}

// rdmaPair is a source and a requester on the fabric, with memory that both have registered.
type rdmaPair struct {
	*rdmaSim
	*pair
	sourceNative, requesterNative *simverbs.Process
}

func newRDMAPair(t testing.TB, seed uint64, source, requester Config, size int) *rdmaPair {
	t.Helper()
	return newRDMAPairOn(t, newRDMASim(t, seed, simverbs.Hardware), source, requester, size)
}

func newRDMAPairOn(t testing.TB, s *rdmaSim, source, requester Config, size int) *rdmaPair {
	t.Helper()
	p := &rdmaPair{rdmaSim: s, pair: &pair{}}
	p.sourceNative, p.requesterNative = s.native("source", hostA), s.native("requester", hostB)
	p.source, p.requester = s.rdmaEngine(p.sourceNative, hostA, source), s.rdmaEngine(p.requesterNative, hostB, requester)
	p.remote, p.local = allocated(t, size), allocated(t, size)
	pattern(p.remote, 1)
	p.export = registered(t, p.source, p.remote, ReadWrite)
	p.own = registered(t, p.requester, p.local, LocalOnly)
	p.segment = opened(t, p.requester, p.source)
	return p
}

// overRDMA is a request of the pair that names RDMA.
func (p *rdmaPair) overRDMA(op Operation, offset, length int) Request {
	r := p.request(op, offset, length)
	r.Transport = TransportRDMA
	return r
}

// liveRegions counts the memory regions of a process.
func liveRegions(n *simverbs.Process) int { return n.Live().Regions }

// locked is a library that answers a preflight.
type locked struct {
	verbs.Calls
	limit uint64
}

func (l locked) Preflight(bytes uint64) error {
	if bytes > l.limit {
		return &verbs.MemlockError{Asked: bytes, Limit: l.limit}
	}
	return nil
}

// mentions checks that a text has all the words.
func mentions(t testing.TB, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q does not say %q", text, w)
		}
	}
}
