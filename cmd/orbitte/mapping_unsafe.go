package main

import (
	"fmt"
	"math"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte"
)

// mapping is a whole file in memory. It ends with unmap, after the memory object made of it.
type mapping struct {
	bytes []byte
}

// mapFile maps the first size bytes of f, at least one. Shared: what is written reaches the file.
// Otherwise writes, which nobody makes, would stay private. Whoever shortens the file meanwhile kills the
// process by SIGBUS, as with any mapping.
func mapFile(f *os.File, size uint64, shared bool) (*mapping, error) {
	if size > math.MaxInt {
		return nil, fmt.Errorf("%s: %d bytes cannot be mapped", f.Name(), size)
	}
	kind := unix.MAP_PRIVATE | unix.MAP_NORESERVE
	if shared {
		kind = unix.MAP_SHARED
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, kind)
	if err != nil {
		return nil, &os.PathError{Op: "mmap", Path: f.Name(), Err: err}
	}
	return &mapping{b}, nil
}

// adopt makes a memory object of the mapping, which it keeps alive.
func (m *mapping) adopt() (*orbitte.Memory, error) {
	return orbitte.AdoptPointer(unsafe.Pointer(unsafe.SliceData(m.bytes)), uintptr(len(m.bytes)), m)
}

// populate makes the pages of a range present, so that a lane does not wait for them. It is advice: before
// Linux 5.14, and where the file system refuses, the first touch does it.
func (m *mapping) populate(offset, n uint64) {
	page := uint64(os.Getpagesize())
	first := offset / page * page
	_ = unix.Madvise(m.bytes[first:offset+n], unix.MADV_POPULATE_WRITE)
}

// sync waits until the file system has what was written.
func (m *mapping) sync() error { return unix.Msync(m.bytes, unix.MS_SYNC) }

func (m *mapping) unmap() error { return unix.Munmap(m.bytes) }
