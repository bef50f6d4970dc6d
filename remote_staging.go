package orbitte

import (
	"errors"

	"github.com/orbitte/orbitte/lanes/delegate"
	"github.com/orbitte/orbitte/lanes/tcp"
	"github.com/orbitte/orbitte/netproto"
)

var (
	errSlots         = errors.New("RemoteSlots must be 0 to 16")
	errSlotsElse     = errors.New("remote slots carry payload over TransportTCP only")
	errNoSlots       = errors.New("this engine does not direct the staging of peers: Config.RemoteStaging is not set")
	errPeerNoSlots   = errors.New("the peer offers no remote staging: it was opened without Config.RemoteStaging or without Config.CUDA")
	errOwnSlots      = errors.New("the segment is the engine's own, whose requests are copies in this process; leave RemoteSlots at 0")
	errNothingStaged = errors.New("the remote range is in host memory, which is not staged there; leave RemoteSlots at 0")
)

// preflightSlots refuses a request that wants to direct the peer's staging and cannot; none goes another way (SPEC G-4).
func (e *Engine) preflightSlots(r *Request) error {
	switch {
	case r.RemoteSlots < 0 || r.RemoteSlots > netproto.PinSlotsMax:
		return &Error{Class: ErrInvalid, Cause: errSlots}
	case r.Transport != TransportTCP:
		return &Error{Class: ErrUnavailable, Cause: errSlotsElse}
	case e.config.RemoteStaging == nil:
		return &Error{Class: ErrUnavailable, Cause: errNoSlots}
	case r.Segment.Local():
		return &Error{Class: ErrUnavailable, Cause: errOwnSlots}
	case !r.Segment.view().Descriptor().Capabilities.Has(netproto.CapabilityPins):
		return &Error{Class: ErrUnavailable, Cause: errPeerNoSlots}
	}
	return nil
}

// offerSlots lets peers direct the staging of a lane, if the configuration does.
func (e *Engine) offerSlots(r *runner, payload *tcp.Service) {
	if e.config.offersSlots() {
		r.pins = delegate.NewService(r.server, payload, delegate.Config{Slots: e.budgets.slots, PeerSlots: e.config.RemoteStaging.PeerSlots})
	}
}

// startDirected runs the task at hand through slots of the peer's.
func (g *group) startDirected(t *task) {
	x := g.directed
	x.Direction, x.Local, x.LocalOffset = t.direction, t.local, t.localOffset
	x.Region, x.Offset, x.Length = t.region, t.offset, t.size
	x.Epoch, x.Requester, x.Slots, x.Deadline = t.segment.epoch, g.engine.policy.Epoch, t.slots, g.deadline
	x.Start(t.segment.peer.channel)
}

// slotsWay says how a request with remote slots goes, or went.
func slotsWay(slots int) string {
	switch slots {
	case 0:
		return ""
	case 1:
		return ", remote staging, serial"
	}
	return ", remote staging, pipelined"
}

// slotsWay is what the peer granted, once the task has run.
func (g *group) slotsWay(t *task) string {
	slots := int(t.slots)
	if slots > 0 && g.directed != nil && g.directed.Granted() > 0 {
		slots = g.directed.Granted()
	}
	return slotsWay(slots)
}

// RemoteStagingStats is a reading of the slots that an engine offers to peers (SPEC C-8). The payload between requester and
// slots counts in Traffic, one READ or WRITE for each slot's worth.
type RemoteStagingStats struct {
	// Requests of peers that have slots now, and these; of them retained for good, since a copy is not proven to have ended.
	Pins, Slots, Retained int64
	// Since the engine was opened: requests that got slots; copies that they asked for, of these confirmed and failed;
	// questions that were refused, most of them for lack of a slot; and requests whose slots were taken back because nothing
	// was heard of them for SourceTimeout, or because their stream was lost.
	Pinned, Copies, Copied, Failed, Refused, Expired, Orphaned uint64
}

// slotStats reads all lanes; nil unless peers may direct the staging here.
func (e *Engine) slotStats() *RemoteStagingStats {
	if !e.config.offersSlots() {
		return nil
	}
	s := &RemoteStagingStats{}
	for _, r := range e.runners {
		l := r.pins.Stats()
		s.Pins += l.Pins
		s.Slots += l.Slots
		s.Retained += l.Lost
		s.Pinned += l.Pinned
		s.Copies += l.Delegated
		s.Copied += l.Copied
		s.Failed += l.Failed
		s.Refused += l.Refused
		s.Expired += l.Expired
		s.Orphaned += l.Orphaned
	}
	return s
}
