package hptcp

import (
	"errors"
	"net/netip"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
)

// class says which streams a transfer uses.
type class uint8

const (
	small class = iota // up to SmallBytes: a stream of its own, so that large ones never stand in front
	large
	classes
)

// transferList is a first-in first-out list of transfers that have something to ask for.
type transferList struct{ head, tail *Transfer }

func (l *transferList) append(t *Transfer) {
	t.list, t.prev, t.next = l, l.tail, nil
	if l.tail == nil {
		l.head = t
	} else {
		l.tail.next = t
	}
	l.tail = t
}

func (l *transferList) remove(t *Transfer) {
	if t.prev == nil {
		l.head = t.next
	} else {
		t.prev.next = t.next
	}
	if t.next == nil {
		l.tail = t.prev
	} else {
		t.next.prev = t.prev
	}
	t.list, t.prev, t.next = nil, nil, nil
}

// Peer is the requester's side of one source in one of its lives: its streams, and the transfers that wait for
// them. It belongs to one lane and is used on that lane only.
type Peer struct {
	pool      *Pool
	addresses []netip.AddrPort
	address   int // index of the address that the next stream tries first
	epoch     netproto.Epoch
	way       uint16 // to the source; see streamIndexBits
	endpoint  netproto.HPTCPEndpoint
	links     []*link // those before base are for small requests, the others for large ones, or all
	base      int     // 0 or 1
	large     int     // streams for large requests, on all lanes together
	sides     int     // how many peers of other lanes there may be beside the first one
	spread    spread
	width     spread // of lanes
	waiting   [classes]transferList
	active    int  // transfers between Start and Done
	held      int  // while not zero nothing is posted
	missed    bool // true exactly when posting was asked for meanwhile
	measured  reactor.Instant
	closed    func() // non-nil from Close on
	ended     bool   // true exactly when closed was called
}

// NewPeer makes the peer of a source that published this endpoint in this life; the port in the addresses is the
// endpoint's. Peers of so many lanes share the source's streams: this one, and those that Beside makes. Any goroutine may
// call it; everything else about the peer happens on the pool's lane. No other peer of the requester has the same way to this life
// of the source; it is below WaysMax.
func (p *Pool) NewPeer(addresses []netip.AddrPort, epoch netproto.Epoch, endpoint netproto.HPTCPEndpoint, way, lanes int) *Peer {
	streams := max(1, min(p.config.StreamsMax, int(endpoint.StreamsMax)))
	peer := &Peer{pool: p, addresses: addresses, epoch: epoch, way: uint16(way), endpoint: endpoint, base: min(1, streams-1)}
	peer.large = min(max(1, streams-1), p.config.CPUs)
	peer.sides = min(max(1, lanes), peer.large) - 1
	if peer.base == 1 {
		peer.links = append(peer.links, &link{peer: peer})
	}
	peer.width = newWidth(peer.sides + 1)
	peer.join(0, peer.base)
	return peer
}

// Sides is how many peers of other lanes there may be beside this one.
func (p *Peer) Sides() int { return p.sides }

// Width is how many peers the next Share should have, this one included: 1 to Sides + 1. The number follows the gain, which
// Carried tells it (SPEC H-4). On the peer's lane.
func (p *Peer) Width() int { return p.width.count }

// Carried tells Width that a Share of so many bytes took so long. On the peer's lane.
func (p *Peer) Carried(bytes uint64, took time.Duration) { p.width.moved(bytes, uint64(max(0, took))) }

// Beside makes the peer of the same source for another lane's pool, number 1 to Sides. It carries parts of Shares, nothing
// else; whoever made it closes it. On the lane of this peer.
func (p *Peer) Beside(other *Pool, number int) *Peer {
	peer := &Peer{pool: other, addresses: p.addresses, epoch: p.epoch, way: p.way, endpoint: p.endpoint, large: p.large, sides: p.sides}
	peer.join(number, p.base)
	return peer
}

// join takes this lane's streams for large requests. A source knows a stream by its number, whatever its lane.
func (p *Peer) join(lane, first int) {
	for i := lane; i < p.large; i += p.sides + 1 {
		p.links = append(p.links, &link{peer: p, index: len(p.links), number: first + i})
	}
	p.spread = newSpread(len(p.links) - p.base)
}

// Lane is the lane that the peer belongs to.
func (p *Peer) Lane() *lanes.Lane { return p.pool.lane }

// Streams is how many streams are open, on their way or retained; on the peer's lane.
func (p *Peer) Streams() int {
	n := 0
	for _, l := range p.links {
		if l.state != linkAbsent {
			n++
		}
	}
	return n
}

// Ready is how many streams carry requests; on the peer's lane.
func (p *Peer) Ready() int {
	n := 0
	for _, l := range p.links {
		if l.state == linkReady {
			n++
		}
	}
	return n
}

// UnreachedError names the data address that did not answer: the control stream beside it may work well, where a firewall
// lets one port through only (errors.As; the Err of a Fault).
type UnreachedError struct {
	Address netip.AddrPort
	Err     error
}

func (e *UnreachedError) Error() string {
	return "data address " + e.Address.String() + ": " + e.Err.Error()
}

// Unwrap returns the underlying error.
func (e *UnreachedError) Unwrap() error { return e.Err }

var errNoStream = errors.New("no stream could be opened in time")

// unreachedAt says the error of the address with this index.
func (p *Peer) unreachedAt(address int, err error) error {
	if address >= len(p.addresses) {
		return err
	}
	return &UnreachedError{p.addresses[address], err}
}

// opening names the data address while streams for a class are on their way and none is there; nil otherwise.
func (p *Peer) opening(c class) error {
	links := p.links[p.base:]
	if c == small {
		links = p.links[:1]
	}
	var err error // nil where they wait for a slot, which says nothing about the source
	for _, l := range links {
		switch l.state {
		case linkReady:
			return nil
		case linkConnecting, linkGreeting:
			err = p.unreachedAt(l.address, errNoStream)
		}
	}
	return err
}

func classOf(t *Transfer) class {
	if t.Length <= SmallBytes {
		return small
	}
	return large
}

// enqueue takes in a transfer that has something to ask for.
func (p *Peer) enqueue(t *Transfer) {
	p.waiting[classOf(t)].append(t)
	p.pump()
}

// dequeue takes it out, if it is there.
func (p *Peer) dequeue(t *Transfer) {
	if t.list != nil {
		t.list.remove(t)
	}
}

// pump posts what can be posted: of each class in turn one request of each transfer, so that none waits for the
// whole of another.
func (p *Peer) pump() {
	if p.missed = true; p.held > 0 {
		return
	}
	for p.missed {
		p.missed = false
		p.held++
		p.post()
		p.held--
	}
	if p.closed != nil {
		p.settle()
	}
}

func (p *Peer) post() {
	for c := range classes {
		list := &p.waiting[c]
		for t := list.head; t != nil; t = list.head {
			l := p.choose(c, t)
			if l == nil {
				break
			}
			if list.head != t || t.asked == 0 && !t.secure() { // it has ended with a stream that could not be opened
				continue
			}
			if list.remove(t); !t.claim() {
				t.settle()
				continue
			}
			if l.issue(t); t.ahead() > 0 {
				list.append(t)
			}
		}
	}
	for _, l := range p.links {
		if l.state == linkReady {
			l.stream.flush()
		}
	}
}

// choose is the stream for a transfer's next request; nil while there is none with room.
func (p *Peer) choose(c class, t *Transfer) *link {
	first, last := 0, 0
	if c == large {
		first, last = p.base, p.base+p.spread.count-1
	}
	var best *link
	for i := first; i <= last; i++ {
		l := p.links[i]
		if l.state == linkAbsent {
			if l.open(); p.waiting[c].head != t { // there is no stream for it: it has ended, and is not to be touched
				return l
			}
		}
		if l.state == linkReady && l.room(t) && (best == nil || l.inFlight < best.inFlight) {
			best = l
		}
	}
	return best
}

// forsake withdraws what a failing transfer has not posted, and ends the rest at once if asked to.
func (p *Peer) forsake(t *Transfer, fault *lanes.Fault, atOnce bool) {
	p.held++
	for _, l := range p.links {
		l.forsake(t, fault, atOnce)
	}
	p.held--
	p.pump()
}

// progressed counts bytes of large requests for the choice of streams.
func (p *Peer) progressed(bytes uint64) {
	now := p.pool.lane.Now()
	if p.waiting[large].head == nil || p.measured == 0 {
		p.spread.rested()
	} else {
		p.spread.moved(bytes, uint64(max(0, now-p.measured)))
	}
	p.measured = now
}

// unreached fails the transfers that wait for a stream that there will not be. One stream fewer for large requests
// is no failure.
func (p *Peer) unreached(l *link, fault lanes.Fault) {
	if l.index > p.base {
		p.spread.lower(l.index - p.base)
		return
	}
	for c := range classes {
		if p.base > 0 && (c == small) != (l.index == 0) {
			continue
		}
		for list := p.waiting[c]; list.head != nil; list = p.waiting[c] {
			own := fault
			list.head.fail(&own, true)
		}
	}
}

// Close ends the peer once its transfers have ended; closed is called when its streams are gone, or retained.
// Nothing new is accepted (SPEC G-5). It may be called again; everybody is told.
func (p *Peer) Close(closed func()) {
	if p.ended {
		closed()
		return
	}
	if earlier := p.closed; earlier != nil {
		later := closed
		closed = func() { earlier(); later() }
	}
	p.closed = closed
	p.settle()
}

// settle ends a closing peer when nothing is active and its streams are gone.
func (p *Peer) settle() {
	if p.closed == nil || p.ended || p.active > 0 || p.held > 0 {
		return
	}
	left := 0
	for _, l := range p.links {
		l.end(errClosing)
		if l.state != linkAbsent && l.state != linkRetained {
			left++
		}
	}
	if left == 0 && !p.ended {
		p.ended = true
		p.closed()
	}
}

// Pool holds one lane's data streams to sources and their slots.
type Pool struct {
	lane    *lanes.Lane
	config  Config
	idle    linkList // streams without requests, the longest idle first
	waiting []*link  // for a slot that is being freed
	free    *part    // for reuse
	scratch [][]byte
	sink    sink
	live    int
	closed  func()
}

// NewPool makes the pool of a lane.
func NewPool(lane *lanes.Lane, config Config) *Pool {
	config.complete()
	return &Pool{lane: lane, config: config}
}

// Close calls closed once no stream of the lane is left but retained ones. The owner closes all peers first, and
// starts nothing any more.
func (p *Pool) Close(closed func()) {
	p.closed = closed
	p.settle()
}

func (p *Pool) settle() {
	if closed := p.closed; closed != nil && p.live == 0 {
		p.closed = nil
		p.sink.close(&p.lane.Arena)
		closed()
	}
}

// freed hands a free slot to whoever has waited longest. Whoever waited for one that is never to be free looks for another, so
// that no more wait than streams are being evicted.
func (p *Pool) freed(never bool) {
	for len(p.waiting) > 0 && (never || p.config.Streams.Used() < p.config.Streams.Limit()) {
		never = false
		l := p.waiting[0]
		p.waiting = append(p.waiting[:0], p.waiting[1:]...)
		l.state = linkAbsent
		l.open()
		l.peer.settle()
	}
}

// forget takes a link out of those that wait.
func (p *Pool) forget(l *link) {
	kept := p.waiting[:0]
	for _, other := range p.waiting {
		if other != l {
			kept = append(kept, other)
		}
	}
	p.waiting = kept
}

func (p *Pool) take() *part {
	x := p.free
	if x == nil {
		return &part{}
	}
	p.free, x.next = x.next, nil
	return x
}

func (p *Pool) give(x *part) {
	*x = part{next: p.free}
	p.free = x
}

// sink is where payload goes that nobody wants.
type sink struct{ buffer lanes.Buffer }

const sinkBytes = 64 << 10

// list appends buffers for n bytes; all are the same memory. False when there is none.
func (s *sink) list(a *lanes.Arena, list [][]byte, n uint64) ([][]byte, bool) {
	if !s.buffer.Held() {
		buffer, err := a.Get(sinkBytes)
		if err != nil {
			return list, false
		}
		s.buffer = buffer
	}
	for n > 0 {
		part := s.buffer.Bytes(min(n, sinkBytes))
		list = append(list, part)
		n -= uint64(len(part))
	}
	return list, true
}

func (s *sink) close(a *lanes.Arena) {
	if s.buffer.Held() {
		a.Put(&s.buffer)
	}
}
