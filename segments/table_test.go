package segments

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/orbitte/orbitte/netproto"
)

// shown is a registration as a mirror shows it, without memory behind it.
func shown(id uint64, b *Backing, extent Range) *Registration {
	return &Registration{backing: b, region: netproto.Region{ID: id, Base: extent.Start, Length: extent.Length, Permission: netproto.ReadWrite}}
}

// objects are stand-ins for memory objects: each owns tableStride addresses.
const tableStride = 4096

func extents(list []*Registration) (all []Range) {
	for _, r := range list {
		all = append(all, r.Range())
	}
	return all
}

// check compares a mirror with the list of what it should show, by the definitions.
func (m *Mirror) check(t *testing.T, want []*Registration, objects []*Backing, random *rand.Rand) {
	t.Helper()
	sorted := slices.SortedFunc(slices.Values(want), byAddress.compare)
	ranges := extents(sorted)
	if m.Count() != len(want) || !slices.Equal(m.All(), want) || !slices.Equal(m.addresses.all(), sorted) {
		t.Fatalf("%d shown, wanted %d, or in another order", m.Count(), len(want))
	}
	for range 20 {
		asked := Range{random.Uint64N(uint64(len(objects)) * tableStride), random.Uint64N(300)}
		got, _ := m.Cover(asked.Start, asked.Length)
		if i := firstCovering(ranges, asked); i < 0 && got != nil || i >= 0 && got != sorted[i] {
			t.Fatalf("%v is covered by %v, wanted number %d", asked, got, i)
		}
		owner := int(asked.Start / tableStride)
		extent := Range{asked.Start, 1 + min(asked.Length, (uint64(owner)+1)*tableStride-asked.Start-1)}
		same := slices.Index(ranges, extent)
		if got := m.exact(extent); same < 0 && got != nil || same >= 0 && got != sorted[same] {
			t.Fatalf("exactly %v: %v", extent, got)
		}
		if random.IntN(2) == 0 { // over its own and others
			extent.Length = 1 + random.Uint64N(2*tableStride)
		}
		foreign := objects[random.IntN(len(objects))]
		meets := slices.ContainsFunc(sorted, func(r *Registration) bool { return r.backing != foreign && r.Range().Overlaps(extent) })
		if got := m.alias(extent, foreign); (got != nil) != meets || got != nil && (got.backing == foreign || !got.Range().Overlaps(extent)) {
			t.Fatalf("%v of object %d meets %v, wanted %v", extent, slices.Index(objects, foreign), got, meets)
		}
	}
	for _, r := range want {
		if m.Find(r.ID()) != r || m.exact(r.Range()) != r {
			t.Fatalf("%v is not found", r.Range())
		}
	}
	if m.Find(0) != nil || len(want) > 0 && m.Find(want[len(want)-1].ID()+1) != nil {
		t.Fatal("an ID that is not shown is found")
	}
	m.addresses.checkBlocks(t)
	m.ids.checkBlocks(t)
}

// checkBlocks holds a table against what makes its searches O(log n) and its changes O(√n): blocks are bounded,
// none is empty, and they are few.
func (x *table) checkBlocks(t *testing.T) {
	t.Helper()
	for _, b := range x.blocks {
		if len(b.members) == 0 || len(b.members) > blockMost || len(b.maxima) != len(b.members) {
			t.Fatalf("a block of %d members and %d keys", len(b.members), len(b.maxima))
		}
	}
	if most := x.count/(blockMost/8) + 1; len(x.blocks) > most || len(x.bounds) != len(x.blocks) {
		t.Fatalf("%d blocks, %d bounds for %d members, wanted at most %d", len(x.blocks), len(x.bounds), x.count, most)
	}
}

// proves M-3, M-7
func TestMirrorAgreesWithTheDefinitionsAtEverySize(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("SEED=%d", seed) // replay: set seed to the printed number
	random := rand.New(rand.NewPCG(seed, 3))
	objects := make([]*Backing, 5)
	for i := range objects {
		objects[i] = new(Backing)
	}
	m, want, id := new(Mirror), []*Registration(nil), uint64(0)
	add := func(count int) {
		var fresh []*Registration
		for range count {
			i := random.IntN(len(objects))
			start := random.Uint64N(tableStride - 1)
			longest := min(200, tableStride-start-1)
			if random.IntN(50) == 0 { // one that reaches over many later ones
				longest = tableStride - start - 1
			}
			extent := Range{uint64(i)*tableStride + start, 1 + random.Uint64N(longest+1)}
			if extent.End() > uint64(i+1)*tableStride || m.exact(extent) != nil || slices.Contains(extents(fresh), extent) {
				continue
			}
			id += 1 + random.Uint64N(3)
			fresh = append(fresh, shown(id, objects[i], extent))
		}
		m, want = m.with(fresh), append(slices.Clone(want), fresh...)
	}
	var past *Mirror
	var pastWant []*Registration
	for step := range 200 {
		switch {
		case step%50 == 0:
			add(1500)
		case random.IntN(3) > 0:
			add(1 + random.IntN(4))
		}
		for range random.IntN(50) {
			if len(want) > 0 {
				i := random.IntN(len(want))
				m, want = m.without(want[i]), slices.Delete(slices.Clone(want), i, i+1)
			}
		}
		m.check(t, want, objects, random)
		if step%50 == 20 {
			past, pastWant = m, want
		}
		if past != nil {
			past.check(t, pastWant, objects, random) // a snapshot never changes
		}
	}
	add(1000)
	for len(want) > 0 {
		i := random.IntN(len(want))
		m, want = m.without(want[i]), slices.Delete(want, i, i+1)
		m.addresses.checkBlocks(t)
		m.ids.checkBlocks(t)
	}
	m.check(t, nil, objects, random)
}

// What is copied is counted in bytes, not in time: registering one range by one beside n others must not be n².
func TestRegistrationBesideManyCopiesLittle(t *testing.T) {
	bytes := func(n int) float64 {
		b, tracker, _ := many(t, n)
		const times = 50
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range times {
			made, err := tracker.Register([]Spec{{Backing: b, Offset: 1, Length: 7}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tracker.Unregister(made[0].ID()); err != nil {
				t.Fatal(err)
			}
		}
		runtime.ReadMemStats(&after)
		tracker.RetireAll()
		b.Drop()
		return float64(after.TotalAlloc-before.TotalAlloc) / times
	}
	few, most := bytes(64), bytes(netproto.RegionsMax-1)
	t.Logf("one registration and its end allocate %.0f bytes beside 64, %.0f beside %d", few, most, netproto.RegionsMax-1)
	if most > 4*few {
		t.Fatalf("beside 64 times as many registrations, one allocates %.0f bytes instead of %.0f", most, few)
	}
}

func adoptedBytes(t *testing.T, bytes []byte) *Backing {
	t.Helper()
	b, err := AdoptSlice(bytes)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A batch is compared pair by pair only if it will fail: what it costs shows in comparisons with other objects.
func TestMixedBatchesAreFoundWithoutPairs(t *testing.T) {
	leavesNothing(t)
	seed := seeded(t)
	random := rand.New(rand.NewPCG(seed, 4))
	shared := make([]byte, 4000)
	one, two := adoptedBytes(t, shared[:1001]), adoptedBytes(t, shared[1000:])
	for last, want := range map[uint64]bool{1000: false, 1001: true} { // the second one's first byte is the first one's last
		if got := mixes([]Spec{{Backing: two, Length: 5}, {Backing: one, Offset: 10, Length: last - 10}}); got != want {
			t.Fatalf("ranges that share byte 1000 up to %d mix: %v", last, got)
		}
	}
	one.Drop()
	two.Drop()
	for range 300 {
		// Objects that are neighbours or share bytes: windows of one slice.
		var objects []*Backing
		for i := range 1 + random.IntN(4) {
			start, length := i*1000, 1000+random.IntN(2)*random.IntN(300)
			length = min(length, len(shared)-start)
			objects = append(objects, adoptedBytes(t, shared[start:start+length]))
		}
		batch := make([]Spec, 1+random.IntN(12))
		for i := range batch {
			b := objects[random.IntN(len(objects))]
			offset := random.Uint64N(b.Length())
			batch[i] = Spec{Backing: b, Offset: offset, Length: random.Uint64N(300), Permission: netproto.ReadWrite}
		}
		want := false
		for i := range batch {
			for j := range i {
				a, b := &batch[i], &batch[j]
				want = want || a.check() == nil && b.check() == nil && a.Backing != b.Backing && a.extent().Overlaps(b.extent())
			}
		}
		if got := mixes(batch); got != want {
			t.Fatalf("batch %+v mixes: %v, wanted %v", batch, got, want)
		}
		for _, b := range objects {
			b.Drop()
		}
	}
}
