package orbitte

import (
	"errors"
	"fmt"
	"testing"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// adoptedFrom is memory that somebody else made.
func adoptedFrom(t testing.TB, d *simcuda.Driver, p cuda.Pointer, size int) *Memory {
	t.Helper()
	m, err := AdoptDevice(d, AnyGPU, uint64(p), size, nil)
	must(t, err)
	t.Cleanup(func() {
		must(t, m.Close())
		d.Unmake(p)
	})
	return m
}

// virtual is memory of cuMemCreate that network devices may reach.
func virtual(t testing.TB, d *simcuda.Driver, size int) *Memory {
	return adoptedFrom(t, d, d.MakeVirtual(1, uint64(size), true), size)
}

// unsynced is direct for those who wait for their own copies.
func unsynced(t testing.TB) Config {
	c := direct(t)
	c.RDMA.DirectWithoutSyncMemOps = true
	return c
}

// Memory on which SYNC_MEMOPS cannot be set is refused, though GPU, memory, kernel and library could have it reached: its
// owner's copies would not be waited for. The refusal says so, and what to do; it is the same on both sides, and leaves nothing.
//
// proves C-6
func TestMemoryWithoutSyncMemOpsIsRefusedUnlessItsOwnerWaits(t *testing.T) {
	for _, allowed := range []bool{false, true} {
		t.Run(fmt.Sprint(allowed), func(t *testing.T) {
			s := newRDMASim(t, 285, simverbs.Hardware)
			s.gpus.peermem = true
			c := direct(t)
			c.RDMA.DirectWithoutSyncMemOps = allowed
			p := newGPUPairOn(t, s, 8192, gpuSide{config: c, driver: unordered()}, gpuSide{})
			m := adoptedFrom(t, p.sourceDriver, p.sourceDriver.MakeVirtual(1, 8192, true), 8192)
			before := liveRegions(p.sourceNative)
			for _, permission := range []Permission{LocalOnly, ReadWrite} {
				r, err := p.source.Register(m, 0, 8192, permission)
				if allowed {
					must(t, err)
					must(t, p.source.Unregister(soon(t), r))
					continue
				}
				var why *rdma.DirectError
				if !errors.As(wants(t, err, ErrUnavailable), &why) || why.Err != nil {
					t.Errorf("%v", err)
				}
				mentions(t, err.Error(), "SYNC_MEMOPS", "DirectWithoutSyncMemOps", "cuMemAlloc", "stage device memory")
			}
			if n := p.sourceDriver.Calls(simcuda.CallSetAttribute); n != 0 {
				t.Errorf("SYNC_MEMOPS was asked for %d times", n)
			}
			if liveRegions(p.sourceNative) != before || !m.backing.Quiet() {
				t.Error("something is left")
			}
		})
	}
	_, err := Open(Config{Verbs: newRDMASim(t, 286, simverbs.Hardware).native("a", hostA), RDMA: &RDMAConfig{DirectWithoutSyncMemOps: true}})
	mentions(t, wants(t, err, ErrInvalid).Error(), "DirectWithoutSyncMemOps", "DeviceDirect")
}

// Memory of the virtual-memory API is recognised, and reached directly where its owner waits for his copies, and GPU and
// memory say that it can be: by DMA-BUF, though there is peermem, and without SYNC_MEMOPS, which the driver has not for it.
//
// proves C-2, C-6, C-7, W-8
func TestVirtualMemoryIsReachedByDMABuf(t *testing.T) {
	const size = 256 << 10
	for i, there := range []bool{true, false} {
		t.Run(fmt.Sprint(there), func(t *testing.T) {
			s := newRDMASim(t, uint64(280+i), simverbs.Hardware)
			s.gpus.peermem = true
			whole := gpuSide{config: unsynced(t), device: true, driver: unordered()}
			made := whole
			made.made = virtual
			sides := map[bool][2]gpuSide{true: {made, whole}, false: {whole, made}}[there]
			p := newGPUPairOn(t, s, size, sides[0], sides[1])
			if got := p.segment.Regions()[0].GPUDirect; got != "dma-buf" {
				t.Errorf("the region says %q", got)
			}
			for k, n := range []int{1, 64<<10 + 17, size - 5003} {
				for _, op := range []Operation{Read, Write} {
					mentions(t, p.move(t, op, 5000-k, n, 3*k).Path, "GPUDirect on both sides")
				}
			}
			p.atRest(t)
			for driver, want := range map[*simcuda.Driver]uint64{p.sourceDriver: map[bool]uint64{false: 1}[there], p.requesterDriver: map[bool]uint64{true: 1}[there]} {
				if n := driver.Calls(simcuda.CallSetAttribute); n != want {
					t.Errorf("SYNC_MEMOPS was set %d times, want %d", n, want)
				}
			}
			if len(s.gpus.early) > 0 {
				t.Errorf("registered before SYNC_MEMOPS was set: %v", s.gpus.early)
			}
		})
	}
}

// Memory of the virtual-memory API, or of a pool, of which no DMA-BUF can be made is refused with what is missing, though
// there is peermem; staged, all of it can be used.
//
// proves C-2, C-6, R-6; field case F-69
func TestVirtualMemoryWithoutDMABufIsRefusedByName(t *testing.T) {
	gpu := func(change func(*cuda.DeviceInfo)) simcuda.Options {
		o := unordered()
		change(&o.Devices[1])
		return o
	}
	for name, x := range map[string]struct {
		driver simcuda.Options
		made   func(*simcuda.Driver) cuda.Pointer
		fabric bool // the library has no ibv_reg_dmabuf_mr
		words  []string
	}{
		"not made for it":      {unordered(), func(d *simcuda.Driver) cuda.Pointer { return d.MakeVirtual(1, 8192, false) }, false, []string{"gpuDirectRDMACapable"}},
		"of a pool":            {unordered(), func(d *simcuda.Driver) cuda.Pointer { return d.MakePool(1, 8192) }, false, []string{"pool"}},
		"a GPU that cannot":    {gpu(func(i *cuda.DeviceInfo) { i.GPUDirectVM = false }), nil, false, []string{"no GPUDirect RDMA for memory of the virtual-memory API"}},
		"no DMA-BUF":           {gpu(func(i *cuda.DeviceInfo) { i.DMABuf = false }), nil, false, []string{"by DMA-BUF only", "stage device memory"}},
		"a library without it": {unordered(), nil, true, []string{"by DMA-BUF only", "ibv_reg_dmabuf_mr"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newRDMASim(t, 290, simverbs.Hardware)
			s.gpus.peermem = true
			p := newGPUPairOn(t, s, 8192, gpuSide{config: unsynced(t), driver: x.driver}, gpuSide{})
			if x.fabric {
				s.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallRegisterDescriptor, Count: -1, Errno: 95})
			}
			if x.made == nil {
				x.made = func(d *simcuda.Driver) cuda.Pointer { return d.MakeVirtual(1, 8192, true) }
			}
			m := adoptedFrom(t, p.sourceDriver, x.made(p.sourceDriver), 8192)
			before := liveRegions(p.sourceNative)
			_, err := p.source.Register(m, 0, 8192, ReadWrite)
			mentions(t, wants(t, err, ErrUnavailable).Error(), x.words...)
			if liveRegions(p.sourceNative) != before || !m.backing.Quiet() {
				t.Error("a refusal left something")
			}
			staged := newGPUPair(t, 291, 8192, gpuSide{driver: x.driver, made: func(t testing.TB, d *simcuda.Driver, size int) *Memory {
				return adoptedFrom(t, d, x.made(d), size)
			}}, gpuSide{})
			for _, op := range []Operation{Read, Write} {
				mentions(t, staged.move(t, op, 3, 8001, 1).Path, "staged through pinned host memory there")
			}
		})
	}
}

// Where the GPU says that it orders the writes of network devices no flush is called, on either side, and none is needed.
//
// proves C-7
func TestGPUsThatOrderWritesAreNeverFlushed(t *testing.T) {
	const size = 256 << 10
	for i, change := range []func(*cuda.DeviceInfo){
		func(d *cuda.DeviceInfo) { d.WriteOrderedOwner = true },
		func(d *cuda.DeviceInfo) { d.WriteOrderedAll = true },
		func(d *cuda.DeviceInfo) { d.WriteOrderedOwner, d.FlushHost = true, false },
		func(*cuda.DeviceInfo) {},
	} {
		driver := unordered()
		driver.Devices = append([]cuda.DeviceInfo(nil), driver.Devices...)
		for k := range driver.Devices {
			change(&driver.Devices[k])
		}
		ordered := driver.Devices[1].WriteOrderedOwner || driver.Devices[1].WriteOrderedAll
		p := newGPUPairOn(t, newRDMASim(t, uint64(300+i), simverbs.Hardware), size, gpuSide{config: direct(t), device: true, driver: driver}, gpuSide{config: direct(t), device: true, driver: driver})
		for k, op := range []Operation{Read, Write, Read, Write} {
			p.move(t, op, 5, 100<<10+3, k)
		}
		for _, d := range []*simcuda.Driver{p.sourceDriver, p.requesterDriver} {
			if n := d.Calls(simcuda.CallFlush); n != map[bool]uint64{false: 2}[ordered] {
				t.Errorf("ordered %v: %d flushes", ordered, n)
			}
		}
		p.atRest(t)
	}
}
