package netproto

// CapabilitiesSize is the size of the capabilities of a segment in a descriptor (W-7).
const CapabilitiesSize = 44

// Offsets inside the 44 bytes. Everything between the provider byte and the largest transfer length
// is reserved and zero.
const (
	capabilityBitsAt     = 0  // 8 bytes, see Capability
	capabilityProviderAt = 8  // 1 byte, the retired provider byte: zero
	capabilityReservedAt = 9  // 27 bytes, zero
	capabilityTransferAt = 36 // 8 bytes, Capabilities.TransferBytesMax
)

// Capability is one bit of the capability word, or several. Undefined bits are refused.
type Capability uint64

// The capability bits. Bits 5, 6 and 7 are fixed by W-9; the others are the project's.
const (
	CapabilityTCP           Capability = 1 << 0 // serves operations 1 and 2
	CapabilityRDMA          Capability = 1 << 1 // serves operations 4 to 7 and 64 to 67; an RDMA trailer follows the MNNVL trailer, if any
	CapabilityHPTCP         Capability = 1 << 2 // an HP-TCP endpoint trailer comes last
	CapabilityNotify        Capability = 1 << 3 // serves operation 3
	CapabilityControlNotify Capability = 1 << 4 // serves operation 22
	CapabilitySHM           Capability = 1 << 5 // an SHM trailer follows the registration profiles
	CapabilityMNNVL         Capability = 1 << 6 // an MNNVL trailer follows the SHM trailer, if any
	CapabilityGPUDirect     Capability = 1 << 7 // registers published GPU ranges directly; needs CapabilityRDMA
	CapabilityPins          Capability = 1 << 8 // serves operations 68 to 70 (C-8)

	capabilityTrailers = CapabilityRDMA | CapabilitySHM | CapabilityMNNVL | CapabilityHPTCP
	capabilityKnown    = CapabilityPins<<1 - 1
)

// Capabilities says what a source serves. It grants nothing.
type Capabilities struct {
	// Bits of the word. The four trailer bits (RDMA, SHM, MNNVL, HP-TCP) follow from the trailers of the
	// descriptor: the encoder sets them so, whatever they are here, and the decoder reports them.
	Bits Capability
	// TransferBytesMax is the largest payload of one transfer, in bytes, that the source admits.
	TransferBytesMax uint64
}

// Has reports whether every bit of c is set.
func (c Capabilities) Has(bits Capability) bool { return c.Bits&bits == bits }

// append appends the 44 bytes.
func (c Capabilities) append(dst []byte) []byte {
	dst = order.AppendUint64(dst, uint64(c.Bits))
	dst = append(dst, make([]byte, capabilityTransferAt-capabilityProviderAt)...)
	return order.AppendUint64(dst, c.TransferBytesMax)
}

// decodeCapabilities reads 44 bytes and refuses undefined bits and reserved bytes that are not zero.
func decodeCapabilities(b []byte) (Capabilities, error) {
	c := Capabilities{Bits: Capability(order.Uint64(b[capabilityBitsAt:])), TransferBytesMax: order.Uint64(b[capabilityTransferAt:])}
	if p := b[capabilityProviderAt]; p != 0 {
		return c, refuse(descriptorFrame, "retired provider byte", uint64(p), "0")
	}
	for i, x := range b[capabilityReservedAt:capabilityTransferAt] {
		if x != 0 {
			return c, refuse(descriptorFrame, "reserved capability byte", uint64(x), "0").at(i)
		}
	}
	return c, c.check()
}

// check refuses undefined and contradicting bits.
func (c Capabilities) check() error {
	switch {
	case c.Bits&^capabilityKnown != 0:
		return refuse(descriptorFrame, "capability bits", uint64(c.Bits), "no bit above 8")
	case c.Has(CapabilityGPUDirect) && !c.Has(CapabilityRDMA):
		return refuse(descriptorFrame, "capability bits", uint64(c.Bits), "bit 1 (RDMA) beside bit 7 (direct GPU ranges)")
	}
	return nil
}
