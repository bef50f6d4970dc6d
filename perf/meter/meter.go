package meter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/perf/figures"
)

// Meter watches processes. One goroutine at a time.
type Meter struct {
	pids     []int
	user     []float64
	system   []float64
	counters []int // perf descriptors
	calls    uint64
	why      error // why system calls are not counted
	own      runtime.MemStats
}

// CallsBy is how system calls are counted.
const CallsBy = "tracepoint raw_syscalls:sys_enter"

var errNoTracepoint = errors.New("the tracepoint raw_syscalls:sys_enter cannot be read; tracefs and root are needed")

// Start begins to count for this process and the others; a pid of 0 is left out.
func Start(others ...int) *Meter { return start(true, others) }

// StartBrief is Start without system calls, to count which takes tens of milliseconds before and after, and makes each call
// a little slower.
func StartBrief(others ...int) *Meter { return start(false, others) }

func start(calls bool, others []int) *Meter {
	m := &Meter{}
	for _, pid := range append([]int{os.Getpid()}, others...) {
		if pid != 0 {
			m.pids = append(m.pids, pid)
			resetPeak(pid)
		}
	}
	if calls {
		m.watchCalls()
	}
	for _, pid := range m.pids {
		user, system := cpuOf(pid)
		m.user, m.system = append(m.user, user), append(m.system, system)
	}
	runtime.ReadMemStats(&m.own)
	m.calls = m.read()
	return m
}

// Stop ends the counting and says what was used. Allocations are this process's own.
func (m *Meter) Stop() figures.Usage {
	var u figures.Usage
	// Between the two readings of the counters each was read once by this thread: that many calls are the meter's own.
	calls, own := m.read()-m.calls, uint64(len(m.counters))
	before := m.own
	runtime.ReadMemStats(&m.own)
	u.Allocations, u.AllocatedBytes, u.AllocationsCounted = m.own.Mallocs-before.Mallocs, m.own.TotalAlloc-before.TotalAlloc, true
	for i, pid := range m.pids {
		user, system := cpuOf(pid)
		u.User += max(user-m.user[i], 0)
		u.System += max(system-m.system[i], 0)
		u.PeakBytes += peakOf(pid)
	}
	if len(m.counters) > 0 && m.why == nil {
		u.CallsBy, u.Calls = CallsBy, calls-min(own, calls)
	}
	for _, fd := range m.counters {
		unix.Close(fd)
	}
	m.counters = nil
	return u
}

// read sums the counters.
func (m *Meter) read() (sum uint64) {
	for _, fd := range m.counters {
		var b [8]byte
		if n, _ := unix.Read(fd, b[:]); n == len(b) {
			sum += binary.NativeEndian.Uint64(b[:])
		}
	}
	return sum
}

// Why says why system calls are not counted; nil when they are.
func (m *Meter) Why() error { return m.why }

// watchCalls opens a counter on each thread of each process; threads born later are counted with their parents.
func (m *Meter) watchCalls() {
	id, err := tracepoint()
	if err != nil {
		m.why = err
		return
	}
	attr := &unix.PerfEventAttr{Type: unix.PERF_TYPE_TRACEPOINT, Config: id, Bits: unix.PerfBitInherit, Sample: 1}
	attr.Size = uint32(unsafe.Sizeof(*attr))
	for _, pid := range m.pids {
		for _, tid := range threads(pid) {
			fd, err := unix.PerfEventOpen(attr, tid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
			switch {
			case err == unix.ESRCH: // the thread has ended
			case err != nil:
				m.why = fmt.Errorf("%w (perf_event_open: %w)", errNoTracepoint, err)
				return
			default:
				m.counters = append(m.counters, fd)
			}
		}
	}
}

func tracepoint() (uint64, error) {
	for _, root := range []string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"} {
		text, err := os.ReadFile(root + "/events/raw_syscalls/sys_enter/id")
		if err == nil {
			return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
		}
	}
	return 0, errNoTracepoint
}

// threadsMax bounds the counters of one process; past it the rest is not counted, so none is.
const threadsMax = 512

func threads(pid int) []int {
	list, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	var out []int
	for _, path := range list[:min(len(list), threadsMax)] {
		if tid, err := strconv.Atoi(filepath.Base(path)); err == nil {
			out = append(out, tid)
		}
	}
	return out
}

// cpuOf is a process's CPU-seconds in user and kernel. The sum is exact to the nanosecond; its split comes from
// /proc, whose ticks are coarse (10 ms), so it is a share of that sum.
func cpuOf(pid int) (user, system float64) {
	var at unix.Timespec
	const scheduled = 2 // CPUCLOCK_SCHED, of include/uapi or clock_getcpuclockid(3): clock = ~pid<<3 | 2
	if unix.ClockGettime(int32(^pid<<3|scheduled), &at) != nil {
		return 0, 0
	}
	total := float64(at.Sec) + float64(at.Nsec)/1e9
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return total, 0
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return total, 0
	}
	u, _ := strconv.ParseFloat(fields[11], 64)
	s, _ := strconv.ParseFloat(fields[12], 64)
	if u+s == 0 {
		return total, 0
	}
	return total * u / (u + s), total * s / (u + s)
}

// resetPeak lets the process's peak start again (proc_pid_clear_refs(5)); without the right to, it is the life's peak.
func resetPeak(pid int) {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

func peakOf(pid int) uint64 { return statusBytes(pid, "VmHWM:") }

// ResidentBytes is a process's resident memory now.
func ResidentBytes(pid int) uint64 { return statusBytes(pid, "VmRSS:") }

// CPUSeconds is a process's CPU time so far.
func CPUSeconds(pid int) float64 {
	user, system := cpuOf(pid)
	return user + system
}

func statusBytes(pid int, name string) uint64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			n, _ := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
			return n << 10
		}
	}
	return 0
}
