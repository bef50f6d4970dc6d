package orbitte

import (
	"errors"
	"fmt"

	"github.com/orbitte/orbitte/lanes/delegate"
	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/lanes/tcp"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/segments"
)

var (
	errSlots         = errors.New("RemoteSlots must be 0 to 16")
	errSlotsElse     = lacking("remote slots carry payload over TransportTCP and TransportRDMA only", "name one of these, or leave RemoteSlots at 0")
	errNoSlots       = lacking("this engine does not direct the staging of peers: Config.RemoteStaging is not set", "open the engine with Config.RemoteStaging; &RemoteStagingConfig{} takes every default")
	errPeerNoSlots   = lacking("the peer offers no remote staging: it was opened without Config.RemoteStaging or without Config.CUDA", "open the peer's engine with both, or leave RemoteSlots at 0")
	errOwnSlots      = lacking("the segment is the engine's own, whose requests are copies in this process", "leave RemoteSlots at 0")
	errNothingStaged = lacking("the remote range is in host memory, which is not staged there", "leave RemoteSlots at 0")
)

// preflightSlots refuses a request that wants to direct the peer's staging and cannot; none goes another way (SPEC G-4).
func (e *Engine) preflightSlots(r *Request) error {
	switch {
	case r.RemoteSlots < 0 || r.RemoteSlots > netproto.PinSlotsMax:
		return &Error{Class: ErrInvalid, Cause: errSlots}
	case r.Transport != TransportTCP && r.Transport != TransportRDMA:
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

// reachSlots registers the slots of all lanes with the RDMA devices: once, before the first device memory is visible, so
// that nobody has one yet. A failure leaves what was before, once undone has ended. The caller has Engine.registering.
func (e *Engine) reachSlots() (undone []*ending, err error) {
	if e.rdma == nil || !e.config.offersSlots() {
		return nil, nil
	}
	var fresh []*segments.Registration
	for _, stage := range e.cuda.stages {
		for _, r := range stage.Slots() {
			if rdma.Of(r) == nil {
				fresh = append(fresh, r)
			}
		}
	}
	if len(fresh) == 0 {
		return nil, nil
	}
	return e.rdma.prepareSlots(fresh)
}

func (p *rdmaPart) prepareSlots(fresh []*segments.Registration) (undone []*ending, err error) {
	if err := p.locks(uint64(len(fresh)) * fresh[0].Length() * uint64(len(p.transport.Devices()))); err != nil {
		return nil, err
	}
	p.native.Lock()
	for i, r := range fresh {
		if err = p.registerBy(r, p.reachSlot); err != nil {
			undone = p.undo(fresh[:i])
			err = fmt.Errorf("slot %d of %d of Config.RemoteStaging, %d bytes, on the RDMA devices: %w", i+1, len(fresh), r.Length(), err)
			break
		}
	}
	p.native.Unlock()
	p.drain()
	return undone, err
}

func (p *rdmaPart) reachSlot(r *segments.Registration) (*rdma.Registered, error) {
	return p.transport.RegisterSlot(r.Address(), r.Length())
}

// startDirected runs the task at hand through slots of the peer's.
func (g *group) startDirected(t *task) {
	x := g.directed
	x.Direction, x.Local, x.LocalOffset = t.direction, t.local, t.localOffset
	x.Region, x.Offset, x.Length = t.region, t.offset, t.size
	x.Epoch, x.Requester, x.Slots, x.Deadline = t.segment.epoch, g.engine.policy.Epoch, t.slots, g.deadline
	x.Rails, x.Peer = nil, nil
	if t.transport == TransportRDMA {
		x.Rails, x.Peer = t.segment.peer.runner.rails, t.segment.peer.rdma
	}
	x.Start(t.segment.peer.channel)
}

// directedEnded takes the end of that.
func (g *group) directedEnded(x *delegate.Transfer) {
	g.ways = x.Ways(g.ways[:0])
	g.taskEnded(x.Outcome)
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
