package lanes

import (
	"time"

	"github.com/orbitte/orbitte/reactor"
)

const (
	// conflictWaitMin is how long a copy waits at first before it looks again for a conflicting lease:
	// leases of copies last microseconds.
	conflictWaitMin = 50 * time.Microsecond
	// conflictDoublings bounds the wait at 1.6 ms: leases of direct transfers last as long as their
	// payload, and looking for them every time would keep the lane busy.
	conflictDoublings = 5
)

// Backoff is when to look again for a range that another access has leased (SPEC M-9). The zero value is
// ready; it is the waiting transfer's own.
type Backoff struct{ looks uint }

// Next is the instant of the next look, each time later than the last one, and not beyond deadline.
func (b *Backoff) Next(now, deadline reactor.Instant) reactor.Instant {
	wait := conflictWaitMin << min(b.looks, conflictDoublings)
	b.looks++
	return min(now.After(wait), deadline)
}
