package cuda

// Handles name native objects. They are opaque: the driver's own numbers, never dereferenced here, valid from the
// call that made the object until the call that destroyed it. Zero names nothing.
type (
	// ContextHandle is a primary context (CUcontext).
	ContextHandle uint64
	// StreamHandle is a stream (CUstream); never the default stream.
	StreamHandle uint64
	// EventHandle is an event (CUevent).
	EventHandle uint64
	// SignalHandle is an eventfd together with the count of host callbacks that will still write to it.
	SignalHandle uint64
)

// Pointer is an address in the device's or the host's half of the unified address space (CUdeviceptr).
type Pointer uint64

// Calls is the driver behind everything in this package, one method for each raw call or for one short list of them
// that has to run together. A program gets one from cuda/libcuda (the real driver) or cuda/simcuda (the twin) and
// passes it in the engine's configuration.
//
// Contexts: a driver call acts on the calling thread's current context. Each method that takes a ContextHandle makes it
// current, acts, and puts back what was current before, in one crossing on one thread; so it does not matter on which
// thread or goroutine a method is called, and the caller's thread never keeps a context. When the old context cannot be
// put back, the error is a *CallError of "cuCtxPopCurrent_v2" with Effect Done: what was asked has happened.
//
// Every method may be called from any goroutine; calls about one object are serialised by its owner in this package,
// except Submit: several threads may submit to one stream at the same time, each with an event of its own.
// No method keeps a slice that it was given. Only methods marked "slow" may block (they belong on the cold loop or a
// caller's goroutine, never on a data lane). Submit, Query, TakeSignal and Attributes allocate nothing unless they fail.
// A failure is a *CallError.
//
// A driver is one value: whoever loads the same driver twice in a process gets values that compare equal, since owners
// of all engines share what belongs to one driver (Open).
type Calls interface {
	// Library says what was loaded.
	Library() Library

	// Devices lists the devices that the process can see, by ordinal (cuDeviceGetCount, cuDeviceGetAttribute and
	// others). It makes no context. Slow.
	Devices() ([]DeviceInfo, error)

	// AcquirePrimary is cuDevicePrimaryCtxRetain: it makes the device's primary context, or counts one more user of
	// it. Slow.
	AcquirePrimary(ordinal int) (ContextHandle, error)
	// ReleasePrimary is cuDevicePrimaryCtxRelease_v2, in balance with AcquirePrimary. Slow.
	ReleasePrimary(ordinal int) error
	// PrimaryActive is cuDevicePrimaryCtxGetState: whether anybody in the process holds the device's primary context.
	PrimaryActive(ordinal int) (bool, error)

	// Allocate is cuMemAlloc_v2. The bytes are undefined. Slow.
	Allocate(c ContextHandle, bytes uint64) (Pointer, error)
	// Free is cuMemFree_v2. It waits for work on the memory. Slow.
	Free(c ContextHandle, p Pointer) error
	// AllocateHost is cuMemHostAlloc with CU_MEMHOSTALLOC_PORTABLE: page-locked memory of this process that every
	// context may copy from and to at full speed. The bytes are undefined. Slow.
	AllocateHost(c ContextHandle, bytes uint64) (address uint64, err error)
	// FreeHost is cuMemFreeHost. Slow.
	FreeHost(c ContextHandle, address uint64) error

	// Attributes describes the memory behind an address (cuPointerGetAttributes, cuMemGetAddressRange_v2). Memory that
	// the driver does not know is MemoryUnknown and no error.
	Attributes(address uint64) (PointerInfo, error)
	// SetSyncMemOps sets CU_POINTER_ATTRIBUTE_SYNC_MEMOPS for the whole allocation behind the pointer. It cannot be
	// taken back.
	SetSyncMemOps(c ContextHandle, p Pointer) error

	// CreateStream is cuStreamCreate with CU_STREAM_NON_BLOCKING. Slow.
	CreateStream(ContextHandle) (StreamHandle, error)
	// DestroyStream is cuStreamDestroy_v2. It is clean-up and proves nothing about work on the stream. Slow.
	DestroyStream(ContextHandle, StreamHandle) error
	// CreateEvent is cuEventCreate with CU_EVENT_DISABLE_TIMING. Slow.
	CreateEvent(ContextHandle) (EventHandle, error)
	// DestroyEvent is cuEventDestroy_v2. Slow.
	DestroyEvent(ContextHandle, EventHandle) error

	// OpenSignal makes an eventfd, non-blocking and closed on exec, that host callbacks write to.
	OpenSignal() (SignalHandle, error)
	// SignalDescriptor is the file descriptor that becomes readable when a callback has run.
	SignalDescriptor(SignalHandle) int
	// TakeSignal reads the descriptor without blocking, so that it is no longer readable, and says how many callbacks
	// have run since it was last read; 0: none. (A method, since a twin's descriptor is no file.)
	TakeSignal(SignalHandle) (callbacks uint64, err error)
	// CloseSignal gives the signal up. While callbacks are owed the descriptor stays open, since a callback that
	// came late would write to a stranger's file; the last one closes it. owed is how many.
	CloseSignal(SignalHandle) (owed int)

	// Submit puts, in this order and in one crossing, every copy on the stream (cuMemcpyAsync), then the event
	// (cuEventRecord), then a host callback that writes to the signal (cuLaunchHostFunc), unless the signal is zero.
	// It stops at the first failure and says how far it came; what came before stays on the stream. Only the event,
	// recorded after the copies and complete, proves them. A callback is a hint that may come late, or never after a
	// failure of the context.
	Submit(ContextHandle, StreamHandle, []Copy, EventHandle, SignalHandle) (Submitted, error)
	// Query is cuEventQuery: true when everything before the event's last record is complete; CUDA_ERROR_NOT_READY is
	// false and no error. An event that was never recorded is complete.
	Query(ContextHandle, EventHandle) (bool, error)
	// Synchronize is cuStreamSynchronize. Slow.
	Synchronize(ContextHandle, StreamHandle) error
	// Zero puts cuMemsetD8Async(p, 0, bytes) on the stream.
	Zero(c ContextHandle, s StreamHandle, p Pointer, bytes uint64) error

	// FlushWrites is cuFlushGPUDirectRDMAWrites of the context's device: writes that a NIC has finished before become
	// visible, to the owning context only or to all devices. Slow.
	FlushWrites(c ContextHandle, all bool) error
	// ExportRange is cuMemGetHandleForAddressRange: a DMA-BUF descriptor, owned by the caller, of a page-aligned part
	// of an allocation. Slow.
	ExportRange(c ContextHandle, p Pointer, bytes uint64) (descriptor int, err error)
}

// Library says which driver stands behind Calls.
type Library struct {
	Name    string // "libcuda" or "simcuda"
	Path    string // the file that the loader took; empty for a twin
	Version int    // cuDriverGetVersion: 1000 × major + 10 × minor, such as 12040
}

// DeviceInfo is one GPU.
type DeviceInfo struct {
	Ordinal  int
	Name     string // "NVIDIA H200"
	UUID     [16]byte
	PCI      string // "0000:18:00.0", lower case; empty: unknown
	NUMANode int    // of the PCI device; -1: unknown
	Memory   uint64 // bytes, total
	Major    int    // compute capability
	Minor    int

	Unified           bool // CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
	Prohibited        bool // CU_COMPUTEMODE_PROHIBITED: no context can be made
	VirtualMemory     bool // CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
	GPUDirect         bool // CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED
	GPUDirectVM       bool // CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
	DMABuf            bool // CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
	FlushHost         bool // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST: FlushWrites works
	WriteOrderedOwner bool // writes are visible to the owning device without a flush
	WriteOrderedAll   bool // and to all devices
	CopyEngines       int  // CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT
}

// MemoryType is CUmemorytype, with its numbers.
type MemoryType uint32

const (
	MemoryUnknown MemoryType = 0 // the driver does not know the address
	MemoryHost    MemoryType = 1
	MemoryDevice  MemoryType = 2
)

// PointerInfo describes the allocation behind an address.
type PointerInfo struct {
	Type      MemoryType
	Managed   bool          // may move between host and devices
	Context   ContextHandle // that it was allocated in; zero: none, as for memory of the virtual-memory API and of pools
	Ordinal   int           // the device; -1: none
	Start     Pointer       // the allocation's first byte
	Bytes     uint64        // the allocation's length
	BufferID  uint64        // unique in the process: an address that was freed and given out again has another
	Virtual   bool          // made by the virtual-memory API (cuMemMap), or by a pool: no context, its own export rules
	GPUDirect bool          // CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
	SyncMem   bool          // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS is set
}

// Copy is one cuMemcpyAsync: the driver finds out from the addresses where each side lives. Its layout is shared with the
// C side (cuda/libcuda proves it), so that a list crosses without a copy.
type Copy struct {
	To, From Pointer
	Bytes    uint64 // at least one
}

// Submitted says how far Submit came.
type Submitted struct {
	Copies   int  // copies that the driver took
	Unknown  bool // the copy after them, or the record, failed in a way that may have started it
	Recorded bool // the event was recorded behind all copies
	Signaled bool // the callback was accepted
}
