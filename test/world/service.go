package world

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/test/faults"
)

const (
	// visitTime is how long one attempt may take in a world without faults: far above a dropped connection request,
	// which is asked again after a second.
	visitTime = 10 * time.Second
	// describeTime is what a descriptor of some hundred bytes takes through a buffer of 64, a round trip of 4 ms for each.
	describeTime = 50 * time.Millisecond
	// visitTries is how often an engine may fail to reach another one. A stream that a fault left half dead is found by the
	// request that meets it, and may cost one per side of it.
	visitTries = 4
	// visitPause lies between two tries. A source that waits for a lease does not hear of a client that has gone, and such a frame
	// holds a place for as long as the source's deadline: until then two that come at once may evict each other again and again.
	visitPause = sourceTimeoutDefault + time.Second
	// restRounds is for how many rounds an engine may rest over a request whose deadline has passed.
	restRounds = 50
)

// visits lets every engine open every other one, once all faults are over: an acceptor that has ended, a place that
// was never given back, a stream that nobody closes, would show now.
func (r *run) visits() bool {
	for _, l := range r.lives {
		if l.alive() {
			l.call("visit", 0, func(*lease) { r.visit(l) })
		}
	}
	return r.until("the end of all visits", r.quiet)
}

func (r *run) visit(l *life) {
	for _, s := range r.slots {
		peer := s.current()
		if peer == nil || peer == l || peer.fenced || s.config.Get(faults.IdleTimeout) != 0 {
			continue // an idle time shorter than the way to it closes every stream before its first frame
		}
		if s.config.Get(faults.SourceTimeout) != 0 && s.config.Duration(faults.SourceTimeout) < describeTime && r.script.World.Get(faults.Buffer) != 0 {
			continue // a descriptor does not pass through so small a buffer in the source's time
		}
		if places := s.config.Int(faults.PeerSegments); places != 0 && places < len(r.slots)-1 {
			continue // all the others come at once, and there is no place for so many
		}
		err := r.reach(l, peer)
		if errors.Is(err, orbitte.ErrExhausted) && (l.keeps || l.retainsGPU()) {
			continue // what is not proven to be quiet stays charged, and may be all that the limits admit
		}
		if err != nil {
			r.violate(OracleService, "%v cannot open %v, though all faults are over: %v", l, peer, err)
			return
		}
	}
}

// reach opens a peer and closes it again. A side that was closed by the script is no failure.
func (r *run) reach(l, peer *life) (err error) {
	for try := range visitTries {
		if try > 0 {
			r.pause(l, visitPause)
		}
		ctx := r.newLease(visitTime)
		handle, failed := l.engine.OpenSegment(ctx, peer.slot.address.String(), peer.epoch)
		if failed == nil {
			failed = l.engine.CloseSegment(ctx, handle)
		}
		if err = failed; err == nil || errors.Is(err, orbitte.ErrClosed) || peer.fenced || !peer.alive() {
			return nil
		}
	}
	return err
}

// pause lets the virtual time pass in a call that waits; its engine goes on.
func (r *run) pause(l *life, d time.Duration) {
	until := r.net.Now().After(d)
	r.net.Later(d, l.task.Ready)
	for r.net.Now() < until && l.alive() {
		l.engine.Progress(time.Hour)
	}
}

// watch finds engines that rest over what should have ended: their next step may never come.
func (r *run) watch() {
	for _, l := range r.lives {
		if l.stopped || !l.rested || !l.alive() {
			continue
		}
		r.conserves(l)
		r.evicted(l)
		for _, s := range l.open {
			if s.ended || s.deadline == 0 || r.net.Now() <= s.deadline.After(s.late()) {
				continue
			}
			if s.rests++; s.rests > restRounds {
				r.violate(OracleTerminal, "%v rests over a submission that has not ended %v after its deadline", l, time.Duration(r.net.Now()-s.deadline))
			}
		}
	}
}

// permitted is true exactly when a registration of the remote memory allows the request.
func (o *op) permitted() bool {
	want := netproto.RemoteRead
	if o.write {
		want = netproto.RemoteWrite
	}
	first := o.remote.object.Address() + uint64(o.remoteAt())
	for _, g := range o.remote.life.ranges {
		h := g.handle
		if g.memory == o.remote && h.Permission()&want == want && h.Address() <= first && first+uint64(o.length) <= h.Address()+h.Length() {
			return true
		}
	}
	return false
}

// wronglyRefused finds a refusal for want of a registration that is there. Which of several registrations is asked depends
// on addresses and on what the segment's view had when, so all that ever covered the bytes must stand and permit.
func (r *run) wronglyRefused(s *submission, err error) {
	var own *orbitte.Error
	if !errors.As(err, &own) || own.Index < 0 || own.Index >= len(s.ops) {
		return
	}
	o, stands := s.ops[own.Index], false
	switch {
	case errors.Is(err, orbitte.ErrUncovered):
		stands = o.covered(o.local, o.localAt(), 0, o.number)
	case o.remote.life == o.segment.peer && !o.remote.life.fenced && o.write:
		stands = o.covered(o.remote, o.remoteAt(), netproto.RemoteWrite, o.segment.born)
	case o.remote.life == o.segment.peer && !o.remote.life.fenced:
		stands = o.covered(o.remote, o.remoteAt(), netproto.RemoteRead, o.segment.born)
	}
	if stands && o.length > 0 && o.within() {
		r.violate(OracleError, "%v: %v was refused as %s, but what it asks for is registered: %v", s.life, o, class(err), err)
	}
}

// covered is true exactly when a registration that stood before that operation covers the op's bytes at this offset of m,
// and every one that ever covered them stands and permits it.
func (o *op) covered(m *memory, at int, want orbitte.Permission, before uint64) (stood bool) {
	first := m.object.Address() + uint64(at)
	for _, g := range m.life.ranges {
		h := g.handle
		if g.memory != m || first < h.Address() || first+uint64(o.length) > h.Address()+h.Length() {
			continue
		}
		if g.leaving || g.gone || h.Permission()&want != want {
			return false
		}
		stood = stood || g.born < before
	}
	return stood
}

// localAt is where the op's own side begins in its memory object.
func (o *op) localAt() int {
	if o.write {
		return o.fromAt
	}
	return o.toAt
}

// remoteAt is where the peer's side begins.
func (o *op) remoteAt() int {
	if o.write {
		return o.toAt
	}
	return o.fromAt
}

// calm is true exactly when the script has neither fault nor end of an engine: then nothing explains a connection that is
// lost, but what engines close by their own settings.
func calm(s faults.Script) bool {
	for _, line := range s.Lines {
		switch k := line.Action.Kind; {
		case k.IsFault(), k == faults.CloseSource, k == faults.CloseRequester, k == faults.Close:
			return false
		}
	}
	return true
}

// unexplained finds a lost connection in a calm world. An engine that had more frames or streams than its budgets allow, or
// idle ones for too long, has closed some, and says so.
func (r *run) unexplained(l *life, err error) {
	if !r.calm || !(errors.Is(err, orbitte.ErrDisconnected) || errors.Is(err, orbitte.ErrUnreachable) || errors.Is(err, orbitte.ErrStaleEpoch)) {
		return
	}
	for _, other := range r.lives {
		stats := other.engine.Stats()
		if stats.Totals.Overflowed+stats.Totals.SourceTimeouts+stats.Totals.IdleClosed > 0 {
			return
		}
		for _, g := range stats.Gauges {
			if other != l && strings.Contains(g.Name, "accepted streams") && g.Peak >= g.Limit {
				return
			}
		}
	}
	r.violate(OracleError, "%v lost a connection in a world without faults: %v", l, err)
}

// serving is what a source had done when it was last looked at.
type serving struct {
	done  uint64
	since int64 // virtual time; 0: no handler was at work
	steps int
	lates int // times that it was found late; the first may follow a jump of the clock at once
}

// servedInTime finds a source whose handlers are held and get nowhere for longer than its own deadline.
func (r *run) servedInTime(l *life, stats orbitte.Stats) {
	held, open, t := int64(0), int64(0), stats.Totals
	for _, g := range stats.Gauges {
		switch {
		case g.Name == "source handlers":
			held = g.Used
		case strings.HasPrefix(g.Name, "accepted streams"):
			open += g.Used
		}
	}
	done := t.ReadsServed + t.WritesServed + t.Described + t.NotificationsReceived + t.FramesRefused + t.SourceTimeouts + t.Overflowed + t.BytesServed + t.Accepted - uint64(open)
	if slots := stats.RemoteStaging; slots != nil { // what was asked about slots, and done for it
		done += slots.Pinned + slots.Copies + slots.Copied + slots.Failed
	}
	now := int64(r.net.Now())
	if held == 0 || done != l.serving.done || l.serving.since == 0 || l.stopped {
		l.serving = serving{done: done, since: now, steps: l.steps}
		if held == 0 {
			l.serving.since = 0
		}
		return
	}
	if late := time.Duration(now-l.serving.since) - l.sourceTimeout() - grace; late > 0 && (l.rested || l.steps-l.serving.steps > graceSteps) {
		if l.serving.lates++; l.serving.lates < 3 {
			return
		}
		r.violate(OracleTerminal, "%v: %d handlers are held %v after the source's deadline", l, held, late)
	}
}

// sourceTimeoutDefault is the engine's own, when the script sets none.
const sourceTimeoutDefault = 5 * time.Second

// sourceTimeout is the life's own deadline for what peers ask of it.
func (l *life) sourceTimeout() time.Duration {
	if d := l.slot.config.Duration(faults.SourceTimeout); d > 0 {
		return d
	}
	return sourceTimeoutDefault
}

// registerBadBatch registers ranges of which the last one leaves its memory object: the batch is refused as a whole.
func (r *run) registerBadBatch(a faults.Action) string {
	l, m := r.life(a, faults.EngineOf), r.memory(a.Int(faults.Memory))
	if l == nil || m == nil || m.life != l {
		return absent
	}
	permission := orbitte.Permission(a.Get(faults.Permission))
	at, length := uint64(a.Get(faults.Offset)), uint64(a.Get(faults.Length))
	bad := []orbitte.Range{
		{Memory: m.object, Offset: at, Length: length, Permission: permission},
		{Memory: m.object, Offset: at, Length: max(1, length/2), Permission: permission},
		{Memory: m.object, Offset: uint64(len(m.data)), Length: 1, Permission: permission},
	}
	if m.vault == nil && length > 1 { // refused only when the others have their charges: bytes that another memory object has
		alias, err := orbitte.Adopt(m.data[at : at+1])
		if err != nil {
			return class(err)
		}
		defer alias.Close()
		bad[2] = orbitte.Range{Memory: alias, Length: 1, Permission: permission}
	}
	before := registered(l)
	if _, err := l.engine.RegisterBatch(bad); err == nil {
		r.violate(OracleResult, "%v: a batch with a range outside of its memory was registered", l)
	} else if after := registered(l); after != before {
		r.violate(OracleCharge, "%v: a batch registration that failed with %q left %s, before it %s", l, class(err), after, before)
	} else {
		return class(err)
	}
	return "ok"
}

// registered is what the two budgets of registrations hold.
func registered(l *life) (text string) {
	for _, g := range l.engine.Stats().Gauges[:2] {
		text += fmt.Sprintf("%d %s ", g.Used, g.Unit)
	}
	return text
}
