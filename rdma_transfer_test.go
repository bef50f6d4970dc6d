package orbitte

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/orbitte/orbitte/verbs/simverbs"
)

// placementsOf lists how two sides may hold their memory.
var placementsOf = []struct {
	name              string
	requester, source HostMemory
	path              string
}{
	{"direct", HostDirect, HostDirect, "rdma, direct: "},
	{"staged here", HostStaged, HostDirect, "rdma, staged here: "},
	{"staged there", HostDirect, HostStaged, "rdma, staged there: "},
	{"staged", HostStaged, HostStaged, "rdma, staged on both sides: "},
}

func memoryIs(h HostMemory) Config { return Config{RDMA: &RDMAConfig{HostMemory: h}} }

// guarded checks that a transfer of n bytes at an offset moved these bytes and touched none around them.
func guarded(t testing.TB, from, before, after []byte, offset, n int) {
	t.Helper()
	if !bytes.Equal(after[offset:offset+n], from[offset:offset+n]) {
		t.Errorf("%d bytes at %d are not those of the other side", n, offset)
	}
	if !bytes.Equal(after[:offset], before[:offset]) || !bytes.Equal(after[offset+n:], before[offset+n:]) {
		t.Errorf("bytes around the %d at %d were changed", n, offset)
	}
}

// proves, G-2
// field case F-68
func TestReadsAndWritesOfOddSizesArriveExactlyWhateverSideStages(t *testing.T) {
	const size = 3<<20 + 1234
	for i, c := range placementsOf {
		t.Run(c.name, func(t *testing.T) {
			p := newRDMAPair(t, uint64(20+i), memoryIs(c.source), memoryIs(c.requester), size)
			for _, op := range []Operation{Read, Write} {
				seen, err := p.segment.Path(op, TransportRDMA)
				must(t, err)
				if seen != c.path+"mlx5_0 to mlx5_0, mlx5_1 to mlx5_1" {
					t.Errorf("%v would take %q", op, seen)
				}
				for j, n := range []int{1, 4095, 64<<10 + 1, 1<<20 + 17, size - 4099} {
					offset := 3 + j
					pattern(p.local, j+9)
					pattern(p.remote, j+70)
					from, to := p.remote, p.local
					if op == Write {
						from, to = p.local, p.remote
					}
					before := bytes.Clone(to.Bytes())
					report, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(op, offset, n)})
					if err != nil || report.Bytes != uint64(n) || !report.LocallyDrained {
						t.Fatalf("%v of %d: %+v, %v", op, n, report, err)
					}
					mentions(t, report.Path, c.path, "mlx5_")
					guarded(t, from.Bytes(), before, to.Bytes(), offset, n)
				}
			}
			if n := p.requester.Stats().Totals; n.BytesRead != n.BytesWritten || n.ReadsDone != 5 {
				t.Errorf("the counts are %+v", n)
			}
		})
	}
}

// proves G-4
// field case F-70
func TestARequestOverRDMAIsRefusedWithWhatIsMissing(t *testing.T) {
	s := newRDMASim(t, 30, simverbs.Hardware)
	plain := newEngine(t, s.config(s.Process("plain", hostC), Config{}, hostC.String()+":0"))
	s.drive(plain)
	p := newRDMAPairOn(t, s, Config{}, Config{}, 8192)
	other := opened(t, plain, p.source)
	m := allocated(t, 8192)
	registered(t, plain, m, ReadWrite)
	refused := func(e *Engine, r Request, words ...string) {
		t.Helper()
		report, err := e.SubmitAndWait(soon(t), []Request{r})
		mentions(t, wants(t, err, ErrUnavailable).Error(), append(words, "no other path was tried")...)
		if report.Failed != 0 || report.Path != "" {
			t.Errorf("the report is %+v", report)
		}
		_, again := r.Segment.Path(r.Operation, r.Transport)
		wants(t, again, ErrUnavailable)
	}
	request := Request{Operation: Read, Transport: TransportRDMA, Segment: other, Local: m.Address(), Remote: p.remote.Address(), Length: 8}
	refused(plain, request, "Config.Verbs and Config.RDMA are not set")
	request.Segment, request.Local, request.Remote = opened(t, p.requester, plain), p.local.Address(), m.Address()
	refused(p.requester, request, "the peer publishes no RDMA")
	request.Segment, request.Transport = p.segment, TransportHPTCP
	refused(p.requester, request, "Config.HPTCP is not set")
	for _, port := range []string{"mlx5_0", "mlx5_1"} {
		s.fabric.Host(hostB.String()).Device(port).Port(1).Down()
	}
	s.until(5e9, func() bool {
		return p.requester.descriptor().RDMA.Paths[1].State == 0 && p.requester.descriptor().RDMA.Paths[0].State == 0
	})
	refused(p.requester, p.overRDMA(Read, 0, 8), "2 are paused", "orbitte devices")
	_, err := p.requester.SubmitAndWait(soon(t), p.whole(Read)) // TCP goes on, and only when it is named
	must(t, err)
}

// field case F-71
func TestAnEngineReadsItselfOverRDMAWithoutADevice(t *testing.T) {
	p := newRDMAPair(t, 31, Config{}, Config{}, 4096)
	own := opened(t, p.source, p.source)
	m := allocated(t, 4096)
	registered(t, p.source, m, LocalOnly)
	posts := p.sourceNative.Calls(simverbs.CallPostSend)
	report, err := p.source.SubmitAndWait(soon(t), []Request{{Operation: Read, Transport: TransportRDMA, Segment: own, Local: m.Address(), Remote: p.remote.Address(), Length: 4096}})
	if err != nil || report.Path != "local copy" || !bytes.Equal(m.Bytes(), p.remote.Bytes()) {
		t.Errorf("%+v, %v", report, err)
	}
	if now := p.sourceNative.Calls(simverbs.CallPostSend); now != posts {
		t.Errorf("%d posts to a device", now-posts)
	}
}

// proves G-3, B-1
func TestABatchMixesTransportsInOrder(t *testing.T) {
	p := newRDMAPair(t, 32, Config{}, Config{}, 1<<20)
	scratch := allocated(t, 1<<20)
	registered(t, p.requester, scratch, ReadWrite)
	own := opened(t, p.requester, p.requester)
	var requests []Request
	for i := range 12 {
		requests = append(requests, p.request(Read, i*4096, 4096), p.overRDMA(Read, (i+20)*4096, 4096),
			Request{Operation: Write, Transport: TransportTCP, Segment: own, Local: p.local.Address() + uint64(i+20)*4096, Remote: scratch.Address() + uint64(i)*4096, Length: 4096})
	}
	b, err := p.requester.Submit(soon(t), requests)
	must(t, err)
	report, err := b.Wait(soon(t))
	if err != nil || report.Completed != len(requests) || report.Bytes != 36*4096 {
		t.Fatalf("%+v, %v", report, err)
	}
	for i := range 12 {
		if state, n, err := b.Task(3*i + 1); state != TaskSucceeded || n != 4096 || err != nil {
			t.Errorf("task %d: %v, %d, %v", 3*i+1, state, n, err)
		}
	}
	if granted := p.source.Stats().RDMA.Received; granted != 12 {
		t.Errorf("%d requests went over RDMA, want the 12 that name it", granted)
	}
	if !bytes.Equal(scratch.Bytes()[:12*4096], p.remote.Bytes()[20*4096:32*4096]) {
		t.Error("a copy saw other bytes than those that the request before it brought over RDMA")
	}
	must(t, b.Free())
}

// proves G-3, G-7
func TestAnEmptyRequestOverRDMAIsCheckedLikeAnyOtherAndMovesNothing(t *testing.T) {
	p := newRDMAPair(t, 33, Config{}, Config{}, 4096)
	for _, op := range []Operation{Read, Write} {
		report, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(op, 0, 0)})
		if err != nil || report.Completed != 1 || report.Bytes != 0 {
			t.Errorf("%v: %+v, %v", op, report, err)
		}
	}
	must(t, p.source.Unregister(soon(t), p.export))
	_, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Read, 0, 0)})
	wants(t, err, ErrUnknownRegion)
}

// proves L-4, R-19
func TestEventDrivenEnginesTransferLikePollingOnes(t *testing.T) {
	c := Config{RDMA: &RDMAConfig{Progress: RDMAEventDriven, Width: 2}}
	p := newRDMAPair(t, 34, c, c, 1<<20)
	for i := range 6 {
		op := []Operation{Read, Write}[i%2]
		pattern(p.local, i)
		if _, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(op, i, 1<<19+i)}); err != nil {
			t.Fatal(fmt.Errorf("%v %d: %w", op, i, err))
		}
		if !bytes.Equal(p.local.Bytes()[i:i+1<<19+i], p.remote.Bytes()[i:i+1<<19+i]) {
			t.Errorf("%v %d brought other bytes", op, i)
		}
	}
}

// proves
// field case F-68
func TestAMaskAndANodeDecideWhichDevicesCarryAndThePathSaysSo(t *testing.T) {
	s := newRDMASim(t, 35, simverbs.Hardware)
	near := []simverbs.DeviceSpec{{Name: "mlx5_0", NUMANode: 0}, {Name: "mlx5_1", NUMANode: 1}}
	source := s.rdmaEngine(s.native("source", hostA, near...), hostA, Config{})
	remote := allocated(t, 1<<20)
	registered(t, source, remote, ReadWrite)
	one := 1 // the node, and the index of the IPv4 address
	for i, c := range []*RDMAConfig{{DeviceMask: 2}, {PreferredNUMANode: &one}, {Device: "mlx5_1", GIDIndex: &one}} {
		name := fmt.Sprintf("requester %d", i)
		n := s.native(name, hostB, near...)
		e := s.rdmaEngine(n, hostB, Config{RDMA: c})
		m := allocated(t, 1<<20)
		registered(t, e, m, LocalOnly)
		segment := opened(t, e, source)
		for _, op := range []Operation{Read, Write} {
			way, err := segment.Path(op, TransportRDMA)
			must(t, err)
			report, err := e.SubmitAndWait(soon(t), []Request{{Operation: op, Transport: TransportRDMA, Segment: segment, Local: m.Address(), Remote: remote.Address(), Length: 1 << 20}})
			must(t, err)
			if way != "rdma, direct: mlx5_1 to mlx5_1" || report.Path != way {
				t.Errorf("%+v: %v would take %q and took %q", c, op, way, report.Path)
			}
		}
	}
}

// proves R-6, T-1, G-8
func TestAStagedReadThatIsCancelledLeavesTheLocalRangeAsItWas(t *testing.T) {
	p := newRDMAPair(t, 36, Config{}, memoryIs(HostStaged), 1<<20)
	a, z := p.fabric.Host(hostA.String()), p.fabric.Host(hostB.String())
	for _, d := range []string{"mlx5_0", "mlx5_1"} {
		p.fabric.Delay(a.Device(d).Port(1), z.Device(d).Port(1), 5*time.Millisecond, 6*time.Millisecond)
	}
	before := bytes.Clone(p.local.Bytes())
	ctx, cancel := context.WithCancel(context.Background())
	b, err := p.requester.Submit(ctx, []Request{p.overRDMA(Read, 0, 1<<20)})
	must(t, err)
	p.until(5*time.Second, func() bool { return p.requesterNative.Calls(simverbs.CallPostSend) > 0 })
	cancel()
	report, err := b.Wait(soon(t))
	wants(t, err, ErrCancelled)
	if report.Local != EffectNone || !report.LocallyDrained || !bytes.Equal(p.local.Bytes(), before) {
		t.Errorf("the report is %+v; bytes changed: %v", report, !bytes.Equal(p.local.Bytes(), before))
	}
	must(t, b.Free())
}

// proves N-3
func TestANotificationFollowsABatchOverRDMA(t *testing.T) {
	p := newRDMAPair(t, 37, Config{}, Config{}, 8192)
	report, err := p.requester.SubmitAndNotify(soon(t), []Request{p.overRDMA(Write, 0, 8192)}, Notification{Name: "done", Message: "8192"})
	if err != nil || report.Completed != 1 || report.Notification.Status != Delivered {
		t.Errorf("%+v, %v", report, err)
	}
	if notes := p.source.ReceiveNotifications(); len(notes) != 1 || notes[0].Name != "done" {
		t.Errorf("the source got %v", notes)
	}
}
