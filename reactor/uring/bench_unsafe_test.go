package uring_test

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The raw loop that the kernels are compared with: non-blocking calls, again and again.

func rawSend(fd int, b []byte) (int, syscall.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	return int(n), e
}

func rawReceive(fd int, b []byte) (int, syscall.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		unix.MSG_DONTWAIT, 0, 0)
	return int(n), e
}

func rawAll(fd int, b []byte, f func(int, []byte) (int, syscall.Errno)) {
	for len(b) > 0 {
		switch n, e := f(fd, b); {
		case e == 0 && n > 0:
			b = b[n:]
		case e != unix.EAGAIN && e != unix.EINTR:
			return
		}
	}
}
