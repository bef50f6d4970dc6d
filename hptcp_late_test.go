package orbitte

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/orbitte/orbitte/reactor/simkernel"
)

// A WRITE is cancelled at each moment, also at those between its success and the one when the system lets go of its payload, which
// goes in one send with another one's: it has failed with its effect, or it has succeeded.
//
// proves G-3, G-8, H-5
func TestAWriteIsCancelledAtEachMoment(t *testing.T) {
	const size, other = 64, 4096
	ends := map[bool]int{}
	for at := range 400 {
		s := newFastSim(t, uint64(at%20), simkernel.WorldOptions{DelayMax: 48 * time.Microsecond, Buffer: 32}, Config{}, Config{}, size+other)
		pattern(s.local, 3)
		before := bytes.Clone(s.remote.Bytes()[:size])
		b, err := s.requester.Submit(soon(t), []Request{hurried(s.request(Write, 0, size))})
		must(t, err)
		beside, err := s.requester.Submit(soon(t), []Request{hurried(s.request(Write, size, other))})
		must(t, err)
		s.Later(time.Duration(at*10)*time.Microsecond, b.Cancel)
		report, err := b.Wait(soon(t))
		_, _ = beside.Wait(soon(t)) // it may have lost its stream to the cancellation
		must(t, beside.Free())
		ends[err == nil]++
		switch changed, whole := !bytes.Equal(s.remote.Bytes()[:size], before), bytes.Equal(s.remote.Bytes()[:size], s.local.Bytes()[:size]); {
		case err == nil && (!whole || report.Completed != 1 || report.Bytes != size):
			t.Errorf("after %d steps: %+v, and the bytes are not there", at, report)
		case err != nil && (!errors.Is(err, ErrCancelled) || report.Failed != 0 || changed && report.Remote == EffectNone):
			t.Errorf("after %d steps: %+v, %v", at, report, err)
		}
		must(t, b.Free())
	}
	if ends[true] < 20 || ends[false] < 20 {
		t.Errorf("too few of one kind: %v", ends)
	}
}
