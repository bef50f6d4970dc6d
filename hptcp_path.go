package orbitte

import (
	"fmt"

	"github.com/orbitte/orbitte/lanes/hptcp"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
)

// hptcpUpdate tells a peer's lane where the peer takes data.
type hptcpUpdate struct {
	letter   reactor.Letter
	peer     *peer
	epoch    Epoch
	endpoint netproto.HPTCPEndpoint
	lanes    int
}

// Receive (reactor.Recipient).
func (u *hptcpUpdate) Receive(*reactor.Letter, reactor.Instant) {
	if p := u.peer; p.fast == nil {
		p.fast = p.runner.fast.NewPeer(dataAddresses(p.addresses, u.endpoint), u.epoch, u.endpoint, p.way, u.lanes)
	}
}

// side is the peer's data streams on another lane, number so many of those that share large transfers: made when they are
// first asked for, one number after the other.
func (p *peer) side(number int, r *runner) *hptcp.Peer {
	if len(p.sides) < number {
		p.sides = append(p.sides, p.fast.Beside(r.fast, number))
	}
	return p.sides[number-1]
}

// endSides closes the data streams on other lanes; closed follows on the peer's lane when all are gone.
func (p *peer) endSides(closed func()) {
	if len(p.sides) == 0 {
		closed()
		return
	}
	home := &call{done: make(chan struct{}), do: closed}
	all := newCountdown(len(p.sides), func() { _ = p.runner.lane.Post(&home.letter, home) }) // a lane that has ended has ended them
	for _, side := range p.sides {
		c := &call{done: make(chan struct{}), do: func() { side.Close(all.one) }}
		if side.Lane().Post(&c.letter, c) != nil {
			all.one()
		}
	}
}

// preflightHPTCP says what is missing for a transfer to the segment over HP-TCP (SPEC G-4). A segment of the engine itself
// needs no stream, but HP-TCP all the same: the request is the same for every peer.
func (e *Engine) preflightHPTCP(s *Segment) error {
	if e.hptcp == nil {
		return &Error{Class: ErrUnavailable, Cause: errNoHPTCP}
	}
	if !s.Local() && s.view().Descriptor().HPTCP == nil {
		return &Error{Class: ErrUnavailable, Cause: errPeerNoHPTCP}
	}
	return nil
}

// optedIn refuses a region that its owner does not serve over HP-TCP.
func optedIn(s *Segment, r *netproto.Region) error {
	if s.Local() || r.Flags&netproto.RegionHPTCP != 0 {
		return nil
	}
	return &Error{Class: ErrUnavailable, Cause: lacking(fmt.Sprintf("region %d is not registered for HP-TCP", r.ID),
		"let its owner register the range with OverHPTCP (Range.HPTCP), then refresh the segment; or name another transport")}
}

// way is the path's name.
func (e *Engine) hptcpWay() string {
	if e.config.HPTCP.Checksums {
		return "hptcp, crc32c"
	}
	return "hptcp"
}

// HPTCPStats is a reading of an engine's HP-TCP. Numbers are counted since the engine was opened; bytes and transfers are
// in Traffic, streams in the gauges.
type HPTCPStats struct {
	// Address is the data listener's.
	Address string
	// Streams, ChunkBytes and InFlightBytes are what peers are told.
	Streams                   int
	ChunkBytes, InFlightBytes uint64
	// Requests were sent as requester: pieces of transfers.
	Requests uint64
	// LateReplies found nobody (SPEC H-3). Mismatches are chunks whose CRC32C was another one, found at either end.
	// HellosRefused counts streams that were refused, by this source or by a peer.
	LateReplies, Mismatches, HellosRefused uint64
}

// stats reads the plane; nil without HP-TCP.
func (p *hptcpPart) stats() *HPTCPStats {
	if p == nil || p.endpoint == nil {
		return nil
	}
	return &HPTCPStats{
		Address: p.bound.String(), Streams: int(p.endpoint.StreamsMax), ChunkBytes: p.endpoint.ChunkBytesMax, InFlightBytes: p.endpoint.InFlightBytesMax,
		Requests: p.counts.Requests.Load(), LateReplies: p.counts.Late.Load(), Mismatches: p.counts.Mismatches.Load(), HellosRefused: p.counts.Refused.Load(),
	}
}
