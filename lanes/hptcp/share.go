package hptcp

import (
	"sync/atomic"

	"github.com/orbitte/orbitte/segments"
)

// Piece is a stretch of a payload: Length bytes from Offset on, whose first byte is Inner bytes into the span with this
// index. Without a list of spans the transfer is one span.
type Piece struct {
	Index                 int
	Inner, Offset, Length uint64
}

// Cut appends the pieces of a payload of size bytes, each of so many bytes, or of as many ranges as one request has at most;
// the last one has the rest.
func Cut(dst []Piece, spans []Span, size, each uint64) []Piece {
	at := cursor{}
	for offset := uint64(0); offset < size; {
		p := Piece{at.index, at.inner, offset, min(each, size-offset)}
		if spans == nil {
			at.inner += p.Length
		} else {
			p.Length = at.pass(spans, p.Length)
		}
		dst, offset = append(dst, p), offset+p.Length
	}
	return dst
}

// pass moves the place by up to n bytes, or by as many spans as one request may have, and says by how many bytes.
func (c *cursor) pass(spans []Span, n uint64) (passed uint64) {
	for count := 0; passed < n && count < spansMax; count++ {
		size := min(n-passed, spans[c.index].Length-c.inner)
		passed += size
		if c.inner += size; c.inner == spans[c.index].Length {
			*c = cursor{c.index + 1, 0}
		}
	}
	return passed
}

// Share is one payload that transfers on several lanes carry together: whoever has room takes the next piece, so that a
// lane which is slow takes few. One of the transfers leads: it leases the local ranges for all, with its first request, and
// says so (Transfer.Leased); from then on the others may be started. The lease ends in Close, or with the last byte of a
// WRITE that the system has. A share belongs to the owner of the transfers, who keeps its memory for the next payload.
type Share struct {
	// Pieces of the payload, in its order (Cut). They stay unchanged until Close.
	Pieces []Piece

	next   atomic.Int64  // index of the piece that nobody has taken yet; beyond the last one: more often asked than there were
	sent   atomic.Uint64 // WRITE: payload bytes that the system has
	lease  segments.Lease
	memory []byte // of the lease
	base   uint64 // where it begins, relative to the registration; may wrap
}

// Open begins with a payload, whose Pieces are set. Precondition: no transfer uses the share.
func (s *Share) Open() {
	s.next.Store(0)
	s.sent.Store(0)
}

// Close returns the lease, if it is still held. Precondition: all transfers have ended.
func (s *Share) Close() {
	if s.lease.Held() {
		s.lease.Return()
	}
	s.memory = nil
}

// Untaken is how many bytes into the payload the first piece begins that nobody has taken; the payload's size when all are
// taken. Precondition: all transfers have ended, or can take no more pieces.
func (s *Share) Untaken() uint64 {
	if i := s.next.Load(); i < int64(len(s.Pieces)) {
		return s.Pieces[i].Offset
	}
	last := s.Pieces[len(s.Pieces)-1]
	return last.Offset + last.Length
}

// ahead is the length of the next piece; 0: there is none. Another lane may take it first.
func (s *Share) ahead() uint64 {
	if i := s.next.Load(); i < int64(len(s.Pieces)) {
		return s.Pieces[i].Length
	}
	return 0
}

// take takes the next piece; false: there is none.
func (s *Share) take() (Piece, bool) {
	if i := s.next.Add(1) - 1; i < int64(len(s.Pieces)) {
		return s.Pieces[i], true
	}
	return Piece{}, false
}

// gone counts payload of a WRITE that the system has, on any lane.
func (s *Share) gone(bytes, size uint64) {
	if s.sent.Add(bytes) == size {
		s.lease.Return() // nobody gathers from it any more
	}
}
