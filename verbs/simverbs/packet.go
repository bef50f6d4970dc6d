package simverbs

import (
	"time"

	"github.com/orbitte/orbitte/verbs"
)

type packetKind uint8

const (
	packetWrite packetKind = iota
	packetSend
	packetRead // a READ request
	packetAcknowledge
	packetNotReady
	packetRefuse   // a NAK that ends the connection
	packetSequence // a NAK: a packet is missing
	packetData     // a READ response
)

func (k packetKind) request() bool { return k <= packetRead }

// packet is what travels. Its payload was read from the sender's memory when it left.
type packet struct {
	kind        packetKind
	from, to    *Port
	source      verbs.GID
	pair        verbs.PairNumber // at the destination
	psn         uint32
	first, last bool
	data        []byte

	// Write and Read: the whole message; a WRITE's data belongs at address+offset.
	address uint64
	length  uint32
	offset  uint32
	key     verbs.RemoteKey
	// Read: the first response that is asked for, and the order of the places.
	skip  uint32
	order order
	// Send:
	invalidates bool
	// NAKs: what the requester makes of it. NotReady: the timer's code.
	status verbs.WorkStatus
	code   uint8
}

// order spreads the packets of one message over its bytes: packet i carries piece (i·stride+base) mod n. A device
// promises nothing about which bytes of an unfinished message are in memory.
type order struct{ stride, base, n uint32 }

func (f *Fabric) newOrder(n uint32) order {
	o := order{1, 0, n}
	if n > 1 && f.chance(2) {
		o.base = uint32(f.random.IntN(int(n)))
		for o.stride = 1 + uint32(f.random.IntN(int(n))); divisor(o.stride, n) != 1; o.stride++ {
		}
	}
	return o
}

func (o order) piece(i uint32) uint32 {
	return uint32((uint64(i)*uint64(o.stride) + uint64(o.base)) % uint64(o.n))
}

func divisor(a, b uint32) uint32 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// span is the place of one piece in a message.
func (o order) span(i, length uint32, mtu int) (offset, n uint32) {
	offset = o.piece(i) * uint32(mtu)
	return offset, min(uint32(mtu), length-offset)
}

// packetsOf is how many packets a message takes.
func packetsOf(length uint32, mtu int) uint32 {
	return max(1, uint32((uint64(length)+uint64(mtu)-1)/uint64(mtu)))
}

func (f *Fabric) newPacket() *packet {
	if n := len(f.packets); n > 0 {
		p := f.packets[n-1]
		f.packets = f.packets[:n-1]
		*p = packet{data: p.data[:0]}
		return p
	}
	return &packet{data: make([]byte, 0, f.options.MTU)}
}

func (f *Fabric) freePacket(p *packet) { f.packets = append(f.packets, p) }

// payload makes room for n bytes.
func (p *packet) payload(n uint32) []byte {
	if cap(p.data) < int(n) {
		p.data = make([]byte, n)
	}
	p.data = p.data[:n]
	return p.data
}

// peerPort is the port that the pair sends to: by its address, or on InfiniBand without one by its LID.
func (q *pair) peerPort() *Port {
	if q.byLID() {
		return q.port.findLID(q.attributes.RemoteLID)
	}
	return q.port.find(q.attributes.RemoteGID)
}

func (q *pair) byLID() bool {
	return q.port.spec.InfiniBand && q.attributes.RemoteGID == verbs.GID{}
}

// hears says whether a packet comes from where the pair's peer is.
func (q *pair) hears(p *packet) bool {
	if q.byLID() {
		return p.from.spec.LID == q.attributes.RemoteLID
	}
	return q.attributes.RemoteGID == p.source
}

// packetGap is the least time between two packets on one way, so that their order is kept.
const packetGap = 100 * time.Nanosecond

// transmit sends a packet to the pair's peer. Packets of one pair and direction keep their order. False: it cannot
// leave, since this side's port or address is gone.
func (q *pair) transmit(p *packet, after *time.Duration) bool {
	f := q.fabric()
	port := q.port
	if port.state != verbs.PortActive || port.device.removed || !port.has(q.gid) {
		f.freePacket(p)
		return false
	}
	to := q.peerPort()
	extra, lost := f.planPacket(q)
	if to == nil || lost {
		f.freePacket(p)
		return true
	}
	l := f.link(port, to)
	if l.cut {
		f.freePacket(p)
		return true
	}
	p.from, p.to, p.source, p.pair = port, to, q.gid, q.attributes.Remote
	at := f.now() + f.draw(l.delayMin, l.delayMax) + extra
	at = max(at, *after+packetGap)
	*after = at
	f.scheduleAt(at, event{kind: eventPacket, packet: p})
	return true
}

// arrive takes a packet from the wire. What fits no pair is dropped without a word, as devices do.
func (f *Fabric) arrive(p *packet) {
	defer f.freePacket(p)
	q := p.to.device.pairs[p.pair]
	if p.to.state != verbs.PortActive || q == nil || q.port != p.to || !q.hears(p) {
		return
	}
	switch q.state {
	case verbs.PairReadyToReceive:
		if p.kind.request() {
			q.arriveRequest(p)
		}
	case verbs.PairReadyToSend:
		if p.kind.request() {
			q.arriveRequest(p)
		} else {
			q.arriveAnswer(p)
		}
	}
}

// distance is how far packet number a lies behind b; negative: before it. Numbers have 24 bits.
func distance(a, b uint32) int32 { return int32((a-b)<<8) >> 8 }

func addPSN(a, n uint32) uint32 { return (a + n) & 0xffffff }
