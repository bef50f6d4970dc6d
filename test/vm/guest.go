package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The helper commands in the guest, and the script that sets its network up.
var (
	//go:embed net.sh
	netScript []byte
	//go:embed rail.sh
	railScript []byte
	//go:embed baseline.sh
	baselineScript []byte
)

// toolFolder holds the helper commands in the guest, on its PATH.
const toolFolder = "/run/orbitte"

// asInit is the life of the guest's first process. It never returns: the host ends QEMU.
func asInit() {
	port, err := openPort()
	if err != nil {
		fmt.Fprintln(os.Stderr, "init:", err) // the console is all there is
		power()
	}
	to := &sender{to: port}
	go func() {
		for range time.Tick(beatEvery) {
			if to.send(frameBeat, nil) != nil {
				power() // the host is gone
			}
		}
	}()
	status, err := serve(port, to)
	kind, text := byte(frameExit), strconv.Itoa(status)
	if err != nil {
		kind, text = frameFailed, err.Error()
	}
	_ = to.send(kind, []byte(text)) // when it fails, the end of QEMU tells
	select {}
}

func power() {
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) // nothing is left to do when it fails
	select {}
}

// openPort makes the first mounts, loads the modules and opens the virtio port.
func openPort() (*os.File, error) {
	for _, m := range []mount{{"proc", "/proc", "proc", ""}, {"sysfs", "/sys", "sysfs", ""}, {"devtmpfs", "/dev", "devtmpfs", ""}} {
		if err := m.make(0); err != nil {
			return nil, err
		}
	}
	files, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	for _, file := range files {
		if err := loadModule(file); err != nil {
			fmt.Fprintf(os.Stderr, "init: module %s: %v\n", file, err) // what needs it fails and says so
		}
	}
	ports, err := filepath.Glob("/dev/vport*")
	if err != nil || len(ports) != 1 {
		return nil, fmt.Errorf("found %d virtio ports, not one", len(ports))
	}
	return os.OpenFile(ports[0], os.O_RDWR, 0)
}

func loadModule(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	err = unix.FinitModule(int(f.Fd()), "", 0)
	if errors.Is(err, unix.EEXIST) {
		err = nil
	}
	return errors.Join(err, f.Close(), os.Remove(file)) // the first file system is memory
}

// A mount is one file system and its place.
type mount struct{ source, at, kind, options string }

func (m mount) make(flags uintptr) error {
	if err := os.MkdirAll(m.at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(m.source, m.at, m.kind, flags, m.options); err != nil {
		return fmt.Errorf("mount %s on %s: %w", m.kind, m.at, err)
	}
	return nil
}

// serve sets everything up, waits for the host's word and runs the command.
func serve(port io.Reader, to *sender) (status int, err error) {
	text, err := os.ReadFile("/orders.json")
	if err != nil {
		return 0, err
	}
	var o orders
	if err := json.Unmarshal(text, &o); err != nil {
		return 0, err
	}
	if err := enterRoot(o.Share); err != nil {
		return 0, err
	}
	if err := setUp(o); err != nil {
		return 0, err
	}
	up, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return 0, err
	}
	if err := to.send(frameReady, up); err != nil {
		return 0, err
	}
	answer := make([]byte, 1)
	if _, err := io.ReadFull(port, answer); err != nil || answer[0] != answerGo {
		return 0, fmt.Errorf("the host said %q: %v", answer, err)
	}
	status = runCommand(o, to)
	unix.Sync()
	if err := unix.Unmount(o.Share, unix.MNT_DETACH); err != nil {
		return 0, fmt.Errorf("unmount %s: %w", o.Share, err)
	}
	return status, nil
}

// plan9 are the mount options of the host's folders: fcntl-sized messages, and a cache that maps files.
const plan9 = "trans=virtio,version=9p2000.L,msize=512000,cache="

// enterRoot makes the host's root the guest's, read-only, with own folders where a system writes, and the share at the
// path that it has on the host.
func enterRoot(share string) error {
	const root = "/root"
	mounts := []mount{
		{"root", root, "9p", plan9 + "loose"},
		{"proc", root + "/proc", "proc", ""}, {"sysfs", root + "/sys", "sysfs", ""},
		{"devtmpfs", root + "/dev", "devtmpfs", ""}, {"devpts", root + "/dev/pts", "devpts", ""},
		{"tmpfs", root + "/dev/shm", "tmpfs", "mode=1777"},
		{"tmpfs", root + "/tmp", "tmpfs", "mode=1777"}, {"tmpfs", root + "/run", "tmpfs", ""},
		{"share", root + share, "9p", plan9 + "mmap"},
	}
	for _, m := range mounts {
		flags := uintptr(0)
		if m.source == "root" {
			flags = unix.MS_RDONLY
		}
		if err := m.make(flags); err != nil {
			return err
		}
	}
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	return unix.Chroot(".")
}

// setUp prepares what a command expects: limits, helper commands, the network with its RDMA devices.
func setUp(o orders) error {
	for _, limit := range []struct {
		what int
		max  uint64
	}{{unix.RLIMIT_MEMLOCK, unix.RLIM_INFINITY}, {unix.RLIMIT_NOFILE, 65536}} {
		if err := unix.Setrlimit(limit.what, &unix.Rlimit{Cur: limit.max, Max: limit.max}); err != nil {
			return fmt.Errorf("setrlimit: %w", err)
		}
	}
	if err := os.MkdirAll(toolFolder, 0o755); err != nil {
		return err
	}
	for name, script := range map[string][]byte{"rail": railScript, "baseline": baselineScript} {
		if err := os.WriteFile(filepath.Join(toolFolder, name), script, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Sethostname([]byte("guest" + strconv.Itoa(o.Node))); err != nil {
		return err
	}
	cmd := exec.Command("/bin/sh", "-s", o.Net, strconv.Itoa(o.Wires), strconv.Itoa(o.Node), strconv.Itoa(mtu))
	cmd.Stdin, cmd.Env = bytes.NewReader(netScript), environment(orders{})
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("net %s: %w: %s", o.Net, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func environment(o orders) []string {
	env := []string{
		"PATH=" + toolFolder + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "TMPDIR=/tmp", "LANG=C.UTF-8",
		"ORBITTE_VM=" + o.Net, "ORBITTE_VM_WIRES=" + strconv.Itoa(o.Wires), "ORBITTE_VM_NODE=" + strconv.Itoa(o.Node),
	}
	return append(env, o.Env...)
}

// runCommand runs the command and returns its exit status as a shell does: 126 or 127 when it cannot be started,
// 128 and the signal's number when a signal ended it.
func runCommand(o orders, to *sender) int {
	stderr := stream{to, frameStderr}
	// The guest's PATH finds the program.
	cmd := exec.Command("/usr/bin/env", append([]string{"--"}, o.Args...)...)
	cmd.Dir, cmd.Env = o.Dir, environment(o)
	cmd.Stdout, cmd.Stderr = stream{to, frameStdout}, stderr
	cmd.WaitDelay = 2 * time.Second // children that outlive the command keep no run open
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return cmd.ProcessState.ExitCode()
	case !errors.As(err, &exit):
		fmt.Fprintln(stderr, "vm:", err)
		return 127
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		fmt.Fprintln(stderr, "vm: the command was ended by a signal:", status.Signal())
		return 128 + int(status.Signal())
	}
	return exit.ExitCode()
}
