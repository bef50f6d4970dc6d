package verbs

import (
	"errors"
	"fmt"
	"math"
	"syscall"
)

// ErrMemlock matches every *MemlockError in errors.Is.
var ErrMemlock = errors.New("locked-memory limit too low")

// MemlockUnlimited is a limit of RLIMIT_MEMLOCK that never refuses.
const MemlockUnlimited = math.MaxUint64

// MemlockError says that registering would pin, or tried to pin, more than the process may (field case F-62).
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

// CheckMemlock is the preflight of a registration: bytes are all that the engine would have pinned on one device, limit
// is RLIMIT_MEMLOCK, and privileged says that the process has CAP_IPC_LOCK, for which the kernel does not look.
func CheckMemlock(bytes, limit uint64, privileged bool) error {
	if privileged || bytes <= limit {
		return nil
	}
	return &MemlockError{Asked: bytes, Limit: limit}
}

// ExplainRegister says what a failed registration most likely hit: ibv_reg_mr(3) reports the limit as ENOMEM. An error
// that the library's binding explained already is left as it is.
func ExplainRegister(err error, bytes, limit uint64, privileged bool) error {
	if errors.Is(err, syscall.ENOMEM) && !errors.Is(err, ErrMemlock) && !privileged && limit != MemlockUnlimited {
		return &MemlockError{Asked: bytes, Limit: limit, Err: err}
	}
	return err
}
