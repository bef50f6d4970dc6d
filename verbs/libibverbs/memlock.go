package libibverbs

import (
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/verbs"
)

// capIPCLock is CAP_IPC_LOCK of linux/capability.h: whoever has it may lock without limit.
const capIPCLock = 14

// locking is what this process may lock.
type locking struct {
	limit  uint64 // bytes; the largest number: no limit
	pinned uint64 // bytes that drivers hold pinned (VmPin); the kernel counts them against the limit
}

// readLocking reads the limit that counts for this process now.
func readLocking() (locking, error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil {
		return locking{}, err
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return locking{}, err
	}
	mapped, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return locking{}, err
	}
	l := parseLocking(string(status), string(mapped))
	if l.limit == 0 {
		l.limit = r.Cur // RLIM_INFINITY is the largest number
	}
	return l, nil
}

// parseLocking reads /proc/self/status; a limit of 0 says that the resource limit decides. The capability frees from it
// only in the system's first user namespace, whose map of users is whole.
func parseLocking(status, userMap string) locking {
	var l locking
	var capable bool
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); name {
		case "VmPin":
			kib, _ := strconv.ParseUint(strings.TrimSuffix(value, " kB"), 10, 54)
			l.pinned = kib << 10
		case "CapEff":
			mask, _ := strconv.ParseUint(value, 16, 64)
			capable = mask>>capIPCLock&1 == 1
		}
	}
	if capable && strings.Join(strings.Fields(userMap), " ") == "0 0 4294967295" {
		l.limit = math.MaxUint64
	}
	return l
}

// room is how much more may be pinned.
func (l locking) room() uint64 {
	if l.limit == math.MaxUint64 {
		return l.limit
	}
	return l.limit - min(l.pinned, l.limit)
}

// MemoryLockAllows is the check of a preflight: whether this process may register so many further bytes; nil, or a
// *verbs.MemlockError with the limit and the remedy. The kernel decides for itself at each registration and counts
// whole pages. When the limit cannot be read it is nil. See getrlimit(2).
func MemoryLockAllows(bytes uint64) error {
	l, err := readLocking()
	if err != nil || bytes <= l.room() {
		return nil
	}
	return &verbs.MemlockError{Asked: bytes, Limit: l.limit, Pinned: l.pinned}
}

// explain adds the limit to a registration's ENOMEM, if it is the limit.
func explain(native error, bytes uint64) error {
	l, err := readLocking()
	if err != nil || bytes <= l.room() {
		return native
	}
	return &verbs.MemlockError{Asked: bytes, Limit: l.limit, Pinned: l.pinned, Err: native}
}
