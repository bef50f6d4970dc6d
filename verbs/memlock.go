package verbs

import (
	"errors"
	"fmt"
)

// ErrMemlock matches every *MemlockError in errors.Is.
var ErrMemlock = errors.New("locked-memory limit too low")

// MemlockError says that registering would pin, or tried to pin, more than the process may (field case F-62). The
// library's binding looks for it, in a preflight and after a refusal.
type MemlockError struct {
	Asked uint64 // bytes to be registered
	Limit uint64 // RLIMIT_MEMLOCK, bytes
	// Pinned is what drivers hold pinned in the process already, bytes (VmPin); the kernel counts it against the limit.
	// 0: nothing, or not known.
	Pinned uint64
	Err    error // the library's error; nil: refused before it was asked
}

func (e *MemlockError) Error() string {
	certainty := "nothing was registered"
	if e.Err != nil {
		certainty = fmt.Sprintf("the library refused (%v), nothing was registered", e.Err)
	}
	return fmt.Sprintf("registering %d bytes needs more locked memory than RLIMIT_MEMLOCK allows, which is %d bytes (%d are pinned already); %s; "+
		"raise it: `ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd unit, or --ulimit memlock=-1 for a container",
		e.Asked, e.Limit, e.Pinned, certainty)
}

// Is matches ErrMemlock.
func (e *MemlockError) Is(target error) bool { return target == ErrMemlock }

// Unwrap gives the library's error.
func (e *MemlockError) Unwrap() error { return e.Err }
