package orbitte

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes/hptcp"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// wide is an engine of so many lanes whose chunks are small, so that small transfers have many pieces.
func wide(lanes int) Config {
	return Config{Lanes: lanes, HPTCP: &HPTCPConfig{ChunkBytes: 512, InFlightBytes: 4096}}
}

// streams is how many data streams to peers each lane has.
func streams(t testing.TB, e *Engine) (list []int64) {
	t.Helper()
	for i := range e.runners {
		list = append(list, gauge(t, e, fmt.Sprintf("HP-TCP peer streams, lane %d", i)).Used)
	}
	return list
}

// teams are submissions that several lanes carry, of 256 KiB in the middle of 512, and one that they do not: its pages overlap.
func teams(p *pair, op Operation) map[string][]Request {
	const at, size = 100 << 10, 256 << 10
	whole := hurried(p.request(op, at, size))
	pages, overlap, rows, spans := whole, whole, whole, whole
	pages.Length, overlap.Length, rows.Length, spans.Length = 0, 0, 0, 0
	pages.Pages, overlap.Pages = &Pages{Size: 1024}, &Pages{Size: 1024}
	for i, n := range rand.New(rand.NewPCG(5, 5)).Perm(size / 1024) {
		pages.Pages.Local, pages.Pages.Remote = append(pages.Pages.Local, uint32(i)), append(pages.Pages.Remote, uint32(n))
		overlap.Pages.Local, overlap.Pages.Remote = append(overlap.Pages.Local, uint32(n/2)), append(overlap.Pages.Remote, uint32(n/2))
	}
	rows.Strides = &Strides{Length: 700, Count: size / 1400, Local: 1400, Remote: 1000}
	for i := range uint64(20) {
		spans.Spans = append(spans.Spans, Span{Local: 13000 * i, Remote: 12000 * i, Length: 11000 - 7*i})
	}
	var neighbours []Request
	for i := range 64 {
		neighbours = append(neighbours, hurried(p.request(op, at+i*size/64, size/64)))
	}
	return map[string][]Request{"one": {whole}, "neighbours": neighbours, "pages": {pages}, "rows": {rows}, "spans": {spans}, "overlap": {overlap}}
}

// moved is what a range should hold after requests between two memories.
func moved(p *pair, requests []Request, to, from []byte) []byte {
	want := bytes.Clone(to)
	for i := range requests {
		r := &requests[i]
		list := []Span{{Length: r.Length}}
		if r.scattered() {
			list = r.expand(nil, 0, 0)
		}
		for _, s := range list {
			l, m := r.Local-p.local.Address()+s.Local, r.Remote-p.remote.Address()+s.Remote
			if r.Operation == Write {
				l, m = m, l
			}
			copy(want[l:][:s.Length], from[m:][:s.Length])
		}
	}
	return want
}

// Lanes share one large transfer: the bytes are exact whatever the layout, every lane has a stream of its own, and it counts
// once. A transfer whose ranges overlap stays with one lane.
//
// proves H-4, H-8
func TestLanesShareALargeTransfer(t *testing.T) {
	for seed := range uint64(3) {
		for _, op := range []Operation{Read, Write} {
			s := newFastSim(t, seed, simkernel.WorldOptions{Buffer: 20000, DelayMax: 30_000}, wide(3), wide(3), 512<<10)
			for name, requests := range teams(s.pair, op) {
				pattern(s.local, 3)
				pattern(s.remote, 9)
				to, from := s.local, s.remote
				if op == Write {
					to, from = from, to
				}
				want, source := moved(s.pair, requests, to.Bytes(), from.Bytes()), bytes.Clone(from.Bytes())
				before := s.requester.Stats().Totals
				report, err := s.requester.SubmitAndWait(soon(t), requests)
				must(t, err)
				if report.Completed != len(requests) || !report.LocallyDrained || !bytes.Equal(to.Bytes(), want) || !bytes.Equal(from.Bytes(), source) {
					t.Fatalf("%v of %s: %+v, or the bytes are wrong", op, name, report)
				}
				after := s.requester.Stats().Totals
				if n, b := after.ReadsDone+after.WritesDone-before.ReadsDone-before.WritesDone, after.BytesRead+after.BytesWritten-before.BytesRead-before.BytesWritten; n != 1 || b != report.Bytes {
					t.Errorf("%v of %s counts as %d with %d bytes, it has %d", op, name, n, b, report.Bytes)
				}
			}
			for i, n := range streams(t, s.requester) {
				if n == 0 {
					t.Errorf("lane %d has no stream", i)
				}
			}
			if s.requester.Stats().Totals.ConflictRetries > 0 {
				t.Error("lanes of one transfer waited for each other's range")
			}
		}
	}
}

// Which transfers lanes share shows in the plan.
func TestSmallAtomicAndOverlappingTransfersStayOnOneLane(t *testing.T) {
	s := newFastSim(t, 1, simkernel.WorldOptions{}, wide(2), wide(2), 512<<10)
	pieces := func(requests ...Request) int {
		g := newGroup(s.requester)
		must(t, g.admit(requests))
		defer func() {
			g.release()
			g.bytes.Repay()
		}()
		return len(g.fast.joints[0].pieces)
	}
	list := teams(s.pair, Read)
	atomic, small := list["one"][0], list["one"][0]
	atomic.Atomic, small.Length = true, piecesMin*512-1
	for name, c := range map[string]struct{ got, want int }{
		"one": {pieces(list["one"]...), 512}, "neighbours": {pieces(list["neighbours"]...), 512}, "pages": {pieces(list["pages"]...), 512},
		"overlap": {pieces(list["overlap"]...), 0}, "atomic": {pieces(atomic), 0}, "small": {pieces(small), 0},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d pieces, want %d", name, c.got, c.want)
		}
	}
}

// A lane that gets no stream, or whose stream never opens, is done without.
//
// proves H-4, U-3
func TestATransferDoesWithoutALaneThatHasNoStream(t *testing.T) {
	for name, c := range map[string]Config{"no slot": {Lanes: 2, HPTCP: &HPTCPConfig{ChunkBytes: 512, Limits: HPTCPLimits{Streams: 2}}}, "no answer": wide(2)} {
		s := newFastSim(t, 1, simkernel.WorldOptions{}, wide(2), c, 512<<10)
		small := hurried(s.request(Read, 0, 100<<10)) // both streams of the first lane
		small.Atomic = true
		_, err := s.requester.SubmitAndWait(soon(t), []Request{small, hurried(s.request(Read, 0, 100))})
		must(t, err)
		if name == "no answer" {
			s.requesterProcess.HangConnects(5)
		} else if s.requester.runners[1].fast == nil {
			t.Fatal("no lane")
		}
		began := s.Now()
		report, err := s.requester.SubmitAndWait(soon(t), teams(s.pair, Read)["one"])
		if err != nil || report.Bytes != 256<<10 || s.Now() > began.After(time.Second) {
			t.Errorf("%s: %+v, %v after %v", name, report, err, time.Duration(s.Now()-began))
		}
	}
}

// Whatever ends a shared transfer early (its caller, its deadline, a broken stream, silence, the source's end) is told with the
// effects that it had, leaves no lane behind with it, and the memory is quiet.
//
// proves G-8, G-3, H-5, T-10
func TestASharedTransferEndsEarlyAsAWhole(t *testing.T) {
	met := map[string]int{}
	for seed := range uint64(240) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { endsEarly(t, seed, met) })
	}
	for _, how := range []string{"cancel", "deadline", "reset", "silence", "source"} {
		if met[how+"false"] < 5 {
			t.Errorf("%s ended %d transfers early: too few, %v", how, met[how+"false"], met)
		}
	}
}

func endsEarly(t *testing.T, seed uint64, met map[string]int) {
	random := rand.New(rand.NewPCG(seed, 8))
	op, how := []Operation{Read, Write}[seed%2], []string{"cancel", "deadline", "reset", "silence", "source"}[seed/2%5]
	s := newFastSim(t, seed, simkernel.WorldOptions{Buffer: 2000 + random.IntN(20000), DelayMax: 30_000}, wide(1+random.IntN(3)), wide(2+random.IntN(2)), 512<<10)
	if random.IntN(2) == 0 { // streams are there already
		_, err := s.requester.SubmitAndWait(soon(t), teams(s.pair, Read)["one"])
		must(t, err)
	}
	pattern(s.local, 3)
	was := [2][]byte{bytes.Clone(s.local.Bytes()), bytes.Clone(s.remote.Bytes())}
	requests := teams(s.pair, op)[[]string{"one", "neighbours", "pages", "spans"}[random.IntN(4)]]
	ctx, at := soon(t), time.Duration(random.Int64N(int64(4*time.Millisecond)))
	switch how {
	case "deadline":
		ctx = s.within(at + 1)
	case "reset":
		for _, c := range s.Connections() {
			c.ResetAfter(simkernel.Direction(random.IntN(2)), c.Bytes(simkernel.ToClient)+random.Uint64N(100<<10))
		}
		s.OnConnect(func(c *simkernel.Connection) {
			c.ResetAfter(simkernel.Direction(random.IntN(2)), random.Uint64N(100<<10))
		})
	case "silence":
		ctx = s.within(20 * time.Millisecond)
		s.Later(at, func() { s.Link(hostA, hostB).BlackHole(true) })
		defer func() { s.Link(hostA, hostB).BlackHole(false) }()
	case "source":
		s.Later(at, s.source.fenceSource)
	}
	b, err := s.requester.Submit(ctx, requests)
	if err != nil { // the deadline has passed
		return
	}
	if how == "cancel" {
		s.Later(at, b.Cancel)
	}
	report, err := b.Wait(soon(t))
	met[how+fmt.Sprint(err == nil)]++
	if !report.LocallyDrained || !s.local.backing.Quiet() {
		t.Fatalf("seed %d, %s: %+v, the memory is not quiet", seed, how, report)
	}
	local := bytes.Clone(s.local.Bytes())
	_ = s.RunUntil(func() bool { return false }, s.Now().After(time.Second)) // what is late comes
	if !bytes.Equal(local, s.local.Bytes()) {
		t.Fatalf("seed %d, %s: %+v, and the local range changed afterwards", seed, how, report)
	}
	effectsAreTrue(t, s, requests, was, report, err, fmt.Sprintf("seed %d, %s, %v", seed, how, err))
	must(t, b.Free())
}

// effectsAreTrue compares what a report says with the bytes.
func effectsAreTrue(t *testing.T, s *simPair, requests []Request, was [2][]byte, report Report, err error, where string) {
	t.Helper()
	from, to, now := was[1], was[0], s.local.Bytes()
	if requests[0].Operation == Write {
		from, to, now = was[0], was[1], s.remote.Bytes()
	}
	done := moved(s.pair, requests[:report.Completed], to, from)
	all := moved(s.pair, requests, to, from)
	changed := false
	for i := range now {
		switch {
		case done[i] != to[i] && now[i] != done[i]:
			t.Fatalf("%s: %+v, and byte %d of a completed request is missing", where, report, i)
		case now[i] != to[i] && now[i] != all[i]:
			t.Fatalf("%s: %+v, and byte %d is from nowhere", where, report, i)
		case now[i] != to[i] && done[i] == to[i]:
			changed = true
		}
	}
	if err == nil && !bytes.Equal(now, all) {
		t.Fatalf("%s: done, and bytes are missing", where)
	}
	if changed && err != nil && max(report.Local, report.Remote) == EffectNone {
		t.Fatalf("%s: %+v, and bytes behind the completed requests have changed", where, report)
	}
	if err == nil {
		return
	}
	begun := moved(s.pair, requests[:report.Failed+1+report.Begun], to, from)
	for i := range now {
		if now[i] != to[i] && now[i] != begun[i] {
			t.Fatalf("%s: %+v, and byte %d of a request behind those that were begun has changed", where, report, i)
		}
	}
}

// A lane that fails ends what the others still have to take, and the failure is told when what was posted has ended: much
// sooner than the whole would have taken.
//
// proves H-5
func TestALaneThatFailsEndsTheOthersEarly(t *testing.T) {
	failed := 0
	took := func(broken int, after uint64) (d time.Duration, err error) {
		s := newFastSim(t, 4, simkernel.WorldOptions{Buffer: 4000, DelayMax: 20_000}, wide(2), wide(2), 512<<10)
		r := teams(s.pair, Read)["one"]
		_, err = s.requester.SubmitAndWait(soon(t), r)
		must(t, err)
		if c := s.Connections(); broken < len(c) {
			c[broken].ResetAfter(simkernel.ToClient, c[broken].Bytes(simkernel.ToClient)+after)
		}
		pattern(s.local, 50)
		was := [2][]byte{bytes.Clone(s.local.Bytes()), bytes.Clone(s.remote.Bytes())}
		began := s.Now()
		report, err := s.requester.SubmitAndWait(soon(t), r)
		effectsAreTrue(t, s, r, was, report, err, fmt.Sprintf("connection %d after %d", broken, after))
		return time.Duration(s.Now() - began), err
	}
	whole, err := took(99, 0)
	must(t, err)
	for i := range 4 {
		for _, after := range []uint64{10, 8 << 10} { // before any payload, and with some in place
			if d, err := took(i, after); err != nil {
				if failed++; d > whole/2 {
					t.Errorf("connection %d broke after %d bytes, and that was told after %v; the whole takes %v", i, after, d, whole)
				}
			}
		}
	}
	if failed < 4 {
		t.Errorf("%d transfers failed, two of each lane should", failed)
	}
	for e := range EffectUnknown + 1 {
		if got := partly(e); got != e && (e != EffectComplete || got != EffectPartial) || e == EffectComplete && got == e {
			t.Errorf("%v of a part is %v of the whole", e, got)
		}
	}
}

// Two that write to each other from the ranges that the other one writes to: each gives its own back when the system has the
// last byte, whichever lane it was that sent it.
//
// proves H-5, M-9
func TestCrossingSharedWritesDoNotWaitForEachOther(t *testing.T) {
	const size = 256 << 10
	c := wide(2)
	c.HPTCP.InFlightBytes = 2 * size // all of it may be with the system before there is any answer
	crossWrites(newSim(t, 11, simkernel.WorldOptions{Buffer: 2 * size}), c, size, false, 5)
}

// How many lanes share a transfer follows what they gain.
//
// proves H-4
func TestLanesThatGainNothingAreLeftOut(t *testing.T) {
	s := newFastSim(t, 2, simkernel.WorldOptions{}, wide(3), wide(3), 512<<10)
	requests := teams(s.pair, Read)["one"]
	small := hurried(s.request(Read, 0, 1))
	_, err := s.requester.SubmitAndWait(soon(t), []Request{small}) // the peer is known to its lane
	must(t, err)
	_ = s.RunUntil(func() bool { return false }, s.Now().After(2*smallFor))
	fast := s.segment.peer.fast
	for n := 0; fast.Width() > 1; n++ {
		if n > 1000 {
			t.Fatalf("%d lanes, though each makes it slower", fast.Width())
		}
		fast.Carried(1<<30, time.Duration(fast.Width())*time.Second)
	}
	_, err = s.requester.SubmitAndWait(soon(t), requests)
	must(t, err)
	if n := streams(t, s.requester); n[1]+n[2] != 0 {
		t.Errorf("streams %v", n)
	}
	for n := 0; fast.Width() < 3; n++ {
		if n > 10000 {
			t.Fatalf("%d lanes, though each makes it faster", fast.Width())
		}
		fast.Carried(1<<30, time.Second/time.Duration(fast.Width()))
	}
	_, err = s.requester.SubmitAndWait(soon(t), requests)
	must(t, err)
	if n := streams(t, s.requester); n[1] == 0 || n[2] == 0 {
		t.Errorf("streams %v", n)
	}
}

// Many callers at once on real kernels, with cancels: run with -race. Nothing is left behind (newEngine looks), and what
// succeeded is exact.
//
// proves H-4, G-8, U-2
func TestSharedTransfersOfManyCallers(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		c.Lanes, c.HPTCP = 3, &HPTCPConfig{ChunkBytes: 4 << 10}
		const each, callers = 512 << 10, 6
		p := newFastPair(t, c, c, callers*each)
		want := bytes.Clone(p.remote.Bytes())
		_, err := p.requester.SubmitAndWait(soon(t), []Request{hurried(p.request(Read, 0, callers*each))})
		must(t, err) // both sides hold the same from here on, whatever is cancelled
		var wait sync.WaitGroup
		for i := range callers {
			wait.Go(func() {
				random := rand.New(rand.NewPCG(uint64(i), 1))
				for n := range 12 {
					r := hurried(p.request([]Operation{Read, Write}[(i+n)%2], i*each, each))
					b, err := p.requester.Submit(soon(t), []Request{r})
					must(t, err)
					if random.IntN(2) == 0 {
						time.Sleep(time.Duration(random.IntN(300)) * time.Microsecond)
						b.Cancel()
					}
					report, err := b.Wait(soon(t))
					if !report.LocallyDrained || err == nil && report.Bytes != each {
						t.Errorf("%+v, %v", report, err)
					}
					must(t, b.Free())
				}
				for { // who cancels half a WRITE takes the stream from others
					_, err := p.requester.SubmitAndWait(soon(t), []Request{hurried(p.request(Read, i*each, each))})
					if err == nil || !errors.Is(err, hptcp.ErrBesides) {
						must(t, err)
						return
					}
				}
			})
		}
		wait.Wait()
		if !bytes.Equal(p.local.Bytes(), want) || !bytes.Equal(p.remote.Bytes(), want) {
			t.Error("bytes are wrong")
		}
	})
}

// While somebody waits for small requests, large transfers keep to one lane; a while later all carry them again.
//
// proves H-7
func TestLargeTransfersKeepToOneLaneBesideSmallRequests(t *testing.T) {
	s := newFastSim(t, 2, simkernel.WorldOptions{}, wide(2), wide(2), 512<<10)
	r := teams(s.pair, Read)
	_, err := s.requester.SubmitAndWait(soon(t), []Request{hurried(s.request(Read, 0, 1))})
	must(t, err)
	_, err = s.requester.SubmitAndWait(soon(t), r["one"])
	must(t, err)
	if n := streams(t, s.requester); n[1] != 0 {
		t.Errorf("streams %v right behind a small request", n)
	}
	_ = s.RunUntil(func() bool { return false }, s.Now().After(2*smallFor))
	_, err = s.requester.SubmitAndWait(soon(t), r["neighbours"]) // many small ones together are a large one
	must(t, err)
	if n := streams(t, s.requester); n[1] == 0 {
		t.Errorf("streams %v long after it", n)
	}
}
