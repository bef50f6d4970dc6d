package netproto

// sections are the parts of a descriptor's bytes; their sizes add up to the whole. An absent part is
// nil.
type sections struct {
	capabilities Capabilities
	regions      []byte // fixed records
	scopes       []byte // entries of flagged regions
	shm          []byte // head and records
	mnnvl        []byte
	rdma         []byte // head and records
	hptcp        []byte
}

// DecodeDescriptor reads a whole descriptor and refuses anything that Check would refuse, and bytes
// missing or left over, with a *FrameError (W-7 to W-11, W-15). Bits, reserved bytes and all sizes are
// checked before anything is allocated (W-9). The result shares no memory with b.
func DecodeDescriptor(b []byte) (Descriptor, error) {
	s, err := split(b)
	if err != nil {
		return Descriptor{}, err
	}
	d, err := s.decode()
	if err != nil {
		return Descriptor{}, err
	}
	if err := d.Check(); err != nil {
		return Descriptor{}, err
	}
	return d, nil
}

// splitter cuts bytes off the front of a descriptor.
type splitter struct {
	rest  []byte
	total int // size of the whole, for errors
}

// take cuts off the next n bytes and refuses when they are not there.
func (p *splitter) take(field string, n int) ([]byte, error) {
	if n > len(p.rest) {
		return nil, refuse(descriptorFrame, "size", uint64(p.total), "more bytes, as the "+field+" are cut off")
	}
	head := p.rest[:n]
	p.rest = p.rest[n:]
	return head, nil
}

// split finds every part of b without allocating anything but an error.
func split(b []byte) (s sections, err error) {
	p := splitter{rest: b, total: len(b)}
	fixed, err := p.take("count and capabilities", descriptorFixedSize)
	if err != nil {
		return s, err
	}
	count := order.Uint32(fixed)
	if count > RegionsMax {
		return s, refuseRegionCount(uint64(count))
	}
	if s.capabilities, err = decodeCapabilities(fixed[4:]); err != nil {
		return s, err
	}
	if s.regions, err = p.take("region records", int(count)*RegionSize); err != nil {
		return s, err
	}
	scoped, err := countScoped(s.regions)
	if err != nil {
		return s, err
	}
	if s.scopes, err = p.take("scope entries", scoped*ScopeSize); err != nil {
		return s, err
	}
	if err := s.splitTrailers(&p, count); err != nil {
		return s, err
	}
	if len(p.rest) != 0 {
		return s, refuseSize(descriptorFrame, uint64(len(b)), uint64(len(b)-len(p.rest)))
	}
	return s, nil
}

// splitTrailers finds the trailers that the capability bits announce, in their fixed order.
func (s *sections) splitTrailers(p *splitter, regions uint32) (err error) {
	if s.capabilities.Has(CapabilitySHM) {
		if s.shm, err = splitSHM(p, regions); err != nil {
			return err
		}
	}
	if s.capabilities.Has(CapabilityMNNVL) {
		if s.mnnvl, err = p.take("MNNVL trailer", MNNVLSize); err != nil {
			return err
		}
	}
	if s.capabilities.Has(CapabilityRDMA) {
		if s.rdma, err = splitRDMA(p); err != nil {
			return err
		}
	}
	if s.capabilities.Has(CapabilityHPTCP) {
		s.hptcp, err = p.take("HP-TCP endpoint trailer", HPTCPSize)
	}
	return err
}

// splitSHM cuts off head and records; regions bounds the records, as each names another region.
func splitSHM(p *splitter, regions uint32) ([]byte, error) {
	whole := p.rest
	head, err := p.take("SHM trailer head", SHMHeadSize)
	if err != nil {
		return nil, err
	}
	count := order.Uint32(head)
	if count > regions {
		return nil, refuse(descriptorFrame, "SHM count", uint64(count), "at most one record for each region")
	}
	records, err := p.take("SHM records", int(count)*SHMRecordSize)
	if err != nil {
		return nil, err
	}
	return whole[:SHMHeadSize+len(records)], nil
}

// countScoped counts the records with the scope flag and refuses undefined flags, which might mean
// further bytes.
func countScoped(records []byte) (n int, err error) {
	for i := 0; i < len(records)/RegionSize; i++ {
		flags := RegionFlags(records[i*RegionSize+regionFlagsAt])
		if flags&^regionFlagsKnown != 0 {
			return 0, refuseRegionFlags(flags).at(i)
		}
		if flags&RegionScoped != 0 {
			n++
		}
	}
	return n, nil
}

// decode turns the parts into values. Every allocation here is covered by bytes at hand.
func (s *sections) decode() (d Descriptor, err error) {
	d.Capabilities = s.capabilities
	if d.Regions, err = s.decodeRegions(); err != nil {
		return d, err
	}
	if s.shm != nil {
		if d.SHM, err = decodeSHM(s.shm); err != nil {
			return d, err
		}
	}
	if s.mnnvl != nil {
		if d.MNNVL, err = decodeMNNVL(s.mnnvl); err != nil {
			return d, err
		}
	}
	if s.rdma != nil {
		if d.RDMA, err = decodeRDMA(s.rdma); err != nil {
			return d, err
		}
	}
	if s.hptcp != nil {
		d.HPTCP, err = decodeHPTCP(s.hptcp)
	}
	return d, err
}

// decodeRegions reads the fixed records and hands each flagged one its scope entry.
func (s *sections) decodeRegions() (regions []Region, err error) {
	regions = make([]Region, len(s.regions)/RegionSize)
	scopes := s.scopes
	for i := range regions {
		r := &regions[i]
		if *r, err = decodeRegion(s.regions[i*RegionSize:][:RegionSize], i); err != nil {
			return nil, err
		}
		if r.Flags&RegionScoped != 0 {
			r.Scope = decodeScope(scopes)
			scopes = scopes[ScopeSize:]
		}
	}
	return regions, nil
}
