package orbitte

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/segments"
)

func limited(l RDMALimits, h HostMemory) Config {
	return Config{RDMA: &RDMAConfig{Limits: l, HostMemory: h}}
}

// proves U-1, U-3
func TestEachRDMABudgetOfTheRequesterRefusesWithItsNameAndField(t *testing.T) {
	for i, c := range []struct {
		name, field string
		config      Config
	}{
		{"RDMA direct bytes", "RDMA.Limits.DirectBytes", limited(RDMALimits{DirectBytes: 4096}, HostDirect)},
		{"RDMA staging bytes", "RDMA.Limits.StagingBytes", limited(RDMALimits{StagingBytes: 4096}, HostStaged)},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newRDMAPair(t, 100+uint64(i), Config{}, c.config, 8192)
			report, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Read, 0, 4097)})
			own := wants(t, err, ErrExhausted)
			mentions(t, own.Error(), c.name, "4097", "limit 4096", c.field)
			var cause *budgets.Exhausted
			if !errors.As(err, &cause) || cause.Budget != c.name || !report.LocallyDrained || report.Local != EffectNone {
				t.Errorf("the cause is %+v, the report %+v", cause, report)
			}
			if g := gauge(t, p.requester, c.name); g.Refusals == 0 || g.Used != 0 {
				t.Errorf("the gauge is %+v", g)
			}
			_, err = p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Read, 0, 4096)})
			must(t, err)
		})
	}
}

// proves U-3, R-9
func TestABudgetOfTheSourceRefusesBeforeAnyAuthorityAndIsToldAsThePeers(t *testing.T) {
	for i, c := range []struct {
		name   string
		config Config
	}{
		{"RDMA direct bytes", limited(RDMALimits{DirectBytes: 4096}, HostDirect)},
		{"RDMA staging bytes", limited(RDMALimits{StagingBytes: 4096}, HostStaged)},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newRDMAPair(t, 110+uint64(i), c.config, Config{}, 8192)
			report, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Write, 0, 4097)})
			own := wants(t, err, ErrExhausted)
			mentions(t, own.Error(), "peer's budget")
			var fault *lanes.Fault
			if !errors.As(err, &fault) || fault.Status != netproto.StatusExhausted || report.Remote != EffectNone {
				t.Errorf("the fault is %+v, the report %+v", fault, report)
			}
			if g := gauge(t, p.source, c.name); g.Refusals == 0 || g.Used != 0 {
				t.Errorf("the source's gauge is %+v", g)
			}
			_, err = p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Write, 0, 4096)})
			must(t, err)
		})
	}
}

// proves U-1
// field case F-53
func TestTinyQueuesPairsGrantsAndKeysCarryManyRequests(t *testing.T) {
	for i, l := range []RDMALimits{
		{CompletionEntries: 16, SendWork: 4},
		{SendWork: 1},
		{Grants: 1},
		{Endpoints: 2},
		{WindowKeyIndices: 8},
	} {
		t.Run(fmt.Sprintf("%+v", l), func(t *testing.T) {
			p := newRDMAPair(t, 120+uint64(i), limited(l, HostDirect), limited(l, HostDirect), 1<<20)
			const each, all = 24, 10
			var batches []*Batch
			for b := range all {
				var requests []Request
				for j := range each {
					requests = append(requests, p.overRDMA(Read, (b*each+j)*4096+j, 4000))
				}
				batch, err := p.requester.Submit(soon(t), requests)
				must(t, err)
				batches = append(batches, batch)
			}
			for _, b := range batches {
				report, err := b.Wait(soon(t))
				if err != nil || report.Completed != each {
					t.Errorf("%+v, %v", report, err)
				}
				must(t, b.Free())
			}
			for n := range each * all {
				if at := n*4096 + n%each; !bytes.Equal(p.local.Bytes()[at:at+4000], p.remote.Bytes()[at:at+4000]) {
					t.Fatalf("request %d brought other bytes", n)
				}
			}
		})
	}
}

// A source with fewer window indices than a request has slices tells its peers to cut fewer ones: it refused them for good.
//
// proves, U-1
func TestARequestHasNoMoreSlicesThanItsSourceHasWindowIndices(t *testing.T) {
	for i, indices := range []int{1, 5} {
		p := newRDMAPair(t, 128+uint64(i), limited(RDMALimits{WindowKeyIndices: indices}, HostDirect), Config{}, 4<<20)
		for _, op := range []Operation{Read, Write} {
			_, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(op, 0, 4<<20)})
			must(t, err)
		}
		if !bytes.Equal(p.local.Bytes(), p.remote.Bytes()) {
			t.Error("other bytes arrived")
		}
	}
}

// proves R-10, U-3
func TestQueuePairsThatCannotBeHadAreRefusedWithTheirBudget(t *testing.T) {
	p := newRDMAPair(t, 130, Config{}, limited(RDMALimits{Endpoints: 1}, HostDirect), 1<<20)
	_, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Read, 0, 64<<10)}) // one slice, one pair
	must(t, err)
	began := p.Now()
	_, err = p.requester.SubmitAndWait(p.within(20*time.Second), []Request{p.overRDMA(Read, 0, 1<<20)}) // two devices at once
	t.Logf("after %v: %v", time.Duration(p.Now()-began), err)
	own := wants(t, err, ErrExhausted)
	mentions(t, own.Error(), "RDMA queue pairs", "limit 1", "RDMA.Limits.Endpoints")
}

// A range that another access has at the source is told with the status for lack of room; no gauge of the source's shows it.
//
// field case F-24
func TestARangeThatIsInUseAtTheSourceIsNotOnlyCalledAnExhaustedBudget(t *testing.T) {
	p := newRDMAPair(t, 132, Config{}, Config{}, 2<<20)
	lease, err := p.export.inner.Lease(0, 4096, segments.Exclusive)
	must(t, err)
	_, err = p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Write, 0, 4096)})
	mentions(t, wants(t, err, ErrExhausted).Error(), "another access has the range", "order accesses")
	lease.Return()
}
