package staging

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/lanes"
)

// Every border of chunks, at odd offsets, moves every byte and no other, both ways and from device to device.
//
// proves C-4
func TestEveryChunkBorderMovesEveryByteAndNoOther(t *testing.T) {
	mappings(t)
	const size = 200
	for _, payload := range []uint64{1, 2, 3, 7, 16, 31, 64, 65} {
		for _, chunk := range borders(payload) {
			t.Run(fmt.Sprintf("%d-by-%d", payload, chunk), func(t *testing.T) {
				r := newRig(t, Config{ChunkBytes: chunk, Chunks: 1 + int(payload+chunk)%3})
				first, second := r.allocate(0, size, 1), r.allocate(1, size, 2)
				for _, offset := range []uint64{0, 1, 13, size - payload} {
					out := r.pipe(first, Out, offset, payload, nil)
					r.run(out, first)
					if want := pattern(size, 1)[offset : offset+payload]; !bytes.Equal(out.bytes, want) || !out.proven {
						t.Errorf("out from %d: % x, want % x", offset, out.bytes, want)
					}
					r.driver.Poke(second.memory.Pointer(), pattern(size, 2))
					in := r.pipe(second, In, offset, payload, out.bytes)
					r.run(in, second)
					if !guarded(second.bytes(), 2, offset, out.bytes) {
						t.Errorf("in at %d: % x", offset, second.bytes())
					}
					r.driver.Poke(second.memory.Pointer(), pattern(size, 3))
					across := r.pipe(second, Across, size-payload-offset%2*min(1, size-payload), payload, nil)
					across.plan.Partner, across.plan.From = first.memory, uint64(first.memory.Pointer())+offset
					r.run(across, second)
					if at := across.plan.Address - uint64(second.memory.Pointer()); !guarded(second.bytes(), 3, at, out.bytes) {
						t.Errorf("across to %d: % x", at, second.bytes())
					}
				}
				r.finish()
			})
		}
	}
}

// borders are chunk sizes from 1 to payload + 1.
func borders(payload uint64) (all []uint64) {
	for c := uint64(1); c <= payload+1; c++ {
		if c < 4 || payload < 20 || c > payload-2 || c%7 == 0 {
			all = append(all, c)
		}
	}
	return all
}

// While the wire has one chunk, the device works on another one; with a single chunk they take turns.
//
// proves C-4
func TestCopiesOverlapWithTheWire(t *testing.T) {
	mappings(t)
	for _, way := range []Way{Out, In} {
		for chunks, want := range map[int]bool{1: false, 2: true, 8: true} {
			r := newRig(t, Config{ChunkBytes: 64 << 10, Chunks: chunks})
			d := r.allocate(0, 1<<20, 1)
			p := r.pipe(d, way, 0, 1<<20, nil)
			if way == In {
				p.bytes = pattern(1<<20, 2)
			}
			r.run(p, d)
			if (p.overlap > 4) != want || !want && p.overlap > 0 {
				t.Errorf("%v with %d chunks: %d of 16 pieces overlapped a copy", wayNames[way], chunks, p.overlap)
			}
			r.finish()
		}
	}
}

// With one chunk for 16 flows all end, in the order in which they asked; source flows do not wait for requester flows.
//
// proves C-4
func TestAPoolOfOneChunkServesAllInOrder(t *testing.T) {
	mappings(t)
	r := newRig(t, Config{ChunkBytes: 10, Chunks: 1})
	d := r.allocate(0, 4096, 1)
	var order []*pipe
	var all []*pipe
	for i := range uint64(16) {
		p := r.pipe(d, Way(i%2), i*100, 95, pattern(95, 3))
		if p.plan.Way == Out {
			p.bytes = nil
		}
		p.order = &order
		all = append(all, p)
	}
	for _, p := range all {
		if fault := p.start(d); fault != nil {
			t.Fatal(fault)
		}
	}
	if got := r.stage.Stats(); got.Waiting != 15 || got.InUse != 1 {
		t.Errorf("%+v, want 15 waiting for one chunk", got)
	}
	source := r.pipe(d, Out, 2000, 95, nil)
	source.plan.Role = Source
	r.run(source, d)
	if all[len(all)-1].ended > 0 {
		t.Error("the source's flow had to wait for the requester's")
	}
	r.until("all flows", func() bool {
		for _, p := range all {
			if p.ended == 0 {
				return false
			}
		}
		return true
	})
	for i, p := range all {
		if p.fault != nil || !p.proven || order[i] != p {
			t.Errorf("flow %d: fault %v, proven %v, in its turn %v", i, p.fault, p.proven, order[i] == p)
		}
	}
	r.finish()
}

// A flow that gets its chunk and is ended in the same turn leaves nothing on its lane that could meet it again when it is
// started on another one.
func TestAnEndedFlowIsNotToldAnyMore(t *testing.T) {
	mappings(t)
	r := newRig(t, Config{ChunkBytes: 10, Chunks: 1})
	d := r.allocate(0, 4096, 1)
	holder, next, last := r.pipe(d, In, 0, 10, nil), r.pipe(d, In, 100, 10, pattern(10, 2)), r.pipe(d, In, 200, 10, pattern(10, 2))
	holder.lazy = true
	for _, p := range []*pipe{holder, next, last} {
		if fault := p.start(d); fault != nil {
			t.Fatal(fault)
		}
	}
	before := next.advance
	holder.end()
	next.end()
	if next.ended != 1 || r.stage.news != &last.flow || next.flow.news {
		t.Errorf("ended %d times, still to be told: %v", next.ended, next.flow.news)
	}
	r.until("the last one", func() bool { return last.ended > 0 })
	if next.advance != before || last.fault != nil {
		t.Errorf("told %d times after its end; the last one: %v", next.advance-before, last.fault)
	}
	r.finish()
}

// A flow that holds several chunks gives way to one that has none: a short transfer does not wait for a long one's end.
func TestAFlowWithSeveralChunksGivesWay(t *testing.T) {
	mappings(t)
	for _, way := range []Way{Out, In} {
		r := newRig(t, Config{ChunkBytes: 10, Chunks: 3})
		d := r.allocate(0, 4096, 1)
		long, short := r.pipe(d, way, 0, 2000, pattern(2000, 2)), r.pipe(d, way, 3000, 30, pattern(30, 3))
		if way == Out {
			long.bytes, short.bytes = nil, nil
		}
		if fault := long.start(d); fault != nil {
			t.Fatal(fault)
		}
		r.until("the long one to hold every chunk", func() bool { return r.stage.Stats().InUse == 3 })
		r.run(short, d)
		if moved := long.flow.span.settled; short.fault != nil || moved > 1000 {
			t.Errorf("%v: %v; %d of 2000 bytes of the long one had moved", wayNames[way], short.fault, moved)
		}
		r.until("the long one", func() bool { return long.ended > 0 })
		r.finish()
	}
}

// A waiter has its own deadline, and can leave; those behind it are not delayed.
func TestAWaiterHasItsDeadlineAndCanLeave(t *testing.T) {
	mappings(t)
	r := newRig(t, Config{ChunkBytes: 10, Chunks: 1})
	d := r.allocate(0, 4096, 1)
	holder := r.pipe(d, Out, 0, 95, nil)
	holder.wire = 50 * time.Millisecond
	late, leaver, last := r.pipe(d, Out, 100, 95, nil), r.pipe(d, Out, 200, 95, nil), r.pipe(d, Out, 300, 95, nil)
	late.plan.Deadline = r.world.Now().After(20 * time.Millisecond)
	for _, p := range []*pipe{holder, late, leaver, last} {
		if fault := p.start(d); fault != nil {
			t.Fatal(fault)
		}
	}
	leaver.end()
	if leaver.ended != 1 || !leaver.proven {
		t.Error("a waiter that leaves has to be told at once")
	}
	r.until("the late one", func() bool { return late.ended > 0 })
	if late.fault == nil || late.fault.Cause != lanes.Deadline || holder.ended != 0 {
		t.Errorf("fault %v, holder ended %d times", late.fault, holder.ended)
	}
	r.until("the others", func() bool { return holder.ended+last.ended == 2 })
	if last.fault != nil || len(last.bytes) != 95 {
		t.Errorf("the last one: %v, %d bytes", last.fault, len(last.bytes))
	}
	if got := r.stage.Stats(); got.WaitsExpired != 1 {
		t.Errorf("%+v", got)
	}
	r.finish()
}

// A copy's bytes are shown, and its chunk is used again, only after its event: the twin scrambles the target until then.
// A callback that is lost, late or doubled changes nothing but the time.
//
// proves C-3, C-5
func TestCallbacksAreHintsAndEventsProofs(t *testing.T) {
	mappings(t)
	plans := map[string]simcuda.Fault{
		"none": {Kind: simcuda.LateCallback, Index: 1 << 20}, "lost": {Kind: simcuda.LoseCallback, Count: -1},
		"late": {Kind: simcuda.LateCallback, Count: -1, By: 300 * time.Millisecond}, "double": {Kind: simcuda.DoubleCallback, Count: -1},
		"refused": {Kind: simcuda.FailCall, Call: simcuda.CallCallback, Count: -1},
		"unread":  {Kind: simcuda.FailCall, Call: simcuda.CallTakeSignal, Count: -1},
		"slow":    {Kind: simcuda.SlowCopy, Count: -1, By: 40 * time.Millisecond},
	}
	for name, plan := range plans {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{ChunkBytes: 100, Chunks: 3})
			d := r.allocate(0, 4096, 1)
			r.driver.Plan(plan)
			out := r.pipe(d, Out, 7, 990, nil)
			in := r.pipe(d, In, 2001, 990, pattern(990, 2))
			if fault := out.start(d); fault != nil {
				t.Fatal(fault)
			}
			r.run(in, d)
			r.until("out", func() bool { return out.ended > 0 })
			if !bytes.Equal(out.bytes, pattern(4096, 1)[7:997]) || !guarded(d.bytes(), 1, 2001, pattern(990, 2)) {
				t.Error("wrong bytes")
			}
			got := r.stage.Stats()
			if got.Copies != 20 || got.CopiedBytes != 1980 {
				t.Errorf("%+v", got)
			}
			if n := r.driver.Calls(simcuda.CallTakeSignal); n > 80 {
				t.Errorf("%d readings of the signal for 20 copies", n)
			}
			if silent := name == "lost" || name == "late" || name == "refused"; silent != (got.TimerFound >= 15) && name != "unread" {
				t.Errorf("the timer found %d of 20 copies", got.TimerFound)
			}
			r.lasting = name == "lost" // the callbacks stay owed, and with them the signal's descriptor
			r.finish()
			if got := r.stage.Stats(); got.InUse != 0 || got.PinnedBytes != 0 || got.Retained != 0 {
				t.Errorf("left: %+v", got)
			}
		})
	}
}

// Flows of a stage that is not prepared, or closed, or not there, are refused with the reason.
func TestWhatCannotBeStagedIsRefused(t *testing.T) {
	mappings(t)
	r := newRig(t, Config{})
	d := r.unprepared(0, 100, 1)
	refused := func(s *Stage, cause lanes.Cause, err error) {
		t.Helper()
		p := r.pipe(d, Out, 0, 100, nil)
		if fault := p.flow.Start(s, p, p.plan); fault == nil || fault.Cause != cause || fault.Err != err || p.flow.Active() {
			t.Errorf("%v, want %v: %v", fault, cause, err)
		}
	}
	refused(nil, lanes.DeviceFailed, ErrAbsent)
	refused(r.stage, lanes.DeviceFailed, ErrUnprepared)
	r.finish()
	refused(r.stage, lanes.Closed, ErrClosed)
}

// Steady flows allocate nothing, whatever the way and the number of pieces.
//
// proves L-6
func TestSteadyFlowsAllocateNothing(t *testing.T) {
	mappings(t)
	for _, way := range []Way{Out, In, Across} {
		r := newRigWith(t, Config{ChunkBytes: 1 << 10, Chunks: 3}, seedOf(t), false)
		d, other := r.allocate(0, 100_000, 1), r.allocate(1, 100_000, 2)
		u := &steadyUser{rig: r}
		plan := Plan{Way: way, Memory: d.memory, Address: uint64(d.memory.Pointer()), Length: 10_001, Deadline: 1 << 62, Partner: other.memory, From: uint64(other.memory.Pointer())}
		done := func() bool { return u.ended }
		run := func() {
			u.ended = false
			if fault := u.flow.Start(r.stage, u, plan); fault != nil {
				t.Fatal(fault)
			}
			u.Advanced(&u.flow)
			r.until("a steady flow", done)
		}
		for range 50 {
			run()
		}
		if n := testing.AllocsPerRun(100, run); n != 0 {
			t.Errorf("%v: %v allocations", wayNames[way], n)
		}
		r.finish()
	}
}

// steadyUser has a wire that is done at once.
type steadyUser struct {
	rig   *rig
	flow  Flow
	ended bool
}

func (u *steadyUser) Advanced(f *Flow) {
	for f.Piece() != nil && f.plan.Way == Out {
		f.Release()
	}
	for f.plan.Way == In && f.Room() != nil {
		f.Filled()
	}
	if f.Whole() {
		f.End()
	}
}

func (u *steadyUser) Ended(*Flow, bool) { u.ended = true }
