package baselines

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Duo is a server and a client of somebody else's program, run once, in a network namespace of their own where that is
// allowed: there the default congestion control is reno, which those programs cannot choose themselves, and which is
// what everything else here uses. The bbr of many systems would cost them up to five times.
type Duo struct {
	Server, Client []string
	Env            []string
	Port           int // the server listens here once it is ready
}

// DuoResult is what came of it.
type DuoResult struct {
	Output   string  `json:"output"` // the client's standard output
	Isolated bool    `json:"isolated"`
	User     float64 `json:"user"` // CPU-seconds of both
	System   float64 `json:"system"`
	Peak     uint64  `json:"peak"` // bytes, both
	Error    string  `json:"error,omitempty"`
}

// DuoArgument is the command-line argument that makes this program the helper of Duo.Run; what follows it is the Duo.
const DuoArgument = "-duo"

// Run runs both and waits. The program itself must answer to DuoArgument with DuoMain.
func (d Duo) Run(ctx context.Context) (DuoResult, error) {
	r, err := d.run(ctx, true)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EINVAL) { // no namespaces here
		r, err = d.run(ctx, false)
	}
	return r, err
}

func (d Duo) run(ctx context.Context, isolated bool) (r DuoResult, err error) {
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	text, err := json.Marshal(d)
	if err != nil {
		return r, err
	}
	mode := "here"
	if isolated {
		mode = "alone"
	}
	c := exec.CommandContext(ctx, self, DuoArgument, mode, string(text))
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	if isolated {
		c.SysProcAttr.Cloneflags = unix.CLONE_NEWNET
		if os.Geteuid() != 0 {
			c.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
			c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
			c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
		}
	}
	var out, complaint bytes.Buffer
	c.Stdout, c.Stderr = &out, &complaint
	c.WaitDelay = time.Second
	if err := c.Run(); err != nil {
		return r, fmt.Errorf("%s: %w %s", d.Client[0], err, lastLine(complaint.String()))
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return r, err
	}
	if r.Error != "" {
		return r, fmt.Errorf("%s: %s", d.Client[0], r.Error)
	}
	return r, nil
}

// DuoMain is the helper: arguments as Run gives them, behind DuoArgument.
func DuoMain(args []string) {
	var r DuoResult
	var d Duo
	err := errors.New("too few arguments")
	if len(args) == 2 {
		if err = json.Unmarshal([]byte(args[1]), &d); err == nil {
			if args[0] == "alone" {
				r.Isolated = makeLoopback() == nil
			}
			err = d.both(&r)
		}
	}
	if err != nil {
		r.Error = err.Error()
	}
	_ = json.NewEncoder(os.Stdout).Encode(r)
}

// makeLoopback brings the namespace's loopback up and gives it reno.
func makeLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, request); err != nil {
		return err
	}
	request.SetUint16(request.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return err
	}
	return os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte("reno"), 0)
}

func (d Duo) both(r *DuoResult) error {
	server := exec.Command(d.Server[0], d.Server[1:]...)
	server.Env = append(os.Environ(), d.Env...)
	var said bytes.Buffer
	server.Stdout, server.Stderr = &said, &said
	if err := server.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() { _ = server.Wait(); close(ended) }()
	err := awaitListener(d.Port, ended)
	if err == nil {
		client := exec.Command(d.Client[0], d.Client[1:]...)
		client.Env = server.Env
		var out, complaint bytes.Buffer
		client.Stdout, client.Stderr = &out, &complaint
		if err = client.Run(); err != nil {
			err = fmt.Errorf("%w: %s", err, lastLine(complaint.String()+out.String()))
		}
		r.Output = out.String()
		r.charge(client.ProcessState)
	} else {
		err = fmt.Errorf("%w: %s", err, lastLine(said.String()))
	}
	timer := time.AfterFunc(500*time.Millisecond, func() { _ = server.Process.Kill() })
	<-ended
	timer.Stop()
	r.charge(server.ProcessState)
	return err
}

func (r *DuoResult) charge(p *os.ProcessState) {
	r.User += p.UserTime().Seconds()
	r.System += p.SystemTime().Seconds()
	if usage, ok := p.SysUsage().(*syscall.Rusage); ok {
		r.Peak += uint64(usage.Maxrss) << 10
	}
}

var errNoListener = errors.New("the server did not listen")

// awaitListener looks into the kernel's table, since connecting would be taken for the client.
func awaitListener(port int, ended <-chan struct{}) error {
	const listening = "0A"
	want := fmt.Sprintf(":%04X", port)
	for range 500 {
		for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
			text, _ := os.ReadFile(table)
			for line := range strings.Lines(string(text)) {
				if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], want) && f[3] == listening {
					return nil
				}
			}
		}
		select {
		case <-ended:
			return errNoListener
		case <-time.After(5 * time.Millisecond):
		}
	}
	return errNoListener
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}
