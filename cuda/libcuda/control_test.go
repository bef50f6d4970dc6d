//go:build cgo

package libcuda

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A control is the page that the stand-in driver shares with the tests (testdata/fake.h).
type control struct {
	delay, callbackDelay, lose, kind, sticky, preset, hold, popOther uint32

	rules [8]rule

	violations, maxDepth                                         uint32
	depth                                                        int64
	pushes, pops, calls, callbacks, copies                       uint64
	contexts, allocations, pinnedBlocks, streamCount, eventCount int64
	violation                                                    [256]byte
}

type rule struct {
	name                      [48]byte
	nth, count, result, after uint32
}

// page is one for the process; every stand-in library maps it.
var page *control

// fakes are the stand-in libraries built so far, by the flags they were built with.
var fakes = struct {
	sync.Mutex
	folder string
	paths  map[string]string
}{paths: map[string]string{}}

// openControl makes the page before any library is loaded.
func openControl() error {
	folder, err := os.MkdirTemp("", "orbitte")
	if err != nil {
		return err
	}
	fakes.folder = folder
	if err := os.Chmod(folder, 0o755); err != nil {
		return err
	}
	path := filepath.Join(folder, "control")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	size := int(unsafe.Sizeof(control{}))
	if err := file.Truncate(int64(size)); err != nil {
		return err
	}
	memory, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	page = (*control)(unsafe.Pointer(unsafe.SliceData(memory)))
	return os.Setenv("FAKE_CUDA_CONTROL", path)
}

// buildFake builds a stand-in library with gcc, once for each set of flags. Any user may read it.
func buildFake(t testing.TB, flags ...string) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("compiler: no gcc to build the stand-in library with; install gcc")
	}
	fakes.Lock()
	defer fakes.Unlock()
	key := strings.Join(flags, " ")
	if path, ok := fakes.paths[key]; ok {
		return path
	}
	path := filepath.Join(fakes.folder, fmt.Sprintf("libcuda%d.so.1", len(fakes.paths)))
	args := append([]string{"-std=gnu11", "-shared", "-fPIC", "-o", path}, flags...)
	if out, err := exec.Command(gcc, append(args, "testdata/fake.c", "-lpthread")...).CombinedOutput(); err != nil {
		t.Fatalf("building the stand-in library: %v\n%s", err, out)
	}
	fakes.paths[key] = path
	return path
}

// loadFake loads a stand-in library. Nothing is wrong with it, and the test fails when it was misused.
func loadFake(t testing.TB, flags ...string) *library {
	t.Helper()
	l, err := load(buildFake(t, flags...), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { page.settle(t) })
	return l
}

// settle is the end of a test: what was asked for is taken back, and nothing was broken or left on a thread.
func (c *control) settle(t testing.TB) {
	t.Helper()
	for _, p := range []*uint32{&c.delay, &c.callbackDelay, &c.lose, &c.kind, &c.sticky, &c.preset, &c.hold, &c.popOther} {
		atomic.StoreUint32(p, 0)
	}
	c.rules = [8]rule{}
	if n := atomic.SwapUint32(&c.violations, 0); n != 0 {
		t.Errorf("the driver saw %d violations, the first: %s", n, cString(c.violation[:]))
	}
	if d := atomic.LoadInt64(&c.depth); d != 0 || atomic.LoadUint64(&c.pushes) != atomic.LoadUint64(&c.pops) {
		t.Errorf("%d contexts were left on threads (%d pushed, %d popped)", d, c.pushes, c.pops)
	}
}

// fail makes the n-th call of a function from now fail, before or after it has done its work.
func (c *control) fail(t testing.TB, name string, nth, result uint32, after bool) {
	t.Helper()
	c.failMore(t, name, nth, 0, result, after)
}

// failMore is fail of more calls after the n-th.
func (c *control) failMore(t testing.TB, name string, nth, more, result uint32, after bool) {
	t.Helper()
	for i := range c.rules {
		r := &c.rules[i]
		if atomic.LoadUint32(&r.nth) != 0 {
			continue
		}
		*r = rule{count: more, result: result}
		copy(r.name[:], name)
		if after {
			r.after = 1
		}
		atomic.StoreUint32(&r.nth, nth)
		return
	}
	t.Fatal("no rule is free")
}

func set(p *uint32, v uint32) { atomic.StoreUint32(p, v) }

func cString(b []byte) string {
	text, _, _ := strings.Cut(string(b), "\x00")
	return text
}
