package control

import (
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
)

// The first of a peer's addresses drops what comes. Who may wait finds the second one long before the system would give up, and
// the third of those who have two seconds each.
//
// proves T-8, T-9
func TestASilentAddressDoesNotHideTheNextOne(t *testing.T) {
	for name, each := range map[string]time.Duration{"one who waits": 20 * time.Second, "several who do not": 2 * time.Second} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			silent, peer, n := r.node(scriptHost, 8), r.node(otherHost, 8), r.node(nodeHost, 8)
			silent.process.HangConnects(1000)
			c := n.channel(silent.address, peer.address)
			began := r.world.Now()
			for try := 1; ; try++ {
				q := (&question{}).run(c, r.world.Now().After(each))
				r.until("the end of a request", func() bool { return q.ended > 0 })
				if q.failure == nil {
					break
				}
				if try == 3 {
					t.Fatalf("try %d: %v", try, q.failure.Fault)
				}
			}
			if took := time.Duration(r.world.Now() - began); took > 2*lanes.ConnectPatience {
				t.Errorf("took %v", took)
			}
			r.finish()
		})
	}
}

// One address that answers again is asked again soon, for those who have waited all the time.
//
// proves T-9
func TestAnAddressThatAnswersAgainIsAskedSoon(t *testing.T) {
	r := newRig(t, 1)
	peer, n := r.node(otherHost, 8), r.node(nodeHost, 8)
	peer.process.HangConnects(5) // of one connect they would last for 31 seconds
	c := n.channel(peer.address)
	began := r.world.Now()
	q := (&question{}).run(c, began.After(20*time.Second))
	r.until("the end of a request", func() bool { return q.ended > 0 })
	if took := time.Duration(r.world.Now() - began); q.failure != nil || took > 2*lanes.ConnectPatience {
		t.Errorf("%+v after %v", q.failure, took)
	}
	r.finish()
}
