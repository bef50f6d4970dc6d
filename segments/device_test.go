package segments

import (
	"errors"
	"math"
	"testing"
)

// Device memory has an address, a length and a lease table, and not one byte for the CPU; its owner lives until the
// last holder has dropped, and is told then, once.
//
// proves M-2, C-2
func TestDeviceMemoryHasNoBytesAndTellsItsOwnerOfItsEnd(t *testing.T) {
	leavesNothing(t)
	type allocation struct{ ordinal int }
	told := 0
	b, err := AdoptDevice(0x7f00_0000_0000, 1<<40, &allocation{3}, func() { told++ })
	if err != nil {
		t.Fatal(err)
	}
	owner, ok := b.Owner().(*allocation)
	if !ok || owner.ordinal != 3 || b.Kind() != Device || b.Bytes() != nil || b.Length() != 1<<40 || b.Address() != 0x7f00_0000_0000 {
		t.Errorf("%v of %+v", b, owner)
	}
	if err := b.Prefault(0, 1<<40); err != nil {
		t.Error(err)
	}
	first, second := lent(t, b, 1<<39, 1<<39, Exclusive), lent(t, b, 0, 1<<39, Shared)
	if first.Bytes() != nil || second.Bytes() != nil {
		t.Error("a lease shows bytes that the CPU cannot read")
	}
	if _, err := b.Lend(1<<39-1, 2, Shared); !errors.Is(err, ErrConflict) {
		t.Errorf("a range that is being written: %v", err)
	}
	first.Return()
	b.Drop()
	if told != 0 {
		t.Error("the owner was told while a lease is out")
	}
	second.Return()
	if told != 1 {
		t.Errorf("the owner was told %d times", told)
	}
}

func TestDeviceRangeThatCannotBeIsRefused(t *testing.T) {
	leavesNothing(t)
	for _, r := range []Range{{0, 4}, {4096, 0}, {math.MaxUint64 - 2, 4}, {4096, math.MaxInt64 + 1}} {
		if b, err := AdoptDevice(r.Start, r.Length, nil, nil); b != nil || !errors.Is(err, ErrMemory) {
			t.Errorf("%v: %v, %v", r, b, err)
		}
		if b, err := AdoptHost(r.Start, r.Length, nil, nil); b != nil || !errors.Is(err, ErrMemory) {
			t.Errorf("%v of the host: %v, %v", r, b, err)
		}
	}
}
