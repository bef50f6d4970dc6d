package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// exitCannot is the exit status of a run that could not be set up here.
const exitCannot = 77

// cannot says why this machine cannot boot a guest: a word that is the type, and the reason with its remedy.
type cannot struct{ word, reason string }

func (c *cannot) Error() string { return c.word + ": " + c.reason }

// A need is a file or a program that a Debian package brings.
type need struct{ pattern, pkg string }

var (
	// machineNeeds is what booting takes, and the user space that the guest shares with its host.
	machineNeeds = []need{
		{"qemu-system-x86_64", "qemu-system-x86"}, {"xz", "xz-utils"}, {"zstd", "zstd"}, {"dpkg-deb", "dpkg"},
		{"ip", "iproute2"}, {"rdma", "iproute2"}, {"nft", "nftables"},
		{"/usr/lib/*/libibverbs.so.1", "libibverbs1"}, {"/usr/lib/*/libibverbs/librxe-rdmav*.so", "ibverbs-providers"},
	}
	// gateNeeds is what the gate's own parts take.
	gateNeeds = []need{
		{"gcc", "gcc"}, {"/usr/include/stdlib.h", "libc6-dev"}, {"/usr/include/infiniband/verbs.h", "libibverbs-dev"},
		{"ibv_rc_pingpong", "ibverbs-utils"}, {"ib_write_bw", "perftest"},
	}
)

func (n need) met() bool {
	if strings.Contains(n.pattern, "/") {
		found, err := filepath.Glob(n.pattern)
		return err == nil && len(found) > 0
	}
	_, err := exec.LookPath(n.pattern)
	return err == nil
}

func missing(needs []need) (packages []string) {
	for _, n := range needs {
		if !n.met() && (len(packages) == 0 || packages[len(packages)-1] != n.pkg) {
			packages = append(packages, n.pkg)
		}
	}
	return packages
}

// install brings what is missing with apt, one at a time on this machine. A nil error means that every need is met.
func install(needs []need, cache string, say func(string)) error {
	if runtime.GOARCH != "amd64" {
		return &cannot{"wrong-arch", "the guest's programs are the host's, and its kernel is Debian's for amd64; this is " + runtime.GOARCH}
	}
	if len(missing(needs)) == 0 {
		return nil
	}
	unlock, err := lock(filepath.Join(cache, "apt.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	packages := missing(needs)
	if len(packages) == 0 {
		return nil
	}
	list := strings.Join(packages, " ")
	if os.Geteuid() != 0 {
		return &cannot{"no-root", "apt-get install " + list}
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return &cannot{"no-apt", "this is no Debian; install what its packages " + list + " bring"}
	}
	start := time.Now()
	if err := apt("install", append([]string{"-y", "--no-install-recommends"}, packages...)...); err != nil {
		return &cannot{"no-network", fmt.Sprintf("apt-get install %s: %v", list, err)}
	}
	say(fmt.Sprintf("installed %s in %.1f s", list, time.Since(start).Seconds()))
	if still := missing(needs); len(still) > 0 {
		return &cannot{"no-package", "installed, yet what they should bring is absent: " + strings.Join(still, " ")}
	}
	return nil
}

// aptTimeout bounds one call of apt-get, in a time that a slow mirror needs.
const aptTimeout = 5 * time.Minute

// apt calls apt-get (not killed with us, which would leave a package half installed), and once more
// after an update when it fails without one, as it does where the lists are absent or old.
func apt(verb string, args ...string) error {
	once := func(args ...string) error {
		var said bytes.Buffer
		cmd := exec.Command("apt-get", append([]string{"-qq", "-o", "APT::Sandbox::User=root", "-o", "DPkg::Lock::Timeout=120"}, args...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		cmd.Stdout, cmd.Stderr = &said, &said
		timer := time.AfterFunc(aptTimeout, func() { _ = cmd.Process.Kill() }) // it may have ended
		defer timer.Stop()
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("apt-get %s: %w: %s", args[0], err, lastLine(said.String()))
		}
		return nil
	}
	args = append([]string{verb}, args...)
	if err := once(args...); err == nil {
		return nil
	}
	if err := once("update"); err != nil {
		return err
	}
	return once(args...)
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// cacheFolder is where kernels are kept, made when it is absent.
func cacheFolder() (string, error) {
	folder := os.Getenv("ORBITTE_VM_CACHE")
	if folder == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", &cannot{"no-cache", "set ORBITTE_VM_CACHE, XDG_CACHE_HOME or HOME: " + err.Error()}
		}
		folder = filepath.Join(base, "orbitte-vm")
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", &cannot{"no-cache", err.Error()}
	}
	return folder, nil
}

// lock waits for an exclusive lock on a file and returns what gives it back.
func lock(name string) (unlock func(), err error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, &cannot{"no-cache", err.Error()}
	}
	for {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = file.Close() // the error of the lock is the one to tell
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() { _ = file.Close() }, nil // the lock ends with the descriptor
}
