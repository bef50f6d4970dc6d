package orbitte

import (
	"bytes"

	"fmt"
	"math/rand/v2"

	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes/hptcp"

	"github.com/orbitte/orbitte/reactor/simkernel"
)

// newFastSim is a pair over the twin whose source serves all of its memory over HP-TCP.
func newFastSim(t testing.TB, seed uint64, o simkernel.WorldOptions, source, requester Config, size int) *simPair {
	t.Helper()
	s := &simPair{sim: newSim(t, seed, o), pair: &pair{}}
	s.source, s.sourceProcess = s.engine("source", hostA, fast(source))
	s.requester, s.requesterProcess = s.engine("requester", hostB, fast(requester))
	s.remote, s.local = allocated(t, size), allocated(t, size)
	pattern(s.remote, 1)
	s.export = registered(t, s.source, s.remote, ReadWrite, OverHPTCP)
	s.own = registered(t, s.requester, s.local, LocalOnly)
	s.segment = opened(t, s.requester, s.source)
	return s
}

// scatteredOf draws a request of many ranges in the middle of both memories, which do not overlap at the range that is
// written, and says which they are.
func scatteredOf(random *rand.Rand, r Request, size uint64) (Request, []Span) {
	switch random.IntN(3) {
	case 0:
		p := &Pages{Size: 1 + random.Uint64N(300)}
		n := int(size / p.Size)
		local, remote := random.Perm(n), random.Perm(n)
		for i := range 1 + random.IntN(n) {
			p.Local, p.Remote = append(p.Local, uint32(local[i])), append(p.Remote, uint32(remote[i]))
		}
		r.Pages = p
		return r, hptcp.Pages(nil, 0, p.Local, 0, p.Remote, p.Size)
	case 1:
		s := &Strides{Length: 1 + random.Uint64N(100)}
		s.Local, s.Remote = s.Length+random.Uint64N(50), s.Length+random.Uint64N(50)
		s.Count = 1 + random.Uint64N((size-s.Length)/max(s.Local, s.Remote))
		r.Strides = s
		return r, hptcp.Strides(nil, 0, s.Local, 0, s.Remote, s.Length, s.Count)
	}
	for at := random.Uint64N(50); at < size; {
		n := min(1+random.Uint64N(3000), size-at)
		r.Spans = append(r.Spans, Span{Local: at, Remote: at, Length: n})
		at += n + random.Uint64N(200)
	}
	for i := range r.Spans {
		if k := random.IntN(len(r.Spans)); r.Spans[i].Length == r.Spans[k].Length {
			r.Spans[i].Remote, r.Spans[k].Remote = r.Spans[k].Remote, r.Spans[i].Remote
		}
	}
	random.Shuffle(len(r.Spans), func(i, k int) { r.Spans[i], r.Spans[k] = r.Spans[k], r.Spans[i] })
	return r, r.Spans
}

// move does to plain slices what a request is to do.
func move(op Operation, spans []Span, local, remote []byte) (n uint64) {
	for _, s := range spans {
		n += s.Length
		if op == Read {
			copy(local[s.Local:][:s.Length], remote[s.Remote:])
		} else {
			copy(remote[s.Remote:][:s.Length], local[s.Local:])
		}
	}
	return n
}

// Pages, strides and lists move exactly their bytes, both ways, Atomic or not, to a peer and to the engine itself.
//
// proves H-8, H-5
func TestPagesStridesAndListsMoveExactlyTheirBytes(t *testing.T) {
	const seed, size, guard = 17, 200_000, 4099
	random := rand.New(rand.NewPCG(seed, 1))
	own := fast(Config{HPTCP: &HPTCPConfig{ChunkBytes: 9000, Checksums: true}})
	s := newFastSim(t, seed, simkernel.WorldOptions{ChopReceive: 5000, ChopSend: 3000}, Config{}, own, size)
	second := allocated(t, size)
	registered(t, s.requester, second, ReadWrite, OverHPTCP)
	itself, err := s.requester.OpenSegment(soon(t), s.requester.Endpoint(), s.requester.Epoch())
	must(t, err)
	for i := range 120 {
		r, remote := hurried(Request{Operation: Read, Segment: s.segment}), s.remote
		if i%4 == 3 {
			r.Segment, remote = itself, second
		}
		if random.IntN(2) == 0 {
			r.Operation = Write
		}
		r.Local, r.Remote = s.local.Address()+guard, remote.Address()+guard
		r, spans := scatteredOf(random, r, size-2*guard)
		r.Atomic = random.IntN(3) == 0 && (len(spans) == 1 || r.Segment == s.segment && len(spans) < 500)
		pattern(s.local, i)
		pattern(remote, i+1)
		local, there := bytes.Clone(s.local.Bytes()), bytes.Clone(remote.Bytes())
		total := move(r.Operation, spans, local[guard:], there[guard:])
		report, err := s.requester.SubmitAndWait(soon(t), []Request{r})
		if err != nil || report.Bytes != total {
			t.Fatalf("%d, %v of %d ranges, atomic %v: %+v, %v", i, r.Operation, len(spans), r.Atomic, report, err)
		}
		if !bytes.Equal(s.local.Bytes(), local) || !bytes.Equal(remote.Bytes(), there) {
			t.Fatalf("%d, %v of %d ranges: wrong bytes", i, r.Operation, len(spans))
		}
	}
}

// Random batches over HP-TCP and TCP do what their requests do one by one, whatever ranges they share.
//
// proves G-3, H-8
func TestRandomBatchesOverHPTCPDoWhatTheirRequestsDoOneByOne(t *testing.T) {
	const seed, size = 23, 16 << 10
	random := rand.New(rand.NewPCG(seed, 2))
	s := newFastSim(t, seed, simkernel.WorldOptions{ChopReceive: 700, DelayMax: 50_000}, Config{}, Config{HPTCP: &HPTCPConfig{ChunkBytes: 600}}, size)
	for round := range 150 {
		grain := 1 << (4 + random.IntN(9)) // fine: ranges meet often
		pattern(s.local, round)
		pattern(s.remote, round+7)
		local, remote := bytes.Clone(s.local.Bytes()), bytes.Clone(s.remote.Bytes())
		var requests []Request
		for range 1 + random.IntN(12) {
			length := random.IntN(grain + 1)
			at, to := random.IntN(size-length+1), random.IntN(size-length+1)
			if random.IntN(2) == 0 {
				at = to // often neighbours, or twice the same
			}
			r := Request{
				Operation: Read, Transport: TransportHPTCP, Segment: s.segment, Length: uint64(length),
				Local: s.local.Address() + uint64(at), Remote: s.remote.Address() + uint64(to),
			}
			if random.IntN(3) == 0 {
				r.Operation = Write
			}
			if random.IntN(8) == 0 {
				r.Transport = TransportTCP
			}
			requests = append(requests, r)
			move(r.Operation, []Span{{Local: uint64(at), Remote: uint64(to), Length: r.Length}}, local, remote)
		}
		if report, err := s.requester.SubmitAndWait(soon(t), requests); err != nil || report.Completed != len(requests) {
			t.Fatalf("round %d: %+v, %v", round, report, err)
		}
		if !bytes.Equal(s.local.Bytes(), local) || !bytes.Equal(s.remote.Bytes(), remote) {
			t.Fatalf("round %d of %d requests: not what they do one by one", round, len(requests))
		}
	}
}

// Pages that stand next to each other in a batch are few requests on the wire, not one each.
//
// proves H-8
func TestPagesOfABatchTravelTogether(t *testing.T) {
	const pages, page = 1024, 512
	s := newFastSim(t, 1, simkernel.WorldOptions{}, Config{}, Config{}, pages*page)
	random := rand.New(rand.NewPCG(1, 1))
	var requests []Request
	for i, k := range random.Perm(pages) {
		requests = append(requests, hurried(s.request(Read, 0, page)))
		requests[i].Local += uint64(k * page)
		requests[i].Remote += uint64((k*7 + 3) % pages * page)
	}
	before := s.requester.Stats().HPTCP.Requests
	report, err := s.requester.SubmitAndWait(soon(t), requests)
	must(t, err)
	if n := s.requester.Stats().HPTCP.Requests - before; n > 3 || report.Completed != pages {
		t.Errorf("%d requests on the wire, %+v", n, report)
	}
	for k := range pages {
		if !bytes.Equal(s.local.Bytes()[k*page:][:page], s.remote.Bytes()[(k*7+3)%pages*page:][:page]) {
			t.Fatalf("page %d is another one", k)
		}
	}
}

// A batch whose stream ends anywhere in it: what the report counts as completed is in place, what it does not name has not
// changed, and the effects are told for the rest.
//
// proves G-3, H-5, B-1
func TestAFailedBatchTellsItsPrefixAndWhatWasBegun(t *testing.T) {
	const count, each = 24, 1000
	var seen struct{ prefix, begun, skipped int }
	for seed := range uint64(120) {
		random := rand.New(rand.NewPCG(seed, 3))
		s := newFastSim(t, seed, simkernel.WorldOptions{Buffer: 2000 + random.IntN(20_000), DelayMax: 30_000}, Config{}, Config{HPTCP: &HPTCPConfig{ChunkBytes: 700 + random.Uint64N(4000), InFlightBytes: 5000}}, 2*count*each)
		op := []Operation{Read, Write}[seed%2]
		pattern(s.local, 3)
		was := [2][]byte{bytes.Clone(s.local.Bytes()), bytes.Clone(s.remote.Bytes())}
		from, to, now := was[1], was[0], s.local
		if op == Write {
			from, to, now = was[0], was[1], s.remote
		}
		var requests []Request
		for _, k := range random.Perm(count) {
			requests = append(requests, hurried(s.request(op, 2*k*each, each)))
		}
		direction, after := simkernel.Direction(random.IntN(2)), random.Uint64N(count*each*11/10)
		s.OnConnect(func(c *simkernel.Connection) { c.ResetAfter(direction, after) })
		b, err := s.requester.Submit(soon(t), requests)
		must(t, err)
		report, err := b.Wait(soon(t))
		_ = s.RunUntil(func() bool { return false }, s.Now().After(10*time.Second)) // what is late at the source has come
		for i, r := range requests {
			at := r.Local - s.local.Address()
			held, want, old := now.Bytes()[at:][:each], from[at:][:each], to[at:][:each]
			state, n, failed := b.Task(i)
			switch {
			case i < report.Completed:
				if !bytes.Equal(held, want) || state != TaskSucceeded || n != each || failed != nil {
					t.Fatalf("seed %d: request %d of %d completed ones: %v %d %v", seed, i, report.Completed, state, n, failed)
				}
			case i == report.Failed || i <= report.Failed+report.Begun:
				if state != TaskFailed || failed == nil {
					t.Fatalf("seed %d: request %d of %+v is %v, %v", seed, i, report, state, failed)
				}
				if max(report.Local, report.Remote) == EffectNone && !bytes.Equal(held, old) {
					t.Fatalf("seed %d: request %d has changed, and the report says not: %+v", seed, i, report)
				}
			case state != TaskSkipped || !bytes.Equal(held, old):
				t.Fatalf("seed %d: request %d behind %+v is %v and changed", seed, i, report, state)
			default:
				seen.skipped++
			}
		}
		if err != nil {
			seen.prefix, seen.begun = seen.prefix+report.Completed, seen.begun+report.Begun
			if report.Bytes != uint64(report.Completed*each) || !report.LocallyDrained {
				t.Fatalf("seed %d: %+v", seed, report)
			}
		}
		must(t, b.Free())
	}
	if seen.prefix == 0 || seen.begun == 0 || seen.skipped == 0 {
		t.Errorf("the cases were not met: %+v", seen)
	}
}

// proves G-4, H-6, U-3
func TestHPTCPPreflightNamesWhatIsMissing(t *testing.T) {
	s := newFastSim(t, 2, simkernel.WorldOptions{}, Config{}, Config{}, 64<<10)
	plain := allocated(t, 4096)
	closed := registered(t, s.source, plain, ReadWrite)
	must(t, s.segment.Refresh(soon(t)))
	good := hurried(s.request(Read, 0, 4096))
	without, _ := s.engine("without", hostC, Config{})
	lone, err := s.requester.OpenSegment(soon(t), without.Endpoint(), without.Epoch())
	must(t, err)
	change := func(f func(*Request)) Request {
		r := good
		f(&r)
		return r
	}
	scattered := func(f func(*Request)) Request {
		return change(func(r *Request) { r.Length = 0; f(r) })
	}
	for name, c := range map[string]struct {
		request Request
		class   error
		says    string
	}{
		"peer without":     {change(func(r *Request) { r.Segment = lone }), ErrUnavailable, "the peer publishes no HP-TCP"},
		"region without":   {change(func(r *Request) { r.Remote = plain.Address() }), ErrUnavailable, fmt.Sprintf("region %d is not registered for HP-TCP", closed.ID())},
		"atomic over TCP":  {change(func(r *Request) { r.Transport, r.Atomic = TransportTCP, true }), ErrInvalid, "Atomic request is for"},
		"pages over TCP":   {scattered(func(r *Request) { r.Transport, r.Pages = TransportTCP, &Pages{Size: 1} }), ErrInvalid, "are for TransportHPTCP"},
		"two layouts":      {scattered(func(r *Request) { r.Pages, r.Strides = &Pages{Size: 1}, &Strides{} }), ErrInvalid, "at most one"},
		"page size":        {scattered(func(r *Request) { r.Pages = &Pages{} }), ErrInvalid, "Pages needs"},
		"unequal lists":    {scattered(func(r *Request) { r.Pages = &Pages{Size: 1, Local: []uint32{1}} }), ErrInvalid, "Pages needs"},
		"empty rows":       {scattered(func(r *Request) { r.Strides = &Strides{Count: 2} }), ErrInvalid, "Strides needs"},
		"empty span":       {scattered(func(r *Request) { r.Spans = []Span{{}} }), ErrInvalid, "no bytes"},
		"another length":   {change(func(r *Request) { r.Spans = []Span{{Length: 3}} }), ErrInvalid, "leave it zero"},
		"wrapping pages":   {scattered(func(r *Request) { r.Pages = &Pages{Size: 1 << 40, Local: []uint32{1 << 30}, Remote: []uint32{0}} }), ErrInvalid, "beyond the end"},
		"wrapping rows":    {scattered(func(r *Request) { r.Strides = &Strides{Length: 1, Count: 1 << 40, Local: 1 << 40} }), ErrInvalid, "beyond the end"},
		"wrapping span":    {scattered(func(r *Request) { r.Spans = []Span{{Local: ^uint64(0), Length: 2}} }), ErrInvalid, "beyond the end"},
		"beyond local":     {scattered(func(r *Request) { r.Pages = &Pages{Size: 4096, Local: []uint32{16}, Remote: []uint32{0}} }), ErrUncovered, ""},
		"beyond remote":    {scattered(func(r *Request) { r.Pages = &Pages{Size: 4096, Local: []uint32{0}, Remote: []uint32{16}} }), ErrUnknownRegion, ""},
		"too many rows":    {scattered(func(r *Request) { r.Strides = &Strides{Length: 1, Count: requestRangesMax + 1} }), ErrExhausted, "ranges of one submission"},
		"atomic too long":  {change(func(r *Request) { r.Atomic, r.Length = true, 8<<20+1 }), ErrExhausted, "one payload"},
		"bytes in flight":  {scattered(func(r *Request) { r.Strides = &Strides{Length: 64 << 10, Count: 1025} }), ErrExhausted, "requester bytes in flight"},
		"local permission": {change(func(r *Request) { r.Local = 1 << 40 }), ErrUncovered, ""},
	} {
		before := s.requester.Stats().HPTCP.Requests
		report, err := s.requester.SubmitAndWait(soon(t), []Request{good, c.request})
		own := wants(t, err, c.class)
		if text := own.Error(); !bytes.Contains([]byte(text), []byte(c.says)) || report.Completed != 0 || !report.LocallyDrained {
			t.Errorf("%s: %v, %+v", name, text, report)
		}
		if s.requester.Stats().HPTCP.Requests != before {
			t.Errorf("%s: something was sent", name)
		}
	}
	_, err = s.segment.Path(Read, TransportHPTCP)
	must(t, err)
	_, err = lone.Path(Read, TransportHPTCP)
	wants(t, err, ErrUnavailable)
	_, err = without.Register(plain, 0, 4096, ReadWrite, OverHPTCP)
	wants(t, err, ErrUnavailable)
	must(t, s.requester.CloseSegment(soon(t), lone))
}

// Two submissions of many ranges each fit the limit alone, and one submission of both does not.
//
// proves U-3
func TestRangesOfASubmissionAreBounded(t *testing.T) {
	s := newFastSim(t, 3, simkernel.WorldOptions{}, Config{}, Config{}, 4096)
	rows := hurried(s.request(Read, 0, 0))
	rows.Strides = &Strides{Length: 1, Count: requestRangesMax/2 + 1}
	_, err := s.requester.SubmitAndWait(soon(t), []Request{rows, rows})
	if own := wants(t, err, ErrExhausted); own.Index != 1 {
		t.Errorf("index %d: %v", own.Index, err)
	}
}

// Marks of many pages take no allocation for each, and a whole submission none but a few.
//
// proves H-8, L-6
func TestPagesAllocateNothingEach(t *testing.T) {
	const pages, page = 20_000, 64
	s := newFastSim(t, 4, simkernel.WorldOptions{Buffer: 4 << 20}, Config{}, Config{}, pages*page)
	r := hurried(s.request(Read, 0, 0))
	r.Pages = &Pages{Size: page}
	for i, k := range rand.New(rand.NewPCG(1, 1)).Perm(pages) {
		r.Pages.Local, r.Pages.Remote = append(r.Pages.Local, uint32(k)), append(r.Pages.Remote, uint32(i*7%pages))
	}
	requests := []Request{r}
	ctx := soon(t)
	n := testing.AllocsPerRun(3, func() {
		if _, err := s.requester.SubmitAndWait(ctx, requests); err != nil {
			t.Error(err)
		}
	})
	if n > pages/20 { // the twin allocates for each packet
		t.Errorf("%v allocations for %d pages", n, pages)
	}
	t.Logf("%v allocations", n)
}

// BenchmarkPagesAdmitted is what the engine does for each page before anything is sent: check, expand, sort, mark.
func BenchmarkPagesAdmitted(b *testing.B) {
	const pages, page = 120_000, 4096
	e := newEngine(b, fast(Config{Lanes: 1, Limits: Limits{SubmittedBytes: 1 << 30}}))
	source := newEngine(b, fast(Config{Lanes: 1}))
	m, far := allocated(b, pages*page), allocated(b, pages*page)
	registered(b, e, m, ReadWrite)
	registered(b, source, far, ReadWrite, OverHPTCP)
	itself := opened(b, e, source)
	r := Request{Operation: Read, Transport: TransportHPTCP, Segment: itself, Local: m.Address(), Remote: far.Address(), Pages: &Pages{Size: page}}
	for i, k := range rand.New(rand.NewPCG(1, 1)).Perm(pages) {
		r.Pages.Local, r.Pages.Remote = append(r.Pages.Local, uint32(k)), append(r.Pages.Remote, uint32(i))
	}
	g := newGroup(e)
	b.ReportAllocs()
	for b.Loop() {
		must(b, g.admit([]Request{r}))
		g.release()
		g.bytes.Repay()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/pages, "ns/page")
}

// A page that is named twice on the side that changes has one of its contents afterwards, with checksums as well: they tell
// wrong bytes from the second of two contents.
//
// proves H-8, H-9
func TestPagesNamedTwiceMatchTheirChecksums(t *testing.T) {
	c := Config{Kernel: Epoll, Lanes: 1, HPTCP: &HPTCPConfig{Checksums: true}}
	source, requester := newEngine(t, c), newEngine(t, c)
	far, near := allocated(t, 16*4096), allocated(t, 16*4096)
	registered(t, source, far, ReadWrite, OverHPTCP)
	registered(t, requester, near, LocalOnly)
	segment := opened(t, requester, source)
	for _, op := range []Operation{Read, Write} {
		pattern(far, 1)
		pattern(near, 2)
		from, to := far, near
		if op == Write {
			from, to = near, far
		}
		want := bytes.Clone(to.Bytes())
		for i, n := range []int{1, 5, 1, 7} {
			copy(want[n*4096:], from.Bytes()[(10+i)*4096:][:4096])
		}
		p := &Pages{Size: 4096, Local: []uint32{1, 5, 1, 7}, Remote: []uint32{10, 11, 12, 13}}
		if op == Write {
			p.Local, p.Remote = p.Remote, p.Local
		}
		_, err := requester.SubmitAndWait(soon(t), []Request{{Operation: op, Transport: TransportHPTCP, Segment: segment, Local: near.Address(), Remote: far.Address(), Pages: p}})
		must(t, err)
		first := bytes.Clone(want)
		copy(first[4096:], from.Bytes()[10*4096:][:4096])
		if got := to.Bytes(); !bytes.Equal(got, want) && !bytes.Equal(got, first) {
			t.Errorf("%v: other bytes", op)
		}
	}
	if s := source.Stats().HPTCP.Mismatches + requester.Stats().HPTCP.Mismatches; s != 0 {
		t.Errorf("%d mismatches", s)
	}
}
