package orbitte

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/orbitte/orbitte/reactor/uring"
	"github.com/orbitte/orbitte/segments"
)

// children are programs that tests run in a process of its own: this test binary with ORBITTE_TEST_CHILD set.
var children = map[string]func() error{}

// deliberate counts memory objects that tests left on purpose: retained things have no end.
var deliberate, deliberateBytes atomic.Int64

// objects counts the memory objects that nobody left on purpose.
func objects() (count, bytes int64) {
	count, bytes = segments.Mappings()
	return count - deliberate.Load(), bytes - deliberateBytes.Load()
}

// TestMain fails the run when a test leaves a goroutine, a descriptor or a memory object behind.
func TestMain(m *testing.M) {
	if name := os.Getenv("ORBITTE_TEST_CHILD"); name != "" {
		if err := children[name](); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	warmUp()
	before := descriptors()
	code := m.Run()
	for _, complaint := range leftovers(before) {
		fmt.Fprintln(os.Stderr, "left behind by the package:", complaint)
		code = max(code, 1)
	}
	os.Exit(code)
}

// warmUp lets the runtime open what it keeps: its own poller.
func warmUp() {
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		l.Close()
	}
}

func leftovers(before []string) (complaints []string) {
	if err := goleak.Find(); err != nil {
		complaints = append(complaints, err.Error())
	}
	if after := descriptors(); len(after) > len(before) {
		complaints = append(complaints, fmt.Sprintf("descriptors %v, at first %v", after, before))
	}
	if count, bytes := objects(); count != 0 {
		complaints = append(complaints, fmt.Sprintf("%d memory objects of %d bytes: %v", count, bytes, segments.Residents()))
	}
	return complaints
}

// descriptors lists what the process has open. The listing's own descriptor is always among them.
func descriptors() []string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	var open []string
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err == nil {
			open = append(open, e.Name()+"="+target)
		}
	}
	return open
}

// openedSince lists what is open now and was not before, by what it is. A lane that runs looks into files of /proc for a
// moment now and then, whenever it likes: these say nothing.
func openedSince(before []string) []string {
	return slices.DeleteFunc(descriptors(), func(d string) bool {
		_, target, _ := strings.Cut(d, "=")
		return slices.Contains(before, d) || strings.HasPrefix(target, "/proc/")
	})
}

// rings counts the io_uring mappings of the process.
func rings() int {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0
	}
	return strings.Count(string(text), "io_uring")
}

// leavesNothing checks when the test ends that it left no goroutine, descriptor, memory object or ring. Called
// again in the same test it does nothing.
func leavesNothing(t testing.TB) {
	t.Helper()
	if _, again := watched.LoadOrStore(t, true); again {
		return
	}
	current := goleak.IgnoreCurrent()
	open, mapped := descriptors(), rings()
	count, bytes := objects()
	t.Cleanup(func() {
		watched.Delete(t)
		if err := goleak.Find(current); err != nil {
			t.Error("goroutines left:", err)
		}
		if after := descriptors(); len(after) > len(open) {
			t.Errorf("descriptors left: %v, before %v", after, open)
		}
		if after := rings(); after > mapped {
			t.Errorf("%d io_uring mappings, before the test %d", after, mapped)
		}
		if c, b := objects(); c != count || b != bytes {
			t.Errorf("memory objects: %d of %d bytes, before the test %d of %d: %v", c, b, count, bytes, segments.Residents())
		}
	})
}

var watched sync.Map // testing.TB → true

// newEngine opens an engine; when the test ends it is closed and must be drained: every gauge at zero and
// nothing retained.
func newEngine(t testing.TB, c Config) *Engine {
	t.Helper()
	leavesNothing(t)
	e, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { drain(t, e) })
	return e
}

// drain closes an engine and checks that nothing is charged or retained.
func drain(t testing.TB, e *Engine) {
	t.Helper()
	e.ReceiveNotifications()
	closeEngine(t, e)
	e.ReceiveNotifications()
	isDrained(t, e)
}

func closeEngine(t testing.TB, e *Engine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// isDrained checks SPEC U-2: after a full drain every gauge is back at zero.
func isDrained(t testing.TB, e *Engine) {
	t.Helper()
	stats := e.Stats()
	for _, g := range stats.Gauges {
		if g.Used != 0 {
			t.Errorf("after the drain %d %s are charged to %q", g.Used, g.Unit, g.Name)
		}
	}
	if kept := e.RetainedResources(); len(kept) != 0 || stats.Unquiesced != 0 {
		t.Errorf("after the drain: unquiesced %d, retained %v", stats.Unquiesced, kept)
	}
	for _, r := range e.loops() {
		if buffers, bytes, slots := r.lane.Arena.Lent(); buffers+slots != 0 {
			t.Errorf("%s: %d buffers of %d bytes and %d slots are still lent", r.name(), buffers, bytes, slots)
		}
	}
}

// within is a context that ends long before the package's time is up.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// soon is a context that is cancelled if the test hangs. It has no deadline, so that it serves on the
// virtual clock as well: there the engine's own RequestTimeout counts.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	timer := time.AfterFunc(20*time.Second, cancel)
	t.Cleanup(func() {
		timer.Stop()
		cancel()
	})
	return ctx
}

// must fails the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wants checks an error's class, and that it says what is known and what to do.
func wants(t testing.TB, err, class error) *Error {
	t.Helper()
	var own *Error
	if !errors.Is(err, class) || !errors.As(err, &own) {
		t.Fatalf("error is %v, want class %q", err, class)
	}
	if own.Op == "" || own.Known() == "" || own.Remedy() == "" {
		t.Fatalf("error without call, what is known or remedy: %#v", own)
	}
	return own
}

// allocated is memory that is closed when the test ends.
func allocated(t testing.TB, length int) *Memory {
	t.Helper()
	leavesNothing(t)
	m, err := Allocate(length)
	must(t, err)
	t.Cleanup(func() { must(t, m.Close()) })
	return m
}

// pattern fills memory with bytes that depend on their place.
func pattern(m *Memory, seed int) {
	for i := range m.Bytes() {
		m.Bytes()[i] = byte(i*7 + i>>8*13 + seed)
	}
}

// registered is the whole memory, until the test ends or the test unregisters it.
func registered(t testing.TB, e *Engine, m *Memory, p Permission, options ...RegisterOption) *Registration {
	t.Helper()
	r, err := e.Register(m, 0, uint64(m.Len()), p, options...)
	must(t, err)
	t.Cleanup(func() {
		if r.used {
			return
		}
		if err := e.Unregister(soon(t), r); err != nil {
			t.Errorf("Unregister: %v", err)
		}
	})
	return r
}

// opened is a segment that is closed when the test ends.
func opened(t testing.TB, e *Engine, of *Engine) *Segment {
	t.Helper()
	s, err := e.OpenSegment(soon(t), of.Endpoint(), of.Epoch())
	must(t, err)
	t.Cleanup(func() {
		if err := e.CloseSegment(soon(t), s); err != nil {
			t.Errorf("CloseSegment: %v", err)
		}
	})
	return s
}

// pair is two engines, each with memory that it has registered for everything.
type pair struct {
	source, requester *Engine
	silence           func() // stops a source in manual mode from being driven
	remote, local     *Memory
	export, own       *Registration
	segment           *Segment
}

func newPair(t testing.TB, source, requester Config, size int) *pair {
	t.Helper()
	p := &pair{source: newEngine(t, source), requester: newEngine(t, requester)}
	p.silence = driven(t, p.source)
	p.remote, p.local = allocated(t, size), allocated(t, size)
	pattern(p.remote, 1)
	p.export = registered(t, p.source, p.remote, ReadWrite)
	p.own = registered(t, p.requester, p.local, LocalOnly)
	p.segment = opened(t, p.requester, p.source)
	return p
}

// request is length bytes at the same offset on both sides.
func (p *pair) request(op Operation, offset, length int) Request {
	return Request{
		Operation: op, Segment: p.segment, Length: uint64(length),
		Local: p.local.Address() + uint64(offset), Remote: p.remote.Address() + uint64(offset),
	}
}

func (p *pair) whole(op Operation) []Request { return []Request{p.request(op, 0, p.local.Len())} }

// eachKernel runs a test on both real kernels.
func eachKernel(t *testing.T, test func(t *testing.T, c Config)) {
	for name, kernel := range map[string]KernelChoice{"epoll": Epoll, "io_uring": IOUring} {
		t.Run(name, func(t *testing.T) {
			if kernel == IOUring {
				if err := uring.Probe(); err != nil {
					t.Skip("no-io-uring: " + err.Error())
				}
			}
			test(t, Config{Kernel: kernel, Lanes: 1})
		})
	}
}

// eachMode runs a test on both real kernels in all four progress modes (SPEC L-4).
func eachMode(t *testing.T, test func(t *testing.T, c Config)) {
	eachKernel(t, func(t *testing.T, c Config) {
		for name, mode := range map[string]Progress{"adaptive": Adaptive, "event": EventDriven, "busy": Busy, "manual": Manual} {
			t.Run(name, func(t *testing.T) {
				c.Progress = mode
				test(t, c)
			})
		}
	})
}

// driven drives engines in manual mode from a goroutine of its own until the test ends or stop is called:
// the peer of an engine that a test drives by its calls. One that is not driven answers nothing.
func driven(t testing.TB, engines ...*Engine) (stop func()) {
	engines = slices.DeleteFunc(engines, func(e *Engine) bool { return e.config.Progress != Manual })
	if len(engines) == 0 {
		return func() {}
	}
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-over:
				return
			default:
			}
			for _, e := range engines {
				e.Progress(100 * time.Microsecond)
			}
		}
	}()
	stop = sync.OnceFunc(func() {
		close(over)
		<-done
	})
	t.Cleanup(stop)
	return stop
}
