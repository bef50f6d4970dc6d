// Command orbitbench measures the engine beside raw sockets, plain Go, and programs of others, in the same run,
// interleaved, and says where the time goes. Machines are shared and noisy: ratios within a round count, absolute
// figures say little.
//
// It owns its source process (itself, started with -source), the programs it starts and the engines of both processes;
// all end with the run, after an interrupt too.
//
// It imports the root package, perf/figures, perf/meter, perf/baselines and golang.org/x/sys/unix; nothing imports it.
//
//	start source ▶ for each group: warm up ▶ round 1: subject, subject, … ▶ round 2 … ▶ cells ▶ table, JSON lines, HTML ▶ end
//
// It relies on loopback TCP and on what its rooms name: CPU clocks and tracepoints, other programs where they are
// installed. What is not there is named as absent, with the reason.
package main
