package orbitte

import (
	"fmt"
	"slices"
	"sort"
	"testing"

	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// spans is a source's library that writes down which windows are bound: address and length of each.
type spans struct {
	verbs.Calls
	bound map[uint64]uint64
}

func (s *spans) PostSend(p verbs.PairHandle, list []verbs.SendWork) (int, error) {
	for _, w := range list {
		if w.Operation == verbs.BindWindow {
			s.bound[w.Remote] = w.Span
		}
	}
	return s.Calls.PostSend(p, list)
}

// lengths are those of the windows that were bound since the last call, by rising address.
func (s *spans) lengths() (all []uint64) {
	var at []uint64
	for address := range s.bound {
		at = append(at, address)
	}
	sort.Slice(at, func(i, j int) bool { return at[i] < at[j] })
	for _, address := range at {
		all = append(all, s.bound[address])
	}
	clear(s.bound)
	return all
}

// The check values of SPEC R-8, over real transfers between engines with nothing configured.
//
// proves R-8
func TestTransfersOfADefaultEngineHaveTheAgreedSlices(t *testing.T) {
	const k, m = 1 << 10, 1 << 20
	times := func(n int, length uint64, more ...uint64) []uint64 {
		return append(slices.Repeat([]uint64{length}, n), more...)
	}
	for i, c := range []struct {
		block       uint64
		length      int
		read, write []uint64
	}{
		{0, 64*k + 1, []uint64{64*k + 1}, []uint64{64*k + 1}},
		{0, 129 * k, []uint64{64 * k, 65 * k}, []uint64{64 * k, 65 * k}},
		{0, 5 * m, times(40, 128*k), times(26, 192*k, 128*k)},
		{0, 4 * m, times(64, 64*k), times(32, 128*k)},
		{m, 2_097_192, []uint64{m, m + 40}, []uint64{m, m + 40}},
	} {
		for _, width := range []int{0, 3} { // of the source
			t.Run(fmt.Sprint(c.length, width), func(t *testing.T) {
				s := newRDMASim(t, 900+uint64(i), simverbs.Hardware)
				watch := &spans{Calls: s.native("source", hostA), bound: map[uint64]uint64{}}
				p := newRDMAPairOn(t, s, Config{Verbs: watch, RDMA: &RDMAConfig{Width: width}}, Config{RDMA: &RDMAConfig{BlockBytes: c.block}}, c.length)
				for op, want := range map[Operation][]uint64{Read: c.read, Write: c.write} {
					pattern(p.local, 3)
					_, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(op, 0, c.length)})
					must(t, err)
					if got := watch.lengths(); !slices.Equal(got, want) {
						t.Errorf("%v of %d bytes: %d slices of %v, want %d of %v", op, c.length, len(got), got, len(want), want)
					}
				}
			})
		}
	}
}
