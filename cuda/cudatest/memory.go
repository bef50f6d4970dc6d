package cudatest

import (
	"runtime"

	"github.com/orbitte/orbitte/cuda"
)

var memoryCases = []conformance{
	{"DeviceMemoryIsDescribed", describeDevice},
	{"PinnedMemoryIsDescribedAndReadable", describePinned},
	{"OtherMemoryIsUnknown", describeOther},
	{"FreedMemoryIsForgotten", describeFreed},
	{"SyncMemOpsIsSetForTheAllocation", syncMemOps},
	{"SizesThatCannotBeAreRefused", wrongSizes},
	{"WhatIsNotAllocatedIsNotFreed", wrongFrees},
}

// describeDevice: cuPointerGetAttributes, cuMemGetAddressRange.
func describeDevice(r *rig) {
	for _, ordinal := range r.Ordinals {
		s := r.site(ordinal)
		const size = 100_003
		p := s.allocate(size)
		for _, offset := range []uint64{0, 1, 4097, size - 1} {
			info, err := r.Attributes(uint64(p) + offset)
			r.must(err)
			if info.Type != cuda.MemoryDevice || info.Managed || info.Virtual || info.Context != s.context || info.Ordinal != ordinal ||
				info.Start != p || info.Bytes != size || info.BufferID == 0 {
				r.Errorf("device memory of %d bytes at %#x, offset %d: %+v", size, uint64(p), offset, info)
			}
		}
		other := s.allocate(size)
		one, err := r.Attributes(uint64(p))
		r.must(err)
		two, err := r.Attributes(uint64(other))
		r.must(err)
		if one.BufferID == two.BufferID {
			r.Errorf("two allocations have buffer id %d", one.BufferID)
		}
	}
}

func describePinned(r *rig) {
	s := r.site(r.Ordinals[0])
	h := s.pinned(10_001)
	info, err := r.Attributes(h.address + 17)
	r.must(err)
	if info.Type != cuda.MemoryHost || info.Managed {
		r.Errorf("pinned memory: %+v", info)
	}
	counting(h.bytes, 3)
	r.same("pinned memory", h.bytes, counting(make([]byte, 10_001), 3))
}

// describeOther: memory that CUDA has nothing to do with has no type, and that is no error.
func describeOther(r *rig) {
	r.site(r.Ordinals[0])
	heap := make([]byte, 100)
	for _, address := range []uint64{8, addressOf(heap)} {
		if info, err := r.Attributes(address); err != nil || info.Type != cuda.MemoryUnknown {
			r.Errorf("address %#x: %+v, %v", address, info, err)
		}
	}
	runtime.KeepAlive(heap)
}

func describeFreed(r *rig) {
	s := r.site(r.Ordinals[0])
	p, err := r.Allocate(s.context, 5000)
	r.must(err)
	was, err := r.Attributes(uint64(p))
	r.must(err)
	r.must(r.Free(s.context, p))
	now, err := r.Attributes(uint64(p))
	r.must(err)
	if r.Facts.ForgetsFreed.Holds && now.Type != cuda.MemoryUnknown {
		r.Errorf("freed memory: %+v", now)
	}
	next, err := r.Attributes(uint64(s.allocate(5000)))
	r.must(err)
	if next.BufferID == was.BufferID {
		r.Errorf("an allocation has the buffer id of a freed one: %d", was.BufferID)
	}
}

// syncMemOps: CU_POINTER_ATTRIBUTE_SYNC_MEMOPS.
func syncMemOps(r *rig) {
	s := r.site(r.Ordinals[0])
	p := s.allocate(8192)
	r.must(r.SetSyncMemOps(s.context, p))
	if info, err := r.Attributes(uint64(p) + 4096); err != nil || !info.SyncMem {
		r.Errorf("SYNC_MEMOPS was set: %+v, %v", info, err)
	}
}

// wrongSizes: cuMemAlloc: CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY.
func wrongSizes(r *rig) {
	s := r.site(r.Ordinals[0])
	_, err := r.Allocate(s.context, 0)
	r.refused("an allocation of nothing", err, cuda.InvalidValue)
	_, err = r.Allocate(s.context, 1<<52)
	r.refused("an allocation of 4 PiB", err, cuda.OutOfMemory, cuda.InvalidValue)
	s.allocate(1) // the context is none the worse
}

// wrongFrees: cuMemFree, cuMemFreeHost: CUDA_ERROR_INVALID_VALUE.
func wrongFrees(r *rig) {
	s := r.site(r.Ordinals[0])
	p := s.allocate(8192)
	r.refused("a free inside an allocation", r.Free(s.context, p+4096), cuda.InvalidValue)
	h := s.pinned(4096)
	r.refused("a free of host memory as device memory", r.Free(s.context, cuda.Pointer(h.address)), cuda.InvalidValue)
	s.store(p, counting(make([]byte, 8192), 1)) // both are still there
	r.same("memory after refused frees", s.load(p, 8192), counting(make([]byte, 8192), 1))
}
