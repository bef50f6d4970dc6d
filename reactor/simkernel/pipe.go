package simkernel

import (
	"math/bits"

	"github.com/orbitte/orbitte/reactor"
)

// pipe is one direction of a connection: bytes written and not yet read, of which a first part has
// arrived.
//
//	read ≤ arrived ≤ written; written − read is bounded by WorldOptions.Buffer
type pipe struct {
	ring                   []byte // grows up to the bound; none while the pipe is empty
	read, arrived, written uint64 // bytes so far
	last                   reactor.Instant
	closed                 bool // the writer's end was sent
	finished               bool // the end has arrived
	refused                bool // bytes reached a closed end and were answered with a reset
	stalled                bool // a fault: packets of this direction vanish
	held                   int  // bytes that vanished and will be sent again
	heldFinish             bool
	heldSince              reactor.Instant
	resetAt                uint64 // a fault: reset after so many bytes; 0: none
}

func (p *pipe) available() int { return int(p.arrived - p.read) }

// put copies at most limit bytes in.
func (p *pipe) put(op *reactor.Operation, limit, bound int, pool *ringPool) int {
	n := min(limit, op.Size())
	if n <= 0 {
		return 0
	}
	p.grow(int(p.written-p.read)+n, bound, pool)
	left := n
	for i := 0; left > 0; i++ {
		b := op.Part(i)
		b = b[:min(len(b), left)]
		left -= len(b)
		for len(b) > 0 {
			k := copy(p.ring[p.written%uint64(len(p.ring)):], b)
			p.written += uint64(k)
			b = b[k:]
		}
	}
	return n
}

// take copies at most limit bytes out.
func (p *pipe) take(op *reactor.Operation, limit int, pool *ringPool) int {
	n := min(limit, p.available(), op.Size())
	left := n
	for i := 0; left > 0; i++ {
		b := op.Part(i)
		b = b[:min(len(b), left)]
		left -= len(b)
		for len(b) > 0 {
			from := p.read % uint64(len(p.ring))
			k := copy(b, p.ring[from:])
			p.read += uint64(k)
			b = b[k:]
		}
	}
	if p.read == p.written {
		p.drop(pool)
	}
	return n
}

// grow makes room for need bytes, keeping those that are inside where the counts say they are.
func (p *pipe) grow(need, bound int, pool *ringPool) {
	if need <= len(p.ring) {
		return
	}
	size := max(1<<ringShiftMin, len(p.ring))
	for size < need {
		size *= 2
	}
	ring := pool.take(min(size, max(bound, need)))
	for i := p.read; i < p.written; {
		from := p.ring[i%uint64(len(p.ring)):]
		from = from[:min(uint64(len(from)), p.written-i)]
		i += uint64(copy(ring[i%uint64(len(ring)):], from))
	}
	pool.give(p.ring)
	p.ring = ring
}

// drop gives the memory of an empty pipe, or of one that nobody reads any more, back.
func (p *pipe) drop(pool *ringPool) {
	pool.give(p.ring)
	p.ring = nil
}

// ringShiftMin makes 512 bytes the smallest ring.
const ringShiftMin = 9

// ringPool keeps unused rings by the length of their size, so that idle connections hold no memory.
type ringPool struct{ free [64][][]byte }

func (r *ringPool) take(size int) []byte {
	list := &r.free[bits.Len(uint(size))]
	for last := len(*list) - 1; last >= 0; last-- {
		if ring := (*list)[last]; len(ring) == size {
			(*list)[last] = (*list)[len(*list)-1]
			*list = (*list)[:len(*list)-1]
			return ring
		}
	}
	return make([]byte, size)
}

func (r *ringPool) give(ring []byte) {
	if len(ring) > 0 {
		list := &r.free[bits.Len(uint(len(ring)))]
		*list = append(*list, ring)
	}
}
