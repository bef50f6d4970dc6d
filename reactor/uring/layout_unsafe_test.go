package uring

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestLayoutMatchesTheHeader(t *testing.T) {
	for name, sizes := range map[string][2]uintptr{
		"io_uring_sqe":           {unsafe.Sizeof(SubmissionEntry{}), 64},
		"io_uring_cqe":           {unsafe.Sizeof(CompletionEvent{}), 16},
		"io_uring_params":        {unsafe.Sizeof(parameters{}), 120},
		"io_uring_getevents_arg": {unsafe.Offsetof(waitArgument{}.seconds), 24},
		"msghdr":                 {unsafe.Offsetof(block{}.vector), unsafe.Sizeof(unix.Msghdr{})},
		"iovec":                  {unsafe.Sizeof(block{}.vector) / 2, unsafe.Sizeof(unix.Iovec{})},
		"block":                  {unsafe.Sizeof(block{}), 128},
		"sqe.user_data":          {unsafe.Offsetof(SubmissionEntry{}.UserData), 32},
		"sqe.len":                {unsafe.Offsetof(SubmissionEntry{}.Length), 24},
		"params.sq_off":          {unsafe.Offsetof(parameters{}.sq), 40},
		"params.cq_off":          {unsafe.Offsetof(parameters{}.cq), 80},
	} {
		if sizes[0] != sizes[1] {
			t.Errorf("%s: %d, want %d", name, sizes[0], sizes[1])
		}
	}
}
