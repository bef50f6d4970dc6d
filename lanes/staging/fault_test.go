package staging

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/lanes"
)

// workload is five flows: two out and one in on one device, one in on the other and one across to it.
type workload struct {
	r             *rig
	first, second *deviceMemory
	beside        *deviceMemory // on the first one's device; only read
	pipes         []*pipe
	at            []*deviceMemory
}

const (
	workSize  = 1000
	workPiece = 190 // 3 chunks of 64
)

func newWorkload(r *rig) *workload {
	w := &workload{r: r, first: r.allocate(0, workSize, 1), second: r.allocate(1, workSize, 2), beside: r.allocate(0, workSize, 1)}
	add := func(d *deviceMemory, way Way, offset uint64, in []byte) *pipe {
		p := r.pipe(d, way, offset, workPiece, in)
		w.pipes, w.at = append(w.pipes, p), append(w.at, d)
		return p
	}
	add(w.first, Out, 1, nil)
	add(w.first, In, 201, pattern(workPiece, 3))
	add(w.first, Out, 401, nil)
	across := add(w.second, Across, 601, nil)
	across.plan.Partner, across.plan.From = w.beside.memory, uint64(w.beside.memory.Pointer())+801
	add(w.second, In, 201, pattern(workPiece, 3))
	return w
}

// run starts everything and waits for all ends.
func (w *workload) run() {
	w.r.t.Helper()
	for i, p := range w.pipes {
		if fault := p.start(w.at[i]); fault != nil { // a device that was lost at once
			p.fault, p.ended, p.proven = fault, 1, true
		}
	}
	w.r.until("all flows", func() bool {
		for _, p := range w.pipes {
			if p.ended == 0 {
				return false
			}
		}
		return true
	})
}

// check holds every flow to what it says, and says how many failed and how many are unproven.
func (w *workload) check() (failed, unproven int) {
	w.r.t.Helper()
	w.r.pass(time.Second)
	want := [][]byte{pattern(workSize, 1)[1 : 1+workPiece], pattern(workPiece, 3), pattern(workSize, 1)[401 : 401+workPiece], pattern(workSize, 1)[801 : 801+workPiece], pattern(workPiece, 3)}
	for i, p := range w.pipes {
		if p.ended != 1 {
			w.r.t.Errorf("flow %d has ended %d times", i, p.ended)
		}
		if !p.proven {
			unproven++
		}
		if p.fault != nil {
			failed++
			if p.fault.Cause != lanes.DeviceFailed || p.fault.Err == nil {
				w.r.t.Errorf("flow %d: %v", i, p.fault)
			}
		}
		got := p.bytes
		offset := p.plan.Address - uint64(w.at[i].memory.Pointer())
		if p.plan.Way != Out {
			got = w.at[i].bytes()[offset : offset+workPiece]
		}
		untouched := pattern(workSize, []byte{1, 1, 1, 2, 2}[i])[offset : offset+workPiece]
		switch {
		case p.fault == nil && !bytes.Equal(got, want[i]):
			w.r.t.Errorf("flow %d succeeded with wrong bytes", i)
		case p.fault != nil && p.plan.Way == Out && !bytes.HasPrefix(want[i], got):
			w.r.t.Errorf("flow %d failed and showed wrong bytes", i)
		case p.plan.Way != Out && !p.flow.Touched() && !bytes.Equal(got, untouched):
			w.r.t.Errorf("flow %d changed its range and says that it did not", i)
		}
	}
	w.guards()
	return failed, unproven
}

// guards checks every byte beside the ranges that are written.
func (w *workload) guards() {
	w.r.t.Helper()
	clean := func(d *deviceMemory, seed byte, written ...uint64) {
		got, want := d.bytes(), pattern(workSize, seed)
		for _, at := range written {
			copy(want[at:at+workPiece], got[at:])
		}
		if !bytes.Equal(got, want) {
			w.r.t.Error("a byte beside the ranges was changed")
		}
	}
	clean(w.first, 1, 201)
	clean(w.second, 2, 201, 601)
	clean(w.beside, 1)
}

// kept is true exactly when the platform or the stage retains something.
func (w *workload) kept() bool {
	return len(w.r.platform.Retained()) > 0 || len(w.r.stage.Residues()) > 0
}

// Each driver call that a flow makes fails once, at each of its occurrences, certainly or perhaps. Flows end, with the
// truth about their bytes; what can be proven is proven by a drain and nothing is left of it; what cannot is retained,
// charged and listed.
//
// proves C-3, G-9
func TestEachFailingCallEndsInProofOrIsRetained(t *testing.T) {
	mappings(t)
	calls := []simcuda.Call{simcuda.CallCopy, simcuda.CallRecord, simcuda.CallQuery, simcuda.CallPop, simcuda.CallCallback}
	for _, call := range calls {
		for _, effect := range []cuda.Effect{cuda.None, cuda.Maybe} {
			for index := 0; ; index++ {
				if sweep(t, false, simcuda.Fault{Kind: simcuda.FailCall, Call: call, Effect: effect, Index: index}) {
					break
				}
			}
		}
	}
}

// sweep runs the workload under a fault; true: it never struck. hopeless: drains fail too.
func sweep(t *testing.T, hopeless bool, f simcuda.Fault) (over bool) {
	t.Run(fmt.Sprintf("%v-hopeless=%v", f, hopeless), func(t *testing.T) {
		r := newRig(t, Config{ChunkBytes: 64, Chunks: 2})
		w := newWorkload(r)
		r.driver.Plan(f)
		if hopeless {
			r.driver.Plan(simcuda.Fault{Kind: simcuda.FailCall, Call: simcuda.CallSynchronize, Count: -1})
		}
		w.run()
		failed, unproven := w.check()
		struck, _ := r.driver.Struck()
		over = struck == 0
		harmless := f.Call == simcuda.CallPop || f.Call == simcuda.CallCallback || over
		switch {
		case harmless && failed > 0:
			t.Errorf("%d flows failed, want none", failed)
		case !harmless && failed == 0:
			t.Error("no flow failed")
		case unproven > 0 && !hopeless:
			t.Errorf("%d flows are unproven although a drain proves them", unproven)
		case unproven != len(r.stage.Residues()) || unproven != int(r.stage.Stats().Retained):
			t.Errorf("%d unproven flows, residues %v", unproven, r.stage.Residues())
		}
		for _, residue := range r.stage.Residues() {
			if !errors.Is(residue.Reason, cuda.ErrUnquiesced) || residue.Bytes != workPiece || residue.Object == "" {
				t.Errorf("%+v", residue)
			}
		}
		r.lasting = w.kept() || f.Call == simcuda.CallPop // a thread that keeps a context keeps its reference
		r.finish()
		stays(r, unproven, false)
	})
	return over
}

// stays checks that exactly what unproven flows hold is left on the lane; a lost device takes no pinned memory back either.
func stays(r *rig, unproven int, lost bool) {
	r.t.Helper()
	got := r.stage.Stats()
	if (got.InUse > 0 || (got.Chunks > 0 || got.PinnedBytes > 0) && !lost) && unproven == 0 {
		r.t.Errorf("nothing is unproven, and left is %+v", got)
	}
	if int64(got.PinnedBytes) != r.pinned.Used() || got.Waiting != 0 || got.Flying != 0 {
		r.t.Errorf("left: %+v, charged %d", got, r.pinned.Used())
	}
	for role := range Devices {
		if kept := r.stage.config.chunks(role) - r.stage.pools[role].whole; got.PinnedBytes < uint64(kept)*r.stage.config.ChunkBytes {
			r.t.Errorf("%d chunks are retained and charged is %d", kept, got.PinnedBytes)
		}
	}
	for _, d := range r.devices {
		if unproven == 0 && !d.backing.Quiet() {
			r.t.Error("a lease is left")
		}
	}
}

// The same when no drain proves anything.
//
// proves C-3, G-9
func TestWithoutProofMemoryChunkAndLeaseAreRetained(t *testing.T) {
	for _, call := range []simcuda.Call{simcuda.CallCopy, simcuda.CallRecord, simcuda.CallQuery} {
		for index := 0; ; index += 3 {
			if sweep(t, true, simcuda.Fault{Kind: simcuda.FailCall, Call: call, Effect: cuda.Maybe, Index: index}) {
				break
			}
		}
	}
}

// A device that is lost at any moment takes what runs on it along, and nothing of the other device. New work for it is
// refused with the reason.
//
// proves C-3
func TestALostDeviceRetainsItsOwnAndRefusesNewWork(t *testing.T) {
	for at := time.Duration(1); at < 400*time.Microsecond; at += 13 * time.Microsecond {
		for device := range 2 {
			t.Run(fmt.Sprintf("%v-%d", at, device), func(t *testing.T) {
				r := newRig(t, Config{ChunkBytes: 64, Chunks: 16})
				w := newWorkload(r)
				r.driver.Plan(simcuda.Fault{Kind: simcuda.LoseDevice, Device: 1 + device, At: at, Result: cuda.IllegalAddress})
				w.run()
				for i, p := range w.pipes {
					if other := w.at[i].memory.Ordinal() != device && p.plan.Way != Across; other && p.fault != nil {
						t.Errorf("flow %d of the other device: %v", i, p.fault)
					}
				}
				failed, unproven := w.check()
				if unproven != len(r.stage.Residues()) {
					t.Errorf("%d unproven, %d residues", unproven, len(r.stage.Residues()))
				}
				if unproven > 0 && failed > 0 {
					d := []*deviceMemory{w.first, w.second}[device]
					p := r.pipe(d, Out, 950, 20, nil)
					var lost *DeviceLost
					if fault := p.flow.Start(r.stage, p, p.plan); fault == nil || !errors.As(fault.Err, &lost) || lost.Ordinal != device {
						t.Errorf("new work: %v", fault)
					}
				}
				r.lasting = true
				r.finish()
				stays(r, unproven, true)
			})
		}
	}
}

// What a copy to a lost device has read from another one is retained; the other device itself is not lost.
func TestTheDeviceThatWasReadIsNotLostWithTheOther(t *testing.T) {
	r := newRig(t, Config{ChunkBytes: 64})
	read, sound, lost := r.allocate(0, workSize, 1), r.allocate(0, workSize, 1), r.allocate(1, workSize, 2)
	across := r.pipe(lost, Across, 0, 100, nil)
	across.plan.Partner, across.plan.From = read.memory, uint64(read.memory.Pointer())
	r.driver.Plan(simcuda.Fault{Kind: simcuda.LoseDevice, Device: 2, At: time.Nanosecond, Result: cuda.IllegalAddress})
	r.run(across, lost)
	if across.proven || across.fault == nil {
		t.Errorf("%v", across.fault)
	}
	again := r.pipe(read, Out, 200, 100, nil)
	r.run(again, read)
	if again.fault == nil || !errors.Is(again.fault.Err, cuda.ErrRetained) || !again.proven {
		t.Errorf("memory that is retained: %v", again.fault)
	}
	p := r.pipe(sound, Out, 0, 100, nil)
	r.run(p, sound)
	if p.fault != nil || len(p.bytes) != 100 {
		t.Errorf("other memory of the device that was read: %v", p.fault)
	}
	r.lasting = true
	r.finish()
	stays(r, 1, true)
}

// A copy that a device does not finish within 30 seconds is given up: retained, charged, listed, and the lane goes on.
func TestAHungCopyIsGivenUp(t *testing.T) {
	r := newRig(t, Config{ChunkBytes: 64, Chunks: 8})
	w := newWorkload(r)
	r.driver.Plan(simcuda.Fault{Kind: simcuda.SlowCopy, Device: 1, By: time.Hour})
	w.run()
	hung := 0
	for i, p := range w.pipes {
		if p.plan.Memory == w.second.memory && p.plan.Way == In && (p.fault != nil || !p.proven) {
			t.Errorf("flow %d of the other device: %v", i, p.fault)
		}
		if !p.proven {
			hung++
			if p.fault == nil || p.fault.Err != ErrHung {
				t.Errorf("flow %d: %v", i, p.fault)
			}
		}
	}
	if hung == 0 || hung != len(r.stage.Residues()) {
		t.Errorf("%d hung flows, residues %+v", hung, r.stage.Residues())
	}
	r.lasting = true
	r.finish()
	stays(r, hung, false)
}

// A drain that does not come back within 30 seconds proves nothing any more; what it says later is not waited for, and
// meets nobody.
func TestADrainThatHangsIsGivenUp(t *testing.T) {
	r := newRig(t, Config{ChunkBytes: 64, Chunks: 4})
	d, other := r.allocate(0, workSize, 1), r.allocate(0, workSize, 1)
	r.driver.Plan(simcuda.Fault{Kind: simcuda.FailCall, Call: simcuda.CallQuery}, simcuda.Fault{Kind: simcuda.SlowCall, Call: simcuda.CallSynchronize, By: 40 * time.Second})
	p := r.pipe(d, In, 0, 300, pattern(300, 2))
	r.run(p, d)
	if p.proven || p.fault == nil || !errors.Is(p.fault.Err, cuda.ErrCopy) || len(r.stage.Residues()) != 1 || r.stage.Residues()[0].Reason != ErrHung {
		t.Errorf("%v, residues %+v", p.fault, r.stage.Residues())
	}
	r.pass(time.Minute)
	after := r.pipe(other, Out, 0, 300, nil)
	r.run(after, other)
	if after.fault != nil || !after.proven {
		t.Errorf("other memory afterwards: %v", after.fault)
	}
	r.lasting = true
	r.finish()
	stays(r, 1, false)
}

// When every chunk of a role is retained, those that wait are told so, and so is whoever comes.
func TestWhenEveryChunkIsRetainedNobodyWaits(t *testing.T) {
	r := newRig(t, Config{ChunkBytes: 64, Chunks: 1})
	first, second := r.allocate(0, workSize, 1), r.allocate(0, workSize, 1)
	r.driver.Plan(simcuda.Fault{Kind: simcuda.FailCall, Call: simcuda.CallQuery}, simcuda.Fault{Kind: simcuda.FailCall, Call: simcuda.CallSynchronize})
	p, waiter := r.pipe(first, Out, 0, 100, nil), r.pipe(second, Out, 0, 100, nil)
	if fault := p.start(first); fault != nil {
		t.Fatal(fault)
	}
	r.run(waiter, second)
	if waiter.fault == nil || waiter.fault.Err != ErrAllRetained || !waiter.proven || p.proven {
		t.Errorf("waiter: %v, proven %v; first: %v", waiter.fault, waiter.proven, p.fault)
	}
	if fault := r.pipe(second, Out, 200, 100, nil).start(second); fault == nil || fault.Cause != lanes.Exhausted {
		t.Errorf("a new flow: %v", fault)
	}
	r.lasting = true
	r.finish()
	stays(r, 1, false)
}

// A flow that is ended at any moment ends only when its copies are confirmed: its lease comes back when the twin no
// longer touches the range.
//
// proves G-8
func TestAnEarlyEndWaitsForCopiesUnderWay(t *testing.T) {
	mappings(t)
	for at := time.Duration(0); at < 200*time.Microsecond; at += 7 * time.Microsecond {
		for _, way := range []Way{Out, In} {
			r := newRig(t, Config{ChunkBytes: 64, Chunks: 3})
			d := r.allocate(0, workSize, 1)
			r.driver.Plan(simcuda.Fault{Kind: simcuda.SlowCopy, Count: -1, By: 100 * time.Microsecond})
			p := r.pipe(d, way, 100, 500, nil)
			if way == In {
				p.bytes = pattern(500, 2)
			}
			if fault := p.start(d); fault != nil {
				t.Fatal(fault)
			}
			r.pass(at)
			if p.ended == 0 {
				p.end()
			}
			if p.ended > 0 && r.driver.Live().Operations > 0 {
				t.Errorf("%v ended after %v with a copy under way", wayNames[way], at)
			}
			r.until("the end", func() bool { return p.ended > 0 })
			if live := r.driver.Live(); live.Operations != 0 || !p.proven || !d.backing.Quiet() {
				t.Errorf("%v ended after %v: proven %v, %+v", wayNames[way], at, p.proven, live)
			}
			r.finish()
		}
	}
}

// Prepare fails whole: at each call, with nothing left of it, and works the next time.
func TestAFailedPrepareLeavesNothing(t *testing.T) {
	mappings(t)
	for _, call := range []simcuda.Call{simcuda.CallOpenSignal, simcuda.CallAllocateHost} {
		for index := range 4 {
			r := newRig(t, Config{ChunkBytes: 64, Chunks: 2})
			d := r.unprepared(0, workSize, 1)
			r.driver.Plan(simcuda.Fault{Kind: simcuda.FailCall, Call: call, Index: index, Result: cuda.OutOfMemory})
			err := r.stage.Prepare(d.memory)
			if refused := call == simcuda.CallAllocateHost || index == 0; refused != errors.Is(err, &cuda.CallError{Result: cuda.OutOfMemory}) {
				t.Errorf("%v %d: %v", call, index, err)
			}
			if live := r.driver.Live(); err != nil && (live.Pinned != 0 || live.Signals != 0 || r.pinned.Used() != 0) {
				t.Errorf("%v %d left %+v, charged %d", call, index, live, r.pinned.Used())
			}
			if err := r.stage.Prepare(d.memory); err != nil {
				t.Error(err)
			}
			if got := r.stage.Stats(); got.PinnedBytes != 4*64 || got.Chunks != 4 || r.pinned.Used() != 4*64 {
				t.Errorf("%+v, charged %d", got, r.pinned.Used())
			}
			r.run(r.pipe(d, Out, 0, 500, nil), d)
			r.finish()
		}
	}
}
