package netproto

import (
	"math/bits"
	"unicode/utf8"
)

// Sizes of the RDMA trailer: what stands before the records, and one record. The layout is the project's
// count 2, host policy 1, pairs 1, slices 2, staged part 2 (partCode); then records of NIC 1, port 1, state 1,
// link 1, NUMA node 4, GUID 8, PD 8, GID 16, name 24.
const (
	RDMAHeadSize = 2 + 1 + 1 + 2 + 2
	RDMAPathSize = 4*1 + 4 + 8 + 8 + GIDSize + PathNameSize
)

// Limits and sizes of RDMA frames.
const (
	GIDSize      = 16
	PathNameSize = 24 // bytes of a device name, padded with zeros
	PathsMax     = 64 // NIC IDs are bits of a 64-bit mask
	SlicesMax    = 64 // slices of one parent
	PairsMax     = 32 // queue pairs of one connection
)

// NUMAUnknown is the node of a device whose place is not known.
const NUMAUnknown = 1<<32 - 1

// PathState says whether a path may be chosen.
type PathState uint8

// The states.
const (
	PathPaused PathState = 0 // registered everywhere, refused for new connections
	PathActive PathState = 1
)

// LinkLayer is what carries a path.
type LinkLayer uint8

// The layers. Two paths are compatible only on the same one.
const (
	LinkInfiniBand LinkLayer = 1
	LinkEthernet   LinkLayer = 2
)

// HostMemoryPolicy says how a source serves host memory over RDMA.
type HostMemoryPolicy uint8

// The policies.
const (
	HostDirect HostMemoryPolicy = 0
	HostStaged HostMemoryPolicy = 1
)

// RDMAPaths is the trailer of an RDMA source: the paths to it, without authority. The descriptor has
// it exactly when CapabilityRDMA is set.
type RDMAPaths struct {
	Host      HostMemoryPolicy
	PairsMax  uint8  // queue pairs of one connection that the source wants, 1…PairsMax
	SlicesMax uint16 // slices of one parent that the source admits, 1…SlicesMax
	// StagedPart is how many bytes of memory on a GPU one parent may have where the source stages it: the size of its
	// pinned chunks (C-4), as PartFloor gives it; 0: it stages none.
	StagedPart uint64
	Paths      []Path // rising NIC IDs, at least one
}

// StagedPartMax bounds StagedPart, in bytes.
const StagedPartMax = 64 << 20

// partDigits is how many binary digits of a staged part are carried.
const partDigits = 11

// PartFloor is the largest size up to n that StagedPart can carry: its 11 leading binary digits, at most StagedPartMax.
func PartFloor(n uint64) uint64 {
	n = min(n, StagedPartMax)
	shift := max(0, bits.Len64(n)-partDigits)
	return n >> shift << shift
}

// partCode is a staged part on the wire: 5 bits that say by how much the other 11 are shifted. Each size has one code.
func partCode(n uint64) uint16 {
	shift := max(0, bits.Len64(n)-partDigits)
	return uint16(shift<<partDigits) | uint16(n>>shift)
}

func partOf(code uint16) uint64 { return uint64(code&(1<<partDigits-1)) << (code >> partDigits) }

// Path is one NIC of the source with the protection domain that its registrations live in.
type Path struct {
	NIC   uint8 // stable ID, below PathsMax
	Port  uint8 // 1 or more
	State PathState
	Link  LinkLayer
	NUMA  uint32 // node, or NUMAUnknown
	GUID  uint64
	PD    uint64 // identity of the protection domain's life, never zero
	GID   [GIDSize]byte
	Name  string // of the device: valid UTF-8 without zeros, 1…PathNameSize bytes
}

func (p *RDMAPaths) append(dst []byte) []byte {
	dst = order.AppendUint16(dst, uint16(len(p.Paths)))
	dst = append(dst, byte(p.Host), p.PairsMax)
	dst = order.AppendUint16(dst, p.SlicesMax)
	dst = order.AppendUint16(dst, partCode(p.StagedPart))
	for i := range p.Paths {
		x := &p.Paths[i]
		dst = append(dst, x.NIC, x.Port, byte(x.State), byte(x.Link))
		dst = order.AppendUint32(dst, x.NUMA)
		dst = order.AppendUint64(dst, x.GUID)
		dst = order.AppendUint64(dst, x.PD)
		dst = append(dst, x.GID[:]...)
		var name [PathNameSize]byte
		copy(name[:], x.Name)
		dst = append(dst, name[:]...)
	}
	return dst
}

// splitRDMA cuts off head and records.
func splitRDMA(p *splitter) ([]byte, error) {
	whole := p.rest
	head, err := p.take("RDMA trailer head", RDMAHeadSize)
	if err != nil {
		return nil, err
	}
	count := order.Uint16(head)
	if count > PathsMax {
		return nil, refuse(descriptorFrame, "RDMA path count", uint64(count), "1 to 64").with(StatusExhausted)
	}
	records, err := p.take("RDMA paths", int(count)*RDMAPathSize)
	if err != nil {
		return nil, err
	}
	return whole[:RDMAHeadSize+len(records)], nil
}

// decodeRDMA reads head and records; b has exactly the size that the count in it asks for.
func decodeRDMA(b []byte) (*RDMAPaths, error) {
	code := order.Uint16(b[6:])
	p := &RDMAPaths{Host: HostMemoryPolicy(b[2]), PairsMax: b[3], SlicesMax: order.Uint16(b[4:]), StagedPart: partOf(code)}
	if partCode(p.StagedPart) != code {
		return nil, refuse(descriptorFrame, "RDMA staged part", uint64(code), "the one code of a size")
	}
	b = b[RDMAHeadSize:]
	p.Paths = make([]Path, len(b)/RDMAPathSize)
	for i := range p.Paths {
		record := b[i*RDMAPathSize:][:RDMAPathSize]
		name, ok := paddedText(record[40:])
		if !ok {
			return nil, refuse(descriptorFrame, "RDMA path name", uint64(record[40]), "text, then zeros only").at(i)
		}
		p.Paths[i] = Path{
			NIC: record[0], Port: record[1], State: PathState(record[2]), Link: LinkLayer(record[3]),
			NUMA: order.Uint32(record[4:]), GUID: order.Uint64(record[8:]), PD: order.Uint64(record[16:]),
			GID: [GIDSize]byte(record[24:]), Name: name,
		}
	}
	return p, nil
}

// paddedText returns what stands before the zeros; false when something follows the first zero.
func paddedText(b []byte) (string, bool) {
	n := 0
	for n < len(b) && b[n] != 0 {
		n++
	}
	return string(b[:n]), isZero(b[n:])
}

func (p *RDMAPaths) check() error {
	switch n := len(p.Paths); {
	case n == 0 || n > PathsMax:
		return refuse(descriptorFrame, "RDMA path count", uint64(n), "1 to 64")
	case p.Host > HostStaged:
		return refuse(descriptorFrame, "RDMA host policy", uint64(p.Host), "0 or 1")
	case p.PairsMax == 0 || p.PairsMax > PairsMax:
		return refuse(descriptorFrame, "RDMA pairs", uint64(p.PairsMax), "1 to 32")
	case p.SlicesMax == 0 || p.SlicesMax > SlicesMax:
		return refuse(descriptorFrame, "RDMA slices", uint64(p.SlicesMax), "1 to 64")
	case p.StagedPart != PartFloor(p.StagedPart):
		return refuse(descriptorFrame, "RDMA staged part", p.StagedPart, "11 binary digits, up to 64 MiB")
	}
	next := 0 // the smallest NIC ID that may follow
	for i := range p.Paths {
		x := &p.Paths[i]
		if int(x.NIC) < next || x.NIC >= PathsMax {
			return refuse(descriptorFrame, "RDMA NIC", uint64(x.NIC), "rising IDs below 64").at(i)
		}
		next = int(x.NIC) + 1
		if err := x.check(); err != nil {
			return err.at(i)
		}
	}
	return nil
}

func (x *Path) check() *FrameError {
	switch {
	case x.Port == 0:
		return refuse(descriptorFrame, "RDMA port", 0, "1 or more")
	case x.State > PathActive:
		return refuse(descriptorFrame, "RDMA path state", uint64(x.State), "0 or 1")
	case x.Link != LinkInfiniBand && x.Link != LinkEthernet:
		return refuse(descriptorFrame, "RDMA link layer", uint64(x.Link), "1 or 2")
	case x.PD == 0:
		return refuse(descriptorFrame, "RDMA domain", 0, "1 or more")
	case !validName(x.Name):
		return refuse(descriptorFrame, "RDMA path name", uint64(len(x.Name)), "1 to 24 bytes of UTF-8 without zeros")
	}
	return nil
}

func validName(s string) bool {
	if s == "" || len(s) > PathNameSize || !utf8.ValidString(s) {
		return false
	}
	for i := range len(s) {
		if s[i] == 0 {
			return false
		}
	}
	return true
}
