package segments

import (
	"slices"
	"sync/atomic"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/netproto"
)

// Spec describes one range to be registered.
type Spec struct {
	Backing        *Backing // the caller is a holder during the call
	Offset, Length uint64   // relative to the memory object; at least one byte (SPEC G-7)
	Permission     netproto.Permission
	// Profile is what peers are told besides: memory type, flags, export consent, location. Its ID, Base, Length
	// and Permission are filled in.
	Profile netproto.Region
}

// extent is the range in addresses; the spec was checked.
func (s *Spec) extent() Range { return Range{s.Backing.Address() + s.Offset, s.Length} }

// Tracker keeps the registrations of one engine. Its writers (Register, Unregister, RetireAll, Retained) are
// called by one goroutine at a time, under the engine's lock; everything else may be called from any
// goroutine at any time and takes no lock.
type Tracker struct {
	count, bytes *budgets.Budget
	ended        func(*Registration)
	lastID       uint64          // writer: the last ID given out
	retired      []*Registration // writer: hidden, but maybe still on loan
	mirror       atomic.Pointer[Mirror]
}

// NewTracker makes a tracker without registrations. Each registration is charged one unit to count and its
// length to bytes until it has ended. ended, if not nil, is called once for each registration that has
// ended, on whatever goroutine ended it, under no lock of the tracker.
func NewTracker(count, bytes *budgets.Budget, ended func(*Registration)) *Tracker {
	t := &Tracker{count: count, bytes: bytes, ended: ended}
	t.mirror.Store(new(Mirror))
	return t
}

// Mirror is the newest snapshot. Never nil.
func (t *Tracker) Mirror() *Mirror { return t.mirror.Load() }

// Register makes a batch of ranges visible at once, or none (SPEC M-3 to M-5). The answer has one
// registration for each element. A range that is visible already, or comes twice in the batch, has one
// registration: its first permission and profile stay, it is charged once, and each call, not each
// element, adds one reference. The error is an *ElementError; inside it *RangeError, *PermissionError,
// *ForeignAlias, *RegionLimit or *budgets.Exhausted. Then nothing has changed. Writer.
func (t *Tracker) Register(batch []Spec) ([]*Registration, error) {
	return t.RegisterPrepared(batch, nil)
}

// RegisterPrepared is Register that calls prepare, if not nil, before anything becomes visible, with the registrations
// that are new, still without an ID: it attaches to each what must be there when a peer first sees it (SPEC R-5), for
// all or for none. When it fails, failed says at which of them.
func (t *Tracker) RegisterPrepared(batch []Spec, prepare func(fresh []*Registration) (failed int, err error)) ([]*Registration, error) {
	t.prune()
	p := plan{mirror: t.Mirror(), named: make(map[Range]*Registration, len(batch)), mixed: mixes(batch)}
	for i := range batch {
		if err := t.consider(&p, &batch[i]); err != nil {
			p.abandon()
			return nil, &ElementError{Element: i, Err: err}
		}
	}
	if prepare != nil && len(p.fresh) > 0 {
		if failed, err := prepare(p.fresh); err != nil {
			p.abandon()
			return nil, &ElementError{Element: slices.Index(p.answers, p.fresh[failed]), Err: err}
		}
	}
	t.publish(&p)
	return p.answers, nil
}

// Unregister takes one reference of a visible registration. With the last one it is hidden at once and
// refuses new loans; it ends when its loans have come back, or now when there is none (SPEC M-6). The error
// is an *UnknownRegion. Writer.
func (t *Tracker) Unregister(id uint64) (last bool, err error) {
	t.prune()
	mirror := t.Mirror()
	r := mirror.Find(id)
	if r == nil {
		return false, &UnknownRegion{ID: id}
	}
	if r.references.Add(-1) > 0 {
		return false, nil
	}
	t.mirror.Store(mirror.without(r)) // hidden first: whoever is refused a loan finds it gone (see Borrow)
	t.retire(r)
	return true, nil
}

// RetireAll hides everything, however many references there are, and returns how many registrations it
// hid. For the end of an engine. Writer.
func (t *Tracker) RetireAll() int {
	t.prune()
	all := t.Mirror().All()
	t.mirror.Store(new(Mirror))
	for _, r := range all {
		r.references.Store(0)
		t.retire(r)
	}
	return len(all)
}

// Retained lists the registrations that are hidden but still on loan. Writer.
func (t *Tracker) Retained() []*Registration {
	t.prune()
	return append([]*Registration(nil), t.retired...)
}

// Borrow resolves a local address range and borrows its registration for one transfer (SPEC G-2, M-7); the
// caller owes one Return. Errors as Mirror.Cover. No allocation unless it fails.
func (t *Tracker) Borrow(address, length uint64) (*Registration, error) {
	for {
		r, err := t.Mirror().Cover(address, length)
		if err != nil {
			return nil, err
		}
		if r.Lend() {
			return r, nil
		} // retired since, hence hidden before that: the next look at the mirror does not find it
	}
}

// Admit is a source's check of one peer's request: the region is visible, permits want, and contains the
// range (SPEC M-8, T-11), in this order. It borrows the registration; the caller owes one Return. Errors:
// *UnknownRegion, *PermissionError, *RangeError, each with its wire status. No allocation unless it fails.
func (t *Tracker) Admit(id, offset, length uint64, want netproto.Permission) (*Registration, error) {
	r := t.Mirror().Find(id)
	switch {
	case r == nil:
		return nil, &UnknownRegion{ID: id}
	case want == netproto.LocalOnly || !r.Permits(want):
		return nil, &PermissionError{ID: id, Has: r.Permission(), Want: want}
	case !Within(offset, length, r.Length()):
		return nil, r.leaves(offset, length)
	case !r.Lend():
		return nil, &UnknownRegion{ID: id} // retired since; its ID does not come back
	}
	return r, nil
}

// retire ends a hidden registration, or remembers it until its loans are back.
func (t *Tracker) retire(r *Registration) {
	r.retire()
	if !r.quiet() {
		t.retired = append(t.retired, r)
	}
}

// prune forgets the retired registrations that nobody has on loan any more.
func (t *Tracker) prune() {
	kept := t.retired[:0]
	for _, r := range t.retired {
		if !r.quiet() {
			kept = append(kept, r)
		}
	}
	clear(t.retired[len(kept):])
	t.retired = kept
}
