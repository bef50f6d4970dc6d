package hptcp

import (
	"bytes"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
)

// apply does to plain slices what a transfer is to do.
func apply(d lanes.Direction, spans []Span, local, remote []byte) {
	for _, s := range spans {
		if d == lanes.Read {
			copy(local[s.Local:][:s.Length], remote[s.Remote:])
		} else {
			copy(remote[s.Remote:][:s.Length], local[s.Local:])
		}
	}
}

// spansOf draws lists, pages or strides that do not overlap at the range that is written.
func spansOf(random *rand.Rand, length uint64) (spans []Span) {
	switch random.IntN(3) {
	case 0: // a list of odd pieces, in any order at the other side
		for at := random.Uint64N(50); at < length; {
			size := min(1+random.Uint64N(3000), length-at)
			spans = append(spans, Span{at, at, size})
			at += size + random.Uint64N(3)*random.Uint64N(500)
		}
		for i := range spans {
			k := random.IntN(len(spans))
			if spans[i].Length == spans[k].Length {
				spans[i].Remote, spans[k].Remote = spans[k].Remote, spans[i].Remote
			}
		}
		random.Shuffle(len(spans), func(i, k int) { spans[i], spans[k] = spans[k], spans[i] })
	case 1:
		const page = 256
		n := length / page
		local, remote := random.Perm(int(n)), random.Perm(int(n))
		take := 1 + random.IntN(int(n))
		var a, b []uint32
		for i := range take {
			a, b = append(a, uint32(local[i])), append(b, uint32(remote[i]))
		}
		spans = Pages(nil, 0, a, 0, b, page)
	default:
		stride := 2 + random.Uint64N(600)
		spans = Strides(nil, 3, stride, 5, stride+1, 1+random.Uint64N(stride), (length-10)/(stride+1))
	}
	return spans
}

func total(spans []Span) (n uint64) {
	for _, s := range spans {
		n += s.Length
	}
	return n
}

// setOf is the set of a transfer's local ranges, made by its owner.
func setOf(t testing.TB, r *segments.Registration, spans []Span) *segments.Set {
	t.Helper()
	var ranges []segments.Range
	for _, s := range spans {
		ranges = append(ranges, segments.Range{Start: s.Local, Length: s.Length})
	}
	set := &segments.Set{}
	must(t, set.Fill(r, ranges))
	return set
}

// Lists, pages and strides move exactly their bytes, whatever the order, both ways, Atomic or not, with and without
// checksums, over one stream and over several, in calls of any size.
//
// proves H-8, H-4, H-5
func TestRangesMoveExactlyTheirBytes(t *testing.T) {
	const seed, length = 21, 200_000
	t.Logf("SEED=%d; replay: go test -run TestRangesMoveExactlyTheirBytes ./lanes/hptcp", seed)
	mappings(t)
	random := rand.New(rand.NewPCG(seed, 8))
	for round := range 10 {
		config := Config{ChunkBytes: 1 + random.Uint64N(40_000), InFlightBytes: 60_000, Checksums: round%3 == 0, StreamsMax: 1 + round%4}
		r := newRig(t, uint64(round), simkernel.WorldOptions{ChopReceive: 5000 * (round % 2), ChopSend: 3000 * (round % 2)})
		source, requester, peer := r.pair(setup{config: config}, setup{config: config})
		peer.spread.count = min(1+round%3, peer.spread.limit)
		remote, local := source.register(length, netproto.ReadWrite, 1), requester.register(length, netproto.LocalOnly, 2)
		for range 12 {
			a := requester.ask(lanes.Read, local, remote.ID())
			if random.IntN(2) == 0 {
				a.Direction = lanes.Write
			}
			a.Spans = spansOf(random, length)
			a.Length, a.Atomic, a.Deadline = total(a.Spans), random.IntN(4) == 0, reactor.Forever
			if random.IntN(2) == 0 {
				a.Set = setOf(t, local.Registration, a.Spans)
			}
			wantLocal, wantRemote := bytes.Clone(local.bytes()), bytes.Clone(remote.bytes())
			apply(a.Direction, a.Spans, wantLocal, wantRemote)
			o := r.wait(a.start(peer))
			if o.Err != nil || o.Bytes != a.Length {
				t.Fatalf("round %d, %v of %d spans: %+v", round, a.Direction, len(a.Spans), o)
			}
			if !bytes.Equal(local.bytes(), wantLocal) || !bytes.Equal(remote.bytes(), wantRemote) {
				t.Fatalf("round %d, %v of %d spans, chunk %d: wrong bytes", round, a.Direction, len(a.Spans), config.ChunkBytes)
			}
		}
		r.finish()
	}
}

// proves G-2
func TestSpansThatDoNotFitAreRefusedAtOnce(t *testing.T) {
	mappings(t)
	r := newRig(t, 1, simkernel.WorldOptions{})
	source, requester, peer := r.pair(setup{}, setup{})
	remote, local := source.register(64, netproto.ReadWrite, 1), requester.register(64, netproto.LocalOnly, 2)
	for what, spans := range map[string][]Span{
		"beyond": {{0, 0, 32}, {33, 33, 32}}, "empty": {{0, 0, 0}, {0, 0, 64}}, "too few": {{0, 0, 63}}, "too many": {{0, 0, 60}, {60, 60, 5}},
		"remote overflow": {{0, 1<<64 - 60, 64}},
	} {
		a := requester.ask(lanes.Read, local, remote.ID())
		a.Spans = spans
		if f := fault(t, r.wait(a.start(peer))); f.Status != netproto.StatusInvalidRange || f.Stage != "start" {
			t.Errorf("%s: %+v", what, f)
		}
	}
	if n := peer.Streams(); n != 0 {
		t.Errorf("%d streams were opened for it", n)
	}
	r.finish()
}

// The runs of one request fit into a frame, however far apart the ranges are.
//
// proves H-8
func TestRunsOfOneRequestFitItsFrame(t *testing.T) {
	const seed = 3
	t.Logf("SEED=%d; replay: go test -run TestRunsOfOneRequestFitItsFrame ./lanes/hptcp", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	a := &Transfer{}
	for range 20_000 {
		a.Spans = append(a.Spans, Span{0, random.Uint64() >> 4 >> random.IntN(50), 1 + random.Uint64N(1<<14)})
	}
	a.Length = total(a.Spans)
	largest := 0
	for a.asked < a.Length {
		x := part{at: a.at}
		x.length = a.cut(min(payloadMax, a.Length-a.asked))
		if x.length == 0 {
			t.Fatal("a request for nothing")
		}
		a.asked += x.length
		q := netproto.HPTCPRequest{HPTCPFrame: netproto.HPTCPFrame{Offset: a.span(x.at.index).Remote + x.at.inner, Length: x.length}, Region: 1}
		coded := a.runs(nil, &x, &q)
		q.RunsSize = uint32(len(coded))
		if largest = max(largest, len(coded)); largest > netproto.HPTCPRunsSizeMax {
			t.Fatalf("%d bytes of runs", largest)
		}
		if _, err := netproto.DecodeHPTCPRuns(nil, q, coded); err != nil {
			t.Fatal(err)
		}
	}
	if largest < netproto.HPTCPRunsSizeMax*3/4 {
		t.Errorf("the largest has %d bytes: frames are hardly filled", largest)
	}
}

// payloadMax is more than any chunk.
const payloadMax = netproto.PayloadBytesMax

// 100,000 pages in random order cost some bytes each on the wire, not a frame, and some hundred requests.
//
// proves H-8
func TestManyPagesCostBytesOnTheWire(t *testing.T) {
	mappings(t)
	const pages, page = 100_000, 64
	r := newRig(t, 1, simkernel.WorldOptions{Buffer: 4 << 20})
	source, requester, peer := r.pair(setup{}, setup{})
	remote, local := source.register(pages*page, netproto.ReadWrite, 1), requester.register(pages*page, netproto.LocalOnly, 2)
	random := rand.New(rand.NewPCG(1, 1))
	var from, to []uint32
	for _, i := range random.Perm(pages) {
		from, to = append(from, uint32(i)), append(to, uint32(len(to)))
	}
	a := requester.ask(lanes.Read, local, remote.ID())
	a.Spans = Pages(nil, 0, to, 0, from, page)
	a.Length, a.Deadline = pages*page, reactor.Forever
	want := bytes.Clone(local.bytes())
	apply(lanes.Read, a.Spans, want, remote.bytes())
	if o := r.wait(a.start(peer)); o.Err != nil || !bytes.Equal(local.bytes(), want) {
		t.Fatalf("%+v", o)
	}
	asked, answered := uint64(0), uint64(0)
	for _, c := range r.world.Connections() {
		asked += c.Bytes(simkernel.ToServer)
		answered += c.Bytes(simkernel.ToClient)
	}
	if asked > 5*pages {
		t.Errorf("%d bytes of requests for %d pages", asked, pages)
	}
	if over := answered - pages*page; over > pages {
		t.Errorf("%d bytes of answers beside the payload", over)
	}
	if n := requester.config.Counts.Requests.Load(); n > 2*pages/spansMax {
		t.Errorf("%d requests", n)
	}
	t.Logf("%d bytes for requests, %d requests", asked, requester.config.Counts.Requests.Load())
	r.finish()
}

// processorTime is what the process has used so far, in nanoseconds: the time on a clock says little on a busy machine.
func processorTime(b *testing.B) int64 {
	var u syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkPageCost is what the engine does for each page outside the kernel's copy, both ends together: cut, code,
// decode, mark, lease and gather, for pages in random order.
func BenchmarkPageCost(b *testing.B) {
	const pages, page = 120_000, 4096
	r := newRig(b, 1, simkernel.WorldOptions{})
	source, requester, peer := r.pair(setup{}, setup{})
	remote, local := source.register(1<<20, netproto.ReadWrite, 1), requester.register(1<<20, netproto.LocalOnly, 2)
	random := rand.New(rand.NewPCG(1, 1))
	t := &Transfer{Local: local.Registration, Length: pages * page, peer: peer}
	for _, i := range random.Perm(pages) {
		t.Spans = append(t.Spans, Span{uint64(i) % 256 * 4096, uint64(i) % 256 * 4096, page}) // the memory is small, the list long
	}
	lease, err := local.Lease(0, 1<<20, segments.Exclusive)
	must(b, err)
	t.lease = lease
	y := &served{registration: remote.Registration}
	header := make([]byte, 0, boxHeaderBytes)
	var here, there [][]byte
	b.ReportAllocs()
	begin := processorTime(b)
	for b.Loop() {
		t.at, t.asked = cursor{}, 0
		for t.asked < t.Length {
			x := part{transfer: t, at: t.at}
			x.length = t.cut(min(ChunkBytesDefault, t.Length-t.asked))
			t.asked += x.length
			q := netproto.HPTCPRequest{HPTCPFrame: netproto.HPTCPFrame{Offset: t.span(x.at.index).Remote, Length: x.length}, Region: 1}
			coded := t.runs(header, &x, &q)
			q.RunsSize = uint32(len(coded))
			here = t.gather(here[:0], &x.at, x.length)
			if y.runs, err = netproto.DecodeHPTCPRuns(y.runs[:0], q, coded); err != nil {
				b.Fatal(err)
			}
			y.length, y.at = x.length, cursor{}
			if y.mark() != netproto.StatusSuccess || !y.take() {
				b.Fatal("refused")
			}
			there = y.gather(there[:0], &y.at, y.length)
			y.lease.Return()
		}
	}
	b.ReportMetric(float64(processorTime(b)-begin)/float64(b.N)/pages, "cpu-ns/page")
	lease.Return()
	r.finish()
}
