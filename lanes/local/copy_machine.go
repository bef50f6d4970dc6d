package local

import "github.com/orbitte/orbitte/lanes"

// copyMachine decides the steps of one local copy: slices in order, then done.
type copyMachine struct {
	length, done uint64
	touched      bool // true exactly when a device may have changed bytes of the range that is written
}

// slice is the next run to copy.
func (m *copyMachine) slice() (offset, n uint64) {
	return m.done, min(m.length-m.done, lanes.SliceBytes)
}

// copied counts a slice and says whether it was the last one.
func (m *copyMachine) copied(n uint64) bool {
	m.done += n
	return m.done == m.length
}

// outcome says what the copy did to the range it writes: a copy that was ended early is there in part.
func (m *copyMachine) outcome(d lanes.Direction, fault *lanes.Fault) lanes.Outcome {
	o := lanes.Outcome{Drained: true}
	effect := lanes.EffectComplete
	switch {
	case fault == nil:
		o.Bytes = m.length
	case m.done > 0 || m.touched:
		o.Err, effect = fault, lanes.EffectPartial
	default:
		o.Err, effect = fault, lanes.EffectNone
	}
	if d == lanes.Read {
		o.Local = effect
	} else {
		o.Remote = effect
	}
	return o
}
