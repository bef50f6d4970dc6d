package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/orbitte/orbitte/segments"
)

// held is what a process has.
type held struct {
	known                   bool // false when it has no descriptor left to look with
	goroutines, descriptors int
	objects                 int64 // memory objects of engines
	rings                   int   // mappings of io_uring
	rss, heap               int64
	open                    []string
}

func measure() held {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	h := held{known: true, goroutines: runtime.NumGoroutine(), heap: int64(m.HeapAlloc)}
	h.objects, _ = segments.Mappings()
	entries, err := os.ReadDir("/proc/self/fd")
	h.known = h.known && err == nil
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil { // the listing's own is closed by now
			h.descriptors++
			h.open = append(h.open, to)
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	h.known = h.known && err == nil
	h.rings = strings.Count(string(maps), "io_uring")
	statm, err := os.ReadFile("/proc/self/statm")
	h.known = h.known && err == nil
	var size int64
	if _, err := fmt.Sscan(string(statm), &size, &h.rss); err == nil {
		h.rss *= int64(os.Getpagesize())
	}
	return h
}

// over lists what there is more of than there was.
func (h held) over(base held) (left []string) {
	if !h.known {
		return []string{"starved of descriptors: nothing can be counted"}
	}
	add := func(now, then int64, what string) {
		if now > then {
			left = append(left, fmt.Sprintf("%d %s, at the start %d", now, what, then))
		}
	}
	add(int64(h.goroutines), int64(base.goroutines), "goroutines")
	if base.known {
		add(int64(h.descriptors), int64(base.descriptors), fmt.Sprintf("descriptors %v", h.open))
	}
	add(h.objects, 0, fmt.Sprintf("memory objects %v", segments.Residents()))
	add(int64(h.rings), 0, "mappings of io_uring")
	return left
}
