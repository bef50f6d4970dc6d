package rdma

import (
	"errors"
	"slices"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/verbs"
)

// Gaps are the pairs of NICs that could not be connected, as far as it is remembered: at most gapsMax. The caller changes
// nothing in them. Any goroutine.
func (t *Transport) Gaps() []Gap {
	if list := t.gaps.Load(); list != nil {
		return *list
	}
	return nil
}

// GapsTo are those to one peer whose time is not over.
func (t *Transport) GapsTo(peer netproto.Epoch, now int64) (gaps []Gap) {
	for _, g := range t.Gaps() {
		if g.Peer == peer && g.Until > now {
			gaps = append(gaps, g)
		}
	}
	return gaps
}

// closeGaps forgets gaps: of a pair that was connected, or of a NIC whose port changed.
func (t *Transport) closeGaps(over func(*Gap) bool) {
	for {
		old := t.gaps.Load()
		if old == nil || !slices.ContainsFunc(*old, func(g Gap) bool { return over(&g) }) {
			return
		}
		left := slices.DeleteFunc(slices.Clone(*old), func(g Gap) bool { return over(&g) })
		if t.gaps.CompareAndSwap(old, &left) {
			return
		}
	}
}

// widenGaps remembers a failure.
func (t *Transport) widenGaps(failed Gap, now int64) Gap {
	for {
		old := t.gaps.Load()
		var before []Gap
		if old != nil {
			before = *old
		}
		after, known := widen(before, failed, now)
		if t.gaps.CompareAndSwap(old, &after) {
			return known
		}
	}
}

// unreachable is true exactly when a build failed for its pair of NICs, as far as that can be known: a library refused to connect
// the pairs, here or at the source. What was short, closed, late or a lie says nothing about the way.
func (b *builder) unreachable() bool {
	var f *lanes.Fault
	if errors.As(b.err, &f) {
		return f.Cause == lanes.Refused && f.Status == netproto.StatusNativeError
	}
	var call *verbs.CallError
	return !b.c.Other.IsZero() && errors.As(b.err, &call) && !errors.Is(b.err, verbs.ErrCredit)
}

// bar remembers that the builder's pair of NICs could not be connected, and words it.
func (b *builder) bar(err *lanes.Fault) *lanes.Fault {
	c := b.c
	path := c.peer.path(c.OtherNIC)
	if path == nil {
		return err
	}
	now := int64(c.rails.lane.Now())
	gap := c.rails.transport.widenGaps(Gap{
		Peer: c.OtherEpoch, Local: c.Device.NIC, Remote: c.OtherNIC, LocalGID: b.route.GID.GID, RemoteGID: path.GID, Reason: err.Error(),
	}, now)
	told := *err
	told.Err = &UnreachedError{Local: c.Device.Name, Remote: path.Name, Times: gap.Times, For: time.Duration(gap.Until - now), Err: err.Err}
	return &told
}

// choose is Choose for a peer: pairs of NICs that could not be connected come last.
func (r *Rails) choose(p *Peer, tiers *Tiers) (Path, error) {
	r.selector.Gaps, r.selector.Peer, r.selector.Now = r.transport.Gaps(), p.Epoch, int64(r.lane.Now())
	path, err := r.Choose(p.Paths, tiers)
	r.selector.Gaps = nil
	return path, err
}

// detour builds anew when a pair of NICs could not be connected, once, and only over pairs of which that is not known: nothing was
// asked of the source yet, so that nothing is repeated (SPEC R-15).
func (t *Transfer) detour() {
	t.detoured = true
	t.giveBack()
	for _, l := range t.legs[:t.used] {
		t.part(l)
	}
	t.connect()
}

// detours is true exactly when a refused claim is to be answered by a detour.
func (t *Transfer) detours(f *lanes.Fault) bool {
	var pair *UnreachedError
	return t.machine.fault == nil && !t.detoured && errors.As(f, &pair)
}
