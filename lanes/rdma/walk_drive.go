package rdma

import (
	"slices"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/verbs"
)

// tracksMax is how many parts of one walk are under way at most: one is with the network while the source copies for the
// next, and the third hides the exchanges between two parts.
const tracksMax = 3

// walk is a transfer from or to memory on a GPU that its source stages, and that is longer than the source's pinned chunks:
// it moves part after part, each a parent of its own with all of its grants (SPEC R-9), which takes one chunk there. While
// one part is with the network the source fills the chunk of another, or empties it (SPEC C-4). A track carries one part at
// a time over connections of its own, which end with the walk (SPEC R-16).
//
// A READ into host memory that this side stages is all or nothing (SPEC T-1, R-6): the walk has private memory for the whole,
// the parts come into it, and it is committed when all are there.
//
// A third track that waits for its grants most of the time is given up. A part that its track got no connection or no place for goes back, as long as another track has one: so a walk needs no
// more than a single part does, and parts that wait keep nobody waiting.
//
//	track: off ──part──▶ running ──done──▶ resting (keeps its connections) ──next part──▶ running
//	                        │                 └──no part left──▶ leaving ──connections ended──▶ off
//	                        ├──refused, or recalled before it had a connection: the part goes back──▶ off
//	                        └──failed: so does the walk──▶ off
type walk struct {
	transfer *Transfer
	tracks   [tracksMax]track
	ahead    uint64 // first byte that no part has had
	back     []uint64
	narrow   bool // true exactly when no further track is opened, since one got no place
	fault    *lanes.Fault
	moved    uint64 // bytes of the parts that are done
	ways     []Path // that the parts took, each once
	touched  bool   // true exactly when a part may have changed its target

	undrained, busy, again bool
}

type trackState uint8

const (
	trackOff trackState = iota
	trackRunning
	trackResting
	trackLeaving
)

// track is a Transfer of its own for one part after the other.
type track struct {
	walk     *walk
	part     Transfer
	state    trackState
	offset   uint64
	extra    bool // true exactly while counted among the lane's extra tracks
	recalled bool // true exactly when its part is to go back
}

// walks is true exactly when a transfer is one of several parts.
func (t *Transfer) walks() bool {
	return t.track == nil && t.Remote == RemoteStaged && t.peer.StagedPart > 0 && t.Length > t.peer.StagedPart
}

// walk begins.
func (t *Transfer) startWalk() {
	t.machine.stage = transferWalking
	w := t.walk
	if w == nil {
		w = &walk{transfer: t, back: make([]uint64, 0, tracksMax)}
		for i := range w.tracks {
			x := &w.tracks[i]
			x.walk = w
			x.part.track = x
			x.part.Done = func(*Transfer) { x.done() }
		}
		t.walk = w
	}
	w.ahead, w.moved, w.back, w.ways, w.narrow, w.fault, w.touched, w.undrained = 0, 0, w.back[:0], w.ways[:0], false, nil, false, false
	t.walked = true
	if t.Direction == lanes.Read && t.staged() && !t.chunked() {
		if f := t.reserveWhole(); f != nil {
			t.conclude(f)
			return
		}
	}
	w.step()
}

// reserveWhole gets a walk private memory for all of its parts, on every device that may carry one of them; provisioned
// follows.
func (t *Transfer) reserveWhole() *lanes.Fault {
	r := t.rails
	s, err := newStaging(r.transport.config.Budgets.StagingBytes, t.Length, verbs.AccessLocalWrite)
	if err != nil {
		return fault(lanes.Exhausted, "staging", err)
	}
	for _, rail := range r.rails {
		if state, _ := rail.Device.State(); state != verbs.Fenced {
			s.on(rail.Device)
		}
	}
	r.transport.grants.staged.Add(1)
	t.staging, t.away = s, true
	t.provision.begin(r, t)
	t.provision.staging = s
	t.provision.fetch()
	return nil
}

// reserved goes on with the memory, or without hope.
func (w *walk) reserved(err error) {
	if err != nil {
		w.stop(fault(lanes.Exhausted, "registering private memory", err))
		return
	}
	w.step()
}

// buffer is private memory for the transfer's bytes, and where in it they begin: its own, or its walk's; nil: it has none.
func (t *Transfer) buffer() (*staging, uint64) {
	if t.lodges() {
		return t.track.walk.transfer.staging, t.track.offset
	}
	return t.staging, 0
}

// lodges is true exactly when the private memory of a part is its walk's, which commits it, gives it back, or keeps it.
func (t *Transfer) lodges() bool { return t.track != nil && t.track.walk.transfer.staging != nil }

// take is the next part; false: none is left.
func (w *walk) take() (offset uint64, ok bool) {
	if n := len(w.back); n > 0 {
		offset = w.back[n-1]
		w.back = w.back[:n-1]
		return offset, true
	}
	if w.ahead >= w.transfer.Length {
		return 0, false
	}
	offset = w.ahead
	w.ahead += min(w.transfer.peer.StagedPart, w.transfer.Length-offset)
	return offset, true
}

func (w *walk) left() bool { return len(w.back) > 0 || w.ahead < w.transfer.Length }

// step goes on with whatever can go on. It may be called at any time, also from inside itself.
func (w *walk) step() {
	if w.busy {
		w.again = true
		return
	}
	w.busy = true
	for w.again = true; w.again; {
		w.again = false
		w.look()
	}
	w.busy = false
	if w.active() == 0 {
		w.end()
	}
}

func (w *walk) look() {
	for i := range w.tracks {
		x := &w.tracks[i]
		switch {
		case x.state == trackRunning && w.fault != nil:
			x.part.halted(w.fault.Cause, w.fault.Err)
		case x.state == trackResting && (w.fault != nil || !w.left() && !w.recall()):
			x.leave()
		case x.state == trackResting:
			if w.left() {
				x.run()
			}
		case x.state == trackOff && w.fault == nil && w.left() && !w.transfer.away:
			if extra := w.active() > 0; !extra || w.roomy() {
				x.open(extra)
			}
		}
	}
}

// active is how many tracks are not off.
func (w *walk) active() (n int) {
	for i := range w.tracks {
		if w.tracks[i].state != trackOff {
			n++
		}
	}
	return n
}

// patient is true exactly when a part is the walk's only hope, after others were moved: a refusal for lack of room is
// then asked again until the deadline.
func (t *Transfer) patient() bool {
	return t.track != nil && t.track.walk.moved > 0 && t.track.walk.active() == 1
}

// roomy is true exactly when another track may be opened: extra ones of all walks of the lane leave most places to others.
func (w *walk) roomy() bool {
	r := w.transfer.rails
	c := &r.transport.config
	most := c.Budgets.Endpoints.Limit() / 4 / int64(len(r.transport.rails))
	return !w.narrow && int64((r.upper.extra+1)*c.Width) <= most
}

// recall takes a part back from a track that has no connection yet, for one that has; true: it comes back.
func (w *walk) recall() bool {
	some := false
	for i := range w.tracks {
		x := &w.tracks[i]
		if x.state != trackRunning || x.part.machine.stage > transferConnecting {
			continue
		}
		some = true
		if !x.recalled {
			x.recalled = true
			x.part.Cancel()
		}
	}
	return some
}

func (x *track) open(extra bool) {
	if x.extra = extra; extra {
		x.walk.transfer.rails.upper.extra++
	}
	x.run()
}

// run gives the track its next part.
func (x *track) run() {
	t, p := x.walk.transfer, &x.part
	x.offset, _ = x.walk.take()
	x.state, x.recalled = trackRunning, false
	p.Direction, p.Local, p.LocalOffset, p.Tiers = t.Direction, t.Local, t.LocalOffset+x.offset, t.Tiers
	p.Region, p.Offset, p.Length = t.Region, t.Offset+x.offset, min(t.peer.StagedPart, t.Length-x.offset)
	p.Epoch, p.Remote, p.Deadline = t.Epoch, t.Remote, t.Deadline
	p.Start(t.rails, t.peer)
}

// leave ends the track's connections; done follows.
func (x *track) leave() {
	x.state = trackLeaving
	x.part.depart()
}

// done takes the end of a part, or of the track's connections.
func (x *track) done() {
	w, p := x.walk, &x.part
	o := &p.Outcome
	switch {
	case x.state == trackLeaving:
		x.off()
	case o.Err == nil:
		w.touched = true
		w.moved += p.Length
		x.note()
		x.state = trackResting
		if x.idles() {
			w.narrow = true
			x.leave()
		} else if !p.keeps {
			x.off()
		}
	case w.fault == nil && x.replaceable():
		w.back = append(w.back, x.offset)
		w.narrow = w.narrow || !x.recalled
		x.quit()
	default:
		if f, ok := o.Err.(*lanes.Fault); ok && w.fault == nil {
			w.fault = f
		}
		w.touched = w.touched || o.Local != lanes.EffectNone || o.Remote != lanes.EffectNone
		w.undrained = w.undrained || !o.Drained
		x.note()
		x.quit()
	}
	w.step()
}

// idles is true exactly when a third track has waited for its grants for most of its part's time: the source has no chunk
// for it, or the stream no time, and its question keeps the stream from the others.
func (x *track) idles() bool {
	p := &x.part
	return x.extra && p.keeps && x.walk.active() > 2 && 2*(p.granted-p.begun) > p.rails.lane.Now()-p.begun
}

// note remembers the ways of a part.
func (x *track) note() {
	w := x.walk
	for _, l := range x.part.legs[:x.part.used] {
		if !slices.Contains(w.ways, l.path) {
			w.ways = append(w.ways, l.path)
		}
	}
}

// quit ends a track whose part has failed: it began with the connections of the part before it, or has none.
func (x *track) quit() {
	if x.part.keeps {
		x.leave()
		return
	}
	x.off()
}

func (x *track) off() {
	x.state = trackOff
	if x.extra {
		x.extra = false
		x.walk.transfer.rails.upper.extra--
	}
}

// replaceable is true exactly when another track can move the part: nothing of it was moved or is kept, it had no place or
// was recalled, and somebody has one.
func (x *track) replaceable() bool {
	p := &x.part
	f := p.machine.fault
	short := x.recalled && f.Cause == lanes.Cancelled || f.Cause == lanes.Exhausted || f.Cause == lanes.Refused && f.Status == netproto.StatusExhausted
	if !short || !p.Outcome.Drained || p.machine.touched {
		return false
	}
	for i := range x.walk.tracks {
		other := &x.walk.tracks[i]
		if other != x && (other.state == trackResting || other.state == trackRunning && !other.recalled && other.part.machine.stage > transferConnecting && other.part.machine.fault == nil) {
			return true
		}
	}
	return false
}

// stop fails a walk.
func (w *walk) stop(f *lanes.Fault) {
	if w.fault == nil {
		w.fault = f
	}
	w.step()
}

// end is the end of a walk: no track has anything.
func (w *walk) end() {
	t := w.transfer
	if t.machine.stage != transferWalking || t.away {
		return
	}
	m := &t.machine
	if w.fault != nil && w.moved < t.Length { // what comes with the last part is late
		m.fail(w.fault)
		m.touched = w.touched
		m.changed = w.touched && t.staging == nil
		m.unproven = w.undrained
	}
	switch {
	case t.staging == nil:
		t.report()
	case m.fault == nil:
		t.finish()
	default:
		t.settle()
	}
}

// depart ends the connections that a resting track keeps; Done follows.
func (t *Transfer) depart() {
	r := t.rails
	r.upper.begun(t)
	r.pending++
	t.machine.stage = transferParting
	t.keeps = false
	t.closing++
	for _, l := range t.legs[:t.used] {
		t.part(l)
	}
	t.used = 0
	t.parted()
}

// rest is true exactly when the track keeps its connections for the next part: they are well, and there is one.
func (t *Transfer) rest() bool {
	if t.track == nil || t.machine.fault != nil || t.retiring || t.track.walk.fault != nil {
		return false
	}
	for _, l := range t.legs[:t.used] {
		if c := l.connection(); c == nil || !c.Open() || l.dead {
			return false
		}
	}
	return true
}

// resume plans a part over the connections of the one before it; false: they are not to be had any more.
func (t *Transfer) resume() bool {
	if !t.keeps {
		return false
	}
	t.keeps = false
	well := true
	for _, l := range t.legs[:t.used] {
		well = well && !l.dead && l.connection() != nil && l.connection().Open()
	}
	cut := lanes.Cut(t.Length, t.rails.transport.config.Block, t.limit())
	for i, l := range t.legs[:t.used] {
		if !well || i >= cut.Count {
			t.part(l)
		}
	}
	t.used = min(t.used, cut.Count)
	if !well {
		t.used = 0
		return false
	}
	for i := range cut.Count {
		l := t.legs[i%t.used]
		offset, length := cut.At(i)
		t.machine.parcels = append(t.machine.parcels, parcel{offset: offset, length: length, leg: uint8(l.index)})
		l.rail.Device.Charge(length)
		l.charged += length
	}
	t.feedable(cut.Count)
	return true
}
