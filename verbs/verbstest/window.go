package verbstest

import (
	"bytes"
	"slices"
	"syscall"

	"github.com/orbitte/orbitte/verbs"
)

var windowCases = []conformance{
	{"AWindowGivesItsDirectionOnly", windowDirections},
	{"AnInvalidatedKeyNeverWorksAgain", oneUse},
	{"AFreedWindowEndsItsAuthority", freedWindow},
	{"NeighbouringKeysAreRefused", neighbouringKeys},
	{"AWindowServesItsOwnPairOnly", foreignPair},
	{"AWindowIsInvalidatedOverItsOwnPair", foreignInvalidation},
	{"AWindowKeepsItsRange", windowRange},
	{"APairMayEndBeforeItsInvalidatedWindow", windowOutlivesPair},
	{"ALocalInvalidationEndsAWindow", localInvalidation},
	{"ABindMustFitItsRegion", refusedBinds},
	{"ABoundWindowIsNotBoundAgain", boundAgain},
	{"ARegionOutlivesItsBoundWindows", regionUnderWindow},
	{"AnUnknownKeyToInvalidateIsTheReceiversError", bogusInvalidation},
	{"AWindowIsInvalidatedOnce", doubleInvalidation},
	{"TheTagOfAKeyWraps", tagWraps},
	{"OnePostBindsAndOneInvalidatesMany", manyWindows},
}

// window is a window of side B, with the key that it has now.
type window struct {
	*side
	handle verbs.WindowHandle
	key    verbs.RemoteKey
}

func (s *side) window() *window {
	s.Helper()
	h, key, err := s.AllocateWindow(s.domain)
	s.must(err)
	s.windows = append(s.windows, h)
	return &window{s, h, key}
}

func (w *window) free() {
	w.Helper()
	w.must(w.FreeWindow(w.handle))
	w.side.windows = slices.DeleteFunc(w.side.windows, func(h verbs.WindowHandle) bool { return h == w.handle })
}

// next is the key with the next tag (ibv_inc_rkey(3)).
func next(k verbs.RemoteKey) verbs.RemoteKey { return k&^0xff | (k+1)&0xff }

// binding is the work that binds a window to n bytes of a region, with its next key.
func (w *window) binding(id uint64, m region, at, n int, a verbs.Access) verbs.SendWork {
	return verbs.SendWork{
		ID: id, Operation: verbs.BindWindow, Flags: verbs.Signaled, Window: w.handle, Region: m.handle, LocalKey: m.local,
		Remote: m.address + uint64(at), Span: uint64(n), RemoteKey: next(w.key), Access: a,
	}
}

// bind binds a window over a pair and waits for the completion.
func (e *endpoint) bind(w *window, m region, at, n int, a verbs.Access) {
	e.Helper()
	c := e.do(w.binding(77, m, at, n, a))
	if c.Operation != verbs.CompletedBind {
		e.Errorf("a bind completed as operation %d", c.Operation)
	}
	w.key = next(w.key)
}

const (
	canRead  = verbs.AccessRemoteRead
	canWrite = verbs.AccessRemoteWrite
)

// refusedAccess posts work that the peer must refuse: the work fails, and this side's pair goes to Error.
func (e *endpoint) refusedAccess(what string, w verbs.SendWork) {
	e.Helper()
	w.Flags |= verbs.Signaled
	e.post(w)
	e.await(len(e.sent)+1, len(e.received))
	if c := e.sent[len(e.sent)-1]; c.Status != verbs.WorkRemoteAccess || c.ID != w.ID {
		e.Errorf("%s: work %d ended with status %d, wanted work %d to end with %d", what, c.ID, c.Status, w.ID, verbs.WorkRemoteAccess)
	}
	if state, err := e.QueryPair(e.pair); err != nil || state != verbs.PairError {
		e.Errorf("%s: the pair is in state %d: %v", what, state, err)
	}
}

// windowDirections: ibv_bind_mw(3), IBTA 10.6.7.2: a window permits what its bind says.
func windowDirections(r *rig) {
	const n = 3000
	here := r.a.region(n, 0x41, localOnly)
	for _, access := range []verbs.Access{canRead, canWrite} {
		a, b := r.connect(shape{})
		there := r.b.region(n, 0x42, parent)
		w := r.b.window()
		b.bind(w, there, 0, n, access)
		good, bad := read(1, here, 0, n, there.address, w.key), write(2, here, 0, n, there.address, w.key)
		if access == canWrite {
			good, bad = bad, good
		}
		a.do(good)
		if !bytes.Equal(here.bytes, there.bytes) {
			r.Errorf("access %d: bytes differ", access)
		}
		copy(there.bytes, bytes.Repeat([]byte{0x43}, n))
		a.refusedAccess("the other direction", bad)
		if access == canRead && there.bytes[0] != 0x43 {
			r.Error("a refused WRITE wrote")
		}
		w.free()
	}
}

// oneUse: IBTA 9.4.1.1: SEND with invalidate ends the window before its receive completes, and names the key.
func oneUse(r *rig) {
	a, b := r.connect(shape{})
	here, there, message := r.a.region(4096, 1, localOnly), r.b.region(4096, 2, parent), r.b.region(256, 0, localOnly)
	w := r.b.window()
	b.bind(w, there, 128, 2048, canWrite)
	b.receive(verbs.ReceiveWork{ID: 5, Address: message.address, Length: 256, LocalKey: message.local})
	a.post(write(1, here, 0, 2048, there.address+128, w.key), verbs.SendWork{
		ID: 2, Operation: verbs.SendWithInvalidate, Flags: verbs.Signaled | verbs.Fence, Address: here.address, Length: 141, LocalKey: here.local, RemoteKey: w.key,
	})
	b.await(1, 1)
	c := b.lastReceived(5, verbs.WorkSuccess)
	if c.Invalidated != w.key || c.Length != 141 || c.Operation != verbs.CompletedReceive {
		r.Errorf("the receive names key %#x and %d bytes by operation %d, want %#x and 141", c.Invalidated, c.Length, c.Operation, w.key)
	}
	if marked := c.Flags&(1<<3) != 0; marked != r.Facts.MarksInvalidation.Holds {
		r.Errorf("IBV_WC_WITH_INV is %v, want %v (%s)", marked, r.Facts.MarksInvalidation.Holds, r.Facts.MarksInvalidation.Why)
	}
	a.await(1, 0)
	a.last(2, verbs.WorkSuccess)
	a.refusedAccess("a key after its invalidation", write(3, here, 0, 16, there.address+128, w.key))
}

// freedWindow: ibv_dealloc_mw(3): a bound window may be freed, and its key is dead at once.
func freedWindow(r *rig) {
	a, b := r.connect(shape{})
	here, there := r.a.region(4096, 1, localOnly), r.b.region(4096, 2, parent)
	w := r.b.window()
	b.bind(w, there, 0, 4096, canWrite)
	a.do(write(1, here, 0, 4096, there.address, w.key))
	w.free()
	a.refusedAccess("a key after its window", write(2, here, 0, 16, there.address, w.key))
}

// neighbouringKeys: a key with another tag or index, the key before the bind, and the parent's own remote key give
// nothing.
func neighbouringKeys(r *rig) {
	here, there := r.a.region(64, 1, localOnly), r.b.region(4096, 2, parent)
	keys := map[string]func(verbs.RemoteKey) verbs.RemoteKey{
		"the key before the bind":  func(k verbs.RemoteKey) verbs.RemoteKey { return k&^0xff | (k-1)&0xff },
		"the next tag":             next,
		"a flipped bit of the tag": func(k verbs.RemoteKey) verbs.RemoteKey { return k ^ 0x80 },
		"another index":            func(k verbs.RemoteKey) verbs.RemoteKey { return k ^ 0x7000<<8 },
		"the region's own key":     func(verbs.RemoteKey) verbs.RemoteKey { return there.remote },
	}
	for what, change := range keys {
		a, b := r.connect(shape{})
		w := r.b.window()
		b.bind(w, there, 0, 4096, canWrite|canRead)
		a.refusedAccess(what, write(1, here, 0, 64, there.address, change(w.key)))
		if there.bytes[0] != 2 {
			r.Errorf("%s: bytes were written", what)
		}
		w.free()
	}
}

// foreignPair: IBTA 10.6.7.2 (type 2B): a window serves the pair that it was bound over.
func foreignPair(r *rig) {
	_, b1 := r.connect(shape{})
	a2, _ := r.connect(shape{})
	here, there := r.a.region(64, 1, localOnly), r.b.region(4096, 2, parent)
	w := r.b.window()
	b1.bind(w, there, 0, 4096, canWrite)
	a2.refusedAccess("a window of another pair", write(1, here, 0, 64, there.address, w.key))
	w.free()
}

// foreignInvalidation: IBTA 10.6.7.2.7: SEND with invalidate over another pair than the window's is the receiver's error.
func foreignInvalidation(r *rig) {
	_, b1 := r.connect(shape{})
	a2, b2 := r.connect(shape{})
	there, message := r.b.region(4096, 2, parent), r.b.region(64, 0, localOnly)
	w := r.b.window()
	b1.bind(w, there, 0, 4096, canWrite)
	b2.receive(verbs.ReceiveWork{ID: 4, Address: message.address, Length: 64, LocalKey: message.local})
	a2.post(verbs.SendWork{ID: 1, Operation: verbs.SendWithInvalidate, RemoteKey: w.key})
	b2.await(0, 1)
	if r.Facts.OwnPairInvalidation.Holds {
		b2.lastReceived(4, verbs.WorkRemoteRequest)
	} else if c := b2.lastReceived(4, verbs.WorkSuccess); c.Invalidated != w.key {
		r.Errorf("the receive names key %#x, want %#x", c.Invalidated, w.key)
	}
	w.free()
}

// windowOutlivesPair: a window that is free again hangs on no pair, and serves the next one.
func windowOutlivesPair(r *rig) {
	_, b1 := r.connect(shape{})
	there := r.b.region(4096, 2, parent)
	w := r.b.window()
	b1.bind(w, there, 0, 4096, canWrite)
	b1.do(verbs.SendWork{ID: 1, Operation: verbs.LocalInvalidate, RemoteKey: w.key})
	r.must(b1.ModifyPair(b1.pair, verbs.Transition{To: verbs.PairError}))
	began := r.Now()
	b1.destroy()
	if took := r.Now() - began; took > patience {
		r.Errorf("the end of the pair took %v", took)
	}
	here := r.a.region(64, 1, localOnly)
	a2, b2 := r.connect(shape{})
	b2.bind(w, there, 0, 4096, canWrite)
	a2.do(write(2, here, 0, 64, there.address, w.key))
	w.free()
}

// windowRange: IBTA 10.6.7.2: a window's key reaches its range. Behind the region nothing is ever reached.
func windowRange(r *rig) {
	here, there := r.a.region(4096, 1, localOnly), r.b.region(4096, 2, parent)
	for _, at := range []int{1000 - 1, 1000 + 2000 - 15} {
		a, b := r.connect(shape{})
		w := r.b.window()
		b.bind(w, there, 1000, 2000, canWrite)
		work := write(1, here, 0, 16, there.address+uint64(at), w.key)
		if r.Facts.WindowRange.Holds {
			a.refusedAccess("a byte outside the window", work)
		} else {
			a.do(work)
		}
		w.free()
	}
	for _, outside := range []uint64{there.address - 1, there.address + 4096 - 15} {
		a, b := r.connect(shape{})
		w := r.b.window()
		b.bind(w, there, 0, 4096, canWrite)
		a.refusedAccess("a byte outside the region", write(1, here, 0, 16, outside, w.key))
		w.free()
	}
}

// localInvalidation: IBTA 10.6.7.2.7; the window can be bound anew.
func localInvalidation(r *rig) {
	a, b := r.connect(shape{})
	here, there := r.a.region(64, 1, localOnly), r.b.region(4096, 2, parent)
	w := r.b.window()
	b.bind(w, there, 0, 4096, canWrite)
	old := w.key
	c := b.do(verbs.SendWork{ID: 3, Operation: verbs.LocalInvalidate, RemoteKey: w.key})
	if c.Operation != verbs.CompletedLocalInvalidate {
		r.Errorf("an invalidation completed as operation %d", c.Operation)
	}
	b.bind(w, there, 0, 4096, canWrite)
	a.do(write(4, here, 0, 64, there.address, w.key))
	a.refusedAccess("the key of the bind before", write(5, here, 0, 64, there.address, old))
}

// refusedBinds: ibv_bind_mw(3), IBTA 10.6.7.2. A failed bind takes the pair to Error; its window can only be freed.
func refusedBinds(r *rig) {
	m := r.b.region(4096, 0, parent)
	unbindable := r.b.region(4096, 0, verbs.AccessLocalWrite)
	unwritable := r.b.region(4096, 0, verbs.AccessWindowBind)
	try := func(what string, m region, at, n int, a verbs.Access, change func(*verbs.SendWork)) {
		r.Helper()
		_, b := r.connect(shape{})
		w := r.b.window()
		work := w.binding(1, m, at, n, a)
		if change != nil {
			change(&work)
		}
		n, err := b.PostSend(b.pair, []verbs.SendWork{work})
		if err != nil { // libraries check some of it themselves
			if n != 0 {
				r.Errorf("%s: %v with %d accepted", what, err, n)
			}
		} else {
			b.await(1, 0)
			b.last(1, r.local(verbs.WorkBind)...)
			if state, err := b.QueryPair(b.pair); err != nil || state != verbs.PairError {
				r.Errorf("%s: the pair is in state %d: %v", what, state, err)
			}
		}
		w.free()
	}
	try("behind the region", m, 4000, 97, canRead, nil)
	try("before the region", m, -1, 97, canRead, nil)
	try("no bytes", m, 0, 0, canRead, nil)
	try("a region without MW_BIND", unbindable, 0, 64, canRead, nil)
	try("remote writes to a region without LOCAL_WRITE", unwritable, 0, 64, canWrite, nil)
	if r.Facts.RefusesSameKey.Holds {
		try("the key that it has already", m, 0, 64, canRead, func(w *verbs.SendWork) { w.RemoteKey = w.RemoteKey&^0xff | (w.RemoteKey-1)&0xff })
	}
}

// boundAgain: IBTA 10.6.7.2: a type 2 window is bound from the free state only.
func boundAgain(r *rig) {
	_, b := r.connect(shape{})
	m := r.b.region(4096, 0, parent)
	w := r.b.window()
	b.bind(w, m, 0, 64, canRead)
	if n, err := b.PostSend(b.pair, []verbs.SendWork{w.binding(2, m, 64, 64, canRead)}); err == nil {
		b.await(2, 0)
		b.last(2, r.local(verbs.WorkBind)...)
	} else if n != 0 {
		r.Errorf("%v with %d accepted", err, n)
	}
	w.free()
}

// regionUnderWindow: ibv_dereg_mr(3) fails while a window is bound; the window stays good.
func regionUnderWindow(r *rig) {
	a, b := r.connect(shape{})
	here, there := r.a.region(64, 1, localOnly), r.b.region(4096, 2, parent)
	w := r.b.window()
	b.bind(w, there, 0, 4096, canWrite)
	r.refused("end of a region with a bound window", r.b.Deregister(there.handle), syscall.EINVAL, syscall.EBUSY)
	a.do(write(1, here, 0, 64, there.address, w.key))
	w.free()
	r.b.deregister(there)
}

// bogusInvalidation: IBTA 9.9.6.1 (class J): the sender's message arrived; the receiver's pair is in error.
func bogusInvalidation(r *rig) {
	a, b := r.connect(shape{})
	m := r.b.region(256, 0, localOnly)
	b.receive(verbs.ReceiveWork{ID: 5, Address: m.address, Length: 256, LocalKey: m.local})
	a.do(verbs.SendWork{ID: 2, Operation: verbs.SendWithInvalidate, RemoteKey: 0x00777755}, verbs.WorkSuccess, verbs.WorkRemoteOperation, verbs.WorkRemoteAccess)
	b.await(0, 1)
	b.lastReceived(5, verbs.WorkRemoteRequest)
	if !r.eventually(func() bool { state, err := b.QueryPair(b.pair); return err == nil && state == verbs.PairError }) {
		r.Error("the receiver's pair stays out of Error")
	}
}

// doubleInvalidation: IBTA 10.6.7.2.7: a window that is not bound cannot be invalidated.
func doubleInvalidation(r *rig) {
	if !r.Facts.SurvivesDoubleInvalidation.Holds {
		r.Skip("device: " + r.Facts.SurvivesDoubleInvalidation.Why)
	}
	_, b := r.connect(shape{})
	m := r.b.region(4096, 0, parent)
	w := r.b.window()
	b.bind(w, m, 0, 64, canRead)
	b.do(verbs.SendWork{ID: 1, Operation: verbs.LocalInvalidate, RemoteKey: w.key})
	b.do(verbs.SendWork{ID: 2, Operation: verbs.LocalInvalidate, RemoteKey: w.key}, r.local(verbs.WorkBind)...)
	w.free()
}

// tagWraps: 300 rounds of bind, use and invalidate go through all values of the tag.
func tagWraps(r *rig) {
	a, b := r.connect(shape{})
	here, there, message := r.a.region(64, 1, localOnly), r.b.region(4096, 2, parent), r.b.region(64, 0, localOnly)
	w := r.b.window()
	index := w.key >> 8
	for i := range 300 {
		a.sent, b.sent, b.received = nil, nil, nil
		b.bind(w, there, i, 64, canWrite)
		if w.key>>8 != index {
			r.Fatalf("round %d: the index of the key changed", i)
		}
		here.bytes[0] = byte(i)
		b.receive(verbs.ReceiveWork{ID: uint64(i), Address: message.address, Length: 64, LocalKey: message.local})
		a.post(write(1, here, 0, 1, there.address+uint64(i), w.key))
		a.do(verbs.SendWork{ID: 2, Operation: verbs.SendWithInvalidate, Flags: verbs.Fence, RemoteKey: w.key})
		b.await(1, 1)
		if c := b.lastReceived(uint64(i), verbs.WorkSuccess); c.Invalidated != w.key || there.bytes[i] != byte(i) {
			r.Fatalf("round %d: key %#x invalidated, want %#x; byte %#x", i, c.Invalidated, w.key, there.bytes[i])
		}
	}
}

// manyWindows: ibv_post_send(3): a list of binds, used together; their keys end one by one.
func manyWindows(r *rig) {
	a, b := r.connect(shape{})
	const n = 16
	here, there, message := r.a.region(n*100, 1, localOnly), r.b.region(n*100, 2, parent), r.b.region(64, 0, localOnly)
	fillCounting(here.bytes, 0x77)
	var windows []*window
	var binds, work []verbs.SendWork
	for i := range n {
		w := r.b.window()
		binds = append(binds, w.binding(uint64(i), there, i*100, 100, canWrite))
		w.key = next(w.key)
		windows = append(windows, w)
		work = append(work, write(uint64(i), here, i*100, 100, there.address+uint64(i*100), w.key))
		b.receive(verbs.ReceiveWork{ID: uint64(i), Address: message.address, Length: 64, LocalKey: message.local})
	}
	b.post(binds...)
	b.await(n, 0)
	for i, w := range windows {
		b.check(b.sent[i], uint64(i), []verbs.WorkStatus{verbs.WorkSuccess})
		work = append(work, verbs.SendWork{ID: uint64(100 + i), Operation: verbs.SendWithInvalidate, Flags: verbs.Signaled, RemoteKey: w.key})
	}
	a.post(work...)
	a.await(n, 0)
	b.await(n, n)
	for i, w := range windows {
		if c := b.received[i]; c.Invalidated != w.key || c.Status != verbs.WorkSuccess {
			r.Errorf("receive %d names key %#x with status %d, want %#x", i, c.Invalidated, c.Status, w.key)
		}
	}
	if !bytes.Equal(here.bytes, there.bytes) {
		r.Error("bytes differ")
	}
}
