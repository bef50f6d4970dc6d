package staging

import (
	"bytes"
	"testing"
)

// A part that a peer may claim to have written has nothing of others in it: whoever had the chunk before, a copy from a GPU
// included, it is cleared for another tenant, and only as far as the same tenant has not had it.
//
// proves C-4
func TestAPartIsClearedOfWhatOthersLeft(t *testing.T) {
	mappings(t)
	r := newRig(t, Config{ChunkBytes: 64, Chunks: 1})
	d := r.allocate(0, 256, 1)
	run := func(way Way, length uint64, use func(Part)) {
		t.Helper()
		p := r.pipe(d, way, 0, length, nil)
		p.lazy = true
		if fault := p.start(d); fault != nil {
			t.Fatal(fault)
		}
		var part Part
		r.until("a part", func() bool {
			if part == (Part{}) {
				part, _ = p.flow.Take()
			}
			return part != (Part{})
		})
		use(part)
		p.flow.Through(part)
		r.until("the copy", p.flow.Whole)
		p.flow.End()
		r.until("its end", func() bool { return p.ended > 0 })
	}
	empty := make([]byte, 64)
	run(Out, 64, func(Part) {}) // leaves the GPU's bytes
	run(In, 40, func(p Part) {
		p.Clear(Tenant{1})
		if !bytes.Equal(p.Bytes(), empty[:40]) {
			t.Errorf("a tenant finds % x", p.Bytes())
		}
		copy(p.Bytes(), bytes.Repeat([]byte{9}, 40))
	})
	run(In, 64, func(p Part) {
		p.Clear(Tenant{1})
		if p.Bytes()[0] != 9 || !bytes.Equal(p.Bytes()[40:], empty[40:]) {
			t.Errorf("the same tenant finds % x: what is its own is cleared, or what is not is left", p.Bytes())
		}
	})
	run(Out, 64, func(Part) {})
	run(In, 64, func(p Part) {
		p.Clear(Tenant{1})
		if !bytes.Equal(p.Bytes(), empty) {
			t.Errorf("a tenant finds % x of what came in between", p.Bytes())
		}
	})
	run(In, 8, func(p Part) {
		p.Clear(Tenant{2})
		if !bytes.Equal(p.Bytes(), empty[:8]) {
			t.Errorf("another tenant finds % x", p.Bytes())
		}
	})
	r.finish()
}
