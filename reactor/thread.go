package reactor

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// AffinityError says that a loop's thread could not be bound to the CPUs it was given. Nothing else
// was started. The remedy is to choose from the CPUs the process may use (its cpuset), or none.
type AffinityError struct {
	Loop string
	CPUs []int
	Err  error
}

func (e *AffinityError) Error() string {
	return fmt.Sprintf("reactor: loop %q: binding the thread to CPUs %v: %v; choose CPUs of the process's cpuset, or none", e.Loop, e.CPUs, e.Err)
}

func (e *AffinityError) Unwrap() error { return e.Err }

// bindThread sets the affinity of the calling thread, which must be locked. See
// sched_setaffinity(2).
func bindThread(name string, cpus []int) error {
	if len(cpus) == 0 {
		return nil
	}
	var set unix.CPUSet
	for _, cpu := range cpus {
		if cpu < 0 || cpu >= len(set)*64 {
			return &AffinityError{Loop: name, CPUs: cpus, Err: unix.EINVAL}
		}
		set.Set(cpu)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return &AffinityError{Loop: name, CPUs: cpus, Err: err}
	}
	return nil
}

// waitedForCPU is how long the calling thread has been ready to run without running, since it began; 0 where the system
// does not tell. See Documentation/scheduler/sched-stats.rst of Linux.
func waitedForCPU() time.Duration {
	fd, err := unix.Open("/proc/thread-self/schedstat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	var text [64]byte
	n, err := unix.Read(fd, text[:])
	_ = unix.Close(fd)
	if err != nil {
		return 0
	}
	return secondNumber(text[:n])
}

// secondNumber reads the second of some decimal numbers, in nanoseconds; 0 if there is none.
func secondNumber(text []byte) time.Duration {
	place, value := 0, time.Duration(0)
	for _, c := range text {
		switch {
		case c < '0' || c > '9':
			place++
		case place == 1:
			value = 10*value + time.Duration(c-'0')
		}
	}
	return value
}
