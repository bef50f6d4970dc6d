package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
)

// Pinned is page-locked host memory, which every context copies from and to at full speed. It has one owner, who frees
// it; copies hold it meanwhile. It belongs to one loop at a time, but Lend, Return and reading may come from any.
type Pinned struct {
	block   *block
	cleanup runtime.Cleanup // here, so that whoever stops it keeps the Pinned from being collected until then
}

// block is the part of pinned memory that must outlive a lost Pinned.
type block struct {
	context *Context
	handle  ContextHandle
	address uint64
	bytes   uint64
	uses    atomic.Int64
	life    life
	doubts  doubts
}

// AllocateHost makes pinned memory of at least one byte in the primary context of a GPU, of which it owns a share. Its
// bytes are undefined. Errors: *DeviceError, *CallError. Slow.
func (p *Platform) AllocateHost(ordinal int, bytes uint64) (*Pinned, error) {
	c, err := p.Context(ordinal)
	if err != nil {
		return nil, err
	}
	handle, err := c.Acquire()
	if err != nil {
		return nil, err
	}
	address, err := p.calls.AllocateHost(handle, bytes)
	if err = c.settle(err); err != nil {
		return nil, errors.Join(err, c.undone(err, KindPinned, fmt.Sprintf("pinned memory of %d bytes", bytes), "cuMemHostAlloc"))
	}
	p.counts.pinned.Add(1)
	p.counts.pinnedBytes.Add(int64(bytes))
	h := &Pinned{block: &block{context: c, handle: handle, address: address, bytes: bytes}}
	h.cleanup = runtime.AddCleanup(h, lostBlock, h.block)
	return h, nil
}

// lostBlock takes note of pinned memory that was collected without Free.
func lostBlock(b *block) {
	if b.life.stage() != open {
		return // it is retained for another reason
	}
	p := b.context.platform
	p.counts.lost.Add(1)
	b.life.retain(p, KindPinned, b.String(), &RetainedError{Object: b.String(), Call: "Free was never called", Err: errLost})
}

func (b *block) String() string {
	return fmt.Sprintf("pinned memory of %d bytes at %#x", b.bytes, b.address)
}

// String says length and address.
func (h *Pinned) String() string { return h.block.String() }

// Address is the first byte, in this process and on every device.
func (h *Pinned) Address() uint64 { return h.block.address }

// Bytes is the length.
func (h *Pinned) Bytes() uint64 { return h.block.bytes }

// Ordinal is the GPU in whose context it was made.
func (h *Pinned) Ordinal() int { return h.block.context.info.Ordinal }

// Covers is true exactly when all of [p, p+bytes) lies in it.
func (h *Pinned) Covers(p Pointer, bytes uint64) bool {
	a := h.block.address
	return uint64(p) >= a && bytes <= h.block.bytes && uint64(p)-a <= h.block.bytes-bytes
}

// Lend adds a user, such as a NIC's registration; with what is retained it answers with the reason.
func (h *Pinned) Lend() error { return h.lend() }

// Return ends one use; the caller has the proof that it is over.
func (h *Pinned) Return() { h.giveBack() }

// Uses is how many users and copies it has.
func (h *Pinned) Uses() int64 { return h.block.uses.Load() }

func (h *Pinned) lend() error {
	if err := h.block.life.mustNotBeOver(h, "Lend"); err != nil {
		return err
	}
	h.block.uses.Add(1)
	return nil
}

func (h *Pinned) giveBack() {
	if left := h.block.uses.Add(-1); left < 0 {
		panic(fmt.Sprintf("cuda: Return of %v with %d users, want at least 1", h, left+1))
	}
}

func (h *Pinned) keep(reason error) {
	h.block.doubts.unproven.Add(1)
	h.block.life.retain(h.block.context.platform, KindPinned, h.String(), reason)
}

func (h *Pinned) proven() error {
	if b := h.block; b.doubts.proof(&b.life, b.context.platform) {
		return h.Free()
	}
	return nil
}

// Retain keeps the memory for good, because the proof is missing that something is done with it.
func (h *Pinned) Retain(reason error) {
	h.block.doubts.bound.Store(true)
	h.block.life.retain(h.block.context.platform, KindPinned, h.String(), &RetainedError{Object: h.String(), Call: noProof, Err: reason})
}

// Retained says why it stays for good; nil: it does not.
func (h *Pinned) Retained() error {
	if h.block.life.stage() == retained {
		return h.block.life.reason
	}
	return nil
}

// Free ends the memory and its share of the context, once; a later call gives the same answer. *BusyError while it is in
// use; *RetainedError when the driver refuses, which is final. Slow.
func (h *Pinned) Free() error {
	b := h.block
	switch b.life.stage() {
	case gone:
		return nil
	case retained:
		if b.doubts.orphan(&b.life) {
			return b.life.reason
		}
	}
	if left := busy(b.String(), false, Debt{"users", b.uses.Load()}); left != nil {
		return left
	}
	h.cleanup.Stop()
	counts := &b.context.platform.counts
	err := b.life.end(b.context, part{kind: KindPinned, name: b.String(), call: "cuMemFreeHost", live: &counts.pinned, bytes: &counts.pinnedBytes, length: int64(b.bytes),
		native: func() error { return b.context.platform.calls.FreeHost(b.handle, b.address) }})
	if err != nil {
		return err
	}
	return b.context.Drop()
}
