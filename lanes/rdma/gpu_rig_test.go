package rdma

import (
	"bytes"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// entry is one native call of either side.
type entry struct {
	who    string // process
	call   string
	domain verbs.DomainHandle // of what it is about
	handle uint64
	from   uint64 // Register: address
	length uint64
	access verbs.Access
	op     verbs.SendOperation
	flags  verbs.SendFlags
	failed bool // true exactly when a call that ends something was refused
}

// gpuEnds are a requester "a" and a source "b" whose GPUs devices reach themselves, and the native calls of both in their order.
type gpuEnds struct {
	*ends
	log  []entry
	gpus map[*engine]*gpus
}

// gpus is one process's driver.
type gpus struct {
	cuda.Calls
	driver   *simcuda.Driver
	platform *cuda.Platform
	ends     *gpuEnds
	name     string
	peermem  bool
	flushing func() // called at each flush
	memories []*gpuMemory
}

func (g *gpus) FlushWrites(c cuda.ContextHandle, all bool) error {
	g.ends.log = append(g.ends.log, entry{who: g.name, call: "flush"})
	if g.flushing != nil {
		g.flushing()
	}
	return g.Calls.FlushWrites(c, all)
}

// loggedVerbs writes down the calls that make and end authority.
type loggedVerbs struct {
	verbs.Calls
	ends    *gpuEnds
	name    string
	pairs   map[verbs.PairHandle]verbs.DomainHandle
	regions map[verbs.RegionHandle]verbs.DomainHandle
}

func (l *loggedVerbs) add(e entry) {
	e.who = l.name
	l.ends.log = append(l.ends.log, e)
}

func (l *loggedVerbs) CreatePair(d verbs.DomainHandle, o verbs.PairOptions) (verbs.PairHandle, verbs.PairNumber, error) {
	h, n, err := l.Calls.CreatePair(d, o)
	if err == nil {
		l.pairs[h] = d
		l.add(entry{call: "pair", domain: d, handle: uint64(h)})
	}
	return h, n, err
}

func (l *loggedVerbs) DestroyPair(h verbs.PairHandle) error {
	err := l.Calls.DestroyPair(h)
	l.add(entry{call: "pair ends", domain: l.pairs[h], handle: uint64(h), failed: err != nil})
	return err
}

func (l *loggedVerbs) Register(d verbs.DomainHandle, address, length uint64, a verbs.Access) (verbs.RegionHandle, verbs.LocalKey, verbs.RemoteKey, error) {
	h, k, r, err := l.Calls.Register(d, address, length, a)
	l.registered(d, h, address, length, a, err)
	return h, k, r, err
}

func (l *loggedVerbs) RegisterDescriptor(d verbs.DomainHandle, offset, length, address uint64, descriptor int, a verbs.Access) (verbs.RegionHandle, verbs.LocalKey, verbs.RemoteKey, error) {
	h, k, r, err := l.Calls.RegisterDescriptor(d, offset, length, address, descriptor, a)
	l.registered(d, h, address, length, a, err)
	return h, k, r, err
}

func (l *loggedVerbs) registered(d verbs.DomainHandle, h verbs.RegionHandle, address, length uint64, a verbs.Access, err error) {
	if err == nil {
		l.regions[h] = d
		l.add(entry{call: "region", domain: d, handle: uint64(h), from: address, length: length, access: a})
	}
}

func (l *loggedVerbs) Deregister(h verbs.RegionHandle) error {
	err := l.Calls.Deregister(h)
	l.add(entry{call: "region ends", domain: l.regions[h], handle: uint64(h), failed: err != nil})
	return err
}

func (l *loggedVerbs) FreeDomain(h verbs.DomainHandle) error {
	err := l.Calls.FreeDomain(h)
	l.add(entry{call: "domain ends", domain: h, handle: uint64(h), failed: err != nil})
	return err
}

func (l *loggedVerbs) PostSend(p verbs.PairHandle, list []verbs.SendWork) (int, error) {
	for _, w := range list {
		l.add(entry{call: "send", handle: uint64(p), op: w.Operation, flags: w.Flags})
	}
	return l.Calls.PostSend(p, list)
}

func (l *loggedVerbs) Poll(sends, receives verbs.QueueHandle, out []verbs.Completion) (int, int, error) {
	sent, received, err := l.Calls.Poll(sends, receives, out)
	for _, c := range out[sent : sent+received] {
		if c.Status == verbs.WorkSuccess {
			l.add(entry{call: "receipt"})
		}
	}
	return sent, received, err
}

// peer and export are the modules of a kernel that let network devices reach GPUs.
func (r *rig) peer(p *simverbs.Process, address, length uint64) (uint64, bool) {
	g := r.gpus[p.Name()]
	if g == nil || !g.peermem {
		return 0, false
	}
	info, err := g.driver.Attributes(address)
	if err != nil || info.Type != cuda.MemoryDevice {
		return 0, false
	}
	return g.real(info, cuda.Pointer(address), length)
}

func (r *rig) export(p *simverbs.Process, descriptor int, offset, length uint64) (uint64, bool) {
	g := r.gpus[p.Name()]
	if g == nil {
		return 0, false
	}
	start, size, ok := g.driver.Exported(descriptor)
	info, err := g.driver.Attributes(uint64(start))
	if !ok || err != nil || offset > size || length > size-offset {
		return 0, false
	}
	return g.real(info, start+cuda.Pointer(offset), length)
}

func (g *gpus) real(info cuda.PointerInfo, p cuda.Pointer, length uint64) (uint64, bool) {
	if !info.SyncMem && !info.Virtual {
		g.ends.t.Errorf("%s registers memory before SYNC_MEMOPS is set", g.name)
	}
	return g.driver.Real(p, length)
}

// newGPUEnds makes both sides. Small slices let a few KiB have several.
func newGPUEnds(t testing.TB, mode Progress) *gpuEnds { return newGPUEndsWith(t, mode, 0, 0) }

// newGPUEndsWith bounds the queue pairs of each side; 0: the default.
func newGPUEndsWith(t testing.TB, mode Progress, here, there int64) *gpuEnds {
	t.Helper()
	e := &gpuEnds{gpus: map[*engine]*gpus{}}
	side := func(name string, endpoints int64) siteOptions {
		return siteOptions{endpoints: endpoints, config: Config{Device: DeviceDirect, Block: 4096, Progress: mode}, devices: []simverbs.DeviceSpec{{Name: "mlx5_0"}, {Name: "mlx5_1", Ports: []simverbs.PortSpec{{Network: "other"}}}},
			calls: func(c verbs.Calls) verbs.Calls {
				return &loggedVerbs{Calls: c, ends: e, name: name, pairs: map[verbs.PairHandle]verbs.DomainHandle{}, regions: map[verbs.RegionHandle]verbs.DomainHandle{}}
			}}
	}
	e.ends = newEnds(t, simverbs.Hardware, endsOptions{side("a", here), side("b", there)})
	e.rig.gpus = map[string]*gpus{}
	info := cuda.DeviceInfo{Name: "A100", Memory: 80 << 30, Major: 8, Unified: true, GPUDirect: true, DMABuf: true, FlushHost: true, CopyEngines: 2}
	for i, n := range []*engine{e.from, e.to} {
		driver := simcuda.New(uint64(i+1), simcuda.Options{
			Devices: []cuda.DeviceInfo{info}, Now: func() time.Duration { return time.Duration(e.world.Now()) }, Later: e.world.Later, Sleep: e.world.Advance,
			Violation: func(err error) { t.Error(err) },
		})
		g := &gpus{Calls: driver, driver: driver, ends: e, name: n.name}
		var err error
		g.platform, err = cuda.Open(g)
		must(t, err)
		e.gpus[n], e.rig.gpus[n.name] = g, g
		t.Cleanup(driver.Kill)
	}
	return e
}

// gpuMemory is a registered range on a GPU between two guards.
type gpuMemory struct {
	memory
	native *cuda.Memory
	gpus   *gpus
}

// flushed counts the flushes at the source from now on; the range may not be given back before them.
func (e *gpuEnds) flushed(m *gpuMemory) *int {
	n := new(int)
	e.gpus[e.to].flushing = func() {
		if *n++; m.backing.Quiet() {
			e.t.Error("the range is given back before the flush")
		}
	}
	return n
}

func (e *gpuEnds) memory(n *engine, length uint64, p netproto.Permission, seed byte) *gpuMemory {
	e.t.Helper()
	m := e.unregistered(n, length, p, seed)
	registered, err := n.transport.RegisterDevice(m.native, m.Address(), length)
	must(e.t, err)
	n.registers = append(n.registers, registered)
	m.Attach(registered)
	m.gpus.memories = append(m.gpus.memories, m)
	return m
}

// unregistered is memory that the devices do not know yet.
func (e *gpuEnds) unregistered(n *engine, length uint64, p netproto.Permission, seed byte) *gpuMemory {
	e.t.Helper()
	g := e.gpus[n]
	native, err := g.platform.Allocate(0, length+2*guardBytes)
	must(e.t, err)
	backing, err := segments.AdoptDevice(uint64(native.Pointer()), native.Bytes(), native, nil)
	must(e.t, err)
	whole := bytes.Repeat([]byte{0xee}, int(native.Bytes()))
	copy(whole[guardBytes:], pattern(length, seed))
	g.driver.Poke(native.Pointer(), whole)
	list, err := n.tracker.Register([]segments.Spec{{Backing: backing, Offset: guardBytes, Length: length, Permission: p}})
	must(e.t, err)
	return &gpuMemory{memory: memory{Registration: list[0], backing: backing, engine: n}, native: native, gpus: g}
}

// content is the range, whose guards are checked.
func (m *gpuMemory) content() []byte {
	b := make([]byte, m.native.Bytes())
	m.gpus.driver.Peek(m.native.Pointer(), b)
	for _, guard := range [][]byte{b[:guardBytes], b[guardBytes+m.Length():]} {
		if bytes.Count(guard, []byte{0xee}) != guardBytes {
			m.gpus.ends.t.Error("bytes beside a range on a GPU were changed")
		}
	}
	return b[guardBytes:][:m.Length()]
}

// direct prepares a transfer between all of the local memory and the remote one, on the GPU of the source.
func (e *gpuEnds) direct(d lanes.Direction, local, remote *memory, offset uint64) *attempt {
	a := e.transfer(d, local, remote, offset)
	a.Remote = RemoteDirect
	return a
}

// finishGPUs ends everything, and checks that nothing is left.
func (e *gpuEnds) finishGPUs() {
	e.t.Helper()
	e.idle()
	for _, g := range e.gpus {
		for _, m := range g.memories {
			m.content()
			if r := Of(m.Registration); m.Loans() != 0 || r.Uses() != 0 || !m.backing.Quiet() {
				e.t.Errorf("%s: %d loans, %d users of the devices' registration, leases free %v", g.name, m.Loans(), r.Uses(), m.backing.Quiet())
			}
		}
	}
	e.end()
	for _, g := range e.gpus {
		for _, m := range g.memories {
			m.backing.Drop()
			must(e.t, m.native.Drop())
		}
		must(e.t, g.platform.Close())
		if live := g.driver.Live(); live != (simcuda.Live{}) {
			e.t.Errorf("%s: left on the driver: %+v", g.name, live)
		}
	}
}
