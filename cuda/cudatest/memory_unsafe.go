package cudatest

import "unsafe"

// view shows host memory that is not on the Go heap.
func view(address, bytes uint64) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&address)), bytes)
}

// addressOf is where a slice lies.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
