package orbitte

import (
	"bytes"
	"testing"

	"github.com/orbitte/orbitte/verbs/simverbs"
)

// A device without type-2B windows serves nothing: peers are not told of it, memory has no parent region there, and Stats
// says why. The requests of its own side go over it.
//
// proves
func TestADeviceWithoutWindowsIsTheRequestersOnly(t *testing.T) {
	bare := func(name string, none bool) simverbs.DeviceSpec {
		return simverbs.DeviceSpec{Name: name, NoWindows: none, Ports: []simverbs.PortSpec{{Network: name}}}
	}
	s := newRDMASim(t, 950, simverbs.Hardware)
	p := &rdmaPair{rdmaSim: s, pair: &pair{}}
	p.sourceNative = s.native("source", hostA, bare("nic0", true), bare("nic1", false))
	p.requesterNative = s.native("requester", hostB, bare("nic0", true), bare("nic1", true))
	p.source, p.requester = s.rdmaEngine(p.sourceNative, hostA, Config{}), s.rdmaEngine(p.requesterNative, hostB, Config{RDMA: &RDMAConfig{DeviceMask: 2}})
	p.remote, p.local = allocated(t, 1<<20), allocated(t, 1<<20)
	pattern(p.remote, 1)
	p.export = registered(t, p.source, p.remote, ReadWrite)
	if n := liveRegions(p.sourceNative); n != 3 {
		t.Errorf("%d memory regions for one remote range on a device with windows and one without, want 3", n)
	}
	p.own = registered(t, p.requester, p.local, ReadWrite)
	if n := liveRegions(p.requesterNative); n != 2 {
		t.Errorf("%d memory regions on two devices without windows, want 2", n)
	}
	devices := p.source.Stats().RDMA.Devices
	mentions(t, devices[0].NoSource, `"nic0"`, "type 2B")
	if devices[0].State != "active" || devices[1].NoSource != "" {
		t.Errorf("the devices are %+v", devices)
	}
	if d := p.source.descriptor().RDMA; len(d.Paths) != 1 || d.Paths[0].Name != "nic1" || d.Paths[0].NIC != 1 {
		t.Fatalf("published: %+v", d)
	}
	p.segment = opened(t, p.requester, p.source)
	for _, op := range []Operation{Read, Write} {
		pattern(p.local, 5)
		report, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(op, 0, 1<<20)})
		must(t, err)
		mentions(t, report.Path, "nic1 to nic1")
		if !bytes.Equal(p.local.Bytes(), p.remote.Bytes()) {
			t.Errorf("%v moved other bytes", op)
		}
	}
	back := opened(t, p.source, p.requester) // whose devices all lack windows
	_, err := p.source.SubmitAndWait(soon(t), []Request{{Operation: Read, Transport: TransportRDMA, Segment: back, Local: p.remote.Address(), Remote: p.local.Address(), Length: 64}})
	mentions(t, wants(t, err, ErrUnavailable).Error(), "type 2B")
}
