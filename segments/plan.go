package segments

import (
	"slices"

	"github.com/orbitte/orbitte/netproto"
)

// plan collects what a batch will do. Until publish, charges are all it holds, and abandon repays them.
type plan struct {
	mirror  *Mirror                 // what is visible now
	named   map[Range]*Registration // ranges that the batch has named already
	answers []*Registration         // one for each element
	again   []*Registration         // visible already: one more reference each
	fresh   []*Registration         // to be published, in batch order, without an ID yet
	mixed   bool                    // memory objects of the batch may share bytes
}

// consider checks one element against the visible, the retired and the earlier elements, and charges it if
// it is new. After an error the plan is as before.
func (t *Tracker) consider(p *plan, s *Spec) error {
	if err := s.check(); err != nil {
		return err
	}
	if known := p.known(s); known != nil {
		p.answers = append(p.answers, known)
		return nil
	}
	if err := t.alias(p, s); err != nil {
		return err
	}
	if visible := p.mirror.Count() + len(p.fresh); visible >= netproto.RegionsMax {
		return &RegionLimit{Visible: visible, Limit: netproto.RegionsMax}
	}
	r, err := t.charge(s)
	if err != nil {
		return err
	}
	p.fresh, p.answers = append(p.fresh, r), append(p.answers, r)
	p.named[r.Range()] = r
	return nil
}

// check looks at the element alone.
func (s *Spec) check() error {
	if s.Backing == nil {
		return &RangeError{Object: "memory object", Offset: s.Offset, Length: s.Length} // none at all
	}
	if s.Length == 0 || !Within(s.Offset, s.Length, s.Backing.Length()) {
		return &RangeError{Object: "memory object", ID: s.Backing.Address(), Offset: s.Offset, Length: s.Length, Limit: s.Backing.Length()}
	}
	if !s.Permission.Known() {
		return &PermissionError{Want: s.Permission}
	}
	return nil
}

// known returns the registration that the element repeats, of the same memory object: one that the batch
// has named, or a visible one, which then gets its reference. nil when the range is new, or another
// object's.
func (p *plan) known(s *Spec) *Registration {
	extent := s.extent()
	if r := p.named[extent]; r != nil {
		if r.backing == s.Backing {
			return r
		}
		return nil
	}
	r := p.mirror.exact(extent)
	if r == nil || r.backing != s.Backing {
		return nil
	}
	p.named[extent] = r
	p.again = append(p.again, r)
	return r
}

// alias refuses a range that shares bytes with a registration of another memory object (SPEC M-3). Retired ones
// count while they are on loan: their transfers hold leases in the other object's table.
func (t *Tracker) alias(p *plan, s *Spec) error {
	extent := s.extent()
	if r := p.mirror.alias(extent, s.Backing); r != nil {
		return &ForeignAlias{Asked: extent, Other: r.Range(), OtherID: r.ID()}
	}
	for _, r := range t.retired {
		if r.backing != s.Backing && r.Range().Overlaps(extent) {
			return &ForeignAlias{Asked: extent, Other: r.Range(), OtherID: r.ID(), Retired: true}
		}
	}
	if !p.mixed {
		return nil
	}
	for _, r := range p.fresh {
		if r.backing != s.Backing && r.Range().Overlaps(extent) {
			return &ForeignAlias{Asked: extent, Other: r.Range()}
		}
	}
	return nil
}

// mixes says whether elements of different memory objects share bytes, so that only a batch that will fail is
// compared pair by pair. Going by rising address, what overlaps anything before it overlaps what reaches
// farthest; that belongs to the object of the element before, as long as no two objects have met. Elements that
// are wrong by themselves do not count.
func mixes(batch []Spec) bool {
	if len(batch) < 2 {
		return false
	}
	rising := make([]*Spec, 0, len(batch))
	for i := range batch {
		if batch[i].check() == nil {
			rising = append(rising, &batch[i])
		}
	}
	slices.SortFunc(rising, func(a, b *Spec) int { return before(a.extent(), b.extent()) })
	var object *Backing
	reach := uint64(0)
	for _, s := range rising {
		extent := s.extent()
		if s.Backing != object && reach > extent.Start {
			return true
		}
		object, reach = s.Backing, max(reach, extent.End())
	}
	return false
}

// charge takes the element's two charges and makes its registration, still without an ID or a holder's
// place.
func (t *Tracker) charge(s *Spec) (*Registration, error) {
	count, err := t.count.Take(1)
	if err != nil {
		return nil, err
	}
	bytes, err := t.bytes.Take(int64(s.Length)) // a memory object is never longer than an int64
	if err != nil {
		count.Repay() // proof: nothing was begun with it
		return nil, err
	}
	r := &Registration{backing: s.Backing, offset: s.Offset, region: s.Profile, ended: t.ended, count: count.Move(), bytes: bytes.Move()}
	extent := s.extent()
	r.region.Base, r.region.Length, r.region.Permission = extent.Start, extent.Length, s.Permission
	return r, nil
}

// abandon repays what the plan has charged.
func (p *plan) abandon() {
	for _, r := range p.fresh {
		r.count.Repay() // proof: never published, so never lent
		r.bytes.Repay()
	}
}

// publish cannot fail: IDs, holders and references first, then one store makes all visible.
func (t *Tracker) publish(p *plan) {
	for _, r := range p.again {
		r.references.Add(1)
	}
	if len(p.fresh) == 0 {
		return
	}
	for _, r := range p.fresh {
		t.lastID++
		r.region.ID = t.lastID
		r.references.Store(1)
		r.backing.Hold()
	}
	t.mirror.Store(p.mirror.with(p.fresh))
}
