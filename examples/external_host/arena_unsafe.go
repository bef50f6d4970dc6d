package main

import (
	"syscall"
	"unsafe"

	"github.com/orbitte/orbitte"
)

// arena is memory from elsewhere: here a mapping, as it might come from another library. It must stay in
// place until end, and end must not be called before the engine is done with it.
type arena struct{ bytes []byte }

func newArena(size int) (*arena, error) {
	b, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	return &arena{b}, err
}

// adopt makes a memory object of the arena and names it as the owner.
func (a *arena) adopt() (*orbitte.Memory, error) {
	return orbitte.AdoptPointer(unsafe.Pointer(unsafe.SliceData(a.bytes)), uintptr(len(a.bytes)), a)
}

func (a *arena) end() error { return syscall.Munmap(a.bytes) }
