package rdma

import (
	"syscall"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// Two connections of one transfer wait for places. What they hoped for is retained, so that both are refused in one go: the
// first refusal ends the transfer, which cancels the second claim, whose refusal was on its way already.
//
// proves R-10, B-4
func TestATransferWhoseConnectionsAreRefusedTogetherEndsOnce(t *testing.T) {
	o := siteOptions{config: Config{Progress: EventDriven}}
	from := o
	from.endpoints = 2
	e := newEnds(t, simverbs.Hardware, endsOptions{from, o})
	remote, local := e.to.memory(128<<10, netproto.ReadWrite, 1), e.from.memory(128<<10, netproto.LocalOnly, 2)
	complete(t, e.run(e.transfer(lanes.Read, local, remote, 0)), lanes.Read, 128<<10) // a connection on each of two devices
	var kept *holder
	e.on(e.from.lanes[0].Loop, func() {
		for _, c := range e.from.lanes[0].rails.rails[1].connections { // the second one stays in use
			kept = &holder{}
			if !c.Take(&kept.hold, kept) {
				t.Error("the connection is not open")
			}
		}
	})
	e.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallDestroyPair, Process: "a", Errno: syscall.EIO})
	a := e.start(e.transfer(lanes.Write, local, remote, 0))
	e.until("a transfer's end", func() bool { return a.done > 0 })
	e.pass(time.Second)
	if a.done != 1 {
		t.Errorf("Done was called %d times", a.done)
	}
	if f := faultIn(t, a.Outcome); f.Cause != lanes.Exhausted {
		t.Errorf("it failed with %v", f)
	}
	if n := e.from.lanes[0].rails.pending; n != 0 {
		t.Errorf("%d things are under way", n)
	}
	e.on(e.from.lanes[0].Loop, kept.release)
	e.quiet()
	e.retire()
	if kept := e.close(); len(kept) != 1 {
		t.Errorf("retained: %v", kept)
	}
	e.endLoops()
}

// Whoever is told may take back what others are about to be told: each claim is answered once, and a connection that
// nobody takes any more is not held.
//
// proves R-10
func TestAClaimThatIsTakenBackWhileAnswersAreHandedOutIsAnsweredOnce(t *testing.T) {
	for name, fails := range map[string]bool{"built": false, "failed": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, simverbs.Hardware)
			o := siteOptions{devices: single(simverbs.Hardware)}
			a, b := r.site("a", o), r.site("b", o)
			if fails {
				r.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallCreatePair, Process: "a", Errno: syscall.EIO})
			}
			p := a.peer(0, b)
			var all [3]*holder // the first one builds, and two wait for it
			for i := range all {
				all[i] = a.ask(0, p, lanes.Read, func(q *Claim) {
					told := q.Answered
					q.Answered = func(q *Claim) {
						told(q)
						for _, other := range all {
							if other != nil && &other.claim != q {
								other.claim.Cancel()
							}
						}
					}
				})
			}
			r.until("answers", func() bool { return all[0].answers > 0 && all[1].answers > 0 && all[2].answers > 0 })
			r.pass(time.Second)
			for i, h := range all {
				if h.answers != 1 {
					t.Errorf("claim %d is answered %d times", i, h.answers)
				}
				if h.claim.Hold.Connection != nil {
					r.on(a.lanes[0].Loop, h.release)
				}
			}
			r.finish()
		})
	}
}
