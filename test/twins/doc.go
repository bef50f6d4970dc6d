// Package twins puts the twins of the RDMA library and of the CUDA driver on the real clock, for programs and tests of an
// engine on machines without such hardware: what Config.Verbs and Config.CUDA take, with descriptors that a lane can wait
// for.
//
// RDMA returns a fabric on which hosts and their processes are made, CUDA a driver with its GPUs. Each belongs to its
// caller, who ends it with Kill of the process or driver once its engines are closed. A timer that is under way then
// finds nothing to do; the pipes behind descriptors end with the objects that they are for.
//
// It may import the twins and the standard library.
//
// It has no states of its own:
//
//	options ──clock, timers, sleep, pipes──▶ fabric or driver ──Kill──▶ gone
//
// It relies on time.AfterFunc, whose functions come on goroutines of their own, as the twins allow, and on pipe(7): a pipe
// with a byte in it is readable.
package twins
