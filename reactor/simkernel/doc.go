// Package simkernel is the twin of the operating system: a kernel with a virtual clock and a seeded
// network, so that many engines run in one goroutine and every run can be repeated from its seed.
//
// A World owns the clock, the events that lie ahead, hosts and links. A Process owns descriptors; they
// end in Kernel.Close or all at once in Kill. A Connection ends when both ends are closed or reset. A
// Kernel owns operations, each of which ends in Poll exactly once, and ends in Shutdown.
//
// It may import reactor and the standard library. It reads no real clock, starts no goroutine and
// decides nothing by map order; except Wake, Now and At, nothing may be called concurrently.
//
// A connection, an operation, and what drives a loop (Task):
//
//	connecting ──SYN arrives──▶ queued at the listener ──▶ established ──FIN, FIN──▶ gone
//	     └──refused, timed out, no host──▶ failed              └──RST, time-out──▶ broken
//
//	submitted ─▶ ready ──Poll tries it──▶ completed
//	               ▲           └─▶ parked at its socket ──bytes, space, end, cancel──┐
//	               └─────────────────────────────────────────────────────────────────┘
//
//	in line ──ran, did nothing, its kernels wait──▶ resting ──completion, Wake, instant──▶ in line
//
// It imitates Linux: accept(2), connect(2), recvmsg(2), sendmsg(2), close(2), tcp(7) and socket(7):
// bytes that arrived are read before a reset is reported, a reset is reported once, closing with
// unread bytes resets, ports wait a minute after an active close, accept fails at a full descriptor
// table whether or not a connection waits.
package simkernel
