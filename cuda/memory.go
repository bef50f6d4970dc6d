package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"weak"
)

// Memory is one device memory object: an allocation of ours, or an allocation of somebody else's that was adopted. All
// aliases in the process share one, whichever contexts, registrations and engines they come from (SPEC C-2), so one
// lease table decides about it (Companion).
//
// It has counted holders: Allocate and Adopt return it with one more, Hold adds one, Drop ends one, the last Drop ends
// the object. Whoever uses it is a holder, or borrows from one. Hold, a Drop that is not the last, Start and Confirm may
// be called from any loop and do not block; Allocate, Adopt, Prepare, Drain, the last Drop and whatever is marked slow
// belong on a cold loop or a caller's goroutine.
type Memory struct {
	object  *object
	cleanup runtime.Cleanup // here, so that whoever stops it keeps the Memory from being collected until then
}

// identity names an allocation: an address that was freed and given out again has another buffer id.
type identity struct {
	start  Pointer
	buffer uint64
}

// object is the part of a memory object that must outlive a lost Memory.
type object struct {
	context *Context
	handle  ContextHandle
	info    PointerInfo
	adopted bool
	memory  weak.Pointer[Memory]

	holders atomic.Int64
	uses    atomic.Int64 // as the other side of copies
	stale   atomic.Bool  // true exactly when the allocation was seen to be another
	lost    atomic.Bool  // true exactly when it was retained for no other reason than a lost Memory
	synced  atomic.Bool  // true exactly when SYNC_MEMOPS was set here
	life    life
	doubts  doubts
	copier  atomic.Pointer[copier] // nil: not prepared
	make    gate                   // guards the making of the copier

	owners    []any     // guarded by the platform's gate
	companion Companion // guarded by the platform's gate
}

// Companion is what the layers above keep beside a memory object for all its aliases, such as its lease table. Drop is
// called when the memory has ended; it is never called for memory that is retained.
type Companion interface{ Drop() }

func (c *Context) newObject(handle ContextHandle, info PointerInfo, adopted bool) *Memory {
	o := &object{context: c, handle: handle, info: info, adopted: adopted, make: newGate()}
	o.holders.Store(1)
	m := &Memory{object: o}
	o.memory = weak.Make(m)
	m.cleanup = runtime.AddCleanup(m, lostMemory, o)
	return m
}

// lostMemory runs when a Memory was collected although it still had holders. It only takes note: what a device may
// still write must not be freed on the collector's word.
func lostMemory(o *object) {
	if o.life.stage() != open {
		return // it is retained for another reason, and has no end that anybody could have forgotten
	}
	p := o.platform()
	p.counts.lost.Add(1)
	o.lost.Store(true)
	o.life.retain(p, o.kind(), o.String(), &RetainedError{Object: o.String(), Call: "Drop was never called", Err: errLost})
}

var errLost = errors.New("the collector found its owner")

// Allocate makes device memory of at least one byte on a GPU, filled with zeros, which is proven. The memory owns it and
// its share of the GPU's primary context. Errors: *DeviceError, *CallError, *UnquiescedError (the memory is retained,
// since nobody knows whether the device still writes zeros), each joined with refused ends. Slow.
func (p *Platform) Allocate(ordinal int, bytes uint64) (*Memory, error) {
	c, err := p.Context(ordinal)
	if err != nil {
		return nil, err
	}
	handle, err := c.Acquire()
	if err != nil {
		return nil, err
	}
	pointer, err := p.calls.Allocate(handle, bytes)
	if err = c.settle(err); err != nil {
		return nil, errors.Join(err, c.undone(err, KindAllocation, fmt.Sprintf("allocation of %d bytes on GPU %d", bytes, ordinal), "cuMemAlloc_v2"))
	}
	p.counts.allocations.Add(1)
	p.counts.allocatedBytes.Add(int64(bytes))
	m := c.newObject(handle, PointerInfo{Type: MemoryDevice, Context: handle, Ordinal: ordinal, Start: pointer, Bytes: bytes}, false)
	if err := m.object.begin(); err != nil {
		m.cleanup.Stop()
		if errors.Is(err, ErrUnquiesced) {
			p.know(m.object)
			return nil, err
		}
		return nil, errors.Join(err, m.object.close())
	}
	p.know(m.object)
	return m, nil
}

// know puts an allocation of ours on the table, so that adoptions of it find it.
func (p *Platform) know(o *object) {
	p.gate.enter()
	defer p.gate.leave()
	p.outdate(o.info)
	p.table[o.identity()] = o
}

// undone ends the share in a context for an object that was not made. When it may have been made after all, the share
// stays, and the book says why.
func (c *Context) undone(err error, kind Kind, object, call string) error {
	if effectOf(err) == None {
		return c.Drop()
	}
	refusal := &RetainedError{Object: object, Call: call, Err: err}
	c.platform.book.add(kind, object, refusal)
	return refusal
}

// begin identifies a new allocation, makes its stream and zeroes it. What is left after a failure is for close.
func (o *object) begin() error {
	calls := o.context.platform.calls
	info, err := calls.Attributes(uint64(o.info.Start))
	if err != nil {
		return err
	}
	o.info.BufferID, o.info.GPUDirect, o.info.SyncMem = info.BufferID, info.GPUDirect, info.SyncMem
	if err := o.prepare(); err != nil {
		return err
	}
	stream := o.copier.Load().stream
	err = o.context.settle(calls.Zero(o.handle, stream.handle, o.info.Start, o.info.Bytes))
	if err != nil && effectOf(err) == None {
		return err
	}
	proof := o.context.settle(calls.Synchronize(o.handle, stream.handle))
	if proof != nil {
		return errors.Join(err, o.unquiesced(o.copier.Load(), proof))
	}
	return err // proof: the stream is empty, so a failed fill has ended as well
}

func (o *object) platform() *Platform { return o.context.platform }

func (o *object) identity() identity { return identity{o.info.Start, o.info.BufferID} }

func (o *object) kind() Kind {
	if o.adopted {
		return KindAdopted
	}
	return KindAllocation
}

func (o *object) String() string {
	return fmt.Sprintf("%v of %d bytes at %#x on GPU %d", o.kind(), o.info.Bytes, uint64(o.info.Start), o.info.Ordinal)
}

// String says kind, length, address and GPU.
func (m *Memory) String() string { return m.object.String() }

// Pointer is the first byte of the allocation; an adopted range may begin behind it.
func (m *Memory) Pointer() Pointer { return m.object.info.Start }

// Bytes is the length of the allocation.
func (m *Memory) Bytes() uint64 { return m.object.info.Bytes }

// Ordinal is the GPU.
func (m *Memory) Ordinal() int { return m.object.info.Ordinal }

// Adopted is true exactly when somebody else frees the allocation.
func (m *Memory) Adopted() bool { return m.object.adopted }

// Info is what the driver said when the object was made.
func (m *Memory) Info() PointerInfo { return m.object.info }

// Context is the context of its stream and its copies.
func (m *Memory) Context() *Context { return m.object.context }

// Platform is the driver that it belongs to.
func (m *Memory) Platform() *Platform { return m.object.platform() }

// Covers is true exactly when all of [p, p+bytes) lies in the allocation.
func (m *Memory) Covers(p Pointer, bytes uint64) bool { return m.object.covers(p, bytes) }

func (o *object) covers(p Pointer, bytes uint64) bool {
	return p >= o.info.Start && bytes <= o.info.Bytes && uint64(p-o.info.Start) <= o.info.Bytes-bytes
}

// Hold adds a holder.
func (m *Memory) Hold() {
	if before := m.object.holders.Add(1) - 1; before < 1 {
		panic(fmt.Sprintf("cuda: Hold of %v with %d holders, want at least 1: it has ended", m, before))
	}
}

// Holders counts the holders; a reading for reports.
func (m *Memory) Holders() int64 { return m.object.holders.Load() }

// Retained says why the memory stays for good; nil: it does not.
func (m *Memory) Retained() error {
	if m.object.life.stage() == retained {
		return m.object.life.reason
	}
	return nil
}

// Retain keeps the memory for good, because the proof is missing that something else than its own copies has ended, such
// as a NIC's registration. It is listed, takes no more copies, and its last Drop answers with the reason.
func (m *Memory) Retain(reason error) {
	m.object.doubts.bound.Store(true)
	m.object.keep(&RetainedError{Object: m.String(), Call: noProof, Err: reason})
}

func (o *object) keep(reason error) { o.life.retain(o.platform(), o.kind(), o.String(), reason) }

// Companion returns what stands beside the object, and makes it first if there is none yet. make must not call the
// platform.
func (m *Memory) Companion(make func() (Companion, error)) (Companion, error) {
	o, p := m.object, m.Platform()
	p.gate.enter()
	defer p.gate.leave()
	if o.companion == nil {
		c, err := make()
		if err != nil {
			return nil, err
		}
		o.companion = c
	}
	return o.companion, nil
}

// Drop ends one holder. The last one ends the object: its events, its stream, the memory if it is ours, its share of the
// context. While copies are unconfirmed the last one refuses with *BusyError and changes nothing; call it again. For
// memory that is retained it answers with the reason, however often. What the driver refuses to end is retained:
// *RetainedError, joined when there are several. Slow when it is the last.
func (m *Memory) Drop() error {
	o := m.object
	for {
		n := o.holders.Load()
		switch {
		case o.life.stage() == retained && n <= 1:
			if o.doubts.orphan(&o.life) {
				return o.life.reason
			}
		case n < 1:
			panic(fmt.Sprintf("cuda: Drop of %v with %d holders, want at least 1: it has ended", m, n))
		case n == 1:
			if last, err := o.last(); last || err != nil {
				if err != nil {
					return err
				}
				m.cleanup.Stop()
				return o.close()
			}
		case o.holders.CompareAndSwap(n, n-1):
			return nil
		}
	}
}

// last takes the last holder away, unless there are more of them now or copies are out. An adopted object leaves the
// table at once; an allocation of ours stays in it until it is freed, so that nobody adopts it meanwhile.
func (o *object) last() (bool, error) {
	p := o.platform()
	p.gate.enter()
	defer p.gate.leave()
	if left := busy(o.String(), false, Debt{"copies", int64(o.copier.Load().flying())}, Debt{"copies of other memory", o.uses.Load()}); left != nil {
		return false, left
	}
	if !o.holders.CompareAndSwap(1, 0) {
		return false, nil
	}
	if o.adopted {
		o.leave()
	}
	return true, nil
}

// leave takes the object off the table; the gate is held.
func (o *object) leave() {
	if table := o.platform().table; table[o.identity()] == o {
		delete(table, o.identity())
	}
}

// close ends everything that the object owns; nobody holds it and no copy is out.
func (o *object) close() error {
	var stale error
	refused := o.copier.Load().end(o)
	if o.adopted {
		o.life.now.Store(uint32(gone))
		o.platform().counts.adopted.Add(-1) // proof: every copy is confirmed or drained; the memory is not ours to free
	} else {
		var err error
		stale, err = o.free()
		refused = errors.Join(refused, err)
	}
	if o.life.stage() == gone {
		o.forget()
	}
	if refused != nil {
		return errors.Join(stale, refused) // the share of the context stays with what is retained
	}
	return errors.Join(stale, o.context.Drop())
}

// forget lets go of what the object kept alive.
func (o *object) forget() {
	p := o.platform()
	p.gate.enter()
	o.leave()
	companion := o.companion
	o.companion, o.owners = nil, nil
	p.gate.leave()
	if companion != nil {
		companion.Drop()
	}
}

// free gives an allocation of ours back to the driver, unless somebody else has done so: then the address may belong to
// others.
func (o *object) free() (stale, refused error) {
	counts := &o.platform().counts
	p := part{kind: KindAllocation, name: o.String(), call: "cuMemFree_v2", live: &counts.allocations, bytes: &counts.allocatedBytes, length: int64(o.info.Bytes),
		native: func() error { return o.platform().calls.Free(o.handle, o.info.Start) }}
	if o.info.BufferID != 0 { // 0: it was never identified, and nobody else has seen it
		stale = o.verify()
	}
	if errors.Is(stale, ErrStale) {
		p.native = func() error { return nil }
	} else {
		stale = nil // the driver says no more than that it is broken; Free will tell
	}
	return stale, o.life.end(o.context, p)
}
