package segments

import (
	"cmp"
	"math/bits"
	"slices"
)

const (
	// comparedMax is how many ranges are sorted by comparison: of fewer than that a count of each digit costs more.
	comparedMax = 32
	// digitMax is the bits of a digit at most, so that the counts stay in the first-level cache, and on the stack.
	digitMax = 8
)

// sorted returns the ranges by their starts: in ranges or in spare, which has room for all of them and whose content is lost;
// the other one holds them in some order afterwards. differs has each bit in which two of the starts differ.
//
// The starts' digits are counted, from the lowest to the highest in which any differ (radix sort): pages of a pool take
// two or three rounds however many there are, where comparing takes one for each doubling of their number.
func sorted(ranges, spare []Range, differs uint64) []Range {
	if len(ranges) <= comparedMax {
		slices.SortFunc(ranges, func(a, b Range) int { return cmp.Compare(a.Start, b.Start) })
		return ranges
	}
	low := bits.TrailingZeros64(differs)
	span := bits.Len64(differs) - low
	width := min(bits.Len(uint(len(ranges)))-1, digitMax)
	width = (span + (span-1)/width) / ((span-1)/width + 1) // as few digits, but no wider than they need be
	spare = spare[:len(ranges)]
	for at := low; at < low+span; at += width {
		if differs>>at&(1<<width-1) != 0 {
			deal(spare, ranges, at, width)
			ranges, spare = spare, ranges
		}
	}
	return ranges
}

// deal puts the ranges in order of one digit of their starts; those with the same one stay in the order they were in.
func deal(to, from []Range, at, width int) {
	var room [1 << digitMax]uint32
	next, mask := room[:1<<width], uint64(1)<<width-1
	for i := range from {
		next[from[i].Start>>at&mask]++
	}
	sum := uint32(0)
	for i, n := range next {
		next[i], sum = sum, sum+n
	}
	for i := range from {
		digit := from[i].Start >> at & mask
		to[next[digit]] = from[i]
		next[digit]++
	}
}
