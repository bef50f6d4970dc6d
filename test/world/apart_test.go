package world

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// step is a memory object of zeros that some ops may write, and what stands in it a step later.
func step(after string, ops ...*op) *memory {
	m := &memory{life: &life{run: &run{counts: map[string]int{}}}, data: []byte(after), shadow: make([]byte, len(after))}
	for _, o := range ops {
		o.to, o.from = m, &memory{}
		o.local, o.remote = &memory{life: &life{}}, &memory{life: m.life}
		o.length, o.write = len(o.legal[0]), true
	}
	m.targets = ops
	return m
}

// written is an op over HP-TCP that brings text to a place.
func written(at int, text string) *op {
	return &op{toAt: at, legal: [][]byte{[]byte(text)}, direct: true, fast: true}
}

// A change is held against an op exactly when the others cannot have made it: neither one of them, nor several that covered
// each other in one step (seed 5496: two WRITEs from the same bytes to the same place, and what came over both).
func TestAChangeIsCertainExactlyWhenTheOthersDoNotExplainIt(t *testing.T) {
	for what, c := range map[string]struct {
		after   string
		ops     []*op
		certain []bool
	}{
		"one, and one elsewhere":                    {"ab..cd", []*op{written(0, "ab"), written(4, "cd")}, []bool{true, true}},
		"two alike":                                 {"ab", []*op{written(0, "ab"), written(0, "ab")}, []bool{false, false}},
		"a part of the other":                       {"abc", []*op{written(0, "ab"), written(0, "abc")}, []bool{false, true}},
		"another one might have brought a half":     {"abc", []*op{written(0, "abc"), written(0, "ab")}, []bool{true, false}},
		"two halves":                                {"abcd", []*op{written(0, "abcd"), written(0, "ab"), written(2, "cd")}, []bool{false, false, false}},
		"the other is covered by a third":           {"aXYZ", []*op{written(0, "ab"), written(0, "abc"), written(1, "XYZ")}, []bool{false, false, true}},
		"what the other would have left is missing": {"aXY", []*op{written(0, "a"), written(0, "bcd"), written(1, "XY")}, []bool{true, false, true}},
	} {
		m := step(c.after, c.ops...)
		for i := range m.shadow {
			if m.data[i] == '.' {
				m.shadow[i] = '.'
			}
		}
		if at := m.change(); at >= 0 {
			t.Errorf("%s: byte %d is not explained", what, at)
		}
		got := make([]bool, len(c.ops))
		for i, o := range c.ops {
			got[i] = o.touched && o.certain
		}
		if !slices.Equal(got, c.certain) {
			t.Errorf("%s: certain %v, want %v", what, got, c.certain)
		}
	}
}

// What is known of a range is what looking at all of it would tell, however bytes and contents come.
func TestWhatIsKnownOfARangeIsWhatALookAtAllOfItTells(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	some := func() []byte {
		b := make([]byte, 40)
		for i := range b {
			b[i] = byte(random.IntN(4))
		}
		return b
	}
	k, held, contents := known{}, some(), [][]byte(nil)
	for step := range 2000 {
		switch {
		case len(contents) < 6 && step%7 == 0:
			contents = append(contents, some())
		case step%3 == 0:
			at := random.IntN(len(held))
			copy(held[at:], some()[:random.IntN(len(held)-at+1)])
		}
		for i, got := range k.of(held, contents) {
			if want := slices.ContainsFunc(contents, func(c []byte) bool { return c[i] == held[i] }); got != want {
				t.Fatalf("step %d: byte %d: %v, want %v", step, i, got, want)
			}
		}
	}
}

// A READ whose source held in one step what the model cannot put into an order is taken at its bytes, when it changes them and
// when it has ended: each is one that the source held there. Bytes that nobody held there are found, and so is a READ that
// changes nothing (seed 33303: the first half was so, and then the READ had not brought what it should).
func TestAReadOfWhatNobodySawInOrderIsHeldAgainstEachByte(t *testing.T) {
	for what, c := range map[string]struct {
		before, after string
		loose         bool
		touched       bool // before
		explained     bool
		matched       bool
	}{
		"one of the contents":             {"....", "abcd", false, false, true, true},
		"of two, out of order":            {"....", "abCD", true, false, true, true},
		"of two, where there is an order": {"....", "abCD", false, false, false, false},
		"a byte that nobody held":         {"....", "abXD", true, false, false, false},
		"nothing new":                     {"abCD", "abCD", true, false, true, false},
		"the rest by somebody else":       {"abCD", "abCD", false, true, true, false},
		"a part so far":                   {"....", "ab..", true, false, true, false},
	} {
		o := &op{legal: [][]byte{[]byte("abcd"), []byte("ABCD")}, direct: true, loose: c.loose, touched: c.touched}
		m := step(c.after, o)
		copy(m.shadow, c.before)
		o.submission = &submission{life: m.life}
		explained := m.change() < 0
		if o.look(); explained != c.explained || o.matched != c.matched {
			t.Errorf("%s: explained %v, matched %v, want %v, %v", what, explained, o.matched, c.explained, c.matched)
		}
	}
}
