package orbitte

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// onNetworks starts a pair whose devices are each on a network of its own name.
func onNetworks(t *testing.T, seed uint64, source, requester []string) *rdmaPair {
	t.Helper()
	s := newRDMASim(t, seed, simverbs.Hardware)
	devices := func(names []string) (specs []simverbs.DeviceSpec) {
		for _, n := range names {
			specs = append(specs, simverbs.DeviceSpec{Name: n, Ports: []simverbs.PortSpec{{Network: n}}})
		}
		return specs
	}
	p := &rdmaPair{rdmaSim: s, pair: &pair{}}
	p.sourceNative = s.native("source", hostA, devices(source)...)
	p.requesterNative = s.native("requester", hostB, devices(requester)...)
	p.source, p.requester = s.rdmaEngine(p.sourceNative, hostA, Config{}), s.rdmaEngine(p.requesterNative, hostB, Config{})
	p.remote, p.local = allocated(t, 1<<20), allocated(t, 1<<20)
	pattern(p.remote, 1)
	p.export = registered(t, p.source, p.remote, ReadWrite)
	p.own = registered(t, p.requester, p.local, LocalOnly)
	p.segment = opened(t, p.requester, p.source)
	return p
}

// Devices on networks that do not meet: the request that finds that out goes another way, and later ones do not try it again
// until its time is over.
//
// proves
func TestAPairOfDevicesThatCannotBeConnectedIsAvoidedForATimeAndFailsNoRequest(t *testing.T) {
	p := onNetworks(t, 981, []string{"r0"}, []string{"r0", "r1"})
	slow := 0
	for i := range 8 {
		began := p.Now()
		report, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA([]Operation{Read, Write}[i/4], 0, 64<<10)})
		must(t, err)
		if report.Path != "rdma, direct: r0 to r0" {
			t.Errorf("request %d went %s", i, report.Path)
		}
		if time.Duration(p.Now()-began) > 500*time.Millisecond {
			slow++
		}
	}
	if slow != 1 {
		t.Errorf("%d requests waited for the address that is not there, want the first that was to go to it", slow)
	}
	report, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Read, 0, 1<<20)}) // many slices
	must(t, err)
	if report.Path != "rdma, direct: r0 to r0" || !bytes.Equal(p.local.Bytes(), p.remote.Bytes()) {
		t.Errorf("%s, or other bytes", report.Path)
	}
	list := p.requester.Stats().RDMA.Unreached
	if len(list) != 1 || list[0].NIC != 1 || list[0].RemoteNIC != 0 || list[0].Times != 1 || list[0].For <= 0 || list[0].Peer != p.source.Epoch() {
		t.Errorf("%+v", list)
	}
	way, err := p.segment.Path(Read, TransportRDMA)
	must(t, err)
	if !strings.HasPrefix(way, "rdma, direct: r0 to r0; r1 to r0: not reachable since ") || !strings.Contains(way, netproto.StatusNativeError.String()) {
		t.Error(way)
	}
}

// When no pair of devices can be connected each request says so, and what helps.
//
// proves R-3
func TestWhenNoPairOfDevicesCanBeConnectedTheRequestSaysWhichAndWhatHelps(t *testing.T) {
	p := onNetworks(t, 982, []string{"r0"}, []string{"r1"})
	for i := range 3 {
		report, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Write, 0, 64<<10)})
		if err == nil || report.Remote != EffectNone {
			t.Fatalf("%+v", report)
		}
		for _, want := range []string{"between r1 here and r0 of the peer", "before anything was granted", "DeviceMask"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%d: %v, want %q", i, err, want)
			}
		}
	}
	if list := p.requester.Stats().RDMA.Unreached; len(list) != 1 || list[0].Times != 3 {
		t.Errorf("%+v", list)
	}
}
