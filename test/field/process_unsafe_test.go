package field

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte"
)

// forbidRings makes io_uring_setup answer errno in this whole process, for good.
func forbidRings(errno uint32) error { return forbidCall(unix.SYS_IO_URING_SETUP, errno) }

// forbidEntering does it to io_uring_enter.
func forbidEntering(errno uint32) (bool, error) {
	return true, forbidCall(unix.SYS_IO_URING_ENTER, errno)
}

// forbidCall makes a system call answer errno in all threads (seccomp(2)).
func forbidCall(call, errno uint32) error {
	const load, jumpEqual, answer = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	filter := []unix.SockFilter{
		{Code: load, K: 0}, // seccomp_data.nr
		{Code: jumpEqual, Jt: 0, Jf: 1, K: call},
		{Code: answer, K: unix.SECCOMP_RET_ERRNO | errno},
		{Code: answer, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program)))
	if e != 0 {
		return e
	}
	return nil
}

// defaultSigpipe takes the Go runtime's handler of SIGPIPE away: the signal kills this process from here on, as it
// kills a C program (rt_sigaction(2); the layout is the kernel's, equal on amd64 and arm64).
func defaultSigpipe() error {
	var action struct{ handler, flags, restorer, mask uint64 } // all zero: SIG_DFL
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGPIPE), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// sparse maps length bytes that cost nothing until touched, in base pages only, and adopts them.
func sparse(length uint64) (*orbitte.Memory, error) {
	start, err := unix.MmapPtr(-1, 0, nil, uintptr(length), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	if err := unix.Madvise(unsafe.Slice((*byte)(start), length), unix.MADV_NOHUGEPAGE); err != nil {
		return nil, err
	}
	return orbitte.AdoptPointer(start, uintptr(length), nil) // mapped until the process ends
}
