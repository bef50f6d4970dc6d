// Package meter says what processes used: CPU time, system calls, allocations, resident memory.
//
// A Meter owns one counter descriptor for each thread it watches; Stop closes them all and ends it.
//
// It imports perf/figures and golang.org/x/sys/unix.
//
//	idle ──Start──▶ counting ──Stop──▶ idle
//
// It relies on the processes' CPU clocks (clock_getcpuclockid(3)), on /proc/PID/status and, for system calls, on the
// tracepoint raw_syscalls:sys_enter through perf_event_open(2), which counts in the kernel and stops nobody. Where the
// tracepoint cannot be had (no tracefs, no privilege) system calls are not counted, and the reason is kept.
package meter
