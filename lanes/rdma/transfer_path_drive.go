package rdma

import (
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
)

// connect cuts the transfer, chooses a path for each slice and claims the connections (SPEC ).
func (t *Transfer) connect() {
	r := t.rails
	t.machine.stage = transferConnecting
	t.machine.parcels = t.machine.parcels[:0]
	if t.resume() {
		t.advance()
		return
	}
	t.used = 0
	cut := lanes.Cut(t.Length, r.transport.config.Block, t.limit())
	if t.Remote == RemoteDirect && !r.upper.turns.enter(t, cut.Count) {
		t.machine.stage = transferTurn
		return
	}
	for i := range cut.Count {
		path, err := r.choose(t.peer, r.tiersOf(t.Tiers))
		if err != nil {
			t.fail(fault(lanes.Unreachable, "path", err))
			return
		}
		if t.gap != nil && path.Barred != 0 {
			t.fail(t.gap)
			return
		}
		l := t.legFor(path, t.Remote == RemoteDirect)
		offset, length := cut.At(i)
		t.machine.parcels = append(t.machine.parcels, parcel{offset: offset, length: length, leg: uint8(l.index)})
		r.Rail(path.Local).Device.Charge(length)
		l.charged += length
	}
	t.feedable(cut.Count)
	t.owed = t.used
	for _, l := range t.legs[:t.used] {
		if t.machine.fault != nil || t.crowded != nil { // an earlier claim was refused
			t.owed--
			continue
		}
		l.claim.Peer, l.claim.Path, l.claim.Direction, l.claim.Private = t.peer, l.path, t.Direction, t.private()
		l.claim.Deadline, l.claim.Profile = t.Deadline, t.profile()
		r.Claim(&l.claim)
	}
	t.advance()
}

// feedable makes a place in the lines for each slice.
func (t *Transfer) feedable(slices int) {
	for len(t.hungers) < slices {
		t.hungers = append(t.hungers, hunger{})
	}
}

// limit is how many slices there may be: what SPEC R-8 and the peer admit, and where each takes a queue pair, as many as a
// lane may have.
func (t *Transfer) limit() int {
	n := lanes.SliceCap(t.Direction, t.gpu.memory != nil, t.peer.SlicesMax)
	if t.Remote == RemoteDirect {
		n = min(n, t.rails.places())
	}
	return n
}

// credit is how many receives the peer has for one pair: those of the largest parent that it admits.
func (p *Peer) credit() int {
	if p.SlicesMax <= 0 {
		return netproto.SlicesMax
	}
	return p.SlicesMax
}

func (t *Transfer) legFor(path Path, alone bool) *leg {
	for _, l := range t.legs[:t.used] {
		if !alone && l.path.Local == path.Local && l.path.Remote == path.Remote {
			return l
		}
	}
	if t.used == len(t.legs) {
		l := &leg{transfer: t, index: t.used}
		l.claim.User, l.claim.Answered = l, func(*Claim) { t.claimed(l) }
		t.legs = append(t.legs, l)
	}
	l := t.legs[t.used]
	t.used++
	l.path, l.charged, l.dead, l.mute, l.rail = path, 0, false, false, t.rails.Rail(path.Local)
	return l
}
