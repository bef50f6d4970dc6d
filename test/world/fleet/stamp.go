package main

import (
	"encoding/binary"
	"fmt"
)

// golden is 2^64 over the golden ratio: its multiples are all different and well spread.
const golden = 0x9e3779b97f4a7c15

// stamp is what a page must hold: who made it, which page it is, and for which round.
type stamp struct{ node, page, round int }

func (s stamp) key() uint64 {
	return (uint64(s.node)<<40 ^ uint64(s.page)<<20 ^ uint64(s.round) + 1) * golden
}

// write fills a page; each of its words differs from every other word of any page.
func (s stamp) write(page []byte) {
	word := s.key()
	for ; len(page) >= 8; page = page[8:] {
		binary.LittleEndian.PutUint64(page, word)
		word += golden
	}
}

// check compares every byte of a page.
func (s stamp) check(page []byte) error {
	word := s.key()
	for i := 0; i+8 <= len(page); i += 8 {
		if got := binary.LittleEndian.Uint64(page[i:]); got != word {
			return fmt.Errorf("byte %d of page %+v: word %#x, wanted %#x", i, s, got, word)
		}
		word += golden
	}
	return nil
}
