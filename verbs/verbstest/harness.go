package verbstest

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/verbs"
)

// Side is one of two processes with a device. Both may be one process with two devices.
type Side struct {
	Calls  verbs.Calls
	Device string
	Port   uint8
}

// Fact is something in which devices differ.
type Fact struct {
	Holds bool
	Why   string // where it was seen
}

// Facts are what a device does where the suite cannot ask for one answer.
type Facts struct {
	// WindowRange: a window's key reaches its own bytes only; otherwise all of its region.
	WindowRange Fact
	// MarksInvalidation: a receive completion of SEND_WITH_INV has IBV_WC_WITH_INV.
	MarksInvalidation Fact
	// TrueLocalErrors: work that fails on its own side has its own status; otherwise it reads flushed.
	TrueLocalErrors Fact
	// SurvivesDoubleInvalidation: a window may be invalidated while it is not bound, and the work fails.
	SurvivesDoubleInvalidation Fact
	// EventForBacklog: arming a queue that has completions raises an event.
	EventForBacklog Fact
	// KeepsCompletions: completions of a destroyed pair stay in their queue.
	KeepsCompletions Fact
	// OwnPairInvalidation: a window can be invalidated over its own pair only.
	OwnPairInvalidation Fact
	// AccessEvents: a peer that is refused for its key raises QP_ACCESS_ERR on the refusing side.
	AccessEvents Fact
	// CleanPostErrors: a send in a state without sends is refused whole; otherwise the library does not say what it took,
	// and the work waits in the queue.
	CleanPostErrors Fact
	// FlushesLateReceives: a receive that is posted to a pair in error completes as flushed; otherwise it may
	// wait for ever.
	FlushesLateReceives Fact
	// FlushesDeadPort: work over a port that is down is flushed at once; otherwise it is sent again until its retries end.
	FlushesDeadPort Fact
	// LengthErrors: a message that is too long fails with the codes of the standard.
	LengthErrors Fact
	// RefusesSameKey: a bind that keeps the window's key fails.
	RefusesSameKey Fact
	// QueueRecovers: a completion queue that overflowed delivers again once it was polled.
	QueueRecovers Fact
}

// HardwareFacts are those of mlx5.
func HardwareFacts() Facts {
	return Facts{
		WindowRange: Fact{true, "IBTA 10.6.7.2"}, MarksInvalidation: Fact{true, "ibv_poll_cq(3)"}, TrueLocalErrors: Fact{true, "ibv_poll_cq(3)"},
		SurvivesDoubleInvalidation: Fact{true, "IBTA 10.6.7.2.7"}, EventForBacklog: Fact{true, "mlx5 compares with the consumer index"},
		KeepsCompletions: Fact{false, "mlx5 cleans its queues"}, OwnPairInvalidation: Fact{true, "IBTA 10.6.7.2.7"},
		AccessEvents: Fact{true, "IBTA 11.6.3.2"}, CleanPostErrors: Fact{true, "ibv_post_send(3)"}, LengthErrors: Fact{true, "IBTA 9.9.6.1"}, FlushesLateReceives: Fact{true, "IBTA 10.3.1"}, FlushesDeadPort: Fact{false, "IBTA 9.7.6.1.3"},
		RefusesSameKey: Fact{true, "IBTA 10.6.7.2: the twin is as strict as a device may be"}, QueueRecovers: Fact{false, "IBTA 11.6.3.1"},
	}
}

// SoftRoCEFacts are those of rdma_rxe in Linux 6.12 (MEASURED.md).
func SoftRoCEFacts() Facts {
	const why = "rdma_rxe, Linux 6.12, MEASURED.md"
	const seen = "rdma_rxe, Linux 6.12.94, seen with this suite"
	return Facts{
		WindowRange: Fact{false, why}, MarksInvalidation: Fact{false, why}, TrueLocalErrors: Fact{false, why},
		SurvivesDoubleInvalidation: Fact{false, why}, EventForBacklog: Fact{false, why}, KeepsCompletions: Fact{true, why},
		OwnPairInvalidation: Fact{false, why}, AccessEvents: Fact{false, why}, LengthErrors: Fact{false, seen}, FlushesLateReceives: Fact{false, "its library tells the kernel nothing of a receive, so one that comes to a pair in error waits for another cause to look"}, FlushesDeadPort: Fact{true, why},
		RefusesSameKey:  Fact{false, seen},
		CleanPostErrors: Fact{false, "its library puts work into the shared queue before the kernel looks at the pair's state"}, QueueRecovers: Fact{true, why},
	}
}

// OldSoftRoCEFacts are those of rdma_rxe in Linux 6.1, which carries work out inside the call that posts it. So far
// only its codes of local errors differ, and of those the suite takes each.
func OldSoftRoCEFacts() Facts { return SoftRoCEFacts() }

// Harness is what a test sees: two devices that reach each other, and time.
type Harness struct {
	A, B  Side
	Facts Facts
	// Now is the clock that deadlines are measured by.
	Now func() time.Duration
	// Pass lets what lies ahead go on for a moment: a step of a twin, a short sleep for a device.
	Pass func()
	// Idle says that nothing lies ahead, so that waiting is in vain. Nil: nobody knows.
	Idle func() bool
	// Readable says whether a descriptor has something.
	Readable func(descriptor int) bool
	// Link takes A's port down or up. Nil: not tested.
	Link func(up bool)
	// Address takes A's IPv4 address away or gives it back. Nil: not tested.
	Address func(present bool)
	// Done is called after all of a test's objects ended; it reports what is left. Nil: nobody knows.
	Done func() error
}

// Real is the harness of the native library in a process that sees both devices.
func Real(calls verbs.Calls, a, b string, facts Facts) Harness {
	began := time.Now()
	return Harness{
		A: Side{calls, a, 1}, B: Side{calls, b, 1}, Facts: facts,
		Now:  func() time.Duration { return time.Since(began) },
		Pass: func() { runtime.Gosched(); time.Sleep(50 * time.Microsecond) },
		Readable: func(descriptor int) bool {
			fds := []unix.PollFd{{Fd: int32(descriptor), Events: unix.POLLIN}}
			n, err := unix.Poll(fds, 0)
			for err == unix.EINTR { // the runtime preempts by a signal
				n, err = unix.Poll(fds, 0)
			}
			return err == nil && n == 1 && fds[0].Revents&unix.POLLIN != 0
		},
	}
}

// Run runs the suite. open is called once for each test and may use t.Cleanup for what it makes.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	groups := []struct {
		name  string
		cases []conformance
	}{
		{"Life", lifeCases}, {"Transfer", transferCases}, {"Failure", failureCases}, {"Window", windowCases}, {"Event", eventCases}, {"Random", randomCases},
	}
	for _, group := range groups {
		t.Run(group.name, func(t *testing.T) {
			for _, c := range group.cases {
				t.Run(c.name, func(t *testing.T) { c.run(newRig(t, open(t))) })
			}
		})
	}
}

type conformance struct {
	name string
	run  func(*rig)
}

// patience is how long the suite waits for something that must happen.
const patience = 10 * time.Second
