package hptcp

import (
	"errors"
	"hash/crc32"
	"syscall"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
)

var (
	errClosing    = errors.New("the peer is being closed")
	errIdle       = errors.New("idle for too long")
	errEvicted    = errors.New("evicted: its slot was needed for another peer")
	errNoAddress  = errors.New("the peer has no address")
	errHello      = errors.New("the source did not answer the hello in time")
	errOrder      = errors.New("a chunk out of order, or longer than agreed")
	errAnswer     = errors.New("an answer that the request cannot have")
	errMemory     = errors.New("no memory for what nobody wants")
	castagnoli    = crc32.MakeTable(crc32.Castagnoli)
	exhaustedCall = [...]syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}
)

// ErrBesides is the reason of a transfer whose stream was ended on behalf of another one (the Err of a Fault).
var ErrBesides = errors.New("the stream was ended because another request on it ran out of time, was cancelled or had wrong bytes")

// linkState is where a stream to a source is.
//
//	absent ──slot──▶ connecting ──▶ greeting ──welcome──▶ ready ──loss──▶ absent     (retained: for good)
//	   │  ▲──no answer──┘                    └─refused─▶ absent
//	   └─none free──▶ waiting
type linkState uint8

const (
	linkAbsent linkState = iota
	linkWaiting
	linkConnecting
	linkGreeting
	linkReady
	linkRetained
)

// slot is one place in a stream's table of requests (SPEC H-3).
type slot struct {
	part       *part // nil exactly when the place is free
	generation uint32
	next       int // free place behind this one
}

// part is one request of a transfer on one stream.
type part struct {
	transfer *Transfer // nil: the transfer has ended without it, and the answer finds nobody
	slot     int
	write    bool
	posted   bool   // true exactly when its request was put into a box
	queued   bool   // true exactly while in the stream's queue
	well     bool   // WRITE: answered with success, but the kernel still holds its payload
	refused  bool   // WRITE: answered with a refusal, but its payload is not all sent
	at       cursor // of the next payload byte
	start    uint64 // of the first payload byte, in the transfer's payload
	length   uint64
	moved    uint64 // payload bytes in boxes (WRITE), in place (READ)
	flown    uint64 // WRITE: payload bytes with the system, those of the box under way apart
	boxAt    int    // WRITE: where its payload begins in the box under way
	boxed    bool   // WRITE: true exactly when it has payload in the box under way
	next     *part
}

// link is one stream to a source.
type link struct {
	peer     *Peer
	index    int // in the peer's list
	number   int // the source knows it by
	address  int // index of the peer's address that is tried or connected
	state    linkState
	stream   stream
	charge   budgets.Charge
	hello    netproto.HPTCPHello
	terms    netproto.HPTCPWelcome
	greeted  bool // true exactly when the hello was put into a box
	slots    []slot
	free     int // first free place; -1: none
	used     int
	inFlight uint64 // bytes of requests without an answer: the credit in use (SPEC H-7)
	head     *part  // to be sent
	tail     *part
	box      []*part // with payload in the box under way
	current  *part   // whose chunk is arriving; nil also when nobody wants it
	chunk    netproto.HPTCPFrame
	chunkAt  cursor       // of current's chunk
	aside    lanes.Buffer // where it is received when its ranges overlap, and it has a checksum
	fault    *lanes.Fault
	timer    reactor.Timer
	fresh    bool // true exactly while the timer stands for dozing, not for the end
	older    *link
	newer    *link
	listed   bool
	evicted  bool // true exactly while it ends to make room for one that waits
}

// linkList is a list of idle links.
type linkList struct{ oldest, newest *link }

func (x *linkList) add(l *link) {
	l.listed, l.older, l.newer = true, x.newest, nil
	if x.newest == nil {
		x.oldest = l
	} else {
		x.newest.newer = l
	}
	x.newest = l
}

func (x *linkList) remove(l *link) {
	if !l.listed {
		return
	}
	if l.older == nil {
		x.oldest = l.newer
	} else {
		l.older.newer = l.newer
	}
	if l.newer == nil {
		x.newest = l.older
	} else {
		l.newer.older = l.older
	}
	l.listed, l.older, l.newer = false, nil, nil
}

// open charges a slot and connects. At the limit the longest idle stream of the lane gives its own up.
func (l *link) open() {
	pool := l.peer.pool
	charge, err := pool.config.Streams.Take(1)
	if err != nil {
		if idle := pool.idle.oldest; idle != nil {
			pool.idle.remove(idle)
			pool.lane.Counts.Evicted.Add(1)
			l.state = linkWaiting
			pool.waiting = append(pool.waiting, l)
			idle.evicted = true
			idle.stream.retire(errEvicted)
			return
		}
		l.peer.unreached(l, lanes.Fault{Cause: lanes.Exhausted, Stage: "connect", Err: err})
		return
	}
	l.charge, l.address = charge, l.peer.address
	l.connect()
}

// connect tries the addresses from the present one on.
func (l *link) connect() {
	p, lane := l.peer, l.peer.pool.lane
	last := lanes.Fault{Cause: lanes.Unreachable, Stage: "connect", Err: errNoAddress}
	for ; l.address < len(p.addresses); l.address++ {
		address := p.addresses[l.address]
		d, err := lane.Kernel().Open(address, lane.Policy.Socket)
		if err == nil {
			if err = l.stream.start(lane, d, l); err == nil {
				l.state, l.greeted, l.fault = linkConnecting, false, nil
				p.pool.live++
				lane.Arm(&l.timer, lane.Now().After(lanes.ConnectPatience), l)
				l.stream.connect(reactor.Operation{Address: address})
				return
			}
			_ = lane.Kernel().Close(d) // nothing was done with it
		}
		last.Err = &UnreachedError{address, err}
		for _, e := range exhaustedCall {
			if errors.Is(err, e) {
				last.Cause = lanes.Exhausted
			}
		}
		if last.Cause == lanes.Exhausted {
			break
		}
	}
	p.address = 0
	l.unconnected(last)
}

// unconnected gives the slot back and fails those who wait for it.
func (l *link) unconnected(fault lanes.Fault) {
	l.peer.pool.lane.Counts.ConnectErrors.Add(1)
	l.state = linkAbsent
	l.charge.Repay() // proof: no socket was made, or lost said that it is closed
	l.peer.unreached(l, fault)
}

// connected sends the hello (user).
func (l *link) connected() {
	p, lane := l.peer, l.peer.pool.lane
	lane.Counts.Connects.Add(1)
	if congestion, err := lane.Kernel().Tune(l.stream.descriptor, lane.Policy.Socket); err != nil {
		l.retire(&lanes.Fault{Cause: lanes.Unreachable, Stage: "connect", Err: err})
		return
	} else if congestion != "" {
		lane.Congestion.Store(&congestion)
	}
	l.state, p.address = linkGreeting, l.address
	l.hello = netproto.HPTCPHello{Expected: p.epoch, Requester: lane.Policy.Epoch, Stream: p.way<<streamIndexBits | uint16(l.number),
		Chunk: min(p.pool.config.ChunkBytes, p.endpoint.ChunkBytesMax), InFlight: min(p.pool.config.InFlightBytes, p.endpoint.InFlightBytesMax)}
	if p.pool.config.Checksums {
		l.hello.Flags = netproto.HPTCPChecksums
	}
	lane.Arm(&l.timer, lane.Now().After(lane.Policy.SourceTimeout), l)
	l.stream.flush()
	l.stream.digest()
}

// welcomed takes the answer to the hello.
func (l *link) welcomed(b []byte) {
	p := l.peer
	terms, err := netproto.DecodeHPTCPWelcome(l.hello, b)
	switch {
	case err != nil:
		l.violate("hello", err)
	case terms.Status != netproto.StatusSuccess:
		p.pool.config.Counts.Refused.Add(1)
		l.retire(&lanes.Fault{Cause: lanes.Refused, Stage: "hello", Status: terms.Status, Actual: terms.Source, Expected: p.epoch})
	default:
		l.terms, l.state = terms, linkReady
		l.slots, l.free, l.used, l.inFlight = l.slots[:0], -1, 0, 0
		l.rest()
	}
}

// rest lists a stream without requests, and starts its clock.
func (l *link) rest() {
	lane := l.peer.pool.lane
	l.fresh = true
	lane.Arm(&l.timer, lane.Now().After(dozeAfter), l)
	if l.used == 0 && !l.listed {
		l.peer.pool.idle.add(l)
	}
}

// Expire ends a stream that is idle, or whose source is silent and nobody is left who would end it
// (reactor.TimerHandler).
func (l *link) Expire(*reactor.Timer, reactor.Instant) {
	switch l.state {
	case linkConnecting:
		l.stream.retire(lanes.ErrSilent)
		return
	case linkGreeting:
		l.retire(&lanes.Fault{Cause: lanes.Unreachable, Stage: "hello", Err: l.peer.unreachedAt(l.address, errHello)})
		return
	}
	if lane := l.peer.pool.lane; l.fresh {
		if l.fresh = false; l.used == 0 {
			l.stream.doze()
		}
		lane.Arm(&l.timer, lane.Now().After(lane.Policy.IdleTimeout), l)
		return
	}
	for i := range l.slots {
		if x := l.slots[i].part; x != nil && x.transfer != nil {
			l.rest()
			return
		}
	}
	l.peer.pool.lane.Counts.IdleClosed.Add(1)
	l.stream.retire(errIdle)
}

// retire ends the stream; the first reason stays.
func (l *link) retire(fault *lanes.Fault) {
	if l.stream.ending == nil {
		l.fault = fault
	}
	l.stream.retire(fault)
}

// violate ends the stream because the source broke the protocol.
func (l *link) violate(stage string, err error) {
	lane := l.peer.pool.lane
	lane.Journal.Add(lane.Now(), lanes.Note{Kind: lanes.NoteProtocol, Where: l.where(), Err: err})
	l.retire(&lanes.Fault{Cause: lanes.Violated, Stage: stage, Err: err})
}

func (l *link) where() string {
	if p := l.peer; l.address < len(p.addresses) {
		return p.addresses[l.address].String()
	}
	return ""
}

// end retires a stream that no transfer needs.
func (l *link) end(why error) {
	switch l.state {
	case linkWaiting:
		l.peer.pool.forget(l)
		l.state = linkAbsent
	case linkConnecting, linkGreeting, linkReady:
		l.stream.retire(why)
	}
}

// lost takes the end of the stream (user): every request on it has failed, unless it was answered.
func (l *link) lost(end loss) {
	p, pool := l.peer, l.peer.pool
	was := l.state
	pool.lane.Disarm(&l.timer)
	pool.idle.remove(l)
	pool.live--
	fault := l.fault
	if fault == nil {
		fault = &lanes.Fault{Cause: lanes.Disconnected, Err: end.err}
	}
	l.touch()
	l.clear()
	l.fault, l.current, l.head, l.tail = nil, nil, nil, nil
	l.state = linkAbsent
	if end.retained {
		l.state = linkRetained
		pool.lane.Journal.Add(pool.lane.Now(), lanes.Note{Kind: lanes.NoteRetained, Where: l.where(), Err: end.err})
	}
	p.held++
	switch {
	case was == linkReady:
		pool.lane.Counts.StreamsRetired.Add(1)
		l.bury(fault, end)
		if !end.retained {
			l.charge.Repay() // proof: lost says that the descriptor is closed
		}
	case end.retained:
		p.unreached(l, *fault)
	case end.err == lanes.ErrSilent: // the pump below opens it again for who waits, at the next address
		pool.lane.Counts.ConnectErrors.Add(1)
		p.address = (l.address + 1) % len(p.addresses)
		l.charge.Repay() // proof: lost says that the descriptor is closed
	case was == linkConnecting && end.err != errClosing && l.address+1 < len(p.addresses):
		l.address++
		l.connect()
	default:
		if was == linkConnecting && fault.Cause == lanes.Disconnected {
			fault = &lanes.Fault{Cause: lanes.Unreachable, Stage: "connect", Err: p.unreachedAt(l.address, end.err)}
		}
		p.address = 0
		l.unconnected(*fault)
	}
	p.held--
	evicted := l.evicted
	l.evicted = false
	pool.freed(evicted && end.retained)
	p.pump()
	p.settle()
	pool.settle()
}

// bury fails the transfers that had requests on the lost stream.
func (l *link) bury(fault *lanes.Fault, end loss) {
	for i := range l.slots {
		if l.slots[i].part == nil {
			continue
		}
		x := *l.slots[i].part
		l.peer.pool.give(l.slots[i].part)
		l.slots[i].part = nil
		t := x.transfer
		if t == nil {
			continue
		}
		if t.parts--; x.well {
			t.answered += x.length
			t.settle()
			continue
		}
		t.lose(x.start)
		left := x.flown > 0 || x.boxed && end.sent > x.boxAt
		t.unsure = t.unsure || x.write && left && !x.refused
		t.retained = t.retained || end.retained
		own := *fault
		if own.Stage == "" {
			own.Stage = "payload"
		}
		t.fail(&own, true) // last: it may have ended, and have another owner
	}
	l.slots, l.box, l.free, l.used, l.inFlight = l.slots[:0], l.box[:0], -1, 0, 0
}
