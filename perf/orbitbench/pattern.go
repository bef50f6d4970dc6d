package main

import "encoding/binary"

// pattern is the bytes of a memory, by address within it, so that what arrived can be told from what was there.
type pattern uint64

const (
	sourcePattern pattern = 0x9e3779b97f4a7c15
	ownPattern    pattern = 0xc2b2ae3d27d4eb4f
)

func (p pattern) word(i int) uint64 {
	x := (uint64(i) + 1) * uint64(p)
	return x ^ x>>29
}

// fill writes words from offset on; b is the memory from there. Its length and the offset are multiples of eight.
func (p pattern) fill(b []byte, offset int) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.NativeEndian.PutUint64(b[i:], p.word((offset+i)/8))
	}
}

// differs is the first offset within b whose word is not the pattern's; -1 when all are.
func (p pattern) differs(b []byte, offset int) int {
	for i := 0; i+8 <= len(b); i += 8 {
		if binary.NativeEndian.Uint64(b[i:]) != p.word((offset+i)/8) {
			return i
		}
	}
	return -1
}
