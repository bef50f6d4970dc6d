package hptcp

import (
	"math/bits"
	"slices"

	"github.com/orbitte/orbitte/netproto"
)

// Span is one piece of a transfer: Length bytes at Local, relative to the local registration, and at Remote, relative to
// the region.
type Span struct{ Local, Remote, Length uint64 }

// Pages appends the spans of fixed pages: page i is number local[i] behind localBase and number remote[i] behind
// remoteBase, size bytes each (SPEC H-8). Pages that follow each other on both sides become one span.
func Pages(dst []Span, localBase uint64, local []uint32, remoteBase uint64, remote []uint32, size uint64) []Span {
	if len(local) > cap(dst)-len(dst) { // once as large as it will be, not time and again a little larger
		n := 0
		for i := 0; i < len(local); i = row(local, remote, i) {
			n++
		}
		dst = slices.Grow(dst, n)
	}
	for i := 0; i < len(local); {
		k := row(local, remote, i)
		dst = Join(dst, Span{localBase + uint64(local[i])*size, remoteBase + uint64(remote[i])*size, uint64(k-i) * size})
		i = k
	}
	return dst
}

// row is the index behind the pages from i on that follow each other on both sides.
func row(local, remote []uint32, i int) int {
	k := i + 1
	for k < len(local) && uint64(local[k]) == uint64(local[k-1])+1 && uint64(remote[k]) == uint64(remote[k-1])+1 {
		k++
	}
	return k
}

// Strides appends the spans of count rows of length bytes, at these distances (SPEC H-8).
func Strides(dst []Span, local, localStride, remote, remoteStride, length, count uint64) []Span {
	for i := range count {
		dst = Join(dst, Span{local + i*localStride, remote + i*remoteStride, length})
	}
	return dst
}

// Join appends a span, or makes the last one longer where that one ends on both sides.
func Join(dst []Span, s Span) []Span {
	if n := len(dst); n > 0 {
		last := &dst[n-1]
		if last.Local+last.Length == s.Local && last.Remote+last.Length == s.Remote {
			last.Length += s.Length
			return dst
		}
	}
	return append(dst, s)
}

// cursor is a place in a list of ranges: so many bytes into the range with this index.
type cursor struct {
	index int
	inner uint64
}

// runner codes the remote ranges of one request. It joins what can be joined; flush gives the rest.
type runner struct {
	dst  []byte
	unit uint32
	end  uint64 // where the last coded run ended
	run  netproto.HPTCPRun
}

// add appends one range.
func (r *runner) add(start, length uint64) {
	run := &r.run
	switch {
	case run.Count == 0:
	case run.Count == 1 && run.End() == start:
		run.Length += length
		return
	case run.Count == 1 && run.Length == length && start > run.Start:
		run.Count, run.Stride = 2, start-run.Start
		return
	case run.Count > 1 && run.Length == length && start == run.Start+run.Count*run.Stride:
		run.Count++
		return
	default:
		r.flush()
	}
	*run = netproto.HPTCPRun{Start: start, Length: length, Count: 1}
}

// flush codes what is joined so far.
func (r *runner) flush() {
	if r.run.Count > 0 {
		r.dst, r.end = netproto.AppendHPTCPRun(r.dst, r.run, r.unit, r.end)
		r.run.Count = 0
	}
}

// unitOf is the largest power of two that all these numbers are multiples of.
func unitOf(numbers uint64) uint32 {
	return 1 << min(bits.TrailingZeros64(numbers), 31)
}
