package field

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/netproto"
)

const (
	lostTimeout = 3 * time.Second // of the request whose acknowledgement is lost
	lostOthers  = 200             // requests that the others make meanwhile, at most
	lostLeast   = 10              // and at least
)

// lostAcknowledgements are the last words of each exchange: everything before them arrives.
var lostAcknowledgements = []struct {
	name, do string
	down     int64 // bytes back to the requester that still arrive
	remote   orbitte.Effect
}{
	{"the receipt of a WRITE", "write", netproto.ReplySize, orbitte.EffectUnknown},
	{"half the receipt of a WRITE", "write", netproto.ReplySize + netproto.ReplySize/2, orbitte.EffectUnknown},
	{"the word Ready", "write", 0, orbitte.EffectNone},
	{"the receipt of a notification", "notify", netproto.ReplySize, orbitte.EffectUnknown},
}

// One acknowledgement is lost, and its connection stays silent for good. While its request waits, the same engines
// serve others, on other streams, as if nothing were the matter; then the engine is closed under it.
//
// field case F-20
func TestOneLostAcknowledgementHoldsNobodyElseUpAndCloseEnds(t *testing.T) {
	t.Parallel()
	onKernels(t, func(t *testing.T, kernel orbitte.KernelChoice) {
		for _, lost := range lostAcknowledgements {
			for _, placed := range []bool{false, true} {
				name := lost.name
				if placed {
					name += ", placed directly"
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					src := spawnSource(t, settings{Kernel: kernel, Lanes: 1, Direct: placed, SourceTimeout: 10 * lostTimeout}, 2*holePayload)
					config := orbitte.Config{Kernel: kernel, Lanes: 1} // all peers share one lane, so that one could hold up the others
					if placed {
						config.TCPHostMemory = orbitte.Direct
					}
					e := openEngine(t, config)
					c := &holeCase{t, e, src, newHole(t, src.Endpoint), buffer(t, e, holePayload), nil}
					c.segment = openSegment(t, e, c.hole.endpoint(), src.Epoch)
					stamp(c.local.Bytes(), orbitte.Epoch{7: 1})
					c.hole.allow(-1, lost.down)
					type end struct {
						remote orbitte.Effect
						err    error
						at     time.Time
					}
					began, ended := time.Now(), make(chan end, 1)
					go func() {
						remote, err := c.attempt(lost.do, lostTimeout)
						ended <- end{remote, err, time.Now()}
					}()
					if !eventually(lostTimeout/2, func() bool { return c.hole.down.Load() == 0 }) {
						t.Fatal("the acknowledgement was never on its way")
					}
					if n := c.others(func() bool { return len(ended) > 0 }); n < lostLeast {
						t.Errorf("the others made %d requests while the acknowledgement was awaited", n)
					}
					c.closeUnder(began)
					got := <-ended
					if !errors.Is(got.err, orbitte.ErrDeadline) || got.remote != lost.remote {
						t.Errorf("the request ended with %v, remote effect %v; want %v, %v", got.err, got.remote, orbitte.ErrDeadline, lost.remote)
					}
					if took := got.at.Sub(began); took > lostTimeout+holeGrace {
						t.Errorf("the request ended after %v", took)
					}
					src.closeClean()
				})
			}
		}
	})
}

// others use the same source, and the requester's lane, while the acknowledgement is awaited; it counts them.
func (c *holeCase) others(over func() bool) (n int) {
	direct := openSegment(c.t, c.e, c.src.Endpoint, c.src.Epoch)
	page := buffer(c.t, c.e, pageBytes)
	for ; n < lostOthers && !over(); n++ {
		r := orbitte.Request{Operation: orbitte.Read, Segment: direct, Local: page.Address(), Remote: c.src.Address, Length: pageBytes}
		if n%2 == 1 {
			r.Operation = orbitte.Write
		}
		if _, err := submit(c.e, 20*time.Second, r); err != nil {
			c.t.Fatalf("request %d of the others: %v", n, err)
		}
	}
	if !stamped(page.Bytes(), c.src.Epoch) {
		c.t.Error("what the others have read is not the source's")
	}
	return n
}

// closeUnder closes the requester while the request waits: it ends with it, and not later.
func (c *holeCase) closeUnder(began time.Time) {
	err := within(lostTimeout+holeGrace, func(ctx context.Context) error { return c.e.Close(ctx) })
	if err != nil {
		c.t.Errorf("Close: %v", err)
	}
	if took := time.Since(began); took > lostTimeout+holeGrace {
		c.t.Errorf("Close ended %v behind the begin of the request, whose deadline was %v", took, lostTimeout)
	}
}
