package world

import (
	"bytes"
	"slices"
)

// takeApart explains the open changes of a step, if it can, without one of the ops; done are those that have part in it.
// free is where what stood there before the last of them is hidden.
func (m *memory) takeApart(but *op, open []bool) (done []*op, free []bool) {
	free = make([]bool, len(open))
	if but != nil {
		done = append(done, but)
	}
	done = m.peel(done, open, free)
	if slices.Contains(open, true) { // what came last may have left no trace
		for before := -1; before < len(done); {
			before = len(done)
			m.untraced(but, free)
			done = m.peel(done, open, free)
		}
		if found := m.patchwork(done, open, free); len(found) > 0 { // what they cover may be a part of what came whole before
			done = m.peel(append(done, found...), open, free)
		}
	}
	return done, free
}

// needs is true exactly when the changes of a step cannot be explained without the op: then it has made some of them. Others
// that wrote in the same step may together have covered all that it would have written.
func (m *memory) needs(o *op, changed []bool) bool {
	theirs := make([]bool, len(changed)) // where others may write
	for _, other := range m.targets {
		for i := max(o.toAt, other.toAt); other != o && i < min(o.toAt+o.length, other.toAt+other.length); i++ {
			theirs[i] = true
		}
	}
	for i := o.toAt; i < o.toAt+o.length; i++ {
		if changed[i] && !theirs[i] {
			return true
		}
	}
	open := slices.Clone(changed)
	m.takeApart(o, open)
	return slices.Contains(open, true)
}

// peel takes the changes apart, the last one first: an op whose legal content stands whole where it belongs,
// except where a later one has changed it, explains its bytes. Taking one that fits never hinders another.
func (m *memory) peel(done []*op, open, free []bool) []*op {
	for again := true; again; {
		again = false
		for _, o := range m.targets {
			if slices.Contains(done, o) {
				continue
			}
			if o.content = o.explains(m, open, free); o.content == nil {
				continue
			}
			whole, strewn := !o.pieces(), []bool(nil)
			if !whole && o.strewn() {
				strewn = o.mays()
			}
			for i := o.toAt; i < o.toAt+o.length; i++ {
				if open[i] || !free[i] && (whole || strewn != nil && strewn[i-o.toAt]) {
					open[i], free[i] = false, true
				}
			}
			done, again = append(done, o), true
		}
	}
	return done
}

// untraced marks where an op may have written last without a trace, since what it wrote stood there before the step: several
// of them may be done in one, and a range in which an earlier one wrote in between hides that.
// A later one may have covered a part of it in turn, and one that comes in pieces may have brought some of them.
func (m *memory) untraced(but *op, free []bool) {
	for again := true; again; {
		again = false
		for _, o := range m.targets {
			if o == but || !o.besides() {
				continue
			}
			held, data := free[o.toAt:o.toAt+o.length], m.data[o.toAt:]
			whole := slices.ContainsFunc(o.legal, func(content []byte) bool { return fits(content, data, held) })
			var strewn []bool
			if !whole && o.direct && o.strewn() {
				strewn = o.mays()
			}
			for i := range held {
				if !held[i] && (whole || strewn != nil && strewn[i]) {
					held[i], again = true, true
				}
			}
		}
	}
}

// besides is true exactly when the op may commit in a step in which others commit to the same bytes. A turn of an engine handles
// all that its kernels have for it: frames and payloads of several peers, receipts of several staged transfers over RDMA
// (seed 777120245), copies of its own. What a socket, a device or a GPU brings in pieces has its lease from one turn to the
// next, so that it comes first in its last one; only HP-TCP may begin and end in one. What was seen to commit does so no more.
func (o *op) besides() bool {
	return !o.over && (o.local.life == o.remote.life || o.fast || !o.pieces() && !o.certain && o.begun())
}

// begun is false when the op certainly cannot have brought a byte: its frame has not gone out, or the one before it in its submission
// has not ended (SPEC G-3). Copies in the process and HP-TCP are let off.
func (o *op) begun() bool {
	if o.local.life == o.remote.life || o.fast {
		return true
	}
	if !o.apart() && o.frames == nil && !o.alike {
		return false
	}
	return !slices.ContainsFunc(o.submission.ops[:o.index], func(first *op) bool { return !first.over && !first.matched })
}

// overlaid is true exactly when another op in flight may have covered what this one left, in the step in which it committed, and
// left there what stood there before.
func (o *op) overlaid() bool {
	if o.length == 0 || o.to.closed || !o.fast && o.direct && o.strewn() && o.local.life != o.remote.life { // what devices bring is seen when it is there
		return false
	}
	free := make([]bool, len(o.to.data))
	o.to.untraced(o, free)
	for _, content := range o.legal {
		if slices.Contains(free[o.toAt:o.toAt+o.length], true) && fits(content, o.to.data[o.toAt:], free[o.toAt:]) {
			o.submission.life.run.count("blind: covered in the same step")
			return true
		}
	}
	return false
}

// uncover gives those whose bytes the op may have covered the benefit, while it is in flight still: it is told of its end
// before them, if its peer is quicker, or was asked first.
func (o *op) uncover() {
	if o.certain { // its step was seen, and what it hid there (hidden)
		return
	}
	for _, beneath := range o.to.targets {
		if beneath != o && !beneath.over && !beneath.matched && beneath.overlaps(o.toAt, o.toAt+o.length) && beneath.begun() {
			beneath.matched = beneath.overlaid()
		}
	}
}

// known is which bytes of a range are those of some of a list of contents. It keeps what it found: ranges of megabytes change
// by some bytes in a step, and have hundreds of contents.
type known struct {
	held     []byte // of the range, when it was last asked
	contents int    // how many there were
	some     []bool
}

// of brings the answer up to date.
func (k *known) of(held []byte, contents [][]byte) []bool {
	if k.some == nil {
		k.held, k.some = bytes.Clone(held), make([]bool, len(held))
	}
	first, end := len(held), 0 // the bytes that have changed
	if !bytes.Equal(k.held, held) {
		for i, b := range held {
			if b != k.held[i] {
				k.some[i], first, end = false, min(first, i), i+1
			}
		}
		copy(k.held, held)
	}
	if first < end {
		for _, content := range contents[:k.contents] {
			k.add(content, first, end)
		}
	}
	for _, content := range contents[k.contents:] {
		k.add(content, 0, len(held))
	}
	k.contents = len(contents)
	return k.some
}

func (k *known) add(content []byte, first, end int) {
	held, some := k.held[first:end], k.some[first:end]
	for i, b := range content[first:end] {
		if b == held[i] {
			some[i] = true
		}
	}
}

// mays says which bytes of its destination the op may have written, as they stand there now: one that comes in pieces need not.
func (o *op) mays() []bool { return o.could.of(o.to.data[o.toAt:o.toAt+o.length], o.legal) }
