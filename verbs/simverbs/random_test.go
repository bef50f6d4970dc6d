package simverbs_test

import (
	"math/rand/v2"
	"testing"

	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// chaos drives a few connections at random and keeps account of what each piece of work owes and which bytes may change.
type chaos struct {
	t      *testing.T
	f      *simverbs.Fabric
	random *rand.Rand
	lanes  []*lane // i and i^1 are connected
	faulty bool    // some work names what it has no authority over
}

// lane is the account of one end.
type lane struct {
	*end
	memory   piece // for windows
	private  piece
	windows  []*bound // that its peer may use
	next     uint64
	open     []debt // send work, in order
	receives []uint64
	failed   bool
	given    [chaosBytes]bool // bytes of memory that work with authority may change
	taken    [chaosBytes]bool // bytes of private that its own work may change
}

type debt struct {
	id       uint64
	signaled bool
}

// bound is a window and what its key gives.
type bound struct {
	handle verbs.WindowHandle
	key    verbs.RemoteKey
	at, n  int
	access verbs.Access
	id     uint64 // of the bind
	usable bool   // true exactly when the bind's completion was taken
}

const chaosBytes = 20000

func newChaos(t *testing.T, seed uint64, o simverbs.Options, faulty bool) *chaos {
	o.Violation = func(err error) { t.Error(err) }
	c := &chaos{t: t, f: simverbs.NewFabric(seed, o), random: rand.New(rand.NewPCG(seed, 9)), faulty: faulty}
	hosts := []*node{open(t, c.f, "a"), open(t, c.f, "b")}
	for i := range 6 {
		l := &lane{end: hosts[i%2].end(16, 0)}
		l.memory = l.piece(chaosBytes, byte(0x80+i), verbs.AccessLocalWrite|verbs.AccessWindowBind)
		l.private = l.piece(chaosBytes, byte(1+i), verbs.AccessLocalWrite)
		c.lanes = append(c.lanes, l)
	}
	for i := 0; i < len(c.lanes); i += 2 {
		join(c.lanes[i].end, c.lanes[i+1].end)
	}
	return c
}

// act does one thing at random.
func (c *chaos) act() {
	i := c.random.IntN(len(c.lanes))
	l, peer := c.lanes[i], c.lanes[i^1]
	for range c.random.IntN(20) {
		c.f.Step()
	}
	l.collect(c)
	if l.failed || len(l.open) >= 12 {
		return
	}
	switch c.random.IntN(8) {
	case 0:
		c.bind(l)
	case 1:
		if n := len(l.windows); n > 0 { // its key may be in use just now
			l.must(l.FreeWindow(l.windows[n-1].handle))
			l.windows = l.windows[:n-1]
		}
	case 2:
		c.message(l, peer)
	default:
		c.transfer(l, peer)
	}
}

// do posts a piece of work and notes what it owes.
func (l *lane) do(w verbs.SendWork, signaled bool) uint64 {
	l.next++
	w.ID = l.next
	if signaled {
		w.Flags |= verbs.Signaled
	}
	l.open = append(l.open, debt{w.ID, signaled})
	l.post(w)
	return w.ID
}

func (c *chaos) bind(l *lane) {
	if len(l.windows) >= 6 {
		return
	}
	h, key, err := l.AllocateWindow(l.domain)
	l.must(err)
	b := &bound{handle: h, key: key&^0xff | (key+1)&0xff, at: c.random.IntN(chaosBytes - 1)}
	b.n = 1 + c.random.IntN(chaosBytes-b.at)
	b.access = verbs.AccessRemoteRead
	if c.random.IntN(3) > 0 {
		b.access |= verbs.AccessRemoteWrite
	}
	b.id = l.do(verbs.SendWork{Operation: verbs.BindWindow, Window: h, Region: l.memory.handle, Remote: l.memory.address + uint64(b.at), Span: uint64(b.n), RemoteKey: b.key, Access: b.access}, true)
	l.windows = append(l.windows, b)
}

// message sends to a receive that is posted first, or late.
func (c *chaos) message(l, peer *lane) {
	if peer.failed || len(peer.receives) >= 12 {
		return
	}
	peer.next++
	peer.receives = append(peer.receives, peer.next)
	late := c.random.IntN(2) == 0
	w := verbs.SendWork{Operation: verbs.Send, Address: l.private.address, Length: uint32(c.random.IntN(3000)), LocalKey: l.private.local}
	if late {
		l.do(w, true)
	}
	for i := range w.Length {
		peer.taken[i] = true
	}
	peer.listen(verbs.ReceiveWork{ID: peer.next, Address: peer.private.address, Length: 3000, LocalKey: peer.private.local})
	if !late {
		l.do(w, true)
	}
}

// transfer writes or reads by a key that the peer has given, at times beyond what it gives.
func (c *chaos) transfer(l, peer *lane) {
	if len(peer.windows) == 0 {
		return
	}
	b := peer.windows[c.random.IntN(len(peer.windows))]
	if !b.usable {
		return
	}
	n := c.random.IntN(b.n + 1)
	at := b.at + c.random.IntN(b.n-n+1)
	w := verbs.SendWork{Operation: verbs.Write, Address: l.private.address, Length: uint32(n), LocalKey: l.private.local, Remote: peer.memory.address + uint64(at), RemoteKey: b.key}
	if c.random.IntN(2) == 0 {
		w.Operation = verbs.Read
	}
	good := w.Operation == verbs.Read || b.access&verbs.AccessRemoteWrite != 0
	if !good && !c.faulty {
		return
	}
	if c.random.IntN(4) == 0 {
		w.Flags = verbs.Fence
	}
	if c.faulty && c.random.IntN(30) == 0 {
		switch good = false; c.random.IntN(3) {
		case 0:
			w.RemoteKey ^= 1 << c.random.IntN(8)
		case 1:
			w.Remote += uint64(b.at+b.n-at-n) + 1
		case 2:
			w.LocalKey ^= 4
		}
	}
	for i := range n {
		if good && w.Operation == verbs.Write {
			peer.given[at+i] = true
		}
		if w.Operation == verbs.Read {
			l.taken[i] = true
		}
	}
	l.do(w, c.random.IntN(3) > 0)
}

// collect holds completions against the account: in order, each once, and none for silent success.
func (l *lane) collect(c *chaos) {
	l.take()
	for _, got := range l.sent {
		l.failed = l.failed || got.Status != success
		for len(l.open) > 0 && l.open[0].id != got.ID && !l.open[0].signaled {
			l.open = l.open[1:] // silent success, proven by what follows
		}
		if len(l.open) == 0 || l.open[0].id != got.ID || got.Status == success && !l.open[0].signaled || got.Pair != l.number {
			c.t.Fatalf("completion %+v was not due; open: %+v", got, l.open)
		}
		l.open = l.open[1:]
		for _, b := range l.windows {
			b.usable = b.usable || b.id == got.ID && got.Status == success
		}
	}
	for _, got := range l.received {
		l.failed = l.failed || got.Status != success
		if len(l.receives) == 0 || l.receives[0] != got.ID {
			c.t.Fatalf("completion of receive %+v was not due; open: %v", got, l.receives)
		}
		l.receives = l.receives[1:]
	}
	l.sent, l.received = l.sent[:0], l.received[:0]
}

// finish drains every pair as SPEC R-18 says, and looks at what is left.
func (c *chaos) finish() {
	for _, l := range c.lanes {
		l.must(l.ModifyPair(l.pair, verbs.Transition{To: verbs.PairError}))
	}
	settle(c.f)
	for i, l := range c.lanes {
		l.collect(c)
		for _, d := range l.open {
			if d.signaled {
				c.t.Errorf("lane %d: work %d never completed", i, d.id)
			}
		}
		if len(l.receives) > 0 {
			c.t.Errorf("lane %d: receives %v never completed", i, l.receives)
		}
		for at := range chaosBytes {
			if l.memory.bytes[at] != byte(0x80+i) && !l.given[at] || l.private.bytes[at] != byte(1+i) && !l.taken[at] {
				c.t.Fatalf("lane %d: byte %d was changed without authority", i, at)
			}
		}
		for _, b := range l.windows {
			l.must(l.FreeWindow(b.handle))
		}
		l.must(l.DestroyPair(l.pair))
		l.must(l.Deregister(l.memory.handle))
		l.must(l.Deregister(l.private.handle))
		l.must(l.DestroyQueue(l.sends))
		l.must(l.DestroyQueue(l.end.receives))
	}
	for _, l := range c.lanes[:2] {
		l.must(l.FreeDomain(l.domain))
		l.must(l.CloseDevice(l.device))
	}
	noneLive(c.t, c.f)
}

// Whatever the order: each piece of work completes as it owes, no byte without authority changes, nothing is left.
func TestRandomWorkKeepsItsAccount(t *testing.T) {
	seed := seedOf(t)
	for i, o := range []simverbs.Options{{}, {Personality: simverbs.SoftRoCE}, {MTU: 1024, DepthsAsked: true, DelayMax: 200000}} {
		for run := range uint64(6) {
			// Soft-RoCE does not keep a window's range, so that only others are asked for what they must refuse.
			c := newChaos(t, seed+run, o, run%2 == 1 && o.Personality == simverbs.Hardware)
			for range 1500 {
				c.act()
			}
			c.finish()
			if t.Failed() {
				t.Fatalf("options %d, SEED=%d", i, seed+run)
			}
		}
	}
}
