package verbs

import (
	"errors"
	"testing"
)

// proves R-12
func TestKeysOfAnIndexAreFreshUntilNoneIsLeft(t *testing.T) {
	for _, start := range []RemoteKey{0x1200, 0x12ff, 0x1280} {
		var e keyEntry
		seen := map[RemoteKey]bool{}
		key := start
		for range 255 {
			next, ok := e.fresh(key)
			if !ok || seen[next] || next.Index() != start.Index() || next == key {
				t.Fatalf("after %d keys of %#x: %#x, %v", len(seen), start, next, ok)
			}
			e.spend(next.Tag())
			seen[next], key = true, next
		}
		if _, ok := e.fresh(key); ok && len(seen) == 256 {
			t.Fatal("a 257th key")
		}
		// Only the tag of the allocation is left, and a window with any other key may take it.
		last, ok := e.fresh(key)
		if !ok || last != start {
			t.Fatalf("last key %#x %v, want %#x", last, ok, start)
		}
		e.spend(last.Tag())
		for tag := range 256 {
			if k, ok := e.fresh(start&^0xff | RemoteKey(tag)); ok {
				t.Fatalf("key %#x after all were used", k)
			}
		}
	}
}

// proves R-12
func TestTheLastFreshTagIsFoundHoweverFarItIs(t *testing.T) {
	for tag := range 255 {
		var e keyEntry
		for other := range 256 {
			if other != tag {
				e.spend(uint8(other))
			}
		}
		if key, ok := e.fresh(0x12ff); !ok || key.Tag() != uint8(tag) {
			t.Fatalf("tag %d: %#x %v", tag, key, ok)
		}
	}
}

// proves R-12
func TestKeyHistoryIsBoundedAndForgetsNothing(t *testing.T) {
	h := keyHistory{limit: 2, entries: map[uint32]*keyEntry{}}
	first, err := h.claim("pd", 7)
	if err != nil {
		t.Fatal(err)
	}
	first.spend(9)
	if _, err = h.claim("pd", 7); !errors.Is(err, ErrKeys) {
		t.Fatalf("live duplicate: %v", err)
	}
	first.live.Store(false)
	again, err := h.claim("pd", 7)
	if err != nil || !again.spent(9) {
		t.Fatalf("%v, spent %v", err, again.spent(9))
	}
	if _, err = h.claim("pd", 8); err != nil {
		t.Fatal(err)
	}
	var full *KeyError
	if _, err = h.claim("pd", 9); !errors.As(err, &full) || full.Indices != 2 || full.Limit != 2 {
		t.Fatal(err)
	}
	if h.count.Load() != 2 {
		t.Fatal(h.count.Load())
	}
}

// proves R-14
func TestIdentitiesHoldTheirParts(t *testing.T) {
	for _, s := range []space{sendSpace, receiveSpace, sendBarrierSpace, receiveBarrierSpace} {
		for _, slot := range []int{0, 1, slotMask} {
			for _, g := range []uint64{1, generationMask} {
				id := identity(s, slot, g)
				if a, b, c := splitIdentity(id); a != s || b != slot || c != g || id == 0 {
					t.Fatalf("%d %d %d came back as %d %d %d", s, slot, g, a, b, c)
				}
			}
		}
	}
}
