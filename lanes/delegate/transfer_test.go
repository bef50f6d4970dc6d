package delegate

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/netproto"
)

// READ and WRITE through 1 to 16 slots move every byte of the range and no other, at every border of slots, at odd
// offsets, from and to host and device memory, with owned buffers and without.
//
// proves C-8
func TestSlotsOfEveryNumberMoveEveryByteAndNoOther(t *testing.T) {
	for slots := 1; slots <= netproto.PinSlotsMax; slots++ {
		for _, local := range []bool{false, true} {
			if local && slots%5 != 1 {
				continue
			}
			t.Run(fmt.Sprintf("%d-device=%t", slots, local), func(t *testing.T) { moveEveryBorder(t, slots, local) })
		}
	}
}

func moveEveryBorder(t *testing.T, slots int, local bool) {
	direct := slots%2 == 0
	k := uint64(slots)
	p := newPair(t, setup{slots: 16, direct: direct}, setup{direct: direct, device: local}, 20*slotBytes)
	p.everyByte(slots, 1, slotBytes-1, slotBytes, slotBytes+1, 2*slotBytes-1, 2*slotBytes+1, k*slotBytes, min(k*slotBytes+1, 1800), 18*slotBytes+7)
	p.finish()
}

// everyByte reads and writes so many bytes, and checks that each transfer moves them and no others, and gives its slots back. It
// says how many copies that took.
func (p *pairOf) everyByte(slots int, lengths ...uint64) (parts uint64) {
	p.t.Helper()
	const at, from = 13, 91
	c, size := p.requester.channel(p.source), p.there.Length()
	for _, n := range lengths {
		for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
			p.there.set(pattern(size, 1))
			p.here.set(pattern(size, 2))
			o := p.wait(p.requester.ask(d, p.source, p.here, p.there, at, from, n, slots).start(c))
			here, there := pattern(size, 2), pattern(size, 1)
			if d == lanes.Read {
				copy(here[at:at+n], there[from:])
			} else {
				copy(there[from:from+n], here[at:])
			}
			if o.Err != nil || o.Bytes != n || !o.Drained {
				p.t.Fatalf("%v of %d: %+v", d, n, o)
			}
			if d == lanes.Read && o.Local != lanes.EffectComplete || d == lanes.Write && o.Remote != lanes.EffectComplete {
				p.t.Errorf("%v of %d: %+v", d, n, o)
			}
			if !bytes.Equal(p.here.bytes(), here) || !bytes.Equal(p.there.bytes(), there) {
				p.t.Fatalf("%v of %d bytes moved other bytes", d, n)
			}
			parts += (n-1)/slotBytes + 1
			if s := p.source.service.Stats(); s.Pins != 0 || s.Slots != 0 || p.source.slots.Used() != 0 {
				p.t.Errorf("after a %v: %+v", d, s)
			}
		}
	}
	if s := p.source.service.Stats(); s.Copied != s.Delegated || s.Copied != parts || s.Failed+s.Refused+s.Expired+s.Orphaned != 0 || s.Pinned != 2*uint64(len(lengths)) {
		p.t.Errorf("%+v, %d parts", s, parts)
	}
	return parts
}

// In the steady state neither side allocates on the Go heap, whatever the number of slots, over TCP and over RDMA. Over RDMA about
// four windows use their keys up and are replaced in 50 rounds, which is fewer allocations than rounds.
//
// proves C-8, L-6
func TestSlotsAllocateNothing(t *testing.T) {
	eachWay(t, func(t *testing.T, pair pairMaker) {
		for _, slots := range []int{1, 4} {
			still := setup{still: true, change: func(c *rdma.Config) { c.MonitorInterval, c.Progress = 1000*time.Hour, rdma.Polling }} // to look at ports allocates
			p := pair(t, still, still, 10*slotBytes)
			c := p.requester.channel(p.source)
			a := p.requester.ask(lanes.Read, p.source, p.here, p.there, 0, 0, 10*slotBytes, slots)
			a.Done = func(t *Transfer) { a.done++; t.Local.Return() } // without a grave
			move := func() {
				for _, a.Direction = range []lanes.Direction{lanes.Read, lanes.Write} {
					a.done, a.Deadline = 0, p.requester.lane.Kernel().Now().After(time.Minute)
					if o := p.wait(a.start(c)); o.Err != nil {
						t.Fatal(o.Err)
					}
				}
			}
			for range 40 {
				move()
			}
			if n := testing.AllocsPerRun(50, move); n > 0 {
				t.Errorf("%v allocations with %d slots", n, slots)
			}
			p.finish()
		}
	})
}
