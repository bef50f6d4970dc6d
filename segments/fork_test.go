package segments

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// field case F-64
// proves M-1, M-2
func TestForkedChildReadsWritesAndEndsWithoutTouchingTheParent(t *testing.T) {
	leavesNothing(t)
	array := bytes.Repeat([]byte{7}, 3*os.Getpagesize())
	slice, err := AdoptSlice(array[100:200]) // its neighbours share its page
	if err != nil {
		t.Fatal(err)
	}
	defer slice.Drop()
	owned := mapped(t, 2*hugePage)
	defer owned.Drop()
	copy(owned.Bytes(), array)
	lease, err := slice.Lend(10, 50, Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Return()

	memory := [2][]byte{array, owned.Bytes()[:len(array)]}
	child := fork(&memory)
	lease.Bytes()[0] = 9 // the transfer goes on
	var status unix.WaitStatus
	if _, err := unix.Wait4(child, &status, 0, nil); err != nil {
		t.Fatal(err)
	}
	if !status.Exited() || status.ExitStatus() != 0 {
		t.Fatalf("the child ended with %#x: it could not use what it inherited", status)
	}
	if array[110] != 9 || bytes.Count(array, []byte{7}) != len(array)-1 || bytes.Count(memory[1], []byte{7}) != len(array) {
		t.Fatal("the child's writes reached the parent")
	}
}

// fork makes a child by a plain fork, as a C host would. The child reads and overwrites the memory and ends
// with 0, or with 1 when a byte was not 7; it makes no call into the Go runtime.
func fork(memory *[2][]byte) (child int) {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return -1
	}
	if pid != 0 {
		return int(pid)
	}
	code := uintptr(0)
	for _, part := range memory {
		for i := range part {
			if part[i] != 7 {
				code = 1
			}
			part[i] = 1
		}
	}
	for {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, code, 0, 0)
	}
}

// field case F-64
func TestHostProgramExecsWhileLeasesAreOut(t *testing.T) {
	leavesNothing(t)
	b := mapped(t, 1<<16)
	defer b.Drop()
	for round := range 2 {
		lease, err := b.Lend(1, 1<<15, Exclusive)
		if err != nil {
			t.Fatal(err)
		}
		copy(lease.Bytes(), bytes.Repeat([]byte{byte(round + 1)}, 1<<15))
		if out, err := exec.Command(os.Args[0], "-test.run=^$").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if bytes.Count(lease.Bytes(), []byte{byte(round + 1)}) != 1<<15 || b.Bytes()[0] != 0 || b.Bytes()[1<<15+1] != 0 {
			t.Fatal("bytes changed across an exec")
		}
		lease.Return()
	}
}
