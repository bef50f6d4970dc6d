package simverbs

import (
	"math/bits"
	"time"

	"github.com/orbitte/orbitte/verbs"
)

// The places where devices differ are asked here, so that a note stands beside each.

func (f *Fabric) soft() bool { return f.options.Personality != Hardware }

// windowRange: rdma_rxe checks a window's key, direction, pair and invalidation, but only its region's range.
func (f *Fabric) windowRange() bool { return !f.soft() }

// invalidatedFlag is what a receive completion of SEND_WITH_INV is marked with: IBV_WC_WITH_INV is bit 3 of the
// header; rdma_rxe sets bit 2, the kernel's own number.
func (f *Fabric) invalidatedFlag() uint32 {
	if f.soft() {
		return 1 << 2
	}
	return 1 << 3
}

// local is the status of work that failed on its own side: rdma_rxe of 6.12 reports it as flushed, and of 6.1 as
// LOC_QP_OP_ERR (seen with verbstest on 6.1.0).
func (f *Fabric) local(s verbs.WorkStatus) verbs.WorkStatus {
	switch f.options.Personality {
	case SoftRoCE:
		return verbs.WorkFlushed
	case OldSoftRoCE:
		return verbs.WorkLocalPair
	}
	return s
}

// slotsAtPoll: mlx5 learns from a polled completion which send slots are free; rdma_rxe frees one when its work ends.
func (f *Fabric) slotsAtPoll() bool { return !f.soft() }

// endlessRetries: rdma_rxe takes seven retries for ever.
func (f *Fabric) endlessRetries(n uint8) bool { return f.soft() && n == 7 }

// flushesDeadPort: rdma_rxe fails work when its packet cannot leave; a device's packet is lost and sent again.
func (f *Fabric) flushesDeadPort() bool { return f.soft() }

// depth rounds the depth of a work queue: rdma_rxe gives 31 for 16, mlx5 the next power of two.
func (f *Fabric) depth(asked int) int {
	switch {
	case f.options.DepthsAsked || asked == 0:
		return asked
	case f.soft():
		return powerOfTwo(asked+1) - 1
	}
	return powerOfTwo(asked)
}

// queueDepth rounds the depth of a completion queue.
func (f *Fabric) queueDepth(asked int) int {
	if f.options.DepthsAsked {
		return asked
	}
	return powerOfTwo(asked+1) - 1
}

func powerOfTwo(n int) int { return 1 << bits.Len(uint(n-1)) }

// messageMax: one GiB for a device, 8 MiB for rdma_rxe.
func (f *Fabric) messageMax() uint32 {
	if f.soft() {
		return 8 << 20
	}
	return 1 << 30
}

// orphanDelay is how long rdma_rxe takes to destroy a pair that still has a bound window.
func (f *Fabric) orphanDelay() time.Duration {
	if f.soft() {
		return 52 * time.Second
	}
	return 0
}

// inlineMax bounds inline data of one piece of work.
const inlineMax = 512

// unreachableDelay is how long address resolution tries before ETIMEDOUT.
const unreachableDelay = time.Second

func (f *Fabric) limits() verbs.Limits {
	l := verbs.Limits{
		Firmware: "16.35.4030", Pairs: 1 << 17, PairWork: 1 << 15, SGE: 30, Queues: 1 << 20, QueueDepth: 1<<22 - 1,
		Regions: 1 << 24, Windows: 1 << 24, Domains: 1 << 23, ReadAtomic: 16, RegionBytes: 1<<64 - 1,
		WindowsType2B: true, RelaxedOrdering: true,
	}
	if f.soft() {
		l = verbs.Limits{
			Pairs: 1048560, PairWork: 1 << 20, SGE: 32, Queues: 1 << 20, QueueDepth: 1<<15 - 1, Regions: 524287, Windows: 524287,
			Domains: 1 << 20, ReadAtomic: 128, RegionBytes: 1<<64 - 1, WindowsType2B: true,
		}
	}
	override(&l, f.options.Limits)
	return l
}

func override(l *verbs.Limits, with verbs.Limits) {
	set := func(field *int, n int) {
		if n != 0 {
			*field = n
		}
	}
	set(&l.Pairs, with.Pairs)
	set(&l.PairWork, with.PairWork)
	set(&l.SGE, with.SGE)
	set(&l.Queues, with.Queues)
	set(&l.QueueDepth, with.QueueDepth)
	set(&l.Regions, with.Regions)
	set(&l.Windows, with.Windows)
	set(&l.Domains, with.Domains)
	set(&l.ReadAtomic, with.ReadAtomic)
	if with.RegionBytes != 0 {
		l.RegionBytes = with.RegionBytes
	}
	if with.Firmware != "" {
		l.Firmware = with.Firmware
	}
}

// eventForBacklog: mlx5 compares the armed queue with what was polled; rdma_rxe waits for the next completion.
func (f *Fabric) eventForBacklog() bool { return !f.soft() }

// forgetsCompletions: mlx5 removes a destroyed pair's completions; with rdma_rxe they stay (400 were polled).
func (f *Fabric) forgetsCompletions() bool { return !f.soft() }

// foreignInvalidation: rdma_rxe lets any pair invalidate a window; a device only the one that it is bound to.
func (f *Fabric) foreignInvalidation() bool { return f.soft() }

// panicsOnInvalidation: rdma_rxe kills its kernel when a window that is not bound is invalidated.
func (f *Fabric) panicsOnInvalidation() bool { return f.soft() }

// keepsEarlySends: rdma_rxe's library puts work into a queue that it shares with the kernel before the kernel looks at
// the pair's state. The call fails without a bad_wr, and the work waits there (seen with verbstest on 6.12.94).
func (f *Fabric) keepsEarlySends() bool { return f.soft() }

// sameKey: rdma_rxe binds a free window to the key that it has (seen with verbstest on 6.12.94).
func (f *Fabric) sameKey() bool { return f.soft() }

// tooLong is how both sides learn that a message did not fit its receive: rdma_rxe says LOC_QP_OP_ERR and REM_OP_ERR
// (seen with verbstest on 6.12.94).
func (f *Fabric) tooLong() (receiver, sender verbs.WorkStatus) {
	if f.soft() {
		return verbs.WorkLocalPair, verbs.WorkRemoteOperation
	}
	return verbs.WorkLocalLength, verbs.WorkRemoteRequest
}

// accessEvents: a device tells its side of a refused key; rdma_rxe does not (seen with verbstest on 6.12.94).
func (f *Fabric) accessEvents() bool { return !f.soft() }

// flushesLateReceives: rdma_rxe's library tells the kernel nothing of a receive, so one that comes to a pair in error
// is flushed when something else makes the kernel look, such as a send, or never (6.1; both seen with verbstest).
func (f *Fabric) flushesLateReceives() bool { return !f.soft() }
