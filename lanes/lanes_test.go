package lanes

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

func panics(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s does not panic", what)
		}
	}()
	f()
}

// Buffers are at least as long as asked, aligned to pages, warm ones come first, and what is lent is
// counted exactly.
//
// proves L-5, L-6
func TestArenaLendsAndCounts(t *testing.T) {
	count, size := segments.Mappings()
	var a Arena
	for _, n := range []uint64{0, 1, 4095, 4096, 4097, 65536, 65537, 1 << 20} {
		b, err := a.Get(n)
		if err != nil {
			t.Fatal(err)
		}
		if !b.Held() || uint64(len(b.Bytes(n))) != n || uint64(cap(b.Bytes(n))) != n {
			t.Errorf("%d bytes: len %d, cap %d", n, len(b.Bytes(n)), cap(b.Bytes(n)))
		}
		want := max(uint64(4096), 1<<classOf(n))
		if buffers, lent, _ := a.Lent(); buffers != 1 || lent != want || lent < n {
			t.Errorf("%d bytes: lent %d buffers of %d bytes, want %d", n, buffers, lent, want)
		}
		first := &b.Bytes(max(n, 1))[0]
		a.Put(&b)
		if b.Held() {
			t.Error("a buffer that was put back is held")
		}
		again, err := a.Get(n)
		if err != nil || &again.Bytes(max(n, 1))[0] != first {
			t.Errorf("%d bytes: the warm buffer was not lent again (%v)", n, err)
		}
		a.Put(&again)
		panics(t, "putting back twice", func() { a.Put(&again) })
	}
	if n := testing.AllocsPerRun(100, func() {
		b, _ := a.Get(60_000)
		slot, _ := a.Slot()
		a.PutSlot(slot)
		a.Put(&b)
	}); n != 0 {
		t.Errorf("%v allocations per loan", n)
	}
	a.Close()
	if c, s := segments.Mappings(); c != count || s != size {
		t.Errorf("%d mappings of %d bytes are left", c-count, s-size)
	}
}

// What lies idle is bounded, whatever mix of sizes was in use; what is lent stays with its borrower, also
// when the arena is closed.
//
// proves U-1
func TestArenaBoundsWhatLiesIdle(t *testing.T) {
	count, _ := segments.Mappings()
	var a Arena
	random := rand.New(rand.NewPCG(7, 7))
	var lent []Buffer
	for range 300 {
		if len(lent) > 12 || len(lent) > 0 && random.IntN(2) == 0 {
			i := random.IntN(len(lent))
			a.Put(&lent[i])
			lent = slices.Delete(lent, i, i+1)
		} else {
			b, err := a.Get(uint64(1) << (14 + random.IntN(12)))
			if err != nil {
				t.Fatal(err)
			}
			lent = append(lent, b)
		}
		if a.idleBytes > idleBufferBytesMax {
			t.Fatalf("%d bytes lie idle", a.idleBytes)
		}
		var idle uint64
		for class, list := range a.idle {
			idle += uint64(len(list)) << class
		}
		if buffers, _, _ := a.Lent(); idle != a.idleBytes || buffers != len(lent) {
			t.Fatalf("idle %d, counted %d; lent %d, counted %d", idle, a.idleBytes, len(lent), buffers)
		}
	}
	a.Close()
	if c, _ := segments.Mappings(); int(c-count) != len(lent) {
		t.Errorf("%d mappings are left for %d loans", c-count, len(lent))
	}
	for i := range lent {
		lent[i].Bytes(1)[0] = 1 // still mapped
		a.Put(&lent[i])
	}
	a.Close()
	if c, _ := segments.Mappings(); c != count {
		t.Errorf("%d mappings are left", c-count)
	}
}

// Idle small buffers make room for a large one, so that it stays warm from one use to the next.
func TestArenaKeepsALargeBufferWarm(t *testing.T) {
	count, _ := segments.Mappings()
	var a Arena
	small := make([]Buffer, idleBufferBytesMax>>20)
	for i := range small {
		var err error
		if small[i], err = a.Get(1 << 20); err != nil {
			t.Fatal(err)
		}
	}
	for i := range small {
		a.Put(&small[i])
	}
	large, err := a.Get(32 << 20)
	if err != nil {
		t.Fatal(err)
	}
	a.Put(&large)
	if kept := len(a.idle[classOf(32<<20)]); kept != 1 || a.idleBytes > idleBufferBytesMax {
		t.Errorf("%d large buffers are kept, %d bytes lie idle", kept, a.idleBytes)
	}
	a.Close()
	if c, _ := segments.Mappings(); c != count {
		t.Errorf("%d mappings are left", c-count)
	}
}

// Slots do not overlap and are all given back.
func TestArenaSlotsAreApart(t *testing.T) {
	count, _ := segments.Mappings()
	var a Arena
	var slots [][]byte
	for i := range 600 { // more than one slab
		s, err := a.Slot()
		if err != nil || len(s) != slotBytes || cap(s) != slotBytes {
			t.Fatal(len(s), cap(s), err)
		}
		for j := range s {
			s[j] = byte(i)
		}
		slots = append(slots, s)
	}
	for i, s := range slots {
		if slices.Min(s) != byte(i) || slices.Max(s) != byte(i) {
			t.Fatalf("slot %d was overwritten", i)
		}
	}
	a.Close()
	if c, _ := segments.Mappings(); c == count {
		t.Error("slots were unmapped under their borrowers")
	}
	for _, s := range slots {
		a.PutSlot(s)
	}
	if _, _, n := a.Lent(); n != 0 {
		t.Errorf("%d slots are out", n)
	}
	a.Close()
	if c, _ := segments.Mappings(); c != count {
		t.Errorf("%d mappings are left", c-count)
	}
}

// A fenced gate lets nobody in, is quiet exactly when the last one has left, and stays so.
//
// proves G-6
func TestGateFencesAndDrains(t *testing.T) {
	quiet := func(g *Gate) bool {
		select {
		case <-g.Quiet():
			return true
		default:
			return false
		}
	}
	g := NewGate()
	g.Fence()
	g.Fence()
	if !quiet(g) || g.Enter() || !g.Fenced() {
		t.Error("an empty fenced gate is not quiet, or lets somebody in")
	}
	panics(t, "leaving an empty fenced gate", g.Leave)
	h := NewGate()
	for range 2 {
		if !h.Enter() {
			t.Error("an open gate refuses")
		}
	}
	if h.Inside() != 2 {
		t.Error("an open gate does not count")
	}
	h.Leave()
	h.Leave()
	if quiet(h) || h.Fenced() {
		t.Error("an open gate is quiet")
	}
	panics(t, "leaving an empty gate", h.Leave)
	k := NewGate()
	k.Enter()
	k.Fence()
	if quiet(k) || k.Enter() || k.Inside() != 1 {
		t.Error("quiet under somebody inside, or not fenced")
	}
	k.Leave()
	if !quiet(k) {
		t.Error("not quiet after the last one left")
	}
	if n := testing.AllocsPerRun(100, func() {
		if h := h; h.Enter() {
			h.Leave()
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Many enter and leave while the gate is fenced: whoever got in is waited for.
//
// proves G-6
func TestGateUnderConcurrentUse(t *testing.T) {
	for range 200 {
		g := NewGate()
		var inside atomic.Int64
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for g.Enter() {
					inside.Add(1)
					inside.Add(-1)
					g.Leave()
				}
			})
		}
		g.Fence()
		<-g.Quiet()
		if n := inside.Load(); n != 0 {
			t.Fatalf("%d inside a quiet gate", n)
		}
		all.Wait()
		if g.Inside() != 0 {
			t.Fatal(g.Inside())
		}
	}
}

// At most one note of a kind in a second, with the number of those it stands for; a full ring drops and
// counts; kinds do not hide each other.
//
// field case F-67
func TestJournalIsRateLimitedAndBounded(t *testing.T) {
	j := &Journal{Signal: make(chan struct{}, 1)}
	now := reactor.Instant(time.Hour)
	for i := range 1000 {
		j.Add(now.After(time.Duration(i)*10*time.Millisecond), Note{Kind: NoteProtocol, Where: "peer"})
	}
	j.Add(now, Note{Kind: NoteRetained})
	var total uint64
	lines := 0
	for {
		n, ok := j.Next()
		if !ok {
			break
		}
		if n.Kind == NoteProtocol {
			lines++
			total += n.Count
		}
	}
	if lines != 10 || total != 901 { // the last second's rest is not written yet
		t.Errorf("%d lines for %d notes in 10 s", lines, total)
	}
	if len(j.Signal) != 1 {
		t.Error("the reader was not told")
	}
	full := &Journal{} // nobody is told, nobody reads
	for i := range journalNotes + 10 {
		full.Add(now.After(time.Duration(i)*noteInterval), Note{Kind: NoteAcceptExhausted})
	}
	if full.Dropped() != 10 {
		t.Errorf("%d notes are counted as dropped", full.Dropped())
	}
	read := 0
	for _, ok := full.Next(); ok; _, ok = full.Next() {
		read++
	}
	full.Add(now.After(1000*noteInterval), Note{Kind: NoteAcceptExhausted})
	if n, ok := full.Next(); read != journalNotes || !ok || n.Count != 11 {
		t.Errorf("%d notes were read, the next one stands for %d", read, n.Count)
	}
	if n := testing.AllocsPerRun(100, func() { j.Add(now, Note{Kind: NoteProtocol}) }); n != 0 {
		t.Errorf("%v allocations per note", n)
	}
}

// One writer and one reader lose and double nothing but what is counted as dropped.
func TestJournalBetweenTwoThreads(t *testing.T) {
	j := &Journal{Signal: make(chan struct{}, 1)}
	const notes = 20_000
	var all sync.WaitGroup
	all.Go(func() {
		for i := range notes {
			j.Add(reactor.Instant(i+1).After(time.Duration(i)*noteInterval), Note{Kind: NoteAcceptResumed, Lane: i})
		}
		close(j.Signal)
	})
	last, read := -1, 0
	for open := true; open; {
		_, open = <-j.Signal
		for n, ok := j.Next(); ok; n, ok = j.Next() {
			if n.Lane <= last {
				t.Fatalf("note %d after %d", n.Lane, last)
			}
			last = n.Lane
			read++
		}
	}
	all.Wait()
	if read+int(j.Dropped()) != notes {
		t.Errorf("%d read and %d dropped of %d", read, j.Dropped(), notes)
	}
}

// Lanes go round the nodes on which the process may run, and stay within the CPUs it may use. Without a
// choice of nodes they are not tied; pinned ones get a CPU of their own as far as these go.
//
// proves L-5
func TestPlanPlacesLanes(t *testing.T) {
	two := [][]int{{0, 1, 2, 3}, {4, 5, 6, 7}}
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	for _, k := range []struct {
		name    string
		lanes   int
		allowed []int
		nodes   [][]int
		pinned  bool
		want    []Place
	}{
		{"no node known", 2, []int{0, 1}, nil, false, []Place{{-1, nil}, {-1, nil}}},
		{"one node", 2, []int{0, 1}, [][]int{{0, 1}}, false, []Place{{-1, nil}, {-1, nil}}},
		{"one node, pinned", 3, []int{0, 1}, [][]int{{0, 1}}, true, []Place{{-1, []int{0}}, {-1, []int{1}}, {-1, []int{0}}}},
		{"no node known, pinned", 1, []int{5}, nil, true, []Place{{-1, []int{5}}}},
		{"two nodes", 3, all, two, false, []Place{{0, two[0]}, {1, two[1]}, {0, two[0]}}},
		{"two nodes, pinned", 4, all, two, true, []Place{{0, []int{0}}, {1, []int{4}}, {0, []int{1}}, {1, []int{5}}}},
		{"restricted within both", 2, []int{2, 3, 7}, two, false, []Place{{0, []int{2, 3}}, {1, []int{7}}}},
		{"restricted to one of two", 2, []int{5, 6}, two, false, []Place{{1, []int{5, 6}}, {1, []int{5, 6}}}},
		{"restricted to one of two, pinned", 3, []int{5, 6}, two, true, []Place{{1, []int{5}}, {1, []int{6}}, {1, []int{5}}}},
		{"nodes that name other CPUs", 1, []int{9}, two, false, []Place{{-1, nil}}},
		{"a node without CPUs", 2, []int{0, 1}, [][]int{{0, 1}, {}}, false, []Place{{0, []int{0, 1}}, {0, []int{0, 1}}}},
		{"nothing known", 1, nil, nil, true, []Place{{-1, nil}}},
		{"no lane", 0, all, two, false, []Place{}},
	} {
		if got := Plan(k.lanes, k.allowed, k.nodes, k.pinned); !reflect.DeepEqual(got, k.want) {
			t.Errorf("%s: %v, want %v", k.name, got, k.want)
		}
	}
}

func TestParseCPUList(t *testing.T) {
	for text, want := range map[string][]int{
		"":              nil,
		"0":             {0},
		"0-3":           {0, 1, 2, 3},
		"0-1,4,6-7":     {0, 1, 4, 6, 7},
		" 2 , 5-6 \n":   {2, 5, 6},
		"3-1":           nil,
		"x,1,2-y,-3,4-": {1},
		"1,,2":          {1, 2},
	} {
		if got := ParseCPUList(text); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	if n := len(ParseCPUList("0-4000000000")); n != 4096 {
		t.Errorf("a range without end gives %d CPUs", n)
	}
}

// Who waits for a lease looks soon at first, then more rarely, and once more at its deadline.
//
// proves M-9
func TestBackoffGrowsUpToItsBoundAndStopsAtTheDeadline(t *testing.T) {
	var b Backoff
	now, deadline := reactor.Instant(time.Hour), reactor.Instant(time.Hour).After(20*time.Millisecond)
	var waits []time.Duration
	for now < deadline {
		next := b.Next(now, deadline)
		waits = append(waits, time.Duration(next-now))
		now = next
	}
	want := []time.Duration{50, 100, 200, 400, 800, 1600, 1600}
	for i, w := range want {
		if waits[i] != w*time.Microsecond {
			t.Errorf("wait %d is %v, want %v", i, waits[i], w*time.Microsecond)
		}
	}
	if now != deadline || len(waits) > 20 {
		t.Errorf("%d looks until %v, the deadline is %v", len(waits), now, deadline)
	}
}

// The words that appear in reports are all named, unknown values included, and a fault says what is known.
func TestEveryWordHasAName(t *testing.T) {
	var words []string
	for _, d := range []Direction{Read, Write, 9} {
		words = append(words, d.String())
	}
	for e := EffectNone; e <= EffectUnknown+1; e++ {
		words = append(words, e.String())
	}
	for c := Cause(0); c <= Closed+1; c++ {
		words = append(words, c.String())
	}
	for i, w := range words {
		if w == "" || slices.Contains(words[:i], w) {
			t.Errorf("word %d is %q", i, w)
		}
	}
	cause := errors.New("reset")
	f := &Fault{Cause: Refused, Stage: "reply", Status: netproto.StatusUnknownRegion, Err: cause}
	for _, part := range []string{"refused", "unknown region", "reply", "reset"} {
		if !strings.Contains(f.Error(), part) {
			t.Errorf("%q does not say %q", f.Error(), part)
		}
	}
	if !errors.Is(f, cause) {
		t.Error("the underlying error is hidden")
	}
	if text := (&Fault{Cause: Deadline}).Error(); text != "deadline passed" {
		t.Error(text)
	}
}
