package simverbs

import (
	"slices"
	"syscall"

	"github.com/orbitte/orbitte/verbs"
)

// window is a memory window of type 2B: free, or bound to a region, a range and a pair.
type window struct {
	handle verbs.WindowHandle
	domain *domain
	key    uint32
	double bool // its index belongs to another window, by a plan
	// The rest is meaningful while region is not nil: the window is bound.
	region          *region
	pair            *pair
	address, length uint64
	access          verbs.Access
}

func (w *window) end() {
	w.free()
	d := w.domain
	d.users--
	d.context.device.counts.Windows--
	if !w.double {
		d.context.device.freeIndex(w.key >> 8)
		d.context.device.keys.stale = w.key
	}
	delete(d.context.process.windows, w.handle)
}

// free ends the authority of a bound window.
func (w *window) free() {
	if w.region == nil {
		return
	}
	w.region.windows--
	w.pair.windows--
	w.region, w.pair = nil, nil
}

// AllocateWindow implements verbs.Calls.
func (p *Process) AllocateWindow(h verbs.DomainHandle) (verbs.WindowHandle, verbs.RemoteKey, error) {
	if err := p.begin(CallAllocateWindow, "domain"); err != nil {
		return 0, 0, err
	}
	defer p.fabric.leave()
	d, err := p.domain(CallAllocateWindow, h)
	if err != nil {
		return 0, 0, err
	}
	device := d.context.device
	if device.spec.NoWindows { // ibv_alloc_mw(3): the driver has no such call
		return 0, 0, fail(CallAllocateWindow, device.spec.Name, syscall.EOPNOTSUPP)
	}
	if device.counts.Windows >= device.limits.Windows {
		return 0, 0, fail(CallAllocateWindow, device.spec.Name, syscall.ENOMEM)
	}
	w := &window{handle: verbs.WindowHandle(p.fabric.handle()), domain: d}
	w.key = device.newWindowKey(p, w)
	d.users++
	device.counts.Windows++
	p.windows[w.handle] = w
	return w.handle, verbs.RemoteKey(w.key), nil
}

// newWindowKey gives a new window its key, as a plan may have it.
func (d *Device) newWindowKey(p *Process, w *window) uint32 {
	f, t := p.fabric, &d.keys
	if stale := t.stale; stale != 0 && t.owners[stale>>8] == (keyOwner{}) && f.planKey(p, StaleKey) {
		t.freed = slices.DeleteFunc(t.freed, func(index uint32) bool { return index == stale>>8 })
		t.owners[stale>>8] = keyOwner{window: w}
		return stale
	}
	if len(p.windows) > 0 && f.planKey(p, DuplicateKey) {
		w.double = true
		return sorted(p.windows)[0].key&^0xff | uint32(f.random.IntN(256))
	}
	return d.newIndex(keyOwner{window: w})<<8 | uint32(f.random.IntN(256))
}

// FreeWindow implements verbs.Calls.
func (p *Process) FreeWindow(h verbs.WindowHandle) error {
	if err := p.begin(CallFreeWindow, "window"); err != nil {
		return err
	}
	defer p.fabric.leave()
	w := p.windows[h]
	if w == nil {
		return p.lost(CallFreeWindow, "window", uint64(h))
	}
	w.end()
	return nil
}

// bind carries out BindWindow work. IBTA 10.6.7.2: a type 2 window is bound only while free, with the index of its key
// and another tag, to a region of the same domain that allows it, over a pair of that domain.
func (q *pair) bind(work *verbs.SendWork) bool {
	p := q.process()
	w, r := p.windows[work.Window], p.regions[work.Region]
	if w == nil || r == nil {
		p.fabric.violate(p, "bind of window %d to region %d, one of which is not (or no longer) there", work.Window, work.Region)
		return false
	}
	key := uint32(work.RemoteKey)
	switch {
	case w.region != nil, w.double, w.domain != q.domain, r.domain != q.domain:
		return false
	case key>>8 != w.key>>8 || key == w.key && !p.fabric.sameKey():
		return false
	case r.access&verbs.AccessWindowBind == 0 || work.Span == 0 || !r.holds(work.Remote, work.Span):
		return false
	case work.Access&verbs.AccessRemoteWrite != 0 && r.access&verbs.AccessLocalWrite == 0:
		return false
	}
	w.key, w.region, w.pair = key, r, q
	w.address, w.length, w.access = work.Remote, work.Span, work.Access
	r.windows++
	q.windows++
	return true
}

// invalidate ends a window by its key, for this side's LocalInvalidate or the peer's SendWithInvalidate.
func (q *pair) invalidate(key verbs.RemoteKey) bool {
	w := q.device().keys.owners[uint32(key)>>8].window
	if w == nil {
		return false
	}
	if w.region == nil {
		if f := q.fabric(); f.panicsOnInvalidation() {
			f.violate(q.process(), "window key %#x is invalidated while the window is not bound: rdma_rxe panics the kernel", key)
		}
		return false
	}
	if w.key != uint32(key) || w.domain != q.domain || w.pair != q && !q.fabric().foreignInvalidation() {
		return false
	}
	w.free()
	return true
}
