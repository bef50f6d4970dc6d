package netproto

import (
	"fmt"
	"math"
)

// RegionSize is the size of one fixed region record (W-7); ScopeSize that of the entry which follows
// all records for each region flagged RegionScoped (W-8).
const (
	RegionSize = 3*8 + 4*1 + 4
	ScopeSize  = 1 + 4
)

// regionFlagsAt is the offset of the flag byte inside a region record.
const regionFlagsAt = 27

// MemoryType says what kind of memory a region is.
type MemoryType uint8

// The memory types. Pinned host memory is host memory.
const (
	MemoryHost MemoryType = 0
	MemoryCUDA MemoryType = 1
)

// String names the memory type.
func (m MemoryType) String() string {
	switch m {
	case MemoryHost:
		return "host"
	case MemoryCUDA:
		return "cuda"
	}
	return fmt.Sprintf("unknown memory type %d", uint8(m))
}

// RegionFlags is the flag byte of a region (W-8). Undefined bits are refused.
type RegionFlags uint8

// The region flags.
const (
	RegionHPTCP      RegionFlags = 1 << 0 // registered with HP-TCP; needs CapabilityHPTCP
	RegionDMABuf     RegionFlags = 1 << 1 // dma-buf registration observed; CUDA region of an RDMA source only
	RegionPeerMemory RegionFlags = 1 << 2 // peermem registration observed; CUDA region of an RDMA source only
	RegionScoped     RegionFlags = 1 << 7 // Region.Scope says more

	regionFlagsKnown = RegionHPTCP | RegionDMABuf | RegionPeerMemory | RegionScoped
	regionFlagsGPU   = RegionDMABuf | RegionPeerMemory
)

// TransportID names the transport a registration is scoped to; the numbers are those of TENT.
type TransportID uint8

// The transports this project may meet; TENT's others up to TransportIDLast are accepted unnamed.
const (
	TransportUnspecified TransportID = 0
	TransportRDMA        TransportID = 1
	TransportMNNVL       TransportID = 2
	TransportSHM         TransportID = 3
	TransportNVLink      TransportID = 4
	TransportTCP         TransportID = 7
	TransportIDLast      TransportID = 12
)

// OrdinalUnknown is the ordinal of a scope whose device or NUMA node is not known.
const OrdinalUnknown uint32 = math.MaxUint32

// Scope is the optional entry of a region flagged RegionScoped: a transport, a device or NUMA
// ordinal, or both.
type Scope struct {
	Transport TransportID // TransportUnspecified: not scoped to a transport
	Ordinal   uint32      // device ordinal of a CUDA region, NUMA node of a host region, or OrdinalUnknown
}

// MNNVLLocation says how a region is exported by MNNVL: zero not at all, MNNVLExportGPU as GPU memory,
// or the EGM bit and the NUMA node of the host memory (W-7).
type MNNVLLocation uint32

// The locations; an EGM location is MNNVLExportEGM | node.
const (
	MNNVLExportNone MNNVLLocation = 0
	MNNVLExportGPU  MNNVLLocation = 1
	MNNVLExportEGM  MNNVLLocation = 1 << 31
)

// EGM returns the host NUMA node of an EGM export; ok is false for any other location.
func (l MNNVLLocation) EGM() (node uint32, ok bool) {
	return uint32(l &^ MNNVLExportEGM), l&MNNVLExportEGM != 0
}

// Region is one published range (W-7). It tells where memory is and carries no authority.
type Region struct {
	ID         uint64 // rises inside a descriptor, never zero
	Base       uint64 // address in the source's process
	Length     uint64 // bytes, never zero
	Permission Permission
	Memory     MemoryType
	IPCExport  bool // the owner consents to IPC export
	Flags      RegionFlags
	Location   MNNVLLocation
	Scope      Scope // means something, and is encoded, only when Flags has RegionScoped
}

// appendRegion appends the fixed 32-byte record.
func appendRegion(dst []byte, r *Region) []byte {
	dst = order.AppendUint64(dst, r.ID)
	dst = order.AppendUint64(dst, r.Base)
	dst = order.AppendUint64(dst, r.Length)
	dst = append(dst, byte(r.Permission), byte(r.Memory), boolByte(r.IPCExport), byte(r.Flags))
	return order.AppendUint32(dst, uint32(r.Location))
}

// decodeRegion reads one fixed record; only the consent byte can be wrong in itself, the rest is for
// checkRegion.
func decodeRegion(b []byte, index int) (Region, error) {
	if b[26] > 1 {
		return Region{}, refuse(descriptorFrame, "IPC export consent", uint64(b[26]), "0 or 1").at(index)
	}
	return Region{
		ID:         order.Uint64(b[0:]),
		Base:       order.Uint64(b[8:]),
		Length:     order.Uint64(b[16:]),
		Permission: Permission(b[24]),
		Memory:     MemoryType(b[25]),
		IPCExport:  b[26] == 1,
		Flags:      RegionFlags(b[regionFlagsAt]),
		Location:   MNNVLLocation(order.Uint32(b[28:])),
	}, nil
}

// appendScope appends the 5-byte entry of a flagged region.
func appendScope(dst []byte, s Scope) []byte {
	return order.AppendUint32(append(dst, byte(s.Transport)), s.Ordinal)
}

func decodeScope(b []byte) Scope {
	return Scope{Transport: TransportID(b[0]), Ordinal: order.Uint32(b[1:])}
}

// checkRegion tells what is wrong with region number index; before is the ID of the one in front of
// it, zero for the first.
func (d *Descriptor) checkRegion(index int, before uint64) error {
	r := &d.Regions[index]
	var e *FrameError
	switch {
	case r.ID <= before:
		e = refuse(descriptorFrame, "region ID", r.ID, "rising IDs from 1")
	case r.Length == 0:
		e = refuse(descriptorFrame, "region length", 0, "1 or more bytes").with(StatusInvalidRange)
	case r.Length > math.MaxUint64-r.Base:
		e = refuse(descriptorFrame, "region length", r.Length, "a range that ends below 2^64").with(StatusInvalidRange)
	case r.Permission == LocalOnly || !r.Permission.Known():
		e = refuse(descriptorFrame, "region permission", uint64(r.Permission), "1 to 3, as local-only is never exported")
	case r.Memory > MemoryCUDA:
		e = refuse(descriptorFrame, "region memory type", uint64(r.Memory), "0 or 1")
	default:
		e = d.checkRegionExtras(r)
	}
	if e == nil {
		return nil
	}
	return e.at(index)
}

// checkRegionExtras checks flags, scope and MNNVL location against each other and the capabilities.
func (d *Descriptor) checkRegionExtras(r *Region) *FrameError {
	gpuOfRDMA := r.Memory == MemoryCUDA && d.RDMA != nil
	node, egm := r.Location.EGM()
	switch {
	case r.Flags&^regionFlagsKnown != 0:
		return refuseRegionFlags(r.Flags)
	case r.Flags&regionFlagsGPU != 0 && !gpuOfRDMA:
		return refuse(descriptorFrame, "region flags", uint64(r.Flags), "bits 1 and 2 only for CUDA memory of an RDMA source")
	case r.Flags&RegionHPTCP != 0 && d.HPTCP == nil:
		return refuse(descriptorFrame, "region flags", uint64(r.Flags), "bit 0 only beside an HP-TCP endpoint trailer")
	case r.Flags&RegionScoped != 0 && r.Scope.Transport > TransportIDLast:
		return refuse(descriptorFrame, "scope transport", uint64(r.Scope.Transport), "0 to 12")
	case r.Flags&RegionScoped != 0 && r.Scope == Scope{Ordinal: OrdinalUnknown}:
		return refuse(descriptorFrame, "scope ordinal", uint64(r.Scope.Ordinal), "a transport or a known ordinal, as flag bit 7 says")
	case r.Location == MNNVLExportNone:
		return nil
	case d.MNNVL == nil:
		return refuse(descriptorFrame, "MNNVL export location", uint64(r.Location), "0 without an MNNVL trailer")
	case egm && !d.MNNVL.EGM:
		return refuse(descriptorFrame, "MNNVL export location", uint64(r.Location), "no host node, as EGM is not enabled")
	case !egm && (node != uint32(MNNVLExportGPU) || r.Memory != MemoryCUDA):
		return refuse(descriptorFrame, "MNNVL export location", uint64(r.Location), "0, 1 for CUDA memory, or bit 31 and a node")
	}
	return nil
}

func refuseRegionFlags(f RegionFlags) *FrameError {
	return refuse(descriptorFrame, "region flags", uint64(f), "only bits 0, 1, 2 and 7")
}
