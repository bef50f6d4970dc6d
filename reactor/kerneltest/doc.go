// Package kerneltest holds the one conformance suite that every kernel behind reactor.Kernel passes,
// the twin included. What the twin promises and the system does not (or the other way round) shows
// here first.
//
// A test owns the kernels it opens, the descriptors it makes and the memory it lends; the rig ends
// them all when the test ends: it cancels what is outstanding, collects each completion, closes each
// descriptor, shuts each kernel down and checks that nothing is left.
//
// It may import reactor and the standard library. It is imported by tests only.
//
// A test runs through:
//
//	open kernels ─▶ submit ─▶ await (poll all kernels in turn, keep every completion once)
//	             ─▶ check ─▶ cancel the rest ─▶ close ─▶ shut down
//
// Outside it relies on nothing but the Harness, which hides whether time and network are real: tests
// wait only in Poll, and what must happen from outside while a kernel blocks goes through
// Harness.Later.
package kerneltest
