package verbs

import (
	"fmt"
	"sync/atomic"
)

// Domain is a protection domain with the history of its window keys. Register, Deregister and the making of queue
// pairs may run on any loop; AllocateWindow, Park and Close belong to one loop at a time.
type Domain struct {
	context *Context
	name    string // made once: to make windows is part of the steady state, and asks for it
	calls   Calls
	handle  DomainHandle
	keys    keyHistory

	regions, windows, pairs family
	parked                  []*MemoryWindow // allocated, without a fresh tag; never bound again
	parkedCount             atomic.Int64
	life                    life
}

// AllocateDomain makes a protection domain whose windows may have at most keyIndicesMax different key indices in its
// whole life (SPEC U, max_window_key_indices); zero: no windows. A paused context allows it.
func (c *Context) AllocateDomain(keyIndicesMax int) (*Domain, error) {
	if state, why := c.State(); state == Fenced {
		return nil, &FencedError{Object: c.String(), State: state.String(), Reason: why}
	}
	c.life.mustBeOpen(c.String(), "AllocateDomain")
	handle, err := c.calls.AllocateDomain(c.handle)
	if err != nil {
		return nil, err
	}
	c.domains.live.Add(1)
	return &Domain{
		context: c, name: "protection domain of " + c.info.Name, calls: c.calls, handle: handle,
		keys: keyHistory{limit: keyIndicesMax, entries: map[uint32]*keyEntry{}},
	}, nil
}

func (d *Domain) String() string { return d.name }

// Context is the device that the domain belongs to.
func (d *Domain) Context() *Context { return d.context }

// DomainCounts says what a domain holds, retained objects included. Windows include the parked ones.
type DomainCounts struct {
	Regions, Windows, Parked, Pairs, KeyIndices int64
}

// Counts reads the numbers; any loop may.
func (d *Domain) Counts() DomainCounts {
	return DomainCounts{d.regions.live.Load(), d.windows.live.Load(), d.parkedCount.Load(), d.pairs.live.Load(), d.keys.count.Load()}
}

// AllocateWindow makes a window that has at least one fresh key. Windows whose index has none left are parked on the
// way: they stay allocated, so that the device cannot give that index out again. It fails with the library's error, or
// with *KeyError.
func (d *Domain) AllocateWindow() (*MemoryWindow, error) {
	d.life.mustBeOpen(d.String(), "AllocateWindow")
	if d.keys.limit == 0 {
		return nil, &KeyError{Object: d.String(), Why: "it may have no windows"}
	}
	for {
		handle, key, err := d.calls.AllocateWindow(d.handle)
		if err != nil {
			return nil, err
		}
		d.windows.live.Add(1)
		w := &MemoryWindow{domain: d, handle: handle, key: key}
		if w.entry, err = d.keys.claim(d.String(), key.Index()); err != nil {
			return nil, d.refuseWindow(w, err)
		}
		if w.Reusable() {
			return w, nil
		}
		d.Park(w) // bounded: one for each index of the history
	}
}

// refuseWindow ends a window whose index could not be claimed. One that shadows a live index is kept: freeing it might
// end the other one's authority, or its index.
func (d *Domain) refuseWindow(w *MemoryWindow, refusal error) error {
	if d.keys.entries[w.key.Index()] != nil {
		_ = w.life.retain(&d.context.book, w.String(), "ibv_dealloc_mw (not called)", refusal, &d.windows)
		return refusal
	}
	_ = w.life.end(&d.context.book, w.String(), "ibv_dealloc_mw", func() error { return d.calls.FreeWindow(w.handle) }, &d.windows)
	return refusal // a failed end is in the book
}

// Park puts an idle window without a fresh key aside until the domain closes. The caller no longer owns it.
func (d *Domain) Park(w *MemoryWindow) {
	if w.phase != WindowIdle || w.Reusable() || w.domain != d {
		panic(fmt.Sprintf("verbs: Park of %s which is %s and reusable %v, want idle, used up and of %s", w, w.phase, w.Reusable(), d))
	}
	w.phase = WindowParked
	d.parked = append(d.parked, w)
	d.parkedCount.Add(1)
}

// Close ends the domain after everything in it: *BusyError while something is left. Parked windows end first; if one is
// refused, it, those behind it and the domain are retained.
func (d *Domain) Close() error {
	if done, err := d.life.ended(); done {
		return err
	}
	inUse := d.windows.live.Load() - d.parkedCount.Load()
	if left := busy(d.String(), d.regions.allKept() && d.pairs.allKept() && inUse == d.windows.kept.Load(),
		Debt{"queue pairs", d.pairs.live.Load()},
		Debt{"memory windows", inUse},
		Debt{"memory regions", d.regions.live.Load()}); left != nil {
		return d.life.wait(&d.context.book, left, &d.context.domains)
	}
	for len(d.parked) > 0 {
		w := d.parked[0]
		if err := w.life.end(&d.context.book, w.String(), "ibv_dealloc_mw", func() error { return d.calls.FreeWindow(w.handle) }, &d.windows); err != nil {
			return d.keepParked(err)
		}
		w.phase = WindowGone
		d.unpark()
	}
	return d.life.end(&d.context.book, d.String(), "ibv_dealloc_pd", func() error { return d.calls.FreeDomain(d.handle) }, &d.context.domains)
}

func (d *Domain) unpark() {
	d.parked = d.parked[1:]
	d.parkedCount.Add(-1)
}

// keepParked retains the parked windows behind a refused one without asking the library, and the domain.
func (d *Domain) keepParked(refusal error) error {
	d.unpark()
	for len(d.parked) > 0 {
		w := d.parked[0]
		_ = w.life.retain(&d.context.book, w.String(), "ibv_dealloc_mw (not called)", refusal, &d.windows)
		d.unpark()
	}
	return d.life.retain(&d.context.book, d.String(), "ibv_dealloc_pd (not called)", refusal, &d.context.domains)
}
