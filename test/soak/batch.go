package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/orbitte/orbitte"
)

// What an item moves.
const (
	moveBoard = iota // READ of the board
	moveShort        // READ of a whole short-lived range
	moveSink         // WRITE into the range that nobody reads
	putSlot          // WRITE of the own slot
	takeSlot         // READ of the own slot
)

// An item is one request and what its range must hold when it has succeeded.
type item struct {
	kind     int
	to       target
	at       int // in the arena
	length   int
	offset   uint64 // in the remote range
	region   orbitte.Region
	view     int   // of the segment, when the region was looked up; -1: it was changing
	version  stamp // putSlot
	requests orbitte.Request
}

func (i item) reads() bool { return i.kind != moveSink && i.kind != putSlot }

func (i item) String() string {
	kind := [...]string{"read board", "read short", "write sink", "write slot", "read slot"}[i.kind]
	return fmt.Sprintf("%s of %s, %d bytes from %d of region %d", kind, i.to.name, i.length, i.offset, i.region.ID)
}

// order makes a batch for one or two engines, and the memory what it has to be before it: rows of poison, and in them
// what the WRITEs take.
func (w *worker) order() (items []item, ok bool) {
	t, ok := w.pick()
	if !ok {
		return nil, false
	}
	other := t
	if w.dice.IntN(8) == 0 {
		if o, ok := w.pick(); ok {
			other = o
		}
	}
	at := w.dice.IntN(100)
	for range 1 + w.dice.IntN(4) {
		if w.dice.IntN(3) == 0 {
			t, other = other, t
		}
		for _, i := range w.items(t) {
			i.at = at
			if at += i.length + w.dice.IntN(64); at > arenaBytes {
				break
			}
			items = append(items, i)
		}
	}
	w.prepare(items)
	return items, len(items) > 0
}

// items is one request to an engine, or two that belong together; none when it has not got what they need.
func (w *worker) items(t target) []item {
	most := int64(min(t.segment.TransferBytesMax(), 512<<10))
	kind := []int{moveBoard, moveBoard, moveBoard, moveShort, moveShort, moveSink, putSlot, putSlot, putSlot, takeSlot}[w.dice.IntN(10)]
	view := w.l.segments.view(t.segment)
	for _, r := range w.shuffled(t.segment.Regions()) {
		i := item{kind: kind, to: t, region: r, view: view}
		board := r.Permission == orbitte.RemoteRead && r.Length == boardBytes
		switch {
		case kind == moveBoard && board:
			i.length = int(logUniform(w.dice, 1, most))
			if w.dice.IntN(50) == 0 {
				i.length = 0
			}
			i.offset = uint64(w.dice.IntN(boardBytes - i.length + 1))
		case kind == moveShort && r.Permission == orbitte.RemoteRead && !board && r.Length <= uint64(most):
			i.length = int(r.Length)
		case kind == moveSink && r.Permission == orbitte.RemoteWrite:
			i.length = int(logUniform(w.dice, 1, min(most, sinkBytes)))
			i.offset = uint64(w.dice.IntN(sinkBytes - i.length + 1))
		case kind >= putSlot && r.Permission == orbitte.ReadWrite && slotBytes[w.n] <= t.segment.TransferBytesMax():
			i.length, i.offset = int(slotBytes[w.n]), slotOf(w.l.p.index, w.l.slot, w.n)
			if kind == takeSlot {
				return []item{i}
			}
			w.writes++
			i.version = stamp{hashOf(w.l.p.name), uint64(w.l.p.life)<<32 | uint64(w.l.number), w.writes<<8 | uint64(w.n)}
			back := i
			back.kind = takeSlot
			return []item{i, back}[:1+w.dice.IntN(2)]
		default:
			continue
		}
		return []item{i}
	}
	return nil
}

func (w *worker) shuffled(regions []orbitte.Region) []orbitte.Region {
	all := append([]orbitte.Region(nil), regions...)
	w.dice.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// prepare looks once more at what the last batch left (nothing may come late), then fills the memory anew.
func (w *worker) prepare(items []item) {
	w.unchanged("before the next batch")
	end := 0
	for _, i := range items {
		end = max(end, i.at+i.length)
	}
	w.batches++
	w.extent = max(w.extent, min(end+64, arenaBytes))
	keyOf(hashOf(w.l.name()), uint64(w.n), w.batches).fill(w.image[:w.extent], 0)
	for n := range items {
		i := &items[n]
		b := w.image[i.at : i.at+i.length]
		if i.kind == putSlot {
			i.version.write(b)
		}
		operation := orbitte.Read
		if !i.reads() {
			operation = orbitte.Write
		}
		i.requests = orbitte.Request{
			Operation: operation, Segment: i.to.segment, Local: w.memory.Address() + uint64(i.at),
			Remote: i.region.Address + i.offset, Length: uint64(i.length),
		}
	}
	copy(w.memory.Bytes(), w.image[:w.extent])
}

func requestsOf(items []item) []orbitte.Request {
	all := make([]orbitte.Request, len(items))
	for n, i := range items {
		all[n] = i.requests
	}
	return all
}

// unchanged fails unless the memory still holds its image.
func (w *worker) unchanged(when string) {
	copy(w.now[:w.extent], w.memory.Bytes())
	if at := differ(w.now[:w.extent], w.image[:w.extent]); at >= 0 {
		w.l.fail("worker %d: byte %d of the local memory has changed %s", w.n, at, when)
	}
}

// settle judges a batch that has ended.
func (w *worker) settle(items []item, r orbitte.Report, err error, deadline time.Time) {
	c := &w.l.p.count
	c.requests.Add(int64(len(items)))
	c.ok.Add(int64(r.Completed))
	c.failed.Add(int64(len(items) - r.Completed))
	c.bytes.Add(int64(r.Bytes))
	w.l.p.remember("%s/%d %v: %+v %v", w.l.name(), w.n, items, r, err)
	w.consistent(items, r, err)
	if err != nil {
		w.l.judge("a batch", err, deadline)
	}
	copy(w.now[:w.extent], w.memory.Bytes())
	for n, i := range items {
		switch {
		case n < r.Completed:
			w.succeeded(i)
		case n == r.Failed:
			w.failed(i, r)
			w.drop(i.to, err)
		}
	}
	if at := differ(w.now[:w.extent], w.image[:w.extent]); at >= 0 {
		w.l.fail("worker %d: byte %d of the local memory is wrong after %v: %+v %v", w.n, at, items, r, err)
	}
}

// consistent holds a report against itself (SPEC G-3).
func (w *worker) consistent(items []item, r orbitte.Report, err error) {
	var bytes uint64
	for _, i := range items[:r.Completed] {
		bytes += uint64(i.length)
	}
	whole := r.Completed == len(items)
	var own *orbitte.Error
	index := -1
	if errors.As(err, &own) {
		index = own.Index
	}
	if bytes != r.Bytes || whole != (err == nil) || err == nil && r.Failed != -1 || r.Failed >= 0 && r.Failed != index {
		w.l.fail("worker %d: a report that contradicts itself: %+v, error %v, of %v", w.n, r, err, items)
	}
	if !r.LocallyDrained {
		w.l.fail("worker %d: not drained: %+v, error %v, of %v", w.n, r, err, items)
	}
}

// succeeded puts what must have come into the image; ranges that say themselves what they hold are asked.
func (w *worker) succeeded(i item) {
	got := w.now[i.at : i.at+i.length]
	switch i.kind {
	case moveBoard:
		epochKey(i.to.epoch, boardTag).fill(w.image[i.at:i.at+i.length], i.offset)
	case moveShort:
		w.short(i, got)
		copy(w.image[i.at:], got)
	case putSlot:
		w.slot(i).wrote(i.version, i.to.placement == "direct")
	case takeSlot:
		if why := w.slot(i).read(got, hashOf(w.l.p.name), i.to.placement == "direct"); why != "" {
			w.l.fail("worker %d: %v succeeded with %s", w.n, i, why)
		}
		copy(w.image[i.at:], got)
	}
}

// short holds a short-lived range to one content as a whole, never an older one than was seen there before; and the
// content of a region never changes, whatever stands at its address later (a request names the address: which region
// that is, a refresh of the segment may change).
func (w *worker) short(i item, got []byte) {
	s, at, whole := stampOf(got)
	place, region := shortKey{epoch: i.to.epoch, address: i.region.Address}, shortKey{epoch: i.to.epoch, id: i.region.ID}
	if !whole || s.number != i.region.Length || s.life < w.newest[place] {
		w.l.fail("worker %d: %v succeeded with a wrong content: %+v, whole: %v, up to byte %d, seen there before: %d", w.n, i, s, whole, at, w.newest[place])
	}
	w.newest[place] = s.life
	if i.view < 0 || i.view != w.l.segments.view(i.to.segment) {
		return
	}
	if first, known := w.shorts[region]; known && first != s {
		w.l.fail("worker %d: %v succeeded with the content %+v, the region had %+v", w.n, i, s, first)
	}
	w.shorts[region] = s
}

func (w *worker) slot(i item) *slotState {
	s := w.slots[i.to.epoch]
	if s == nil {
		s = &slotState{any: true, possible: map[stamp]bool{}}
		w.slots[i.to.epoch] = s
	}
	return s
}

// wrote: a WRITE has succeeded. At a staged source an earlier one without a receipt may still be committed; a direct
// source leases the range before it asks for the payload, so that nothing comes behind a success.
func (s *slotState) wrote(v stamp, direct bool) {
	if direct {
		s.possible = map[stamp]bool{}
	}
	s.any, s.torn = false, false
	for old := range s.possible {
		if old.number < v.number && s.possible[old] { // one that had a receipt
			delete(s.possible, old)
		}
	}
	s.possible[v] = true
}

// doubted: a WRITE has failed with an unknown effect.
func (s *slotState) doubted(v stamp, direct bool) {
	s.possible[v] = false
	s.torn = s.torn || direct
}

// read says what is wrong with a slot's content; "" when nothing is.
func (s *slotState) read(b []byte, writer uint64, direct bool) string {
	if direct && (s.any || s.torn) {
		return ""
	}
	v, at, whole := stampOf(b)
	if _, possible := s.possible[v]; whole && possible {
		return ""
	}
	if s.any && string(b) == string(make([]byte, len(b))) {
		return ""
	}
	if !direct && whole && v.writer == writer && !s.own(v) {
		return "" // a killed life's, committed late
	}
	return fmt.Sprintf("version %+v (whole: %v, up to byte %d), possible are %v", v, whole, at, s.possible)
}

// own is true exactly when v is of the life of the versions that this worker knows.
func (s *slotState) own(v stamp) bool {
	for known := range s.possible {
		return known.life == v.life
	}
	return false
}

// failed holds the failed request's local range to what the report says about it (SPEC T-1, T-2).
func (w *worker) failed(i item, r orbitte.Report) {
	direct := w.l.config.TCPHostMemory == orbitte.Direct || i.to.segment.Local()
	if i.kind == putSlot && r.Remote != orbitte.EffectNone {
		w.slot(i).doubted(i.version, i.to.placement == "direct" || i.to.segment.Local())
	}
	if !i.reads() && r.Local != orbitte.EffectNone && r.Local != 0 {
		w.l.fail("worker %d: %v: a WRITE with the local effect %v", w.n, i, r.Local)
	}
	if !i.reads() || r.Local == orbitte.EffectNone {
		return // the image still has what was there before
	}
	if r.Local == orbitte.EffectUnknown || !direct {
		w.l.fail("worker %d: %v: a failed READ with the local effect %v", w.n, i, r.Local)
	}
	w.partly(i)
}

// partly accepts, byte by byte, what was there or what was to come.
func (w *worker) partly(i item) {
	got, image := w.now[i.at:i.at+i.length], w.image[i.at:i.at+i.length]
	if i.kind == moveBoard {
		want := make([]byte, i.length)
		epochKey(i.to.epoch, boardTag).fill(want, i.offset)
		for n := range got {
			if got[n] != image[n] && got[n] != want[n] {
				w.l.fail("worker %d: %v: byte %d is neither the old nor the new one", w.n, i, n)
			}
		}
	}
	copy(image, got)
}
