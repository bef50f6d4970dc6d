package netproto

import "math/bits"

// Runs say which ranges of a region one request is about, in the order of its payload (H-8). One coding serves
// lists, pages and strides: all numbers count in the request's unit (1 for a list, the page size for pages),
// neighbours are one run, and ranges of one length at one distance are one run. Each run is two to four
// unsigned LEB128 numbers of minimal length:
//
//	zigzag of (start - end of the range before; the request's offset before the first),
//	length · 2 + 1 if strided,
//	and of a strided run: count - 2, stride
//
// A page in a random place costs about three bytes.

// HPTCPRun is Count ranges of Length units each, the first at Start, each Stride units behind the one before.
type HPTCPRun struct {
	Start  uint64 // bytes inside the region
	Length uint64 // bytes, 1 or more
	Count  uint64 // 1 or more
	Stride uint64 // bytes; 0 when Count is 1
}

// End is where the last range ends. DecodeHPTCPRuns has seen to it that it is below 2^64.
func (r HPTCPRun) End() uint64 { return r.Start + (r.Count-1)*r.Stride + r.Length }

// Bytes is the payload of the run.
func (r HPTCPRun) Bytes() uint64 { return r.Count * r.Length }

const runsFrame = "HP-TCP runs"

// HPTCPRunSizeMax is what one coded run takes at most.
const HPTCPRunSizeMax = 4 * 10

// AppendHPTCPRun appends one run behind one that ended at end, and says where this one ends. Everything is a
// multiple of unit, relative to the request's offset. It encodes any such value.
func AppendHPTCPRun(dst []byte, r HPTCPRun, unit uint32, end uint64) ([]byte, uint64) {
	shift := uint64(unit)
	distance := (r.Start - end) / shift << 1
	if r.Start < end {
		distance = (end-r.Start)/shift<<1 - 1
	}
	dst = appendVarint(dst, distance)
	if r.Count == 1 {
		return appendVarint(dst, r.Length/shift<<1), r.End()
	}
	dst = appendVarint(dst, r.Length/shift<<1|1)
	dst = appendVarint(dst, r.Count-2)
	return appendVarint(dst, r.Stride/shift), r.End()
}

func appendVarint(dst []byte, n uint64) []byte {
	for n >= 0x80 {
		dst = append(dst, byte(n)|0x80)
		n >>= 7
	}
	return append(dst, byte(n))
}

// varint reads one number; size 0 says that b has none of minimal length.
func varint(b []byte) (n uint64, size int) {
	for i, x := range b {
		if i == 9 && x > 1 || x == 0 && i > 0 {
			return 0, 0
		}
		n |= uint64(x&0x7f) << (7 * i)
		if x < 0x80 {
			return n, i + 1
		}
	}
	return 0, 0
}

// DecodeHPTCPRuns appends the runs of a request to dst. It refuses with a *FrameError what is not exactly the request's
// length in all, and any range that does not end below 2^64. It allocates only while dst grows, at most one run for
// each two bytes.
func DecodeHPTCPRuns(dst []HPTCPRun, r HPTCPRequest, b []byte) ([]HPTCPRun, error) {
	if len(b) != int(r.RunsSize) {
		return dst, refuseSize(runsFrame, uint64(len(b)), uint64(r.RunsSize))
	}
	end, left, first := r.Offset, r.Length, len(dst)
	for len(b) > 0 {
		run, size := decodeRun(b, uint64(r.Unit), end)
		switch at := len(dst) - first; {
		case size == 0:
			return dst, refuse(runsFrame, "run", uint64(b[0]), "two to four numbers of minimal length, ranges that end below 2^64").
				at(at).with(StatusInvalidRange)
		case run.Count > left/run.Length:
			return dst, refuse(runsFrame, "length", run.Length, "ranges that add up to the request's length").at(at).with(StatusInvalidRange)
		}
		dst = append(dst, run)
		end, left, b = run.End(), left-run.Bytes(), b[size:]
	}
	if left != 0 {
		return dst, refuse(runsFrame, "missing bytes", left, "ranges that add up to the request's length").with(StatusInvalidRange)
	}
	return dst, nil
}

// decodeRun reads one run; size 0 says that there is none.
func decodeRun(b []byte, unit, end uint64) (run HPTCPRun, size int) {
	var numbers [4]uint64
	wanted := 2
	for i := 0; i < wanted; i++ {
		n, used := varint(b[size:])
		if used == 0 {
			return run, 0
		}
		numbers[i] = n
		size += used
		if i == 1 && n&1 != 0 {
			wanted = 4
		}
	}
	start, ok := moved(end, numbers[0], unit)
	length, fits := times(numbers[1]>>1, unit)
	run = HPTCPRun{Start: start, Length: length, Count: 1}
	if !ok || !fits || length == 0 {
		return run, 0
	}
	span := length
	if wanted == 4 {
		stride, fits := times(numbers[3], unit)
		reach, fitsToo := times(numbers[2]+1, stride)
		if !fits || !fitsToo || numbers[2] >= 1<<32 || reach+length < reach {
			return run, 0
		}
		run.Count, run.Stride, span = numbers[2]+2, stride, reach+length
	}
	if start+span < start {
		return run, 0
	}
	return run, size
}

// times multiplies; false when the product does not fit.
func times(a, b uint64) (uint64, bool) {
	high, low := bits.Mul64(a, b)
	return low, high == 0
}

// moved is end moved by a zigzag number of units; false when that leaves 0 to 2^64.
func moved(end, zigzag, unit uint64) (uint64, bool) {
	distance, ok := times(zigzag>>1+zigzag&1, unit)
	if zigzag&1 == 0 {
		return end + distance, ok && end+distance >= end
	}
	return end - distance, ok && distance <= end
}
