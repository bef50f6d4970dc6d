//go:build vm && cgo

package orbitte

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/orbitte/orbitte/verbs/libibverbs"
)

const (
	hostsEndpoint = "10.90.0.1:7000"
	hostsHalf     = 1<<20 + 64<<10 // of the source's memory: read from, then written to
	hostsSpot     = 8191           // where the writes go, in the second half
)

// proves, G-2
func TestTwoHostsReadAndWriteOverBothWires(t *testing.T) {
	if os.Getenv("ORBITTE_VM") != "pair" {
		t.Skip("no-guest: two guests of test/vm with a wire between them are needed")
	}
	before := nativeObjects(t)
	t.Cleanup(func() {
		if after := nativeObjects(t); after != before {
			t.Errorf("the kernel counts %s, before the test %s", after, before)
		}
	})
	if os.Getenv("ORBITTE_VM_NODE") == "1" {
		hostsSource(t)
		return
	}
	for i, h := range []HostMemory{HostDirect, HostStaged} {
		hostsRequester(t, RDMAConfig{HostMemory: h, Progress: RDMAProgress(i)})
	}
}

func hostsEngine(t *testing.T, c RDMAConfig, bind string) *Engine {
	t.Helper()
	calls, err := libibverbs.Load()
	must(t, err)
	e := newEngine(t, Config{Bind: bind, Verbs: calls, RDMA: &c, Lanes: 1, Limits: gateLimits, SourceTimeout: guestSourceTimeout})
	t.Cleanup(func() {
		closeEngine(t, e)
		s := e.Stats()
		quietStats(t, "this host", &s, e.RetainedResources())
	})
	return e
}

// hostsSource serves until the other host has said twice that it is done.
func hostsSource(t *testing.T) {
	rail(t, "count", "7000") // before the other host can begin
	e := hostsEngine(t, RDMAConfig{}, hostsEndpoint)
	memory := allocated(t, 2*hostsHalf)
	fillBytes(memory.Bytes()[:hostsHalf], 5)
	export := registered(t, e, memory, ReadWrite)
	want := bytes.Clone(memory.Bytes())
	moved := 0
	for i, n := range oddSizes {
		fillBytes(want[hostsHalf+hostsSpot:][:n], 40+i)
		moved += 2 * n
	}
	notes := 0
	eventuallyIn(t, 2*guestPatience, "both words of the other host", func() bool { notes += len(e.ReceiveNotifications()); return notes == 2 })
	sameBytes(t, "the source's memory", memory.Bytes(), want)
	counted := sent(t)
	if counted["roce"] < int64(moved) || counted["tcp_7000"] == 0 || counted["all_tcp"] > int64(moved)/4 {
		t.Errorf("READs of %d bytes, and %v left this host", moved, counted)
	}
	must(t, e.Unregister(within(t, guestPatience), export))
	s := e.Stats()
	proved(t, "two guests: READ and WRITE of %v bytes from a direct and from a staged requester, %d slices granted over both wires, %d bytes over RoCE and %d over TCP",
		oddSizes, s.RDMA.Granted, counted["roce"], counted["all_tcp"])
}

func hostsRequester(t *testing.T, c RDMAConfig) {
	e := hostsEngine(t, c, "10.90.0.2:0")
	local := allocated(t, hostsHalf)
	own := registered(t, e, local, LocalOnly)
	var segment *Segment
	var err error
	eventually(t, "the other host", func() bool {
		segment, err = e.Describe(within(t, 5*time.Second), hostsEndpoint)
		return err == nil && len(segment.Regions()) == 1
	})
	base := segment.Regions()[0].Address
	move := func(op Operation, at, from, n int) {
		t.Helper()
		report, err := e.SubmitAndWait(within(t, guestPatience), []Request{{Operation: op, Transport: TransportRDMA, Segment: segment, Local: local.Address() + uint64(at), Remote: base + uint64(from), Length: uint64(n)}})
		if err != nil || report.Bytes != uint64(n) {
			t.Fatalf("%v of %d: %+v, %v", op, n, report, err)
		}
		mentions(t, report.Path, "rxe")
	}
	source := make([]byte, hostsHalf)
	fillBytes(source, 5)
	for i, n := range oddSizes {
		clear(local.Bytes())
		want := make([]byte, hostsHalf)
		copy(want[3:3+n], source[1001:1001+n])
		move(Read, 3, 1001, n)
		sameBytes(t, "this host's memory", local.Bytes(), want)
		fillBytes(local.Bytes()[7:7+n], 40+i)
		move(Write, 7, hostsHalf+hostsSpot, n)
	}
	way, err := segment.Path(Read, TransportRDMA)
	must(t, err)
	mentions(t, way, "rxe0 to rxe0", "rxe1 to rxe1")
	if _, err := e.SendNotification(within(t, guestPatience), segment, Notification{Name: "done"}); err != nil {
		t.Fatal(err)
	}
	must(t, errors.Join(e.CloseSegment(context.Background(), segment), e.Unregister(context.Background(), own)))
}
