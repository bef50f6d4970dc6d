package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/libcuda"
	"github.com/orbitte/orbitte/verbs"
)

// loadCUDA opens the driver; tests put a twin there.
var loadCUDA = libcuda.Load

// sysfs is where the machine says how devices are connected; tests put a tree there.
var sysfs fs.FS = os.DirFS("/sys")

var (
	errNoCUDA = errors.New("CUDA is not available")
	errNoGPU  = errors.New("the driver is there, but this process sees no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES; a container needs the devices /dev/nvidia*")
)

// cudaView is what devices prints about GPUs.
type cudaView struct {
	Library string    `json:"library,omitempty"`
	Path    string    `json:"path,omitempty"`
	Driver  string    `json:"driver,omitempty"` // newest CUDA version that the driver knows, such as "12.4"
	GPUs    []gpuView `json:"gpus"`
	Why     string    `json:"why,omitempty"` // there are none, or they cannot be looked at
}

type gpuView struct {
	Ordinal    int           `json:"ordinal"`
	Name       string        `json:"name"`
	UUID       string        `json:"uuid"`
	PCI        string        `json:"pci,omitempty"`
	NUMA       int           `json:"numa"` // -1: unknown
	Memory     uint64        `json:"memory"`
	Capability string        `json:"compute_capability"`
	Copies     int           `json:"copy_engines"`
	Usable     bool          `json:"usable"`
	Why        string        `json:"why,omitempty"`
	GPUDirect  gpuDirectView `json:"gpudirect"`
	NICs       []nicDistance `json:"nics,omitempty"`
}

// gpuDirectView is what the driver says that the GPU could do with network devices. No engine uses it unless it was asked to.
type gpuDirectView struct {
	PeerMemory    bool   `json:"peermem"`        // the GPU's memory can be reached by other PCI devices
	VirtualMemory bool   `json:"virtual_memory"` // also that of the virtual-memory API
	DMABuf        bool   `json:"dma_buf"`
	Ordering      string `json:"write_ordering"` // "all devices", "owner", "none"
	Flush         bool   `json:"flush"`          // cuFlushGPUDirectRDMAWrites works
}

// nicDistance is how far an RDMA device is: components of both paths below /sys/devices that are not shared.
type nicDistance struct {
	NIC      string `json:"nic"`
	Distance int    `json:"distance"`
}

// gpusNow looks at the GPUs and makes no context on any of them.
func gpusNow(nics []deviceView) (v cudaView) {
	v.GPUs = []gpuView{}
	calls, err := loadCUDA()
	if err != nil {
		v.Why = err.Error()
		return v
	}
	library := calls.Library()
	v.Library, v.Path = library.Name, library.Path
	v.Driver = fmt.Sprintf("%d.%d", library.Version/1000, library.Version%1000/10)
	seen, err := calls.Devices()
	if err == nil && len(seen) == 0 {
		err = errNoGPU
	}
	if err != nil {
		v.Why = err.Error()
		return v
	}
	for i := range seen {
		v.GPUs = append(v.GPUs, gpuOf(&seen[i], nics))
	}
	return v
}

func gpuOf(d *cuda.DeviceInfo, nics []deviceView) gpuView {
	v := gpuView{
		Ordinal: d.Ordinal, Name: d.Name, PCI: d.PCI, NUMA: d.NUMANode, Memory: d.Memory, Capability: fmt.Sprintf("%d.%d", d.Major, d.Minor), Copies: d.CopyEngines,
		UUID:      fmt.Sprintf("GPU-%x-%x-%x-%x-%x", d.UUID[:4], d.UUID[4:6], d.UUID[6:8], d.UUID[8:10], d.UUID[10:]),
		GPUDirect: gpuDirectView{PeerMemory: d.GPUDirect, VirtualMemory: d.GPUDirectVM, DMABuf: d.DMABuf, Ordering: "none", Flush: d.FlushHost},
	}
	switch {
	case d.WriteOrderedAll:
		v.GPUDirect.Ordering = "all devices"
	case d.WriteOrderedOwner:
		v.GPUDirect.Ordering = "owner"
	}
	switch {
	case d.Prohibited:
		v.Why = "its compute mode prohibits contexts; nvidia-smi -c 0 allows them"
	case !d.Unified:
		v.Why = "it has no unified addressing, which copies need"
	default:
		v.Usable = true
	}
	v.NICs = distances(d.PCI, nics)
	return v
}

// distances says how far each RDMA device is from a PCI device; what the system does not tell is left out.
func distances(pci string, nics []deviceView) (list []nicDistance) {
	if pci == "" {
		return nil
	}
	here, err := verbs.LocatePCI(sysfs, pci)
	if err != nil {
		return nil
	}
	for _, nic := range nics {
		there, err := verbs.LocateNIC(sysfs, nic.Name)
		if err != nil {
			continue
		}
		if steps, known := here.Distance(there); known {
			list = append(list, nicDistance{nic.Name, steps})
		}
	}
	return list
}

// usable is true exactly when an engine can use one of the GPUs.
func (v *cudaView) usable() bool {
	for _, g := range v.GPUs {
		if g.Usable {
			return true
		}
	}
	return false
}

// reason says why no GPU is usable.
func (v *cudaView) reason() string {
	if v.Why != "" {
		return v.Why
	}
	var reasons []string
	for _, g := range v.GPUs {
		reasons = append(reasons, fmt.Sprintf("GPU %d: %s", g.Ordinal, g.Why))
	}
	return strings.Join(reasons, "; ")
}

func (v *cudaView) text() string {
	var text strings.Builder
	if v.Library != "" {
		fmt.Fprintf(&text, "\nGPU driver      %s\n", strings.TrimSpace(v.Library+" "+v.Driver+" "+v.Path))
	}
	if v.Why != "" {
		fmt.Fprintf(&text, "\nGPUs            none: %s\n", v.Why)
		return text.String()
	}
	rows := [][]string{{"\nGPU", "name", "usable", "NUMA", "PCI", "memory", "capability"}}
	for _, g := range v.GPUs {
		rows = append(rows, []string{fmt.Sprint(g.Ordinal), g.Name, yesNo(g.Usable), known(g.NUMA), dash(g.PCI), fmt.Sprintf("%d MiB", g.Memory>>20), g.Capability})
	}
	text.WriteString(table(rows))
	for _, g := range v.GPUs {
		text.WriteString(g.text())
	}
	return text.String()
}

func (g *gpuView) text() string {
	var text strings.Builder
	fmt.Fprintf(&text, "\nGPU %d\n", g.Ordinal)
	if g.Why != "" {
		fmt.Fprintf(&text, "  %s\n", g.Why)
	}
	fmt.Fprintf(&text, "  %s, %d copy engines\n", g.UUID, g.Copies)
	d := &g.GPUDirect
	fmt.Fprintf(&text, "  GPUDirect: peer memory %s, virtual memory %s, DMA-BUF %s, write ordering %s, flush %s\n",
		yesNo(d.PeerMemory), yesNo(d.VirtualMemory), yesNo(d.DMABuf), d.Ordering, yesNo(d.Flush))
	for _, n := range g.NICs {
		fmt.Fprintf(&text, "  %s is %d steps away\n", n.NIC, n.Distance)
	}
	return text.String()
}
