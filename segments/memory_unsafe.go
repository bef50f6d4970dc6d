package segments

import (
	"math"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is the size from which transparent huge pages are advised, and to which such mappings are
// aligned: the PMD size of amd64, and of arm64 with 4 KiB pages. Elsewhere it is merely an alignment.
const hugePage = 2 << 20

// mapping is what mmap returned: start and whole size. For foreign memory start keeps reachable what may be
// on the Go heap.
type mapping struct {
	start unsafe.Pointer
	size  uint64
}

func (m mapping) unmap() error { return unix.MunmapPtr(m.start, uintptr(m.size)) }

// Map takes length bytes of zeroed memory from the system: page-aligned, off the Go heap, private to this
// process (SPEC M-1). From 2 MiB on it is aligned to huge pages and advised to use them. Pages come into
// being when first touched, on the node of the thread that touches them; Prefault does so at once. The
// error is a *MemoryError.
func Map(length uint64) (*Backing, error) {
	slack := uint64(0)
	if length >= hugePage {
		slack = hugePage // room to align; untouched pages cost address space only
	}
	page := uint64(os.Getpagesize())
	if length == 0 || length > math.MaxInt-slack-page {
		return nil, &MemoryError{Call: "mmap", Length: length, Err: unix.EINVAL}
	}
	size := (length+page-1)/page*page + slack
	start, err := unix.MmapPtr(-1, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, &MemoryError{Call: "mmap", Length: length, Err: err}
	}
	first := start
	if slack != 0 {
		first = unsafe.Add(start, -uintptr(start)&(hugePage-1))
		// Advice: a kernel without transparent huge pages refuses it, and small pages serve.
		_ = unix.Madvise(unsafe.Slice((*byte)(first), size-slack), unix.MADV_HUGEPAGE)
	}
	r := &resident{kind: Mapping, address: uint64(uintptr(first)), length: length, region: mapping{start, size}}
	return settle(unsafe.Slice((*byte)(first), length), r), nil
}

// Prefault makes the pages of a range of a Map memory object present and writable without changing a byte, so that
// the first transfer does not pay for them (first touch costs 5 to 10 times a copy). The calling thread's
// NUMA node provides them. Other memory objects are left alone: nil. Errors: *RangeError, *MemoryError.
func (b *Backing) Prefault(offset, length uint64) error {
	if !Within(offset, length, b.Length()) {
		return &RangeError{Object: "memory object", ID: b.Address(), Offset: offset, Length: length, Limit: b.Length()}
	}
	if b.Kind() != Mapping || length == 0 {
		return nil
	}
	page := uint64(os.Getpagesize())
	first := offset / page * page // the object starts on a page
	whole := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b.bytes)), first)), offset+length-first)
	err := unix.Madvise(whole, unix.MADV_POPULATE_WRITE)
	if err == unix.EINVAL { // before Linux 5.14
		touch(whole, page)
		return nil
	}
	if err != nil {
		return &MemoryError{Call: "madvise", Address: b.Address() + offset, Length: length, Err: err}
	}
	return nil
}

// touch writes to each page of memory that begins on a page. Adding zero changes nothing, also when a
// transfer writes the same bytes at that moment.
func touch(whole []byte, page uint64) {
	for at := uint64(0); at < uint64(len(whole)); at += page {
		atomic.AddUint32((*uint32)(unsafe.Pointer(&whole[at])), 0)
	}
}

// AdoptSlice takes over a Go slice: exactly its len(b) bytes, pinned until the object ends, because native
// code or a peer may touch them (SPEC M-1). Bytes beside them, in the same array or page, stay as they
// are. The error is a *MemoryError for an empty slice.
func AdoptSlice(b []byte) (*Backing, error) {
	if len(b) == 0 {
		return nil, &MemoryError{Call: "adopt slice", Err: unix.EINVAL}
	}
	first := unsafe.SliceData(b)
	r := &resident{kind: Pin, address: uint64(uintptr(unsafe.Pointer(first))), length: uint64(len(b))}
	r.pinner.Pin(first)
	return settle(b[:len(b):len(b)], r), nil
}

// AdoptPointer takes over length bytes at p, which must be stable in place, usable and writable until the
// object ends; owner is kept alive that long and may be nil. Nothing is pinned, nothing is touched, nothing
// is freed, and a device pointer does not become readable (SPEC M-2). Unsafe: no check can tell whether
// the memory is there. The error is a *MemoryError for nil, no bytes, or a range that wraps.
func AdoptPointer(p unsafe.Pointer, length uint64, owner any) (*Backing, error) {
	address := uint64(uintptr(p))
	if p == nil || length == 0 || length > math.MaxInt || !(Range{address, length}).Valid() {
		return nil, &MemoryError{Call: "adopt pointer", Address: address, Length: length, Err: unix.EINVAL}
	}
	r := &resident{kind: Foreign, address: address, length: length, owner: owner, region: mapping{start: p}}
	return settle(unsafe.Slice((*byte)(p), length), r), nil
}

// AdoptHost takes over length bytes at the address that a native library gave for host memory of its own, such as
// page-locked memory of a driver: readable, writable and stable in place until the object ends. owner and ended are as
// for AdoptDevice. The error is a *MemoryError for no address, no bytes, or a range that wraps.
func AdoptHost(address, length uint64, owner any, ended func()) (*Backing, error) {
	if address == 0 || length == 0 || length > math.MaxInt || !(Range{address, length}).Valid() {
		return nil, &MemoryError{Call: "adopt host memory", Address: address, Length: length, Err: unix.EINVAL}
	}
	at := uintptr(address)
	first := *(*unsafe.Pointer)(unsafe.Pointer(&at)) // what a library tells as a number is a pointer nonetheless
	r := &resident{kind: Foreign, address: address, length: length, owner: owner, ended: ended, region: mapping{start: first}}
	return settle(unsafe.Slice((*byte)(first), length), r), nil
}
