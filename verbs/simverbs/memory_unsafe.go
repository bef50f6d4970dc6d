package simverbs

import (
	"runtime/debug"
	"sync/atomic"
	"unsafe"
)

// The bytes of registered memory are moved here, as a device does: by address, without the owner's knowledge. The race
// detector does not see these accesses, as it does not see a device's; what orders them for a program is the
// completion that it polls.

// memory views registered bytes.
func memory(address uint64, length int) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&address)), length)
}

// load reads registered memory into a packet.
//
//go:norace
func load(into []byte, address uint64) { copy(into, memory(address, len(into))) }

// store writes a packet into registered memory.
//
//go:norace
func store(address uint64, from []byte) { copy(memory(address, len(from)), from) }

// pageSize is the smallest page of the systems we run on.
const pageSize = 4096

// readable says whether each page of a range can be read, by reading it.
//
//go:norace
func readable(address, length uint64) (ok bool) {
	if address < pageSize || address+length < address {
		return false
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	for at := address; at < address+length; at = (at/pageSize + 1) * pageSize {
		sink.Store(uint32(memory(at, 1)[0]))
	}
	return true
}

// sink keeps the looks at memory from being compiled away.
var sink atomic.Uint32
