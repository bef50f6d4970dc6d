package verbs

import (
	"fmt"
	"strings"
)

// WindowPhase is where a memory window stands between two grants.
type WindowPhase uint8

const (
	// WindowIdle: allocated, gives no authority.
	WindowIdle WindowPhase = iota
	// WindowPrepared: a bind with a fresh key was made and not posted.
	WindowPrepared
	// WindowBinding: the bind is with the device.
	WindowBinding
	// WindowBound: its key gives authority and nobody outside knows it.
	WindowBound
	// WindowPublished: the peer may know the key. Only the peer invalidates it; this side can only free the window.
	WindowPublished
	// WindowEnding: a local invalidate was made and not posted.
	WindowEnding
	// WindowInvalidating: a local invalidate is with the device.
	WindowInvalidating
	// WindowDoubtful: a bind or invalidate failed; only freeing it is certain.
	WindowDoubtful
	// WindowParked: allocated for good, so that its used-up index stays taken.
	WindowParked
	// WindowGone: freed, or retained by a refusal.
	WindowGone
)

var windowPhaseNames = [...]string{"idle", "prepared", "binding", "bound", "published", "ending", "invalidating", "doubtful", "parked", "gone"}

func (p WindowPhase) String() string { return windowPhaseNames[p] }

// MemoryWindow is a Type-2B window: authority over one exact range in one direction, for one peer, once. Between
// PrepareBind and its end it belongs to the lane of its queue pair.
type MemoryWindow struct {
	domain *Domain
	handle WindowHandle
	entry  *keyEntry
	phase  WindowPhase
	key    RemoteKey // the device's current key: of the allocation, then of the last successful bind
	next   RemoteKey // the key that a prepared or posted bind will make current
	work   uint64    // identity of the posted bind or invalidate; 0: none
	pair   *QueuePair
	region *MemoryRegion // lent from PrepareBind to the end of the authority
	life   life
}

func (w *MemoryWindow) String() string {
	return fmt.Sprintf("memory window %#x of %s", uint32(w.key), w.domain.context.info.Name)
}

// Phase is where the window stands.
func (w *MemoryWindow) Phase() WindowPhase { return w.phase }

// Key is the key of a window that is bound or published.
func (w *MemoryWindow) Key() RemoteKey {
	w.mustBe("Key", keyPhases)
	return w.key
}

// Reusable is true exactly when a key is left that never gave authority. An idle window without one is to be parked.
func (w *MemoryWindow) Reusable() bool {
	_, ok := w.entry.fresh(w.key)
	return ok
}

// windowPhases is a set of phases.
type windowPhases uint16

func phases(list ...WindowPhase) (set windowPhases) {
	for _, p := range list {
		set |= 1 << p
	}
	return set
}

var (
	keyPhases    = phases(WindowBound, WindowPublished)
	cancelPhases = phases(WindowPrepared, WindowEnding)
	freePhases   = phases(WindowIdle, WindowBinding, WindowBound, WindowPublished, WindowInvalidating, WindowDoubtful)
)

func (s windowPhases) String() string {
	var names []string
	for p, name := range windowPhaseNames {
		if s&(1<<p) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, " or ")
}

func (w *MemoryWindow) mustBe(verb string, want windowPhases) {
	if want&(1<<w.phase) == 0 {
		panic(fmt.Sprintf("verbs: %s of %s which is %s, want %s", verb, w, w.phase, want))
	}
}

// PrepareBind makes the work that binds the window to a range of a region, for a peer of this pair, with a key that
// never gave authority. The range and access are exactly those of the grant. The work has to be posted on the pair, or
// taken back with Cancel. It fails with *KeyError when no key is left and with *BusyError when the region is retired.
func (w *MemoryWindow) PrepareBind(tag uint64, pair *QueuePair, region *MemoryRegion, address, length uint64, a Access) (Work, error) {
	w.mustBe("PrepareBind", 1<<WindowIdle)
	if length == 0 || !region.Covers(address, length) || region.access&AccessWindowBind == 0 || region.domain != w.domain || pair.domain != w.domain {
		panic(fmt.Sprintf("verbs: PrepareBind of %s to [%#x, +%d), want a range inside a bindable region and a pair of its domain; have %s", w, address, length, region))
	}
	key, ok := w.entry.fresh(w.key)
	if !ok {
		return Work{}, &KeyError{Object: w.String(), Indices: int(w.domain.keys.count.Load()), Limit: w.domain.keys.limit, Why: "every tag of its index was used"}
	}
	if !region.Lend() {
		return Work{}, busy(region.String(), false, Debt{"retirement begun", 1})
	}
	w.entry.spend(key.Tag()) // before the effect: whatever becomes of the bind, the key is never used again
	w.next, w.pair, w.region, w.phase = key, pair, region, WindowPrepared
	return Work{Window: w, SendWork: SendWork{
		ID: tag, Operation: BindWindow, Window: w.handle, Region: region.handle,
		Remote: address, Span: length, RemoteKey: key, Access: a,
	}}, nil
}

// Publish says that the key is about to be told to the peer, and returns it.
func (w *MemoryWindow) Publish() RemoteKey {
	w.mustBe("Publish", 1<<WindowBound)
	w.phase = WindowPublished
	return w.key
}

// PrepareInvalidate makes the work that ends a window whose key was never told to anybody. A published window is ended
// by its peer or by Free, never from here: two ends that invalidate at once can bring a kernel down.
func (w *MemoryWindow) PrepareInvalidate(tag uint64) Work {
	w.mustBe("PrepareInvalidate", 1<<WindowBound)
	w.phase = WindowEnding
	return Work{Window: w, SendWork: SendWork{ID: tag, Operation: LocalInvalidate, RemoteKey: w.key}}
}

// Cancel takes back work that was prepared and not posted.
func (w *MemoryWindow) Cancel() {
	w.mustBe("Cancel", cancelPhases)
	if w.phase == WindowEnding {
		w.phase = WindowBound
		return
	}
	w.release(WindowIdle) // nothing was posted
}

// EndByPeer takes the receipt of the peer's SEND_WITH_INV: a successful receive on the window's own pair that names its
// key, and no message with immediate data, whose number is the peer's choice. False: this completion does not end this
// window, and nothing changed.
func (w *MemoryWindow) EndByPeer(c *Reaped) bool {
	if w.phase != WindowPublished || c.Status != WorkSuccess || c.Operation != CompletedReceive || c.Pair != w.pair || c.Invalidated != w.key || c.Flags&WithImmediate != 0 {
		return false
	}
	w.pair.bound.live.Add(-1) // proof: the device reported that it ended this key
	w.release(WindowIdle)
	return true
}

// release ends the use of region and pair.
func (w *MemoryWindow) release(p WindowPhase) {
	w.region.Return()
	w.region, w.pair, w.work, w.phase = nil, nil, 0, p
}

// posted is told the identity under which the device took the window's work.
func (w *MemoryWindow) posted(id uint64) {
	w.work = id
	if w.phase == WindowEnding {
		w.phase = WindowInvalidating
		return
	}
	w.phase = WindowBinding
	w.pair.bound.live.Add(1)
}

// refused is told that the device certainly did not take it.
func (w *MemoryWindow) refused() {
	w.work = 0
	if w.phase == WindowInvalidating {
		w.phase = WindowBound
		return
	}
	w.pair.bound.live.Add(-1) // proof: the post was refused
	w.release(WindowIdle)
}

// completed is told the end of its work. Only the identity it waits for counts: a window may be freed before a late
// completion comes.
func (w *MemoryWindow) completed(id uint64, ok bool) {
	switch {
	case w.work != id:
	case !ok:
		w.work, w.phase = 0, WindowDoubtful
	case w.phase == WindowBinding:
		w.work, w.key, w.phase = 0, w.next, WindowBound
	case w.phase == WindowInvalidating:
		w.pair.bound.live.Add(-1) // proof: the invalidate completed
		w.release(WindowIdle)
	}
}

// Free ends the window and with it, at once, whatever authority it gives. It refuses with *BusyError while a bind or
// invalidate is with the device and its pair's sends are not drained, and while the peer of a published window can
// still reach it: the pair goes to the error state first, and the window is freed before the pair is destroyed (SPEC
// Otherwise the peer's invalidate could meet the next window with this index. A refusal of the library is final.
func (w *MemoryWindow) Free() error {
	if done, err := w.life.ended(); done {
		return err
	}
	w.mustBe("Free", freePhases)
	if w.work != 0 && !w.pair.sends.drained() {
		return busy(w.String(), false, Debt{"work requests with the device", 1})
	}
	if w.phase == WindowPublished && w.pair.state != PairError {
		if w.pair.Retained() { // it will never be in error
			w.keep()
			return w.life.retain(&w.domain.context.book, w.String(), "ibv_dealloc_mw (not called)", w.pair.life.reason, &w.domain.windows)
		}
		return busy(w.String(), false, Debt{"peer that may still use its key (drain the pair)", 1})
	}
	err := w.life.end(&w.domain.context.book, w.String(), "ibv_dealloc_mw", func() error { return w.domain.calls.FreeWindow(w.handle) }, &w.domain.windows)
	if err != nil {
		w.keep()
		return err
	}
	if w.pair != nil {
		w.pair.bound.live.Add(-1) // proof: the window is no more
		w.release(WindowGone)
	}
	w.phase = WindowGone
	w.entry.live.Store(false)
	return nil
}

// retainWith keeps a window whose work is unresolved on a pair that is retained. One that was freed is gone already.
func (w *MemoryWindow) retainWith(q *QueuePair, call string, why error) {
	if w.work == 0 || w.pair != q || w.life.stage() != open {
		return
	}
	_ = w.life.retain(&w.domain.context.book, w.String(), call+" of "+q.String(), why, &w.domain.windows)
	w.keep()
}

// keep says that the authority of a retained window may never end.
func (w *MemoryWindow) keep() {
	w.work, w.phase = 0, WindowGone
	if w.pair != nil {
		w.pair.bound.kept.Add(1)
		w.region.kept.Add(1)
	}
}

// Retained is true exactly when the library refused to free it, or it went with its pair.
func (w *MemoryWindow) Retained() bool { return w.life.stage() == retained }
