package segments

import (
	"fmt"
	"sync/atomic"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/netproto"
)

// retiredBit of a registration's state word is set exactly when new loans are refused; the bits below
// count the loans that are out.
const retiredBit = uint64(1) << 63

// Registration is one range of a memory object under one ID (SPEC M-3, M-5, M-6). The Tracker makes it. It
// holds its backing and its charges until it was retired and the last loan came back. Its methods may be
// called from any goroutine; all but Lend, Return and References read what never changes.
type Registration struct {
	backing *Backing
	offset  uint64          // allocation-relative
	region  netproto.Region // what a peer is told: ID, base, length, permission and the rest
	ended   func(*Registration)
	native  any // see Attach

	references   atomic.Int64 // Register calls not yet unregistered; changed by the tracker's one writer
	state        atomic.Uint64
	count, bytes budgets.Charge
}

// ID is unique in the tracker's life and never zero.
func (r *Registration) ID() uint64 { return r.region.ID }

// Backing is the memory object; use it while a loan is held.
func (r *Registration) Backing() *Backing { return r.backing }

// Offset is where the range begins in the memory object.
func (r *Registration) Offset() uint64 { return r.offset }

// Address is the address of the first byte.
func (r *Registration) Address() uint64 { return r.region.Base }

// Length is the number of bytes, at least one.
func (r *Registration) Length() uint64 { return r.region.Length }

// Range is the registered range in addresses.
func (r *Registration) Range() Range { return Range{r.region.Base, r.region.Length} }

// Permission is what the first registration of the range asked for (SPEC M-5).
func (r *Registration) Permission() netproto.Permission { return r.region.Permission }

// Region is what a peer is told about it, if its permission lets it be exported.
func (r *Registration) Region() netproto.Region { return r.region }

// Attach gives the registration what a transport needs with it, such as its native registrations. Only while it is
// prepared, before anybody sees it (Tracker.RegisterPrepared).
func (r *Registration) Attach(native any) { r.native = native }

// Observe adds what was seen while the range was registered natively to what a peer is told (SPEC W-8). Like Attach, only
// before anybody sees the registration.
func (r *Registration) Observe(f netproto.RegionFlags) { r.region.Flags |= f }

// Attachment is what Attach gave it, nil for nothing; use it while a loan is held.
func (r *Registration) Attachment() any { return r.native }

// References counts the Register calls that were not unregistered yet. Zero when retired.
func (r *Registration) References() int64 { return r.references.Load() }

// Loans counts the loans that are out, for reports.
func (r *Registration) Loans() uint64 { return r.state.Load() &^ retiredBit }

// Retired reports whether new loans are refused.
func (r *Registration) Retired() bool { return r.state.Load()&retiredBit != 0 }

// Lend borrows the registration for one admitted transfer: backing and charges stay until Return. False
// when it was retired; then nothing is borrowed. It never waits and does not allocate.
func (r *Registration) Lend() bool {
	for {
		state := r.state.Load()
		if state&retiredBit != 0 {
			return false
		}
		if r.state.CompareAndSwap(state, state+1) {
			return true
		}
	}
}

// Return ends one loan. The last one of a retired registration ends it on this goroutine: the backing is
// dropped, the charges are repaid, and the tracker's ended function is called. A Return too many panics.
func (r *Registration) Return() {
	state := r.state.Add(^uint64(0)) // minus one
	if (state+1)&^retiredBit == 0 {
		panic(fmt.Sprintf("segments: Return to registration %d in state %#x without loans, want a loan", r.ID(), state+1))
	}
	if state == retiredBit {
		r.end()
	}
}

// Lease lends bytes of the registration, offset relative to it, for reading or writing. The caller holds a
// loan. Errors as Backing.Lend.
func (r *Registration) Lease(offset, length uint64, a Access) (Lease, error) {
	if !Within(offset, length, r.Length()) {
		return Lease{}, r.leaves(offset, length)
	}
	return r.backing.Lend(r.offset+offset, length, a)
}

// Permits reports whether a peer may do what want says (SPEC M-8). Local use needs no permission.
func (r *Registration) Permits(want netproto.Permission) bool {
	return r.region.Permission.Allows(want)
}

// leaves describes a range outside the registration.
func (r *Registration) leaves(offset, length uint64) error {
	return &RangeError{Object: "region", ID: r.ID(), Offset: offset, Length: length, Limit: r.Length()}
}

// retire refuses new loans from now on and ends the registration when none is out.
func (r *Registration) retire() {
	if r.state.Or(retiredBit) == 0 {
		r.end()
	}
}

// quiet reports whether it is retired and no loan is out: nobody touches its memory any more.
func (r *Registration) quiet() bool { return r.state.Load() == retiredBit }

// end runs once: after the retired bit is set the loans only fall, and one caller sees them reach zero.
func (r *Registration) end() {
	r.backing.Drop()
	r.count.Repay() // proof: retired and without loans, so no admitted work is left, and the backing was dropped
	r.bytes.Repay() // the same proof
	if r.ended != nil {
		r.ended(r)
	}
}
