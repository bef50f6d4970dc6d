package cuda

import (
	"fmt"
	"sync/atomic"
)

// Signal is a descriptor that becomes readable when copies that were started with it are complete (SPEC C-5). It is a
// hint: it may be late, early for others, or never come after a failure; Pending.Confirm decides. A lane has one and
// watches it. It belongs to that lane; several memory objects may signal it at once.
type Signal struct {
	platform   *Platform
	handle     SignalHandle
	descriptor int
	closed     atomic.Bool
}

// OpenSignal makes a signal.
func (p *Platform) OpenSignal() (*Signal, error) {
	handle, err := p.calls.OpenSignal()
	if err != nil {
		return nil, err
	}
	p.counts.signals.Add(1)
	return &Signal{platform: p, handle: handle, descriptor: p.calls.SignalDescriptor(handle)}, nil
}

func (s *Signal) String() string { return fmt.Sprintf("signal with descriptor %d", s.descriptor) }

func (s *Signal) mustBeOpen(verb string) {
	if s.closed.Load() {
		panic(fmt.Sprintf("cuda: %s of %v which is closed, want open", verb, s))
	}
}

// native is the handle for Submit; none for nil.
func (s *Signal) native() SignalHandle {
	if s == nil {
		return 0
	}
	s.mustBeOpen("Start")
	return s.handle
}

// Descriptor is what becomes readable. It stays the signal's.
func (s *Signal) Descriptor() int { return s.descriptor }

// Take makes the descriptor quiet again and says how many callbacks have run since the last Take. Take first, then
// confirm: what completes in between makes the descriptor readable anew.
func (s *Signal) Take() (callbacks uint64, err error) {
	s.mustBeOpen("Take")
	return s.platform.calls.TakeSignal(s.handle)
}

// Close gives the signal up; a later one does nothing. Callbacks may still be owed to it, by operations that are not
// confirmed or that failed: the descriptor stays open until the last of them, for good if it never comes. owed is how
// many.
func (s *Signal) Close() (owed int) {
	if s.closed.Swap(true) {
		return 0
	}
	owed = s.platform.calls.CloseSignal(s.handle)
	s.platform.counts.signals.Add(-1)
	s.platform.counts.owed.Add(int64(owed))
	return owed
}
