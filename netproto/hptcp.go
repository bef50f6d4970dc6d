package netproto

import "fmt"

// HPTCPSize is the size of the HP-TCP endpoint trailer: family 1, zero 1, port 2, streams 2, zero 2,
// largest chunk 8, largest in-flight bytes 8 (H-1). The layout is the project's.
const HPTCPSize = 24

// AddressFamily says by which IP version the HP-TCP listener is reached.
type AddressFamily uint8

// The families.
const (
	FamilyIPv4 AddressFamily = 4
	FamilyIPv6 AddressFamily = 6
)

// String names the family.
func (f AddressFamily) String() string {
	if f == FamilyIPv4 || f == FamilyIPv6 {
		return fmt.Sprintf("IPv%d", uint8(f))
	}
	return fmt.Sprintf("unknown address family %d", uint8(f))
}

// HPTCPEndpoint is the last trailer: where the HP-TCP data plane listens and what it admits (H-1). The
// host is the one whose descriptor it is.
type HPTCPEndpoint struct {
	Family           AddressFamily
	Port             uint16 // never zero
	StreamsMax       uint16 // streams one peer may open, never zero
	ChunkBytesMax    uint64 // bytes of one chunk, never zero
	InFlightBytesMax uint64 // bytes in flight on one stream, at least one chunk
}

func (h *HPTCPEndpoint) append(dst []byte) []byte {
	dst = append(dst, byte(h.Family), 0)
	dst = order.AppendUint16(dst, h.Port)
	dst = order.AppendUint16(dst, h.StreamsMax)
	dst = append(dst, 0, 0)
	dst = order.AppendUint64(dst, h.ChunkBytesMax)
	return order.AppendUint64(dst, h.InFlightBytesMax)
}

// decodeHPTCP reads HPTCPSize bytes.
func decodeHPTCP(b []byte) (*HPTCPEndpoint, error) {
	if b[1] != 0 || b[6] != 0 || b[7] != 0 {
		return nil, refuse(descriptorFrame, "HP-TCP reserved bytes", uint64(b[1])<<16|uint64(b[6])<<8|uint64(b[7]), "0")
	}
	return &HPTCPEndpoint{
		Family:           AddressFamily(b[0]),
		Port:             order.Uint16(b[2:]),
		StreamsMax:       order.Uint16(b[4:]),
		ChunkBytesMax:    order.Uint64(b[8:]),
		InFlightBytesMax: order.Uint64(b[16:]),
	}, nil
}

func (h *HPTCPEndpoint) check() error {
	switch {
	case h.Family != FamilyIPv4 && h.Family != FamilyIPv6:
		return refuse(descriptorFrame, "HP-TCP address family", uint64(h.Family), "4 or 6")
	case h.Port == 0:
		return refuse(descriptorFrame, "HP-TCP port", 0, "1 or more")
	case h.StreamsMax == 0:
		return refuse(descriptorFrame, "HP-TCP stream limit", 0, "1 or more")
	case h.ChunkBytesMax == 0:
		return refuse(descriptorFrame, "HP-TCP largest chunk", 0, "1 or more bytes")
	case h.InFlightBytesMax < h.ChunkBytesMax:
		return refuse(descriptorFrame, "HP-TCP largest in-flight bytes", h.InFlightBytesMax, "at least one chunk")
	}
	return nil
}
