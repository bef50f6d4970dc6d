package world

import (
	"os"
	"slices"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/test/faults"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// direct engines let their RDMA devices reach their GPUs' memory themselves (SPEC C-6, C-7).
func (l *life) reaches() bool {
	c := l.slot.config
	return l.native != nil && c.Bool(faults.GPUDirect)
}

// flushes is true exactly when what a network device has written to the life's GPUs is visible after a flush only. The
// model shows such memory as its program would see it: so who claims success before the flush claims too much.
func (l *life) flushes() bool { return l.reaches() && l.slot.config.Bool(faults.Unordered) }

// goDirect is the part of the engine's configuration. The process has the environment that it needs.
func (l *life) goDirect(c *orbitte.Config) {
	if !l.reaches() {
		return
	}
	if err := os.Setenv("MLX5_SCATTER_TO_CQE", "0"); err != nil {
		panic("world: " + err.Error())
	}
	c.RDMA.DeviceMemory = orbitte.DeviceDirect
}

// devices are the GPUs of an engine; zero ones order the writes of network devices.
func (l *life) devices(n int) []cuda.DeviceInfo {
	list := make([]cuda.DeviceInfo, n)
	for i := range list {
		if l.flushes() {
			list[i] = cuda.DeviceInfo{
				Name: "NVIDIA A100", Memory: 80 << 30, Major: 8, Unified: true, GPUDirect: true, GPUDirectVM: true, DMABuf: true, FlushHost: true,
				VirtualMemory: true, CopyEngines: 2,
			}
		}
	}
	return list
}

// pageBytes is what a DMA-BUF has whole ones of.
const pageBytes = 4096

// granule lets memory begin at a page where nothing but DMA-BUFs leads to it.
func (l *life) granule() uint64 {
	if l.reaches() && !l.slot.config.Bool(faults.Peermem) {
		return pageBytes
	}
	return 0
}

// byAddress is how the twins of network devices find memory of the twins of GPUs where the host has nvidia-peermem.
func (r *run) byAddress(p *simverbs.Process, address, length uint64) (uint64, bool) {
	l := r.owners[p.Name()]
	if l == nil || l.vault == nil || !l.slot.config.Bool(faults.Peermem) {
		return 0, false
	}
	info, err := l.vault.driver.Attributes(address)
	if err != nil || info.Type != cuda.MemoryDevice {
		return 0, false
	}
	r.synchronous(l, info)
	return l.vault.driver.Real(cuda.Pointer(address), length)
}

// ofHost is true exactly for memory that a network device can reach without a module for GPUs.
func (r *run) ofHost(address, _ uint64, _ bool) bool {
	for _, l := range r.lives {
		if l.vault == nil {
			continue
		}
		if info, err := l.vault.driver.Attributes(address); err == nil && info.Type == cuda.MemoryDevice {
			return false
		}
	}
	return true
}

// byDescriptor is how they find it behind a DMA-BUF.
func (r *run) byDescriptor(p *simverbs.Process, descriptor int, offset, length uint64) (uint64, bool) {
	l := r.owners[p.Name()]
	if l == nil || l.vault == nil {
		return 0, false
	}
	start, bytes, ok := l.vault.driver.Exported(descriptor)
	if !ok || offset > bytes || length > bytes-offset {
		return 0, false
	}
	if info, err := l.vault.driver.Attributes(uint64(start)); err == nil {
		r.synchronous(l, info)
	}
	return l.vault.driver.Real(start+cuda.Pointer(offset), length)
}

// synchronous finds memory that network devices are led to before its operations are synchronous (C-6).
func (r *run) synchronous(l *life, info cuda.PointerInfo) {
	if !info.SyncMem {
		r.violate(OracleDriver, "%v registers memory on a GPU without CU_POINTER_ATTRIBUTE_SYNC_MEMOPS", l)
	}
}

// reveal shows the program what stands in a part of its memory on GPUs.
func (v *vault) reveal(first, bytes uint64) {
	for _, m := range v.life.memories {
		if m.seen == nil || m.closed {
			continue
		}
		start := m.object.Address()
		if from, to := max(first, start), min(first+bytes, start+uint64(len(m.seen))); from < to {
			v.driver.Peek(cuda.Pointer(from), m.seen[from-start:to-start])
		}
	}
}

// FlushWrites (cuda.Calls) makes everything on that GPU visible that network devices have written.
func (v *vault) FlushWrites(c cuda.ContextHandle, all bool) error {
	if v.closed {
		return nil
	}
	err := v.Calls.FlushWrites(c, all)
	if !happened(err) {
		return err
	}
	for _, m := range v.life.memories {
		if m.seen != nil && !m.closed && m.ordinal == v.owners[c] {
			v.reveal(m.object.Address(), uint64(len(m.seen)))
		}
	}
	if v.life.alive() {
		v.life.run.explain(v.life)
	}
	return err
}

// ExportRange (cuda.Calls).
func (v *vault) ExportRange(c cuda.ContextHandle, p cuda.Pointer, bytes uint64) (int, error) {
	if v.closed {
		return -1, dead("cuMemGetHandleForAddressRange")
	}
	return v.Calls.ExportRange(c, p, bytes)
}

// SetSyncMemOps (cuda.Calls).
func (v *vault) SetSyncMemOps(c cuda.ContextHandle, p cuda.Pointer) error {
	if v.closed {
		return dead("cuPointerSetAttribute")
	}
	return v.Calls.SetSyncMemOps(c, p)
}

// exposure is a region that peers may reach by its own key. Only grants on GPUs have one (SPEC, C-7).
type exposure struct {
	handle          verbs.RegionHandle
	address, length uint64
}

// expose holds a new region that peers may reach against what they asked for.
func (t *tomb) expose(h verbs.RegionHandle, address, length uint64, a verbs.Access, err error) {
	const reads, writes = verbs.AccessRemoteRead, verbs.AccessRemoteWrite
	if err != nil || a&(reads|writes) == 0 {
		return
	}
	t.exposed = append(t.exposed, exposure{h, address, length})
	l := t.life
	if a&reads != 0 && !l.asks(address, length, false) || a&writes != 0 && !l.asks(address, length, true) {
		l.run.violate(OracleRight, "%v lets peers reach %d bytes of a GPU (access %#x), as no request of theirs asks for", l, length, uint32(a))
	}
}

// covered takes the end of a region.
func (t *tomb) covered(h verbs.RegionHandle) {
	t.exposed = slices.DeleteFunc(t.exposed, func(x exposure) bool { return x.handle == h })
}

// claim notes a request for memory on a GPU that RDMA devices may reach.
func (o *op) claim() {
	if o.rdma && o.remote.gpu {
		o.remote.life.wanted = append(o.remote.life.wanted, o)
	}
}

// span is the op's range at the peer, by address.
func (o *op) span() (first, end uint64) {
	at := o.fromAt
	if o.write {
		at = o.toAt
	}
	first = o.remote.object.Address() + uint64(at)
	return first, first + uint64(o.length)
}

// asks says whether a request of some peer ever named all of this range of the life's, in that direction.
func (l *life) asks(address, length uint64, write bool) bool {
	return slices.ContainsFunc(l.wanted, func(o *op) bool {
		first, end := o.span()
		return o.write == write && first <= address && address+length <= end
	})
}

// unexposed holds the receipt of a WRITE against the regions that peers may still reach: with it, the grant's is gone (C-7).
// What overlaps may belong to another request that was there at the same time.
func (r *run) unexposed(o *op) {
	l := o.remote.life
	if !o.rdma || !o.write || !o.remote.gpu || !l.reaches() || !l.alive() {
		return
	}
	first, end := o.span()
	for _, other := range l.wanted {
		a, b := other.span()
		if other != o && a < end && first < b && (!other.over || other.ended >= o.submission.started) {
			return
		}
	}
	for _, x := range l.tomb.exposed {
		if x.address < end && first < x.address+x.length {
			r.violate(OracleRight, "%v: %v has its receipt, but peers may reach %d bytes of its range still", l, o, x.length)
		}
	}
}

// countDirect counts a success by how it came about.
func (o *op) countDirect() {
	r := o.submission.life.run
	for _, side := range []*memory{o.local, o.remote} {
		if o.rdma && side.gpu && side.life.reaches() {
			r.count("cuda: direct %s %s", map[bool]string{true: "write", false: "read"}[o.write], map[bool]string{true: "here", false: "there"}[side == o.local])
		}
	}
	if o.slotted {
		r.count("cuda: slots %s", map[bool]string{true: "write", false: "read"}[o.write])
	}
}
