package main

import (
	"encoding/binary"
	"hash/fnv"

	"github.com/orbitte/orbitte"
)

// A key names one endless row of bytes: byte i of row k is the same everywhere and for good, and two rows, or two
// places of one row, agree by chance only.
type key uint64

const golden = 0x9E3779B97F4A7C15

func mixed(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xBF58476D1CE4E5B9
	x ^= x >> 27
	x *= 0x94D049BB133111EB
	return x ^ x>>31
}

// keyOf is the row of the given numbers.
func keyOf(numbers ...uint64) key {
	x := uint64(golden)
	for _, n := range numbers {
		x = mixed(x + n*golden)
	}
	return key(x)
}

func hashOf(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // never fails
	return h.Sum64()
}

// epochKey is a row of one life of one engine.
func epochKey(e orbitte.Epoch, numbers ...uint64) key {
	return keyOf(append([]uint64{binary.BigEndian.Uint64(e[:8]), binary.BigEndian.Uint64(e[8:])}, numbers...)...)
}

func (k key) word(i uint64) uint64 {
	x := (uint64(k) + i) * golden
	return x ^ x>>32
}

// fill and differs are slow under the race detector, so that they work on private copies only: what engines share
// with the program is touched by copy, which the detector sees.

// fill writes the row from place at on.
//
//go:norace
func (k key) fill(b []byte, at uint64) {
	i := 0
	for ; i < len(b) && (at+uint64(i))%8 != 0; i++ {
		b[i] = k.byteAt(at + uint64(i))
	}
	for ; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], k.word((at+uint64(i))/8))
	}
	for ; i < len(b); i++ {
		b[i] = k.byteAt(at + uint64(i))
	}
}

func (k key) byteAt(at uint64) byte { return byte(k.word(at/8) >> (8 * (at % 8))) }

// differs is the first place of b that is not the row's from at on; -1 when all are.
//
//go:norace
func (k key) differs(b []byte, at uint64) int {
	i := 0
	for ; i < len(b) && (at+uint64(i))%8 != 0; i++ {
		if b[i] != k.byteAt(at+uint64(i)) {
			return i
		}
	}
	for ; i+8 <= len(b); i += 8 {
		if binary.LittleEndian.Uint64(b[i:]) != k.word((at+uint64(i))/8) {
			break // the loop below finds the byte
		}
	}
	for ; i < len(b); i++ {
		if b[i] != k.byteAt(at+uint64(i)) {
			return i
		}
	}
	return -1
}

// A row's header tells whoever reads a range which row it holds.
const headerBytes = 24

// stamp says who wrote a range, in which of its lives, and which of its writes it was.
type stamp struct{ writer, life, number uint64 }

func (s stamp) key() key { return keyOf(s.writer, s.life, s.number) }

// write makes b, of at least headerBytes, one version of a range.
func (s stamp) write(b []byte) {
	binary.LittleEndian.PutUint64(b, s.writer)
	binary.LittleEndian.PutUint64(b[8:], s.life)
	binary.LittleEndian.PutUint64(b[16:], s.number)
	s.key().fill(b[headerBytes:], headerBytes)
}

// stampOf reads which version b is; false when it is none, or not one as a whole. at is the first wrong byte.
func stampOf(b []byte) (s stamp, at int, whole bool) {
	s = stamp{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])}
	at = s.key().differs(b[headerBytes:], headerBytes)
	return s, at + headerBytes, at < 0
}
