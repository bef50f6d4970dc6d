package orbitte

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/orbitte/orbitte/verbs/simverbs"
)

// proves G-8, G-9, R-17, R-18
func TestATransferWhoseEndNoDeviceProvesIsUnquiescedAndKeepsEverything(t *testing.T) {
	s := newRDMASim(t, 140, simverbs.Hardware)
	keepsOnPurpose(t, 3) // the user's memory, and messages on each device; the lane ends
	s.deliberate["requester"] = true
	source := s.rdmaEngine(s.native("source", hostA), hostA, Config{})
	remote := allocated(t, 1<<20)
	registered(t, source, remote, ReadWrite)
	n := s.native("requester", hostB)
	e, err := Open(s.rdmaConfig(n, hostB, Config{}))
	must(t, err)
	s.drive(e)
	m, err := Allocate(1 << 20)
	must(t, err)
	r, err := e.Register(m, 0, 1<<20, LocalOnly)
	must(t, err)
	segment, err := e.OpenSegment(soon(t), source.Endpoint(), source.Epoch())
	must(t, err)
	request := Request{Operation: Write, Transport: TransportRDMA, Segment: segment, Local: m.Address(), Remote: remote.Address(), Length: 1 << 20}
	a, z := s.fabric.Host(hostA.String()), s.fabric.Host(hostB.String())
	for _, d := range []string{"mlx5_0", "mlx5_1"} {
		s.fabric.Delay(a.Device(d).Port(1), z.Device(d).Port(1), 5*time.Millisecond, 6*time.Millisecond)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b, err := e.Submit(ctx, []Request{request})
	must(t, err)
	s.until(5*time.Second, func() bool { return n.Calls(simverbs.CallPostSend) > 0 })
	// What is posted never completes, and the pairs cannot be taken to the error state.
	for _, d := range []string{"mlx5_0", "mlx5_1"} {
		s.fabric.Cut(a.Device(d).Port(1), z.Device(d).Port(1), true)
	}
	s.fabric.Plan(simverbs.Fault{Kind: simverbs.LoseCompletion, Process: "requester", Count: -1})
	s.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallModifyPair, Process: "requester", Count: -1, Errno: syscall.EIO})
	cancel()
	for at := range 600 { // a lane that polls tells the world of no timer
		s.Later(time.Duration(at)*100*time.Millisecond, func() {})
	}
	s.until(2*time.Minute, func() bool { // the cleanup window passes
		_, over, _ := b.Poll()
		return over
	})
	report, err := b.Wait(soon(t))
	wants(t, err, ErrUnquiesced)
	if report.LocallyDrained || report.Remote != EffectUnknown {
		t.Errorf("the report is %+v", report)
	}
	must(t, b.Free())
	if used := gauge(t, e, "async batches").Used; used != 1 {
		t.Errorf("%d batches are charged, want the one whose memory is not quiet", used)
	}
	ended, stop := context.WithTimeout(context.Background(), time.Millisecond)
	defer stop()
	wants(t, e.Unregister(ended, r), ErrUnquiesced)
	must(t, m.Close())
	kinds := map[string]int{}
	for _, k := range e.RetainedResources() {
		kinds[k.Kind]++
		if k.Kind == "submission" {
			mentions(t, k.Reason, "nothing proves", "ended with") // and no descriptor had a part in it
		}
	}
	if kinds["RDMA work"] != 1 || kinds["RDMA object"] == 0 || kinds["submission"] == 0 {
		t.Errorf("retained are %v", e.RetainedResources())
	}
	mentions(t, wants(t, e.Close(ended), ErrUnquiesced).Error(), "RDMA", "memory registrations are left", "RetainedResources")
	if gauge(t, e, "RDMA direct bytes").Used != 1<<20 || gauge(t, e, "RDMA memory regions").Used == 0 || gauge(t, e, "RDMA queue pairs").Used == 0 {
		t.Errorf("what is retained is not charged: %+v", e.Stats().Gauges)
	}
}
