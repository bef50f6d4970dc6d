package orbitte

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
)

var (
	errNoRDMA = lacking("this engine has no RDMA: Config.Verbs and Config.RDMA are not set",
		"open the engine with Config.Verbs (verbs/libibverbs.Load) and Config.RDMA, or name another transport")
	errPeerNoRDMA = lacking("the peer publishes no RDMA: it was opened without Config.RDMA, or none of its devices has memory windows of type 2B, without which a source makes no grant",
		"open the peer's engine with Config.RDMA on a host whose devices have such windows (`orbitte devices` says so), or name another transport")
)

// preflightRDMA says what is missing for a transfer to the segment over RDMA now (SPEC G-4; field case F-70). A segment of
// the engine itself needs no device (field case F-71).
func (e *Engine) preflightRDMA(s *Segment) error {
	if e.rdma == nil {
		return &Error{Class: ErrUnavailable, Cause: errNoRDMA}
	}
	if s.Local() {
		return nil
	}
	paths := s.view().Descriptor().RDMA
	if paths == nil {
		return &Error{Class: ErrUnavailable, Cause: errPeerNoRDMA}
	}
	if err := e.rdma.transport.Reach(paths.Paths); err != nil {
		return &Error{Class: ErrUnavailable, Cause: err}
	}
	return nil
}

// Path says which way the payload of a request would take now: "tcp", "tcp direct", "local copy", "hptcp", "hptcp, crc32c", or for RDMA how both
// sides' memory is used and which pairs of devices share the slices, such as "rdma, direct: mlx5_0 to mlx5_0, mlx5_1 to
// mlx5_1". Behind that are pairs of devices that could not be connected, with the reason, which slices take only when there
// is no other. READ and WRITE are told apart, so that neither takes a slower way unseen (field case F-68); Report.Path says it
// after the transfer. It asks nobody: what the peer published is as old as the segment's last Refresh. The error is what
// a request would be refused with: ErrUnavailable, ErrInvalid, ErrClosed.
func (s *Segment) Path(op Operation, transport Transport) (string, error) {
	text, err := s.path(op, transport, placing{})
	if err != nil {
		return "", aboutPeer("Path", s.endpoint, err)
	}
	return text, nil
}

func (s *Segment) path(op Operation, transport Transport, p placing) (string, error) {
	if op != Read && op != Write {
		return "", &Error{Index: -1, Class: ErrInvalid, Cause: errOperation}
	}
	if s.gate.Fenced() {
		return "", &Error{Index: -1, Class: ErrClosed, Cause: errSegment}
	}
	if err := s.engine.preflight(&Request{Operation: op, Transport: transport, Segment: s}); err != nil {
		return "", unindexed(err)
	}
	switch {
	case s.Local():
		return "local copy", nil
	case transport == TransportRDMA:
		view, now := s.view(), s.engine.clock().Now()
		ways, err := s.engine.rdma.transport.Ways(view.Epoch(), view.Descriptor().RDMA.Paths, int64(now))
		if err != nil { // a port went down this moment
			return "", &Error{Index: -1, Class: ErrUnavailable, Cause: err}
		}
		return s.engine.rdma.way(s, ways, p) + s.engine.rdma.gaps(view.Epoch(), view.Descriptor().RDMA.Paths, int64(now)), nil
	case transport == TransportHPTCP:
		return s.engine.hptcpWay(), nil
	case s.engine.policy.Direct:
		return "tcp direct", nil
	}
	return "tcp", nil
}

// unindexed is a request's refusal that is about no request of a batch.
func unindexed(err error) error {
	var own *Error
	if errors.As(err, &own) {
		own.Index = -1
	}
	return err
}

// way puts a path over RDMA into words. Memory on a GPU has its own words behind it (placing.way).
func (p *rdmaPart) way(s *Segment, ways []rdma.Path, where placing) string {
	paths := s.view().Descriptor().RDMA
	if paths == nil { // the peer was another one before the last Refresh
		paths = &netproto.RDMAPaths{}
	}
	var text strings.Builder
	text.WriteString("rdma, " + placements(where.stagedHere(p.engine.config.RDMA.HostMemory == HostStaged), where.stagedThere(paths.Host == netproto.HostStaged)))
	for i, w := range ways {
		separator := ", "
		if i == 0 {
			separator = ": "
		}
		text.WriteString(separator + p.nameOf(w.Local) + " to " + remoteName(paths.Paths, w.Remote))
	}
	return text.String()
}

// gaps are the pairs of devices that other ones are preferred to, since no connection could be built between them.
func (p *rdmaPart) gaps(peer Epoch, paths []netproto.Path, now int64) string {
	var text strings.Builder
	for _, g := range p.transport.GapsTo(peer, now) {
		fmt.Fprintf(&text, "; %s to %s: not reachable since %v ago, to be tried again in %v: %s",
			p.nameOf(g.Local), remoteName(paths, g.Remote), rounded(now-g.Since), rounded(g.Until-now), g.Reason)
	}
	return text.String()
}

func rounded(nanoseconds int64) time.Duration {
	return time.Duration(nanoseconds).Round(time.Millisecond)
}

// stagedHere says whether this side stages, whose host memory may be staged.
func (p placing) stagedHere(host bool) bool { return p.here && !p.hereDirect || !p.here && host }

func (p placing) stagedThere(host bool) bool { return p.there && !p.thereDirect || !p.there && host }

func placements(here, there bool) string {
	switch {
	case here && there:
		return "staged on both sides"
	case here:
		return "staged here"
	case there:
		return "staged there"
	}
	return "direct"
}

func (p *rdmaPart) nameOf(nic uint8) string {
	if d := p.transport.Device(nic); d != nil {
		return d.Name
	}
	return fmt.Sprintf("NIC %d", nic)
}

func remoteName(paths []netproto.Path, nic uint8) string {
	for i := range paths {
		if paths[i].NIC == nic {
			return paths[i].Name
		}
	}
	return fmt.Sprintf("NIC %d", nic)
}

// pathUpdate tells a peer's lane what the peer published.
type pathUpdate struct {
	letter reactor.Letter
	peer   *peer
	epoch  Epoch
	paths  *netproto.RDMAPaths
}

// learnPaths hands paths to the peer's lane; requests that are submitted from now on come after them.
func (e *Engine) learnPaths(p *peer, epoch Epoch, paths *netproto.RDMAPaths) {
	if e.rdma == nil || paths == nil {
		return
	}
	u := &pathUpdate{peer: p, epoch: epoch, paths: paths}
	_ = p.runner.lane.Post(&u.letter, u) // a lane that has ended carries nothing any more
}

// Receive (reactor.Recipient).
func (u *pathUpdate) Receive(*reactor.Letter, reactor.Instant) {
	if u.peer.rdma == nil {
		u.peer.rdma = &rdma.Peer{Channel: u.peer.channel, Epoch: u.epoch}
	}
	p := u.peer.rdma
	p.Paths, p.PairsMax, p.SlicesMax, p.Host = u.paths.Paths, int(u.paths.PairsMax), int(u.paths.SlicesMax), u.paths.Host
	p.StagedPart = u.paths.StagedPart
}
