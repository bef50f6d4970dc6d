//go:build cgo

package libibverbs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/verbs"
)

// childVariable makes the test binary one of these programs instead of running its tests. They run as a user without
// privileges, with 64 KiB of lockable memory.
const childVariable = "ORBITTE_LIBIBVERBS_CHILD"

const childLimit = 64 << 10

var children = map[string]func() error{"preflight": childPreflight, "register": childRegister, "open": childOpen}

func childMain() {
	child, ok := children[os.Getenv(childVariable)]
	if !ok {
		return
	}
	err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: childLimit, Max: childLimit})
	if err == nil {
		err = child()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// asNobody runs a child and returns what it said.
func asNobody(t *testing.T, name string, more ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("privilege: only root can start a process of another user; run as root")
	}
	folder, err := os.MkdirTemp("", "orbitte")
	check(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	check(t, os.Chmod(folder, 0o755)) // t.TempDir is closed to others
	program := filepath.Join(folder, "child")
	copyFile(t, "/proc/self/exe", program)
	child := exec.Command(program)
	child.Dir = folder
	child.Env = append(append(os.Environ(), childVariable+"="+name), more...)
	child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := child.CombinedOutput(); err != nil {
		t.Errorf("%s: %v: %s", name, err, out)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	check(t, err)
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	check(t, err)
	_, err = io.Copy(out, in)
	check(t, errors.Join(err, out.Close()))
}

// field case F-62
func TestPreflightNamesTheMemlockLimitAndItsRemedy(t *testing.T) { asNobody(t, "preflight") }

func childPreflight() error {
	if err := MemoryLockAllows(childLimit); err != nil {
		return fmt.Errorf("what the limit allows is refused: %w", err)
	}
	return namesLimit(MemoryLockAllows(1<<20), 1<<20, nil)
}

// namesLimit checks what an error says of the limit.
func namesLimit(err error, asked uint64, native error) error {
	var e *verbs.MemlockError
	if !errors.Is(err, verbs.ErrMemlock) || !errors.As(err, &e) || e.Limit != childLimit || e.Asked != asked {
		return fmt.Errorf("it does not name the limit: %v", err)
	}
	if native != nil && !errors.Is(err, native) {
		return fmt.Errorf("it hides %v: %v", native, err)
	}
	for _, part := range []string{fmt.Sprint(childLimit), fmt.Sprint(asked), "ulimit -l unlimited", "LimitMEMLOCK=infinity"} {
		if !strings.Contains(err.Error(), part) {
			return fmt.Errorf("it does not say %q: %v", part, err)
		}
	}
	return nil
}

// childRegister registers more than the limit with the library and device that it is told.
func childRegister() error {
	l, err := load(os.Getenv("LIBRARY"))
	if err != nil {
		return err
	}
	device, err := l.OpenDevice(os.Getenv("DEVICE"))
	if err != nil {
		return err
	}
	domain, err := l.AllocateDomain(device)
	if err != nil {
		return err
	}
	memory, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	if os.Getenv("SMALL") == "" {
		h, _, _, err := l.Register(domain, addressOf(memory), childLimit/2, verbs.AccessLocalWrite)
		if err != nil {
			return fmt.Errorf("within the limit: %w", err)
		}
		if err := MemoryLockAllows(childLimit); err == nil {
			return errors.New("the preflight does not count what is pinned")
		}
		if err := l.Deregister(h); err != nil {
			return err
		}
	}
	_, _, _, err = l.Register(domain, addressOf(memory), uint64(len(memory)), verbs.AccessLocalWrite)
	return namesLimit(err, uint64(len(memory)), syscall.ENOMEM)
}
