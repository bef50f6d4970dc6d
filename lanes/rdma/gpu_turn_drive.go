package rdma

import (
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
)

// turnstile lets transfers to and from GPUs of sources build their connections: each slice takes a queue pair there and here,
// for the one transfer, and a store that has no place refuses. A lane's transfers wait in order instead; what all lanes let
// in leaves a quarter of the places for everything else.
type turnstile struct {
	inside  int // places
	waiting []*Transfer
}

// places is how many queue pairs one lane's transfers may have at once this way, at least one.
func (r *Rails) places() int {
	return int(max(1, r.transport.config.Budgets.Endpoints.Limit()*3/4/int64(len(r.transport.rails))))
}

// fits is true exactly when a transfer's places may be taken: of the lane's, and as many of one source as that admits of one
// parent, since a source ends idle connections when others need their places, and those of a transfer are idle until it has
// all of them.
func (u *turnstile) fits(t *Transfer) bool {
	there := t.peer.direct + t.wanted
	return u.inside+t.wanted <= t.rails.places() && (there <= t.peer.credit() || t.peer.direct == 0)
}

func (u *turnstile) admit(t *Transfer) {
	t.places = t.wanted
	u.inside += t.places
	t.peer.direct += t.places
}

// enter takes places for a transfer. False: it waits, and connects when it is its turn.
func (u *turnstile) enter(t *Transfer, places int) bool {
	if t.places > 0 { // it builds anew
		return true
	}
	if t.wanted = places; len(u.waiting) > 0 || !u.fits(t) {
		u.waiting = append(u.waiting, t)
		return false
	}
	u.admit(t)
	return true
}

// leave gives back what a transfer has, or its place among those that wait, and lets the next ones in.
func (u *turnstile) leave(t *Transfer) {
	u.inside -= t.places
	t.peer.direct -= t.places
	t.places = 0
	for i, other := range u.waiting {
		if other == t {
			u.waiting = append(u.waiting[:i], u.waiting[i+1:]...)
			break
		}
	}
	for len(u.waiting) > 0 && u.fits(u.waiting[0]) {
		next := u.waiting[0]
		u.waiting = append(u.waiting[:0], u.waiting[1:]...)
		u.admit(next)
		next.connect()
	}
}

// crowds is true exactly for a refusal for lack of places for queue pairs, here or at the source, to a transfer that gives back
// those that it has and tries again: two of them could otherwise each hold what the other one waits for.
func (t *Transfer) crowds(f *lanes.Fault) bool {
	return t.Remote == RemoteDirect && t.machine.fault == nil &&
		(f.Cause == lanes.Exhausted || f.Cause == lanes.Refused && f.Status == netproto.StatusExhausted)
}

// stepAside gives back the connections of a transfer that got too few of them; it tries again a little later.
func (t *Transfer) stepAside() {
	f := t.crowded
	t.crowded = nil
	t.giveBack()
	t.retiring = true
	for _, l := range t.legs[:t.used] {
		t.part(l)
	}
	t.retiring, t.used = false, 0
	t.machine.parcels = t.machine.parcels[:0]
	t.machine.stage = transferTurn
	t.room(f)
}

// awaitMax is how long a source keeps a connection for the one grant that it was made for.
const awaitMax = time.Second

// await keeps a connection that nobody else can use from giving way to others until its grant comes: two requesters could
// otherwise each end what the other one has just built. It takes the builder's hold over; false: the connection has failed.
func (c *Connection) await() bool {
	if c.state != connectionOpen {
		return false
	}
	c.awaits = true
	c.rails.lane.Arm(&c.timer, c.rails.lane.Now().After(awaitMax), c)
	return true
}

// unawait gives the hold back: the grant has come, or will not.
func (c *Connection) unawait() {
	if !c.awaits {
		return
	}
	c.awaits = false
	if c.state == connectionOpen {
		c.rails.lane.Disarm(&c.timer)
	}
	c.released()
}
