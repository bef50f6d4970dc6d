// Command fleet runs hundreds of engines in one process, unmodified and through their public API, each in a
// simulated process on a simulated host of its own, and shows what a request costs against peers, regions,
// batch size and engines: one JSON line per cell, a table, and the slope of each cost in log–log. make fleet
// runs it; perf/results holds its results.
//
// A fleet owns a world, its nodes and their memory. Each node ends in fleet.close: segments, registrations, the
// engine, the memory; afterwards every gauge, descriptor and connection must be gone.
//
// It may import the root package, reactor, reactor/simkernel and what every tool may.
//
//	built ──run(app) on each node, side by side──▶ at rest ──▶ run again … ──close──▶ drained, or an error
//
// It relies on the world of reactor/simkernel: one goroutine, a virtual clock, a seed that decides every order.
// CPU time is getrusage(2)'s of the whole process, the garbage collector's included; it covers both ends of a
// transfer and the simulated network, so it is an upper bound for an engine's own share. Counts (turns, letters,
// crossings, bytes) are exact and the same in each run of one seed.
package main
