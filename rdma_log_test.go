package orbitte

import (
	"bytes"
	"testing"

	"github.com/rs/zerolog"

	"github.com/orbitte/orbitte/verbs/simverbs"
)

// The requester is told to look at the source's log, so that must say why: here its one device cannot reach the second one
// of the requester, whose network is another.
//
// field case F-24
func TestASourcesLogSaysWhatItsDeviceRefusedToAPeer(t *testing.T) {
	device := func(name string) simverbs.DeviceSpec {
		return simverbs.DeviceSpec{Name: name, Ports: []simverbs.PortSpec{{Network: name}}}
	}
	s := newRDMASim(t, 960, simverbs.Hardware)
	var written bytes.Buffer // read when the engine is closed
	logger := zerolog.New(&written)
	p := &rdmaPair{rdmaSim: s, pair: &pair{}}
	p.sourceNative, p.requesterNative = s.native("source", hostA, device("nic0")), s.native("requester", hostB, device("nic0"), device("nic1"))
	p.source = s.rdmaEngine(p.sourceNative, hostA, Config{Logger: &logger})
	p.requester = s.rdmaEngine(p.requesterNative, hostB, Config{RDMA: &RDMAConfig{DeviceMask: 2}})
	p.remote, p.local = allocated(t, 4096), allocated(t, 4096)
	p.export, p.own = registered(t, p.source, p.remote, ReadWrite), registered(t, p.requester, p.local, LocalOnly)
	p.segment = opened(t, p.requester, p.source)
	_, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Read, 0, 4096)})
	mentions(t, wants(t, err, ErrPeer).Error(), "nic1 here and nic0 of the peer", "the source's log may say more")
	closeEngine(t, p.source)
	mentions(t, written.String(), "nic0", "refused what a peer asked for", "orbitte devices")
}
