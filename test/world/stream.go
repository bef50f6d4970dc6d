package world

import (
	"bytes"
	"encoding/binary"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/reactor"
)

// What the contract says about frames (W-1 to W-4, W-12 to W-14), read here a second time and independently of netproto.
const (
	requestBytes = 52
	replyBytes   = 36
	opDescribe   = 0
	opRead       = 1
	opWrite      = 2
	opNotify     = 3
	opRPCNotify  = 22
	opGrants     = 4  // to 7: a body stands behind the header, whose head says how long it is
	opConnect    = 64 // to 67: a body of the header's length
	opPin        = 68 // a body of pinBytes, behind a header with the length of a range
	opDelegate   = 69 // and 70: a body of the header's length
	pinBytes     = 32
	grantHead    = 32 // with slices 2 and connections 1 in front
	grantOf      = 32 // a connection
	grantSlice   = 24
	slotRegion   = 0x80 // in the first byte of a region's ID: it is a slot of the peer's, and no region
	statusOK     = 0
	statusReady  = 9
)

var magic = []byte("ORBITTE\x00\x00\x13") // with version 19

// stream is what one end of a connection has sent and received, as its engine's kernel was asked and answered.
//
// It can see that a stream is used after a failure, an end, or a cancelled operation; that a frame begins inside
// another one; that a reply belongs to no request; that a frame goes out more often than requests ask for it.
// It cannot see what the network does with bytes that the kernel has taken.
type stream struct {
	life   *life
	client bool // of a control stream: its frames are read
	data   bool // a stream of HP-TCP
	spent  bool // an operation failed, was cancelled, or found the end: nothing may be sent any more
	header [requestBytes]byte
	have   int // bytes of the frame header being sent
	reply  [replyBytes]byte
	got    int // bytes of the reply header being received
	skip   uint64
	asked  []frame // requests without their last reply, oldest first
}

// frame is one request on its way.
type frame struct {
	operation byte
	length    uint64 // of its payload, either way
	ready     bool   // the source asked for the payload
	sent      uint64 // of it
	grants    bool   // true exactly until the head of its body was sent
	op        *op
}

// frameKey is what a READ or WRITE frame names.
type frameKey struct {
	epoch   orbitte.Epoch
	write   bool
	address uint64
	length  uint64
}

func (l *life) opened(d reactor.Descriptor, client, data bool) {
	if l.streams == nil {
		l.streams = map[reactor.Descriptor]*stream{}
	}
	l.streams[d] = &stream{life: l, client: client && !data, data: data}
}

// posted sees a send being submitted.
func (s *stream) posted() {
	if s.spent {
		s.life.run.violate(OracleStream, "%v sends on a stream whose last operation failed, was cancelled or found its end", s.life)
	}
}

// sent sees bytes that the kernel has taken.
func (s *stream) sent(b []byte) {
	for s.client && len(b) > 0 {
		if f := s.body(); f != nil {
			n := min(f.length-f.sent, uint64(len(b)))
			f.headed(b[:n])
			f.sent += n
			b = b[n:]
			continue
		}
		n := copy(s.header[s.have:], b)
		s.have += n
		b = b[n:]
		if s.have == requestBytes {
			s.have = 0
			s.request()
		}
	}
}

// body is the frame whose payload is being sent, or nil.
func (s *stream) body() *frame {
	for i := range s.asked {
		if f := &s.asked[i]; f.ready && f.sent < f.length {
			return f
		}
	}
	return nil
}

// request sees a whole request header.
func (s *stream) request() {
	h := s.header[:]
	if !bytes.HasPrefix(h, magic) {
		s.life.run.violate(OracleStream, "%v sends %x where a frame should begin: the one before was not whole", s.life, h[:16])
		return
	}
	f := frame{operation: h[10], length: binary.BigEndian.Uint64(h[44:])}
	switch f.operation {
	case opNotify, opRPCNotify:
		f.length += binary.BigEndian.Uint64(h[36:]) + 1 // name, message and marker
	case opGrants, opGrants + 1, opGrants + 2, opGrants + 3:
		f.length, f.ready, f.grants = grantHead, true, true
		s.life.run.granted(h)
	case opConnect, opConnect + 1, opConnect + 2, opConnect + 3:
		f.ready = true
	case opDelegate, opDelegate + 1:
		f.ready = true
	case opPin:
		f.length, f.ready = pinBytes, true
	case opRead, opWrite:
		if h[28]&slotRegion != 0 {
			s.life.run.slotFramed(s, h, f)
			break
		}
		f.op = s.life.run.framed(s, h, f)
	}
	s.asked = append(s.asked, f)
}

// headed reads how many connections and slices a question for grants has.
func (f *frame) headed(b []byte) {
	for i := range b {
		at := f.sent + uint64(i)
		switch {
		case !f.grants || at > 2:
			return
		case at == 0:
			f.length += uint64(b[i]) << 8 * grantSlice
		case at == 1:
			f.length += uint64(b[i]) * grantSlice
		default:
			f.length += uint64(b[i]) * grantOf
			f.grants = false
		}
	}
}

// received sees bytes from the kernel.
func (s *stream) received(b []byte) {
	for s.client && len(b) > 0 {
		if s.skip > 0 {
			n := min(s.skip, uint64(len(b)))
			s.skip -= n
			b = b[n:]
			continue
		}
		n := copy(s.reply[s.got:], b)
		s.got += n
		b = b[n:]
		if s.got == replyBytes {
			s.got = 0
			s.replied()
		}
	}
}

// replied sees a whole reply header.
func (s *stream) replied() {
	h := s.reply[:]
	if !bytes.HasPrefix(h, magic) || len(s.asked) == 0 {
		s.life.run.violate(OracleStream, "%v receives %x, which is no reply to anything", s.life, h[:16])
		return
	}
	f, status := &s.asked[0], h[10]
	writes := f.operation == opWrite || f.operation == opNotify || f.operation == opRPCNotify
	switch {
	case writes && status == statusReady && !f.ready:
		f.ready = true
		return
	case writes && status == statusOK && (!f.ready || f.sent < f.length):
		s.life.run.violate(OracleStream, "%v has a receipt for %d bytes of which it sent %d", s.life, f.length, f.sent)
	case !writes && status == statusOK:
		s.skip = binary.BigEndian.Uint64(h[28:])
		if f.operation == opRead && s.skip != f.length {
			s.life.run.violate(OracleStream, "%v asked for %d bytes and is sent %d", s.life, f.length, s.skip)
		}
	}
	s.asked = s.asked[1:]
}

// framed finds the request that a READ or WRITE frame carries out. A frame that goes out more often than requests were
// made for it is a replay, and there is none (T-5, T-10).
func (r *run) framed(s *stream, h []byte, f frame) *op {
	var epoch orbitte.Epoch
	copy(epoch[:], h[12:28])
	peer := r.named(epoch)
	if peer == nil {
		r.violate(OracleEpoch, "%v asks for epoch %x, which no engine has", s.life, epoch)
		return nil
	}
	id, offset := binary.BigEndian.Uint64(h[28:]), binary.BigEndian.Uint64(h[36:])
	address, ok := peer.region(id)
	if !ok {
		r.violate(OracleStream, "%v asks for region %d, which %v never had", s.life, id, peer)
		return nil
	}
	key := frameKey{epoch, f.operation == opWrite, address + offset, f.length}
	if r.asked[key]--; r.asked[key] < 0 {
		r.violate(OracleStream, "%v sends a frame for %d bytes of %v once more than requests ask for it", s.life, f.length, peer)
	}
	return r.only(s, key)
}

// only is the one op in flight that the frame can be of; nil when there are several alike.
func (r *run) only(s *stream, key frameKey) (found *op) {
	for _, sub := range s.life.open {
		for _, o := range sub.ops {
			if o.over || o.apart() || o.key() != key {
				continue
			}
			if found != nil {
				found.alike, o.alike = true, true
				continue
			}
			found = o
		}
	}
	if found == nil || found.alike {
		return nil
	}
	r.frames++
	found.frames, found.rank = s, r.frames
	r.inLine(found)
	return found
}

// inLine: a submission whose first frame goes out behind that of one which was submitted to the same peer after it has
// been overtaken (SPEC T-3). Direct placement is let off, and what a GPU copies: it waits for its lease outside the queue.
func (r *run) inLine(o *op) {
	l, peer := o.submission.life, o.remote.life
	if o.index != 0 || l.direct || o.local.gpu {
		return
	}
	last := l.leaders[peer]
	switch {
	case last == nil || last.submission.started < o.submission.started:
		if l.leaders == nil {
			l.leaders = map[*life]*op{}
		}
		l.leaders[peer] = o
	case last.submission.started > o.submission.started:
		r.violate(OracleStream, "%v: %v goes out behind %v, which was submitted to the same peer after it", l, o, last)
	}
}

func (r *run) named(epoch orbitte.Epoch) *life {
	for _, l := range r.lives {
		if l.epoch == epoch {
			return l
		}
	}
	return nil
}

// region is the address of a region's first byte.
func (l *life) region(id uint64) (uint64, bool) {
	for _, g := range l.ranges {
		if g.handle.ID() == id {
			return g.handle.Address(), true
		}
	}
	return 0, false
}

// key is what the op's frame names.
func (o *op) key() frameKey {
	at := o.fromAt
	if o.write {
		at = o.toAt
	}
	return frameKey{o.remote.life.epoch, o.write, o.remote.object.Address() + uint64(at), uint64(o.length)}
}

// inTurn: a WRITE that is there although an earlier one of the same stream is neither there nor over came before its turn.
func (r *run) inTurn(late *op) {
	if !late.write || late.frames == nil || !late.certain {
		return
	}
	for _, sub := range late.submission.life.open {
		for _, o := range sub.ops {
			if o.write && o.frames == late.frames && o.rank < late.rank && !o.over && !o.matched && o.length > 0 {
				r.violate(OracleStream, "%v: %v was committed before %v, which went out first on the same stream", late.submission.life, late, o)
			}
		}
	}
}
