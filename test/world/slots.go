package world

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/lanes/delegate"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/test/faults"
)

// offer lets peers direct the staging of an engine with GPUs, and the engine that of its peers (SPEC C-8).
func (l *life) offer(c *orbitte.Config) {
	own := l.slot.config
	if !own.Bool(faults.RemoteStaging) {
		return
	}
	c.RemoteStaging = &orbitte.RemoteStagingConfig{PeerSlots: own.Int(faults.PeerSlots)}
	if slots := own.Int(faults.PinnedSlots); slots > 0 {
		c.RemoteStaging.Slots = max(slots, c.Lanes)
	}
}

// slotBytes is how much one of the life's slots holds: parts of a request come through them at different moments.
func (l *life) slotBytes() int {
	if n := l.slot.config.Int(faults.PinnedChunk); n > 0 {
		return n
	}
	return 1 << 20
}

// walks is true exactly when devices carry the op to or from a GPU that its source stages, and it is longer than the source's
// pinned chunks: each of its parts has grants of its own then, and leases its own range for its own time.
func (o *op) walks() bool {
	l := o.remote.life
	return o.rdma && !o.slotted && o.remote.gpu && l != o.local.life && !l.reaches() && uint64(o.length) > netproto.PartFloor(uint64(l.slotBytes()))
}

// slotFramed sees a frame that names a slot: some request to that peer has asked for slots, and is under way.
func (r *run) slotFramed(s *stream, h []byte, f frame) {
	var epoch orbitte.Epoch
	copy(epoch[:], h[12:28])
	for _, sub := range s.life.open {
		for _, o := range sub.ops {
			if o.slotted && !o.over && o.write == (f.operation == opWrite) && o.remote.life.epoch == epoch && f.length <= uint64(o.remote.life.slotBytes()) {
				return
			}
		}
	}
	r.violate(OracleStream, "%v sends a frame of %d bytes for slot %#x of %x, and has no request that uses slots there", s.life, f.length, binary.BigEndian.Uint64(h[28:]), epoch)
}

const (
	// receiptGrace is how long slots that devices may reach outlive their stream, for receipts that are on their way; then the
	// pairs of those that have not come are taken to their end, which takes a cleanup window at most (SPEC C-8, R-18). What has
	// no proof then is retained.
	receiptGrace = 100*time.Millisecond + grace
	// receiptRests is for how many rounds a source may rest behind that.
	receiptRests = 3
)

// evicted looks at a source that rests and has no peers: their pins have ended with their streams, but for copies under way,
// and for grants whose keys devices still have.
func (r *run) evicted(l *life) {
	if l.vault == nil || !l.slot.config.Bool(faults.RemoteStaging) || len(l.vault.flights) > 0 || l.accepted() {
		l.lingers = 0
		return
	}
	s := l.engine.Stats().RemoteStaging
	if s == nil || s.Slots <= s.Retained {
		l.lingers = 0
		return
	}
	if now := r.net.Now(); l.lent && l.gauge("RDMA grants").Used > 0 {
		most := receiptGrace
		if r.wounded {
			most += cleanup
		}
		if l.lingers == 0 {
			l.lingers, l.lingerRests = now, 0
		}
		if now > l.lingers.After(most) {
			l.lingerRests++
		}
		if l.lingerRests <= receiptRests {
			return
		}
	}
	r.violate(OracleQuiet, "%v rests without a stream of any peer, and %d slots are pinned for peers (%d requests)", l, s.Slots-s.Retained, s.Pins)
}

// granted sees a question for grants; on a slot of the peer's, its devices may have the slot from now on.
func (r *run) granted(h []byte) {
	var epoch orbitte.Epoch
	copy(epoch[:], h[12:28])
	if peer := r.named(epoch); peer != nil && h[28]&slotRegion != 0 {
		peer.lent = true
	}
}

// takenBack explains a refusal that is about slots: their source's own deadline for them has passed, or it is closing, or the
// region behind them may be gone.
func (o *op) takenBack(err error) bool {
	if o == nil || !o.slotted || !errors.Is(err, delegate.ErrTakenBack) {
		return false
	}
	l := o.remote.life
	s := l.engine.Stats().RemoteStaging
	want := netproto.RemoteRead
	if o.write {
		want = netproto.RemoteWrite
	}
	return l.fenced || !l.alive() || s != nil && s.Expired > 0 || !o.covered(o.remote, o.remoteAt(), want, o.segment.born)
}

// early is true exactly when the deadline that the op's source has for it cannot have passed.
func (o *op) early(now reactor.Instant) bool {
	return o == nil || now < o.submission.started.After(o.remote.life.sourceTimeout())
}

// unpinned explains a loss of slots with their stream: another one of the engine's was ended early, and both shared it.
func (s *submission) unpinned(err error) bool {
	o := s.failedOp(err)
	for _, other := range s.life.open {
		s.life.impatient = s.life.impatient || other.deadline > 0 && s.life.run.net.Now() >= other.deadline // its end may be told later
	}
	return o != nil && o.slotted && errors.Is(err, delegate.ErrUnpinned) && s.life.impatient
}

// accepted is true exactly when a control stream of a peer's is open.
func (l *life) accepted() bool {
	for _, s := range l.streams { // whether there is one: in any order
		if !s.client && !s.data {
			return true
		}
	}
	return false
}
