package netproto

import (
	"fmt"
	"math"
)

// Frames of an HP-TCP data stream after its hello (H-3). The layouts are the project's:
//
//	frame, 32:   kind 1, flags 1, status 1, zero 1, CRC32C 4, slot 4, generation 4, offset 8, length 8
//	request, 48: a frame, then region 8, unit 4, bytes of runs 4; the runs follow (see HPTCPRun)
//	chunk:       a frame, then length bytes of payload
//
// A WRITE's chunks stand directly behind its request, in order and without a frame of another tag between them.
// A READ is answered by its chunks in order, and ends with the last one; an END ends everything else.
const (
	HPTCPFrameSize   = 32
	HPTCPRequestSize = HPTCPFrameSize + 16
	// HPTCPRunsSizeMax bounds the runs of one request: a longer list takes more requests.
	HPTCPRunsSizeMax = 8 << 10

	hptcpFrame   = "HP-TCP frame"
	hptcpRequest = "HP-TCP request"
)

// HPTCPKind says what a frame is.
type HPTCPKind uint8

// The kinds. A requester sends READ, WRITE and chunks, a source chunks and END.
const (
	HPTCPRead  HPTCPKind = 1
	HPTCPWrite HPTCPKind = 2
	HPTCPChunk HPTCPKind = 3
	HPTCPEnd   HPTCPKind = 4
)

// String names the kind.
func (k HPTCPKind) String() string {
	if k >= HPTCPRead && k <= HPTCPEnd {
		return [...]string{"READ", "WRITE", "chunk", "end"}[k-1]
	}
	return fmt.Sprintf("unknown kind %d", uint8(k))
}

// Flags of a frame.
const (
	// HPTCPAtomic, of a WRITE: all bytes are put in place at once, when they are there (H-5).
	HPTCPAtomic uint8 = 1
	// HPTCPMismatch, of an END: the chunk at Offset has another CRC32C than it said (H-9).
	HPTCPMismatch uint8 = 2
)

// HPTCPTag names one request of one stream: a place in the requester's table, and which of the requests that
// had it. Generations are never zero.
type HPTCPTag struct{ Slot, Generation uint32 }

// HPTCPFrame is the fixed part of every frame.
type HPTCPFrame struct {
	Kind   HPTCPKind
	Flags  uint8
	Status Status // END only
	Check  uint32 // chunk only: CRC32C of its bytes, zero on a stream without checksums
	Tag    HPTCPTag
	// Offset is the first byte: in the region (READ, WRITE: where the first run is counted from), in the
	// request's payload (chunk, mismatch).
	Offset uint64
	Length uint64 // payload bytes: of the whole request (READ, WRITE), of the chunk
}

// HPTCPRequest is a READ or WRITE.
type HPTCPRequest struct {
	HPTCPFrame
	Region   uint64
	Unit     uint32 // bytes that the runs count in; zero exactly when the range is one run of Length at Offset
	RunsSize uint32 // bytes of the runs behind the request
}

// AppendHPTCPFrame appends the 32 bytes of f. It encodes any value and allocates only when dst is too short.
func AppendHPTCPFrame(dst []byte, f HPTCPFrame) []byte {
	dst = append(dst, byte(f.Kind), f.Flags, byte(f.Status), 0)
	dst = order.AppendUint32(dst, f.Check)
	dst = order.AppendUint32(order.AppendUint32(dst, f.Tag.Slot), f.Tag.Generation)
	return order.AppendUint64(order.AppendUint64(dst, f.Offset), f.Length)
}

// AppendHPTCPRequest appends the 48 bytes of r. It encodes any value and allocates only when dst is too short.
func AppendHPTCPRequest(dst []byte, r HPTCPRequest) []byte {
	dst = AppendHPTCPFrame(dst, r.HPTCPFrame)
	dst = order.AppendUint64(dst, r.Region)
	return order.AppendUint32(order.AppendUint32(dst, r.Unit), r.RunsSize)
}

// DecodeHPTCPFrame reads the first HPTCPFrameSize bytes of b, of which there must be so many, and refuses with a
// *FrameError whatever no peer may send. A READ or WRITE is read by DecodeHPTCPRequest.
func DecodeHPTCPFrame(b []byte) (HPTCPFrame, error) {
	if len(b) < HPTCPFrameSize {
		return HPTCPFrame{}, refuseSize(hptcpFrame, uint64(len(b)), HPTCPFrameSize)
	}
	f := HPTCPFrame{Kind: HPTCPKind(b[0]), Flags: b[1], Status: Status(b[2]), Check: order.Uint32(b[4:]),
		Tag:    HPTCPTag{order.Uint32(b[8:]), order.Uint32(b[12:])},
		Offset: order.Uint64(b[16:]), Length: order.Uint64(b[24:])}
	if b[3] != 0 {
		return f, refuse(hptcpFrame, "reserved byte", uint64(b[3]), "0")
	}
	return f, f.check()
}

func (f *HPTCPFrame) check() error {
	flags := uint8(0)
	switch f.Kind {
	case HPTCPRead, HPTCPChunk:
	case HPTCPWrite:
		flags = HPTCPAtomic
	case HPTCPEnd:
		flags = HPTCPMismatch
	default:
		return refuse(hptcpFrame, "kind", uint64(f.Kind), "1 to 4")
	}
	switch {
	case f.Flags&^flags != 0:
		return refuse(hptcpFrame, "flags", uint64(f.Flags), "those of the frame's kind")
	case f.Kind != HPTCPEnd && f.Status != 0:
		return refuse(hptcpFrame, "status", uint64(f.Status), "0, but in an end")
	case f.Kind != HPTCPChunk && f.Check != 0:
		return refuse(hptcpFrame, "CRC32C", uint64(f.Check), "0, but in a chunk")
	case f.Tag.Generation == 0:
		return refuse(hptcpFrame, "generation", 0, "1 or more")
	case f.Length > math.MaxUint64-f.Offset:
		return refuse(hptcpFrame, "length", f.Length, "a range that ends below 2^64").with(StatusInvalidRange)
	case f.Length > PayloadBytesMax:
		return refuse(hptcpFrame, "length", f.Length, "at most 67108864 bytes").with(StatusExhausted)
	case f.Kind == HPTCPChunk && f.Length == 0:
		return refuse(hptcpFrame, "chunk length", 0, "1 or more bytes")
	case f.Kind == HPTCPEnd:
		return f.checkEnd()
	}
	return nil
}

func (f *HPTCPFrame) checkEnd() error {
	mismatch := f.Flags&HPTCPMismatch != 0
	switch {
	case !f.Status.Known() || f.Status == StatusReady:
		return refuse(hptcpFrame, "status", uint64(f.Status), "0 to 12, and not ready")
	case f.Length != 0 || !mismatch && f.Offset != 0:
		return refuse(hptcpFrame, "range of an end", max(f.Offset, f.Length), "0, but the offset of a mismatch")
	case mismatch && f.Status == StatusSuccess:
		return refuse(hptcpFrame, "status of a mismatch", 0, "a refusal")
	}
	return nil
}

// DecodeHPTCPRequest reads the first HPTCPRequestSize bytes of b. The error is a *FrameError. Region, range and permission
// are for the source to check.
func DecodeHPTCPRequest(b []byte) (HPTCPRequest, error) {
	if len(b) < HPTCPRequestSize {
		return HPTCPRequest{}, refuseSize(hptcpRequest, uint64(len(b)), HPTCPRequestSize)
	}
	f, err := DecodeHPTCPFrame(b)
	r := HPTCPRequest{HPTCPFrame: f, Region: order.Uint64(b[32:]), Unit: order.Uint32(b[40:]), RunsSize: order.Uint32(b[44:])}
	switch {
	case err != nil:
		return r, err
	case f.Kind != HPTCPRead && f.Kind != HPTCPWrite:
		return r, refuse(hptcpRequest, "kind", uint64(f.Kind), "1 or 2")
	case r.Region == 0:
		return r, refuse(hptcpRequest, "region", 0, "1 or more").with(StatusUnknownRegion)
	case (r.Unit == 0) != (r.RunsSize == 0):
		return r, refuse(hptcpRequest, "bytes of runs", uint64(r.RunsSize), "0 exactly when the unit is 0")
	case r.RunsSize > HPTCPRunsSizeMax:
		return r, refuse(hptcpRequest, "bytes of runs", uint64(r.RunsSize), "at most 8192: ask for less at a time").with(StatusExhausted)
	}
	return r, nil
}
