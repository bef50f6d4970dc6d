package control

import (
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
)

// frameBody gathers what stands directly behind some requests, before the frame is checked: a source that
// refuses the frame has read all of it, and the stream goes on. It is the session's handler meanwhile, so
// the source's deadline for the frame covers it.
//
//	none ──gather──▶ head ──size known──▶ rest ──complete──▶ checked
//	                  └──── complete ─────────────────────────▲
type frameBody struct {
	session *Session
	buffer  lanes.Buffer
	have    int
	size    int // of the whole; 0 until the head says it
}

// gather receives the body of the session's request.
func (b *frameBody) gather(s *Session) {
	buffer, err := s.server.lane.Arena.Get(netproto.GrantRequestSizeMax)
	if err != nil { // what follows on the stream has no meaning without its bytes
		s.ending = true
		s.Refuse(netproto.StatusExhausted)
		return
	}
	*b = frameBody{session: s, buffer: buffer}
	s.Take(b)
	s.Receive(b.room(0, s.request.BodyHeadSize()))
}

// room is what the session's Receive is to fill: all of it.
func (b *frameBody) room(from, to int) (first, second []byte, least int) {
	return b.buffer.Bytes(netproto.GrantRequestSizeMax)[from:to], nil, to - from
}

// Received (Handler).
func (b *frameBody) Received(n int) {
	s := b.session
	b.have += n
	if b.size == 0 {
		size, err := s.request.BodySize(b.buffer.Bytes(uint64(b.have)))
		if err != nil {
			s.Violate(err)
			return
		}
		b.size = size
	}
	if b.have < b.size {
		s.Receive(b.room(b.have, b.size))
		return
	}
	s.handler = nil
	s.server.check(s)
}

// Sent does not happen: nothing is sent before the body is complete.
func (b *frameBody) Sent(int) {}

// Lost: the session gives the buffer back as it ends the frame (Handler).
func (b *frameBody) Lost(Loss) {}

// release gives the buffer back. Proof: the frame has ended, or the stream is gone.
func (b *frameBody) release(a *lanes.Arena) {
	if b.buffer.Held() {
		a.Put(&b.buffer)
	}
	b.have, b.size = 0, 0
}

// Body is what stood behind the request being served, until the frame ends; nil when nothing did.
func (s *Session) Body() []byte {
	if s.body.size == 0 {
		return nil
	}
	return s.body.buffer.Bytes(uint64(s.body.size))
}
