package reactor

import "golang.org/x/sys/unix"

// yield lets other threads that want the CPU run first; at once back where none does. See sched_yield(2), which never fails
// on Linux. It may last for others' time slices, so the scheduler is told.
func yield() { _, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
