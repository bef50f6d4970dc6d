// Package reactor says when things happen: one loop per locked thread, over a kernel that is
// io_uring, epoll or a simulated twin. Everything a lane waits for (sockets, foreign descriptors,
// timers, posted work) meets in one Turn, and each kind of work has its own budget there, so that
// none starves another (SPEC L-2).
//
// The loop owns its kernel, the table of tickets, the heap of timers and the mailbox. A ticket ends
// with its one completion. A timer belongs to its user and leaves the heap when it expires or is
// disarmed. A letter belongs to its poster and leaves the mailbox when its recipient is called, which
// happens exactly once for each Post that accepted it, at the latest in Close. The kernel ends in
// Close, after its last operation.
//
// It may import the standard library and golang.org/x/sys; none of our packages. Implementations
// of Kernel (epoll, uring, simkernel) import only this package.
//
// States of a loop, and of its sleep:
//
//	new ──Run / Bind──▶ turning ──Stop──▶ stopped ──Close──▶ closed
//	                       │  ▲                └─▶ busy (operations outstanding): Turn, then Close again
//	                       ▼  │
//	     Turn: decide how long to wait ─▶ asleep? ─▶ Poll ─▶ read the clock once ─▶ completions
//	           ─▶ timers ─▶ letters
//
// A turn reads the clock once, after Poll, and everything that is dispatched in the turn decides by
// that reading, so that the same completions and readings give the same steps (SPEC L-3). The flag
// "asleep" is raised before the last look at the mailbox and lowered after Poll; Post first pushes
// and then looks at the flag, hence one of the two sees the other and no wake-up is lost.
//
// A loop that takes guests (guest.go) may be turned by a caller in place of its thread, one of them at a time: an
// adaptive or event-driven loop over a kernel whose waiting needs no particular thread, as that of epoll and unlike a ring of io_uring,
// which ends what a thread has submitted when that thread ends.
//
// It relies on Linux threads: sched_setaffinity(2) and getrusage(2) with RUSAGE_THREAD, on
// runtime.LockOSThread for binding a goroutine to its thread, and on asynchronous preemption so that
// a spinning loop does not delay the garbage collector.
package reactor
