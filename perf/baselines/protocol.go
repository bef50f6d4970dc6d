package baselines

import (
	"encoding/binary"
	"fmt"
)

// What a command asks for. Every server here, gnet's too, speaks this: a command of 16 bytes, then its payload.
const (
	Pull     = 1 // the server sends Count blocks of Size
	Push     = 2 // the client sends Count blocks of Size, the server answers one byte
	PingPong = 3 // the client sends AskBytes, the server answers Size bytes; Count times
)

// AskBytes is the size of a ping: what a READ request of the engine takes on the wire.
const AskBytes = 52

// CommandBytes is the size of a command: 1 byte what, 1 byte spin, 1 byte scattered, 1 unused, 4 count, 8 size.
const CommandBytes = 16

// BlockBytesMax is the largest block of a command.
const BlockBytesMax = 64 << 20

// Command is one order to a server.
type Command struct {
	What byte
	Spin bool // the server looks instead of blocking
	// Scattered, for a Pull of the raw server: the blocks are pages, gathered and scattered by calls of many, in an order
	// that jumps over a memory of Count pages.
	Scattered bool
	Count     uint32
	Size      uint64
}

// Encode is the command's bytes.
func (c Command) Encode() []byte {
	b := make([]byte, CommandBytes)
	b[0] = c.What
	if c.Spin {
		b[1] = 1
	}
	if c.Scattered {
		b[2] = 1
	}
	binary.BigEndian.PutUint32(b[4:], c.Count)
	binary.BigEndian.PutUint64(b[8:], c.Size)
	return b
}

// Decode reads a command. Errors: an unknown order, a size past BlockBytesMax.
func Decode(b []byte) (Command, error) {
	c := Command{b[0], b[1] == 1, b[2] == 1, binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint64(b[8:])}
	if c.What < Pull || c.What > PingPong || c.Size > BlockBytesMax || c.memoryBytes() > scatteredBytesMax {
		return c, fmt.Errorf("command %d of %d bytes is none of this harness", c.What, c.Size)
	}
	return c, nil
}

// WorkingBytes is how much memory bulk work goes round in, the engine and its baselines alike: more than a core's own
// cache, less than what cores share.
const WorkingBytes = 4 << 20

// Offset is where block i of a size begins.
func Offset(i, size uint64) uint64 {
	if size == 0 {
		return 0
	}
	return i * size % (max(WorkingBytes, size) / size * size)
}

// Part is block i of a size.
func Part(block []byte, i, size uint64) []byte { return block[Offset(i, size):][:size] }

// scatteredBytesMax bounds the memory of a scattered command.
const scatteredBytesMax = 1 << 30

// memoryBytes is how much memory the command goes round in.
func (c Command) memoryBytes() uint64 {
	if c.Scattered {
		return uint64(c.Count) * c.Size
	}
	return MemoryBytes(c.Size)
}

// The steps by which pages are jumped over at both ends: primes, so that every page of a count that neither divides comes
// once.
const (
	NearStep = 7919     // the requester's
	FarStep  = 15485863 // the source's
)

// Jump is the i-th page of count in the order of a step.
func Jump(i, count, step uint64) uint64 { return i * step % count }

// MemoryBytes is how much memory blocks of a size go round in.
func MemoryBytes(size uint64) uint64 { return max(WorkingBytes, size) }

// Fill gives memory a content without a line of zeros, as real data has. On some processors (seen on AMD Zen 4: memcpy over
// 4 MiB at 51 GB/s against 26) lines that are nearly all zero pass between caches at twice the rate, so a side that moves
// zeros would be held against one that moves data.
func Fill(b []byte) {
	x := uint64(0x9e3779b97f4a7c15)
	for ; len(b) >= 8; b = b[8:] {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.NativeEndian.PutUint64(b, x)
	}
	for i := range b {
		b[i] = byte(x>>8*uint64(i)) | 1
	}
}
