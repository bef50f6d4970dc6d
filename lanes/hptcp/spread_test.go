package hptcp

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// feed lets windows pass with the rates that so many streams have, and returns the counts in use.
func feed(s *spread, windows int, rate func(streams int) uint64) (counts []int) {
	for range windows {
		bytes := s.window
		s.moved(bytes, bytes*1_000_000/rate(s.count))
		counts = append(counts, s.count)
	}
	return counts
}

// More streams are kept for what they gain, never beyond the cap; without a gain the number returns to one and trials
// get rare.
//
// proves H-4
func TestStreamsFollowTheGain(t *testing.T) {
	s := newSpread(3)
	counts := feed(&s, 60, func(n int) uint64 { return 1000 * uint64(min(n, 3)) })
	for i, n := range counts {
		if n > 3 {
			t.Fatalf("%d streams, the cap is 3", n)
		}
		if i > 30 && n < 2 {
			t.Errorf("window %d has %d streams although each gains", i, n)
		}
	}
	s = newSpread(8)
	changes, last := 0, 1
	for _, n := range feed(&s, 1000, func(n int) uint64 { return 1000 + 50*uint64(n-1) }) { // 5 % is no reason
		if n > 2 {
			t.Fatalf("%d streams without a gain", n)
		}
		if n != last {
			changes++
		}
		last = n
	}
	if changes > 30 {
		t.Errorf("%d changes in 1000 windows: no hysteresis", changes)
	}
	s = newSpread(4)
	feed(&s, 60, func(n int) uint64 { return 1000 * uint64(n) })
	if many := s.count; many < 3 {
		t.Errorf("%d streams", many)
	}
	feed(&s, 2000, func(n int) uint64 { return 1000 - 100*uint64(n-1) }) // the cores are taken
	if s.count > 2 {
		t.Errorf("%d streams stay although fewer are better", s.count)
	}
	s.lower(1)
	if feed(&s, 50, func(n int) uint64 { return 1000 * uint64(n) }); s.count != 1 {
		t.Errorf("%d streams, the source takes one", s.count)
	}
}

// Streams that could not be opened are not asked for again for long, and then they are: the reason may have passed.
//
// proves H-4
func TestStreamsThatCouldNotBeOpenedAreTriedAgainMuchLater(t *testing.T) {
	s := newSpread(4)
	each := func(n int) uint64 { return 1000 * uint64(n) }
	if feed(&s, 60, each); s.count < 3 {
		t.Fatalf("%d streams", s.count)
	}
	s.lower(1)
	for i, n := range feed(&s, calmMax-1, each) {
		if n != 1 {
			t.Fatalf("%d streams %d windows after that", n, i)
		}
	}
	if feed(&s, 60, each); s.count < 3 {
		t.Errorf("%d streams, though each gains and can be opened again", s.count)
	}
}

// The streams of one peer are never more than the trailer says, this side allows, and processors there are; chunks
// and credit are the smaller of both sides'.
//
// proves H-1, H-4
func TestStreamsStayWithinTheTrailersLimit(t *testing.T) {
	for _, c := range []struct {
		source, own, cpus, want int
	}{{1, 8, 8, 1}, {2, 8, 8, 2}, {8, 3, 8, 3}, {8, 8, 2, 3}, {8, 8, 1, 2}} {
		mappings(t)
		r := newRig(t, 3, simkernel.WorldOptions{})
		source, requester, peer := r.pair(setup{config: Config{StreamsMax: c.source}}, setup{config: Config{StreamsMax: c.own, CPUs: c.cpus, ChunkBytes: 10_000}})
		remote, local := source.register(1<<20, netproto.ReadWrite, 1), requester.register(1<<20, netproto.LocalOnly, 2)
		peer.spread.count = peer.spread.limit // as if all of them paid
		for _, length := range []uint64{64, 1 << 20, 1 << 20} {
			a := requester.ask(lanes.Read, local, remote.ID())
			a.Length = length
			if o := r.wait(a.start(peer)); o.Err != nil {
				t.Fatal(o.Err)
			}
		}
		if n := peer.Streams(); n != c.want || source.service.Sessions() != c.want {
			t.Errorf("%+v: %d streams here, %d there", c, n, source.service.Sessions())
		}
		r.finish()
	}
}

// A stream that cannot be opened again ends the large transfers that wait, though another one of the peer has room.
//
// proves H-4
func TestLostStreamThatCannotReopenFailsWhoWaits(t *testing.T) {
	mappings(t)
	r := newRig(t, 3, simkernel.WorldOptions{})
	var streams []*simkernel.Connection
	r.world.OnConnect(func(c *simkernel.Connection) { streams = append(streams, c) })
	source, requester, peer := r.pair(setup{}, setup{})
	remote, local := source.register(1<<20, netproto.ReadWrite, 1), requester.register(1<<20, netproto.LocalOnly, 2)
	peer.spread.count = 2
	if o := r.wait(requester.ask(lanes.Read, local, remote.ID()).start(peer)); o.Err != nil || len(streams) != 2 {
		t.Fatalf("%+v, %d streams", o, len(streams))
	}
	streams[0].Reset()
	r.pass(soon)
	requester.process.FailOpens(syscall.EMFILE, 1)
	if f := fault(t, r.wait(requester.ask(lanes.Read, local, remote.ID()).start(peer))); f.Cause != lanes.Exhausted {
		t.Errorf("%v", f)
	}
	if o := r.wait(requester.ask(lanes.Read, local, remote.ID()).start(peer)); o.Err != nil || !local.holds(1) {
		t.Errorf("%+v", o)
	}
	r.finish()
}

// A small request beside large transfers takes hardly longer than alone: it has a stream of its own.
//
// proves H-7
// field case F-45
func TestSmallRequestsPassLargeOnes(t *testing.T) {
	mappings(t)
	r := newRig(t, 4, simkernel.WorldOptions{Buffer: 1 << 20})
	source, requester, peer := r.pair(setup{}, setup{})
	remote, local := source.register(8<<20, netproto.ReadWrite, 1), requester.register(8<<20, netproto.LocalOnly, 2)
	page, one := source.register(4096, netproto.ReadWrite, 1), requester.register(4096, netproto.LocalOnly, 2)
	worst := func() (w time.Duration) {
		for range 30 {
			begin := r.world.Now()
			a := requester.ask(lanes.Read, one, page.ID()).start(peer)
			if o := r.wait(a); o.Err != nil {
				t.Fatal(o.Err)
			}
			w = max(w, time.Duration(a.at-begin))
		}
		return w
	}
	worst() // connects
	alone := worst()
	large := requester.ask(lanes.Read, local, remote.ID())
	large.Deadline = reactor.Forever
	again := true
	large.Done = func(t *Transfer) {
		if t.Local.Return(); again && t.Outcome.Err == nil {
			large.start(peer)
		}
	}
	large.start(peer)
	r.pass(time.Millisecond)
	beside := worst()
	again = false
	large.Cancel()
	r.pass(soon)
	if beside > 3*alone {
		t.Errorf("%v beside large transfers, %v alone", beside, alone)
	}
	r.finish()
}

// The pieces of a payload follow each other without a gap, none is larger than asked for, and none has more ranges than one
// request, so that a piece of small pages is no request and a rest.
//
// proves H-4, H-8
func TestPiecesAreWhatOneRequestCanBe(t *testing.T) {
	for _, c := range []struct {
		ranges       int
		length, each uint64
		pieces       int
	}{{2500, 512, 1 << 20, 3}, {120_000, 4096, 1 << 20, 469}, {3, 5 << 20, 1 << 20, 15}, {1, 1<<20 + 1, 1 << 20, 2}, {4096, 1, 1 << 20, 5}} {
		var spans []Span
		for i := range uint64(c.ranges) {
			spans = append(spans, Span{Local: 2 * i * c.length, Length: c.length})
		}
		size, offset := uint64(c.ranges)*c.length, uint64(0)
		pieces := Cut(nil, spans, size, c.each)
		for _, p := range pieces {
			if at := uint64(p.Index)*c.length + p.Inner; p.Offset != offset || at != offset || p.Length > c.each || p.Length == 0 {
				t.Fatalf("%+v: piece %+v begins at %d, want %d", c, p, at, offset)
			}
			if last := (p.Offset + p.Length - 1) / c.length; int(last)-p.Index >= spansMax {
				t.Fatalf("%+v: piece %+v has %d ranges", c, p, int(last)-p.Index+1)
			}
			offset += p.Length
		}
		if offset != size || len(pieces) != c.pieces {
			t.Errorf("%+v: %d pieces with %d bytes", c, len(pieces), offset)
		}
	}
}

// All lanes carry a transfer until fewer of them are clearly better: what one window has more or less than the one before is no
// reason.
//
// proves H-4
func TestLanesStayUnlessFewerAreClearlyBetter(t *testing.T) {
	s, window := newWidth(2), 0
	counts := feed(&s, 2000, func(int) uint64 {
		window++
		return []uint64{1000, 960, 1040, 1000, 980, 1020, 990}[window%7]
	})
	for i := range counts[1:] {
		if counts[i] == 1 && counts[i+1] == 1 { // a trial is one window
			t.Fatalf("one lane in window %d and the next one", i)
		}
	}
	if !slices.Contains(counts, 1) {
		t.Error("fewer lanes were never tried")
	}
	s = newWidth(2)
	feed(&s, 40, func(n int) uint64 { return 1000 - 200*uint64(n-1) })
	if s.count != 1 {
		t.Errorf("%d lanes, though one is a quarter faster", s.count)
	}
	feed(&s, 1000, func(n int) uint64 { return 1000 * uint64(n) })
	if s.count-s.trial != 2 {
		t.Errorf("%d lanes, though two are twice as fast", s.count)
	}
}
