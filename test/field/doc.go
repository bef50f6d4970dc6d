// Package field repeats, with real processes, sockets and kernels, the faults that users of transfer engines met in
// the field. It has only tests.
//
// A test starts its own binary again as a source or requester process (child_test.go) and orders it about with JSON
// lines over pipes (host_test.go). Each child is killed and reaped when its test ends; when the test failed, its
// standard error is printed. Each engine is closed, and its gauges must be zero then.
//
// One case needs no process: a walk through every state of every machine (machines_test.go, walk_test.go) plays scenes
// on the simulated kernel, ends each at each of its turns, and reads from the source which states there are.
//
// It may import anything of the house; nothing imports it. The cases that need two hosts are behind the build tag
// netns and run by test/netns/run.sh.
//
// A child: starting ──first order──▶ answering ──end of its input, kill──▶ gone.
//
// It relies on Linux: /proc, getrusage(2), seccomp(2), namespaces(7) where root may make them. Under the race detector
// and with -short the heavy counts are divided by ten (scaled); no case is left out.
package field
