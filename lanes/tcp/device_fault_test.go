package tcp

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/staging"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
)

// faulty is one transfer of device ranges, one end of which meets a fault.
type faulty struct {
	r                 *rig
	source, requester *node
	sick              *node // whose GPUs have the fault
	remote, local     *memory
	outcome           lanes.Outcome
	struck            bool
}

func newFaulty(t *testing.T, seed uint64, d lanes.Direction, atSource bool, plan ...simcuda.Fault) *faulty {
	t.Helper()
	r := newRig(t, seed, simkernel.WorldOptions{})
	s := setup{gpu: &staging.Config{ChunkBytes: 100, Chunks: 2}, sourceTimeout: 2 * time.Minute}
	f := &faulty{r: r, source: r.node(sourceHost, s), requester: r.node(requesterHost, s)}
	f.remote, f.local = f.source.registerDevice(390, netproto.ReadWrite, 1), f.requester.registerDevice(390, netproto.LocalOnly, 2)
	f.sick = f.requester
	if atSource {
		f.sick = f.source
	}
	f.sick.gpu.driver.Plan(plan...)
	a := f.requester.ask(d, f.local, f.remote.ID())
	a.Deadline = r.world.Now().After(time.Minute)
	f.outcome = r.wait(a.start(f.requester.channel(f.source.address)))
	n, _ := f.sick.gpu.driver.Struck()
	f.struck = n > 0
	r.until("the source's end", func() bool { return f.source.admission.Gate.Inside() == 0 })
	return f
}

// again runs another transfer between the same nodes, which has to succeed.
func (f *faulty) again(d lanes.Direction) {
	f.r.t.Helper()
	remote, local := f.source.registerDevice(390, netproto.ReadWrite, 1), f.requester.registerDevice(390, netproto.LocalOnly, 2)
	a := f.requester.ask(d, local, remote.ID())
	o := f.r.wait(a.start(f.requester.channel(f.source.address)))
	target, seed := local, byte(1)
	if d == lanes.Write {
		target, seed = remote, 2
	}
	if o.Err != nil || !target.holds(seed) {
		f.r.t.Errorf("a transfer of other memory afterwards: %+v", o)
	}
}

// finish closes, and says whether anything is retained.
func (f *faulty) finish() (kept bool) {
	f.r.t.Helper()
	g := f.sick.gpu
	kept = len(g.platform.Retained())+len(g.stage.Residues()) > 0
	g.lasting = kept
	f.r.finish()
	return kept
}

// Each driver call of a transfer fails once, at each occurrence, at either end: the outcome says what is true, a drain
// proves the quiet, nothing is left, and the next transfer succeeds.
//
// proves C-3, T-10
func TestAFailingDeviceAtEitherEndFailsTheTransferAlone(t *testing.T) {
	mappings(t)
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		for _, atSource := range []bool{false, true} {
			for _, call := range []simcuda.Call{simcuda.CallCopy, simcuda.CallRecord, simcuda.CallQuery, simcuda.CallCallback, simcuda.CallTakeSignal} {
				plan := simcuda.Fault{Kind: simcuda.FailCall, Device: 1, Call: call}
				if call == simcuda.CallTakeSignal { // is about no device
					plan.Device = 0
				}
				for failOnce(t, d, atSource, plan) {
					plan.Index++
					plan.Effect = cuda.Effect(plan.Index % 2)
				}
			}
		}
	}
}

// failOnce is false when the fault never struck.
func failOnce(t *testing.T, d lanes.Direction, atSource bool, plan simcuda.Fault) (struck bool) {
	t.Run(fmt.Sprintf("%v-source=%v-%v", d, atSource, plan), func(t *testing.T) {
		f := newFaulty(t, uint64(plan.Index), d, atSource, plan)
		struck = f.struck
		harmless := plan.Call == simcuda.CallCallback || plan.Call == simcuda.CallTakeSignal || !struck
		if harmless != (f.outcome.Err == nil) {
			t.Errorf("struck %v: %+v", struck, f.outcome)
		}
		early(t, d, f.outcome, f.local, f.remote)
		if !harmless {
			blame(t, f, d, atSource)
		}
		f.again(d)
		if f.finish() {
			t.Error("something is retained although a drain proves everything")
		}
	})
	return struck
}

// blame checks the cause: the requester's own device, the source's refusal before the payload, or a lost stream.
func blame(t *testing.T, f *faulty, d lanes.Direction, atSource bool) {
	t.Helper()
	cause := fault(t, f.outcome)
	switch {
	case !atSource && (cause.Cause != lanes.DeviceFailed || !errors.Is(cause, cuda.ErrCopy)):
		t.Errorf("%v, want a failed copy", cause)
	case atSource && cause.Cause == lanes.Refused && (d != lanes.Read || cause.Status != netproto.StatusInternalError):
		t.Errorf("%v, want an internal error of the source", cause)
	case atSource && cause.Cause != lanes.Refused && cause.Cause != lanes.Disconnected:
		t.Errorf("%v, want a lost stream", cause)
	case atSource && d == lanes.Write && f.outcome.Remote != lanes.EffectUnknown:
		t.Errorf("%+v, want an unknown effect", f.outcome)
	}
}

// When no drain proves anything, the outcome says that the memory is not quiet, its lease is never given again, and all
// of it is listed and charged; the other engine is whole.
//
// proves G-9
func TestAnUnprovenCopyKeepsItsRangeAndSaysSo(t *testing.T) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		for _, atSource := range []bool{false, true} {
			for index := range 4 {
				f := newFaulty(t, uint64(index), d, atSource, simcuda.Fault{Kind: simcuda.FailCall, Call: simcuda.CallQuery, Index: index},
					simcuda.Fault{Kind: simcuda.FailCall, Call: simcuda.CallSynchronize, Count: -1})
				sick := f.local
				if atSource {
					sick = f.remote
				}
				f.r.until("the residue", func() bool { return len(f.sick.gpu.stage.Residues()) == 1 })
				if f.outcome.Err == nil || f.outcome.Drained != atSource {
					t.Errorf("%v at source %v: %+v", d, atSource, f.outcome)
				}
				if _, err := sick.backing.Lend(0, 390, segments.Exclusive); !errors.Is(err, segments.ErrConflict) {
					t.Errorf("the range of a copy that may go on was lent again: %v", err)
				}
				if loans := sick.Loans(); atSource != (loans == 1) {
					t.Errorf("%d loans of the registration at source %v", loans, atSource)
				}
				if got := f.sick.gpu.stage.Stats(); got.Retained != 1 || got.InUse == 0 {
					t.Errorf("%+v", got)
				}
				if !f.finish() {
					t.Error("nothing is retained")
				}
			}
		}
	}
}

// A source whose stream is lost in the middle of a payload counts the frame until its copies are confirmed, so that
// CloseSource waits for them.
//
// proves G-6
func TestASourceIsQuietOnlyWhenItsCopiesAre(t *testing.T) {
	mappings(t)
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		r := newRig(t, 5, simkernel.WorldOptions{})
		s := setup{gpu: &staging.Config{ChunkBytes: 100, Chunks: 2}}
		source, requester := r.node(sourceHost, s), r.node(requesterHost, s)
		remote, local := source.registerDevice(390, netproto.ReadWrite, 1), requester.registerDevice(390, netproto.LocalOnly, 2)
		source.gpu.driver.Plan(simcuda.Fault{Kind: simcuda.SlowCopy, Count: -1, By: 100 * time.Millisecond})
		a := requester.ask(d, local, remote.ID()).start(requester.channel(source.address))
		r.until("a copy at the source", func() bool { return source.gpu.stage.Stats().Flying > 0 })
		for _, c := range r.world.Connections() {
			c.Reset()
		}
		r.wait(a)
		r.until("the source's word", func() bool { return source.server.Sessions() == 0 })
		if source.gpu.driver.Live().Operations == 0 || source.admission.Gate.Inside() != 1 || source.admission.Handlers.Used() != 0 {
			t.Errorf("%v: %+v, %d inside", d, source.gpu.driver.Live(), source.admission.Gate.Inside())
		}
		source.admission.Gate.Fence()
		r.until("quiet", func() bool { return source.admission.Gate.Inside() == 0 })
		if live := source.gpu.driver.Live(); live.Operations != 0 || remote.Loans() != 0 {
			t.Errorf("%v: quiet with %+v and %d loans", d, live, remote.Loans())
		}
		r.finish()
	}
}

// A transfer whose peer waits for a chunk is bounded by its deadline at the requester, and by the source's at the source;
// then the chunk that was held is free again.
//
// proves T-9
func TestWaitingForChunksIsBoundedByEachSidesDeadline(t *testing.T) {
	mappings(t)
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		for _, atSource := range []bool{false, true} {
			r := newRig(t, 5, simkernel.WorldOptions{})
			s := setup{gpu: &staging.Config{ChunkBytes: 100, Chunks: 1}, sourceTimeout: 300 * time.Millisecond}
			source, requester := r.node(sourceHost, s), r.node(requesterHost, s)
			remote, local := source.registerDevice(390, netproto.ReadWrite, 1), requester.registerDevice(390, netproto.LocalOnly, 2)
			role, n, m := staging.Requester, requester, local
			if atSource {
				role, n, m = staging.Source, source, remote
			}
			h := &hog{}
			if fault := h.flow.Start(n.gpu.stage, h, staging.Plan{Role: role, Way: staging.In, Memory: m.device, Address: m.Address(), Length: 390, Deadline: 1 << 62}); fault != nil {
				t.Fatal(fault)
			}
			a := requester.ask(d, local, remote.ID())
			o := r.wait(a.start(requester.channel(source.address)))
			cause := fault(t, o)
			if !o.Drained || atSource && cause.Cause != lanes.Disconnected || !atSource && cause.Cause != lanes.Disconnected && cause.Cause != lanes.Deadline {
				t.Errorf("%v at source %v: %+v", d, atSource, o)
			}
			h.flow.End()
			r.until("quiet", func() bool {
				return source.gpu.stage.Stats().InUse+requester.gpu.stage.Stats().InUse == 0 && source.admission.Gate.Inside() == 0
			})
			again := requester.ask(d, local, remote.ID())
			if o := r.wait(again.start(requester.channel(source.address))); o.Err != nil {
				t.Error(o.Err)
			}
			r.finish()
		}
	}
}

// hog holds a chunk.
type hog struct{ flow staging.Flow }

func (*hog) Advanced(*staging.Flow)    {}
func (*hog) Ended(*staging.Flow, bool) {}

// A device range where a lane has no stage is refused before anything is sent, or with a status.
func TestADeviceRangeWithoutAStageIsRefused(t *testing.T) {
	mappings(t)
	for _, atSource := range []bool{false, true} {
		r := newRig(t, 5, simkernel.WorldOptions{})
		gpu := &staging.Config{ChunkBytes: 100}
		source, requester := r.node(sourceHost, setup{gpu: gpu}), r.node(requesterHost, setup{gpu: gpu})
		remote, local := source.place(atSource, 390, netproto.ReadWrite, 1), requester.place(!atSource, 390, netproto.LocalOnly, 2)
		source.lane.Staging, requester.lane.Staging = nil, nil
		o := r.wait(requester.ask(lanes.Read, local, remote.ID()).start(requester.channel(source.address)))
		cause := fault(t, o)
		if !atSource && (cause.Err != staging.ErrAbsent || requester.lane.Counts.Connects.Load() > 0) || atSource && cause.Status != netproto.StatusInternalError {
			t.Errorf("%+v", o)
		}
		r.finish()
	}
}
