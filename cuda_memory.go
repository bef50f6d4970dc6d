package orbitte

import (
	"errors"
	"sync/atomic"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/segments"
)

// MemoryType says where the bytes of a memory object or of a peer's region are.
type MemoryType = netproto.MemoryType

const (
	MemoryHost = netproto.MemoryHost // pinned host memory is host memory
	MemoryCUDA = netproto.MemoryCUDA // on a GPU: no CPU can read or write it
)

// AnyGPU lets AdoptDevice take memory of whichever GPU it is on.
const AnyGPU = cuda.AnyOrdinal

var (
	errNoDriver = errors.New("there is no CUDA driver: pass what cuda/libcuda.Load returned, and do not go on if it failed")
	errNoCUDA   = lacking("this engine has no CUDA: Config.CUDA is not set, so that it cannot copy from or to device memory",
		"open the engine with Config.CUDA, set to what cuda/libcuda.Load returned")
	errOtherDriver = errors.New("the memory is of another CUDA driver than Config.CUDA")
)

// AllocateDevice takes length bytes of memory on a GPU, filled with zeros (SPEC C-2). It has an address, which requests
// name, and no Bytes: requests move its content, a request to the engine's own segment too. It holds the GPU's primary
// context until it has ended, and touches no other GPU. Slow. Errors: ErrInvalid, ErrUnavailable (no driver, no such GPU),
// ErrExhausted, ErrUnquiesced, ErrSystem; the cause says more (cuda.DeviceError, cuda.CallError).
func AllocateDevice(driver cuda.Calls, ordinal, length int) (*Memory, error) {
	if length <= 0 {
		return nil, &Error{Op: "AllocateDevice", Index: -1, Class: ErrInvalid, Cause: errNoBytes}
	}
	return ofDriver("AllocateDevice", driver, func(p *cuda.Platform) (*Memory, error) {
		native, err := p.Allocate(ordinal, uint64(length))
		if err != nil {
			return nil, err
		}
		return deviceMemory(p, native, native.Pointer(), uint64(length))
	})
}

// AdoptDevice takes over length bytes at a device pointer that somebody else allocated and frees: from cuMemAlloc in the
// primary context of the GPU (also AnyGPU), which the driver must hold already, from cuMemMap, or from a pool. What the
// driver knows is checked: host, managed, unknown and freed memory, that of another context or GPU, and a range that leaves
// its allocation are refused. Aliases of one allocation share one lease table, in all engines of the process (SPEC C-2,
// M-9). The allocation must stay until the memory has ended; owner is kept alive as long and may be nil. Slow. Errors:
// ErrInvalid with a *cuda.AdoptionError as cause, otherwise as AllocateDevice.
func AdoptDevice(driver cuda.Calls, ordinal int, pointer uint64, length int, owner any) (*Memory, error) {
	if length <= 0 {
		return nil, &Error{Op: "AdoptDevice", Index: -1, Class: ErrInvalid, Cause: errNoBytes}
	}
	return ofDriver("AdoptDevice", driver, func(p *cuda.Platform) (*Memory, error) {
		native, err := p.Adopt(ordinal, cuda.Pointer(pointer), uint64(length), owner)
		if err != nil {
			return nil, err
		}
		return deviceMemory(p, native, cuda.Pointer(pointer), uint64(length))
	})
}

// AllocatePinnedHost takes length bytes of page-locked host memory from the driver, which GPUs copy from and to at full
// speed. It is host memory like any other: engines without CUDA take it, too. Its bytes are not zeroed. It holds the
// primary context of the GPU with this ordinal until it has ended. Slow. Errors as AllocateDevice.
func AllocatePinnedHost(driver cuda.Calls, ordinal, length int) (*Memory, error) {
	if length <= 0 {
		return nil, &Error{Op: "AllocatePinnedHost", Index: -1, Class: ErrInvalid, Cause: errNoBytes}
	}
	return ofDriver("AllocatePinnedHost", driver, func(p *cuda.Platform) (*Memory, error) {
		native, err := p.AllocateHost(ordinal, uint64(length))
		if err != nil {
			return nil, err
		}
		d := &driverMemory{platform: p, pinned: native}
		d.holders.Store(1)
		d.backing, err = segments.AdoptHost(native.Address(), uint64(length), native, d.freePinned)
		if err != nil {
			return nil, errors.Join(err, native.Free())
		}
		return &Memory{backing: d.backing, length: uint64(length), driver: d}, nil
	})
}

// ofDriver makes memory on a driver, which it keeps open for as long as the memory lives.
func ofDriver(op string, driver cuda.Calls, make func(*cuda.Platform) (*Memory, error)) (*Memory, error) {
	if driver == nil {
		return nil, &Error{Op: op, Index: -1, Class: ErrUnavailable, Cause: errNoDriver, situation: allocating}
	}
	platform, err := cuda.Open(driver)
	if err != nil {
		return nil, in(allocating, failure(op, err))
	}
	m, err := make(platform)
	if err != nil {
		return nil, in(allocating, failure(op, errors.Join(err, platform.Close())))
	}
	return m, nil
}

// deviceMemory is a part of a device memory object, of which the caller hands its one hold over.
func deviceMemory(p *cuda.Platform, native *cuda.Memory, pointer cuda.Pointer, length uint64) (*Memory, error) {
	shared, err := native.Companion(func() (cuda.Companion, error) {
		return segments.AdoptDevice(uint64(native.Pointer()), native.Bytes(), native, nil)
	})
	if err != nil {
		return nil, errors.Join(err, native.Drop())
	}
	d := &driverMemory{platform: p, device: native, backing: shared.(*segments.Backing)}
	d.holders.Store(1)
	return &Memory{backing: d.backing, offset: uint64(pointer - native.Pointer()), length: length, driver: d}, nil
}

// driverMemory is what one handle from AllocateDevice, AdoptDevice or AllocatePinnedHost has of the driver: one hold of
// the device memory object, or the pinned memory, and one user of the platform. Its holders are the handle, calls under
// way with it, and the registrations that were made with it; the last one ends it, which is slow and never happens on a
// data lane.
//
//	held ──last drop──▶ gone, or retained by the platform, which lists it
type driverMemory struct {
	platform *cuda.Platform
	device   *cuda.Memory // nil: pinned host memory
	pinned   *cuda.Pinned
	backing  *segments.Backing // alive while this is held
	holders  atomic.Int64
}

// tryHold adds a holder unless the last one is gone.
func (d *driverMemory) tryHold() bool {
	for {
		n := d.holders.Load()
		if n < 1 {
			return false
		}
		if d.holders.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// drop ends a holder. The error says what the driver refused to end.
func (d *driverMemory) drop() error {
	if d.holders.Add(-1) > 0 {
		return nil
	}
	if d.device == nil {
		d.backing.Drop()
		return d.pinned.Retained()
	}
	err := d.device.Drop()
	return errors.Join(err, d.leave())
}

// leave ends the use of the platform. What is retained stays known to it, and does not keep it open.
func (d *driverMemory) leave() error { return d.platform.Close() }

// freePinned follows the end of the memory object, on a goroutine that may wait.
func (d *driverMemory) freePinned() {
	_ = d.pinned.Free() // a refusal is retained by the platform, which lists it
	_ = d.leave()
}
