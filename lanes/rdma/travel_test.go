package rdma

import (
	"testing"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// operations runs count transfers of length, so many at a time, and says how many operations each cost the kernels of
// requester and source: sends, receives and watches.
func operations(t *testing.T, d lanes.Direction, length uint64, atOnce, count int) (requester, source float64) {
	o := siteOptions{devices: single(0), config: Config{Progress: EventDriven, MonitorInterval: 1 << 60}}
	e := newEnds(t, simverbs.Hardware, endsOptions{o, o})
	remote, local := e.to.memory(uint64(atOnce)*length, netproto.ReadWrite, 1), e.from.memory(uint64(atOnce)*length, netproto.LocalOnly, 2)
	done, left := 0, 0
	var all []*attempt
	for i := range atOnce {
		a := e.transfer(d, local, remote, 0)
		a.Length, a.Deadline = length, reactor.Forever
		a.LocalOffset, a.Offset = uint64(i)*length, uint64(i)*length
		a.Done = func(tr *Transfer) {
			tr.Local.Return()
			if tr.Outcome.Err != nil {
				t.Errorf("%v", tr.Outcome.Err)
			}
			done++
			if left > 0 {
				left--
				e.begin(a)
			}
		}
		all = append(all, a)
	}
	run := func(n int) {
		done, left = 0, n-atOnce
		e.on(e.from.lanes[0].Loop, func() {
			for _, a := range all {
				e.begin(a)
			}
		})
		e.until("the transfers", func() bool { return done == n })
	}
	run(2 * atOnce) // connections, windows, buffers
	submitted := func(n *engine) uint64 {
		return n.lanes[0].Loop.Kernel().Counters().Submitted
	}
	here, there := submitted(e.from), submitted(e.to)
	run(count)
	here, there = submitted(e.from)-here, submitted(e.to)-there
	e.end()
	return float64(here) / float64(count), float64(there) / float64(count)
}

// What several transfers ask the source for, and tell it, goes over the control stream together. One transfer alone pays for
// itself: two exchanges, and its completions.
//
// proves R-10
func TestQuestionsOfTransfersAtOnceShareTheirOperations(t *testing.T) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		for _, length := range []uint64{8 << 10, 256 << 10} {
			one, oneThere := operations(t, d, length, 1, 16)
			many, manyThere := operations(t, d, length, 8, 64)
			t.Logf("%v of %d KiB: one at a time %.1f operations at the requester and %.1f at the source, eight at once %.1f and %.1f", d, length>>10, one, oneThere, many, manyThere)
			if many > one*2/3 || manyThere > oneThere*2/3 {
				t.Errorf("eight at once cost %.1f of %.1f, and %.1f of %.1f", many, one, manyThere, oneThere)
			}
		}
	}
}
