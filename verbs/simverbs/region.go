package simverbs

import (
	"syscall"

	"github.com/orbitte/orbitte/verbs"
)

// keyOwner is what a key's index names: a region or a window.
type keyOwner struct {
	region *region
	window *window
}

// keyTable gives out the indices of keys, 24 bits. An index that came free may come back at once, as devices do.
type keyTable struct {
	owners map[uint32]keyOwner // looked up only
	fresh  uint32
	freed  []uint32
	stale  uint32 // the last key of the window that was freed last
}

func (d *Device) newIndex(o keyOwner) uint32 {
	f, t := d.host.fabric, &d.keys
	index := t.fresh
	if n := len(t.freed); n > 0 && f.chance(2) {
		at := f.random.IntN(n)
		index = t.freed[at]
		t.freed[at] = t.freed[n-1]
		t.freed = t.freed[:n-1]
	} else {
		t.fresh++
	}
	t.owners[index] = o
	return index
}

func (d *Device) freeIndex(index uint32) {
	delete(d.keys.owners, index)
	d.keys.freed = append(d.keys.freed, index)
}

// region is a memory region.
type region struct {
	handle  verbs.RegionHandle
	domain  *domain
	address uint64 // as work requests name it
	memory  uint64 // where the bytes are; differs for memory of a descriptor
	length  uint64
	locked  uint64 // bytes counted against the process's limit
	access  verbs.Access
	key     uint32
	windows int // bound to it
}

func (r *region) end() {
	d := r.domain
	d.users--
	d.context.device.counts.Regions--
	d.context.device.freeIndex(r.key >> 8)
	d.context.process.locked -= r.locked
	delete(d.context.process.regions, r.handle)
}

func (r *region) holds(address, length uint64) bool {
	return address >= r.address && length <= r.length && address-r.address <= r.length-length
}

// at is where the byte at an address of the region really is.
func (r *region) at(address uint64) uint64 { return r.memory + (address - r.address) }

// Register implements verbs.Calls.
func (p *Process) Register(h verbs.DomainHandle, address, length uint64, a verbs.Access) (verbs.RegionHandle, verbs.LocalKey, verbs.RemoteKey, error) {
	if err := p.begin(CallRegister, "memory"); err != nil {
		return 0, 0, 0, err
	}
	defer p.fabric.leave()
	d, err := p.domain(CallRegister, h)
	if err != nil {
		return 0, 0, 0, err
	}
	mapped := p.fabric.options.Mapped
	if mapped == nil {
		mapped = func(address, length uint64, _ bool) bool { return readable(address, length) }
	}
	errno := d.mayRegister(length, a)
	memory, device := p.peer(address, length)
	switch {
	case errno != 0:
	case address+length < address:
		errno = syscall.EINVAL
	case device && a&verbs.AccessWindowBind != 0:
		errno = syscall.EOPNOTSUPP
	case device:
		r := d.register(address, memory, length, a) // nothing of the host's is locked
		return r.handle, verbs.LocalKey(r.key), verbs.RemoteKey(r.key), nil
	case p.lockedMax > 0 && p.locked+length > p.lockedMax:
		errno = syscall.ENOMEM
	case !mapped(address, length, a&verbs.AccessLocalWrite != 0):
		errno = syscall.EFAULT
	}
	if errno != 0 {
		return 0, 0, 0, fail(CallRegister, "memory", errno)
	}
	r := d.register(address, address, length, a)
	r.locked = length
	p.locked += length
	return r.handle, verbs.LocalKey(r.key), verbs.RemoteKey(r.key), nil
}

// peer is where the bytes of device memory are; false: it is none, or no module lets devices reach it.
func (p *Process) peer(address, length uint64) (memory uint64, ok bool) {
	if f := p.fabric; f.options.Peer != nil && !f.soft() {
		return f.options.Peer(p, address, length)
	}
	return 0, false
}

// RegisterDescriptor implements verbs.Calls, where Options.Export knows the memory behind a descriptor.
func (p *Process) RegisterDescriptor(h verbs.DomainHandle, offset, length, address uint64, descriptor int, a verbs.Access) (verbs.RegionHandle, verbs.LocalKey, verbs.RemoteKey, error) {
	if err := p.begin(CallRegisterDescriptor, "memory"); err != nil {
		return 0, 0, 0, err
	}
	defer p.fabric.leave()
	d, err := p.domain(CallRegisterDescriptor, h)
	if err != nil {
		return 0, 0, 0, err
	}
	errno := d.mayRegister(length, a)
	var memory uint64
	switch export := p.fabric.options.Export; {
	case errno != 0:
	case p.fabric.soft() || export == nil:
		errno = syscall.EOPNOTSUPP
	default:
		var ok bool
		if memory, ok = export(p, descriptor, offset, length); !ok {
			errno = syscall.EBADF
		}
	}
	if errno != 0 {
		return 0, 0, 0, fail(CallRegisterDescriptor, "memory", errno)
	}
	r := d.register(address, memory, length, a)
	return r.handle, verbs.LocalKey(r.key), verbs.RemoteKey(r.key), nil
}

func (d *domain) mayRegister(length uint64, a verbs.Access) syscall.Errno {
	device := d.context.device
	switch {
	case device.spec.NoWindows && a&verbs.AccessWindowBind != 0:
		return syscall.EOPNOTSUPP
	case length == 0 || length > device.limits.RegionBytes:
		return syscall.EINVAL
	case a&verbs.AccessRemoteWrite != 0 && a&verbs.AccessLocalWrite == 0:
		return syscall.EINVAL
	case device.counts.Regions >= device.limits.Regions:
		return syscall.ENOMEM
	}
	return 0
}

func (d *domain) register(address, memory, length uint64, a verbs.Access) *region {
	p := d.context.process
	r := &region{handle: verbs.RegionHandle(p.fabric.handle()), domain: d, address: address, memory: memory, length: length, access: a}
	r.key = d.context.device.newIndex(keyOwner{region: r})<<8 | uint32(p.fabric.random.IntN(256))
	d.users++
	d.context.device.counts.Regions++
	p.regions[r.handle] = r
	return r
}

// Deregister implements verbs.Calls. Work that still names the region fails when it is carried out.
func (p *Process) Deregister(h verbs.RegionHandle) error {
	if err := p.begin(CallDeregister, "region"); err != nil {
		return err
	}
	defer p.fabric.leave()
	r := p.regions[h]
	switch {
	case r == nil:
		return p.lost(CallDeregister, "region", uint64(h))
	case r.windows > 0:
		return fail(CallDeregister, "region", syscall.EINVAL)
	}
	r.end()
	return nil
}

// LimitLocked sets how many bytes the process may have registered (RLIMIT_MEMLOCK); 0: no limit.
func (p *Process) LimitLocked(bytes uint64) {
	p.fabric.enter()
	defer p.fabric.leave()
	p.lockedMax = bytes
}

// local finds the bytes that work of a pair names by a local key.
func (q *pair) local(key verbs.LocalKey, address, length uint64, write bool) (uint64, bool) {
	r := q.device().keys.owners[uint32(key)>>8].region
	if r == nil || r.key != uint32(key) || r.domain != q.domain || !r.holds(address, length) || write && r.access&verbs.AccessLocalWrite == 0 {
		return 0, false
	}
	return r.at(address), true
}

// remote finds the bytes that a peer's work names by a remote key, if it has the authority over this pair.
func (q *pair) remote(key verbs.RemoteKey, address, length uint64, need verbs.Access) (uint64, bool) {
	owner := q.device().keys.owners[uint32(key)>>8]
	if r := owner.region; r != nil {
		return r.at(address), r.key == uint32(key) && r.domain == q.domain && r.holds(address, length) && r.access&need != 0
	}
	w := owner.window
	if w == nil || w.region == nil || w.key != uint32(key) || w.pair != q || w.access&need == 0 || !w.region.holds(address, length) {
		return 0, false
	}
	if q.fabric().windowRange() && (address < w.address || length > w.length || address-w.address > w.length-length) {
		return 0, false
	}
	return w.region.at(address), true
}
