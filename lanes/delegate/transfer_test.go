package delegate

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
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
	const size = 20 * slotBytes
	r := newRig(t, rand.Uint64())
	direct := slots%2 == 0
	source, requester := r.node(sourceHost, setup{slots: 16, direct: direct}), r.node(requesterHost, setup{direct: direct})
	there, here := source.register(true, size, netproto.ReadWrite, 1), requester.register(local, size, netproto.LocalOnly, 2)
	c := requester.channel(source)
	k := uint64(slots)
	for _, n := range []uint64{1, slotBytes - 1, slotBytes, slotBytes + 1, 2*slotBytes - 1, 2*slotBytes + 1, k * slotBytes, min(k*slotBytes+1, 1800), 18*slotBytes + 7} {
		for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
			there.set(pattern(size, 1))
			here.set(pattern(size, 2))
			at, from := uint64(13), uint64(91)
			o := r.wait(requester.ask(d, source, here, there, at, from, n, slots).start(c))
			wantHere, wantThere := pattern(size, 2), pattern(size, 1)
			if d == lanes.Read {
				copy(wantHere[at:at+n], wantThere[from:])
			} else {
				copy(wantThere[from:from+n], wantHere[at:])
			}
			if o.Err != nil || o.Bytes != n || !o.Drained {
				t.Fatalf("%v of %d: %+v", d, n, o)
			}
			if d == lanes.Read && o.Local != lanes.EffectComplete || d == lanes.Write && o.Remote != lanes.EffectComplete {
				t.Errorf("%v of %d: %+v", d, n, o)
			}
			if !bytes.Equal(here.bytes(), wantHere) || !bytes.Equal(there.bytes(), wantThere) {
				t.Fatalf("%v of %d bytes moved other bytes", d, n)
			}
			if s := source.service.Stats(); s.Pins != 0 || s.Slots != 0 || source.slots.Used() != 0 {
				t.Errorf("after a %v: %+v", d, s)
			}
		}
	}
	if s := source.service.Stats(); s.Copied != s.Delegated || s.Failed+s.Refused+s.Expired+s.Orphaned != 0 || s.Pinned != 18 {
		t.Errorf("%+v", s)
	}
	r.finish()
}

// In the steady state neither side allocates on the Go heap, whatever the number of slots.
//
// proves C-8, L-6
func TestSlotsAllocateNothing(t *testing.T) {
	for _, slots := range []int{1, 4} {
		r := newRig(t, rand.Uint64())
		still := setup{still: true}
		source, requester := r.node(sourceHost, still), r.node(requesterHost, still)
		there, here := source.register(true, 10*slotBytes, netproto.ReadWrite, 1), requester.register(false, 10*slotBytes, netproto.LocalOnly, 2)
		c := requester.channel(source)
		a := requester.ask(lanes.Read, source, here, there, 0, 0, 10*slotBytes, slots)
		a.Done = func(t *Transfer) { a.done++; t.Local.Return() } // without a grave
		move := func() {
			for _, a.Direction = range []lanes.Direction{lanes.Read, lanes.Write} {
				a.done, a.Deadline = 0, requester.lane.Kernel().Now().After(time.Minute)
				if o := r.wait(a.start(c)); o.Err != nil {
					t.Fatal(o.Err)
				}
			}
		}
		for range 20 {
			move()
		}
		if n := testing.AllocsPerRun(50, move); n > 0 {
			t.Errorf("%v allocations with %d slots", n, slots)
		}
		r.finish()
	}
}
