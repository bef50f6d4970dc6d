package simcuda

import (
	"slices"
	"sort"
	"syscall"

	"github.com/orbitte/orbitte/cuda"
)

type memoryKind uint8

const (
	deviceMemory memoryKind = iota
	pinnedMemory
	managedMemory
	virtualMemory // of the virtual-memory API
	poolMemory    // of a stream-ordered pool
)

// memory is one allocation that the driver knows.
type memory struct {
	kind      memoryKind
	device    *device
	context   *context // nil: none
	start     uint64   // its address
	length    uint64
	store     []byte // its bytes; for host memory at its address
	buffer    uint64
	users     int // operations that are not done
	gpuDirect bool
	synced    bool
	made      bool // by a test, beside the calls
}

const (
	granule   = 512     // cuMemAlloc's alignment
	pageBytes = 4096    // of DMA-BUF exports
	spaceMax  = 1 << 36 // reserved addresses; they cost nothing
)

func (m *memory) onDevice() bool { return m.kind != pinnedMemory && m.kind != managedMemory }

func (m *memory) covers(address, length uint64) bool {
	return address >= m.start && length <= m.length && address-m.start <= m.length-length
}

// view is part of the bytes.
func (m *memory) view(address, length uint64) []byte {
	return m.store[address-m.start:][:length:length]
}

func (m *memory) unmap() {
	if m.store != nil {
		_ = syscall.Munmap(m.store[:cap(m.store)]) // what Mmap gave is always taken back
		m.store = nil
	}
}

// find is the allocation that an address lies in; nil: the driver does not know it.
func (d *Driver) find(address uint64) *memory {
	i := sort.Search(len(d.memories), func(i int) bool { return d.memories[i].start > address }) - 1
	if i < 0 || !d.memories[i].covers(address, 1) {
		return nil
	}
	return d.memories[i]
}

// create makes an allocation with scrambled bytes.
func (d *Driver) create(c Call, m *memory) error {
	if m.length == 0 {
		return refuse(c, m.device.name, cuda.InvalidValue)
	}
	if m.onDevice() && (m.length > d.options.Memory-d.taken || m.length > m.device.info.Memory-m.device.used) {
		return refuse(c, m.device.name, cuda.OutOfMemory)
	}
	store, err := syscall.Mmap(-1, 0, int(m.length), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return refuse(c, m.device.name, cuda.OutOfMemory)
	}
	m.store = store
	if m.start = addressOf(store); m.onDevice() {
		var ok bool
		if m.start, ok = d.place(m.length); !ok {
			m.unmap()
			return refuse(c, m.device.name, cuda.OutOfMemory)
		}
		d.taken += m.length
		m.device.used += m.length
	}
	scramble(store, d.random.Uint64())
	d.buffers++
	m.buffer = d.buffers
	at := sort.Search(len(d.memories), func(i int) bool { return d.memories[i].start > m.start })
	d.memories = slices.Insert(d.memories, at, m)
	if m.context != nil {
		m.context.objects++
	}
	return nil
}

// place finds addresses: the first gap that is large enough, so that freed addresses are given out again soon. Behind
// each allocation one granule stays free.
func (d *Driver) place(length uint64) (uint64, bool) {
	if d.space == nil {
		space, err := syscall.Mmap(-1, 0, spaceMax, syscall.PROT_NONE, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
		if err != nil {
			return 0, false
		}
		d.space = space
	}
	at := addressOf(d.space)
	end, unit := at+spaceMax, d.options.Granule
	for _, m := range d.memories {
		if m.start < at || m.start >= end {
			continue
		}
		if m.start-at >= length+unit {
			break
		}
		at = (m.start + m.length + 2*unit - 1) / unit * unit
	}
	return at, end-at >= length+unit
}

func (d *Driver) unreserve() {
	if d.space != nil {
		_ = syscall.Munmap(d.space)
		d.space = nil
	}
}

// remove ends an allocation; work on it is waited for, as the driver does.
func (d *Driver) remove(m *memory) {
	if m.users > 0 {
		d.violate("memory at %#x was freed with %d copies on it under way", m.start, m.users)
		d.await(func() bool { return m.users == 0 })
	}
	if i := slices.Index(d.memories, m); i >= 0 {
		d.memories = slices.Delete(d.memories, i, i+1)
	}
	if m.onDevice() {
		d.taken -= m.length
		m.device.used -= m.length
	}
	if m.context != nil {
		m.context.objects--
	}
	if m.users == 0 { // a lost device may still write: its bytes stay
		m.unmap()
	}
}

// Allocate implements cuda.Calls.
func (d *Driver) Allocate(h cuda.ContextHandle, bytes uint64) (p cuda.Pointer, err error) {
	err = d.within(CallAllocate, h, func(x *context) error {
		m := &memory{kind: deviceMemory, device: x.device, context: x, length: bytes, gpuDirect: x.device.info.GPUDirect}
		err := d.create(CallAllocate, m)
		p = cuda.Pointer(m.start)
		return err
	})
	return given(p, err), err
}

// given is what a call that makes something gives out: nothing, if it may have failed.
func given[H ~uint64](h H, err error) H {
	var none H
	if call, ok := err.(*cuda.CallError); ok && call.Effect != cuda.Done {
		return none
	}
	return h
}

// AllocateHost implements cuda.Calls.
func (d *Driver) AllocateHost(h cuda.ContextHandle, bytes uint64) (address uint64, err error) {
	err = d.within(CallAllocateHost, h, func(x *context) error {
		m := &memory{kind: pinnedMemory, device: x.device, context: x, length: bytes}
		err := d.create(CallAllocateHost, m)
		address = m.start
		return err
	})
	return given(address, err), err
}

// Free implements cuda.Calls.
func (d *Driver) Free(h cuda.ContextHandle, p cuda.Pointer) error {
	return d.freeKind(CallFree, h, uint64(p), deviceMemory)
}

// FreeHost implements cuda.Calls.
func (d *Driver) FreeHost(h cuda.ContextHandle, address uint64) error {
	return d.freeKind(CallFreeHost, h, address, pinnedMemory)
}

func (d *Driver) freeKind(c Call, h cuda.ContextHandle, address uint64, kind memoryKind) error {
	return d.within(c, h, func(x *context) error {
		m := d.find(address)
		if m == nil || m.start != address || m.kind != kind {
			return refuse(c, x.device.name, cuda.InvalidValue)
		}
		if m.context != x && kind == deviceMemory {
			d.violate("%s of %#x in context %#x, want that of its allocation", c, address, uint64(h))
			return refuse(c, x.device.name, cuda.InvalidValue)
		}
		d.remove(m)
		return nil
	})
}

// Attributes implements cuda.Calls.
func (d *Driver) Attributes(address uint64) (info cuda.PointerInfo, err error) {
	err = d.bare(CallAttributes, "pointer", nil, func() error {
		info = cuda.PointerInfo{Ordinal: -1}
		if m := d.find(address); m != nil {
			info = m.info()
		}
		return nil
	})
	return info, err
}

func (m *memory) info() cuda.PointerInfo {
	i := cuda.PointerInfo{
		Type: cuda.MemoryDevice, Ordinal: m.device.info.Ordinal, Start: cuda.Pointer(m.start), Bytes: m.length, BufferID: m.buffer,
		Managed: m.kind == managedMemory, Virtual: m.context == nil, GPUDirect: m.gpuDirect, SyncMem: m.synced,
	}
	if m.kind == pinnedMemory {
		i.Type = cuda.MemoryHost
	}
	if m.context != nil {
		i.Context = m.context.handle
	}
	return i
}

// SetSyncMemOps implements cuda.Calls.
func (d *Driver) SetSyncMemOps(h cuda.ContextHandle, p cuda.Pointer) error {
	return d.within(CallSetAttribute, h, func(x *context) error {
		m := d.find(uint64(p))
		switch {
		case m == nil || !m.onDevice():
			return refuse(CallSetAttribute, x.device.name, cuda.InvalidValue)
		case m.context == nil:
			return refuse(CallSetAttribute, x.device.name, cuda.NotSupported)
		}
		m.synced = true
		return nil
	})
}

// ExportRange implements cuda.Calls. The descriptor is a real one, so that it can be closed; Exported knows what it
// stands for.
func (d *Driver) ExportRange(h cuda.ContextHandle, p cuda.Pointer, bytes uint64) (descriptor int, err error) {
	descriptor = -1
	err = d.within(CallExport, h, func(x *context) error {
		m := d.find(uint64(p))
		switch {
		case !x.device.info.DMABuf || m != nil && m.onDevice() && !m.gpuDirect:
			return refuse(CallExport, x.device.name, cuda.NotSupported)
		case m == nil || !m.onDevice() || bytes == 0 || !m.covers(uint64(p), bytes) || uint64(p)%pageBytes != 0 || bytes%pageBytes != 0:
			return refuse(CallExport, x.device.name, cuda.InvalidValue)
		}
		file, err := syscall.Open("/dev/null", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err != nil {
			return refuse(CallExport, x.device.name, cuda.OutOfMemory)
		}
		descriptor = file
		d.exports[file] = export{uint64(p), bytes}
		return nil
	})
	return descriptor, err
}

// export is a range that a DMA-BUF descriptor stands for.
type export struct{ start, length uint64 }

// Exported says what a descriptor of ExportRange stands for; the last one counts when its number was closed and used
// again.
func (d *Driver) Exported(descriptor int) (p cuda.Pointer, bytes uint64, ok bool) {
	d.enter()
	defer d.leave()
	e, ok := d.exports[descriptor]
	return cuda.Pointer(e.start), e.length, ok
}

// Real is the address at which the bytes of device memory really are, for a twin of a NIC; false: they are not all there.
func (d *Driver) Real(p cuda.Pointer, bytes uint64) (address uint64, ok bool) {
	d.enter()
	defer d.leave()
	m := d.find(uint64(p))
	if m == nil || !m.covers(uint64(p), bytes) {
		return 0, false
	}
	return addressOf(m.store) + uint64(p) - m.start, true
}

// MakeForeign makes device memory in a context. What the Make… methods make is made beside the calls, as another library
// of the process does it, and is not counted as live; Unmake ends it.
func (d *Driver) MakeForeign(h cuda.ContextHandle, bytes uint64) cuda.Pointer {
	return d.fabricate(func() *memory {
		x := d.contexts[h]
		return &memory{kind: deviceMemory, device: x.device, context: x, length: bytes, gpuDirect: x.device.info.GPUDirect}
	})
}

// MakeManaged makes managed memory.
func (d *Driver) MakeManaged(ordinal int, bytes uint64) cuda.Pointer {
	return d.fabricate(func() *memory { return &memory{kind: managedMemory, device: d.devices[ordinal], length: bytes} })
}

// MakeVirtual makes memory of the virtual-memory API, with or without gpuDirectRDMACapable.
func (d *Driver) MakeVirtual(ordinal int, bytes uint64, capable bool) cuda.Pointer {
	return d.fabricate(func() *memory {
		return &memory{kind: virtualMemory, device: d.devices[ordinal], length: bytes, gpuDirect: capable}
	})
}

// MakePool makes memory of a stream-ordered pool.
func (d *Driver) MakePool(ordinal int, bytes uint64) cuda.Pointer {
	return d.fabricate(func() *memory { return &memory{kind: poolMemory, device: d.devices[ordinal], length: bytes} })
}

func (d *Driver) fabricate(spec func() *memory) cuda.Pointer {
	d.enter()
	defer d.leave()
	m := spec()
	m.made = true
	if err := d.create(CallAllocate, m); err != nil {
		panic("simcuda: memory for a test: " + err.Error())
	}
	if m.context != nil {
		m.context.objects-- // it does not count as left behind
	}
	return cuda.Pointer(m.start)
}

// Unmake ends memory beside the calls: what Make… made, or, as a stranger's mistake, any other.
func (d *Driver) Unmake(p cuda.Pointer) {
	d.enter()
	defer d.leave()
	if m := d.find(uint64(p)); m != nil {
		if m.made && m.context != nil {
			m.context.objects++
		}
		d.remove(m)
	}
}

// Peek copies bytes out of device memory at once, for tests; false: it is not all there.
func (d *Driver) Peek(p cuda.Pointer, into []byte) bool {
	d.enter()
	defer d.leave()
	m := d.find(uint64(p))
	if m == nil || !m.covers(uint64(p), uint64(len(into))) {
		return false
	}
	move(into, m.view(uint64(p), uint64(len(into))))
	return true
}

// Poke copies bytes into device memory at once, for tests; false: it is not all there.
func (d *Driver) Poke(p cuda.Pointer, from []byte) bool {
	d.enter()
	defer d.leave()
	m := d.find(uint64(p))
	if m == nil || !m.covers(uint64(p), uint64(len(from))) {
		return false
	}
	move(m.view(uint64(p), uint64(len(from))), from)
	return true
}
