//go:build vm && cgo

package orbitte

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"github.com/orbitte/orbitte/verbs"
)

// thief stands between a requester's engine and the library. Before the engine's next payload goes out it posts work of
// its own, beside the engine's, with keys that it has seen; the engine never sees the completion.
type thief struct {
	verbs.Calls
	mu    sync.Mutex
	seen  []posted
	raid  func(now posted) (posted, bool) // what to post before the next payload; false: not before this one
	works chan verbs.WorkStatus           // how the thief's work ended
}

type posted struct {
	pair verbs.PairHandle
	work verbs.SendWork
}

const thiefID = 0x7e1e7e1e7e1e7e1e

func (h *thief) PostSend(p verbs.PairHandle, list []verbs.SendWork) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range list {
		if w.Operation != verbs.Read && w.Operation != verbs.Write {
			continue
		}
		now := posted{p, w}
		if h.raid != nil {
			if own, ok := h.raid(now); ok {
				h.raid = nil
				own.work.ID, own.work.Flags = thiefID, verbs.Signaled
				if _, err := h.Calls.PostSend(own.pair, []verbs.SendWork{own.work}); err != nil {
					h.works <- verbs.WorkGeneral
				}
			}
		}
		h.seen = append(h.seen, now)
	}
	return h.Calls.PostSend(p, list)
}

func (h *thief) Poll(sends, receives verbs.QueueHandle, out []verbs.Completion) (sent, received int, err error) {
	sent, received, err = h.Calls.Poll(sends, receives, out)
	for i := 0; i < sent; {
		if out[i].ID != thiefID {
			i++
			continue
		}
		h.works <- out[i].Status
		copy(out[i:], out[i+1:sent+received])
		sent--
	}
	return sent, received, err
}

// last is the latest payload posted that fits.
func (h *thief) last(fits func(posted) bool) (posted, bool) {
	for i := len(h.seen) - 1; i >= 0; i-- {
		if fits(h.seen[i]) {
			return h.seen[i], true
		}
	}
	return posted{}, false
}

// proves
func TestSoftRoCERefusesEachKeyThatIsNotForThisWorkOnThisPair(t *testing.T) {
	const size, spot = 512 << 10, 400 << 10
	h := &thief{works: make(chan verbs.WorkStatus, 4)}
	between := func(c verbs.Calls) verbs.Calls { h.Calls = c; return h }
	c := RDMAConfig{Progress: RDMAEventDriven, Width: 2, DeviceMask: 1}
	g := newGate(t, c, c, size, between)
	other := map[verbs.SendOperation]verbs.SendOperation{verbs.Read: verbs.Write, verbs.Write: verbs.Read}
	at := func(now, of posted) (posted, bool) { // the thief's aim is elsewhere than the engine's
		of.work.Address, of.work.LocalKey, of.work.Length, of.work.Remote = now.work.Address, now.work.LocalKey, 8, g.base+spot
		return of, true
	}
	for _, c := range []struct {
		name    string
		refused bool
		raid    func(now posted) (posted, bool)
	}{
		{"the key as granted", false, func(now posted) (posted, bool) { return at(now, now) }},
		{"a key once more, after its transfer", true, func(now posted) (posted, bool) {
			old, ok := h.last(func(p posted) bool { return p.pair == now.pair })
			if !ok {
				return old, false
			}
			return at(now, old)
		}},
		{"an old key of a window that is bound anew", true, func(now posted) (posted, bool) {
			old, ok := h.last(func(p posted) bool {
				return p.work.RemoteKey>>8 == now.work.RemoteKey>>8 && p.work.RemoteKey != now.work.RemoteKey
			})
			if !ok {
				return old, false
			}
			old.pair, old.work.Operation = now.pair, now.work.Operation
			return at(now, old)
		}},
		{"the other direction", true, func(now posted) (posted, bool) {
			turned := now
			turned.work.Operation = other[now.work.Operation]
			return at(now, turned)
		}},
		{"another pair", true, func(now posted) (posted, bool) {
			foreign, ok := h.last(func(p posted) bool { return p.pair != now.pair && p.work.Operation == now.work.Operation })
			if !ok {
				return foreign, false
			}
			now.pair = foreign.pair
			return at(now, now)
		}},
		{"a key that nobody gave", true, func(now posted) (posted, bool) {
			guess := now
			guess.work.RemoteKey ^= 0x5a
			return at(now, guess)
		}},
		{"beyond the region", true, func(now posted) (posted, bool) {
			far, _ := at(now, now)
			far.work.Remote = g.base + size - 4
			return far, true
		}},
	} {
		for _, op := range []Operation{Read, Write} {
			g.raided(h, op, c.name, c.refused, c.raid, spot)
		}
	}
	proved(t, "the NIC refuses a used key, an old key of a window bound anew, the other direction (the pair itself does), another pair, a guessed key and bytes beyond the region, for READ and WRITE")
	proved(t, "a window's range inside its region is not enforced by soft-RoCE; here the region's own was tested")
}

// raided lets the thief post before one payload of the engine.
func (g *gatePair) raided(h *thief, op Operation, name string, refused bool, raid func(posted) (posted, bool), spot int) {
	t := g.t
	t.Helper()
	const n = 300 << 10
	again := func() error { // after a failure connections are built anew
		_, err := g.requester.SubmitAndWait(within(t, guestPatience), []Request{g.request(op, 0, 0, n)})
		return err
	}
	var err error
	for range 3 {
		if err = again(); err == nil {
			break
		}
	}
	must(t, err)
	g.fill(int(op))
	before := bytes.Clone(g.peer.memory)
	h.mu.Lock()
	h.raid = raid
	h.mu.Unlock()
	var status verbs.WorkStatus
	for tries := 0; ; tries++ {
		ended := again()
		select {
		case status = <-h.works:
			if !refused && ended != nil {
				t.Errorf("%v, %s: the engine's own transfer ends with %v", op, name, ended)
			}
		case <-time.After(200 * time.Millisecond):
			if tries < 6 {
				continue // no fitting key yet
			}
			t.Fatalf("%v, %s: no work was posted", op, name)
		}
		break
	}
	if refused && status != verbs.WorkRemoteAccess && status != verbs.WorkRemoteRequest || !refused && status != verbs.WorkSuccess {
		t.Errorf("%v with %s ends with %v", op, name, status)
	}
	if refused && !bytes.Equal(g.peer.memory[spot:], before[spot:]) {
		t.Errorf("%v with %s changed the source's memory", op, name)
	}
	t.Logf("%v with %s: %v", op, name, status)
}
