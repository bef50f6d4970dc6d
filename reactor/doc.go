// Package reactor says when things happen: one loop per locked thread, over a kernel that is
// io_uring, epoll or a simulated twin.
package reactor
