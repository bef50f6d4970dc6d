package meter

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// nobody is no process: one more than the largest number that the kernel gives (PID_MAX_LIMIT).
const nobody = 1<<22 + 1

var kept [][]byte

func TestMeterCountsWhatThisProcessDoes(t *testing.T) {
	const times = 2000
	m := Start()
	for range times {
		_ = unix.Getppid()
		kept = append(kept[:0], make([]byte, 128))
	}
	u := m.Stop()
	if !u.AllocationsCounted || u.Allocations < times || u.AllocatedBytes < 128*times {
		t.Errorf("%d allocations of %d bytes for %d", u.Allocations, u.AllocatedBytes, times)
	}
	if u.PeakBytes == 0 || u.User+u.System <= 0 {
		t.Errorf("peak %d bytes, %v and %v CPU-seconds", u.PeakBytes, u.User, u.System)
	}
	if m.Why() != nil {
		if u.Calls != 0 || u.CallsBy != "" {
			t.Errorf("calls were counted, and were not: %+v, %v", u, m.Why())
		}
		t.Skip("tracepoint: " + m.Why().Error())
	}
	// The runtime's own threads make a few calls as well.
	if u.CallsBy == "" || u.Calls < times || u.Calls > 2*times {
		t.Errorf("%d calls counted for %d, by %q", u.Calls, times, u.CallsBy)
	}
}

func TestMeterClosesItsCounters(t *testing.T) {
	before := descriptors(t)
	for range 3 {
		m := Start(os.Getppid(), 0)
		if m.Stop(); len(m.counters) != 0 {
			t.Error("counters are open after Stop")
		}
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestMeterOfAProcessThatIsGone(t *testing.T) {
	if ResidentBytes(nobody) != 0 || CPUSeconds(nobody) != 0 {
		t.Error("a process that never was uses something")
	}
	u := Start(1 << 30).Stop()
	if u.User+u.System < 0 {
		t.Errorf("%+v", u)
	}
}

// What is brief counts all but system calls, and gives no reason for it: nobody asked.
func TestBriefMeterLeavesSystemCallsOut(t *testing.T) {
	m := StartBrief()
	sum := 0
	for i := range 20_000_000 {
		sum += i
	}
	if u := m.Stop(); u.CallsBy != "" || u.Calls != 0 || m.Why() != nil || u.User+u.System <= 0 || u.PeakBytes == 0 {
		t.Errorf("%+v, %v (%d)", u, m.Why(), sum)
	}
}
