//go:build linux

package libcuda

// #include "abi.h"
// #include "shim.h"
// #cgo noescape orbcu_device_count
// #cgo nocallback orbcu_device_count
// #cgo noescape orbcu_device
// #cgo nocallback orbcu_device
// #cgo noescape orbcu_acquire
// #cgo nocallback orbcu_acquire
// #cgo nocallback orbcu_release
// #cgo noescape orbcu_active
// #cgo nocallback orbcu_active
import "C"

import (
	"unsafe"

	"github.com/orbitte/orbitte/cuda"
)

// Devices lists the GPUs that CUDA_VISIBLE_DEVICES leaves to this process.
func (l *library) Devices() ([]cuda.DeviceInfo, error) {
	const call = "cuDeviceGetCount"
	var count C.int
	host := func() string { return "this host" }
	if err := l.behind(l.makes, call, host, func() C.struct_orbcu_done { return C.orbcu_device_count(l.c, &count) }); err != nil {
		return nil, err
	}
	all := make([]cuda.DeviceInfo, 0, int(count))
	for ordinal := range int(count) {
		var c C.struct_orbcu_device
		err := l.behind(l.makes, "cuDeviceGet", gpu(ordinal), func() C.struct_orbcu_done { return C.orbcu_device(l.c, C.int(ordinal), &c) })
		if err != nil {
			return nil, err
		}
		all = append(all, l.info(ordinal, &c))
	}
	return all, nil
}

func (l *library) info(ordinal int, c *C.struct_orbcu_device) cuda.DeviceInfo {
	pci := busName(text(c.pci[:]))
	info := cuda.DeviceInfo{
		Ordinal: ordinal, Name: text(c.name[:]), PCI: pci, NUMANode: numaNode(l.bus, pci), Memory: uint64(c.memory),
		Major: int(c.major), Minor: int(c.minor), Unified: c.unified != 0, Prohibited: c.prohibited != 0,
		VirtualMemory: c.virtual_memory != 0, GPUDirect: c.gpudirect != 0, GPUDirectVM: c.gpudirect_vm != 0,
		// A device may promise what the driver is too old to do.
		DMABuf:            c.dma_buf != 0 && C.orbcu_can_export(l.c) != 0,
		FlushHost:         c.flush_options&C.ORB_CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST != 0,
		WriteOrderedOwner: c.ordering >= C.ORB_CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER,
		WriteOrderedAll:   c.ordering >= C.ORB_CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES,
		CopyEngines:       int(c.engines),
	}
	copy(info.UUID[:], unsafe.Slice((*byte)(unsafe.Pointer(&c.uuid[0])), len(c.uuid)))
	return info
}

func (l *library) AcquirePrimary(ordinal int) (cuda.ContextHandle, error) {
	var out C.uint64_t
	err := l.behind(l.makes, "cuDevicePrimaryCtxRetain", gpu(ordinal), func() C.struct_orbcu_done {
		return C.orbcu_acquire(l.c, C.int(ordinal), &out)
	})
	return cuda.ContextHandle(out), err
}

func (l *library) ReleasePrimary(ordinal int) error {
	return l.behind(l.ends, "cuDevicePrimaryCtxRelease_v2", gpu(ordinal), func() C.struct_orbcu_done {
		return C.orbcu_release(l.c, C.int(ordinal))
	})
}

func (l *library) PrimaryActive(ordinal int) (bool, error) {
	var active C.int
	done := C.orbcu_active(l.c, C.int(ordinal), &active)
	return active != 0, l.fail(done, gpu(ordinal))
}
