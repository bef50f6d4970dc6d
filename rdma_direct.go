package orbitte

import (
	"fmt"
	"os"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/segments"
)

// DeviceMemory says how this engine's memory on GPUs meets RDMA devices. Each side of a transfer chooses for itself (SPEC
//
type DeviceMemory uint8

const (
	// DeviceStaged copies between the GPU and the pinned chunks that TCP uses as well (Limits.PinnedStagingBytes), which are
	// registered with the devices, while the network works on other chunks (SPEC C-4). A failed READ may leave part of the
	// local range changed. Needs nothing but Config.CUDA.
	DeviceStaged DeviceMemory = iota
	// DeviceDirect lets RDMA devices read and write the GPU's memory itself (GPUDirect RDMA; SPEC C-6, C-7). It needs GPUs
	// that can, nvidia-peermem or DMA-BUF, and MLX5_SCATTER_TO_CQE=0 in the environment of the process; what is missing is
	// an error of Open or Register, and never becomes staging. A grant to a peer has a protection domain, a region and a
	// queue pair of its own. Memory of the virtual-memory API or of a pool is
	// refused unless DirectWithoutSyncMemOps is set, and then reached by DMA-BUF where its driver says that it can be.
	DeviceDirect
)

func (d DeviceMemory) String() string {
	if d == DeviceDirect {
		return "direct"
	}
	return "staged"
}

// scatterVariable is read by the mlx5 library when it opens a device.
const scatterVariable = "MLX5_SCATTER_TO_CQE"

// ScatterError says that mlx5 devices may put the bytes of a small READ into a completion, from where the CPU would copy them to
// a GPU's address, which it cannot: DeviceDirect needs MLX5_SCATTER_TO_CQE=0. The engine does not set it, since libraries
// read it before and others may depend on it.
type ScatterError struct {
	Value string // of the variable
	Set   bool
}

func (e *ScatterError) Error() string {
	is := "is not set"
	if e.Set {
		is = fmt.Sprintf("is %q", e.Value)
	}
	return fmt.Sprintf("Config.RDMA.DeviceMemory is DeviceDirect, but %s %s; start the process with %s=0 in its environment, or stage device memory", scatterVariable, is, scatterVariable)
}

// checkDirect checks what DeviceDirect needs of configuration and process, before any device is opened.
func (c *Config) checkDirect() error {
	if c.RDMA.DeviceMemory != DeviceDirect {
		return nil
	}
	if c.CUDA == nil {
		return invalid("Config.RDMA.DeviceMemory is DeviceDirect, but Config.CUDA is nil; pass what cuda/libcuda.Load returned, or leave DeviceStaged")
	}
	if value, set := os.LookupEnv(scatterVariable); value != "0" {
		return &Error{Index: -1, Class: ErrUnavailable, Cause: &ScatterError{Value: value, Set: set}, situation: opening}
	}
	return nil
}

// registers is true exactly when ranges of this memory are registered with the RDMA devices.
func (p *rdmaPart) registers(b *segments.Backing) bool {
	if b.Kind() == segments.Device {
		return p.engine.config.RDMA.DeviceMemory == DeviceDirect
	}
	return p.engine.config.RDMA.HostMemory == HostDirect
}

// reach registers a range with every device. Device memory that peers may reach says how (SPEC W-8).
func (p *rdmaPart) reach(r *segments.Registration) (*rdma.Registered, error) {
	memory, ok := r.Backing().Owner().(*cuda.Memory)
	if !ok || r.Backing().Kind() != segments.Device {
		return p.transport.Register(r.Address(), r.Length(), r.Permission() != LocalOnly)
	}
	registered, err := p.transport.RegisterDevice(memory, r.Address(), r.Length())
	if err == nil && p.engine.paths() != nil {
		r.Observe(map[rdma.DeviceWay]netproto.RegionFlags{rdma.WayDescriptor: netproto.RegionDMABuf, rdma.WayPeer: netproto.RegionPeerMemory}[registered.Way()])
	}
	return registered, err
}

// gpuDirect is how a peer's RDMA devices reach one of its regions on a GPU, as it says; empty: they do not.
func gpuDirect(c netproto.Capabilities, r *netproto.Region) string {
	switch {
	case !c.Has(netproto.CapabilityGPUDirect):
	case r.Flags&netproto.RegionDMABuf != 0:
		return rdma.WayDescriptor.String()
	case r.Flags&netproto.RegionPeerMemory != 0:
		return rdma.WayPeer.String()
	}
	return ""
}
