package cudatest

import (
	"github.com/orbitte/orbitte/cuda"
)

var signalCases = []conformance{
	{"ASignalComesAfterTheCopies", announces},
	{"CallbacksAreCounted", counted},
	{"NobodyIsCalledWithoutASignal", uncalled},
	{"AClosedSignalOutlivesItsCallbacks", closed},
}

func (s *site) announced(size uint64, g cuda.SignalHandle, p cuda.Pointer, h pinned) {
	s.Helper()
	done, err := s.Submit(s.context, s.stream, []cuda.Copy{{To: h.at(0), From: p, Bytes: size}}, s.event, g)
	s.must(err)
	if !done.Recorded || !done.Signaled || done.Copies != 1 {
		s.Fatalf("%+v", done)
	}
}

// announces: the callback stands behind the event on the stream, so when the descriptor speaks, the event is complete.
func announces(r *rig) {
	s := r.site(r.Ordinals[0])
	const size = 2<<20 + 3
	p, h, g := s.allocate(size), s.pinned(size), r.signal()
	descriptor := r.SignalDescriptor(g)
	want := counting(make([]byte, size), 4)
	s.store(p, want)
	for round := range 5 {
		if r.Readable(descriptor) {
			r.Fatalf("round %d: the descriptor speaks before anything was asked", round)
		}
		clear(h.bytes)
		s.announced(size, g, p, h)
		if !r.eventually(func() bool { return r.Readable(descriptor) }) {
			r.Fatalf("round %d: no callback came", round)
		}
		if done, err := r.Query(s.context, s.event); err != nil || !done {
			r.Errorf("round %d: at the callback the event is complete %t, %v", round, done, err)
		}
		r.same("bytes at the callback", h.bytes, want)
		if n, err := r.TakeSignal(g); err != nil || n != 1 {
			r.Errorf("round %d: %d callbacks, %v", round, n, err)
		}
		if n, err := r.TakeSignal(g); err != nil || n != 0 {
			r.Errorf("round %d: %d callbacks after all were taken, %v", round, n, err)
		}
	}
}

// counted: callbacks that nobody takes add up.
func counted(r *rig) {
	s := r.site(r.Ordinals[0])
	p, h, g := s.allocate(1000), s.pinned(1000), r.signal()
	const n = 7
	for range n {
		s.announced(1000, g, p, h)
	}
	var sum uint64
	if !r.eventually(func() bool { more, err := r.TakeSignal(g); sum += more; return err != nil || sum >= n }) || sum != n {
		r.Errorf("%d of %d callbacks were counted", sum, n)
	}
	if r.Readable(r.SignalDescriptor(g)) {
		r.Error("the descriptor speaks after all callbacks were taken")
	}
}

func uncalled(r *rig) {
	s := r.site(r.Ordinals[0])
	p, h, g := s.allocate(1000), s.pinned(1000), r.signal()
	s.do(cuda.Copy{To: p, From: h.at(0), Bytes: 1000})
	if n, err := r.TakeSignal(g); err != nil || n != 0 || r.Readable(r.SignalDescriptor(g)) {
		r.Errorf("%d callbacks that nobody asked for, %v", n, err)
	}
}

// closed: a signal may be closed while callbacks are owed; they write to nobody else's file.
func closed(r *rig) {
	s := r.site(r.Ordinals[0])
	const size = 4 << 20
	p, h := s.allocate(size), s.pinned(size)
	g, err := r.OpenSignal()
	r.must(err)
	s.announced(size, g, p, h)
	owed := r.CloseSignal(g)
	if owed < 0 || owed > 1 {
		r.Errorf("%d callbacks are owed, one was asked for", owed)
	}
	other := r.signal()
	s.await(s.event)
	r.must(r.Synchronize(s.context, s.stream))
	for range 20 {
		r.Pass()
	}
	if r.Readable(r.SignalDescriptor(other)) {
		r.Error("a callback for a closed signal made another one speak")
	}
}
