package segments

import (
	"fmt"
	"math"
)

// Range is a run of bytes: Start is an absolute address or an offset, Length a count of bytes. The end
// of a valid range is at most 2^64 - 1, so that End never wraps.
type Range struct {
	Start, Length uint64
}

// Valid reports whether the end of the range can be expressed. Every other method needs a valid range.
func (r Range) Valid() bool { return r.Length <= math.MaxUint64-r.Start }

// End is the first address behind the range.
func (r Range) End() uint64 { return r.Start + r.Length }

// Empty reports whether the range has no byte.
func (r Range) Empty() bool { return r.Length == 0 }

// Contains reports whether every byte of other lies in r. An empty other is contained when it starts
// inside r or at its end, so that a zero-length request is checked like any other (SPEC G-7).
func (r Range) Contains(other Range) bool {
	return other.Start >= r.Start && Within(other.Start-r.Start, other.Length, r.Length)
}

// Overlaps reports whether the two ranges share a byte. An empty range overlaps nothing.
func (r Range) Overlaps(other Range) bool {
	return !r.Empty() && !other.Empty() && r.Start < other.End() && other.Start < r.End()
}

// String is "[0x1000, +64)": start in hexadecimal, length in bytes.
func (r Range) String() string { return fmt.Sprintf("[%#x, +%d)", r.Start, r.Length) }

// Within reports whether offset and length describe bytes of an object of size bytes. It cannot overflow.
func Within(offset, length, size uint64) bool {
	return offset <= size && length <= size-offset
}
