package hptcp

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Pages are the spans of each page by itself, joined where they touch on both sides: behind spans that are there already,
// through the highest number, and in memory that is there or made once.
//
// proves H-8
func TestPagesAreEachPagesSpanJoined(t *testing.T) {
	const seed = 4
	t.Logf("SEED=%d; replay: go test -run TestPagesAreEachPagesSpanJoined ./lanes/hptcp", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range 2000 {
		size, base := 1+random.Uint64N(4096), random.Uint64N(1<<20)
		var local, remote []uint32
		for range random.IntN(20) {
			from, to := ^uint32(0)-random.Uint32N(4), ^uint32(0)-random.Uint32N(4)
			if random.IntN(2) == 0 {
				from, to = random.Uint32N(4), random.Uint32N(4)
			}
			for k := range random.Uint32N(5) { // past the highest number they begin anew
				local, remote = append(local, from+k), append(remote, to+k)
			}
		}
		head := []Span{{5, base, base}} // page 0 of both sides may touch it
		head[0].Length = base + size*random.Uint64N(2)
		want := slices.Clone(head)
		for i := range local {
			want = Join(want, Span{head[0].Local + base + uint64(local[i])*size, 2*base + uint64(remote[i])*size, size})
		}
		dst := append(make([]Span, 0, 1+random.IntN(40)), head...)
		if got := Pages(dst, head[0].Local+base, local, 2*base, remote, size); !slices.Equal(got, want) {
			t.Fatalf("round %d: %v of pages %v and %v, want %v", round, got, local, remote, want)
		}
	}
}
