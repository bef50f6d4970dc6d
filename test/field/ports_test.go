package field

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte"
)

// inOwnNetwork runs do in a network namespace of its own, with loopback up and the given local ports. Children that do
// starts live there, too.
func inOwnNetwork(t *testing.T, ports string, do func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("no-root: a network namespace needs root")
	}
	failed := make(chan error, 1)
	go func() {
		defer close(failed)
		runtime.LockOSThread() // for good: the thread ends with this goroutine, since no other may have its namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			failed <- err
			return
		}
		if err := errors.Join(loopbackUp(), os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte(ports), 0)); err != nil {
			failed <- err
			return
		}
		do()
	}()
	if err := <-failed; errors.Is(err, unix.EPERM) {
		t.Skip("no-netns: " + err.Error())
	} else if err != nil {
		t.Fatal(err)
	}
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}

// field case F-26
func TestManySmallTransfersNeedFewLocalPorts(t *testing.T) {
	t.Parallel()
	const (
		ports = 200
		batch = 1000
		order = 5 // rounds
	)
	onKernels(t, func(t *testing.T, kernel orbitte.KernelChoice) {
		t.Parallel()
		inOwnNetwork(t, "40000 40199", func() {
			p := newPair(t, settings{Kernel: kernel}, place{Bytes: pageBytes}, place{Bytes: pageBytes})
			rounds := scaled(100)
			for _, operation := range []orbitte.Operation{orbitte.Read, orbitte.Write} {
				completed := 0
				for left := rounds / 2; left > 0; left -= order { // one order at a time: patience is for a child that hangs
					completed += ask[transfer](p.from, "transfer", transfer{
						Segment: p.segment, Operation: operation, Local: p.local.Address, Remote: p.remote.Address, Length: 64,
						Count: batch, Rounds: min(order, left), Still: true, Timeout: patience / 2,
					}).Completed
				}
				if completed != rounds/2*batch {
					t.Errorf("%d of %d %vs completed", completed, rounds/2*batch, operation)
				}
			}
			if n := ask[counters](p.from, "stats", engineOf{}).Totals.Connects; n != 1 {
				t.Errorf("%d connections for %d transfers to one peer", n, rounds*batch)
			}
			sum := 0
			for _, n := range ask[map[string]int](p.from, "namespace-sockets", nil) {
				sum += n
			}
			if sum > 8 { // two listeners, both ends of one connection, and room for what is closing
				t.Errorf("%d sockets in the namespace, %d ports", sum, ports)
			}
			p.close()
		})
	})
}
