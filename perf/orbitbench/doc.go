// Command orbitbench measures the engine beside raw loops, in the same run, interleaved, and prints the
// ratios: machines are shared and noisy, so absolute figures say little.
//
// It owns one child process (itself, as the source side) for the time of a run.
//
// It imports the root package and golang.org/x/sys/unix; nothing imports it.
//
//	parent: start child ▶ for each round: raw, engine, raw, engine … ▶ medians ▶ table and JSON ▶ stop child
//
// It relies on loopback TCP, epoll(7), and on the facts about measuring that DESIGN §5 lists: warm memory,
// two processes, medians.
package main
