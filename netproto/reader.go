package netproto

import "fmt"

// Reader gathers one fixed header from a stream that delivers it in any pieces (field case F-31). It
// holds at most RequestSize bytes, never reads beyond its header and never allocates. The zero value
// waits for Begin. It belongs to one connection and is not safe for concurrent use.
type Reader struct {
	buffer [RequestSize]byte
	size   int // of the header being gathered: RequestSize or ReplySize; 0 before Begin
	have   int // bytes gathered so far
}

// Begin starts the next header; size is RequestSize or ReplySize, anything else panics. Bytes of an
// earlier header are forgotten.
func (r *Reader) Begin(size int) {
	if size != RequestSize && size != ReplySize {
		panic(fmt.Sprintf("netproto: Reader.Begin with %d bytes, want %d or %d", size, RequestSize, ReplySize))
	}
	r.size, r.have = size, 0
}

// Room returns where the next bytes of the header go; empty when it is complete. It is memory of the
// Reader, meant as the first buffer of a receive whose further buffers take the payload.
func (r *Reader) Room() []byte { return r.buffer[r.have:r.size] }

// Filled records that a receive whose first buffer was Room delivered n bytes in all. It returns how
// many of them went beyond the header, into the buffers after Room.
func (r *Reader) Filled(n int) (beyond int) {
	if n < 0 {
		panic(fmt.Sprintf("netproto: Reader.Filled with %d bytes, want 0 or more", n))
	}
	taken := min(n, r.size-r.have)
	r.have += taken
	return n - taken
}

// Feed copies from p what the header still lacks and returns how many bytes it took.
func (r *Reader) Feed(p []byte) (taken int) {
	taken = copy(r.Room(), p)
	r.have += taken
	return taken
}

// Empty reports whether no byte of the header has arrived: an end of stream here is a clean one.
func (r *Reader) Empty() bool { return r.have == 0 }

// Complete reports whether the whole header is there.
func (r *Reader) Complete() bool { return r.size > 0 && r.have == r.size }

// Check looks at what has arrived of magic and version, so that a peer that speaks another protocol
// is refused at its first wrong byte and not at a deadline. The error is a *FrameError.
func (r *Reader) Check() error {
	arrived := r.buffer[:min(r.have, len(prefix))]
	if string(arrived) == string(prefix[:len(arrived)]) {
		return nil
	}
	frame := requestFrame
	if r.size == ReplySize {
		frame = replyFrame
	}
	for i, b := range arrived {
		if b != prefix[i] {
			return refuse(frame, "magic or version byte", uint64(b),
				fmt.Sprintf("%d: the peer speaks another protocol or version", prefix[i])).at(i)
		}
	}
	return nil
}

// Request decodes the complete request header.
func (r *Reader) Request() (Request, error) { return DecodeRequest(r.buffer[:r.have]) }

// Reply decodes the complete reply header.
func (r *Reader) Reply() (Reply, error) { return DecodeReply(r.buffer[:r.have]) }
