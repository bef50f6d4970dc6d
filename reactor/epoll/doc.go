// Package epoll is the kernel that works on every Linux: it tries each operation at once and waits for readiness
// with epoll only when the system says "not yet".
//
// It owns an epoll descriptor and an eventfd, which end with Shutdown. Descriptors from Listen, Open and Accept
// belong to the caller, who ends them with Close. Buffers are touched only inside Poll, so that nothing of an
// operation is left with the system between two calls.
//
// It may import reactor and reactor/socket.
//
// What is known of one direction of one descriptor:
//
//	Unknown ── a try moves all that was asked ──▶ Unknown
//	Unknown ── EAGAIN, or a stream moves less ──▶ Blocked (operations wait without a system call)
//	Blocked ── event ─────────────────────────▶ Unknown
//
// Outside it relies on Linux 2.6.27: epoll(7) edge-triggered and EPOLLONESHOT, EPOLLRDHUP, and on epoll_pwait2
// (Linux 5.11) for waits finer than a millisecond, which it does without where it is missing.
package epoll
