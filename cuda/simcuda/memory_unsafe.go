package simcuda

import (
	"runtime/debug"
	"sync/atomic"
	"unsafe"
)

// Bytes are moved here as a device does it: by address, without the owner's knowledge. The race detector does not see
// these accesses, as it does not see a device's; what orders them for a program is the event that it queries.

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// hostView views memory of the process that the driver does not know.
func hostView(address, length uint64) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&address)), length)
}

// move copies, also between ranges that overlap.
//
//go:norace
func move(to, from []byte) { copy(to, from) }

// fill sets all bytes.
//
//go:norace
func fill(b []byte, value byte) {
	if len(b) == 0 {
		return
	}
	b[0] = value
	for done := 1; done < len(b); done *= 2 {
		copy(b[done:], b[:done])
	}
}

// scramble fills memory with bytes that mean nothing.
//
//go:norace
func scramble(b []byte, random uint64) {
	n := min(len(b), 61) // a prime, so that no block of a transfer sees the same bytes twice
	for i := range n {
		random ^= random << 13
		random ^= random >> 7
		random ^= random << 17
		b[i] = byte(random >> 24)
	}
	for done := n; done > 0 && done < len(b); done *= 2 {
		copy(b[done:], b[:done])
	}
}

// reachable says whether each page of a range can be read, and written where write is true, by doing so.
//
//go:norace
func reachable(address, length uint64, write bool) (ok bool) {
	if address < pageBytes || address+length < address {
		return false
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	for at := address; at < address+length; at = (at/pageBytes + 1) * pageBytes {
		b := hostView(at, 1)
		now := b[0]
		sink.Store(uint32(now))
		if write {
			b[0] = now
		}
	}
	return true
}

// sink keeps the looks at memory from being compiled away.
var sink atomic.Uint32
