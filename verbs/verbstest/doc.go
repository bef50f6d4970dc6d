// Package verbstest holds the one conformance suite that the native library and its twin pass. What the twin promises
// and a device does not (or the other way round) shows here first.
//
// A test owns the native objects that it makes through the Harness's two sides and the memory that it maps. The rig
// ends them all when the test ends, in the order of SPEC R-18, and checks that every end is granted and nothing is left.
//
// It may import verbs, golang.org/x/sys and the standard library. It is imported by tests and by test programs.
//
// A test runs through:
//
//	open both devices ─▶ make objects ─▶ connect ─▶ post ─▶ await completions (poll, pass time, keep each once)
//	                  ─▶ check bytes and guards ─▶ pairs to Error ─▶ windows, pairs, regions, queues, domain, device
//
// Outside it relies on the manual pages of libibverbs (ibv_*(3)) and on the InfiniBand Architecture Specification
// volume 1 ("IBTA", release 1.4); each case names its rule. Where devices differ, Facts say which way and why.
package verbstest
