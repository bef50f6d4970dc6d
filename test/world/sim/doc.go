// Command sim runs the simulated world for many seeds, or shows one of them.
//
//	sim [-seeds N] [-first SEED] [-turns N]   many seeds, a child process for each core
//	sim -seed SEED [-turns N]                 one seed: its history
//	sim -script FILE                          a script, such as a golden one or a shrunk one
//	sim -print -seed SEED                     the script of a seed
//	sim -seed SEED -shrink FILE               a failing seed made short, as a script; with -script as well
//
// The parent owns the children and ends them all. A child runs one seed after the other and says on its standard output
// which one it is at; one that panics, or that is silent for as long as -patience, is a failure of its seed. A
// failure is told with SEED=, TURNS= and the command that replays it byte for byte, and makes the exit status 1.
//
// It may import test/faults, test/world and test/world/shrink.
//
// A child: idle ──seed──▶ running ──result──▶ idle; ──silent or dead──▶ failed, and another child takes its place.
//
// It relies on its own executable being there to be started again.
package main
