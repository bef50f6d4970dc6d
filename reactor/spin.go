package reactor

import "time"

const (
	// spinDefault bridges the gap between two frames of a busy peer: waking a sleeping core costs
	// about 12 µs, so spinning for a little longer than that pays.
	spinDefault = 30 * time.Microsecond
	// spinSampleEvery bounds how often the thread's context switches are read (a system call).
	spinSampleEvery = 10 * time.Millisecond
	// spinSwitchesMax is how many involuntary switches in one sample say that the CPU is wanted by
	// others.
	spinSwitchesMax = 2
	// spinLeast is where spinning that was shortened stops being worth anything: from there it goes to
	// zero, and up again from here.
	spinLeast = 2 * time.Microsecond
)

// spinner decides how long an adaptive loop spins before it blocks. It decides only by the instants
// and counts it is told.
type spinner struct {
	longest  time.Duration
	current  time.Duration
	end      Instant // spin until then
	sampled  Instant
	switches uint64
}

func newSpinner(longest time.Duration) spinner {
	if longest <= 0 {
		longest = spinDefault
	}
	return spinner{longest: longest, current: longest}
}

// worked restarts the spinning time: something was just done.
func (s *spinner) worked(now Instant) { s.end = now.After(s.current) }

// patience says until when the next turn may wait.
func (s *spinner) patience(now Instant) Instant {
	if now < s.end {
		return Past
	}
	return Forever
}

// due says whether the context switches should be read before the loop blocks.
func (s *spinner) due(now Instant) bool { return now >= s.sampled.After(spinSampleEvery) }

// observe takes a reading of the thread's involuntary context switches: others want the CPU, so spin
// half as long; nobody does, so spin twice as long again.
func (s *spinner) observe(now Instant, switches uint64) {
	first := s.sampled == 0
	grown := switches - s.switches
	s.sampled, s.switches = now, switches
	switch {
	case first:
	case grown > spinSwitchesMax:
		s.current /= 2
		if s.current < spinLeast {
			s.current = 0
		}
	case s.current < spinLeast:
		s.current = min(spinLeast, s.longest)
	default:
		s.current = min(2*s.current, s.longest)
	}
}
