package staging

import (
	"bytes"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/segments"
)

// Slots are lent as long as there are any, apart from the chunks of flows, and copies without chunks move exactly a part
// of them; a stage closes when the last one is back.
//
// proves C-8, C-4
func TestSlotsAreLentApartFromTheChunksOfFlows(t *testing.T) {
	mappings(t)
	r := newRig(t, Config{ChunkBytes: 64, Chunks: 1, Slots: 2})
	if n := r.stage.Lendable(); n != 0 {
		t.Fatalf("%d slots before there is any memory", n)
	}
	d := r.allocate(1, 200, 1)
	if n := r.stage.Lendable(); n != 2 || r.stage.SlotBytes() != 64 {
		t.Fatalf("%d slots, want 2", n)
	}
	first, second := r.stage.Lend(), r.stage.Lend()
	if r.stage.Lendable() != 0 || r.stage.Stats().InUse != 2 || r.stage.Stats().Chunks != 4 || r.pinned.Used() != 4*64 {
		t.Errorf("%+v, charged %d", r.stage.Stats(), r.pinned.Used())
	}
	whole := r.pipe(d, Out, 3, 190, nil) // flows have chunks of their own
	r.run(whole, d)
	if !bytes.Equal(whole.bytes, pattern(200, 1)[3:193]) {
		t.Error("a flow beside lent slots moved other bytes")
	}
	lease, err := first.Range().Lease(0, 64, segments.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	copy(lease.Bytes(), bytes.Repeat([]byte{0xee}, 64))
	lease.Return()
	from := r.pipe(d, Across, 0, 63, nil)
	from.plan.Address, from.plan.From, from.plan.Partner = first.Address(), uint64(d.memory.Pointer())+5, first.Partner()
	if from.lease, err = d.backing.Lend(5, 63, segments.Shared); err != nil {
		t.Fatal(err)
	}
	if fault := from.flow.Start(r.stage, from, from.plan); fault != nil {
		t.Fatal(fault)
	}
	r.until("a copy to a slot", func() bool { return from.ended > 0 })
	if got := first.chunk.bytes; !bytes.Equal(got[:63], pattern(200, 1)[5:68]) || got[63] != 0xee {
		t.Errorf("slot: % x", got)
	}
	to := r.pipe(d, Across, 100, 63, nil)
	to.plan.From, to.plan.Partner = first.Address(), first.Partner()
	r.run(to, d)
	if !guarded(d.bytes(), 1, 100, pattern(200, 1)[5:68]) {
		t.Errorf("device: % x", d.bytes())
	}
	first.Return()
	if r.stage.Lendable() != 1 {
		t.Error("a slot did not come back")
	}
	later := &post{do: func() { second.Return() }}
	r.world.Later(2*time.Second, func() { _ = r.lane.Post(&later.letter, later) })
	began := r.world.Now()
	r.finish()
	if r.world.Now() < began.After(2*time.Second) {
		t.Error("the stage closed while a slot was lent")
	}
}

// A slot that something else still holds when the stage closes, such as a network device that cannot be proven unable to
// reach it, is not freed, and stays charged.
//
// proves C-8, R-5, G-9
func TestASlotThatIsHeldIsNotFreed(t *testing.T) {
	r := newRig(t, Config{ChunkBytes: 64, Chunks: 1, Slots: 2})
	r.allocate(0, 200, 1)
	slots := r.stage.Slots()
	if len(slots) != 2 || slots[0].Length() != 64 || slots[0].ID() == slots[1].ID() {
		t.Fatalf("%v", slots)
	}
	held := slots[1].Backing()
	held.Hold()
	bytes := held.Bytes()
	r.lasting = true
	r.finish()
	if live := r.driver.Live(); live.Pinned != 1 || r.pinned.Used() != 64 || r.stage.Stats().Chunks != 1 {
		t.Errorf("%+v, charged %d, %+v", live, r.pinned.Used(), r.stage.Stats())
	}
	bytes[63] = 1 // it is there
	held.Drop()
	if live := r.driver.Live(); live.Pinned != 0 {
		t.Errorf("its last holder has gone, and it is left: %+v", live)
	}
}

// A slot whose copy is not proven to have ended stays: charged, never lent again, and the stage closes without it.
//
// proves C-8, C-3
func TestALostSlotStaysCharged(t *testing.T) {
	r := newRig(t, Config{ChunkBytes: 64, Chunks: 1, Slots: 2})
	d := r.allocate(0, 200, 1)
	if r.stage.Lendable() != 2 {
		t.Fatal("no slots")
	}
	slot := r.stage.Lend()
	r.driver.Plan(simcuda.Fault{Kind: simcuda.SlowCopy, Device: 1, By: time.Hour})
	p := r.pipe(d, Across, 100, 63, nil)
	p.plan.From, p.plan.Partner = slot.Address(), slot.Partner()
	r.run(p, d)
	if p.proven {
		t.Fatal("a copy that hangs is proven to have ended")
	}
	slot.Lose()
	if r.stage.Lendable() != 1 || r.stage.pools[Lent].whole != 1 || slot.chunk.state != chunkKept {
		t.Error("a lost slot is lent again")
	}
	r.lasting = true
	r.finish()
	stays(r, 1, false)
	// In use stay the slot, and the place that its copy had.
	if got := r.stage.Stats(); got.Chunks != 1 || got.PinnedBytes != 64 || got.InUse != 2 {
		t.Errorf("left: %+v", got)
	}
}
