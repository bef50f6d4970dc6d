package segments

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/netproto"
)

func registered(t *testing.T, tracker *Tracker, batch ...Spec) []*Registration {
	t.Helper()
	made, err := tracker.Register(batch)
	if err != nil {
		t.Fatal(err)
	}
	if len(made) != len(batch) {
		t.Fatalf("%d answers to %d elements", len(made), len(batch))
	}
	return made
}

func unregistered(t *testing.T, tracker *Tracker, id uint64, last bool) {
	t.Helper()
	if was, err := tracker.Unregister(id); err != nil || was != last {
		t.Fatalf("unregister %d: last %v, %v; want last %v", id, was, err, last)
	}
}

// proves M-3
func TestSubrangesOfOneObjectMayOverlapOthersMayNot(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 100)
	other := alias(t, b, 20, 60)
	l := newLedger(100, 1<<20)
	tracker := l.tracker()
	made := registered(t, tracker, Spec{Backing: b, Offset: 10, Length: 20}, Spec{Backing: b, Offset: 20, Length: 20}, Spec{Backing: b, Length: 100})
	for _, s := range []Spec{{Backing: other, Length: 60}, {Backing: other, Offset: 59, Length: 1}, {Backing: other, Offset: 0, Length: 20}} {
		_, err := tracker.Register([]Spec{s})
		var foreign *ForeignAlias
		if !errors.Is(err, ErrForeignAlias) || !errors.As(err, &foreign) || foreign.Retired || tracker.Mirror().Find(foreign.OtherID) == nil {
			t.Fatalf("%+v: %v", s, err)
		}
	}
	unregistered(t, tracker, made[2].ID(), true)
	twin := alias(t, b, 90, 5)
	_, err := tracker.Register([]Spec{{Backing: b, Offset: 90, Length: 5}, {Backing: twin, Length: 5}})
	twin.Drop()
	if !errors.Is(err, ErrForeignAlias) {
		t.Fatalf("the same range of two objects in one batch: %v", err)
	}
	side := registered(t, tracker, Spec{Backing: other, Offset: 20, Length: 40}) // beside the others, from byte 40
	if _, err := tracker.Register([]Spec{{Backing: b, Length: 41}}); !errors.Is(err, ErrForeignAlias) {
		t.Fatalf("%v", err)
	}
	registered(t, tracker, Spec{Backing: b, Length: 40})
	_, err = tracker.Register([]Spec{{Backing: b, Offset: 80, Length: 20}, {Backing: other, Offset: 10, Length: 5}, {Backing: b, Offset: 90, Length: 1}})
	var element *ElementError
	if !errors.As(err, &element) || element.Element != 1 {
		t.Fatalf("%v", err)
	}
	if side[0].Backing() != other {
		t.Fatal("wrong object")
	}
	tracker.RetireAll()
	l.owes(t, 0, 0)
	other.Drop()
	b.Drop()
}

// proves M-3
func TestUnregisteredRangeOnLoanStillRefusesAnotherObject(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 100)
	other := alias(t, b, 0, 100)
	l := newLedger(100, 1<<20)
	tracker := l.tracker()
	first := registered(t, tracker, Spec{Backing: b, Length: 100})[0]
	first.Lend()
	unregistered(t, tracker, first.ID(), true)
	_, err := tracker.Register([]Spec{{Backing: other, Offset: 99, Length: 1}})
	var foreign *ForeignAlias
	if !errors.As(err, &foreign) || !foreign.Retired || foreign.OtherID != first.ID() {
		t.Fatalf("%v", err)
	}
	if kept := tracker.Retained(); len(kept) != 1 || kept[0] != first {
		t.Fatalf("retained %v", kept)
	}
	first.Return()
	if kept := tracker.Retained(); len(kept) != 0 {
		t.Fatalf("retained %v", kept)
	}
	registered(t, tracker, Spec{Backing: other, Offset: 99, Length: 1})
	tracker.RetireAll()
	other.Drop()
	b.Drop()
}

// proves M-4, M-5
func TestDuplicatesInABatchAreOneRegistrationAndOneReference(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 100)
	l := newLedger(100, 1<<20)
	tracker := l.tracker()
	range1, range2 := Spec{Backing: b, Length: 50, Permission: netproto.RemoteRead}, Spec{Backing: b, Offset: 50, Length: 50}
	again := range1
	again.Permission = netproto.ReadWrite
	made := registered(t, tracker, range1, range2, again, range1)
	if made[0] != made[2] || made[0] != made[3] || made[0] == made[1] || made[0].References() != 1 || made[0].Permission() != netproto.RemoteRead {
		t.Fatalf("%v", made)
	}
	l.owes(t, 2, 100)
	more := registered(t, tracker, again, again)
	if more[0] != made[0] || more[1] != made[0] || made[0].References() != 2 {
		t.Fatalf("%d references", made[0].References())
	}
	l.owes(t, 2, 100)
	if made, err := tracker.Register(nil); err != nil || len(made) != 0 {
		t.Fatal(made, err)
	}
	tracker.RetireAll()
	b.Drop()
}

// proves M-5, M-6
// field case F-8
func TestRangeRegisteredManyTimesEndsWithItsLastReference(t *testing.T) {
	leavesNothing(t)
	random := rand.New(rand.NewPCG(seeded(t), 8))
	b := mapped(t, 1000)
	region := b.resident.region
	l := newLedger(100, 1<<20)
	tracker := l.tracker()
	var owed []uint64 // one entry for each reference
	live := map[uint64]int{}
	for k := range 10 {
		for range k + 1 {
			r := registered(t, tracker, Spec{Backing: b, Offset: uint64(10 * k), Length: 10})[0]
			owed = append(owed, r.ID())
			live[r.ID()]++
		}
	}
	b.Drop()
	random.Shuffle(len(owed), func(i, j int) { owed[i], owed[j] = owed[j], owed[i] })
	for _, id := range owed {
		l.owes(t, int64(len(live)), int64(10*len(live)))
		live[id]--
		unregistered(t, tracker, id, live[id] == 0)
		if live[id] == 0 {
			delete(live, id)
			if _, err := tracker.Unregister(id); !errors.Is(err, ErrUnknownRegion) {
				t.Fatalf("one unregister too many: %v", err)
			}
		}
		if present(region) != (len(live) > 0) {
			t.Fatalf("mapped %v with %d live ranges", present(region), len(live))
		}
	}
	l.owes(t, 0, 0)
	slices.Sort(l.ended)
	if !slices.Equal(l.ended, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}) {
		t.Fatalf("ended: %v", l.ended)
	}
}

// picture is everything about a tracker that a failed batch must leave alone.
func (l *ledger) picture(tracker *Tracker, backings ...*Backing) string {
	text := fmt.Sprint(l.count.Used(), l.bytes.Used(), l.ended, tracker.lastID, fmt.Sprintf("%p", tracker.Mirror()))
	for _, r := range tracker.Mirror().All() {
		text += fmt.Sprintf(" %d%v×%d+%d", r.ID(), r.Range(), r.References(), r.Loans())
	}
	for _, b := range backings {
		text += fmt.Sprint(" ", b.Holders(), b.Quiet())
	}
	return text
}

// proves M-4
// field case F-9
func TestBatchThatFailsAtAnyElementChangesNothing(t *testing.T) {
	leavesNothing(t)
	b, second := adopted(t, 1000), adopted(t, 1000)
	other := alias(t, b, 900, 100)
	const n = 7
	faults := map[string]struct {
		spec  Spec
		class error
	}{
		"outside":    {Spec{Backing: b, Offset: 999, Length: 2}, ErrRange},
		"overflow":   {Spec{Backing: b, Offset: 8, Length: math.MaxUint64}, ErrRange},
		"empty":      {Spec{Backing: b, Offset: 8, Length: 0}, ErrRange},
		"nothing":    {Spec{Length: 5}, ErrRange},
		"permission": {Spec{Backing: b, Length: 5, Permission: 4}, ErrPermission},
		"foreign":    {Spec{Backing: other, Offset: 50, Length: 10}, ErrForeignAlias},
		"bytes":      {Spec{Backing: second, Length: 1000}, budgets.ErrExhausted},
	}
	for name, fault := range faults {
		for i := range n {
			l := newLedger(100, 1000)
			tracker := l.tracker()
			registered(t, tracker, Spec{Backing: b, Offset: 940, Length: 50})
			visible := registered(t, tracker, Spec{Backing: b, Offset: 0, Length: 10})[0]
			visible.Lend()
			before := l.picture(tracker, b, second, other)
			batch := make([]Spec, n)
			for k := range batch {
				batch[k] = Spec{Backing: b, Offset: uint64(100 * (k / 2 % 3)), Length: 10} // new ones, known ones, duplicates
			}
			batch[i] = fault.spec
			made, err := tracker.Register(batch)
			var element *ElementError
			if made != nil || !errors.Is(err, fault.class) || !errors.As(err, &element) || element.Element != i {
				t.Fatalf("%s at %d: %v, %v", name, i, made, err)
			}
			if after := l.picture(tracker, b, second, other); after != before {
				t.Fatalf("%s at %d changed\n%s to\n%s", name, i, before, after)
			}
			visible.Return()
			tracker.RetireAll()
			l.owes(t, 0, 0)
		}
	}
	other.Drop()
	second.Drop()
	b.Drop()
}

// proves M-4
// field case F-9
func TestBudgetThatEndsAtAnyElementChangesNothing(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 1000)
	batch := make([]Spec, 8)
	for k := range batch {
		batch[k] = Spec{Backing: b, Offset: uint64(10 * k), Length: 10}
	}
	for i := range batch {
		for _, l := range []*ledger{newLedger(int64(i), 1<<20), newLedger(100, int64(10*i+9))} {
			tracker := l.tracker()
			before := l.picture(tracker, b)
			_, err := tracker.Register(batch)
			var element *ElementError
			var exhausted *budgets.Exhausted
			if !errors.As(err, &element) || element.Element != i || !errors.As(err, &exhausted) {
				t.Fatalf("room for %d: %v", i, err)
			}
			if after := l.picture(tracker, b); after != before {
				t.Fatalf("room for %d: changed\n%s to\n%s", i, before, after)
			}
			if made := registered(t, tracker, batch[:i]...); i > 0 && made[0].ID() != 1 {
				t.Fatalf("the failed batch used up IDs: the first is %d", made[0].ID())
			}
			tracker.RetireAll()
			l.owes(t, 0, 0)
		}
	}
	b.Drop()
}

// proves M-4
func TestDescriptorLimitRefusesTheRegionThatIsTooMany(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, netproto.RegionsMax+2)
	l := newLedger(1<<20, 1<<20)
	tracker := l.tracker()
	batch := make([]Spec, netproto.RegionsMax+1)
	for i := range batch {
		batch[i] = Spec{Backing: b, Offset: uint64(i), Length: 1, Permission: netproto.ReadWrite}
	}
	_, err := tracker.Register(batch)
	var element *ElementError
	if !errors.As(err, &element) || element.Element != netproto.RegionsMax || !errors.Is(err, ErrRegionLimit) {
		t.Fatalf("%v", err)
	}
	l.owes(t, 0, 0)
	registered(t, tracker, batch[1:]...)
	registered(t, tracker, batch[5]) // visible already: no new region
	if _, err := tracker.Register(batch[:1]); !errors.Is(err, ErrRegionLimit) {
		t.Fatalf("%v", err)
	}
	if n := len(tracker.Mirror().Regions()); n != netproto.RegionsMax {
		t.Fatalf("%d regions", n)
	}
	if n := tracker.RetireAll(); n != netproto.RegionsMax || tracker.Mirror().Count() != 0 {
		t.Fatalf("%d hidden, %d left", n, tracker.Mirror().Count())
	}
	l.owes(t, 0, 0)
	b.Drop()
}

// proves M-6
// field case F-1
func TestRangeRegisteredAgainHasAnotherIDAndTheOldOneStaysUnknown(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 100)
	l := newLedger(100, 1<<20)
	tracker := l.tracker()
	spec := Spec{Backing: b, Offset: 10, Length: 50, Permission: netproto.ReadWrite}
	seen := map[uint64]bool{}
	for range 100 {
		r := registered(t, tracker, spec)[0]
		if seen[r.ID()] || r.ID() == 0 {
			t.Fatalf("ID %d again", r.ID())
		}
		for old := range seen {
			if _, err := tracker.Admit(old, 0, 1, netproto.RemoteRead); !errors.Is(err, ErrUnknownRegion) {
				t.Fatalf("old ID %d: %v", old, err)
			}
		}
		seen[r.ID()] = true
		admitted, err := tracker.Admit(r.ID(), 0, 50, netproto.RemoteWrite)
		if err != nil || admitted != r {
			t.Fatal(admitted, err)
		}
		unregistered(t, tracker, r.ID(), true)
		if _, err := tracker.Borrow(r.Address(), 1); !errors.Is(err, ErrUncovered) {
			t.Fatalf("visible after unregister: %v", err)
		}
		l.owes(t, 1, 50) // the admitted transfer keeps backing and charges
		admitted.Return()
		l.owes(t, 0, 0)
	}
	b.Drop()
}

func TestRetiredRangeOnLoanAndItsSuccessorEndApart(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 100)
	l := newLedger(100, 1<<20)
	tracker := l.tracker()
	first := registered(t, tracker, Spec{Backing: b, Length: 100})[0]
	first.Lend()
	unregistered(t, tracker, first.ID(), true)
	next := registered(t, tracker, Spec{Backing: b, Length: 100})[0]
	if next == first || next.ID() == first.ID() || first.Lend() {
		t.Fatal("the successor is the old registration")
	}
	l.owes(t, 2, 200)
	unregistered(t, tracker, next.ID(), true)
	l.owes(t, 1, 100)
	first.Return()
	l.owes(t, 0, 0)
	if !slices.Equal(l.ended, []uint64{next.ID(), first.ID()}) {
		t.Fatalf("ended: %v", l.ended)
	}
	if text := panics(t, first.Return); !strings.Contains(text, "without loans") {
		t.Fatal(text)
	}
	b.Drop()
}

// proves M-8
func TestSourceChecksRegionPermissionAndRangeItself(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 100)
	l := newLedger(100, 1<<20)
	tracker := l.tracker()
	batch := make([]Spec, 4)
	for p := range batch {
		batch[p] = Spec{Backing: b, Offset: uint64(10 * p), Length: 10, Permission: netproto.Permission(p)}
	}
	made := registered(t, tracker, batch...)
	for p, r := range made {
		for _, want := range []netproto.Permission{netproto.RemoteRead, netproto.RemoteWrite, netproto.ReadWrite} {
			got, err := tracker.Admit(r.ID(), 0, 10, want)
			if allowed := netproto.Permission(p)&want == want; allowed != (err == nil) || !allowed && !errors.Is(err, ErrPermission) {
				t.Fatalf("%v of a %v region: %v", want, netproto.Permission(p), err)
			}
			if err == nil {
				got.Return()
			}
		}
	}
	for _, c := range []struct {
		id, offset, length uint64
		want               netproto.Permission
		status             netproto.Status
	}{
		{99, 0, 1, netproto.RemoteRead, netproto.StatusUnknownRegion},
		{0, 0, 0, netproto.RemoteRead, netproto.StatusUnknownRegion},
		{made[1].ID(), 0, 1, netproto.RemoteWrite, netproto.StatusPermissionDenied},
		{made[1].ID(), 0, 1, netproto.LocalOnly, netproto.StatusPermissionDenied},
		{made[1].ID(), 99, 99, netproto.RemoteWrite, netproto.StatusPermissionDenied},
		{made[3].ID(), 0, 11, netproto.RemoteWrite, netproto.StatusInvalidRange},
		{made[3].ID(), 10, 1, netproto.RemoteWrite, netproto.StatusInvalidRange},
		{made[3].ID(), 1, math.MaxUint64, netproto.RemoteRead, netproto.StatusInvalidRange},
		{made[3].ID(), math.MaxUint64, 1, netproto.RemoteRead, netproto.StatusInvalidRange},
	} {
		_, err := tracker.Admit(c.id, c.offset, c.length, c.want)
		var answer interface{ Status() netproto.Status }
		if !errors.As(err, &answer) || answer.Status() != c.status {
			t.Fatalf("%+v: %v", c, err)
		}
	}
	empty, err := tracker.Admit(made[3].ID(), 10, 0, netproto.ReadWrite) // checked like any other, moves nothing
	if err != nil {
		t.Fatal(err)
	}
	empty.Return()
	tracker.RetireAll()
	b.Drop()
}

// proves M-6
func TestLoanIsRefusedOnlyAfterTheRegionIsHidden(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 100)
	l := newLedger(100, 1<<20)
	var tracker *Tracker
	hidden := 0
	tracker = NewTracker(l.count, l.bytes, func(r *Registration) {
		if tracker.Mirror().Find(r.ID()) == nil && !r.Lend() {
			hidden++
		}
	})
	made := registered(t, tracker, Spec{Backing: b, Length: 1}, Spec{Backing: b, Length: 2})
	unregistered(t, tracker, made[0].ID(), true)
	tracker.RetireAll()
	if hidden != 2 {
		t.Fatalf("%d of 2 were hidden before they refused loans", hidden)
	}
	b.Drop()
}

// proves M-6
func TestRequestThatFindsARegionJustRetiredIsToldItIsUnknown(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 100)
	tracker := newLedger(100, 1<<20).tracker()
	r := registered(t, tracker, Spec{Backing: b, Length: 100, Permission: netproto.ReadWrite})[0]
	old := tracker.Mirror()
	unregistered(t, tracker, r.ID(), true)
	tracker.mirror.Store(old) // what a request sees that looked just before
	if got, err := tracker.Admit(r.ID(), 0, 1, netproto.RemoteRead); got != nil || !errors.Is(err, ErrUnknownRegion) {
		t.Fatalf("%v, %v", got, err)
	}
	b.Drop()
}

// proves M-8
func TestOnlyExportableRegionsArePublishedInIDOrder(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 100)
	l := newLedger(100, 1<<20)
	tracker := l.tracker()
	profile := netproto.Region{ID: 77, Base: 7, Length: 7, Permission: 1, Flags: netproto.RegionHPTCP, Memory: netproto.MemoryHost, IPCExport: true}
	registered(t, tracker,
		Spec{Backing: b, Offset: 80, Length: 10, Permission: netproto.RemoteRead},
		Spec{Backing: b, Offset: 40, Length: 10},
		Spec{Backing: b, Offset: 10, Length: 10, Permission: netproto.ReadWrite, Profile: profile},
		Spec{Backing: b, Offset: 0, Length: 100, Permission: netproto.RemoteWrite})
	profile.ID, profile.Base, profile.Length, profile.Permission = 3, b.Address()+10, 10, netproto.ReadWrite
	want := []netproto.Region{
		{ID: 1, Base: b.Address() + 80, Length: 10, Permission: netproto.RemoteRead},
		profile,
		{ID: 4, Base: b.Address(), Length: 100, Permission: netproto.RemoteWrite},
	}
	if got := tracker.Mirror().Regions(); !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v", got)
	}
	d := netproto.Descriptor{Regions: tracker.Mirror().Regions()[:1]}
	if err := d.Check(); err != nil {
		t.Fatal(err)
	}
	if r := tracker.Mirror().Find(3); r.Region() != profile || r.Offset() != 10 || r.Length() != 10 {
		t.Fatalf("%+v at %d", r.Region(), r.Offset())
	}
	if n := tracker.Mirror().Count(); n != 4 || len(tracker.Mirror().All()) != 4 {
		t.Fatalf("%d visible", n)
	}
	unregistered(t, tracker, 3, true)
	if got := tracker.Mirror().Regions(); len(got) != 2 || got[1].ID != 4 {
		t.Fatalf("%+v", got)
	}
	tracker.RetireAll()
	b.Drop()
}

// proves M-7
func TestSnapshotStaysAsItWas(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 100)
	l := newLedger(100, 1<<20)
	tracker := l.tracker()
	r := registered(t, tracker, Spec{Backing: b, Offset: 10, Length: 10})[0]
	old := tracker.Mirror()
	registered(t, tracker, Spec{Backing: b, Offset: 0, Length: 100})
	unregistered(t, tracker, r.ID(), true)
	if got, err := old.Cover(b.Address()+10, 10); err != nil || got != r || old.Count() != 1 || old.Find(r.ID()) != r {
		t.Fatalf("%v, %v", got, err)
	}
	if r.Lend() {
		t.Fatal("an old snapshot gives access to a retired registration")
	}
	tracker.RetireAll()
	b.Drop()
}

// proves G-2, M-6
func TestBorrowedRegistrationOutlivesItsUnregistering(t *testing.T) {
	leavesNothing(t)
	b := mapped(t, 4096)
	l := newLedger(100, 1<<20)
	tracker := l.tracker()
	r := registered(t, tracker, Spec{Backing: b, Length: 4096})[0]
	b.Drop()
	loans := make([]*Registration, 5)
	for i := range loans { // submission resolves and retains before any I/O
		var err error
		if loans[i], err = tracker.Borrow(r.Address()+uint64(i), 100); err != nil {
			t.Fatal(err)
		}
	}
	unregistered(t, tracker, r.ID(), true)
	for i, loan := range loans {
		l.owes(t, 1, 4096)
		if loan.Loans() != uint64(len(loans)-i) || !loan.Retired() || loan.References() != 0 {
			t.Fatalf("%d loans, retired %v", loan.Loans(), loan.Retired())
		}
		loan.Backing().Bytes()[i] = 1
		loan.Return()
	}
	l.owes(t, 0, 0)
	if !slices.Equal(l.ended, []uint64{r.ID()}) {
		t.Fatalf("ended: %v", l.ended)
	}
}

// proves M-4, R-5
func TestWhatATransportNeedsIsAttachedBeforeAnybodySeesTheRange(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 100)
	l := newLedger(100, 1<<20)
	tracker := l.tracker()
	old := registered(t, tracker, Spec{Backing: b, Length: 10})[0]
	batch := []Spec{{Backing: b, Length: 10}, {Backing: b, Offset: 10, Length: 10}, {Backing: b, Offset: 10, Length: 10}, {Backing: b, Offset: 20, Length: 10}}
	refusal := errors.New("refused")
	_, err := tracker.RegisterPrepared(batch, func(fresh []*Registration) (int, error) { return 1, refusal })
	var element *ElementError
	if !errors.As(err, &element) || element.Element != 3 || !errors.Is(err, refusal) {
		t.Errorf("the error is %v, want that of element 3", err)
	}
	if tracker.Mirror().Count() != 1 || old.References() != 1 {
		t.Errorf("after a refusal %d ranges are visible, the old one has %d references; want 1 and 1", tracker.Mirror().Count(), old.References())
	}
	made, err := tracker.RegisterPrepared(batch, func(fresh []*Registration) (int, error) {
		if len(fresh) != 2 || tracker.Mirror().Count() != 1 {
			t.Errorf("%d new ranges while %d are visible, want 2 and 1", len(fresh), tracker.Mirror().Count())
		}
		for i, r := range fresh {
			r.Attach(i)
		}
		return 0, nil
	})
	if err != nil || made[0] != old || old.Attachment() != nil || made[1].Attachment() != 0 || made[3].Attachment() != 1 {
		t.Errorf("attached %v and %v, %v", made[1].Attachment(), made[3].Attachment(), err)
	}
	unregistered(t, tracker, old.ID(), false)
	for _, r := range []*Registration{old, made[1], made[3]} {
		unregistered(t, tracker, r.ID(), true)
	}
	b.Drop()
}
