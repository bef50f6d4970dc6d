//go:build vm && cgo

package orbitte

import (
	"context"
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/orbitte/orbitte/verbs/libibverbs"
)

// crowd keeps n batches of size bytes in flight, one after the other each, until the function that it returns is called,
// which tells how many ended well and what the others said.
func (g *gatePair) crowd(n, size int) (stop func() (well int, failures []error)) {
	type end struct {
		well     int
		failures []error
	}
	over, ends := make(chan struct{}), make(chan end, n)
	for i := range n {
		go func() {
			var e end
			defer func() { ends <- e }()
			for {
				select {
				case <-over:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(context.Background(), guestPatience)
				report, err := g.requester.SubmitAndWait(ctx, []Request{g.request(Operation(1+i%2), i*size, i*size, size)})
				cancel()
				switch {
				case err == nil && report.Bytes == uint64(size):
					e.well++
				case err == nil:
					e.failures = append(e.failures, errors.New("success without the bytes"))
				default:
					e.failures = append(e.failures, err)
					time.Sleep(10 * time.Millisecond)
				}
			}
		}()
	}
	return func() (well int, failures []error) {
		close(over)
		for range n {
			e := <-ends
			well += e.well
			failures = append(failures, e.failures...)
		}
		return well, failures
	}
}

// proves
func TestSoftRoCERecoversAPortThatWentDownAndUpWithItsDomainAndRegions(t *testing.T) {
	for i, name := range []string{"polling", "event-driven"} {
		t.Run(name, func(t *testing.T) {
			failed := recoversAPort(t, RDMAConfig{Progress: RDMAProgress(i)})
			proved(t, "%s: a port goes down with 4 batches of 512 KiB in flight and %d of them fail; the other wire carries on; the port comes back with the same domains and regions", name, failed)
		})
	}
}

func recoversAPort(t *testing.T, c RDMAConfig) (failed int) {
	const n, size = 4, 512 << 10
	g := newGate(t, c, c, n*size, nil)
	g.move(Write, 1, 2, size, 1, "rxe1 to rxe0, rxe3 to rxe2")
	stop := g.crowd(n, size)
	at := wireBytes(t, 1)
	eventually(t, "more payload on the wire than the batches at once have", func() bool { return wireBytes(t, 1) > at+3*n*size/2 })
	rail(t, "down", "rxe1")
	g.railsActive(1)
	at = wireBytes(t, 3)
	eventually(t, "payload on the other wire", func() bool { return wireBytes(t, 3) > at+2<<20 })
	well, failures := stop()
	for _, err := range failures {
		if !errors.Is(err, ErrDisconnected) && !errors.Is(err, ErrUnquiesced) && !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrUnreachable) && !errors.Is(err, ErrPeer) {
			t.Errorf("a request that the port took with it ends with %v", err)
		}
	}
	if well == 0 || len(failures) == 0 {
		t.Errorf("%d batches ended well, %d failed", well, len(failures))
	}
	g.move(Read, 1, 2, size, 2, "rxe3 to rxe2")
	rail(t, "up", "rxe1")
	g.railsActive(2)
	at = wireBytes(t, 1)
	g.move(Read, 1, 2, size, 3, "rxe1 to rxe0")
	g.move(Write, 1, 2, size, 4, "rxe1 to rxe0")
	if wireBytes(t, 1) < at+size/2 {
		t.Error("the wire that came back carries nothing")
	}
	there := g.peer.ask(order{Do: "stats"})
	here := g.native.read(g.local.Address())
	if here.Domains != 2 || here.Registered != 2 || here.Deregistered != 0 {
		t.Errorf("the requester made %+v, want a domain and a region for each device, once", here)
	}
	if there.Native.Domains != 2 || there.Native.Registered != 4 || there.Native.Deregistered != 0 {
		t.Errorf("the source made %+v, want a domain and two regions for each device, once", there.Native)
	}
	s := g.requester.Stats()
	if s.RDMA.RouteRecoveries == 0 || there.Stats.RDMA.RouteRecoveries == 0 {
		t.Errorf("%d and %d routes recovered", s.RDMA.RouteRecoveries, there.Stats.RDMA.RouteRecoveries)
	}
	return len(failures)
}

// ip runs the guest's commands for addresses.
func ip(t testing.TB, commands ...string) {
	t.Helper()
	for _, c := range commands {
		if out, err := exec.Command("sh", "-c", "ip "+c).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", c, err, out)
		}
	}
}

// proves
func TestSoftRoCEMovesToAnotherAddressByItselfAndNeverWhenPinned(t *testing.T) {
	const size = 300 << 10
	g := newGate(t, RDMAConfig{Progress: RDMAEventDriven}, RDMAConfig{Progress: RDMAEventDriven, DeviceMask: 1}, size, nil)
	index, err := strconv.Atoi(strings.TrimSpace(rail(t, "gid", "rxe1", "10.90.0.2")))
	must(t, err)
	calls, err := libibverbs.Load()
	must(t, err)
	pinned := newEngine(t, Config{Verbs: calls, RDMA: &RDMAConfig{Device: "rxe1", GIDIndex: &index}, Lanes: 1})
	local := allocated(t, size)
	registered(t, pinned, local, LocalOnly)
	segment, err := pinned.OpenSegment(within(t, guestPatience), g.peer.opened.Endpoint, g.segment.Epoch())
	must(t, err)
	t.Cleanup(func() { must(t, pinned.CloseSegment(within(t, guestPatience), segment)) })
	pinnedRead := func() error {
		_, err := pinned.SubmitAndWait(within(t, guestPatience), []Request{{Operation: Read, Transport: TransportRDMA, Segment: segment, Local: local.Address(), Remote: g.base, Length: size}})
		return err
	}
	gid := func(e *Engine) string { return e.Stats().RDMA.Devices[0].GID }
	must(t, pinnedRead())
	g.move(Read, 0, 0, size, 5, "rxe1 to rxe0")
	if gid(g.requester) != "10.90.0.2" || gid(pinned) != "10.90.0.2" {
		t.Fatalf("the addresses are %s and %s", gid(g.requester), gid(pinned))
	}

	// A /32, since the end of an address takes with it those that are secondary to it.
	ip(t, "addr add 10.90.0.12/32 dev ve1", "route add 10.90.0.12 dev ve0 src 10.90.0.1 table 101",
		"neigh replace 10.90.0.12 lladdr 02:90:00:00:00:02 dev ve0 nud permanent", "addr del 10.90.0.2/24 dev ve1",
		"route replace 10.90.0.1 dev ve1 src 10.90.0.12 table 102")
	eventually(t, "the automatic engine at 10.90.0.12", func() bool {
		return gid(g.requester) == "10.90.0.12" && g.requester.Stats().RDMA.Devices[0].State == "active"
	})
	g.move(Write, 0, 0, size, 6, "rxe1 to rxe0")
	eventually(t, "the pinned engine paused", func() bool { return pinned.Stats().RDMA.Devices[0].State == "paused" })
	own := wants(t, pinnedRead(), ErrUnavailable)
	t.Log(own)

	ip(t, "addr add 10.90.0.2/24 dev ve1", "route replace 10.90.0.2 dev ve0 src 10.90.0.1 table 101")
	now, err := strconv.Atoi(strings.TrimSpace(rail(t, "gid", "rxe1", "10.90.0.2")))
	must(t, err)
	if now == index {
		eventually(t, "the pinned engine active", func() bool { return pinned.Stats().RDMA.Devices[0].State == "active" })
		must(t, pinnedRead())
	}
	t.Logf("index %d, now %d", index, now)
	proved(t, "an engine without pins goes on over the port's other address; one that is pinned pauses, refuses with ErrUnavailable, and comes back with its entry (index %d, now %d)", index, now)
	ip(t, "addr del 10.90.0.12/32 dev ve1", "route replace 10.90.0.1 dev ve1 src 10.90.0.2 table 102")
}

// proves R-18, G-8
func TestSoftRoCEEndsWorkWithASourceThatIsKilled(t *testing.T) {
	const n, size = 4, 512 << 10
	c := RDMAConfig{Progress: RDMAEventDriven}
	g := newGate(t, c, c, n*size, nil)
	stop := g.crowd(n, size)
	at := wireBytes(t, 1)
	eventually(t, "more payload on the wire than the batches at once have", func() bool { return wireBytes(t, 1) > at+3*n*size/2 })
	killed := time.Now()
	g.peer.kill()
	well, failures := stop()
	took := time.Since(killed)
	if well == 0 || len(failures) < n {
		t.Errorf("%d batches ended well, %d failed", well, len(failures))
	}
	for _, err := range failures {
		if errors.Is(err, ErrDeadline) {
			t.Errorf("a request waits for its deadline: %v", err)
		}
	}
	proved(t, "a source killed with %d batches in flight: all end with a failure within %v, nothing stays charged", n, took.Round(100*time.Millisecond))
}

// proves, U-2
func TestSoftRoCETakesBackTheGrantsOfARequesterThatIsKilled(t *testing.T) {
	before := nativeObjects(t)
	calls, err := libibverbs.Load()
	must(t, err)
	c := RDMAConfig{Progress: RDMAEventDriven, Whitelist: sourceRails}
	source := newEngine(t, Config{Verbs: calls, RDMA: &c, Lanes: 1, Limits: gateLimits, SourceTimeout: 2 * time.Second})
	memory := allocated(t, 1<<20)
	export := registered(t, source, memory, ReadWrite)
	peer := newPeer(t, requesterRails, RDMAConfig{Progress: RDMAEventDriven}, 1<<20)
	a := peer.ask(order{Do: "storm", Endpoint: source.Endpoint(), Epoch: source.Epoch().String(), Base: memory.Address()})
	if a.Err != "" {
		t.Fatal(a.Err)
	}
	for _, device := range requesterRails { // grants stay out for longer
		rail(t, "netem", device, "delay", "20ms")
		t.Cleanup(func() { rail(t, "clear", device) })
	}
	granted := func() int64 { return gauge(t, source, "RDMA grants").Used }
	eventually(t, "grants that are out", func() bool { return granted() > 0 })
	peer.kill()
	eventually(t, "the end of all grants", func() bool { return granted() == 0 })
	must(t, source.Unregister(within(t, guestPatience), export))
	s := source.Stats()
	if s.RDMA.Revoked == 0 {
		t.Errorf("of %d grants none was taken back", s.RDMA.Granted)
	}
	closeEngine(t, source)
	if after := nativeObjects(t); after != before {
		t.Errorf("the kernel counts %s, before the test %s", after, before)
	}
	proved(t, "a requester killed in the middle: of %d grants %d were taken back by the source, its memory is free again", s.RDMA.Granted, s.RDMA.Revoked)
}
