package staging

import (
	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/segments"
)

// Slot is one chunk that was lent for longer than a copy: a peer directs what is copied to it and from it (SPEC C-8).
// Copies between a slot and a device are flows without chunks (Across), whose partner the slot is.
//
//	free ──Lend──▶ lent ──Return──▶ free
//	                └──Lose──▶ retained
type Slot struct{ chunk *chunk }

// enlist makes the ranges of the slots: registrations of their own, so that a transfer borrows and leases a slot like any
// other range, but which no engine publishes.
func (m *supply) enlist() error {
	slots := m.chunks[Lent]
	if len(slots) == 0 {
		return nil
	}
	specs := make([]segments.Spec, len(slots))
	for i := range slots {
		b := slots[i].backing
		specs[i] = segments.Spec{Backing: b, Length: b.Length(), Permission: netproto.ReadWrite}
	}
	all := int64(len(slots)) * int64(slots[0].backing.Length())
	tracker := segments.NewTracker(budgets.New("slots", "slots", int64(len(slots))), budgets.New("slot bytes", "bytes", all), nil)
	ranges, err := tracker.Register(specs)
	if err != nil {
		return err
	}
	for i := range slots {
		slots[i].lent = ranges[i]
	}
	m.slots = tracker
	return nil
}

// Slots are the ranges of all slots, once Prepare has made them, so that whoever moves bytes from and to them can attach
// what it needs. That comes before the first device memory is visible: nobody lends a slot before. Any goroutine.
func (s *Stage) Slots() (ranges []*segments.Registration) {
	if m := s.supply.Load(); m != nil {
		for i := range m.chunks[Lent] {
			ranges = append(ranges, m.chunks[Lent][i].lent)
		}
	}
	return ranges
}

// Lendable is how many slots are free now. On the lane.
func (s *Stage) Lendable() int {
	if s == nil || s.closing || !s.equip() {
		return 0
	}
	return len(s.pools[Lent].free)
}

// SlotBytes is the size of each slot.
func (s *Stage) SlotBytes() uint64 { return s.config.ChunkBytes }

// Lend lends a slot that is free: Lendable said that there is one. Its bytes are those of whoever had it before.
func (s *Stage) Lend() Slot {
	c := s.pools[Lent].take()
	s.counts.inUse.Add(1)
	s.lent++
	return Slot{c}
}

// Range is the slot's bytes, to be borrowed and leased.
func (x Slot) Range() *segments.Registration { return x.chunk.lent }

// Partner is the slot as the other side of a copy without chunks.
func (x Slot) Partner() cuda.Partner { return x.chunk.pinned }

// Address is where the slot begins, for the host and for every device.
func (x Slot) Address() uint64 { return x.chunk.pinned.Address() }

// Return gives the slot back. The caller has the proof that nothing touches it any more: its frames have ended, and the
// flow of each copy has said so.
func (x Slot) Return() {
	s := x.chunk.stage
	s.pools[Lent].put(x.chunk)
	s.counts.inUse.Add(-1)
	s.lent--
	s.settle()
}

// Lose keeps the slot for good: a copy of it is not proven to have ended.
func (x Slot) Lose() {
	s := x.chunk.stage
	x.chunk.state = chunkKept
	s.pools[Lent].lose()
	s.lent--
	s.settle()
}
