package main

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/reactor"
)

// small is a fleet of 50 engines that has done its work.
func small(t *testing.T, seed uint64) *work {
	t.Helper()
	t.Logf("SEED=%d", seed)
	w, err := newWork(seed, 50, 2000)
	if err == nil {
		err = w.connect()
	}
	if err == nil {
		err = w.do()
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// Every byte is compared with what its round must hold, and nothing is left of 50 engines: no charge, descriptor,
// connection or memory.
//
// proves U-2, N-3
func TestSmallFleetDoesItsWorkAndLeavesNothing(t *testing.T) {
	w := small(t, 1)
	if w.requests < 2000 || w.bytes < 2000*pageBytes || w.notes < w.rounds*len(w.links)*2 {
		t.Fatalf("%d requests, %d bytes, %d notifications", w.requests, w.bytes, w.notes)
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
}

// proves L-3: a seed gives the same counts and the same clock, engine by engine.
func TestSameSeedGivesTheSameFleet(t *testing.T) {
	history := func(seed uint64) string {
		w := small(t, seed)
		text := strings.Builder{}
		for _, n := range w.nodes {
			fmt.Fprintln(&text, n.index, countsOf(n), n.retries)
		}
		fmt.Fprintln(&text, w.world.Now())
		if err := w.close(); err != nil {
			t.Fatal(err)
		}
		return text.String()
	}
	if a, b := history(7), history(7); a != b {
		t.Fatal("two runs of one seed differ")
	} else if a == history(8) {
		t.Fatal("another seed gives the same history")
	}
}

// A fleet that cannot fail proves nothing: wrong bytes and things left behind are found.
func TestFleetFindsWrongBytesAndWhatIsLeft(t *testing.T) {
	page := make([]byte, pageBytes)
	s := stamp{node: 3, page: 5, round: 2}
	s.write(page)
	for i := range page {
		page[i] ^= 0x40
		if s.check(page) == nil {
			t.Fatalf("a wrong byte %d goes unnoticed", i)
		}
		page[i] ^= 0x40
	}
	for _, other := range []stamp{{3, 5, 3}, {3, 6, 2}, {4, 5, 2}} {
		if other.check(page) == nil || s.check(page) != nil {
			t.Fatalf("the page of %+v passes for that of %+v", s, other)
		}
	}
	f, err := hubOf(1, 1, 1, orbitte.LocalOnly, orbitte.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	reader := f.nodes[0]
	var kept *orbitte.Batch
	if err := f.only(reader, func() error {
		s, err := reader.open(1)
		if err != nil {
			return err
		}
		kept, err = reader.engine.Submit(noDeadline, []orbitte.Request{reader.read(s, 1, 0, 0, pageBytes)})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := f.close(); err == nil || !strings.Contains(err.Error(), "async batches") {
		t.Fatalf("a batch that was never freed: %v", err)
	}
	_ = kept.Free()
	for _, n := range f.nodes {
		if err := n.left(); err != nil {
			t.Fatal(err)
		}
	}
}

// measure runs one cell in small.
func measure(t *testing.T, cell func(plan, int, metrics) error, n int) metrics {
	t.Helper()
	into := metrics{}
	if err := cell(plan{seed: 5, requests: 800, regions: 256}, n, into); err != nil {
		t.Fatalf("%d: %v", n, err)
	}
	return into
}

// Costs are counted, not timed, so that a slope shows on any machine. Each figure may grow by the factor that is
// named while the size grows by a far larger one.
//
// field case F-51
func TestCountedWorkDoesNotGrowWithTheSize(t *testing.T) {
	for _, c := range []struct {
		name        string
		cell        func(plan, int, metrics) error
		small, size int
		figures     map[string]float64
	}{
		{"peers that are asked", peersAsking, 4, 128, map[string]float64{
			"own crossings per request": 1.4, "own letters per request": 1.01, "own turns per request": 1.4, "allocations per request": 1.3,
			"own crossings per open": 1.4, "own letters per open": 1.01, "own turns per open": 1.6, "allocations per open": 1.3, "heap bytes per idle peer": 1.3,
		}},
		{"peers that ask", peersServing, 4, 128, map[string]float64{
			"own crossings per request": 1.1, "own turns per request": 1.1, "allocations per request": 1.3,
		}},
		{"regions", regions, 64, 4095, map[string]float64{
			"own crossings per request": 1.01, "own turns per request": 1.01, "allocations per request": 1.1, "allocated bytes per request": 1.1,
			"allocated bytes per registration of one, and its end": 4, "allocated bytes per region registered in a batch": 1.3,
			"crossings per describe": 1.01, "bytes on the wire per describe": 64, "allocated bytes per describe": 70,
		}},
		{"batch", batches, 8, 512, map[string]float64{
			"own crossings per request": 1.01, "own turns per request": 1.01, "allocations per request": 1.01, "letters per request": 1.01,
		}},
		{"openers at one moment", storm, 32, 256, map[string]float64{
			"crossings per open": 1.3, "letters per open": 1.3, "allocations per open": 1.2, "own turns per open": 1.3,
		}},
		{"engines", engines, 12, 96, map[string]float64{
			"crossings per request": 1.2, "turns per request": 1.2, "letters per request": 1.5, "allocations per request": 1.3, "heap bytes per engine": 1.2,
			"crossings per open": 1.2,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			few, many := measure(t, c.cell, c.small), measure(t, c.cell, c.size)
			for figure, most := range c.figures {
				if !(few[figure] > 0) {
					t.Errorf("%s: nothing was counted", figure)
				}
				if grown := many[figure] / few[figure]; grown > most {
					t.Errorf("%s: %.2f at %d, %.2f at %d; it may grow %v-fold", figure, few[figure], c.small, many[figure], c.size, most)
				}
			}
		})
	}
}

// A source that all others ask at the same moment closes the connections of those that found its queue full for
// too long (SPEC T-6), and has served all in the end.
func TestStormTurnsSomeAwayAndServesAll(t *testing.T) {
	m := measure(t, stormFar, 600)
	if m["retries per open"] == 0 || m["retries per open"] > 2 || m["virtual ms until all are open"] > 1000 {
		t.Fatalf("%.2f retries per open, %.0f ms until all were open", m["retries per open"], m["virtual ms until all are open"])
	}
}

// All peers of a restarted source connect at the same moment. Who finds the queue of connections full asks again
// after one second.
func TestABurstOfConnectionsFindsPlace(t *testing.T) {
	f, err := newFleet(1, 1)
	if err != nil {
		t.Fatal(err)
	}
	peers := f.world.Process("peers", netip.MustParseAddr("10.9.9.9"))
	k := peers.Kernel()
	to := netip.MustParseAddrPort(f.nodes[0].engine.Endpoint())
	const burst = 4000
	for i := range burst {
		d, err := k.Open(to, reactor.SocketOptions{})
		if err != nil {
			t.Fatal(err)
		}
		k.Submit(&reactor.Operation{Kind: reactor.Connect, Descriptor: d, Ticket: reactor.Ticket(i + 1), Address: to})
	}
	out := make([]reactor.Completion, burst)
	until, connected := f.world.Now().After(500*time.Millisecond), 0
	for connected < burst && f.world.Now() < until {
		for _, c := range out[:k.Poll(out, until)] {
			if c.Err != nil {
				t.Fatal(c.Err)
			}
			connected++
		}
	}
	if connected != burst {
		t.Errorf("%d of %d connections were made at once", connected, burst)
	}
	peers.Kill()
	if err := f.close(); err != nil {
		t.Fatal(err)
	}
}

func TestSlopes(t *testing.T) {
	sizes := []int{1, 10, 100, 1000}
	for want := 0.0; want <= 2; want += 0.5 {
		figures := make([]float64, len(sizes))
		for i, n := range sizes {
			figures[i] = 7 * math.Pow(float64(n), want)
		}
		if got, ok := fit(sizes, figures); !ok || math.Abs(got-want) > 1e-9 {
			t.Errorf("slope %v, wanted %v", got, want)
		}
	}
	if _, ok := fit(sizes, []float64{1, 0, 1, 1}); ok {
		t.Error("a figure of zero has a slope")
	}
	var out strings.Builder
	slopes := table(&out, sweep{name: "s", of: "things"}, []cell{
		{N: 1, Metrics: metrics{"b per a": 2, "never per a": 0}}, {N: 10, Metrics: metrics{"b per a": 20}}, {N: 100, Metrics: metrics{"b per a": 20}},
	})
	if len(slopes) != 1 || slopes[0] != (slope{"s", "b per a", 0.5, 0}) || strings.Contains(out.String(), "never") {
		t.Errorf("slopes %+v\n%s", slopes, out.String())
	}
}
