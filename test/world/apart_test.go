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

// Several requests may commit in one step, whatever carries them (seed 777120245: two staged READs over RDMA had their
// receipts). One that leaves what stood there before covers a part of another one without a trace, and is what explains
// the rest of that one's bytes, or that it changed nothing: but only if it may have committed in that step.
func TestOneThatLeavesNoTraceExplainsWhatItMayHaveCovered(t *testing.T) {
	stream, free := &stream{}, &op{over: true}
	for what, c := range map[string]struct {
		op    op
		first *op // before it in its submission; nil: none
		may   bool
	}{
		"over TCP":                                {op{frames: stream}, nil, true},
		"over TCP, one of several alike":          {op{alike: true}, nil, true},
		"over TCP, behind one that has ended":     {op{frames: stream}, free, true},
		"over TCP, behind one that has come":      {op{frames: stream}, &op{matched: true}, true},
		"staged, over RDMA":                       {op{rdma: true}, nil, true},
		"over HP-TCP":                             {op{fast: true, direct: true}, nil, true},
		"over TCP, its frame has not gone out":    {op{}, nil, false},
		"over TCP, behind one that is on its way": {op{frames: stream}, &op{}, false},
		"staged, over RDMA, behind such a one":    {op{rdma: true}, &op{}, false},
		"by a device, which has the lease":        {op{rdma: true, direct: true}, nil, false},
		"by a socket, which has the lease":        {op{frames: stream, direct: true}, nil, false},
		"told already":                            {op{frames: stream, over: true}, nil, false},
		"over TCP, seen to commit before":         {op{frames: stream, certain: true, touched: true}, nil, false},
		"over TCP, what it brings is not there":   {op{frames: stream, legal: [][]byte{[]byte("x")}}, nil, false},
	} {
		for _, before := range []string{".....", "abcd."} { // with what is left of its change, and without any
			late := c.op
			if late.toAt = 4; late.legal == nil {
				late.legal = [][]byte{[]byte(".")}
			}
			beneath := &op{legal: [][]byte{[]byte("abcde")}, frames: stream}
			m := step("abcd.", beneath, &late)
			copy(m.shadow, before)
			beneath.submission = &submission{life: m.life, ops: []*op{beneath}}
			late.submission = &submission{life: m.life, ops: []*op{&late}}
			if c.first != nil {
				late.index, late.submission.ops = 1, []*op{c.first, &late}
			}
			if before == "....." {
				if explained := m.change() < 0; explained != c.may {
					t.Errorf("%s: its end explains the change beneath it: %v, want %v", what, explained, c.may)
				}
			} else if hidden := beneath.hiddenBy(); hidden != c.may {
				t.Errorf("%s: its end may hide the one beneath it: %v, want %v", what, hidden, c.may)
			}
		}
	}
}

// One that covered another one may be told of its end first. Only those beneath it that had begun have the benefit.
func TestTheEndOfOneUncoversThoseBeneathIt(t *testing.T) {
	stream := &stream{}
	for what, c := range map[string]struct {
		beneath op
		seen    bool // the other one was, as it committed: one over HP-TCP
		may     bool
	}{
		"over TCP":                             {op{frames: stream}, false, true},
		"over TCP, by a socket":                {op{frames: stream, direct: true}, false, true},
		"staged, over RDMA":                    {op{rdma: true}, false, true},
		"over TCP, its frame has not gone out": {op{}, false, false},
		"over TCP, by a socket, the same":      {op{direct: true}, false, false},
		"by a device":                          {op{rdma: true, direct: true}, false, false},
		"over TCP, and the other one was seen": {op{frames: stream}, true, false},
		"elsewhere":                            {op{frames: stream, toAt: 5}, false, false},
		"with other bytes":                     {op{frames: stream, legal: [][]byte{[]byte("abXde")}}, false, false},
	} {
		beneath := c.beneath
		if beneath.legal == nil {
			beneath.legal = [][]byte{[]byte("abcde")}
		}
		late := &op{toAt: 4, legal: [][]byte{[]byte(".")}, frames: stream, fast: c.seen, certain: c.seen, touched: c.seen}
		m := step("abcd.abcd.", &beneath, late)
		for _, o := range m.targets {
			o.submission = &submission{life: m.life, ops: []*op{o}}
		}
		if late.uncover(); beneath.matched != c.may {
			t.Errorf("%s: matched %v, want %v", what, beneath.matched, c.may)
		}
	}
}
