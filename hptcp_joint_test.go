package orbitte

import (
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/orbitte/orbitte/reactor/simkernel"
)

// planned says which tasks share a transfer: "0-2 3 4-5".
func planned(t *testing.T, e *Engine, requests []Request) (text string) {
	t.Helper()
	g := newGroup(e)
	must(t, g.admit(requests))
	defer func() {
		g.release()
		g.bytes.Repay()
	}()
	for _, j := range g.fast.joints[:g.fast.used] {
		if text != "" {
			text += " "
		}
		if text += fmt.Sprint(j.first); j.count > 1 {
			text += fmt.Sprint("-", j.first+j.count-1)
		}
	}
	return text
}

// Neighbours share a transfer exactly when whatever order their pieces come in is as good as theirs.
//
// proves G-3, H-8
func TestOnlyRequestsThatDoNotDependOnEachOtherTravelTogether(t *testing.T) {
	s := newFastSim(t, 1, simkernel.WorldOptions{}, Config{}, Config{}, 64<<10)
	other := allocated(t, 4096)
	registered(t, s.source, other, ReadWrite, OverHPTCP)
	registered(t, s.requester, s.remote, ReadWrite) // one process, one memory: local range and source
	must(t, s.segment.Refresh(soon(t)))
	itself, err := s.requester.OpenSegment(soon(t), s.requester.Endpoint(), s.requester.Epoch())
	must(t, err)
	page := func(op Operation, local, remote int, change ...func(*Request)) Request {
		r := hurried(s.request(op, 0, 100))
		r.Local += uint64(local * 100)
		r.Remote += uint64(remote * 100)
		for _, f := range change {
			f(&r)
		}
		return r
	}
	atomic := func(r *Request) { r.Atomic = true }
	tcp := func(r *Request) { r.Transport = TransportTCP }
	empty := func(r *Request) { r.Length = 0 }
	elsewhere := func(r *Request) { r.Remote = other.Address() }
	own := func(r *Request) { r.Segment = itself }
	pages := func(r *Request) {
		r.Length, r.Pages = 0, &Pages{Size: 10, Local: []uint32{7, 3}, Remote: []uint32{0, 9}}
	}
	within := func(r *Request) { r.Local += s.remote.Address() - s.local.Address() }
	for _, c := range []struct {
		what, want string
		requests   []Request
	}{
		{"neighbours", "0-2", []Request{page(Read, 0, 0), page(Read, 1, 1), page(Read, 2, 2)}},
		{"in any order", "0-3", []Request{page(Write, 3, 0), page(Write, 1, 9), page(Write, 0, 5), page(Write, 0, 2)}},
		{"the same bytes read", "0-2", []Request{page(Read, 0, 5), page(Read, 1, 5), page(Read, 2, 5)}},
		{"the same bytes changed here", "0-1 2-3", []Request{page(Read, 0, 0), page(Read, 1, 1), page(Read, 1, 2), page(Read, 2, 2)}},
		{"the same bytes changed there", "0-1 2-3", []Request{page(Write, 0, 7), page(Write, 1, 1), page(Write, 1, 7), page(Write, 2, 2)}},
		{"again and again", "0 1 2", []Request{page(Read, 4, 0), page(Read, 4, 1), page(Read, 4, 2)}},
		{"partly", "0 1", []Request{page(Read, 4, 0), page(Read, 4, 1, func(r *Request) { r.Local += 99 })}},
		{"the middle of a long one", "0 1", []Request{page(Read, 0, 0, func(r *Request) { r.Length = 1000 }), page(Read, 3, 40)}},
		{"both directions", "0 1 2", []Request{page(Read, 0, 0), page(Write, 1, 1), page(Read, 2, 2)}},
		{"two regions", "0 1 2", []Request{page(Read, 0, 0), page(Read, 1, 0, elsewhere), page(Read, 2, 2)}},
		{"Atomic", "0 1 2", []Request{page(Read, 0, 0), page(Read, 1, 1, atomic), page(Read, 2, 2)}},
		{"TCP between", "0 2", []Request{page(Read, 0, 0), page(Read, 1, 1, tcp), page(Read, 2, 2)}},
		{"empty ones", "0 1 2", []Request{page(Read, 0, 0), page(Read, 1, 1, empty), page(Read, 2, 2)}},
		{"the engine itself", "0 1", []Request{page(Read, 0, 0, own, within, func(r *Request) { r.Remote += 1000 }), page(Read, 1, 1, own, within, func(r *Request) { r.Remote += 1000 })}},
		{"pages beside a range", "0-1", []Request{page(Read, 0, 0, pages), page(Read, 1, 1)}},
		{"memory of both", "0 1", []Request{page(Read, 0, 5, within), page(Read, 1, 0, within)}},
	} {
		if got := planned(t, s.requester, c.requests); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

// A submission's lists are made in the size that they need: one that grows is copied again and again.
//
// proves H-8
func TestListsOfManyPagesAreMadeOnce(t *testing.T) {
	s := newFastSim(t, 1, simkernel.WorldOptions{}, Config{}, Config{}, 4<<20)
	const few, many, each = 10, 10_000, 64 // each page takes so many bytes at most (requestRangesMax)
	made := func(pages, apart uint32) (allocations, bytes uint64) {
		r := hurried(s.request(Read, 0, 0))
		r.Pages = &Pages{Size: 1}
		for i := range pages {
			r.Pages.Local = append(r.Pages.Local, (i*7919%pages)*apart)
			r.Pages.Remote = append(r.Pages.Remote, i*2)
		}
		allocations, bytes = math.MaxUint64, math.MaxUint64
		for range 10 { // the least counts: others allocate meanwhile
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			g := newGroup(s.requester)
			must(t, g.admit([]Request{r}))
			runtime.ReadMemStats(&after)
			g.release()
			g.bytes.Repay()
			allocations, bytes = min(allocations, after.Mallocs-before.Mallocs), min(bytes, after.TotalAlloc-before.TotalAlloc)
		}
		return allocations, bytes
	}
	for _, apart := range []uint32{1, 400} { // sorted by a bit for each, and by their numbers
		least, _ := made(few, apart)
		if n, bytes := made(many, apart); n > least+2 || bytes > many*each && !raceEnabled {
			t.Errorf("%d pages %d apart take %d allocations, %d take %d, of %d bytes", few, apart, least, many, n, bytes)
		}
	}
}
