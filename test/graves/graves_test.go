package graves

import "testing"

type object struct{ a, b int }

// told is a test that is told of failures.
type told struct {
	testing.TB
	failures int
}

func (t *told) Helper()               {}
func (t *told) Errorf(string, ...any) { t.failures++ }

func TestWhatIsTouchedAfterItsEndIsShown(t *testing.T) {
	var g Graves[object]
	sentinel := func() *object { return &object{77, 78} }
	left, touched := &object{1, 2}, &object{3, 4}
	g.Inter(left, sentinel)
	g.Inter(touched, sentinel)
	touched.b++
	shown := &told{}
	if g.Dig(shown); shown.failures != 1 {
		t.Errorf("%d objects were said to be touched", shown.failures)
	}
	if *left != (object{1, 2}) || *touched != (object{3, 4}) {
		t.Errorf("given back as %v and %v", *left, *touched)
	}
	if g.Dig(shown); shown.failures != 1 {
		t.Error("an object is dug up twice")
	}
}
