package verbs

import "sync/atomic"

// Index is the part of a window key that the device chose.
func (k RemoteKey) Index() uint32 { return uint32(k) >> 8 }

// Tag is the part of a window key that a bind changes.
func (k RemoteKey) Tag() uint8 { return uint8(k) }

// keyEntry is the history of one key index in a domain. The map of entries belongs to the loop that allocates windows;
// an entry's tags belong to its one live window.
type keyEntry struct {
	used [4]uint64   // a bit for each tag that gave authority, or may have; never cleared
	live atomic.Bool // true exactly while a window with this index is allocated
}

func (e *keyEntry) spend(tag uint8)      { e.used[tag>>6] |= 1 << (tag & 63) }
func (e *keyEntry) spent(tag uint8) bool { return e.used[tag>>6]&(1<<(tag&63)) != 0 }

// fresh finds the next tag after the current key's that never gave authority. The current tag itself is left out: a
// bind has to change it.
func (e *keyEntry) fresh(current RemoteKey) (RemoteKey, bool) {
	for step := 1; step < 256; step++ {
		if tag := current.Tag() + uint8(step); !e.spent(tag) {
			return current&^0xff | RemoteKey(tag), true
		}
	}
	return 0, false
}

// keyHistory remembers every index that windows of a domain ever had, so that an old key cannot regain authority. It is
// bounded and forgets nothing (SPEC R-12).
type keyHistory struct {
	limit   int
	entries map[uint32]*keyEntry
	count   atomic.Int64 // len(entries), for other loops to read
}

// claim takes an index for a window that was just allocated.
func (h *keyHistory) claim(object string, index uint32) (*keyEntry, error) {
	entry := h.entries[index]
	if entry == nil {
		if len(h.entries) >= h.limit {
			return nil, &KeyError{Object: object, Indices: len(h.entries), Limit: h.limit, Why: "the key history is full"}
		}
		entry = &keyEntry{}
		h.entries[index] = entry
		h.count.Store(int64(len(h.entries)))
	}
	if !entry.live.CompareAndSwap(false, true) {
		return nil, &KeyError{Object: object, Indices: len(h.entries), Limit: h.limit, Why: "the device gave out a key index that is in use"}
	}
	return entry, nil
}
