package cudatest

import (
	"errors"
	"slices"
	"testing"

	"github.com/orbitte/orbitte/cuda"
)

// rig is one test with its driver and all that the test made.
type rig struct {
	*testing.T
	Harness
	cuda.Calls
	kept bool // native objects are left on purpose
	ends []func()
}

// site is a GPU with a context, a stream and an event.
type site struct {
	*rig
	ordinal int
	context cuda.ContextHandle
	stream  cuda.StreamHandle
	event   cuda.EventHandle
}

func newRig(t *testing.T, h Harness) *rig {
	r := &rig{T: t, Harness: h, Calls: h.Calls}
	t.Cleanup(func() {
		for _, end := range slices.Backward(r.ends) {
			end()
		}
		if h.Done != nil {
			if err := h.Done(r.kept); err != nil {
				t.Error(err)
			}
		}
	})
	return r
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// later ends something when the test ends, in reverse order.
func (r *rig) later(what string, end func() error) {
	r.ends = append(r.ends, func() {
		if err := end(); err != nil {
			r.Errorf("end of %s: %v", what, err)
		}
	})
}

// refused checks that a call failed as it should, without effect.
func (r *rig) refused(what string, err error, want ...cuda.Result) {
	r.Helper()
	var call *cuda.CallError
	if !errors.As(err, &call) {
		r.Errorf("%s: %v, want a refusal with %v", what, err, want)
		return
	}
	if !slices.Contains(want, call.Result) || call.Effect != cuda.None || call.Call == "" || call.Name == "" {
		r.Errorf("%s: %v, want one of %v without effect", what, err, want)
	}
}

// site opens a GPU.
func (r *rig) site(ordinal int) *site {
	r.Helper()
	s := &site{rig: r, ordinal: ordinal}
	var err error
	s.context, err = r.AcquirePrimary(ordinal)
	r.must(err)
	r.later("a context", func() error { return r.ReleasePrimary(ordinal) })
	s.stream, s.event = s.newStream(), s.newEvent()
	return s
}

func (s *site) newStream() cuda.StreamHandle {
	s.Helper()
	h, err := s.CreateStream(s.context)
	s.must(err)
	s.later("a stream", func() error { return s.DestroyStream(s.context, h) })
	return h
}

func (s *site) newEvent() cuda.EventHandle {
	s.Helper()
	h, err := s.CreateEvent(s.context)
	s.must(err)
	s.later("an event", func() error { return s.DestroyEvent(s.context, h) })
	return h
}

func (s *site) allocate(bytes uint64) cuda.Pointer {
	s.Helper()
	p, err := s.Allocate(s.context, bytes)
	s.must(err)
	s.later("device memory", func() error { return s.Free(s.context, p) })
	return p
}

// pinned is page-locked host memory that the test sees.
type pinned struct {
	address uint64
	bytes   []byte
}

func (p pinned) at(offset int) cuda.Pointer { return cuda.Pointer(p.address) + cuda.Pointer(offset) }

func (s *site) pinned(bytes uint64) pinned {
	s.Helper()
	a, err := s.AllocateHost(s.context, bytes)
	s.must(err)
	s.later("pinned memory", func() error { return s.FreeHost(s.context, a) })
	return pinned{a, view(a, bytes)}
}

func (r *rig) signal() cuda.SignalHandle {
	r.Helper()
	h, err := r.OpenSignal()
	r.must(err)
	r.later("a signal", func() error {
		if owed := r.CloseSignal(h); owed != 0 {
			return errors.New("callbacks are owed")
		}
		return nil
	})
	return h
}

// eventually lets time pass until done.
func (r *rig) eventually(done func() bool) bool {
	for limit := r.Now() + patience; !done(); r.Pass() {
		if r.Now() > limit {
			return done()
		}
	}
	return true
}

// do carries copies out and waits for their event.
func (s *site) do(copies ...cuda.Copy) {
	s.Helper()
	done, err := s.Submit(s.context, s.stream, copies, s.event, 0)
	s.must(err)
	if done.Copies != len(copies) || !done.Recorded || done.Signaled || done.Unknown {
		s.Fatalf("%d copies: %+v", len(copies), done)
	}
	s.await(s.event)
}

// await waits for an event.
func (s *site) await(event cuda.EventHandle) {
	s.Helper()
	var failed error
	if !s.eventually(func() bool {
		done, err := s.Query(s.context, event)
		failed = err
		return done || err != nil
	}) || failed != nil {
		s.Fatalf("the event is not complete: %v", failed)
	}
}

// load and store move whole pieces of device memory through pinned memory of their own.
func (s *site) load(p cuda.Pointer, bytes int) []byte {
	s.Helper()
	h := s.pinned(uint64(bytes))
	s.do(cuda.Copy{To: h.at(0), From: p, Bytes: uint64(bytes)})
	return slices.Clone(h.bytes)
}

func (s *site) store(p cuda.Pointer, bytes []byte) {
	s.Helper()
	h := s.pinned(uint64(len(bytes)))
	copy(h.bytes, bytes)
	s.do(cuda.Copy{To: p, From: h.at(0), Bytes: uint64(len(bytes))})
}

// counting fills with bytes that tell places apart.
func counting(b []byte, salt byte) []byte {
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)*3 ^ byte(i>>16)*5 ^ salt
	}
	return b
}

// same compares, and names the first difference.
func (r *rig) same(what string, got, want []byte) {
	r.Helper()
	if len(got) != len(want) {
		r.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			r.Fatalf("%s: byte %d of %d is %#x, want %#x", what, i, len(got), got[i], want[i])
		}
	}
}
