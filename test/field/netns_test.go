//go:build netns

package field

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte"
)

// These tests run in the near one of two namespaces that test/netns/run.sh made; farVariable names the far one.
const (
	farVariable = "ORBITTE_FIELD_FAR"
	far4, far6  = "10.40.0.2", "fd40::2"
)

// spawnFar starts a child in the far namespace.
func spawnFar(t *testing.T, name string) *child {
	t.Helper()
	var c *child
	onFar(t, func() { c = spawn(t, name) })
	return c
}

// onFar runs do on a thread of the far namespace, which then ends.
func onFar(t *testing.T, do func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		defer close(done)
		runtime.LockOSThread()
		space, err := os.Open("/run/netns/" + os.Getenv(farVariable))
		if err == nil {
			defer space.Close()
			err = unix.Setns(int(space.Fd()), unix.CLONE_NEWNET)
		}
		if err != nil {
			done <- err
			return
		}
		do()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// silence drops every packet of the far host until the test, or the returned function, ends it.
func silence(t *testing.T) (end func()) {
	t.Helper()
	rules := func(flag string) {
		for _, chain := range []string{"INPUT", "OUTPUT"} {
			onFar(t, func() {
				if text, err := exec.Command("iptables", "-w", flag, chain, "-j", "DROP").CombinedOutput(); err != nil {
					t.Errorf("iptables %s %s: %v: %s", flag, chain, err, text)
				}
			})
		}
	}
	rules("-A")
	ended := false
	end = func() {
		if !ended {
			ended = true
			rules("-D")
		}
	}
	t.Cleanup(end)
	return end
}

// hosts is a far source and a near requester.
type hosts struct {
	*source
	e       *orbitte.Engine
	local   *orbitte.Memory
	segment *orbitte.Segment
}

func newHosts(t *testing.T, s settings) *hosts {
	t.Helper()
	s.Bind = netip.AddrPortFrom(netip.MustParseAddr(far4), 0).String()
	h := &hosts{source: readySource(t, spawnFar(t, "far source"), s, 1<<20)}
	h.e = openEngine(t, s.requester())
	h.local = buffer(t, h.e, 1<<20)
	h.segment = openSegment(t, h.e, h.Endpoint, h.Epoch)
	return h
}

// requester is the same configuration without the source's address.
func (s settings) requester() orbitte.Config {
	s.Bind, s.Advertise = "", ""
	return s.config()
}

func (h *hosts) submit(operation orbitte.Operation, d time.Duration, length uint64) error {
	_, err := submit(h.e, d, orbitte.Request{Operation: operation, Segment: h.segment, Local: h.local.Address(), Remote: h.Address, Length: length})
	return err
}

// proves T-8
func TestTwoHostsReadAndWriteOverAddressesAndNames(t *testing.T) {
	onKernels(t, func(t *testing.T, kernel orbitte.KernelChoice) {
		for _, c := range []struct{ bind, host string }{
			{far4, far4}, {far6, "[" + far6 + "]"}, {far4, "far-host"}, {far6, "far-host-six"}, {"::", far4}, {"::", "[" + far6 + "]"},
		} {
			t.Run(strings.Trim(c.host, "[]")+" on "+c.bind, func(t *testing.T) {
				bind := netip.AddrPortFrom(netip.MustParseAddr(c.bind), 0).String()
				src := readySource(t, spawnFar(t, "far source"), settings{Kernel: kernel, Bind: bind, Advertise: c.host + ":0"}, 1<<20)
				if !strings.HasPrefix(src.Endpoint, c.host+":") {
					t.Fatalf("the source advertises %s", src.Endpoint)
				}
				e := openEngine(t, orbitte.Config{Kernel: kernel})
				local := buffer(t, e, 1<<20)
				r := orbitte.Request{Operation: orbitte.Read, Segment: openSegment(t, e, src.Endpoint, src.Epoch), Local: local.Address(), Remote: src.Address, Length: 1 << 20}
				if _, err := submit(e, 10*time.Second, r); err != nil || !stamped(local.Bytes(), src.Epoch) {
					t.Fatalf("READ: %v", err)
				}
				pattern := run{Length: 1 << 20, Seed: 8}
				for i := range local.Bytes() {
					local.Bytes()[i] = pattern.pattern(i)
				}
				r.Operation = orbitte.Write
				if _, err := submit(e, 10*time.Second, r); err != nil {
					t.Fatalf("WRITE: %v", err)
				}
				if n := ask[int](src.child, "check", pattern); n != 0 {
					t.Errorf("%d bytes differ at the source", n)
				}
				src.closeClean()
			})
		}
	})
}

// short finds a dead peer within 3 s when idle and 2 s with bytes under way.
func short(kernel orbitte.KernelChoice) settings {
	return settings{
		Kernel: kernel, KeepaliveIdle: time.Second, KeepaliveInterval: time.Second, KeepaliveCount: 2, UserTimeout: 2 * time.Second,
		RequestTimeout: 60 * time.Second, IdleTimeout: time.Hour, SourceTimeout: 60 * time.Second,
	}
}

// slack is how far behind its bound the machine may be: the kernel's timers, and other programs' turns.
const slack = 2 * time.Second

// field case F-40
//
// proves T-12
func TestTwoHostsFindASilentPeerWithinTheBound(t *testing.T) {
	const idleBound, busyBound = 3 * time.Second, 2 * time.Second
	onKernels(t, func(t *testing.T, kernel orbitte.KernelChoice) {
		idle, reading, writing := newHosts(t, short(kernel)), newHosts(t, short(kernel)), newHosts(t, short(kernel))
		for _, h := range []*hosts{idle, reading, writing} {
			if err := h.submit(orbitte.Read, 10*time.Second, 1<<20); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(50 * time.Millisecond) // the idle streams are watched by then
		end := silence(t)
		began := time.Now()
		type result struct {
			err  error
			took time.Duration
		}
		results := map[orbitte.Operation]chan result{orbitte.Read: make(chan result, 1), orbitte.Write: make(chan result, 1)}
		for operation, h := range map[orbitte.Operation]*hosts{orbitte.Read: reading, orbitte.Write: writing} {
			go func() {
				err := h.submit(operation, 60*time.Second, 1<<20)
				results[operation] <- result{err, time.Since(began)}
			}()
		}
		if !eventually(idleBound+slack, func() bool { return idle.e.Stats().Totals.StreamsRetired == 1 }) {
			t.Errorf("the requester still holds its idle stream after %v", time.Since(began))
		}
		t.Logf("idle stream: found after %v", time.Since(began))
		if !eventually(idleBound+slack-time.Since(began), func() bool {
			return ask[counters](idle.child, "stats", engineOf{}).Gauges["accepted streams"] == 0
		}) {
			t.Errorf("the source still holds its idle stream after %v", time.Since(began))
		}
		for operation, to := range results {
			select {
			case r := <-to:
				t.Logf("%v under way: found after %v", operation, r.took)
				if !errors.Is(r.err, orbitte.ErrDisconnected) || r.took > busyBound+slack {
					t.Errorf("%v: %v after %v", operation, r.err, r.took)
				}
			case <-time.After(busyBound + slack):
				t.Errorf("%v still runs after %v", operation, time.Since(began))
			}
		}
		end()
		for _, h := range []*hosts{idle, reading, writing} {
			if err := h.submit(orbitte.Read, 20*time.Second, 1<<20); err != nil || !bytes.Equal(h.local.Bytes()[:16], h.Epoch[:]) {
				t.Errorf("when packets pass again: %v", err)
			}
			h.closeClean()
		}
	})
}

// field case F-40
//
// proves T-12
func TestTwoHostsRaiseNoFalseAlarmOnAPause(t *testing.T) {
	const pause = 5 * time.Second
	onKernels(t, func(t *testing.T, kernel orbitte.KernelChoice) {
		t.Parallel()
		var all []*hosts
		for _, s := range []settings{{Kernel: kernel}, short(kernel)} {
			all = append(all, newHosts(t, s), newHosts(t, s)) // the first stays idle, the second has a request under way
		}
		for _, h := range all {
			if err := h.submit(orbitte.Read, 10*time.Second, pageBytes); err != nil {
				t.Fatal(err)
			}
			h.signal(syscall.SIGSTOP)
		}
		answers := make(chan error, len(all))
		for i, h := range all {
			if i%2 == 1 {
				go func() { answers <- h.submit(orbitte.Read, 30*time.Second, pageBytes) }()
			}
		}
		time.Sleep(pause)
		for _, h := range all {
			h.signal(syscall.SIGCONT)
		}
		for range len(all) / 2 {
			if err := <-answers; err != nil {
				t.Errorf("a request across the pause: %v", err)
			}
		}
		for i, h := range all {
			if err := h.submit(orbitte.Read, 10*time.Second, pageBytes); err != nil {
				t.Errorf("host %d after the pause: %v", i, err)
			}
			if s := h.e.Stats().Totals; s.Connects != 1 || s.StreamsRetired != 0 {
				t.Errorf("host %d: %d connections, %d retired: the paused peer was declared dead", i, s.Connects, s.StreamsRetired)
			}
			h.closeClean()
		}
	})
}
