package uring

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Reason says what keeps io_uring from being used.
type Reason uint8

const (
	// Sysctl: kernel.io_uring_disabled forbids it to this process; Value is its value.
	Sysctl Reason = iota + 1
	// Seccomp: a system call filter (or a security module) forbids it. Container runtimes do by default.
	Seccomp
	// NotImplemented: the system was built without it, or a filter pretends so.
	NotImplemented
	// Memory: no memory, or on old kernels RLIMIT_MEMLOCK; Value is that limit in bytes.
	Memory
	// Descriptors: no descriptor left; Value is RLIMIT_NOFILE.
	Descriptors
	// OldKernel: a feature is missing, which Linux 5.11 and newer have; Value are the missing
	// IORING_FEAT_* bits, or 0.
	OldKernel
	// Other: see Errno.
	Other
)

var reasonNames = [...]string{"", "sysctl", "seccomp", "absent", "memory", "descriptors", "old kernel", "other"}

func (r Reason) String() string {
	if int(r) < len(reasonNames) && r > 0 {
		return reasonNames[r]
	}
	return "Reason(" + strconv.Itoa(int(r)) + ")"
}

// Unavailable is the error of Probe and New. errors.Is finds the Errno.
type Unavailable struct {
	Reason   Reason
	Errno    syscall.Errno
	Value    int64 // see Reason
	Filtered bool  // this process runs under a seccomp filter
}

func (u *Unavailable) Unwrap() error { return u.Errno }

func (u *Unavailable) Error() string {
	why, remedy := u.explain()
	if u.Reason != Descriptors { // which epoll needs as well
		remedy += ", or use epoll"
	}
	return fmt.Sprintf("io_uring cannot be used: %s (io_uring_setup: %v); %s", why, u.Errno, remedy)
}

func (u *Unavailable) explain() (why, remedy string) {
	switch u.Reason {
	case Sysctl:
		why = fmt.Sprintf("the sysctl kernel.io_uring_disabled is %d", u.Value)
		remedy = "set it to 0"
		if u.Value == 1 {
			remedy += ", or give the process CAP_SYS_ADMIN or the group of kernel.io_uring_group"
		}
	case Seccomp:
		why = "a security module forbids the call, and the sysctl kernel.io_uring_disabled does not"
		if u.Filtered {
			why = "a seccomp filter of this process forbids the call"
		}
		remedy = "permit io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile"
	case NotImplemented:
		why = "this system does not have it"
		remedy = "use a kernel from 5.11 on, built with CONFIG_IO_URING"
		if u.Filtered {
			why = "this system does not have it, or the seccomp filter of this process says so"
			remedy += ", and permit io_uring_setup in the filter"
		}
	case Memory:
		why = fmt.Sprintf("no memory for the ring; RLIMIT_MEMLOCK, which counts before Linux 5.12, is %d bytes", u.Value)
		remedy = "raise RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=) or the memory limit"
	case Descriptors:
		why = fmt.Sprintf("no descriptor left; RLIMIT_NOFILE is %d", u.Value)
		remedy = "raise RLIMIT_NOFILE (ulimit -n, LimitNOFILE=) or fs.file-max"
	case OldKernel:
		why = fmt.Sprintf("the kernel is too old, feature bits %#x are missing", u.Value)
		remedy = "use Linux 5.11 or newer"
	default:
		why, remedy = "the system refuses it", "see the error"
	}
	return why, remedy
}

// Probe says whether this process can use io_uring now: nil, or an *Unavailable that names what forbids it
// and what would help. It makes, uses and closes a small ring; safe for concurrent use.
func Probe() error {
	r, err := openRing(4, 8, flagSets(true))
	if err != nil {
		return err
	}
	defer r.Close()
	// A filter may permit the set-up and forbid the rest, which would end the process when a lane is to use the ring.
	e := r.enable()
	if e == 0 {
		e = r.Submit()
	}
	if e == 0 {
		e = r.SubmitAndWait(0)
	}
	if e != 0 && e != unix.ETIME && e != unix.EINTR {
		return explain(e)
	}
	return nil
}

// explain finds the reason behind an error of the ring's calls.
func explain(e syscall.Errno) *Unavailable {
	u := &Unavailable{Reason: Other, Errno: e, Filtered: filtered()}
	switch e {
	case unix.EPERM, unix.EACCES:
		u.Reason = Seccomp
		if value := disabled(); value == 2 || value == 1 && !privileged() {
			u.Reason, u.Value = Sysctl, value
		}
	case unix.ENOSYS:
		u.Reason = NotImplemented
	case unix.ENOMEM:
		u.Reason, u.Value = Memory, limit(unix.RLIMIT_MEMLOCK)
	case unix.EMFILE, unix.ENFILE:
		u.Reason, u.Value = Descriptors, limit(unix.RLIMIT_NOFILE)
	case unix.EINVAL:
		u.Reason = OldKernel
	}
	return u
}

// disabled reads kernel.io_uring_disabled (Linux 6.6): 0 everybody may, 1 only the privileged, 2 nobody. It is
// -1 where there is no such file.
func disabled() int64 {
	text, err := os.ReadFile("/proc/sys/kernel/io_uring_disabled")
	if err != nil {
		return -1
	}
	value, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return -1
	}
	return value
}

// filtered says whether this thread runs under a seccomp filter (mode 2 in proc_pid_status(5)).
func filtered() bool { return status("Seccomp") == "2" }

// privileged says whether kernel.io_uring_disabled = 1 lets this process pass.
func privileged() bool {
	effective, err := strconv.ParseUint(status("CapEff"), 16, 64)
	if err == nil && effective&(1<<unix.CAP_SYS_ADMIN) != 0 {
		return true
	}
	text, _ := os.ReadFile("/proc/sys/kernel/io_uring_group")
	group, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || group < 0 {
		return false
	}
	groups, _ := os.Getgroups()
	return os.Getegid() == group || slices.Contains(groups, group)
}

// status reads one field of this thread's status; "" if there is none.
func status(field string) string {
	text, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(text), "\n"+field+":")
	value, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(value)
}

func limit(resource int) int64 {
	var l unix.Rlimit
	if unix.Getrlimit(resource, &l) != nil {
		return -1
	}
	return int64(min(l.Cur, 1<<62))
}
