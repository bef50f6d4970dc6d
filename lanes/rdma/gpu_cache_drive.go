package rdma

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/verbs"
)

// DeviceWay is how network devices reach memory on a GPU: the one that was seen to work (SPEC W-8).
type DeviceWay uint8

const (
	WayNone       DeviceWay = iota // it is host memory
	WayDescriptor                  // a DMA-BUF of the GPU's driver
	WayPeer                        // by address, which the module nvidia-peermem makes possible
)

func (w DeviceWay) String() string { return [...]string{"none", "dma-buf", "peermem"}[w] }

// DirectError says why network devices cannot reach memory on a GPU. Nothing was registered, and nothing is staged instead.
type DirectError struct {
	Object string
	Why    string
	Remedy string
	Err    error // what a native call said; nil: none was made
}

func (e *DirectError) Error() string {
	text := fmt.Sprintf("no direct RDMA (GPUDirect) for %s: %s", e.Object, e.Why)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text + "; " + e.Remedy + ", or stage device memory"
}

// Unwrap gives the native error.
func (e *DirectError) Unwrap() error { return e.Err }

// RegisterDevice registers memory on a GPU on every usable network device, for this side's work requests only: no window
// reaches it, and a grant has a region of its own (SPEC C-6, C-7). All or nothing; what cannot be taken back stays, and the
// GPU's memory with it. Otherwise it is as Register. The errors are also *DirectError, and those of package cuda.
//
// Memory without a context (the virtual-memory API, pools) is reached where the driver says that it can be, and by DMA-BUF
// only, which keeps the memory there though somebody unmaps its address. The driver has no SYNC_MEMOPS for it, so that its
// owner's "synchronous" copies may still run when they return; it is refused unless Config.Unsynced says that he knows.
func (t *Transport) RegisterDevice(m *cuda.Memory, address, length uint64) (*Registered, error) {
	if err := directable(m, t.config.Unsynced); err != nil {
		return nil, err
	}
	return t.register(view{address: address, length: length}, m)
}

// directable checks what has to be so before a network device may reach the memory, and sets what has to be set.
func directable(m *cuda.Memory, unsynced bool) error {
	a := m.Abilities()
	e := &DirectError{Object: m.String(), Why: a.Missing, Remedy: "use memory of cuMemAlloc on a GPU with GPUDirect RDMA"}
	switch {
	case a.Missing != "":
		return e
	case !a.SyncMemOps && !a.Export:
		e.Why = "memory of the virtual-memory API, or of a pool, is reached by DMA-BUF only, and the GPU or its driver makes none of it"
		return e
	case !a.Ordered && !a.FlushWrites:
		e.Why, e.Remedy = "the GPU neither orders the writes of network devices nor flushes them", "use another GPU"
		return e
	}
	if !a.SyncMemOps {
		if unsynced {
			return nil
		}
		e.Why = "the driver cannot set CU_POINTER_ATTRIBUTE_SYNC_MEMOPS on memory of the virtual-memory API, or of a pool, so that your own synchronous copies may still run when a network device reads it, and when it has written it"
		e.Remedy = "use memory of cuMemAlloc, or set Config.RDMA.DirectWithoutSyncMemOps and wait for your copies as it says"
		return e
	}
	if err := m.SetSyncMemOps(); err != nil {
		e.Why, e.Remedy, e.Err = "CU_POINTER_ATTRIBUTE_SYNC_MEMOPS cannot be set", "see the driver's error", err
		return e
	}
	return nil
}

// flushes is true exactly when finished writes of a network device are not visible to the GPU without a flush.
func flushes(m *cuda.Memory) bool { return m != nil && !m.Abilities().Ordered }

// Way is how devices reach the memory.
func (g *Registered) Way() DeviceWay { return g.way }

// reach registers a part of the view in a domain. The first success decides the way for all that follow. Slow.
func (g *Registered) reach(d *verbs.Domain, address, length uint64, a verbs.Access) (*verbs.MemoryRegion, error) {
	var unable error
	if g.way != WayPeer {
		region, err := g.export(d, address, length, a)
		if err == nil && g.way == WayNone {
			g.way = WayDescriptor
		}
		if err == nil || g.way == WayDescriptor || !unsupported(err) {
			return region, g.refused(err)
		}
		if unable = err; !g.gpu.Abilities().SyncMemOps {
			return nil, &DirectError{Object: g.gpu.String(), Why: "memory of the virtual-memory API, or of a pool, is reached by DMA-BUF only", Err: err,
				Remedy: "use a kernel and a library with ibv_reg_dmabuf_mr, or memory of cuMemAlloc"}
		}
	}
	region, err := d.Register(address, length, a)
	if err == nil && g.way == WayNone {
		g.way = WayPeer
	}
	if err != nil && unable != nil {
		err = errors.Join(unable, err)
	}
	return region, g.refused(err)
}

func (g *Registered) refused(err error) error {
	if err == nil {
		return nil
	}
	return &DirectError{Object: g.gpu.String(), Why: "a network device did not take it", Err: err,
		Remedy: "load the module nvidia-peermem, or use a kernel and a library with ibv_reg_dmabuf_mr for a range that fills its pages"}
}

// errPages says that a DMA-BUF cannot stand for a range.
var errPages = errors.New("rdma: the pages of the range are not all of its allocation, and a DMA-BUF has whole pages")

// unsupported is true exactly for an error after which a registration by address may work.
func unsupported(err error) bool {
	var call *cuda.CallError
	return errors.Is(err, errPages) || errors.As(err, &call) && call.Result == cuda.NotSupported && call.Effect == cuda.None ||
		errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS)
}

// export registers by a DMA-BUF of the pages around the range; the region is of the range itself. The region keeps the
// DMA-BUF, so that the descriptor is closed at once.
func (g *Registered) export(d *verbs.Domain, address, length uint64, a verbs.Access) (*verbs.MemoryRegion, error) {
	page := uint64(syscall.Getpagesize())
	start := address &^ (page - 1)
	bytes := (address + length - start + page - 1) &^ (page - 1)
	if !g.gpu.Abilities().Export || !g.gpu.Covers(cuda.Pointer(start), bytes) {
		return nil, errPages
	}
	descriptor, err := g.gpu.ExportRange(cuda.Pointer(start), bytes)
	if err != nil {
		return nil, err
	}
	defer func() { _ = syscall.Close(descriptor) }()
	return d.RegisterDescriptor(address-start, length, address, descriptor, a)
}
