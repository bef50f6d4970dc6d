package segments

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/netproto"
)

// entry is one registration as the naive model knows it.
type entry struct {
	real       *Registration
	backing    *Backing
	extent     Range
	permission netproto.Permission
	references int
	loans      int
}

func (e *entry) over() bool { return e.references == 0 && e.loans == 0 }

// model holds a tracker against plain lists: no snapshots, no state words, no index.
type model struct {
	l        *ledger
	tracker  *Tracker
	backings []*Backing
	entries  []*entry // every registration that has not ended; index order is ID order
	ended    []uint64
	lastID   uint64
	holders  []int64 // of the objects, when they were released
}

const (
	modelCount = 6
	modelBytes = 60
)

// proves M-3, M-4, M-5, M-6, M-7, M-8
func TestTrackerAgreesWithANaiveModel(t *testing.T) {
	leavesNothing(t)
	seeded(t)
	whole := t
	rapid.Check(t, func(t *rapid.T) {
		b, far := adopted(whole, 32), adopted(whole, 16)
		m := &model{l: newLedger(modelCount, modelBytes), backings: []*Backing{b, alias(whole, b, 8, 16), far}}
		m.tracker = m.l.tracker()
		defer m.release()
		t.Repeat(map[string]func(*rapid.T){
			"register":   m.register,
			"unregister": m.unregister,
			"borrow":     m.borrow,
			"admit":      m.admit,
			"return":     m.giveBack,
			"retireAll":  m.retireAll,
			"":           m.compare,
		})
		m.release()
		m.settled(t)
	})
}

func (m *model) visible() (all []*entry) {
	for _, e := range m.entries {
		if e.references > 0 {
			all = append(all, e)
		}
	}
	return all
}

// expect plays the batch element by element on a copy of the lists.
func (m *model) expect(batch []Spec) (fresh []*entry, again []*entry, refused int, class error) {
	count, bytes := 0, 0
	for _, e := range m.entries {
		count, bytes = count+1, bytes+int(e.extent.Length)
	}
	for i, s := range batch {
		if s.Length == 0 || s.Offset+s.Length > s.Backing.Length() {
			return nil, nil, i, ErrRange
		}
		extent := Range{s.Backing.Address() + s.Offset, s.Length}
		same := func(e *entry) bool { return e.backing == s.Backing && e.extent == extent }
		foreign := func(e *entry) bool {
			return e.backing != s.Backing && e.extent.Start < extent.End() && extent.Start < e.extent.End()
		}
		if slices.ContainsFunc(fresh, same) || slices.ContainsFunc(again, same) {
			continue
		}
		if i := slices.IndexFunc(m.visible(), same); i >= 0 {
			again = append(again, m.visible()[i])
			continue
		}
		if slices.ContainsFunc(m.entries, foreign) || slices.ContainsFunc(fresh, foreign) {
			return nil, nil, i, ErrForeignAlias
		}
		count, bytes = count+1, bytes+int(s.Length)
		if count > modelCount || bytes > modelBytes {
			return nil, nil, i, budgets.ErrExhausted
		}
		fresh = append(fresh, &entry{backing: s.Backing, extent: extent, permission: s.Permission, references: 1})
	}
	return fresh, again, -1, nil
}

func (m *model) register(t *rapid.T) {
	batch := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Spec {
		return Spec{
			Backing:    rapid.SampledFrom(m.backings).Draw(t, "backing"),
			Offset:     rapid.Uint64Range(0, 5).Draw(t, "offset") * 4,
			Length:     rapid.SampledFrom([]uint64{4, 4, 8, 8, 16, 0}).Draw(t, "length"),
			Permission: netproto.Permission(rapid.IntRange(0, 3).Draw(t, "permission")),
		}
	}), 0, 4).Draw(t, "batch")
	fresh, again, refused, class := m.expect(batch)
	before := m.l.picture(m.tracker, m.backings...)
	made, err := m.tracker.Register(batch)
	if refused >= 0 {
		var element *ElementError
		if !errors.Is(err, class) || !errors.As(err, &element) || element.Element != refused || m.l.picture(m.tracker, m.backings...) != before {
			t.Fatalf("want %v at element %d, got %v", class, refused, err)
		}
		return
	}
	if err != nil || len(made) != len(batch) {
		t.Fatalf("%d answers, %v", len(made), err)
	}
	for _, e := range again {
		e.references++
	}
	for _, e := range fresh {
		m.lastID++
		e.real = m.tracker.Mirror().Find(m.lastID)
		m.entries = append(m.entries, e)
	}
	for i, r := range made {
		if r.Range() != batch[i].extent() || r.Backing() != batch[i].Backing || m.tracker.Mirror().Find(r.ID()) != r {
			t.Fatalf("element %d is answered with %v", i, r.Range())
		}
	}
}

func (m *model) unregister(t *rapid.T) {
	id := rapid.Uint64Range(0, m.lastID+1).Draw(t, "id")
	i := slices.IndexFunc(m.entries, func(e *entry) bool { return e.real.ID() == id && e.references > 0 })
	last, err := m.tracker.Unregister(id)
	if i < 0 {
		if !errors.Is(err, ErrUnknownRegion) {
			t.Fatalf("unknown %d: %v", id, err)
		}
		return
	}
	m.entries[i].references--
	if err != nil || last != (m.entries[i].references == 0) {
		t.Fatalf("unregister %d: last %v, %v", id, last, err)
	}
	m.sweep()
}

func (m *model) borrow(t *rapid.T) {
	asked := Range{m.backings[0].Address() + rapid.Uint64Range(0, 40).Draw(t, "offset"), rapid.Uint64Range(0, 20).Draw(t, "length")}
	var extents []Range
	for _, e := range m.visible() {
		extents = append(extents, e.extent)
	}
	got, err := m.tracker.Borrow(asked.Start, asked.Length)
	want := firstCovering(extents, asked)
	if want < 0 {
		if !errors.Is(err, ErrUncovered) {
			t.Fatalf("%v: %v", asked, err)
		}
		return
	}
	if e := m.visible()[want]; err != nil || got != e.real {
		t.Fatalf("%v: %v, %v", asked, got, err)
	} else {
		e.loans++
	}
}

func (m *model) admit(t *rapid.T) {
	id, want := rapid.Uint64Range(0, m.lastID+1).Draw(t, "id"), netproto.Permission(rapid.IntRange(1, 3).Draw(t, "want"))
	offset, length := rapid.Uint64Range(0, 18).Draw(t, "offset"), rapid.Uint64Range(0, 18).Draw(t, "length")
	got, err := m.tracker.Admit(id, offset, length, want)
	i := slices.IndexFunc(m.entries, func(e *entry) bool { return e.real.ID() == id && e.references > 0 })
	var class error
	switch {
	case i < 0:
		class = ErrUnknownRegion
	case m.entries[i].permission&want != want:
		class = ErrPermission
	case offset+length > m.entries[i].extent.Length:
		class = ErrRange
	default:
		m.entries[i].loans++
		if err != nil || got != m.entries[i].real {
			t.Fatalf("%v, %v", got, err)
		}
		return
	}
	if !errors.Is(err, class) || got != nil {
		t.Fatalf("want %v, got %v", class, err)
	}
}

func (m *model) giveBack(t *rapid.T) {
	var out []*entry
	for _, e := range m.entries {
		if e.loans > 0 {
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		t.Skip("no loan out")
	}
	e := rapid.SampledFrom(out).Draw(t, "loan")
	e.loans--
	e.real.Return()
	m.sweep()
}

func (m *model) retireAll(t *rapid.T) {
	if rapid.IntRange(0, 9).Draw(t, "rarely") != 0 {
		t.Skip("not now")
	}
	if n := m.tracker.RetireAll(); n != len(m.visible()) {
		t.Fatalf("%d hidden, want %d", n, len(m.visible()))
	}
	for _, e := range m.entries {
		e.references = 0
	}
	m.sweep()
}

// sweep moves what is over to the list of what has ended.
func (m *model) sweep() {
	m.entries = slices.DeleteFunc(m.entries, func(e *entry) bool {
		if e.over() {
			m.ended = append(m.ended, e.real.ID())
		}
		return e.over()
	})
}

func (m *model) compare(t *rapid.T) {
	bytes, retained := uint64(0), 0
	holders := map[*Backing]int64{}
	for _, e := range m.entries {
		bytes += e.extent.Length
		holders[e.backing]++
		if e.references == 0 {
			retained++
		}
		if r := e.real; r.References() != int64(e.references) || r.Loans() != uint64(e.loans) || r.Retired() != (e.references == 0) || r.Permission() != e.permission {
			t.Fatalf("registration %d: %d references, %d loans, want %+v", r.ID(), r.References(), r.Loans(), e)
		}
	}
	if m.l.count.Used() != int64(len(m.entries)) || m.l.bytes.Used() != int64(bytes) {
		t.Fatalf("charged %d, %d; want %d, %d", m.l.count.Used(), m.l.bytes.Used(), len(m.entries), bytes)
	}
	for i, b := range m.backings {
		if b.Holders() != holders[b]+1 {
			t.Fatalf("object %d has %d holders, want %d", i, b.Holders(), holders[b]+1)
		}
	}
	m.compareMirror(t)
	if kept := m.tracker.Retained(); len(kept) != retained {
		t.Fatalf("%d retained, want %d", len(kept), retained)
	}
	slices.Sort(m.ended)
	ended := slices.Sorted(slices.Values(m.l.ended))
	if !slices.Equal(ended, m.ended) {
		t.Fatalf("ended %v, want %v", ended, m.ended)
	}
}

func (m *model) compareMirror(t *rapid.T) {
	var ids, exported []uint64
	for _, e := range m.visible() {
		ids = append(ids, e.real.ID())
		if e.permission != netproto.LocalOnly {
			exported = append(exported, e.real.ID())
		}
	}
	var gotIDs, gotExported []uint64
	for _, r := range m.tracker.Mirror().All() {
		gotIDs = append(gotIDs, r.ID())
	}
	for _, r := range m.tracker.Mirror().Regions() {
		gotExported = append(gotExported, r.ID)
	}
	if !slices.Equal(ids, gotIDs) || !slices.Equal(exported, gotExported) || m.tracker.Mirror().Count() != len(ids) {
		t.Fatalf("visible %v exported %v, want %v and %v", gotIDs, gotExported, ids, exported)
	}
}

// release ends everything, also after a failure; a second call does nothing.
func (m *model) release() {
	m.tracker.RetireAll()
	for _, e := range m.entries {
		for ; e.loans > 0; e.loans-- {
			e.real.Return()
		}
	}
	for _, b := range m.backings {
		if m.holders = append(m.holders, b.Holders()); b.Holders() > 0 {
			b.Drop()
		}
	}
}

// settled checks what release found.
func (m *model) settled(t *rapid.T) {
	if m.l.count.Used() != 0 || m.l.bytes.Used() != 0 {
		t.Fatalf("owed at the end: %d, %d", m.l.count.Used(), m.l.bytes.Used())
	}
	if !slices.Equal(m.holders, []int64{1, 1, 1}) {
		t.Fatalf("holders at the end: %v, want one each", m.holders)
	}
}
