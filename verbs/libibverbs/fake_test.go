//go:build cgo && !vm

package libibverbs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/orbitte/orbitte/verbs"
)

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

// threads counts this process's threads.
func threads(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/task")
	check(t, err)
	return len(all)
}

// field case F-62
func TestRegisterExplainsENOMEMByTheMemlockLimit(t *testing.T) {
	asNobody(t, "register", "LIBRARY="+buildFake(t), "DEVICE=fake0", "FAKE_FAIL=ibv_reg_mr:0:12", "SMALL=no")
	b := newBench(t)
	t.Setenv("FAKE_FAIL", "ibv_reg_mr:0:12")
	if _, _, _, err := b.l.Register(b.domain, 4096, 1, 0); errors.Is(err, verbs.ErrMemlock) || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("ENOMEM that the limit does not explain: %v", err)
	}
	t.Setenv("FAKE_FAIL", "")
}
