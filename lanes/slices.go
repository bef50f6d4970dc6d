package lanes

import "fmt"

// How many slices one transfer may have (SPEC R-8).
const (
	// SlicesMaxRead bounds a READ into host memory, pinned host memory included.
	SlicesMaxRead = 64
	// SlicesMax bounds a WRITE, and a READ into device memory.
	SlicesMax = 32
	// SliceBlock is the default base block, bytes.
	SliceBlock = 64 << 10
)

// SliceCap returns how many slices a transfer may have at most. Peer is what the peer admits; 0: it said nothing.
func SliceCap(d Direction, device bool, peer int) int {
	limit := SlicesMax
	if d == Read && !device {
		limit = SlicesMaxRead
	}
	if peer > 0 {
		limit = min(limit, peer)
	}
	return limit
}

// Slices is how one transfer is cut: in order, without a gap, none of them empty. It is a value.
type Slices struct {
	Length uint64 // bytes of the whole
	Block  uint64 // bytes of each slice but the last
	Count  int
}

// Cut cuts length bytes by the geometry of SPEC R-8. Base is the base block in bytes, limit how many slices there may
// be; a length of zero has none. Base and limit below 1, and lengths from 2^62 on, panic: the caller checks a budget
// before.
func Cut(length, base uint64, limit int) Slices {
	if base < 1 || base > 1<<61 || limit < 1 || length >= 1<<62 {
		panic(fmt.Sprintf("lanes: Cut(%d bytes, block %d, limit %d), want less than 2^62 bytes, a block and a limit from 1 on", length, base, limit))
	}
	block := base
	if (length+base-1)/base > uint64(limit) {
		block = (length + uint64(limit) - 1) / uint64(limit)
		block = (block + base - 1) / base * base
	}
	count, tail := length/block, length%block
	if fold := count >= 1 && tail <= (block-1)/4; tail > 0 && !fold { // 4·tail < block, without overflow
		count++
	}
	return Slices{Length: length, Block: block, Count: int(count)}
}

// At returns the slice with this index.
func (s Slices) At(i int) (offset, length uint64) {
	if i < 0 || i >= s.Count {
		panic(fmt.Sprintf("lanes: slice %d of %d", i, s.Count))
	}
	offset = uint64(i) * s.Block
	if i == s.Count-1 {
		return offset, s.Length - offset
	}
	return offset, s.Block
}
