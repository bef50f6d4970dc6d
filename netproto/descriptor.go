package netproto

// descriptorFixedSize is what every descriptor has: region count and capabilities.
const descriptorFixedSize = 4 + CapabilitiesSize

// DescriptorSizeMax is the size of the largest descriptor: a receiver can refuse a longer payload
// before it reads it.
const DescriptorSizeMax = descriptorFixedSize + RegionsMax*(RegionSize+ScopeSize) +
	SHMHeadSize + RegionsMax*SHMRecordSize + MNNVLSize + RDMAHeadSize + PathsMax*RDMAPathSize + HPTCPSize

// Descriptor is the payload of a describe reply: what one source publishes (W-7). Trailers that are nil
// are absent. It is a plain value; whoever holds it owns it.
type Descriptor struct {
	Capabilities Capabilities
	Regions      []Region // rising IDs
	SHM          *SHM
	MNNVL        *MNNVL
	RDMA         *RDMAPaths
	HPTCP        *HPTCPEndpoint
}

const descriptorFrame = "descriptor"

// trailerBits returns the capability bits that announce the trailers that are present.
func (d *Descriptor) trailerBits() Capability {
	var bits Capability
	if d.SHM != nil {
		bits |= CapabilitySHM
	}
	if d.MNNVL != nil {
		bits |= CapabilityMNNVL
	}
	if d.RDMA != nil {
		bits |= CapabilityRDMA
	}
	if d.HPTCP != nil {
		bits |= CapabilityHPTCP
	}
	return bits
}

// capabilities are those of the wire: the trailer bits follow from the trailers.
func (d *Descriptor) capabilities() Capabilities {
	c := d.Capabilities
	c.Bits = c.Bits&^capabilityTrailers | d.trailerBits()
	return c
}

// DescriptorSize returns how many bytes AppendDescriptor appends.
func DescriptorSize(d *Descriptor) int {
	size := descriptorFixedSize + len(d.Regions)*RegionSize
	for i := range d.Regions {
		if d.Regions[i].Flags&RegionScoped != 0 {
			size += ScopeSize
		}
	}
	if d.SHM != nil {
		size += SHMHeadSize + len(d.SHM.Records)*SHMRecordSize
	}
	if d.MNNVL != nil {
		size += MNNVLSize
	}
	if d.RDMA != nil {
		size += RDMAHeadSize + len(d.RDMA.Paths)*RDMAPathSize
	}
	if d.HPTCP != nil {
		size += HPTCPSize
	}
	return size
}

// AppendDescriptor appends d. It encodes any value; call Check first to know that a peer will accept
// it. The trailer bits of the capabilities are set from the trailers. It allocates only when dst is too
// short.
func AppendDescriptor(dst []byte, d *Descriptor) []byte {
	dst = order.AppendUint32(dst, uint32(len(d.Regions)))
	dst = d.capabilities().append(dst)
	for i := range d.Regions {
		dst = appendRegion(dst, &d.Regions[i])
	}
	for i := range d.Regions {
		if d.Regions[i].Flags&RegionScoped != 0 {
			dst = appendScope(dst, d.Regions[i].Scope)
		}
	}
	if d.SHM != nil {
		dst = d.SHM.append(dst)
	}
	if d.MNNVL != nil {
		dst = d.MNNVL.append(dst)
	}
	if d.RDMA != nil {
		dst = d.RDMA.append(dst)
	}
	if d.HPTCP != nil {
		dst = d.HPTCP.append(dst)
	}
	return dst
}

// Check tells whether a peer will accept the descriptor; the error is a *FrameError. DecodeDescriptor
// applies the same checks to what it reads.
func (d *Descriptor) Check() error {
	if n := len(d.Regions); n > RegionsMax {
		return refuseRegionCount(uint64(n))
	}
	if err := d.capabilities().check(); err != nil {
		return err
	}
	var before uint64
	for i := range d.Regions {
		if err := d.checkRegion(i, before); err != nil {
			return err
		}
		before = d.Regions[i].ID
	}
	return d.checkTrailers()
}

func (d *Descriptor) checkTrailers() error {
	if d.SHM != nil {
		if err := d.SHM.check(d.Regions); err != nil {
			return err
		}
	}
	if d.MNNVL != nil {
		if err := d.MNNVL.check(); err != nil {
			return err
		}
	}
	if d.RDMA != nil {
		if err := d.RDMA.check(); err != nil {
			return err
		}
	}
	if d.HPTCP != nil {
		return d.HPTCP.check()
	}
	return nil
}

func refuseRegionCount(n uint64) *FrameError {
	return refuse(descriptorFrame, "region count", n, "at most 4096").with(StatusExhausted)
}
