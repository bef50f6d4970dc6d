package verbs

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Spot is where a device or a piece of memory is in the machine. Everything unknown is left out, never guessed.
type Spot struct {
	Node int      // NUMA node; -1: unknown
	Path []string // components of its path below /sys/devices, the device itself last; empty: unknown, or host memory
}

// NowhereKnown is the spot of what the system says nothing about, such as soft-RoCE devices.
var NowhereKnown = Spot{Node: -1}

// errNoLinks says that a file system cannot follow the links that sysfs is made of.
var errNoLinks = errors.New("file system without symbolic links")

// LocateNIC finds an RDMA device, such as "mlx5_0", in a file system rooted at /sys.
func LocateNIC(sysfs fs.FS, name string) (Spot, error) {
	return locate(sysfs, path.Join("class/infiniband", name), "infiniband")
}

// LocatePCI finds a PCI device, such as a GPU, by its address "0000:19:00.0".
func LocatePCI(sysfs fs.FS, address string) (Spot, error) {
	return locate(sysfs, path.Join("bus/pci/devices", strings.ToLower(address)), "")
}

// locate follows the link that a class or bus has for a device. Below is the folder of the class inside the device's
// own folder; the link leads into it.
func locate(sysfs fs.FS, link, below string) (Spot, error) {
	links, ok := sysfs.(fs.ReadLinkFS)
	if !ok {
		return NowhereKnown, &fs.PathError{Op: "readlink", Path: link, Err: errNoLinks}
	}
	target, err := links.ReadLink(link)
	if err != nil {
		return NowhereKnown, err
	}
	parts := strings.Split(path.Join(path.Dir(link), target), "/")
	if len(parts) < 2 || parts[0] != "devices" {
		return NowhereKnown, &fs.PathError{Op: "readlink", Path: link, Err: fmt.Errorf("leads to %q, want a place below devices", target)}
	}
	if n := len(parts); below != "" && parts[n-2] == below {
		parts = parts[:n-2]
	}
	if parts[1] == "virtual" {
		return NowhereKnown, nil // no bus, no node: soft-RoCE
	}
	return Spot{Node: readNode(sysfs, path.Join(parts...)), Path: slices.Clone(parts[1:])}, nil
}

func readNode(sysfs fs.FS, device string) int {
	text, err := fs.ReadFile(sysfs, path.Join(device, "numa_node"))
	if err != nil {
		return -1
	}
	node, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || node < 0 {
		return -1
	}
	return node
}

// Distance is how many components of their paths two devices do not share; false: one of them is unknown, or they are
// in different trees and share none, so that it says nothing.
func (s Spot) Distance(o Spot) (int, bool) {
	common := 0
	for common < len(s.Path) && common < len(o.Path) && s.Path[common] == o.Path[common] {
		common++
	}
	return len(s.Path) + len(o.Path) - 2*common, common > 0
}

// Tier is how near a NIC is to memory; the lowest is nearest.
type Tier uint8

const (
	// TierNear: the same NUMA node, for a device the shortest way over PCI.
	TierNear Tier = iota
	// TierNode: the same NUMA node as a device, over a longer way.
	TierNode
	// TierFar: everything else, and everything unknown.
	TierFar
)

func (t Tier) String() string {
	switch t {
	case TierNear:
		return "near"
	case TierNode:
		return "same NUMA node"
	}
	return "far or unknown"
}

// HostTiers sorts NICs by their way to host memory of a NUMA node, which is -1 when unknown.
func HostTiers(node int, nics []Spot) []Tier {
	tiers := make([]Tier, len(nics))
	for i, nic := range nics {
		tiers[i] = TierFar
		if node >= 0 && nic.Node == node {
			tiers[i] = TierNear
		}
	}
	return tiers
}

// DeviceTiers sorts NICs by their way to a device's memory: the nearest over PCI are near, others of its NUMA node come
// next. A NIC whose place is unknown is never taken for a near one.
func DeviceTiers(device Spot, nics []Spot) []Tier {
	tiers := HostTiers(device.Node, nics)
	best := -1
	for i, nic := range nics {
		if tiers[i] == TierNear {
			tiers[i] = TierNode
		}
		if d, ok := device.Distance(nic); ok && (best < 0 || d < best) {
			best = d
		}
	}
	for i, nic := range nics {
		if d, ok := device.Distance(nic); ok && d == best {
			tiers[i] = TierNear
		}
	}
	return tiers
}
