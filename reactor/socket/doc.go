// Package socket is what the real kernels, epoll and io_uring, both do with a socket: make it, set its
// options, try one operation on it without blocking, and remember which operations are outstanding.
//
// It owns the descriptors it makes until they are handed to the caller, who ends them with Close, and a
// Waker's eventfd, which ends with Waker.Close. Operations and Endpoints are plain tables of the kernel
// that holds them and end with it. Buffers are only borrowed for the length of one call.
//
// It may import reactor, the standard library and golang.org/x/sys/unix. Only the kernels beside it
// import it.
//
// An outstanding operation goes through these states; each one leaves exactly once:
//
//	Submit ─▶ Queued ─▶ tried ─▶ done ─▶ completion
//	            ▲         │ not yet
//	            └─ event ─┴▶ Parked (epoll: waits for an event; io_uring: the ring has it)
//
// Outside it relies on Linux 5.5 or newer: accept4, recvmsg, sendmsg, MSG_DONTWAIT and MSG_NOSIGNAL (recv(2),
// send(2)), tcp(7) and ipv6(7) options, eventfd(2), and clock_gettime(2) with CLOCK_MONOTONIC being the
// clock behind the monotonic reading of time.Now.
package socket
