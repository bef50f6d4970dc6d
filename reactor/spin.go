package reactor

import "time"

const (
	// spinDefault bridges the gap between two frames of a busy peer, also of one that has just been woken on a sleeping
	// core, 12 to 40 µs: two sides that both gave up a little earlier would go on waking each other.
	spinDefault = 50 * time.Microsecond
	// spinBulkBytes is how many bytes of one turn say that payload is on its way, and spinBulkFactor how many times as
	// long the loop spins then. The next piece comes when the peer has copied its own, 100 µs or more later. Who sleeps in
	// between is woken by the sender, which costs that one time, and often on the sender's CPU, where one of the two
	// then waits for the other although a CPU is free: 1.4 times the time for 1 MiB on two CPUs.
	spinBulkBytes  = 32 << 10
	spinBulkFactor = 10
	// spinSampleEvery bounds how often the thread's waiting time is read (three system calls).
	spinSampleEvery = 10 * time.Millisecond
	// spinWaitedPart is which part of its time a thread may wait for a CPU (one in so many), and spinPatience how many
	// samples in a row it may be more: the scheduler needs a few milliseconds to part two threads that share a CPU while
	// another one is free, and does so only when both want to run.
	spinWaitedPart = 8
	spinPatience   = 3
	// spinLeast is where spinning that was shortened stops being worth anything: from there it goes to
	// zero, and up again from here.
	spinLeast = 2 * time.Microsecond
)

// spinner decides how long an adaptive loop spins before it blocks. It decides only by the instants
// and counts it is told.
type spinner struct {
	longest time.Duration
	current time.Duration
	end     Instant // spin until then
	sampled Instant
	waited  time.Duration // for a CPU, in all, as of then
	crowded int           // samples in a row that said that others want the CPU
}

func newSpinner(longest time.Duration) spinner {
	if longest <= 0 {
		longest = spinDefault
	}
	return spinner{longest: longest, current: longest}
}

// worked restarts the spinning time: something was just done, which moved so many bytes.
func (s *spinner) worked(now Instant, moved int) { s.end = max(s.end, now.After(s.span(moved))) }

// span is how long to spin after work that moved so many bytes.
func (s *spinner) span(moved int) time.Duration {
	if moved >= spinBulkBytes {
		return spinBulkFactor * s.current
	}
	return s.current
}

// patience says until when the next turn may wait.
func (s *spinner) patience(now Instant) Instant {
	if now < s.end {
		return Past
	}
	return Forever
}

// due says whether the thread's waiting time should be read before the loop blocks.
func (s *spinner) due(now Instant) bool { return now >= s.sampled.After(spinSampleEvery) }

// observe takes a reading of the time that the thread has waited for a CPU since it began. When others want the CPU, it
// spins half as long; when nobody does, twice as long again.
func (s *spinner) observe(now Instant, waited time.Duration) {
	first := s.sampled == 0
	crowded := (waited-s.waited)*spinWaitedPart > time.Duration(now-s.sampled)
	s.sampled, s.waited = now, waited
	switch {
	case first:
		return
	case !crowded:
		s.crowded = 0
		s.current = min(max(2*s.current, min(spinLeast, s.longest)), s.longest)
		return
	}
	if s.crowded++; s.crowded <= spinPatience {
		return
	}
	if s.current /= 2; s.current < spinLeast {
		s.current = 0
	}
}
