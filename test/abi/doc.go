// Package abi holds what the native rooms declare of C libraries against the libraries' own headers.
//
// It owns nothing but temporary folders that end with its tests. Each test writes a C program from the room's own
// declarations (abi.h, library.h, driver.h) and from the Go constants of verbs and cuda, compiles it with the installed headers, runs it and compares.
//
// It may import the rooms and the standard library. Nothing imports it.
//
// There are no states:
//
//	declarations ─▶ C program ─▶ compiler and installed headers ─▶ sizes, offsets, widths, values, signatures ─▶ differences
//
// It relies on gcc, on <infiniband/verbs.h> (Debian: libibverbs-dev) and on cuda.h (Debian, non-free: nvidia-cuda-dev; or
// ORBITTE_CUDA_INCLUDE), and skips by name without them. A program built here proves the headers of this machine; rdma-core keeps these structures stable, as its symbol versions say.
package abi
