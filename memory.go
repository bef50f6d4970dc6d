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
	backing *segments.Backing
	closed  atomic.Bool
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
	return &Memory{backing: backing}, nil
}

// Bytes is the memory itself, good until Close; nil after it. Access that may meet a transfer is the caller's to order:
// a request that has ended, or Unregister that returned nil, proves quiet.
func (m *Memory) Bytes() []byte {
	if m.closed.Load() {
		return nil
	}
	return m.backing.Bytes()
}

// Address is the address of the first byte: what requests name.
func (m *Memory) Address() uint64 { return m.backing.Address() }

// Len is the number of bytes.
func (m *Memory) Len() int { return int(m.backing.Length()) }

// Prefault makes the pages present, so that the first transfer does not pay for their first touch. Errors:
// ErrClosed, ErrSystem.
func (m *Memory) Prefault() error {
	if !m.hold() {
		return &Error{Op: "Prefault", Index: -1, Class: ErrClosed}
	}
	defer m.backing.Drop()
	return failure("Prefault", m.backing.Prefault(0, m.backing.Length()))
}

// hold keeps the memory alive for the length of a call; false after Close. The caller drops the backing.
func (m *Memory) hold() bool {
	if m == nil || !m.backing.TryHold() {
		return false
	}
	if m.closed.Load() { // registrations may keep it alive, but the handle is closed
		m.backing.Drop()
		return false
	}
	return true
}

// Close gives up the caller's hold. The memory ends (is unmapped, unpinned, let go) when the last
// registration and the last admitted transfer have ended, too. A second Close does nothing.
func (m *Memory) Close() error {
	if m.closed.CompareAndSwap(false, true) {
		m.backing.Drop()
	}
	return nil
}
