package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/orbitte/orbitte"
)

const arenaBytes = 3 << 20

// A worker submits requests from memory of its own, and checks every byte of it.
type worker struct {
	l            *life
	n            int
	dice         *rand.Rand
	memory       *orbitte.Memory
	registration *orbitte.Registration
	image        []byte // what the memory must hold
	now          []byte
	extent       int // bytes of image that were used since the memory was fresh
	batches      uint64
	writes       uint64
	slots        map[orbitte.Epoch]*slotState
	shorts       map[shortKey]stamp  // what each region holds
	newest       map[shortKey]uint64 // the last content seen at each address
}

// shortKey names a short-lived range of the whole run by its region, or a place where one is, or was.
type shortKey struct {
	epoch       orbitte.Epoch
	id, address uint64
}

// slotState is what this worker's slot at one engine may hold.
type slotState struct {
	any      bool // true exactly until the first success: an earlier life may have left anything
	torn     bool // true exactly when a direct WRITE may have left a part of itself
	possible map[stamp]bool
}

func newWorker(l *life, n int, seed uint64) *worker {
	w := &worker{l: l, n: n, dice: rand.New(rand.NewPCG(seed, 5)), slots: map[orbitte.Epoch]*slotState{}, shorts: map[shortKey]stamp{}, newest: map[shortKey]uint64{}}
	w.image, w.now = make([]byte, arenaBytes), make([]byte, arenaBytes)
	var err error
	if w.dice.IntN(2) == 0 {
		w.memory, err = orbitte.Adopt(make([]byte, arenaBytes)) // the race detector watches the Go heap only
	} else {
		w.memory, err = orbitte.Allocate(arenaBytes)
	}
	if err != nil {
		l.fail("memory: %v", err)
	}
	w.register()
	return w
}

func (w *worker) register() {
	r, err := w.l.engine.Register(w.memory, 0, arenaBytes, orbitte.LocalOnly)
	if err != nil {
		w.l.tolerate("Register", err)
	}
	w.registration = r // nil only while the engine is being left: then every submission is refused
}

func (w *worker) unregister() {
	if r := w.registration; r != nil {
		w.registration = nil
		w.l.mustClose("Unregister", func(ctx context.Context) error { return w.l.engine.Unregister(ctx, r) })
	}
}

func (w *worker) loop() {
	for !w.l.stopped() && w.registration != nil {
		switch n := w.dice.IntN(32); {
		case n < 12:
			w.submitAndWait()
		case n < 22:
			w.submit()
		case n < 25:
			w.notify()
		case n < 27:
			w.leaveSegment()
		case n < 28:
			w.describe()
		case n < 29:
			w.askStale()
		case n < 31:
			w.forbidden()
		default:
			w.detach()
		}
		time.Sleep(time.Duration(w.dice.IntN(3000)) * time.Microsecond)
	}
	w.unregister()
	w.unchanged("after the last Unregister")
	if err := w.memory.Close(); err != nil {
		w.l.fail("memory: %v", err)
	}
}

// A target is one engine by one of its endpoints.
type target struct {
	neighbour
	endpoint string
	segment  *orbitte.Segment
}

func (t target) key() segmentKey { return segmentKey{t.endpoint, t.epoch} }

// pick chooses an engine; false when none is known, or it cannot be reached now.
func (w *worker) pick() (t target, ok bool) {
	all := w.l.p.neighbours()
	if len(all) == 0 {
		return t, false
	}
	t.neighbour = all[w.dice.IntN(len(all))]
	t.endpoint = t.direct
	if w.dice.IntN(2) == 0 { // its own engine, too, may be asked by another name
		t.endpoint = t.through
	}
	t.segment = w.l.segments.get(t.key(), w.timeout())
	return t, t.segment != nil
}

// timeout is from 1 ms up; mostly there is time enough.
func (w *worker) timeout() time.Duration {
	if w.dice.IntN(4) != 0 {
		return time.Duration(500+w.dice.IntN(3000)) * time.Millisecond
	}
	return time.Duration(logUniform(w.dice, 1000, 4_000_000)) * time.Microsecond
}

// bounds is the context of one submission: a deadline, none, or a cancel at any time.
type bounds struct {
	context.Context
	cancel   context.CancelFunc
	deadline time.Time
	text     string
}

func (w *worker) bounds() bounds {
	var b bounds
	d := w.timeout()
	switch w.dice.IntN(4) {
	case 0: // the engine's own time
		b.Context, b.cancel = context.WithCancel(context.Background())
		d = w.l.config.RequestTimeout
		b.text = "no deadline"
	case 1:
		b.Context, b.cancel = context.WithTimeout(context.Background(), d)
		after := time.Duration(w.dice.Int64N(int64(d)))
		timer, cancel := time.AfterFunc(after, b.cancel), b.cancel
		b.cancel = func() {
			timer.Stop()
			cancel()
		}
		b.text = fmt.Sprintf("%v, cancelled after %v", d, after)
	default:
		b.Context, b.cancel = context.WithTimeout(context.Background(), d)
		b.text = d.String()
	}
	b.deadline = time.Now().Add(d)
	if at, ok := b.Deadline(); ok {
		b.deadline = at
	}
	return b
}

// notify sends one notification.
func (w *worker) notify() {
	t, ok := w.pick()
	if !ok {
		return
	}
	b := w.bounds()
	defer b.cancel()
	done := w.l.p.watch.begin(b.deadline, "%s worker %d notifies %s, %s", w.l.name(), w.n, t.name, b.text)
	defer done()
	report, err := w.l.engine.SendNotification(b, t.segment, w.l.mail.note())
	w.l.mail.count(t.epoch, report)
	w.l.p.remember("%s/%d notify %s: %v %v %v", w.l.name(), w.n, t.name, report.Status, report.Effect, err)
	switch {
	case (err == nil) != (report.Status == orbitte.Delivered):
		w.l.fail("notify: status %v with error %v", report.Status, err)
	case err != nil && !errors.Is(err, orbitte.ErrUnavailable):
		w.l.judge("SendNotification", err, b.deadline)
		w.drop(t, err)
	}
}

// drop forgets a segment that has become useless, some of the time.
func (w *worker) drop(t target, err error) {
	if errors.Is(err, orbitte.ErrStaleEpoch) || errors.Is(err, orbitte.ErrUnknownRegion) || errors.Is(err, orbitte.ErrUnreachable) {
		w.l.segments.leave(t.key())
	}
}

// leaveSegment closes a segment that others may be using.
func (w *worker) leaveSegment() {
	if t, ok := w.pick(); ok {
		w.l.segments.leave(t.key())
	}
}

// describe asks who is there, or what is new.
func (w *worker) describe() {
	t, ok := w.pick()
	if !ok {
		return
	}
	b := w.bounds()
	defer b.cancel()
	if w.dice.IntN(2) == 0 {
		done := w.l.p.watch.begin(b.deadline, "%s worker %d refreshes %s, %s", w.l.name(), w.n, t.name, b.text)
		defer done()
		if err := w.l.segments.refresh(b, t.segment); err != nil {
			w.l.judge("Refresh", err, b.deadline)
			w.drop(t, err)
		}
		return
	}
	if s := w.l.segments.inquire(segmentKey{endpoint: t.endpoint}, w.timeout()); s != nil {
		w.l.segments.close(s)
	}
}

// askStale asks for a life that has ended: whoever answers on its address now must refuse.
func (w *worker) askStale() {
	t, ok := w.pick()
	if !ok || t.stale.IsZero() {
		return
	}
	if s := w.l.segments.inquire(segmentKey{t.endpoint, t.stale}, w.timeout()); s != nil {
		w.l.fail("a segment of %s was opened for epoch %v, which ended before %v", t.endpoint, t.stale, t.epoch)
	}
}

// forbidden asks for what the source never permits.
func (w *worker) forbidden() {
	t, ok := w.pick()
	if !ok {
		return
	}
	read := w.dice.IntN(2) == 0
	for _, r := range t.segment.Regions() {
		request := orbitte.Request{Operation: orbitte.Read, Segment: t.segment, Local: w.memory.Address(), Remote: r.Address, Length: 16}
		if !read {
			request.Operation = orbitte.Write
		}
		if read && r.Permission != orbitte.RemoteWrite || !read && r.Permission != orbitte.RemoteRead {
			continue
		}
		b := w.bounds()
		defer b.cancel()
		_, err := w.l.engine.SubmitAndWait(b, []orbitte.Request{request})
		switch {
		case err == nil:
			w.l.fail("%v of a range with %v succeeded", request.Operation, r.Permission)
		case !errors.Is(err, orbitte.ErrPermission):
			w.l.judge("a forbidden request", err, b.deadline)
		}
		w.unchanged("after a forbidden request")
		return
	}
}
