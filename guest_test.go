package orbitte

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/orbitte/orbitte/segments"
)

// visits counts the calls that turned a lane of the engine themselves.
func visits(e *Engine) (n uint64) {
	for _, l := range e.Stats().Lanes {
		n += l.Loop.Visits
	}
	return n
}

// proves L-4, G-3: with adaptive lanes on epoll a synchronous call that is alone turns its peer's lane itself; others are
// served by it, or by the lane.
func TestSynchronousCallsTurnTheLaneThemselves(t *testing.T) {
	c := Config{Kernel: Epoll, Lanes: 1}
	p := newPair(t, c, c, 1<<20)
	for _, callers := range []int{1, 8} {
		before := visits(p.requester)
		var all sync.WaitGroup
		for i := range callers {
			all.Add(1)
			go func() {
				defer all.Done()
				for n := range 50 {
					op := []Operation{Read, Write}[n%2]
					at := i * 4096
					if _, err := p.requester.SubmitAndWait(context.Background(), []Request{p.request(op, at, 4096)}); err != nil {
						t.Error(err)
					}
					if callers == 1 {
						time.Sleep(time.Millisecond) // a lane that still spins from one call serves the next one itself
					}
				}
			}()
		}
		all.Wait()
		if callers == 1 && visits(p.requester) == before {
			t.Error("a caller that was alone did not turn the lane")
		}
	}
}

// What moves more than guestBytesMax is the lane's; up to there a caller that is alone turns it.
func TestLargeSubmissionsAreTheLanesOwn(t *testing.T) {
	c := Config{Kernel: Epoll, Lanes: 1}
	p := newPair(t, c, c, 2*guestBytesMax)
	call := func(length int) {
		if _, err := p.requester.SubmitAndWait(context.Background(), []Request{p.request(Read, 0, length)}); err != nil {
			t.Fatal(err)
		}
	}
	for n := 0; visits(p.requester) == 0; n++ {
		if call(guestBytesMax); n == 1000 {
			t.Fatal("no visits after ", n, " calls")
		}
		time.Sleep(time.Millisecond) // a lane that still spins from one call serves the next one, and takes no guest
	}
	before := visits(p.requester)
	for range 50 {
		call(guestBytesMax + 1)
	}
	if now := visits(p.requester); now != before {
		t.Error(now-before, " visits of submissions that are too large")
	}
}

// proves G-8: a guest whose context ends while its peer is silent leaves at once, and the lane proves the rest.
func TestGuestWhoseContextEndsLeaves(t *testing.T) {
	c := Config{Kernel: Epoll, Lanes: 1}
	p := newPair(t, c, c, 1<<20)
	for n := 0; visits(p.requester) == 0; n++ { // the first calls find a lane that has had no guest yet
		if _, err := p.requester.SubmitAndWait(context.Background(), []Request{p.request(Read, 0, 4096)}); err != nil || n == 1000 {
			t.Fatal("no visits after ", n, " calls: ", err)
		}
		time.Sleep(time.Millisecond) // so that the lane does not spin any more, and takes one
	}
	lease, err := p.remote.backing.Lend(0, 4096, segments.Exclusive) // the source waits for it, and so does the guest
	if err != nil {
		t.Fatal(err)
	}
	before := visits(p.requester)
	for n := 0; visits(p.requester) == before; n++ { // on a busy machine its time may be over before it comes in
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		_, err = p.requester.SubmitAndWait(ctx, []Request{p.request(Read, 0, 4096)})
		cancel()
		if !errors.Is(err, ErrDeadline) || n == 1000 {
			t.Fatal("no visits after ", n, " calls: ", err)
		}
	}
	lease.Return()
	if _, err := p.requester.SubmitAndWait(context.Background(), []Request{p.request(Read, 0, 4096)}); err != nil {
		t.Error(err)
	}
}
