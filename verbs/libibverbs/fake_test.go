//go:build cgo

package libibverbs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/orbitte/orbitte/verbs"
)

// fakes are the stand-in libraries built so far, by the flags they were built with.
var fakes = struct {
	sync.Mutex
	folder string
	paths  map[string]string
}{paths: map[string]string{}}

func TestMain(m *testing.M) {
	childMain()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if fakes.folder != "" {
			_ = os.RemoveAll(fakes.folder)
		}
		os.Exit(code)
	}))
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
	if fakes.folder == "" {
		fakes.folder, err = os.MkdirTemp("", "orbitte")
		check(t, errors.Join(err, os.Chmod(fakes.folder, 0o755)))
	}
	path := filepath.Join(fakes.folder, fmt.Sprintf("libibverbs%d.so.1.99.7", len(fakes.paths)))
	args := append([]string{"-O2", "-shared", "-fPIC", "-o", path}, flags...)
	if !strings.Contains(key, "--version-script=") {
		args = append(args, "-Wl,--version-script=testdata/fake.map")
	}
	if out, err := exec.Command(gcc, append(args, "testdata/fake.c")...).CombinedOutput(); err != nil {
		t.Fatalf("building the stand-in library: %v\n%s", err, out)
	}
	fakes.paths[key] = path
	return path
}

// loadFake loads a stand-in library of its own.
func loadFake(t testing.TB, flags ...string) *library {
	t.Helper()
	l, err := load(buildFake(t, flags...))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// must ends the test when a call failed that should not.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A bench is one device with everything on it.
type bench struct {
	l        *library
	device   verbs.DeviceHandle
	domain   verbs.DomainHandle
	channel  verbs.ChannelHandle
	sends    verbs.QueueHandle
	receives verbs.QueueHandle
	pair     verbs.PairHandle
}

func newBench(t testing.TB, flags ...string) *bench {
	t.Helper()
	b := &bench{l: loadFake(t, flags...)}
	b.device = must(b.l.OpenDevice("fake1"))(t)
	b.domain = must(b.l.AllocateDomain(b.device))(t)
	b.channel = must(b.l.CreateChannel(b.device))(t)
	b.sends = must(b.l.CreateQueue(b.device, 1024, b.channel))(t)
	b.receives = must(b.l.CreateQueue(b.device, 1024, b.channel))(t)
	pair, number, err := b.l.CreatePair(b.domain, verbs.PairOptions{Sends: b.sends, Receives: b.receives, SendDepth: 16, ReceiveDepth: 17, Inline: 18})
	check(t, err)
	if number != 16<<16|17<<8|18 {
		t.Fatalf("the depths arrived as %#x", number)
	}
	b.pair = pair
	t.Cleanup(func() { b.close(t) })
	return b
}

func (b *bench) close(t testing.TB) {
	t.Helper()
	for _, err := range []error{
		b.l.DestroyPair(b.pair), b.l.DestroyQueue(b.sends), b.l.DestroyQueue(b.receives), b.l.DestroyChannel(b.channel),
		b.l.FreeDomain(b.domain), b.l.CloseDevice(b.device),
	} {
		if err != nil {
			t.Errorf("at the end of the test: %v", err)
		}
	}
}

// takeAll polls until both queues are empty.
func (b *bench) takeAll(t testing.TB) (sends, receives []verbs.Completion) {
	t.Helper()
	out := make([]verbs.Completion, 50)
	for {
		sent, received, err := b.l.Poll(b.sends, b.receives, out)
		check(t, err)
		sends = append(sends, out[:sent]...)
		receives = append(receives, out[sent:sent+received]...)
		if sent+received < len(out) {
			return sends, receives
		}
	}
}

// threads counts this process's threads.
func threads(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/task")
	check(t, err)
	return len(all)
}

func contains(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
}
