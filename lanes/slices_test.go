package lanes

import (
	"flag"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func lengthsOf(s Slices) []uint64 {
	var all []uint64
	for i := range s.Count {
		_, n := s.At(i)
		all = append(all, n)
	}
	return all
}

func times(n int, length uint64, more ...uint64) []uint64 {
	return append(slices.Repeat([]uint64{length}, n), more...)
}

// proves R-8
func TestSlicesHaveTheAgreedGeometry(t *testing.T) {
	const k, m = 1 << 10, 1 << 20
	for _, c := range []struct {
		length, base uint64
		limit        int
		want         []uint64
	}{
		{0, 64 * k, 64, nil},
		{1, 64 * k, 64, []uint64{1}},
		{64 * k, 64 * k, 64, []uint64{64 * k}},
		{64*k + 1, 64 * k, 64, []uint64{64*k + 1}},
		{64*k + 16*k - 1, 64 * k, 64, []uint64{80*k - 1}},
		{64*k + 16*k, 64 * k, 64, []uint64{64 * k, 16 * k}},
		{128*k + 1*k, 64 * k, 64, []uint64{64 * k, 65 * k}},
		{2*m + 1, 64 * k, 64, times(31, 64*k, 64*k+1)},
		{2*m + 1, 64 * k, 32, times(15, 128*k, 128*k+1)},
		{4*m + 1, 64 * k, 32, times(21, 192*k, 64*k+1)},
		{5 * m, 64 * k, 64, times(40, 128*k)},
		{5 * m, 64 * k, 32, times(26, 192*k, 128*k)},
		{8 * m, 64 * k, 32, times(32, 256*k)},
		{2_097_192, m, 64, []uint64{m, m + 40}},
		{100, 1, 64, times(50, 2)},
	} {
		if got := lengthsOf(Cut(c.length, c.base, c.limit)); !slices.Equal(got, c.want) {
			t.Errorf("%d bytes, block %d, limit %d: %v, want %v", c.length, c.base, c.limit, got, c.want)
		}
	}
}

// proves R-8
func TestSliceCapFollowsDirectionMemoryAndPeer(t *testing.T) {
	for _, c := range []struct {
		d      Direction
		device bool
		peer   int
		want   int
	}{
		{Read, false, 0, 64}, {Read, true, 0, 32}, {Write, false, 0, 32}, {Write, true, 0, 32}, {Read, false, 7, 7}, {Write, false, 64, 32},
	} {
		if got := SliceCap(c.d, c.device, c.peer); got != c.want {
			t.Errorf("%v device %v peer %d: %d, want %d", c.d, c.device, c.peer, got, c.want)
		}
	}
}

// proves R-8
func TestSlicesCoverInOrderWithinTheCap(t *testing.T) {
	if flag.Lookup("rapid.seed").Value.String() == "0" {
		if err := flag.Set("rapid.seed", strconv.FormatInt(time.Now().UnixNano(), 10)); err != nil {
			t.Fatal(err)
		}
	}
	seed := flag.Lookup("rapid.seed").Value.String()
	t.Logf("SEED=%s replay: go test -run '^%s$' -rapid.seed=%s", seed, t.Name(), seed)
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.OneOf(rapid.Uint64Range(0, 64<<20), rapid.Uint64Range(0, 1<<62-1)).Draw(t, "length")
		base := rapid.SampledFrom([]uint64{1, 3, 4096, 64 << 10, 1 << 20, 1 << 61}).Draw(t, "base")
		limit := rapid.IntRange(1, 64).Draw(t, "limit")
		s := Cut(length, base, limit)
		next := uint64(0)
		for i := range s.Count {
			offset, n := s.At(i)
			if offset != next || n == 0 {
				t.Fatalf("slice %d of %+v is [%d, +%d), want it to begin at %d", i, s, offset, n, next)
			}
			if i < s.Count-1 && n != s.Block || n > s.Block && n-s.Block > s.Block/4 {
				t.Fatalf("slice %d of %+v has %d bytes", i, s, n)
			}
			next += n
		}
		if next != length || s.Count > limit || s.Block%base != 0 || length > 0 && s.Count == 0 {
			t.Fatalf("%+v with block %d and limit %d ends at %d of %d", s, base, limit, next, length)
		}
	})
}
