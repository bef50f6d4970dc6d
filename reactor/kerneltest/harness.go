package kerneltest

import (
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/orbitte/orbitte/reactor"
)

// Harness is one process as a test sees it: where its kernels come from, and how things happen
// beside them.
type Harness struct {
	// Open opens one more kernel of the same process, not yet bound. The suite binds, uses and shuts it
	// down on one locked thread.
	Open func() (reactor.Kernel, error)
	// Later runs f once, about d after now, while a kernel waits in Poll; on any goroutine.
	Later func(d time.Duration, f func())
	// Foreign makes a descriptor that is not a stream, such as an eventfd, is watched by the kernels
	// given out by Open, and becomes readable when signal is called (any goroutine). Nil: not tested.
	Foreign func() (d reactor.Descriptor, signal func(), end func(), err error)
	// Concurrent says that a loop over such a kernel may run on a goroutine of its own.
	Concurrent bool
	// Reorders says that what is ready at the same time comes in any order, and not who waited longest first.
	Reorders bool
	// Descriptors lists what the process has open, sorted. When it is set, each test ends with what it
	// began with.
	Descriptors func() []string
	// IPv4 and IPv6 are addresses the process can listen on; an invalid one is not tested.
	IPv4, IPv6 netip.Addr
}

// Real is the harness of a kernel over the operating system.
func Real(open func() (reactor.Kernel, error)) Harness {
	if ours, theirs, err := os.Pipe(); err == nil { // the runtime opens its own descriptors now, and not in the middle of a test
		_, _ = ours.Close(), theirs.Close()
	}
	h := Harness{
		Open:  open,
		Later: func(d time.Duration, f func()) { time.AfterFunc(d, f) },
		IPv4:  netip.MustParseAddr("127.0.0.1"),

		Concurrent:  true,
		Descriptors: openDescriptors,
	}
	if fd, err := syscall.Socket(syscall.AF_INET6, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0); err == nil {
		loopback := netip.MustParseAddr("::1")
		if syscall.Bind(fd, &syscall.SockaddrInet6{Addr: loopback.As16()}) == nil {
			h.IPv6 = loopback
		}
		_ = syscall.Close(fd)
	}
	h.Foreign = foreignPipe
	return h
}

// openDescriptors lists what the process's descriptors are of, sorted. Files of the system are left out: the runtime opens some
// for a moment, this function one, and a kernel none.
func openDescriptors() (open []string) {
	const folder = "/proc/self/fd"
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil
	}
	for _, entry := range entries {
		of, err := os.Readlink(filepath.Join(folder, entry.Name()))
		if err != nil || strings.HasPrefix(of, "/proc/") || strings.HasPrefix(of, "/sys/") || strings.HasPrefix(of, "/etc/") {
			continue // gone meanwhile, or a file of the system
		}
		open = append(open, of)
	}
	slices.Sort(open)
	return open
}

// foreignPipe offers the reading end of a pipe.
func foreignPipe() (reactor.Descriptor, func(), func(), error) {
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		return reactor.NoDescriptor, nil, nil, err
	}
	signal := func() { _, _ = syscall.Write(ends[1], []byte{1}) }
	end := func() {
		_ = syscall.Close(ends[0])
		_ = syscall.Close(ends[1])
	}
	return reactor.Descriptor(ends[0]), signal, end, nil
}

// Run runs the suite. open is called once for each test and may use t.Cleanup for what it makes.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	groups := []struct {
		name  string
		cases []conformance
	}{
		{"Listen", listenCases}, {"Stream", streamCases}, {"AtOnce", atOnceCases}, {"Cancel", cancelCases},
		{"Wait", waitCases}, {"Fair", fairCases}, {"Random", randomCases}, {"Loop", loopCases},
	}
	for _, group := range groups {
		t.Run(group.name, func(t *testing.T) {
			for _, c := range group.cases {
				t.Run(c.name, func(t *testing.T) {
					// The thread stays locked and ends with the test, so that what a kernel bound to it ends too.
					runtime.LockOSThread()
					r := newRig(t, open(t))
					c.run(r)
				})
			}
		})
	}
}

type conformance struct {
	name string
	run  func(*rig)
}

// patience is how long the suite waits for something that must happen.
const patience = 10 * time.Second
