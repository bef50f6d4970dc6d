package main

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A machine is what to boot and what to run in it.
type machine struct {
	Kernel kernel
	Init   string        // path of this program, linked without C: the guest's first process
	Net    string        // "two", "pair" or "none"
	Wires  int           // of net two: veth pairs; of net pair: wires between the guests
	Share  string        // absolute path of the folder that guests may write
	Dir    string        // absolute path of the command's working folder
	Env    []string      // for the command, beside what the guest sets
	Args   []string      // the command
	Limit  time.Duration // wall time of the command; a boot has bootMax beside it
	Plain  bool          // lines of guest 1 of a pair have no prefix
	Memory int           // MiB for each guest
	CPUs   int
	Append string        // more arguments for the guest's kernel
	Quiet  time.Duration // a guest that is silent for longer has hung; 0: quietMax
	Stdout io.Writer
	Stderr io.Writer
	Say    func(string) // remarks on the run
}

// ending says how a run came to its end.
type ending string

const (
	endExited ending = "exited"     // the command ended by itself
	endLimit  ending = "time limit" // the guest lived, the command did not end
	endPanic  ending = "panic"      // the guest's kernel panicked
	endHang   ending = "hang"       // the guest went silent
	endDied   ending = "died"       // QEMU ended without a panic or an exit status
	endFailed ending = "failed"     // the guest could not be set up
)

// Exit statuses of a run whose command did not give one.
const (
	exitLimit = 124
	exitLost  = 125 // panic, hang, died, failed
)

// A result is the end of one guest.
type result struct {
	Ended   ending
	Exit    int    // the command's, when Ended is exited
	Detail  string // what happened, empty when exited
	Boots   int
	Boot    time.Duration // until the guest was ready
	Run     time.Duration // from there to the end
	Console string        // the end of the guest's kernel log
	started bool          // the command may have begun
}

func (r result) status() int {
	switch r.Ended {
	case endExited:
		return r.Exit
	case endLimit:
		return exitLimit
	}
	return exitLost
}

// orders is what the guest reads from the file order.json of its first file system.
type orders struct {
	Net   string
	Wires int
	Node  int // 1 or 2
	Share string
	Dir   string
	Env   []string
	Args  []string
}

const (
	quietMax    = 45 * time.Second // a loaded host delays a guest's beats by seconds
	quietAtEnd  = 10 * time.Second // at the time limit, such a silence is called a hang
	bootMax     = 3 * time.Minute  // a boot that takes longer counts as an early death
	beatEvery   = time.Second
	consoleKept = 64 << 10 // bytes of the guest's console
)

// run boots the machine's guests and waits for their end. It repeats once when a guest died before any command began,
// so that it ends within Limit and two boots.
func (m *machine) run(ctx context.Context) ([]result, error) {
	results, err := m.boot(ctx)
	for _, r := range results {
		if err == nil && ctx.Err() == nil && !r.started && r.Ended != endFailed && r.Ended != endExited {
			m.Say(fmt.Sprintf("the guest died before it ran anything (%s: %s); booting once more\n%s", r.Ended, r.Detail, lastLines(r.Console, 40)))
			results, err = m.boot(ctx)
			for i := range results {
				results[i].Boots = 2
			}
			break
		}
	}
	return results, err
}

// boot starts the guests, lets their commands begin together and waits for all.
func (m *machine) boot(ctx context.Context) ([]result, error) {
	guests := 1
	if m.Net == "pair" {
		guests = 2
	}
	wires, err := makeWires(m.Wires, guests)
	if err != nil {
		return nil, err
	}
	ctx, abandon := context.WithCancel(ctx)
	defer abandon()
	ready := make(chan struct{}, guests)
	start := make(chan struct{})
	ends := make(chan error, guests)
	results := make([]result, guests)
	for i := range guests {
		g := &guest{machine: m, node: i + 1, wires: wires[i], ready: ready, start: start}
		if guests > 1 && !(m.Plain && g.node == 1) {
			g.prefix = strconv.Itoa(g.node) + "| "
		}
		go func() {
			err := g.live(ctx)
			results[i] = g.result
			if !g.result.started {
				abandon() // without one guest the other waits in vain
			}
			ends <- err
		}()
	}
	var failed error
	for waiting, up := guests, 0; waiting > 0; {
		select {
		case <-ready:
			if up++; up == guests {
				close(start)
			}
		case err := <-ends:
			failed = errors.Join(failed, err)
			waiting--
		}
	}
	return results, failed
}

// makeWires gives each guest its ends of the wires: sockets that carry one Ethernet frame as one datagram.
func makeWires(count, guests int) ([][]*os.File, error) {
	ends := make([][]*os.File, guests)
	if guests < 2 {
		return ends, nil
	}
	for range count {
		a, b, err := socketPair(unix.SOCK_DGRAM)
		if err != nil {
			return nil, err
		}
		ends[0], ends[1] = append(ends[0], a), append(ends[1], b)
	}
	return ends, nil
}

func socketPair(kind int) (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket"), nil
}

// diesWithUs has the kernel kill a child when we end, however that happens.
func diesWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// initrd makes the guest's first file system in an anonymous file: modules, this program and its orders.
func (m *machine) initrd(node int) (*os.File, error) {
	fd, err := unix.MemfdCreate("initrd", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	file := os.NewFile(uintptr(fd), "initrd")
	fill := func() error {
		modules, err := os.ReadFile(m.Kernel.initrd)
		if err != nil {
			return err
		}
		if _, err := file.Write(modules); err != nil {
			return err
		}
		program, err := firstProgram(m.Init)
		if err != nil {
			return err
		}
		text, err := json.Marshal(orders{m.Net, m.Wires, node, m.Share, m.Dir, m.Env, m.Args})
		if err != nil {
			return err
		}
		a := archive{to: file}
		a.program("init", program)
		a.file("orders.json", text)
		return a.close()
	}
	if err := fill(); err != nil {
		_ = file.Close() // the first error is the one to tell
		return nil, err
	}
	return file, nil
}

// kernelArguments: panics and oopses end QEMU (-no-reboot), and nothing is done that emulation makes slow.
const kernelArguments = "console=ttyS0 quiet panic=-1 oops=panic net.ifnames=0 mitigations=off nokaslr nowatchdog " +
	"no_timer_check tsc=reliable random.trust_cpu=on audit=0 apparmor=0 cryptomgr.notests"

// qemu is the command line; files become the descriptors 3, 4, … of the process.
func (m *machine) qemu(node int, initrd, agent *os.File, wires []*os.File) *exec.Cmd {
	accel := os.Getenv("ORBITTE_VM_ACCEL")
	if accel == "" {
		accel = "tcg,thread=multi"
	}
	args := []string{
		"-M", "pc", "-accel", accel, "-cpu", "max", "-smp", strconv.Itoa(m.CPUs), "-m", strconv.Itoa(m.Memory),
		"-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-no-reboot",
		"-kernel", m.Kernel.image, "-initrd", "/proc/self/fd/3", "-append", kernelArguments + " " + m.Append,
		"-chardev", "file,id=console,path=/proc/self/fd/1", "-serial", "chardev:console",
		"-device", "virtio-serial-pci", "-chardev", "socket,id=agent,fd=4", "-device", "virtserialport,chardev=agent,name=agent",
		"-virtfs", "local,path=/,mount_tag=root,security_model=none,multidevs=remap,readonly=on",
		"-virtfs", "local,path=" + strings.ReplaceAll(m.Share, ",", ",,") + ",mount_tag=share,security_model=none,multidevs=remap",
	}
	files := []*os.File{initrd, agent}
	for i, wire := range wires {
		args = append(args, "-netdev", fmt.Sprintf("dgram,id=wire%d,local.type=fd,local.str=%d", i, 3+len(files)),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=wire%d,mac=02:90:00:00:%02x:%02x,romfile=,host_mtu=%d", i, i, node, mtu))
		files = append(files, wire)
	}
	cmd := exec.Command("qemu-system-x86_64", args...)
	cmd.ExtraFiles = files
	cmd.SysProcAttr = diesWithUs()
	return cmd
}

// mtu of the rails: soft-RoCE takes the largest RDMA MTU that fits, here 4096 bytes.
const mtu = 4500

var panicLine = regexp.MustCompile(`Kernel panic - not syncing: .*`)

// describe explains the end of a QEMU that gave no exit status.
func describe(console string, ended error) (ending, string) {
	if said := panicLine.FindString(console); said != "" {
		return endPanic, strings.TrimRight(said, "\r")
	}
	return endDied, fmt.Sprintf("QEMU ended: %v", ended)
}

// tail keeps the end of what is written to it. One goroutine writes; it is read when that has ended.
type tail struct{ kept []byte }

func (t *tail) Write(text []byte) (int, error) {
	t.kept = append(t.kept, text...)
	if more := len(t.kept) - consoleKept; more > 0 {
		t.kept = t.kept[more:]
	}
	return len(text), nil
}

// lastLines is the end of a console as the reader of a failure needs it.
func lastLines(text string, count int) string {
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(text, "\r", "")), "\n")
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}

// prefixed writes whole lines with a word before each; the rest comes with flush.
type prefixed struct {
	to     io.Writer
	prefix string
	rest   []byte
}

func (p *prefixed) Write(text []byte) (int, error) {
	if p.prefix == "" {
		return p.to.Write(text)
	}
	p.rest = append(p.rest, text...)
	for {
		end := bytes.IndexByte(p.rest, '\n')
		if end < 0 {
			return len(text), nil
		}
		if _, err := fmt.Fprintf(p.to, "%s%s", p.prefix, p.rest[:end+1]); err != nil {
			return 0, err
		}
		p.rest = p.rest[end+1:]
	}
}

func (p *prefixed) flush() {
	if len(p.rest) > 0 {
		_, _ = p.Write([]byte("\n")) // its reader is gone when this fails
	}
}

// hiddenIn names the part of the guest's own file system that hides a path of the host, or nothing.
func hiddenIn(path, share string) string {
	if rel, err := filepath.Rel(share, path); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
		return ""
	}
	for _, own := range []string{"/tmp", "/run", "/dev", "/proc", "/sys"} {
		if path == own || strings.HasPrefix(path, own+"/") {
			return own
		}
	}
	return ""
}

// firstProgram reads the guest's first program, which needs no other file there: a kernel only says "No working init found".
func firstProgram(name string) ([]byte, error) {
	program, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return nil, fmt.Errorf("%s needs the C library, which the guest does not have when it starts; build it with CGO_ENABLED=0", name)
		}
	}
	return program, nil
}
