package orbitte

import (
	"sync/atomic"

	"github.com/orbitte/orbitte/segments"
)

// Memory is one memory object: the unit that one lease table arbitrates. It belongs to the caller, is
// independent of any engine, and may be registered with several (SPEC M-3, M-9).
//
// Its own length is an int, as that of every Go slice: Allocate, Bytes and Len go together. Offsets, lengths
// and addresses of ranges, registrations and requests are uint64, since they are compared with a peer's, which
// are not limited by this process. A registration's Address and Length are the whole range in that form.
type Memory struct {
	backing        *segments.Backing
	offset, length uint64        // its part of the backing; the whole, but for adopted device memory
	driver         *driverMemory // nil unless a driver allocated it
	closed         atomic.Bool
}

// Allocate takes length bytes of zeroed, page-aligned memory off the Go heap from the system (SPEC M-1).
// Errors: ErrInvalid, ErrSystem.
func Allocate(length int) (*Memory, error) {
	if length <= 0 {
		return nil, &Error{Op: "Allocate", Index: -1, Class: ErrInvalid, Cause: errNoBytes}
	}
	return newMemory("Allocate", segments.Map, uint64(length))
}

// Adopt takes over a Go slice: exactly its bytes, pinned until the memory has ended. Errors: ErrInvalid.
func Adopt(b []byte) (*Memory, error) {
	if len(b) == 0 {
		return nil, &Error{Op: "Adopt", Index: -1, Class: ErrInvalid, Cause: errNoBytes}
	}
	return newMemory("Adopt", segments.AdoptSlice, b)
}

func newMemory[T any](op string, make func(T) (*segments.Backing, error), from T) (*Memory, error) {
	backing, err := make(from)
	if err != nil {
		return nil, failure(op, err)
	}
	return memoryOf(backing), nil
}

func memoryOf(b *segments.Backing) *Memory { return &Memory{backing: b, length: b.Length()} }

// Type says where the bytes are.
func (m *Memory) Type() MemoryType {
	if m.backing.Kind() == segments.Device {
		return MemoryCUDA
	}
	return MemoryHost
}

// GPU is the ordinal of the GPU that the bytes are on; -1 for host memory.
func (m *Memory) GPU() int {
	if m.Type() == MemoryHost {
		return -1
	}
	return m.driver.device.Ordinal()
}

// Bytes is the memory itself, good until Close; nil after it, and for memory on a GPU, which no CPU can read. Access that may meet a transfer is the caller's to order:
// a request that has ended, or Unregister that returned nil, proves quiet.
func (m *Memory) Bytes() []byte {
	if m.closed.Load() {
		return nil
	}
	return m.backing.Bytes()
}

// Address is the address of the first byte: what requests name. On a GPU it is the device pointer.
func (m *Memory) Address() uint64 { return m.backing.Address() + m.offset }

// Len is the number of bytes.
func (m *Memory) Len() int { return int(m.length) }

// Prefault makes the pages present, so that the first transfer does not pay for their first touch. Pinned memory and
// memory on a GPU are present. Errors: ErrClosed, ErrSystem.
func (m *Memory) Prefault() error {
	if !m.hold() {
		return &Error{Op: "Prefault", Index: -1, Class: ErrClosed}
	}
	defer m.unhold()
	return failure("Prefault", m.backing.Prefault(0, m.backing.Length()))
}

// hold keeps the memory alive for the length of a call; false after Close. The caller gives it back with unhold.
func (m *Memory) hold() bool {
	switch {
	case m == nil:
		return false
	case m.driver != nil && !m.driver.tryHold(), m.driver == nil && !m.backing.TryHold():
		return false
	case m.closed.Load(): // registrations may keep it alive, but the handle is closed
		m.unhold()
		return false
	}
	return true
}

// unhold ends hold. The error is what a driver refused to end, if this was the last hold.
func (m *Memory) unhold() error {
	if m.driver != nil {
		return m.driver.drop()
	}
	m.backing.Drop()
	return nil
}

// Close gives up the caller's hold. The memory ends (is unmapped, unpinned, freed, let go) when the last
// registration and the last admitted transfer have ended, too: a Registration that is not given to Engine.Unregister keeps it,
// also when its engine is closed, and memory on a GPU stays allocated as long. A second Close does nothing. The error is an
// ErrUnquiesced: a CUDA driver refused to free the memory, which stays and is listed by RetainedByCUDA.
func (m *Memory) Close() error {
	if m.closed.CompareAndSwap(false, true) {
		return in(freeing, failure("Close", m.unhold()))
	}
	return nil
}
