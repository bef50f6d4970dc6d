package segments

import (
	"math"
	"testing"

	"github.com/orbitte/orbitte/netproto"
)

// many registers n adjacent ranges of 64 bytes of one object.
func many(t testing.TB, n int) (*Backing, *Tracker, *ledger) {
	b, err := AdoptSlice(make([]byte, 64*n))
	if err != nil {
		t.Fatal(err)
	}
	batch := make([]Spec, n)
	for i := range batch {
		batch[i] = Spec{Backing: b, Offset: uint64(64 * i), Length: 64, Permission: netproto.ReadWrite}
	}
	l := newLedger(math.MaxInt32, math.MaxInt32)
	tracker := l.tracker()
	if _, err := tracker.Register(batch); err != nil {
		t.Fatal(err)
	}
	return b, tracker, l
}

func TestTransferPathDoesNotAllocate(t *testing.T) {
	leavesNothing(t)
	b, tracker, _ := many(t, 1000)
	remote, err := NewRemote("peer:1", netproto.Epoch{}, netproto.Descriptor{Regions: tracker.Mirror().Regions()})
	if err != nil {
		t.Fatal(err)
	}
	others := make([]Lease, 100) // the table is past its first chunk
	for i := range others {
		others[i] = lent(t, b, uint64(64*i+32), 32, Exclusive)
	}
	for name, step := range map[string]func(){
		"Lend, Return": func() {
			lease, err := b.Lend(0, 16, Exclusive)
			if err != nil {
				t.Fatal(err)
			}
			lease.Return()
		},
		"Borrow, Lease": func() {
			r, err := tracker.Borrow(b.Address()+640, 16)
			if err != nil {
				t.Fatal(err)
			}
			lease, err := r.Lease(0, 16, Shared)
			if err != nil {
				t.Fatal(err)
			}
			lease.Return()
			r.Return()
		},
		"Admit": func() {
			r, err := tracker.Admit(500, 1, 2, netproto.RemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			r.Return()
		},
		"Cover, Find, Regions": func() {
			m := tracker.Mirror()
			if _, err := m.Cover(b.Address(), 64); err != nil || m.Find(1000) == nil || len(m.Regions()) != 1000 {
				t.Fatal(err)
			}
		},
		"remote Cover, Find": func() {
			if _, _, err := remote.Cover(b.Address()+64, 64); err != nil {
				t.Fatal(err)
			}
			if _, ok := remote.Find(77); !ok {
				t.Fatal("not found")
			}
		},
	} {
		if n := testing.AllocsPerRun(100, step); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	for i := range others {
		others[i].Return()
	}
	tracker.RetireAll()
	b.Drop()
}

func BenchmarkLendReturn(b *testing.B) {
	for _, out := range []int{0, 8, 64} {
		b.Run(map[int]string{0: "alone", 8: "beside8", 64: "beside64"}[out], func(b *testing.B) {
			backing, tracker, _ := many(b, 1000)
			held := make([]Lease, out)
			for i := range held {
				held[i], _ = backing.Lend(uint64(64*(i+1)), 64, Exclusive)
			}
			for b.Loop() {
				lease, err := backing.Lend(0, 64, Exclusive)
				if err != nil {
					b.Fatal(err)
				}
				lease.Return()
			}
			for i := range held {
				held[i].Return()
			}
			tracker.RetireAll()
			backing.Drop()
		})
	}
}

func BenchmarkBorrowReturn(b *testing.B) {
	for _, n := range []int{1, 1000, 4096} {
		b.Run(map[int]string{1: "of1", 1000: "of1000", 4096: "of4096"}[n], func(b *testing.B) {
			backing, tracker, _ := many(b, n)
			address, step := backing.Address(), uint64(0)
			for b.Loop() {
				step = (step + 40503) % uint64(n)
				r, err := tracker.Borrow(address+64*step, 64)
				if err != nil {
					b.Fatal(err)
				}
				r.Return()
			}
			tracker.RetireAll()
			backing.Drop()
		})
	}
}

func BenchmarkRegisterUnregister(b *testing.B) {
	for _, n := range []int{1, 1000, 4000} {
		b.Run(map[int]string{1: "beside1", 1000: "beside1000", 4000: "beside4000"}[n], func(b *testing.B) {
			backing, tracker, _ := many(b, n)
			for b.Loop() {
				made, err := tracker.Register([]Spec{{Backing: backing, Offset: 1, Length: 7}})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := tracker.Unregister(made[0].ID()); err != nil {
					b.Fatal(err)
				}
			}
			tracker.RetireAll()
			backing.Drop()
		})
	}
}
