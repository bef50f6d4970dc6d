package socket

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
)

// Clock is CLOCK_MONOTONIC, read through the vDSO (30 ns) instead of a system call. All Clocks of a
// process agree, so that instants may travel between lanes. Safe for concurrent use.
type Clock struct{}

// origin pairs one time.Time with the instant at which it was taken.
var origin = pairClocks()

type clockPair struct {
	wall    time.Time
	instant reactor.Instant
}

// pairClocks brackets a reading of CLOCK_MONOTONIC by two of time.Now and keeps the tightest bracket, so
// that being descheduled in between does not shift every later instant.
func pairClocks() clockPair {
	var best clockPair
	width := time.Duration(1<<63 - 1)
	for range 8 {
		var ts unix.Timespec
		before := time.Now()
		if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
			ts = unix.Timespec{}
		}
		gap := time.Since(before)
		if gap < width {
			width = gap
			best = clockPair{before.Add(gap / 2), reactor.Instant(ts.Nano())}
		}
	}
	return best
}

// Now reads the clock.
func (Clock) Now() reactor.Instant {
	return origin.instant + reactor.Instant(time.Since(origin.wall))
}

// At converts a time to an instant. A time with a monotonic reading is converted exactly; one without
// (a parsed date) by the distance of the wall clock now. Far times saturate.
func (c Clock) At(t time.Time) reactor.Instant {
	d := time.Until(t)
	if d < 0 {
		return c.Now() + reactor.Instant(d)
	}
	return c.Now().After(d)
}
