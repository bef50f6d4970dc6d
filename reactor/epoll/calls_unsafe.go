package epoll

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// peek is epoll_pwait(2) with timeout zero; it cannot block, hence raw.
func (k *Kernel) peek() (int, syscall.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(k.descriptor), uintptr(unsafe.Pointer(&k.events)),
		uintptr(len(k.events)), 0, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}

// sleep waits at most d (negative: for ever) by way of the Go scheduler, which gives the lane's P away
// meanwhile.
func (k *Kernel) sleep(d time.Duration) (int, syscall.Errno) {
	if k.coarse {
		return k.sleepMilliseconds(d)
	}
	var timeout uintptr
	if d >= 0 {
		k.timeout = unix.NsecToTimespec(int64(d))
		timeout = uintptr(unsafe.Pointer(&k.timeout))
	}
	n, _, e := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(k.descriptor), uintptr(unsafe.Pointer(&k.events)),
		uintptr(len(k.events)), timeout, 0, 0)
	switch e {
	case 0:
		return int(n), 0
	case unix.ENOSYS, unix.EPERM: // an older kernel, or a seccomp filter that does not know the call
		k.coarse = true
		return k.sleepMilliseconds(d)
	}
	return 0, e
}

// sleepMilliseconds rounds up, so that a caller who asks for the clock's reaching a deadline gets it.
func (k *Kernel) sleepMilliseconds(d time.Duration) (int, syscall.Errno) {
	timeout := -1
	if d >= 0 {
		timeout = int(min((d+time.Millisecond-1)/time.Millisecond, 1<<30))
	}
	n, _, e := unix.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(k.descriptor), uintptr(unsafe.Pointer(&k.events)),
		uintptr(len(k.events)), uintptr(timeout), 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}

// control is epoll_ctl(2).
func (k *Kernel) control(operation int, descriptor int, event *unix.EpollEvent) syscall.Errno {
	_, _, e := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(k.descriptor), uintptr(operation), uintptr(descriptor),
		uintptr(unsafe.Pointer(event)), 0, 0)
	return e
}
