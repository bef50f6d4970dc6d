package cuda

import (
	"errors"
	"reflect"
)

// AnyOrdinal lets an adopted pointer be on any GPU.
const AnyOrdinal = -1

// Adopt takes over device memory that somebody else allocated and will free: [pointer, pointer+bytes) on a GPU, or on
// any with AnyOrdinal. Owner is kept alive until the object ends, for good if it is retained. It is checked with the
// driver that the range is device memory, not managed, of the GPU's primary context, and inside one allocation; memory
// of the virtual-memory API and of pools has no context and is copied in the primary one (Abilities says what else it
// can do). The object is the whole allocation: aliases of it get the same Memory, with one more holder.
//
// The allocation has to stay until the last Drop. Whoever frees it earlier is noticed by Verify, or when the address is
// adopted again. Errors: *AdoptionError, *DeviceError, *RetainedError for memory that is retained, *CallError. Slow.
func (p *Platform) Adopt(ordinal int, pointer Pointer, bytes uint64, owner any) (*Memory, error) {
	refusal := &AdoptionError{Ordinal: ordinal, Pointer: pointer, Bytes: bytes}
	info, err := p.calls.Attributes(uint64(pointer))
	if err != nil {
		refusal.Cause = err
		return nil, refusal
	}
	refusal.Info = info
	if refusal.Cause = adoptable(refusal); refusal.Cause != nil {
		return nil, refusal
	}
	c, err := p.Context(info.Ordinal)
	if err != nil {
		return nil, err
	}
	p.gate.enter() // all the way, so that two aliases that come at once meet; the driver is slow only for a new context
	defer p.gate.leave()
	if m, err := p.share(info, owner); m != nil || err != nil {
		return m, err
	}
	handle, err := c.acquireFor(refusal)
	if err != nil {
		return nil, err
	}
	p.outdate(info)
	p.counts.adopted.Add(1)
	m := c.newObject(handle, info, true)
	m.object.ownedBy(owner)
	p.table[m.object.identity()] = m.object
	return m, nil
}

// share finds the object of an allocation and adds a holder; the gate is held. Nil without an error: there is none.
func (p *Platform) share(info PointerInfo, owner any) (*Memory, error) {
	o := p.table[identity{info.Start, info.BufferID}]
	if o == nil || o.stale.Load() {
		return nil, nil
	}
	m := o.memory.Value()
	switch {
	case o.lost.Load() && o.adopted && o.copier.Load().flying() == 0: // what it held stays, the memory may be adopted anew
		return nil, nil
	case o.life.stage() == retained:
		return nil, o.life.reason
	case m == nil: // the collector has just found that it is lost, and the book will say so
		return nil, busy(o.String(), false, Debt{"lost owners to be reported", 1})
	case o.holders.Load() < 1:
		return nil, busy(o.String(), false, Debt{"frees under way", 1})
	}
	m.Hold()
	o.ownedBy(owner)
	return m, nil
}

// ownedBy keeps an owner alive with the object; the gate is held, or nobody else knows the object.
func (o *object) ownedBy(owner any) {
	if owner == nil {
		return
	}
	for _, other := range o.owners {
		if reflect.TypeOf(owner).Comparable() && other == owner {
			return
		}
	}
	o.owners = append(o.owners, owner)
}

// outdate marks those objects whose addresses the driver has given to another allocation; the gate is held.
func (p *Platform) outdate(info PointerInfo) {
	for id, o := range p.table { // in any order: each is judged by itself
		if id.buffer != info.BufferID && o.info.Start < info.Start+Pointer(info.Bytes) && info.Start < o.info.Start+Pointer(o.info.Bytes) {
			o.stale.Store(true)
		}
	}
}

// acquireFor takes a share of the primary context for adopted memory. Memory of another context is refused, and if
// nobody holds the primary one, that is seen without making it.
func (c *Context) acquireFor(r *AdoptionError) (ContextHandle, error) {
	if r.Info.Context != 0 {
		active, err := c.platform.calls.PrimaryActive(c.info.Ordinal)
		switch {
		case err != nil:
			r.Cause = err
			return 0, r
		case !active:
			r.Cause = ErrForeign
			return 0, r
		}
	}
	handle, err := c.Acquire()
	if err != nil {
		return 0, err
	}
	if r.Info.Context != 0 && r.Info.Context != handle {
		r.Cause = ErrForeign
		return 0, errors.Join(r, c.Drop())
	}
	return handle, nil
}

// adoptable says what is wrong with a range; nil: nothing that its description shows.
func adoptable(r *AdoptionError) error {
	switch info := &r.Info; {
	case info.Type == MemoryUnknown:
		return ErrUnknown
	case info.Managed:
		return ErrManaged
	case info.Type != MemoryDevice:
		return ErrHostMemory
	case r.Ordinal != AnyOrdinal && r.Ordinal != info.Ordinal:
		return ErrOrdinal
	case r.Bytes == 0, r.Pointer < info.Start, r.Bytes > info.Bytes, uint64(r.Pointer-info.Start) > info.Bytes-r.Bytes:
		return ErrExtent
	}
	return nil
}

// Verify asks the driver whether the allocation is still the one that was allocated or adopted. A transfer does so once,
// before its first copy: *StaleError, after which the object takes no copies; *CallError when the driver cannot tell.
func (m *Memory) Verify() error { return m.object.verify() }

func (o *object) verify() error {
	info, err := o.platform().calls.Attributes(uint64(o.info.Start))
	if err != nil {
		return err
	}
	if info.Type == MemoryDevice && info.Start == o.info.Start && info.BufferID == o.info.BufferID && !o.stale.Load() {
		return nil
	}
	o.stale.Store(true)
	return &StaleError{Object: o.String(), Was: o.info.BufferID, Is: info.BufferID}
}

// Abilities is what a memory object can do beside copies through the host, which all can.
type Abilities struct {
	Register    bool // a NIC can register it through nvidia-peermem
	Export      bool // ExportRange makes a DMA-BUF of it
	SyncMemOps  bool // SetSyncMemOps works; the driver has no such attribute for memory without a context
	FlushWrites bool // FlushWrites works
	Ordered     bool // finished writes of a NIC are visible to the GPU without a flush
	Missing     string
}

// Abilities says what the memory can do, from what the driver says about it and about its GPU. Missing names what stands
// against a registration; empty: nothing.
func (m *Memory) Abilities() Abilities {
	info, device := m.object.info, m.object.context.info
	a := Abilities{SyncMemOps: !info.Virtual, FlushWrites: device.FlushHost, Ordered: device.WriteOrderedOwner || device.WriteOrderedAll}
	switch {
	case !device.GPUDirect:
		a.Missing = "the GPU has no GPUDirect RDMA"
	case info.Virtual && !device.GPUDirectVM:
		a.Missing = "the GPU has no GPUDirect RDMA for memory of the virtual-memory API"
	case !info.GPUDirect:
		a.Missing = "the memory was made without CU_MEM_ALLOCATION_PROP's gpuDirectRDMACapable, or comes from a pool"
	default:
		a.Register, a.Export = true, device.DMABuf
	}
	return a
}

// SetSyncMemOps sets CU_POINTER_ATTRIBUTE_SYNC_MEMOPS for the allocation, once (SPEC C-6).
func (m *Memory) SetSyncMemOps() error {
	o := m.object
	if err := o.life.mustNotBeOver(m, "SetSyncMemOps"); err != nil || o.synced.Load() {
		return err
	}
	if err := o.context.settle(o.platform().calls.SetSyncMemOps(o.handle, o.info.Start)); err != nil {
		return err
	}
	o.synced.Store(true)
	return nil
}

// FlushWrites makes writes that a NIC has finished visible to the GPU, or to all GPUs. Slow.
func (m *Memory) FlushWrites(all bool) error {
	o := m.object
	if err := o.life.mustNotBeOver(m, "FlushWrites"); err != nil {
		return err
	}
	return o.context.settle(o.platform().calls.FlushWrites(o.handle, all))
}

// ExportRange makes a DMA-BUF descriptor, owned by the caller, of a page-aligned part of the allocation. The memory has
// to stay while the descriptor is used: be a holder. Slow.
func (m *Memory) ExportRange(p Pointer, bytes uint64) (descriptor int, err error) {
	o := m.object
	if err := o.life.mustNotBeOver(m, "ExportRange"); err != nil {
		return -1, err
	}
	if !o.covers(p, bytes) {
		return -1, &RangeError{Object: o.String(), Copy: Copy{From: p, Bytes: bytes}}
	}
	descriptor, err = o.platform().calls.ExportRange(o.handle, p, bytes)
	return descriptor, o.context.settle(err)
}
