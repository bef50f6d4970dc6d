package local

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/test/graves"
)

// rig is one lane without any socket.
type rig struct {
	graves.Graves[Transfer]

	t             *testing.T
	world         *simkernel.World
	process       *simkernel.Process
	lane          *lanes.Lane
	tracker       *segments.Tracker
	count, bytes  *budgets.Budget
	backings      []*segments.Backing
	mapped, sizes int64
	gpus          *gpus // nil: none
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, world: simkernel.NewWorld(1, simkernel.WorldOptions{})}
	r.mapped, r.sizes = segments.Mappings()
	r.count, r.bytes = budgets.New("registrations", "registrations", 16), budgets.New("bytes", "bytes", 1<<30)
	r.tracker = segments.NewTracker(r.count, r.bytes, nil)
	r.process = r.world.Process("one", netip.MustParseAddr("10.0.0.1"))
	r.lane = &lanes.Lane{
		Loop:    reactor.NewLoop(r.process.Kernel(), reactor.Options{Mode: reactor.Manual}),
		Policy:  &lanes.Policy{PayloadBytesMax: 8 << 20},
		Tracker: r.tracker,
	}
	r.world.Add(func() bool { defer r.Dig(r.t); return r.lane.Turn(reactor.Forever) })
	return r
}

// finish checks that nothing is left, and that neither socket nor system was used (field case F-71).
func (r *rig) finish() {
	r.t.Helper()
	r.gpus.close()
	r.tracker.RetireAll()
	for _, b := range r.backings {
		if !b.Quiet() {
			r.t.Error("a lease is out")
		}
		b.Drop()
	}
	if r.count.Used() != 0 || r.bytes.Used() != 0 {
		r.t.Errorf("%d registrations of %d bytes are charged", r.count.Used(), r.bytes.Used())
	}
	r.gpus.check()
	if c, s := segments.Mappings(); c != r.mapped || s != r.sizes {
		r.t.Errorf("%d mappings are left", c-r.mapped)
	}
	if k := r.lane.Kernel().Counters(); k.Submitted != 0 && r.gpus == nil || r.process.Descriptors() != 0 {
		r.t.Errorf("a local copy used the system: %+v", k)
	}
	if err := r.lane.Close(); err != nil {
		r.t.Error(err)
	}
}

// register maps n bytes and registers parts of them.
func (r *rig) register(n uint64, fill byte, p netproto.Permission) *segments.Registration {
	r.t.Helper()
	b, err := segments.Map(n)
	if err != nil {
		r.t.Fatal(err)
	}
	whole := b.Bytes()
	for i := range whole {
		whole[i] = fill + byte(i%61)
	}
	r.backings = append(r.backings, b)
	return r.part(b, 0, n, p)
}

func (r *rig) part(b *segments.Backing, offset, n uint64, p netproto.Permission) *segments.Registration {
	r.t.Helper()
	list, err := r.tracker.Register([]segments.Spec{{Backing: b, Offset: offset, Length: n, Permission: p}})
	if err != nil {
		r.t.Fatal(err)
	}
	return list[0]
}

func content(g *segments.Registration) []byte {
	return g.Backing().Bytes()[g.Offset():][:g.Length()]
}

// attempt is one transfer of a test.
type attempt struct {
	Transfer
	done int
}

func (r *rig) ask(d lanes.Direction, local *segments.Registration, region *segments.Registration) *attempt {
	a := &attempt{}
	a.Direction, a.Local, a.Region, a.Length = d, local, region.ID(), local.Length()
	a.Deadline = r.world.Now().After(time.Second)
	a.Done = func(t *Transfer) {
		a.done++
		t.Local.Return()
		if t.letter.Waiting() {
			r.t.Error("a transfer has ended with a letter on its way: on another lane it would meet it")
		}
		r.Inter(t, sentinel)
	}
	return a
}

func (r *rig) start(a *attempt) *attempt {
	if !a.Local.Lend() {
		r.t.Fatal("retired")
	}
	a.done = 0
	a.Start(r.lane)
	r.Dig(r.t)
	return a
}

func (r *rig) wait(a *attempt) lanes.Outcome {
	r.t.Helper()
	if err := r.world.RunUntil(func() bool { r.Dig(r.t); return a.done > 0 }, r.world.Now().After(time.Minute)); err != nil {
		r.t.Fatal(err)
	}
	return a.Outcome
}

func cause(o lanes.Outcome) (lanes.Cause, netproto.Status) {
	if f, ok := o.Err.(*lanes.Fault); ok {
		return f.Cause, f.Status
	}
	return 0, 0
}

// A copy moves exactly the range, in slices between which others have their turn, and touches no socket.
//
// field case F-71
// proves L-2
func TestLocalCopyMovesTheRangeInSlices(t *testing.T) {
	r := newRig(t)
	const length = 3*lanes.SliceBytes + 5
	remote, local := r.register(length, 1, netproto.ReadWrite), r.register(length, 100, netproto.LocalOnly)
	ticks := 0
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		want := bytes.Clone(content(remote))
		if d == lanes.Write {
			for i, part := 0, content(local); i < len(part); i += 7 {
				part[i] ^= 0x55
			}
			want = bytes.Clone(content(local))
		}
		a := r.start(r.ask(d, local, remote))
		if a.done != 0 {
			t.Fatal("a large copy kept the lane until its end")
		}
		for a.done == 0 {
			r.lane.Turn(reactor.Past)
			ticks++
		}
		r.Dig(t)
		o := a.Outcome
		wanted := lanes.Outcome{Bytes: length, Local: lanes.EffectComplete, Drained: true}
		if d == lanes.Write {
			wanted.Local, wanted.Remote = lanes.EffectNone, lanes.EffectComplete
		}
		if o != wanted || !bytes.Equal(content(remote), want) || !bytes.Equal(content(local), want) {
			t.Errorf("%v: %+v", d, o)
		}
	}
	if ticks != 6 {
		t.Errorf("%d turns for two copies of four slices", ticks)
	}
	if n := r.lane.Counts.LocalCopies.Load(); n != 2 {
		t.Errorf("%d copies are counted", n)
	}
	r.finish()
}

// A local request is checked like any other: region, permission, range, size. Nothing is touched.
//
// proves M-8, G-7
func TestLocalRequestIsCheckedLikeAnyOther(t *testing.T) {
	r := newRig(t)
	local := r.register(100, 100, netproto.LocalOnly)
	hidden, readOnly, writeOnly := r.register(100, 1, netproto.LocalOnly), r.register(100, 1, netproto.RemoteRead), r.register(100, 1, netproto.RemoteWrite)
	before := [][]byte{bytes.Clone(content(local)), bytes.Clone(content(hidden)), bytes.Clone(content(readOnly)), bytes.Clone(content(writeOnly))}
	for _, k := range []struct {
		name           string
		direction      lanes.Direction
		region         uint64
		offset, length uint64
		status         netproto.Status
	}{
		{"unknown region", lanes.Read, 99, 0, 8, netproto.StatusUnknownRegion},
		{"hidden region", lanes.Read, hidden.ID(), 0, 8, netproto.StatusPermissionDenied},
		{"READ of write-only", lanes.Read, writeOnly.ID(), 0, 8, netproto.StatusPermissionDenied},
		{"WRITE to read-only", lanes.Write, readOnly.ID(), 0, 8, netproto.StatusPermissionDenied},
		{"too far", lanes.Read, readOnly.ID(), 93, 8, netproto.StatusInvalidRange},
		{"overflow", lanes.Write, writeOnly.ID(), ^uint64(0), 8, netproto.StatusInvalidRange},
		{"too long", lanes.Read, readOnly.ID(), 0, 8<<20 + 1, netproto.StatusExhausted},
		{"empty, of a hidden region", lanes.Read, hidden.ID(), 0, 0, netproto.StatusPermissionDenied},
	} {
		a := r.ask(k.direction, local, readOnly)
		a.Region, a.Offset, a.Length = k.region, k.offset, k.length
		o := r.wait(r.start(a))
		if c, s := cause(o); c != lanes.Refused || s != k.status || o.Local != lanes.EffectNone || o.Remote != lanes.EffectNone || !o.Drained {
			t.Errorf("%s: %+v", k.name, o)
		}
	}
	empty := r.ask(lanes.Read, local, readOnly)
	empty.Offset, empty.LocalOffset, empty.Length = 100, 100, 0
	if o := r.wait(r.start(empty)); o.Err != nil || o.Bytes != 0 {
		t.Errorf("an empty request: %+v", o)
	}
	for i, g := range []*segments.Registration{local, hidden, readOnly, writeOnly} {
		if !bytes.Equal(content(g), before[i]) {
			t.Errorf("memory %d changed", i)
		}
	}
	r.finish()
}

// A transfer that is used again reports only itself: a refusal after a finished copy changed nothing.
func TestReusedTransferReportsOnlyItself(t *testing.T) {
	r := newRig(t)
	remote, local := r.register(64, 1, netproto.RemoteRead), r.register(64, 100, netproto.LocalOnly)
	a := r.ask(lanes.Read, local, remote)
	if o := r.wait(r.start(a)); o.Err != nil {
		t.Fatal(o.Err)
	}
	a.Length = 8<<20 + 1
	if o := r.wait(r.start(a)); o.Err == nil || o.Local != lanes.EffectNone {
		t.Errorf("%+v", o)
	}
	a.Length, a.Region = 64, 77
	if o := r.wait(r.start(a)); o.Err == nil || o.Local != lanes.EffectNone {
		t.Errorf("%+v", o)
	}
	r.finish()
}

// Conflicting leases on either side are waited for, until the deadline or the end by its owner.
//
// proves M-9
func TestLocalCopyWaitsForLeases(t *testing.T) {
	for _, side := range []string{"local", "remote"} {
		for _, end := range []string{"released", "deadline", "cancelled"} {
			r := newRig(t)
			remote, local := r.register(64, 1, netproto.ReadWrite), r.register(64, 100, netproto.LocalOnly)
			held := map[string]*segments.Registration{"local": local, "remote": remote}[side]
			lease, err := held.Lease(10, 1, segments.Exclusive)
			if err != nil {
				t.Fatal(err)
			}
			before := bytes.Clone(content(local))
			a := r.start(r.ask(lanes.Read, local, remote))
			_ = r.world.RunUntil(func() bool { return a.done > 0 }, r.world.Now().After(10*time.Millisecond))
			if a.done > 0 {
				t.Fatalf("%s: it did not wait: %+v", side, a.Outcome)
			}
			want := lanes.Cause(0)
			switch end {
			case "released":
				lease.Return()
			case "cancelled":
				a.Cancel()
				want = lanes.Cancelled
				if a.done != 1 {
					t.Error("a waiting copy was not ended at once")
				}
			case "deadline":
				want = lanes.Deadline
			}
			o := r.wait(a)
			if c, _ := cause(o); c != want || !o.Drained {
				t.Errorf("%s, %s: %+v", side, end, o)
			}
			if end == "deadline" {
				if late := r.world.Now() - a.Deadline; late < 0 || late > reactor.Instant(time.Millisecond) || !errors.Is(o.Err, segments.ErrConflict) {
					t.Errorf("%v after the deadline: %v", time.Duration(late), o.Err)
				}
			}
			if end != "released" {
				lease.Return()
				if !bytes.Equal(content(local), before) || o.Local != lanes.EffectNone {
					t.Errorf("%s, %s: the range changed", side, end)
				}
			}
			a.Cancel() // ended: nothing happens
			if a.done != 1 || r.lane.Counts.ConflictRetries.Load() == 0 {
				t.Errorf("done %d times, %d retries", a.done, r.lane.Counts.ConflictRetries.Load())
			}
			r.finish()
		}
	}
}

// A copy onto itself would wait for itself: it is refused at once. Parts of one object that do not
// overlap are fine, also through aliases.
//
// proves M-9, M-3
func TestCopyOntoItselfIsRefused(t *testing.T) {
	r := newRig(t)
	whole := r.register(100, 1, netproto.ReadWrite)
	alias := r.part(whole.Backing(), 20, 50, netproto.LocalOnly)
	a := r.ask(lanes.Read, alias, whole)
	a.Offset, a.Length = 69, 10 // ends before 79; alias covers 20..30
	if o := r.wait(r.start(a)); o.Err != nil {
		t.Errorf("%+v", o)
	}
	a.Offset, a.Length = 29, 10
	before := bytes.Clone(content(whole))
	o := r.wait(r.start(a))
	if c, _ := cause(o); c != lanes.Conflicted || !errors.Is(o.Err, segments.ErrConflict) || !bytes.Equal(before, content(whole)) {
		t.Errorf("%+v", o)
	}
	a.Length = 0
	if o := r.wait(r.start(a)); o.Err != nil {
		t.Errorf("an empty one: %+v", o)
	}
	r.finish()
}

// A copy that has begun is completed, whatever comes: no range is left half changed.
//
// proves T-1
func TestCopyUnderWayIsCompleted(t *testing.T) {
	r := newRig(t)
	const length = 2*lanes.SliceBytes + 1
	remote, local := r.register(length, 1, netproto.ReadWrite), r.register(length, 100, netproto.LocalOnly)
	a := r.ask(lanes.Read, local, remote)
	a.Deadline = r.world.Now().After(time.Nanosecond)
	r.start(a)
	r.world.Advance(time.Second)
	a.Cancel()
	if last, err := r.tracker.Unregister(remote.ID()); err != nil || !last {
		t.Fatal(err)
	}
	if o := r.wait(a); o.Err != nil || o.Local != lanes.EffectComplete || !bytes.Equal(content(local), r.backings[0].Bytes()[:length]) {
		t.Errorf("%+v", o)
	}
	r.finish()
}

// Steady copies allocate nothing.
//
// proves L-6
func TestLocalCopyAllocatesNothing(t *testing.T) {
	r := newRig(t)
	remote, local := r.register(lanes.SliceBytes+1, 1, netproto.ReadWrite), r.register(lanes.SliceBytes+1, 100, netproto.LocalOnly)
	a := r.ask(lanes.Write, local, remote)
	a.Done = func(t *Transfer) { t.Local.Return(); a.done++ }
	run := func() {
		r.start(a)
		for a.done == 0 {
			r.lane.Turn(reactor.Past)
		}
	}
	if n := testing.AllocsPerRun(20, run); n != 0 {
		t.Errorf("%v allocations", n)
	}
	r.finish()
}
