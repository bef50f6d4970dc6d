package uring

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forbid makes one call of this whole process answer errno, for good (seccomp(2)); with flags not 0 only where the
// fourth argument has one of them. The process is a child made for that.
func forbid(t *testing.T, call, flags, errno uint32) {
	t.Helper()
	const load, answer = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_RET | unix.BPF_K
	const jumpEqual, jumpAny, jumpAtLeast = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	chosen := unix.SockFilter{Code: jumpAny, Jt: 0, Jf: 1, K: flags}
	if flags == 0 {
		chosen = unix.SockFilter{Code: jumpAtLeast, Jt: 0, Jf: 1, K: 0} // any
	}
	filter := []unix.SockFilter{
		{Code: load, K: 0}, // seccomp_data.nr
		{Code: jumpEqual, Jt: 0, Jf: 3, K: call},
		{Code: load, K: 16 + 3*8}, // the low half of seccomp_data.args[3]
		chosen,
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
