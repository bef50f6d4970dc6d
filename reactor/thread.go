package reactor

import (
	"fmt"

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

// involuntarySwitches counts how often the calling thread was taken off its CPU while it wanted to
// run. See getrusage(2), RUSAGE_THREAD.
func involuntarySwitches() uint64 {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &usage); err != nil {
		return 0
	}
	return uint64(usage.Nivcsw)
}
