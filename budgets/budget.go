package budgets

import (
	"fmt"
	"sync/atomic"
)

// Budget is one named limit. It is made by New, must not be copied, and may be used from any
// goroutine. What is used never exceeds the limit, not even for a moment.
type Budget struct {
	name  string
	unit  string
	limit int64

	used     atomic.Int64  // sum of the amounts of all held charges; 0 ≤ used ≤ limit
	peak     atomic.Int64  // the largest value that used has had
	refusals atomic.Uint64 // how many calls of Take were refused
}

// New makes a budget of limit units. Name and unit appear in errors and snapshots ("requester bytes
// in flight", "bytes"). A limit of zero refuses everything except amounts of zero. A negative limit
// panics: whoever reads a configuration checks it first.
func New(name, unit string, limit int64) *Budget {
	if limit < 0 {
		panic(fmt.Sprintf("budgets: New(%q) with limit %d %s, want 0 or more", name, limit, unit))
	}
	return &Budget{name: name, unit: unit, limit: limit}
}

// Take charges n units and returns the receipt, which the caller then owns. When n does not fit under
// the limit, nothing is charged, the receipt is empty and the error is an *Exhausted. An amount of zero
// always fits and its receipt must be repaid like any other. A negative amount panics.
func (b *Budget) Take(n int64) (Charge, error) {
	if n < 0 {
		panic(fmt.Sprintf("budgets: Take(%d) from %q, want 0 or more %s", n, b.name, b.unit))
	}
	for {
		used := b.used.Load()
		if n > b.limit-used { // cannot overflow: 0 ≤ used ≤ limit
			return Charge{}, b.refuse(n, used)
		}
		if b.used.CompareAndSwap(used, used+n) {
			b.raisePeak(used + n)
			return Charge{budget: b, amount: n}, nil
		}
	}
}

// refuse counts a refusal and describes it. It is kept apart so that Take stays free of allocation.
func (b *Budget) refuse(asked, used int64) error {
	b.refusals.Add(1)
	return &Exhausted{Budget: b.name, Unit: b.unit, Asked: asked, Used: used, Limit: b.limit}
}

// raisePeak remembers used when it is a new maximum.
func (b *Budget) raisePeak(used int64) {
	for {
		peak := b.peak.Load()
		if used <= peak || b.peak.CompareAndSwap(peak, used) {
			return
		}
	}
}

// repay takes n units back. Less than zero used means that a copy of a charge was repaid as well.
func (b *Budget) repay(n int64) {
	if used := b.used.Add(-n); used < 0 {
		panic(fmt.Sprintf("budgets: repaying %d %s left %q at %d, want 0 or more: a copied charge was repaid twice",
			n, b.unit, b.name, used))
	}
}

// Name returns the name given to New.
func (b *Budget) Name() string { return b.name }

// Limit returns the limit in the budget's unit. It never changes.
func (b *Budget) Limit() int64 { return b.limit }

// Used returns the sum of all held charges.
func (b *Budget) Used() int64 { return b.used.Load() }

// Peak returns the largest value that Used has had.
func (b *Budget) Peak() int64 { return b.peak.Load() }

// Refusals returns how many calls of Take were refused.
func (b *Budget) Refusals() uint64 { return b.refusals.Load() }
