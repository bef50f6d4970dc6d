package netproto

import "fmt"

// Sizes of the SHM trailer (W-10): what stands before the records, and one record.
const (
	SHMHeadSize   = 4 + 1 + 3
	SHMRecordSize = 7*8 + 4 + 4 + 16
)

// SHMBackend says where the shared objects live.
type SHMBackend uint8

// The backends.
const (
	SHMPosix     SHMBackend = 0 // POSIX shared memory
	SHMDirectory SHMBackend = 1 // a configured directory of the local mount
)

// SHM is the trailer of a source whose memory can be mapped by processes of the same host (W-10).
type SHM struct {
	Backend SHMBackend
	Records []SHMRecord // rising region IDs, at most one for each region of the descriptor
}

// SHMRecord names the shared object behind one region.
type SHMRecord struct {
	Region       uint64 // region ID
	Offset       uint64 // where the region starts inside the mapped object
	MappedSize   uint64 // bytes of the object
	GrantSlot    uint64
	Device       uint64 // of the object's file
	Inode        uint64 // of the object's file
	PIDNamespace uint64 // inode of the creator's PID namespace
	CreatorPID   uint32 // inside that namespace, never zero
	Nonce        [16]byte
}

// LeafName returns the name of the object's file, without a slash (W-10).
func (r *SHMRecord) LeafName() string {
	return fmt.Sprintf("orbite-shm-%016x-%08x-%032x", r.PIDNamespace, r.CreatorPID, r.Nonce)
}

// append appends head and records.
func (s *SHM) append(dst []byte) []byte {
	dst = order.AppendUint32(dst, uint32(len(s.Records)))
	dst = append(dst, byte(s.Backend), 0, 0, 0)
	for i := range s.Records {
		r := &s.Records[i]
		for _, v := range [...]uint64{r.Region, r.Offset, r.MappedSize, r.GrantSlot, r.Device, r.Inode, r.PIDNamespace} {
			dst = order.AppendUint64(dst, v)
		}
		dst = order.AppendUint32(dst, r.CreatorPID)
		dst = append(dst, 0, 0, 0, 0)
		dst = append(dst, r.Nonce[:]...)
	}
	return dst
}

// decodeSHM reads head and records; b has exactly the size that the count in it asks for.
func decodeSHM(b []byte) (*SHM, error) {
	if !isZero(b[5:SHMHeadSize]) {
		return nil, refuse(descriptorFrame, "SHM reserved bytes", uint64(b[5])<<16|uint64(b[6])<<8|uint64(b[7]), "0")
	}
	s := &SHM{Backend: SHMBackend(b[4])}
	b = b[SHMHeadSize:]
	s.Records = make([]SHMRecord, len(b)/SHMRecordSize)
	for i := range s.Records {
		record := b[i*SHMRecordSize:][:SHMRecordSize]
		if v := order.Uint32(record[60:]); v != 0 {
			return nil, refuse(descriptorFrame, "SHM record reserved bytes", uint64(v), "0").at(i)
		}
		s.Records[i] = decodeSHMRecord(record)
	}
	return s, nil
}

func decodeSHMRecord(b []byte) SHMRecord {
	return SHMRecord{
		Region:       order.Uint64(b[0:]),
		Offset:       order.Uint64(b[8:]),
		MappedSize:   order.Uint64(b[16:]),
		GrantSlot:    order.Uint64(b[24:]),
		Device:       order.Uint64(b[32:]),
		Inode:        order.Uint64(b[40:]),
		PIDNamespace: order.Uint64(b[48:]),
		CreatorPID:   order.Uint32(b[56:]),
		Nonce:        [16]byte(b[64:]),
	}
}

// check compares the records with the regions, which are in ID order already: every record names a
// region, IDs rise, and the region fits the mapped object.
func (s *SHM) check(regions []Region) error {
	if s.Backend > SHMDirectory {
		return refuse(descriptorFrame, "SHM backend", uint64(s.Backend), "0 or 1")
	}
	next := 0 // regions before it have IDs too small for the records that remain
	for i := range s.Records {
		r := &s.Records[i]
		for next < len(regions) && regions[next].ID < r.Region {
			next++
		}
		if next == len(regions) || regions[next].ID != r.Region {
			return refuse(descriptorFrame, "SHM region ID", r.Region, "rising IDs of published regions").at(i)
		}
		if !fits(r.Offset, regions[next].Length, r.MappedSize) {
			return refuse(descriptorFrame, "SHM allocation offset", r.Offset, "the region inside the mapped size").
				at(i).with(StatusInvalidRange)
		}
		if r.CreatorPID == 0 {
			return refuse(descriptorFrame, "SHM creator PID", 0, "1 or more").at(i)
		}
		next++
	}
	return nil
}
