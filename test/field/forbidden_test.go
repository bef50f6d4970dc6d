package field

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte"
)

// forbiddenRings holds a child to what an engine does where io_uring is forbidden: with lanes that it would give a ring it
// takes epoll and says why, by order it fails and says why.
func forbiddenRings(t *testing.T, c *child, why, remedy string) {
	t.Helper()
	o := ask[opened](c, "open", settings{Log: true, Pinned: true})
	if o.Kernel != "epoll" {
		t.Fatalf("the kernel is %s (%s)", o.Kernel, o.Reason)
	}
	for _, word := range []string{why, remedy} {
		if !strings.Contains(o.Reason, word) {
			t.Errorf("Stats does not say %q: %s", word, o.Reason)
		}
	}
	if !eventually(5*time.Second, func() bool { return contains(ask[[]string](c, "log", nil), "engine open", `"kernel":"epoll"`, why) }) {
		t.Errorf("the log does not say %q:\n%s", why, strings.Join(ask[[]string](c, "log", nil), "\n"))
	}
	_, err := try[opened](c, "open", settings{Kernel: orbitte.IOUring})
	if !errors.Is(err, orbitte.ErrUnavailable) {
		t.Errorf("by order: %v", err)
	} else if !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), remedy) {
		t.Errorf("by order, the error does not say %q and %q: %v", why, remedy, err)
	}
	placed := ask[placed](c, "place", place{Bytes: pageBytes, Permission: orbitte.RemoteRead, Stamp: true})
	e := openEngine(t, orbitte.Config{})
	local := buffer(t, e, pageBytes)
	if _, err := submit(e, 20*time.Second, orbitte.Request{
		Operation: orbitte.Read, Segment: openSegment(t, e, o.Endpoint, o.Epoch), Local: local.Address(), Remote: placed.Address, Length: pageBytes,
	}); err != nil || !stamped(local.Bytes(), o.Epoch) {
		t.Errorf("over epoll: %v", err)
	}
	if left := ask[[]string](c, "close", engineOf{o.Engine}); len(left) > 0 {
		t.Errorf("left after Close: %v", left)
	}
}

// field case F-61
func TestASeccompFilterThatForbidsRingsIsNamedAndEpollIsUsed(t *testing.T) {
	t.Parallel()
	for name, errno := range map[string]string{"EPERM": "1", "ENOSYS": "38"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			why, remedy := "a seccomp filter of this process forbids the call", "seccomp profile"
			if name == "ENOSYS" {
				why, remedy = "the seccomp filter of this process says so", "permit io_uring_setup in the filter"
			}
			forbiddenRings(t, spawn(t, "filtered", seccompVariable+"="+errno), why, remedy)
		})
	}
}

// A filter that comes after Open costs the engine its rings, and neither the process nor an answer: requests here fail with an
// error that names the call and what helps, those of peers as with a source that is gone, and Close leaves nothing.
//
// field case F-61
func TestAFilterThatForbidsRingsInUseFailsRequestsAndNotTheProcess(t *testing.T) {
	t.Parallel()
	needRings(t)
	for name, errno := range map[string]uint32{"EPERM": 1, "ENOSYS": 38} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := openEngine(t, orbitte.Config{})
			local := buffer(t, e, pageBytes)
			src := spawnSource(t, settings{Kernel: orbitte.IOUring, Lanes: 2}, pageBytes)
			read := orbitte.Request{Operation: orbitte.Read, Segment: openSegment(t, e, src.Endpoint, src.Epoch), Local: local.Address(), Remote: src.Address, Length: pageBytes}
			if _, err := submit(e, 20*time.Second, read); err != nil {
				t.Fatal(err)
			}
			own := transfer{Operation: orbitte.Read, Local: src.Address, Remote: buffer(t, e, pageBytes).Address(), Length: pageBytes, Timeout: 20 * time.Second}
			own.Segment = ask[int](src.child, "segment", peerOf{Endpoint: e.Endpoint(), Epoch: e.Epoch(), Timeout: 20 * time.Second})
			ask[transfer](src.child, "transfer", own)
			ask[bool](src.child, "forbid-entering", errno)
			var err error // what a lane that spins can do without entering its ring, it still does
			if !eventually(10*time.Second, func() bool { _, err = try[transfer](src.child, "transfer", own); return err != nil }) {
				t.Fatal("requests go on without the ring")
			}
			for range 3 {
				if !errors.Is(err, orbitte.ErrDisconnected) && !errors.Is(err, orbitte.ErrUnreachable) ||
					!strings.Contains(err.Error(), "io_uring_enter, which was permitted before, is refused") || !strings.Contains(err.Error(), "remedy: let this process enter its rings") {
					t.Errorf("here: %v", err)
				}
				_, err = try[transfer](src.child, "transfer", own)
			}
			// Its socket still listens, as that of a process that is stopped.
			if _, err := submit(e, time.Second, read); !errors.Is(err, orbitte.ErrDisconnected) && !errors.Is(err, orbitte.ErrUnreachable) && !errors.Is(err, orbitte.ErrDeadline) {
				t.Errorf("from a peer: %v", err)
			}
			if left := ask[[]string](src.child, "close", engineOf{src.Engine}); len(left) > 0 {
				t.Errorf("left after Close: %v", left)
			}
		})
	}
}

const ringSwitch = "/proc/sys/kernel/io_uring_disabled"

// The switch is the machine's. Its value 1 forbids io_uring to unprivileged processes only, so that tests beside this
// one, which run as root, do not notice; the child is nobody.
//
// field case F-61
func TestASysctlThatForbidsRingsIsNamedAndEpollIsUsed(t *testing.T) {
	t.Parallel()
	before, err := os.ReadFile(ringSwitch)
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("no-sysctl: " + ringSwitch + " came with Linux 6.6")
	}
	if os.Geteuid() != 0 {
		t.Skip("no-root: " + ringSwitch + " is to be set, and restored")
	}
	if strings.TrimSpace(string(before)) == "0" {
		t.Cleanup(func() {
			if err := os.WriteFile(ringSwitch, before, 0); err != nil {
				t.Errorf("%s is not restored: %v", ringSwitch, err)
			}
		})
		if err := os.WriteFile(ringSwitch, []byte("1\n"), 0); errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
			t.Skip("no-sysctl: " + err.Error())
		} else if err != nil {
			t.Fatal(err)
		}
	}
	nobody := &syscall.Credential{Uid: 65534, Gid: 65534}
	forbiddenRings(t, spawnAs(t, "nobody", nobody), "the sysctl kernel.io_uring_disabled is", "set it to 0")
}
