package cudatest

import (
	"errors"

	"github.com/orbitte/orbitte/cuda"
)

var failureCases = []conformance{
	{"ACopyThatLeavesItsMemoryIsRefused", overrun},
	{"ASubmissionStopsAtTheFailure", stops},
	{"ADoubtfulCopyIsSaidToBe", doubtful},
	{"ARecordThatFailsProvesNothing", noRecord},
	{"ARefusedCallbackLeavesTheRest", noCallback},
	{"AFailedCallLeavesNothingBehind", noEffect},
	{"AContextThatStaysIsSaidToBe", noPop},
}

func overrun(r *rig) {
	if !r.Facts.RefusesOverrun.Holds {
		r.Skip("differs: " + r.Facts.RefusesOverrun.Why)
	}
	s := r.site(r.Ordinals[0])
	p, h := s.allocate(1000), s.pinned(5000)
	done, err := r.Submit(s.context, s.stream, []cuda.Copy{{To: p, From: h.at(0), Bytes: 1000}, {To: p + 1, From: h.at(0), Bytes: 1000}}, s.event, 0)
	r.refused("a copy of one byte too many", err, cuda.InvalidValue)
	if done != (cuda.Submitted{Copies: 1}) {
		r.Errorf("%+v", done)
	}
	r.must(r.Synchronize(s.context, s.stream))
}

// canFail skips where the harness cannot make calls fail. A test of owners asks before it makes any: what it leaves when
// it is skipped half way is the next one's burden.
func (r *rig) canFail() {
	r.Helper()
	if r.Fail == nil {
		r.Skip("absent: a way to make calls fail")
	}
}

// fail plans a failure, where the harness can.
func (r *rig) fail(f Failure) {
	r.Helper()
	r.canFail()
	r.Fail(f)
}

// stops: the first copies go on, the failed one and those behind it never happen, and no event is recorded.
func stops(r *rig) {
	s := r.site(r.Ordinals[0])
	const size = 1000
	p, h, g := s.allocate(4*size), s.pinned(4*size), r.signal()
	model := counting(make([]byte, 4*size), 1)
	s.store(p, model)
	counting(h.bytes, 2)
	r.fail(Failure{Call: "cuMemcpyAsync", Index: 1, Result: cuda.InvalidValue})
	var copies []cuda.Copy
	for i := range 4 {
		copies = append(copies, cuda.Copy{To: p + cuda.Pointer(i*size), From: h.at(i * size), Bytes: size})
	}
	done, err := r.Submit(s.context, s.stream, copies, s.event, g)
	r.refused("the second copy", err, cuda.InvalidValue)
	if done != (cuda.Submitted{Copies: 1}) {
		r.Errorf("%+v", done)
	}
	r.must(r.Synchronize(s.context, s.stream)) // the first one has to end
	copy(model[:size], h.bytes)
	r.same("bytes after a failed submission", s.load(p, 4*size), model)
	if n, err := r.TakeSignal(g); n != 0 || err != nil {
		r.Errorf("%d callbacks of a failed submission, %v", n, err)
	}
}

func doubtful(r *rig) {
	s := r.site(r.Ordinals[0])
	p, h := s.allocate(1000), s.pinned(1000)
	r.fail(Failure{Call: "cuMemcpyAsync", Result: cuda.LaunchFailed, Maybe: true})
	done, err := r.Submit(s.context, s.stream, []cuda.Copy{{To: p, From: h.at(0), Bytes: 1000}}, s.event, 0)
	var call *cuda.CallError
	if done != (cuda.Submitted{Unknown: true}) || !errors.As(err, &call) || call.Effect != cuda.Maybe || call.Result != cuda.LaunchFailed {
		r.Errorf("%+v, %v", done, err)
	}
	r.must(r.Synchronize(s.context, s.stream))
}

func noRecord(r *rig) {
	s := r.site(r.Ordinals[0])
	p, h := s.allocate(1000), s.pinned(1000)
	r.fail(Failure{Call: "cuEventRecord", Result: cuda.InvalidValue})
	done, err := r.Submit(s.context, s.stream, []cuda.Copy{{To: p, From: h.at(0), Bytes: 1000}}, s.event, 0)
	r.refused("the record", err, cuda.InvalidValue)
	if done != (cuda.Submitted{Copies: 1}) {
		r.Errorf("%+v", done)
	}
	r.must(r.Synchronize(s.context, s.stream))
}

func noCallback(r *rig) {
	s := r.site(r.Ordinals[0])
	p, h, g := s.allocate(1000), s.pinned(1000), r.signal()
	s.store(p, counting(make([]byte, 1000), 6))
	r.fail(Failure{Call: "cuLaunchHostFunc", Result: cuda.NotSupported})
	done, err := r.Submit(s.context, s.stream, []cuda.Copy{{To: h.at(0), From: p, Bytes: 1000}}, s.event, g)
	r.refused("the callback", err, cuda.NotSupported)
	if done != (cuda.Submitted{Copies: 1, Recorded: true}) {
		r.Errorf("%+v", done)
	}
	s.await(s.event)
	r.same("bytes of a copy without a callback", h.bytes, counting(make([]byte, 1000), 6))
}

// noEffect: each call that makes something can be refused, and has made nothing then.
func noEffect(r *rig) {
	s := r.site(r.Ordinals[0])
	p := s.allocate(100)
	calls := []struct {
		name string
		make func() error
	}{
		{"cuDevicePrimaryCtxRetain", func() error { _, err := r.AcquirePrimary(s.ordinal); return err }},
		{"cuMemAlloc_v2", func() error { _, err := r.Allocate(s.context, 10); return err }},
		{"cuMemHostAlloc", func() error { _, err := r.AllocateHost(s.context, 10); return err }},
		{"cuStreamCreate", func() error { _, err := r.CreateStream(s.context); return err }},
		{"cuEventCreate", func() error { _, err := r.CreateEvent(s.context); return err }},
		{"cuMemsetD8Async", func() error { return r.Zero(s.context, s.stream, p, 100) }},
	}
	for _, c := range calls {
		r.fail(Failure{Call: c.name, Result: cuda.OutOfMemory})
		r.refused(c.name, c.make(), cuda.OutOfMemory)
	}
}

// noPop: what was asked has happened, and the error says that only the old context could not be put back.
func noPop(r *rig) {
	s := r.site(r.Ordinals[0])
	r.fail(Failure{Call: "cuCtxPopCurrent_v2", Result: cuda.InvalidContext})
	p, err := r.Allocate(s.context, 1000)
	var call *cuda.CallError
	if !errors.As(err, &call) || call.Call != "cuCtxPopCurrent_v2" || call.Effect != cuda.Done || p == 0 {
		r.Fatalf("%#x, %v", uint64(p), err)
	}
	s.store(p, counting(make([]byte, 1000), 1))
	r.must(r.Free(s.context, p))
}
