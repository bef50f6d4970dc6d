package orbitte

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/lanes/hptcp"
	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

var (
	errMemoryClosed = errors.New("the memory is nil or closed")
	errHandle       = errors.New("a handle of this engine that was not given back before is needed")
	errSegment      = errors.New("an open segment of this engine is needed")
	errNoEpoch      = errors.New("the expected epoch is zero; get it from the source's owner, or learn it with Describe")
)

// Region is one range that a peer publishes. It carries no authority.
type Region struct {
	ID              uint64
	Address, Length uint64
	Permission      Permission
	// Type says where the bytes are, GPU on which of the peer's GPUs; -1 for host memory, and when the peer does not tell.
	Type MemoryType
	GPU  int
	// HPTCP is true exactly when the region may be reached over HP-TCP, if the peer serves it.
	HPTCP bool
	// GPUDirect says how the peer's RDMA devices reach a region on a GPU: "dma-buf" or "peermem", as it was observed when the
	// region was registered. Empty: the peer stages it, or it is host memory.
	GPUDirect string
}

// Segment is everything that one life of one peer publishes, as it was when opened or last refreshed.
// Any goroutine may use it.
type Segment struct {
	engine   *Engine
	endpoint string
	epoch    Epoch
	peer     *peer // nil exactly when the segment is the engine's own
	gate     *lanes.Gate
	remote   atomic.Pointer[segments.Remote]
	mu       sync.Mutex      // of the rest
	returned bool            // true exactly when the reference to the peer was given back
	gone     <-chan struct{} // closed when the channel has ended; nil when it goes on
}

// peerKey names a stream: one per endpoint and epoch (SPEC T-3).
type peerKey struct {
	endpoint string
	epoch    Epoch
}

// peer is one channel and its references; the channel is used on its runner's lane only.
type peer struct {
	key       peerKey
	runner    *runner
	refs      int // guarded by Engine.mu
	way       int // its place in Engine.ways
	channel   *control.Channel
	rdma      *rdma.Peer    // the lane's; nil until the peer is known to publish RDMA paths
	fast      *hptcp.Peer   // the lane's; nil until the peer is known to serve HP-TCP
	sides     []*hptcp.Peer // other lanes' for large transfers, made when one is first needed; on the peer's lane
	addresses []netip.AddrPort
}

// Endpoint of the peer, as it was given to OpenSegment.
func (s *Segment) Endpoint() string { return s.endpoint }

// DataPort is where the peer takes HP-TCP, under the host of its endpoint; 0: it serves none.
func (s *Segment) DataPort() uint16 {
	if d := s.view().Descriptor().HPTCP; d != nil {
		return d.Port
	}
	return 0
}

// Epoch of the peer's life that the segment belongs to.
func (s *Segment) Epoch() Epoch { return s.epoch }

// Local is true exactly when the segment is the engine's own: requests to it are copies in this process.
func (s *Segment) Local() bool { return s.peer == nil }

func (s *Segment) view() *segments.Remote { return s.remote.Load() }

// Regions lists what the peer published, in the order of their IDs.
func (s *Segment) Regions() []Region {
	d := s.view().Descriptor()
	published := d.Regions
	regions := make([]Region, len(published))
	for i, r := range published {
		regions[i] = Region{ID: r.ID, Address: r.Base, Length: r.Length, Permission: r.Permission, Type: r.Memory, GPU: gpuOf(&r), HPTCP: r.Flags&netproto.RegionHPTCP != 0, GPUDirect: gpuDirect(d.Capabilities, &r)}
	}
	return regions
}

// gpuOf is the GPU that a peer names; -1: none.
func gpuOf(r *netproto.Region) int {
	if r.Memory != netproto.MemoryCUDA || r.Flags&netproto.RegionScoped == 0 || r.Scope.Ordinal == netproto.OrdinalUnknown {
		return -1
	}
	return int(r.Scope.Ordinal)
}

// TransferBytesMax is the largest request that both sides admit, in bytes (field case F-73).
func (s *Segment) TransferBytesMax() uint64 {
	return min(s.view().Descriptor().Capabilities.TransferBytesMax, s.engine.policy.PayloadBytesMax)
}

func (e *Engine) capabilities() netproto.Capabilities {
	bits := netproto.CapabilityTCP | netproto.CapabilityControlNotify
	if e.policy.TCPNotifications {
		bits |= netproto.CapabilityNotify
	}
	if e.rdma != nil && e.config.RDMA.DeviceMemory == DeviceDirect && e.paths() != nil {
		bits |= netproto.CapabilityGPUDirect | netproto.CapabilityRDMA // the one needs the other (SPEC W-9)
	}
	if e.config.offersSlots() {
		bits |= netproto.CapabilityPins
	}
	return netproto.Capabilities{Bits: bits, TransferBytesMax: e.policy.PayloadBytesMax}
}

// OpenSegment connects to a peer and reads what it publishes. The epoch comes from the source's owner;
// each operation checks it again at the source, so that a new process on the same address inherits
// nothing (SPEC G-1). Errors: ErrInvalid, ErrUnreachable, ErrStaleEpoch, ErrExhausted, ErrClosed,
// ErrDeadline, ErrCancelled, ErrProtocol; a failed open leaves nothing behind.
func (e *Engine) OpenSegment(ctx context.Context, endpoint string, epoch Epoch) (*Segment, error) {
	if epoch.IsZero() {
		return nil, &Error{Op: "OpenSegment", Index: -1, Endpoint: endpoint, Class: ErrInvalid, Cause: errNoEpoch}
	}
	return e.openSegment(ctx, "OpenSegment", endpoint, epoch)
}

// Describe reads what a peer publishes without knowing its epoch, which is learned from the peer itself
// (SPEC W-12): good for showing, no proof of who answers. The segment is open and is closed by
// CloseSegment like any other. Errors as OpenSegment.
func (e *Engine) Describe(ctx context.Context, endpoint string) (*Segment, error) {
	return e.openSegment(ctx, "Describe", endpoint, Epoch{})
}

func (e *Engine) openSegment(ctx context.Context, op, endpoint string, epoch Epoch) (*Segment, error) {
	var s *Segment
	err := e.admitted(0, func() (err error) {
		if endpoint == e.endpoint && (epoch == e.policy.Epoch || epoch.IsZero()) {
			s, err = e.ownSegment()
		} else {
			s, err = e.peerSegment(ctx, endpoint, epoch)
		}
		return err
	})
	if err != nil {
		return nil, aboutPeer(op, endpoint, err)
	}
	return s, nil
}

func aboutPeer(op, endpoint string, err error) error {
	wrapped := failure(op, err)
	var own *Error
	if errors.As(wrapped, &own) && own.Endpoint == "" {
		own.Endpoint = endpoint
	}
	return wrapped
}

// admitted runs do as one submission: fenced by CloseRequester, charged, counted (SPEC U).
func (e *Engine) admitted(bytes uint64, do func() error) error {
	var p place
	if err := e.enter(&p); err != nil {
		return err
	}
	defer p.leave()
	charge, err := e.budgets.submittedBytes.Take(int64(bytes))
	if err != nil {
		return err
	}
	defer charge.Repay()
	return do()
}

// ownSegment is the engine's view of itself: no socket, no NIC (field case F-71).
func (e *Engine) ownSegment() (*Segment, error) {
	s := &Segment{engine: e, endpoint: e.endpoint, epoch: e.policy.Epoch, gate: lanes.NewGate()}
	return s, s.refreshOwn()
}

func (s *Segment) refreshOwn() error {
	remote, err := segments.NewRemote(s.endpoint, s.epoch, s.engine.descriptor())
	if err == nil {
		s.remote.Store(remote)
	}
	return err
}

func (e *Engine) peerSegment(ctx context.Context, endpoint string, epoch Epoch) (*Segment, error) {
	addresses, err := e.lookup(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	p := e.borrowPeer(peerKey{endpoint, epoch}, addresses)
	descriptor, actual, err := e.inquire(ctx, p, epoch)
	if err != nil {
		e.dismiss(p)
		return nil, err
	}
	remote, err := segments.NewRemote(endpoint, actual, descriptor)
	if err != nil {
		e.dismiss(p)
		return nil, &Error{Index: -1, Class: ErrProtocol, Cause: err, situation: asking}
	}
	s := &Segment{engine: e, endpoint: endpoint, epoch: actual, gate: lanes.NewGate(), peer: p}
	s.remote.Store(remote)
	switch {
	case actual == e.policy.Epoch: // this engine under another name
		e.dismiss(p)
		s.peer = nil
		return s, nil
	case actual != epoch: // learned: the channel was the question's own
		e.dismiss(p)
		s.peer = e.borrowPeer(peerKey{endpoint, actual}, addresses)
	}
	if e.hptcp != nil && s.peer.way >= hptcp.WaysMax {
		e.dismiss(s.peer)
		return nil, &Error{Index: -1, Class: ErrExhausted, Cause: &budgets.Exhausted{
			Budget: "names of one source", Unit: "names", Asked: 1, Used: hptcp.WaysMax, Limit: hptcp.WaysMax,
		}}
	}
	e.learnPaths(s.peer, actual, descriptor.RDMA)
	e.learnHPTCP(s.peer, actual, &descriptor)
	return s, nil
}

// dismiss returns a peer and waits until its stream, if this was the last reference, is gone: what does
// not come to be leaves nothing behind. The stream is idle or broken, so this is a matter of turns.
func (e *Engine) dismiss(p *peer) {
	if gone := e.returnPeer(p); gone != nil {
		_ = e.waitOn(context.Background(), gone, p.runner.stopped) // a lane that ended has ended its streams
	}
}

// borrowPeer finds or makes the peer and adds a reference. A new peer goes to the lane with fewest.
func (e *Engine) borrowPeer(key peerKey, addresses []netip.AddrPort) *peer {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.peers[key]; p != nil {
		p.refs++
		return p
	}
	best := e.runners[0]
	for _, r := range e.runners[1:] {
		if r.peers < best.peers {
			best = r
		}
	}
	best.peers++
	p := &peer{key: key, runner: best, refs: 1, channel: best.pool.NewChannel(addresses), addresses: addresses}
	e.peers[key] = p
	ways := e.ways[key.epoch]
	if p.way = slices.Index(ways, nil); p.way >= 0 {
		ways[p.way] = p
	} else {
		p.way = len(ways)
		e.ways[key.epoch] = append(ways, p)
	}
	return p
}

// returnPeer drops a reference; with the last one the channel closes. The answer is closed when the
// channel has ended, nil when it goes on.
func (e *Engine) returnPeer(p *peer) <-chan struct{} {
	e.mu.Lock()
	p.refs--
	last := p.refs == 0
	if last {
		delete(e.peers, p.key)
		e.ways[p.key.epoch][p.way] = nil
		if !slices.ContainsFunc(e.ways[p.key.epoch], func(p *peer) bool { return p != nil }) {
			delete(e.ways, p.key.epoch)
		}
		p.runner.peers--
	}
	e.mu.Unlock()
	if !last {
		return nil
	}
	c := &channelClose{peer: p, done: make(chan struct{})}
	if p.runner.lane.Post(&c.letter, c) != nil {
		close(c.done) // the lane has ended, and every stream with it
	}
	return c.done
}

// channelClose closes a channel on its lane.
type channelClose struct {
	letter reactor.Letter
	peer   *peer
	done   chan struct{}
}

// Receive ends the peer's RDMA connections, while the channel can still tell the source, then its data streams and the
// channel (reactor.Recipient).
func (c *channelClose) Receive(*reactor.Letter, reactor.Instant) {
	end := func() { c.peer.endStreams(func() { close(c.done) }) }
	if c.peer.rdma == nil {
		end()
		return
	}
	c.peer.runner.rails.Part(c.peer.rdma, end)
}

// endStreams closes the channel and the data streams; closed follows when all are gone. On the peer's lane.
func (p *peer) endStreams(closed func()) {
	if p.fast == nil {
		p.channel.Close(closed)
		return
	}
	p.endSides(func() { p.fast.Close(func() { p.channel.Close(closed) }) })
}

// inquiry is one describe and its caller.
type inquiry struct {
	control.Inquiry
	start, cancel reactor.Letter
	peer          *peer
	done          chan struct{}
}

// Receive starts or cancels the inquiry on its lane (reactor.Recipient).
func (q *inquiry) Receive(letter *reactor.Letter, _ reactor.Instant) {
	if letter == &q.cancel {
		q.Cancel()
		return
	}
	q.Start(q.peer.channel)
}

func (e *Engine) inquire(ctx context.Context, p *peer, epoch Epoch) (netproto.Descriptor, Epoch, error) {
	if err := ctx.Err(); err != nil {
		return netproto.Descriptor{}, Epoch{}, in(unposted, err)
	}
	q := &inquiry{peer: p, done: make(chan struct{})}
	q.Inquiry.Epoch, q.Inquiry.Deadline = epoch, e.deadline(ctx)
	q.Inquiry.Done = func(*control.Inquiry) { close(q.done) }
	if p.runner.lane.Post(&q.start, q) != nil {
		return netproto.Descriptor{}, Epoch{}, &Error{Index: -1, Class: ErrClosed}
	}
	stop := context.AfterFunc(ctx, func() { _ = p.runner.lane.Post(&q.cancel, q) }) // a lane that ended has ended the inquiry
	defer stop()
	if err := e.waitOn(context.Background(), q.done, p.runner.stopped); err != nil {
		return netproto.Descriptor{}, Epoch{}, err
	}
	return q.Descriptor, q.Inquiry.Epoch, underContext(ctx, in(asking, q.Err))
}

// deadline is the context's, or the default one.
func (e *Engine) deadline(ctx context.Context) reactor.Instant {
	if at := e.ownDeadline(ctx); at != reactor.Past {
		return at
	}
	return e.clock().Now().After(e.config.RequestTimeout)
}

// ownDeadline is the context's; Past: it has none.
func (e *Engine) ownDeadline(ctx context.Context) reactor.Instant {
	if at, ok := ctx.Deadline(); ok {
		return e.clock().At(at)
	}
	return reactor.Past
}

// Refresh reads again what the peer publishes. Errors as OpenSegment; the old view stays then.
func (s *Segment) Refresh(ctx context.Context) error {
	if !s.gate.Enter() {
		return &Error{Op: "Refresh", Index: -1, Endpoint: s.endpoint, Class: ErrClosed}
	}
	defer s.gate.Leave()
	err := s.engine.admitted(0, func() error {
		if s.Local() {
			return s.refreshOwn()
		}
		descriptor, _, err := s.engine.inquire(ctx, s.peer, s.epoch)
		if err != nil {
			return err
		}
		remote, err := segments.NewRemote(s.endpoint, s.epoch, descriptor)
		if err != nil {
			return &Error{Index: -1, Class: ErrProtocol, Cause: err, situation: asking}
		}
		s.engine.learnPaths(s.peer, s.epoch, descriptor.RDMA)
		s.engine.learnHPTCP(s.peer, s.epoch, &descriptor)
		s.remote.Store(remote)
		return nil
	})
	if err != nil {
		return aboutPeer("Refresh", s.endpoint, err)
	}
	return nil
}

// enterSegment counts in one that uses a segment of this engine; whoever got nil leaves its gate.
func (e *Engine) enterSegment(s *Segment) error {
	switch {
	case s == nil || s.engine != e:
		return &Error{Index: -1, Class: ErrInvalid, Cause: errSegment}
	case !s.gate.Enter():
		return &Error{Index: -1, Endpoint: s.endpoint, Class: ErrClosed}
	}
	return nil
}

// CloseSegment refuses further requests on the segment, waits for those under way, then closes the
// peer's cached stream unless another segment of the same peer is open (SPEC G-5). It may be called
// again after its context has ended it with ErrUnquiesced.
func (e *Engine) CloseSegment(ctx context.Context, s *Segment) error {
	if s == nil || s.engine != e {
		return &Error{Op: "CloseSegment", Index: -1, Class: ErrInvalid, Cause: errSegment}
	}
	s.gate.Fence()
	if err := e.waitOn(ctx, s.gate.Quiet(), nil); err != nil {
		return &Error{Op: "CloseSegment", Index: -1, Endpoint: s.endpoint, Class: ErrUnquiesced, Cause: err}
	}
	if s.Local() {
		return nil
	}
	s.mu.Lock()
	if !s.returned {
		s.returned, s.gone = true, e.returnPeer(s.peer)
	}
	gone := s.gone
	s.mu.Unlock()
	if gone == nil {
		return nil // another segment goes on with the stream
	}
	if err := e.waitOn(ctx, gone, s.peer.runner.stopped); err != nil && ctx.Err() != nil {
		return &Error{Op: "CloseSegment", Index: -1, Endpoint: s.endpoint, Class: ErrUnquiesced, Cause: err, situation: parting}
	}
	return nil
}
