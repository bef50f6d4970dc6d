package orbitte

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes/hptcp"
	"github.com/orbitte/orbitte/segments"
)

// Pages says that a request moves pages of one size, in random order if need be: page Remote[i] behind Request.Remote and
// page Local[i] behind Request.Local belong together. The lists have one length and stay unchanged until the submission
// was admitted. Where a page is named twice on the side that changes, it holds one of its contents afterwards.
type Pages struct {
	Size          uint64 // bytes of one page
	Local, Remote []uint32
}

// Strides says that a request moves Count rows of Length bytes: the first at Request.Local and Request.Remote, each
// so many bytes behind the one before.
type Strides struct {
	Length, Count uint64
	Local, Remote uint64 // distances, from first byte to first byte
}

// Span says that a request moves Length bytes, one of many ranges: Local bytes behind Request.Local and Remote bytes
// behind Request.Remote.
type Span = hptcp.Span

const (
	// requestRangesMax bounds the ranges of one submission's Pages, Strides and Spans. Each costs the engine 24 to 60 bytes
	// while it is under way.
	requestRangesMax = 1 << 20
	requestBytesMax  = 1 << 62
	rangesBudget     = "ranges of one submission"
)

var (
	errLayouts    = errors.New("a request has at most one of Pages, Strides and Spans")
	errLayoutElse = errors.New("Pages, Strides and Spans are for TransportHPTCP")
	errPages      = errors.New("Pages needs a size, and as many local as remote pages")
	errStrides    = errors.New("Strides needs rows of at least one byte")
	errSpanEmpty  = errors.New("a span has no bytes")
	errWrap       = errors.New("the ranges have more bytes than any memory, or go beyond the end of the address space")
)

// extents is what a request with many ranges reaches on both sides: from the lowest to the highest byte, behind the
// request's addresses.
type extents struct {
	local, remote         uint64 // where the lowest byte is
	localSize, remoteSize uint64
	bytes                 uint64
	count                 int
}

// scattered is true exactly when a request names many ranges.
func (r *Request) scattered() bool { return r.Pages != nil || r.Strides != nil || r.Spans != nil }

// extents looks at all ranges of a request; the error wraps ErrInvalid or ErrExhausted.
func (r *Request) extents() (x extents, err error) {
	switch {
	case r.Pages != nil && (r.Strides != nil || r.Spans != nil), r.Strides != nil && r.Spans != nil:
		err = errLayouts
	case r.Pages != nil:
		x, err = r.Pages.extents()
	case r.Strides != nil:
		x, err = r.Strides.extents()
	default:
		x, err = spanExtents(r.Spans)
	}
	switch {
	case err == nil && x.count > requestRangesMax:
		return x, tooManyRanges(x.count, 0)
	case err == nil && (x.local > ^r.Local || x.remote > ^r.Remote || x.bytes > requestBytesMax):
		err = errWrap
	case err == nil && r.Length != 0 && r.Length != x.bytes:
		err = fmt.Errorf("Length is %d, but the ranges have %d bytes; leave it zero", r.Length, x.bytes)
	}
	if err != nil {
		return x, &Error{Class: ErrInvalid, Cause: err}
	}
	return x, nil
}

func tooManyRanges(asked, used int) error {
	return &budgets.Exhausted{Budget: rangesBudget, Unit: "ranges", Asked: int64(asked), Used: int64(used), Limit: requestRangesMax}
}

func (p *Pages) extents() (x extents, err error) {
	if p.Size == 0 || len(p.Local) != len(p.Remote) {
		return x, errPages
	}
	if len(p.Local) == 0 {
		return x, nil
	}
	x.count = len(p.Local)
	var wraps [3]bool
	x.local, x.localSize, wraps[0] = p.reach(p.Local)
	x.remote, x.remoteSize, wraps[1] = p.reach(p.Remote)
	x.bytes, wraps[2] = product(p.Size, uint64(x.count))
	if wraps[0] || wraps[1] || wraps[2] {
		return x, errWrap
	}
	return x, nil
}

// reach is where the lowest page begins, and how far it is from there to the end of the highest one.
func (p *Pages) reach(pages []uint32) (start, size uint64, wraps bool) {
	low, high := pages[0], pages[0]
	for _, n := range pages {
		low, high = min(low, n), max(high, n)
	}
	end, wraps := product(p.Size, uint64(high)+1)
	start = p.Size * uint64(low)
	return start, end - start, wraps
}

func (s *Strides) extents() (x extents, err error) {
	if s.Count == 0 {
		return x, nil
	}
	if s.Length == 0 {
		return x, errStrides
	}
	x.count = int(min(s.Count, requestRangesMax+1))
	local, wrapsLocal := product(s.Count-1, s.Local)
	remote, wrapsRemote := product(s.Count-1, s.Remote)
	bytes, wraps := product(s.Count, s.Length)
	x.localSize, x.remoteSize, x.bytes = local+s.Length, remote+s.Length, bytes
	if wraps || wrapsLocal || wrapsRemote || x.localSize < local || x.remoteSize < remote {
		return x, errWrap
	}
	return x, nil
}

func spanExtents(spans []Span) (x extents, err error) {
	if len(spans) == 0 {
		return x, nil
	}
	x.count = len(spans)
	x.local, x.remote = spans[0].Local, spans[0].Remote
	endLocal, endRemote := uint64(0), uint64(0)
	for i := range spans {
		s := &spans[i]
		switch {
		case s.Length == 0:
			return x, errSpanEmpty
		case s.Length > ^s.Local || s.Length > ^s.Remote || s.Length > ^x.bytes:
			return x, errWrap
		}
		x.local, x.remote = min(x.local, s.Local), min(x.remote, s.Remote)
		endLocal, endRemote = max(endLocal, s.Local+s.Length), max(endRemote, s.Remote+s.Length)
		x.bytes += s.Length
	}
	x.localSize, x.remoteSize = endLocal-x.local, endRemote-x.remote
	return x, nil
}

// stray names the first of many ranges that no registration covers even by itself; err, which is about all of them, if
// there is none. A failure may take its time.
func (r *Request) stray(err error, side string, covers func(address, length uint64) error, base uint64) error {
	for i := range r.ranges() {
		s, what := Span{}, "span"
		switch {
		case r.Pages != nil:
			s = Span{Local: r.Pages.Size * uint64(r.Pages.Local[i]), Remote: r.Pages.Size * uint64(r.Pages.Remote[i]), Length: r.Pages.Size}
			number := r.Pages.Local[i]
			if side == "remote" {
				number = r.Pages.Remote[i]
			}
			what = fmt.Sprintf("page %d, at index", number)
		case r.Strides != nil:
			s = Span{Local: r.Strides.Local * uint64(i), Remote: r.Strides.Remote * uint64(i), Length: r.Strides.Length}
			what = "row"
		default:
			s = r.Spans[i]
		}
		offset := s.Local
		if side == "remote" {
			offset = s.Remote
		}
		if alone := covers(base+offset, s.Length); alone != nil {
			return fmt.Errorf("%s %s %d: %w", side, what, i, alone)
		}
	}
	return err
}

// covers says whether a region of the peer has all of a range.
func (s *Segment) covers(address, length uint64) error {
	_, _, err := s.view().Cover(address, length)
	return err
}

// leaves is true exactly when what is not covered begins in a region of the peer: it goes beyond that one's end.
func (s *Segment) leaves(err error) bool {
	var missed *segments.Uncovered
	return errors.As(err, &missed) && missed.Asked.Length > 0 && s.covers(missed.Asked.Start, 1) == nil
}

const leavingRemedy = "let each request lie in one region (Segment.Regions shows them); if the peer may have registered the whole range since, refresh the segment first"

// covers says whether a registration of the engine has all of a range.
func (e *Engine) covers(address, length uint64) error {
	r, err := e.tracker.Borrow(address, length)
	if err == nil {
		r.Return()
	}
	return err
}

// product multiplies, and says whether the result wraps.
func product(a, b uint64) (uint64, bool) {
	high, low := bits.Mul64(a, b)
	return low, high != 0
}

// expand appends the request's ranges, relative to the two registrations; local and remote say where the request's
// addresses are in them, which may be before their beginning. Neighbours become one.
func (r *Request) expand(dst []Span, local, remote uint64) []Span {
	switch {
	case r.Pages != nil:
		return hptcp.Pages(dst, local, r.Pages.Local, remote, r.Pages.Remote, r.Pages.Size)
	case r.Strides != nil:
		return hptcp.Strides(dst, local, r.Strides.Local, remote, r.Strides.Remote, r.Strides.Length, r.Strides.Count)
	}
	for _, s := range r.Spans {
		dst = hptcp.Join(dst, Span{Local: local + s.Local, Remote: remote + s.Remote, Length: s.Length})
	}
	return dst
}
