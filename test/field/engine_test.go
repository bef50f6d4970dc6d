package field

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/orbitte/orbitte"
)

// openEngine opens an engine in the test's own process; it is closed, and held to be clean, when the test ends.
func openEngine(t testing.TB, c orbitte.Config) *orbitte.Engine {
	t.Helper()
	e, err := orbitte.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeEngine(t, e) })
	return e
}

// closeEngine closes an engine and asserts that nothing is left of it.
func closeEngine(t testing.TB, e *orbitte.Engine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		t.Error(err)
		return
	}
	for _, g := range e.Stats().Gauges {
		if g.Used != 0 {
			t.Errorf("%s: %d %s are left after Close", g.Name, g.Used, g.Unit)
		}
	}
	for _, r := range e.RetainedResources() {
		t.Errorf("%s is left after Close: %s, %s", r.Kind, r.Object, r.Reason)
	}
}

// buffer is local memory, registered in e until the test ends.
func buffer(t testing.TB, e *orbitte.Engine, length int) *orbitte.Memory {
	t.Helper()
	m, err := orbitte.Allocate(length)
	if err != nil {
		t.Fatal(err)
	}
	r, err := e.Register(m, 0, uint64(length), orbitte.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(e.Unregister(context.Background(), r), m.Close()); err != nil {
			t.Error(err)
		}
	})
	return m
}

func within(d time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return do(ctx)
}

func openSegment(t testing.TB, e *orbitte.Engine, endpoint string, epoch orbitte.Epoch) *orbitte.Segment {
	t.Helper()
	var s *orbitte.Segment
	err := within(20*time.Second, func(ctx context.Context) (err error) {
		s, err = e.OpenSegment(ctx, endpoint, epoch)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// submit is one request with its own deadline.
func submit(e *orbitte.Engine, d time.Duration, r orbitte.Request) (report orbitte.Report, err error) {
	err = within(d, func(ctx context.Context) error {
		report, err = e.SubmitAndWait(ctx, []orbitte.Request{r})
		return err
	})
	return report, err
}

// source is a child with one engine and one stamped memory.
type source struct {
	*child
	opened
	placed
}

func spawnSource(t testing.TB, s settings, bytes uint64, environment ...string) *source {
	t.Helper()
	return readySource(t, spawn(t, "source", environment...), s, bytes)
}

func readySource(t testing.TB, c *child, s settings, bytes uint64) *source {
	t.Helper()
	src := &source{child: c, opened: ask[opened](c, "open", s)}
	src.placed = ask[placed](c, "place", place{Bytes: bytes, Permission: orbitte.ReadWrite, Stamp: true})
	return src
}

// closeClean closes the source's engine and asserts that nothing is left.
func (s *source) closeClean() {
	s.t.Helper()
	if left := ask[[]string](s.child, "close", engineOf{s.Engine}); len(left) > 0 {
		s.t.Errorf("%s: left after Close: %v", s.name, left)
	}
}

// eventually looks at something until it holds or d has passed; the last look decides.
func eventually(d time.Duration, holds func() bool) bool {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if holds() {
			return true
		}
	}
	return holds()
}
