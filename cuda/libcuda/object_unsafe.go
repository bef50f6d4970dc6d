//go:build linux

package libcuda

// #include "shim.h"
// #cgo noescape orbcu_alloc
// #cgo nocallback orbcu_alloc
// #cgo noescape orbcu_alloc_host
// #cgo nocallback orbcu_alloc_host
// #cgo noescape orbcu_create_stream
// #cgo nocallback orbcu_create_stream
// #cgo noescape orbcu_create_event
// #cgo nocallback orbcu_create_event
// #cgo nocallback orbcu_end
// #cgo noescape orbcu_attributes
// #cgo nocallback orbcu_attributes
// #cgo nocallback orbcu_sync_memops
// #cgo nocallback orbcu_flush
// #cgo noescape orbcu_export
// #cgo nocallback orbcu_export
import "C"

import (
	"errors"

	"github.com/orbitte/orbitte/cuda"
)

// end ends an object. It always waits for its place: a refused end would leave the object for good.
func (l *library) end(call string, what C.int, c cuda.ContextHandle, object uint64, kind string) error {
	return l.behind(l.ends, call, name(kind, object), func() C.struct_orbcu_done {
		return C.orbcu_end(l.c, what, C.uint64_t(c), C.uint64_t(object))
	})
}

func (l *library) Allocate(c cuda.ContextHandle, bytes uint64) (cuda.Pointer, error) {
	var out C.uint64_t
	err := l.behind(l.makes, "cuMemAlloc_v2", name("context", c), func() C.struct_orbcu_done {
		return C.orbcu_alloc(l.c, C.uint64_t(c), C.uint64_t(bytes), &out)
	})
	return cuda.Pointer(out), err
}

func (l *library) Free(c cuda.ContextHandle, p cuda.Pointer) error {
	return l.end("cuMemFree_v2", C.ORBCU_END_MEMORY, c, uint64(p), "device memory")
}

func (l *library) AllocateHost(c cuda.ContextHandle, bytes uint64) (uint64, error) {
	var out C.uint64_t
	err := l.behind(l.makes, "cuMemHostAlloc", name("context", c), func() C.struct_orbcu_done {
		return C.orbcu_alloc_host(l.c, C.uint64_t(c), C.uint64_t(bytes), &out)
	})
	return uint64(out), err
}

func (l *library) FreeHost(c cuda.ContextHandle, address uint64) error {
	return l.end("cuMemFreeHost", C.ORBCU_END_HOST, c, address, "pinned host memory")
}

func (l *library) CreateStream(c cuda.ContextHandle) (cuda.StreamHandle, error) {
	var out C.uint64_t
	err := l.behind(l.makes, "cuStreamCreate", name("context", c), func() C.struct_orbcu_done {
		return C.orbcu_create_stream(l.c, C.uint64_t(c), &out)
	})
	return cuda.StreamHandle(out), err
}

func (l *library) DestroyStream(c cuda.ContextHandle, s cuda.StreamHandle) error {
	return l.end("cuStreamDestroy_v2", C.ORBCU_END_STREAM, c, uint64(s), "stream")
}

func (l *library) CreateEvent(c cuda.ContextHandle) (cuda.EventHandle, error) {
	var out C.uint64_t
	err := l.behind(l.makes, "cuEventCreate", name("context", c), func() C.struct_orbcu_done {
		return C.orbcu_create_event(l.c, C.uint64_t(c), &out)
	})
	return cuda.EventHandle(out), err
}

func (l *library) DestroyEvent(c cuda.ContextHandle, e cuda.EventHandle) error {
	return l.end("cuEventDestroy_v2", C.ORBCU_END_EVENT, c, uint64(e), "event")
}

// Attributes asks in no context: the driver answers for the whole process.
func (l *library) Attributes(address uint64) (cuda.PointerInfo, error) {
	var c C.struct_orbcu_pointer
	done := C.orbcu_attributes(l.c, C.uint64_t(address), &c)
	info := cuda.PointerInfo{
		Type: cuda.MemoryType(c._type), Managed: c.managed != 0, Context: cuda.ContextHandle(c.context), Ordinal: int(c.ordinal),
		Start: cuda.Pointer(c.start), Bytes: uint64(c.bytes), BufferID: uint64(c.buffer),
		GPUDirect: c.gpudirect != 0, SyncMem: c.sync != 0,
	}
	info.Virtual = info.Type == cuda.MemoryDevice && !info.Managed && info.Context == 0
	if done.result != 0 {
		return info, l.fail(done, name("memory", address))
	}
	return info, nil
}

func (l *library) SetSyncMemOps(c cuda.ContextHandle, p cuda.Pointer) error {
	return l.fail(C.orbcu_sync_memops(l.c, C.uint64_t(c), C.uint64_t(p)), name("device memory", p))
}

func (l *library) FlushWrites(c cuda.ContextHandle, all bool) error {
	wide := C.int(0)
	if all {
		wide = 1
	}
	return l.behind(l.waits, "cuFlushGPUDirectRDMAWrites", name("context", c), func() C.struct_orbcu_done {
		return C.orbcu_flush(l.c, C.uint64_t(c), wide)
	})
}

// ExportRange fails with *TooOld on a driver that has no such function.
func (l *library) ExportRange(c cuda.ContextHandle, p cuda.Pointer, bytes uint64) (int, error) {
	const call = "cuMemGetHandleForAddressRange"
	out := C.int(-1)
	err := l.behind(l.makes, call, name("device memory", p), func() C.struct_orbcu_done {
		return C.orbcu_export(l.c, C.uint64_t(c), C.uint64_t(p), C.uint64_t(bytes), &out)
	})
	var refused *cuda.CallError
	if C.orbcu_can_export(l.c) == 0 && errors.As(err, &refused) {
		err = &TooOld{What: call, Path: l.what.Path, Has: l.what.Version, Needs: exportMin, Call: refused}
	}
	return int(out), err
}
