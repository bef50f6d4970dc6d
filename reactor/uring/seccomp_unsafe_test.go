package uring

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forbidSetup makes io_uring_setup answer errno in this whole process, for good (seccomp(2)). The process is a
// child made for that.
func forbidSetup(t *testing.T, errno uint32) {
	t.Helper()
	const load, jumpEqual, answer = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	filter := []unix.SockFilter{
		{Code: load, K: 0}, // seccomp_data.nr
		{Code: jumpEqual, Jt: 0, Jf: 1, K: unix.SYS_IO_URING_SETUP},
		{Code: answer, K: unix.SECCOMP_RET_ERRNO | errno},
		{Code: answer, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program)))
	if e != 0 {
		t.Fatal("seccomp:", e)
	}
}
