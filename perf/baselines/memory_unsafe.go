package baselines

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const hugePage = 2 << 20

// Memory is what a server moves: memory of its own like the engine's, off the Go heap and in huge pages where the kernel
// gives them on advice. A baseline in small pages would pay for them in each copy. One goroutine at a time.
type Memory struct {
	whole []byte // as it was mapped
	bytes []byte
}

// Hold returns n bytes with content (Fill). What was returned before may be gone.
func (m *Memory) Hold(n uint64) []byte {
	if uint64(len(m.bytes)) >= n {
		return m.bytes
	}
	m.Close()
	whole, err := unix.Mmap(-1, 0, int(n+hugePage), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		m.bytes = make([]byte, n)
	} else {
		skip := -uintptr(unsafe.Pointer(unsafe.SliceData(whole))) & (hugePage - 1)
		_ = unix.Madvise(whole[skip:], unix.MADV_HUGEPAGE) // advice: without it small pages serve
		m.whole, m.bytes = whole, whole[skip:][:n:n]
	}
	Fill(m.bytes)
	return m.bytes
}

// Close gives the memory back.
func (m *Memory) Close() {
	if m.whole != nil {
		_ = unix.Munmap(m.whole)
	}
	*m = Memory{}
}
