// Package cudatest is the conformance suite for cuda.Calls: one list of tests that runs on the twin (cuda/simcuda), on a
// stand-in of the library, and on the real driver. What it asks for stands in the CUDA driver API reference, or in the
// contract of cuda.Calls; where drivers differ, Facts say what holds, and where that was seen.
//
// A test owns what it makes through its rig, which ends it in order when the test ends: operations, events, streams,
// memory, signals, contexts. After that Harness.Done says whether anything is left.
//
// It imports cuda and the standard library, and x/sys to watch descriptors.
//
// States: none of its own. Time passes only in Harness.Pass, so that a virtual clock serves as well as a real one.
//
// It relies on a GPU, or a twin of one, whose memory has 256 MiB to spare. Tests that need a fault ask Harness.Fail for
// it; tests that need two GPUs are left out on one.
package cudatest
