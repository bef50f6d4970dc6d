package verbs

import (
	"fmt"
	"syscall"
)

// CallError is a native call that failed.
type CallError struct {
	Call   string // the C name, such as "ibv_create_qp"
	Object string // what it was about, such as "rxe0 port 1"
	Errno  syscall.Errno
}

func (e *CallError) Error() string {
	return fmt.Sprintf("verbs: %s of %s: %v (errno %d)", e.Call, e.Object, e.Errno, int(e.Errno))
}

// Unwrap makes errors.Is(err, syscall.ENOMEM) and the like work.
func (e *CallError) Unwrap() error { return e.Errno }
