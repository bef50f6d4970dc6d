package local

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/staging"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

// gpus is a driver with two GPUs beside the rig's lane, and its stage.
type gpus struct {
	rig      *rig
	driver   *simcuda.Driver
	platform *cuda.Platform
	cold     *reactor.Loop
	pinned   *budgets.Budget
	stage    *staging.Stage
	memories []*cuda.Memory
	closed   bool
}

func (r *rig) equip(c staging.Config) *gpus {
	r.t.Helper()
	w, g := r.world, &gpus{rig: r, pinned: budgets.New("pinned staging", "bytes", 1<<30)}
	g.driver = simcuda.New(w.Seed(), simcuda.Options{
		Now: func() time.Duration { return time.Duration(w.Now()) }, Later: w.Later, Sleep: w.Advance,
		Violation: func(err error) { r.t.Error(err) },
		Signal: func(*simcuda.Driver) (int, func(), func(), func(), error) {
			d, set, err := r.process.Signal()
			return int(d), set, func() { r.process.Unsignal(d) }, func() { _ = r.lane.Kernel().Close(d) }, err
		},
	})
	r.t.Cleanup(g.driver.Kill)
	platform, err := cuda.Open(g.driver)
	if err != nil {
		r.t.Fatal(err)
	}
	g.platform, g.cold = platform, reactor.NewLoop(r.process.Kernel(), reactor.Options{Name: "cold", Mode: reactor.Manual})
	w.Add(func() bool { return g.cold.Turn(reactor.Forever) })
	c.Budget, c.Cold = g.pinned, g.cold
	g.stage = staging.New(r.lane, c)
	r.lane.Staging, r.gpus = g.stage, g
	return g
}

// device registers n bytes on a GPU.
func (g *gpus) device(ordinal int, n uint64, fill byte, p netproto.Permission) *segments.Registration {
	r := g.rig
	r.t.Helper()
	m, err := g.platform.Allocate(ordinal, n)
	if err != nil {
		r.t.Fatal(err)
	}
	g.memories = append(g.memories, m)
	b, err := segments.AdoptDevice(uint64(m.Pointer()), n, m, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := g.stage.Prepare(m); err != nil {
		r.t.Fatal(err)
	}
	whole := make([]byte, n)
	for i := range whole {
		whole[i] = fill + byte(i%61)
	}
	g.driver.Poke(m.Pointer(), whole)
	r.backings = append(r.backings, b)
	return r.part(b, 0, n, p)
}

// pin registers n bytes of pinned host memory.
func (g *gpus) pin(n uint64, fill byte, p netproto.Permission) *segments.Registration {
	r := g.rig
	r.t.Helper()
	h, err := g.platform.AllocateHost(0, n)
	if err != nil {
		r.t.Fatal(err)
	}
	b, err := segments.AdoptHost(h.Address(), n, h, func() {
		if err := h.Free(); err != nil {
			r.t.Error(err)
		}
	})
	if err != nil {
		r.t.Fatal(err)
	}
	for i := range b.Bytes() {
		b.Bytes()[i] = fill + byte(i%61)
	}
	r.backings = append(r.backings, b)
	return r.part(b, 0, n, p)
}

// content reads what a registration holds, wherever it is.
func (g *gpus) content(x *segments.Registration) []byte {
	m := staging.MemoryOf(x)
	if m == nil {
		return bytes.Clone(content(x))
	}
	b := make([]byte, x.Length())
	g.driver.Peek(cuda.Pointer(x.Address()), b)
	return b
}

func (g *gpus) close() {
	if g == nil {
		return
	}
	g.stage.Close(func() { g.closed = true })
	if err := g.rig.world.RunUntil(func() bool { return g.closed }, g.rig.world.Now().After(time.Minute)); err != nil {
		g.rig.t.Fatal(err)
	}
}

func (g *gpus) check() {
	if g == nil {
		return
	}
	t := g.rig.t
	for _, m := range g.memories {
		if err := m.Drop(); err != nil {
			t.Error(err)
		}
	}
	over := false
	g.rig.world.Later(time.Second, func() { over = true })
	if err := g.rig.world.RunUntil(func() bool { return over }, reactor.Forever); err != nil {
		t.Fatal(err)
	}
	if live := g.driver.Live(); live != (simcuda.Live{}) || g.pinned.Used() != 0 {
		t.Errorf("native objects are left: %+v, charged %d", live, g.pinned.Used())
	}
	if err := g.cold.Close(); err != nil {
		t.Error(err)
	}
	if err := g.platform.Close(); err != nil {
		t.Error(err)
	}
}

// places are the kinds of memory that a range can be in.
var places = []string{"host", "GPU 0", "GPU 1", "pinned host"}

func (g *gpus) place(at int, n uint64, fill byte, p netproto.Permission) *segments.Registration {
	switch at {
	case 0:
		return g.rig.register(n, fill, p)
	case 3:
		return g.pin(n, fill, p)
	}
	return g.device(at-1, n, fill, p)
}

// An engine's own requests between host and device memory, and between devices, move exactly their range, through chunks
// of every size; from device to device, and to and from pinned memory, it is one copy.
//
// proves C-4
func TestLocalDeviceCopiesMoveExactlyTheirRange(t *testing.T) {
	const n = 101
	for local := range places {
		for remote := range places {
			if local%3+remote%3 == 0 { // no device
				continue
			}
			t.Run(places[local]+"-"+places[remote], func(t *testing.T) {
				for _, chunk := range []uint64{1, 2, 50, 60, 61, 62, 1000} {
					r := newRig(t)
					g := r.equip(staging.Config{ChunkBytes: chunk, Chunks: int(1 + chunk%3)})
					mine, theirs := g.place(local, n, 1, netproto.LocalOnly), g.place(remote, n, 100, netproto.ReadWrite)
					for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
						from, to := theirs, mine
						if d == lanes.Write {
							from, to = mine, theirs
						}
						a := r.ask(d, mine, theirs)
						a.LocalOffset, a.Offset, a.Length = 3, 17, 61
						source, target := a.Offset, a.LocalOffset
						if d == lanes.Write {
							source, target = target, source
						}
						want := g.content(to)
						copy(want[target:target+61], g.content(from)[source:])
						before := g.stage.Stats().Copies
						if o := r.wait(r.start(a)); o.Err != nil || o.Bytes != 61 || !o.Drained {
							t.Fatalf("%+v", o)
						}
						if !bytes.Equal(g.content(to), want) {
							t.Errorf("%v by %d: wrong bytes", d, chunk)
						}
						if copies := g.stage.Stats().Copies - before; local > 0 && remote > 0 && local+remote < 6 && copies != 1 {
							t.Errorf("%d copies, want one without chunks", copies)
						}
						a.Length = 0
						if o := r.wait(r.start(a)); o.Err != nil || o.Bytes != 0 {
							t.Errorf("nothing to move: %+v", o)
						}
					}
					r.finish()
				}
			})
		}
	}
}

// Two ranges of one allocation are copied inside the device; overlapping ones are refused.
func TestRangesOfOneDeviceAllocation(t *testing.T) {
	r := newRig(t)
	g := r.equip(staging.Config{ChunkBytes: 10})
	whole := g.device(0, 200, 1, netproto.ReadWrite)
	a := r.ask(lanes.Read, whole, whole)
	a.LocalOffset, a.Offset, a.Length = 120, 11, 70
	want := g.content(whole)
	copy(want[120:190], want[11:])
	if o := r.wait(r.start(a)); o.Err != nil || !bytes.Equal(g.content(whole), want) {
		t.Errorf("%+v", o)
	}
	a.LocalOffset = 80
	if c, _ := cause(r.wait(r.start(a))); c != lanes.Conflicted {
		t.Errorf("%v", a.Outcome.Err)
	}
	r.finish()
}

// A failing copy fails the request, which says what it may have changed, and ends quiet.
//
// proves C-3
func TestAFailingCopyFailsALocalRequest(t *testing.T) {
	for local := range places {
		for remote := range places {
			for _, call := range []simcuda.Call{simcuda.CallCopy, simcuda.CallRecord, simcuda.CallQuery} {
				for index := range 6 {
					if local%3+remote%3 == 0 { // no device
						continue
					}
					r := newRig(t)
					g := r.equip(staging.Config{ChunkBytes: 20, Chunks: 2})
					mine, theirs := g.place(local, 100, 1, netproto.LocalOnly), g.place(remote, 100, 100, netproto.ReadWrite)
					before, want := g.content(mine), g.content(theirs)
					g.driver.Plan(simcuda.Fault{Kind: simcuda.FailCall, Call: call, Effect: cuda.Effect(index % 2), Index: index})
					o := r.wait(r.start(r.ask(lanes.Read, mine, theirs)))
					struck, _ := g.driver.Struck()
					after := g.content(mine)
					name := fmt.Sprintf("%s to %s, %v %d: %+v", places[remote], places[local], call, index, o)
					switch {
					case (o.Err == nil) != (struck == 0), !o.Drained, o.Err == nil && !bytes.Equal(after, want):
						t.Error(name)
					case o.Err != nil && o.Local == lanes.EffectNone && !bytes.Equal(after, before):
						t.Error(name, "changed the range")
					case o.Err != nil && !errors.Is(o.Err, cuda.ErrCopy):
						t.Error(name)
					}
					r.finish()
				}
			}
		}
	}
}

// A request that waits for a chunk ends by its deadline, or at once when it is cancelled; one whose copies run goes on.
func TestALocalRequestCanBeEndedWhileItWaitsForAChunk(t *testing.T) {
	r := newRig(t)
	g := r.equip(staging.Config{ChunkBytes: 20, Chunks: 1})
	mine, theirs := g.device(0, 100, 1, netproto.LocalOnly), r.register(100, 100, netproto.ReadWrite)
	h := &hog{}
	if fault := h.flow.Start(g.stage, h, staging.Plan{Way: staging.In, Memory: staging.MemoryOf(mine), Address: mine.Address(), Length: 100, Deadline: reactor.Forever}); fault != nil {
		t.Fatal(fault)
	}
	a := r.start(r.ask(lanes.Read, mine, theirs))
	if a.Cancel(); a.done != 1 {
		t.Error("a request that waits was cancelled and has not ended")
	}
	r.Dig(t)
	if c, _ := cause(a.Outcome); c != lanes.Cancelled || a.Outcome.Local != lanes.EffectNone {
		t.Errorf("%+v", a.Outcome)
	}
	if c, _ := cause(r.wait(r.start(r.ask(lanes.Read, mine, theirs)))); c != lanes.Deadline {
		t.Errorf("cause %v, want the deadline", c)
	}
	h.flow.End()
	a = r.start(r.ask(lanes.Read, mine, theirs))
	a.Cancel()
	if o := r.wait(a); o.Err != nil {
		t.Errorf("a copy that has begun was ended: %+v", o)
	}
	r.finish()
}

// hog holds a chunk.
type hog struct{ flow staging.Flow }

func (*hog) Advanced(*staging.Flow)    {}
func (*hog) Ended(*staging.Flow, bool) {}
