package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/orbitte/orbitte"
)

// A segmentTable is the open segments of one engine; its workers share them, and close them under each other.
type segmentTable struct {
	life *life
	mu   sync.Mutex
	open map[segmentKey]*orbitte.Segment
	// began and ended count the refreshes of each segment.
	began, ended map[*orbitte.Segment]int
}

type segmentKey struct {
	endpoint string
	epoch    orbitte.Epoch
}

// get finds a segment or opens it; nil when that failed, as it may.
func (t *segmentTable) get(k segmentKey, timeout time.Duration) *orbitte.Segment {
	t.mu.Lock()
	s := t.open[k]
	t.mu.Unlock()
	if s != nil {
		return s
	}
	s = t.inquire(k, timeout)
	if s == nil {
		return nil
	}
	if s.Epoch() != k.epoch {
		t.life.fail("OpenSegment %s: epoch %v, asked for %v", k.endpoint, s.Epoch(), k.epoch)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		t.open = map[segmentKey]*orbitte.Segment{}
	}
	if other := t.open[k]; other != nil {
		go t.close(s) // somebody was faster; two segments of one peer at a time are a case of their own
		return other
	}
	t.open[k] = s
	return s
}

func (t *segmentTable) inquire(k segmentKey, timeout time.Duration) *orbitte.Segment {
	l := t.life
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	done := l.p.watch.begin(deadline, "%s OpenSegment %s %v in %v", l.name(), k.endpoint, k.epoch, timeout)
	defer done()
	var s *orbitte.Segment
	var err error
	if k.epoch.IsZero() {
		s, err = l.engine.Describe(ctx, k.endpoint)
	} else {
		s, err = l.engine.OpenSegment(ctx, k.endpoint, k.epoch)
	}
	if err != nil {
		l.judge("OpenSegment "+k.endpoint, err, deadline)
		return nil
	}
	return s
}

// refresh reads a segment's regions again. Meanwhile an address may come to mean another region, for everybody.
func (t *segmentTable) refresh(ctx context.Context, s *orbitte.Segment) error {
	count := func(of *map[*orbitte.Segment]int) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if *of == nil {
			*of = map[*orbitte.Segment]int{}
		}
		(*of)[s]++
	}
	count(&t.began)
	defer count(&t.ended)
	return s.Refresh(ctx)
}

// view names what a segment's addresses mean now; -1 while that may be changing.
func (t *segmentTable) view(s *orbitte.Segment) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.began[s] != t.ended[s] {
		return -1
	}
	return t.began[s]
}

// leave takes a segment out of the table and closes it, whoever uses it.
func (t *segmentTable) leave(k segmentKey) {
	t.mu.Lock()
	s := t.open[k]
	delete(t.open, k)
	t.mu.Unlock()
	if s != nil {
		t.close(s)
	}
}

func (t *segmentTable) close(s *orbitte.Segment) {
	t.life.mustClose("CloseSegment", func(ctx context.Context) error { return t.life.engine.CloseSegment(ctx, s) })
}

func (t *segmentTable) closeAll() {
	t.mu.Lock()
	open := t.open
	t.open = nil
	t.mu.Unlock()
	for _, s := range open {
		t.close(s)
	}
}

// expected are the classes of errors that faults of the plan, tight deadlines, small limits and the other workers
// explain. ErrProtocol is none of them: the proxies cut streams, but change no byte.
var expected = [...]error{
	orbitte.ErrDeadline, orbitte.ErrCancelled, orbitte.ErrDisconnected, orbitte.ErrUnreachable, orbitte.ErrStaleEpoch, orbitte.ErrClosed,
	orbitte.ErrExhausted, orbitte.ErrConflict, orbitte.ErrUnknownRegion, orbitte.ErrPeer,
}

// judge accepts an expected error, unless it is a deadline before its time.
func (l *life) judge(what string, err error, deadline time.Time) {
	l.p.count.refused.Add(1)
	var own *orbitte.Error
	if !errors.As(err, &own) || own.Op == "" || own.Known() == "" || own.Remedy() == "" {
		l.fail("%s: an error that says too little: %#v %v", what, err, err)
	}
	if own.Class == orbitte.ErrDeadline && time.Now().Before(deadline.Add(-2*time.Millisecond)) {
		l.fail("%s: %v before its deadline: %v", what, time.Until(deadline), err)
	}
	for n, class := range expected {
		if own.Class == class {
			l.errors[n].Add(1)
			if class == orbitte.ErrUnreachable || class == orbitte.ErrExhausted || class == orbitte.ErrClosed {
				time.Sleep(5 * time.Millisecond) // to ask again at once only keeps the processor from the others
			}
			return
		}
	}
	if !scarce(err) {
		l.fail("%s: %v", what, err)
	}
}
