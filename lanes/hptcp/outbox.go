package hptcp

import (
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
)

const (
	// boxHeaderBytes is what the frames of one send take at most, payload apart.
	boxHeaderBytes = 16 << 10
	// boxParts is how many buffers one send gathers, a little less than the system's limit.
	boxParts = 1000
	// boxBytes is where a send stops to take more in: larger calls gain nothing.
	boxBytes = 1 << 20
	// frameRoom is what the largest frame with its runs needs, behind a header and in front of a chunk's.
	frameRoom = netproto.HPTCPRequestSize + netproto.HPTCPRunsSizeMax + netproto.HPTCPFrameSize
)

// outbox gathers frames and payload for one send: frames in memory of its own, payload where it lies. The
// memory is the arena's and held only while there is something in it.
type outbox struct {
	memory lanes.Buffer
	header []byte   // the used part of memory
	list   [][]byte // in the order of the wire; the first ones are sent
	first  int      // in list
	bytes  int      // of all of list, sent ones included
	sent   int
	closed bool // true exactly when the last buffer of list is payload: the next frame begins a buffer
}

// empty is true exactly when nothing is left to send.
func (b *outbox) empty() bool { return b.first == len(b.list) }

// open takes memory for frames; false when there is none.
func (b *outbox) open(a *lanes.Arena) bool {
	if b.memory.Held() {
		return true
	}
	memory, err := a.Get(boxHeaderBytes)
	if err != nil {
		return false
	}
	b.memory, b.header = memory, memory.Bytes(boxHeaderBytes)[:0]
	b.list, b.first, b.bytes, b.sent, b.closed = b.list[:0], 0, 0, 0, true
	return true
}

// room is true exactly when another frame with some payload fits.
func (b *outbox) room() bool {
	return len(b.list) < boxParts && b.bytes < boxBytes && cap(b.header)-len(b.header) >= frameRoom
}

// frame adds what was appended to the header since it had before bytes.
func (b *outbox) frame(header []byte) {
	before := len(b.header)
	b.header = header
	added := header[before:]
	b.bytes += len(added)
	if n := len(b.list); !b.closed { // frames that follow each other are one buffer
		last := b.list[n-1]
		b.list[n-1] = last[:len(last)+len(added)]
		return
	}
	b.closed = false
	b.list = append(b.list, added[:len(added):cap(added)])
}

// payload counts n bytes of buffers that were appended to the list.
func (b *outbox) payload(n uint64) {
	b.bytes += int(n)
	b.closed = true
}

// advance takes n sent bytes off; what remains is list[first:].
func (b *outbox) advance(n int) {
	b.sent += n
	for n > 0 {
		part := b.list[b.first]
		if n < len(part) {
			b.list[b.first] = part[n:]
			return
		}
		n -= len(part)
		b.list[b.first] = nil
		b.first++
	}
}

// close gives the memory back. Proof: nothing of it is with the kernel.
func (b *outbox) close(a *lanes.Arena) {
	if b.memory.Held() {
		a.Put(&b.memory)
	}
	b.header, b.list, b.first, b.bytes, b.sent = nil, b.list[:0], 0, 0, 0
}
