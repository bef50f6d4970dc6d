package local

import (
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/staging"
	"github.com/orbitte/orbitte/segments"
)

// device is what a transfer has when one of its ranges is device memory, or both.
type device struct {
	on       bool
	way      staging.Way
	flow     staging.Flow
	fault    *lanes.Fault // why the transfer ends, while its flow is ending; nil: it has succeeded
	unproven bool
}

// plan finds out who copies, and refuses what cannot be copied before any lease is taken.
func (t *Transfer) plan() *lanes.Fault {
	from, _, to, _ := t.sides()
	out, in := staging.OnDevice(from), staging.OnDevice(to)
	d := &t.device
	d.on = t.Length > 0 && (out || in)
	if !d.on {
		return nil
	}
	memory, role := to, staging.Requester
	switch {
	case out && in, in && staging.PinnedOf(from) != nil, out && staging.PinnedOf(to) != nil:
		d.way, role = staging.Across, staging.Devices
		if out && (!in || staging.MemoryOf(from) == nil) { // in the latter case the refusal is about it
			memory = from
		}
	case in:
		d.way = staging.In
	default:
		d.way, memory = staging.Out, from
	}
	return staging.Of(t.lane).Ready(staging.MemoryOf(memory), role)
}

// launch starts the flow; both leases are held until it has ended.
func (t *Transfer) launch() {
	from, fromOffset, to, toOffset := t.sides()
	p := staging.Plan{Role: staging.Requester, Way: t.device.way, Length: t.Length, Deadline: t.Deadline}
	p.Memory, p.Address, p.From = staging.MemoryOf(to), to.Address()+toOffset, from.Address()+fromOffset
	switch {
	case p.Way == staging.Out:
		p.Memory, p.Address = staging.MemoryOf(from), p.From
	case p.Way == staging.Across && p.Memory == nil:
		p.Memory, p.Partner = staging.MemoryOf(from), staging.PinnedOf(to)
	case p.Way == staging.Across && staging.PinnedOf(from) != nil:
		p.Partner = staging.PinnedOf(from)
	case p.Way == staging.Across && staging.MemoryOf(from) != p.Memory:
		p.Partner = staging.MemoryOf(from)
	}
	if fault := t.device.flow.Start(staging.Of(t.lane), t, p); fault != nil {
		t.end(fault)
		return
	}
	t.advance()
}

// Advanced looks again (staging.User).
func (t *Transfer) Advanced(*staging.Flow) { t.advance() }

// advance moves one chunk's bytes between host memory and chunk, and lets the lane's other work have its turn before the
// next one.
func (t *Transfer) advance() {
	f := &t.device.flow
	if t.letter.Waiting() { // it has to be received before the transfer may end, and be used again on another lane
		return
	}
	if fault := f.Fault(); fault != nil {
		t.stop(fault)
		return
	}
	moved := t.device.way == staging.Out && t.unload() || t.device.way == staging.In && t.load()
	switch {
	case f.Whole():
		f.End() // Ended follows; nothing is under way
	case moved:
		_ = t.lane.Post(&t.letter, t) // a closed lane has no flows
	}
}

// unload copies a piece to host memory; false: none is ready.
func (t *Transfer) unload() bool {
	piece := t.device.flow.Piece()
	if piece == nil {
		return false
	}
	t.machine.copied(uint64(copy(t.to.Bytes()[t.machine.done:], piece)))
	t.device.flow.Release()
	return true
}

// load copies host memory to a room; false: there is none.
func (t *Transfer) load() bool {
	room := t.device.flow.Room()
	if room == nil {
		return false
	}
	t.machine.copied(uint64(copy(room, t.from.Bytes()[t.machine.done:])))
	t.device.flow.Filled()
	return true
}

// stop ends a transfer that cannot go on once its copies have ended.
func (t *Transfer) stop(fault *lanes.Fault) {
	t.device.fault = fault
	t.device.flow.End() // Ended follows
}

// Ended reports (staging.User).
func (t *Transfer) Ended(f *staging.Flow, proven bool) {
	if t.device.way != staging.Out { // what was copied to a chunk is no byte of the range
		t.machine.done, t.machine.touched = 0, f.Touched()
	}
	if !proven {
		t.device.unproven = true
		from, to, remote := t.from, t.to, t.remote
		f.KeepUntil(func() {
			from.Return()
			to.Return()
			remote.Return()
		})
		t.from, t.to, t.remote = segments.Lease{}, segments.Lease{}, nil
	}
	if t.device.fault == nil {
		t.lane.Counts.LocalCopies.Add(1)
	}
	t.end(t.device.fault)
}
