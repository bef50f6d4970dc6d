package orbitte

import (
	"testing"

	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
)

// CUDA IPC, NVLink and MNNVL are ways of their own: none of them stands in for the one that a request names, whatever a peer
// publishes about them, and an engine, which has none of them, consents to none. That is what of C-9 can be held against this
// engine: the transports, with their grants and receipts, are not there.
//
// proves C-9, G-4
func TestNoWayBetweenGPUsStandsInForTheOneThatIsNamed(t *testing.T) {
	s := newFastSim(t, 8, simkernel.WorldOptions{}, Config{}, Config{}, 4096)
	d := *s.segment.view().Descriptor()
	if d.Capabilities.Has(netproto.CapabilityMNNVL) || d.Capabilities.Has(netproto.CapabilitySHM) || d.MNNVL != nil {
		t.Errorf("published is %+v", d)
	}
	d.Regions = append([]netproto.Region(nil), d.Regions...)
	for i := range d.Regions {
		if r := &d.Regions[i]; r.IPCExport || r.Location != 0 || r.Scope.Transport != netproto.TransportUnspecified {
			t.Errorf("published is %+v", r)
		} else {
			r.IPCExport, r.Location, r.Flags, r.Scope = true, netproto.MNNVLExportEGM, r.Flags|netproto.RegionScoped, netproto.Scope{Transport: netproto.TransportNVLink}
		}
	}
	d.Capabilities.Bits |= netproto.CapabilityMNNVL
	d.MNNVL = &netproto.MNNVL{Domain: [16]byte{1}, EGM: true}
	remote, err := segments.NewRemote(s.segment.endpoint, s.segment.epoch, d)
	must(t, err)
	s.segment.remote.Store(remote)
	for transport := range Transport(8) {
		r := s.request(Read, 0, 4096)
		r.Transport = transport
		report, err := s.requester.SubmitAndWait(soon(t), []Request{r})
		switch transport {
		case TransportTCP, TransportHPTCP:
			if must(t, err); report.Path != transport.String() {
				t.Errorf("%v went by %q", transport, report.Path)
			}
			continue
		case TransportRDMA:
			wants(t, err, ErrUnavailable)
		default:
			wants(t, err, ErrInvalid)
		}
		if report.Local != EffectNone || report.Completed != 0 {
			t.Errorf("%v: %+v", transport, report)
		}
	}
}
