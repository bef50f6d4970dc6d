package orbitte

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/orbitte/orbitte/verbs/simverbs"
)

// The lanes of a source share the window indices of its devices: a window that is idle on one lane serves a grant on
// another one.
//
// proves R-12
func TestAWindowThatIsIdleOnOneLaneServesTheGrantsOfAnother(t *testing.T) {
	s := newRDMASim(t, 983, simverbs.Hardware)
	device := simverbs.DeviceSpec{Name: "r0"}
	source := s.rdmaEngine(s.native("source", hostA, device), hostA, Config{Lanes: 2, RDMA: &RDMAConfig{Limits: RDMALimits{WindowKeyIndices: 1}}})
	remote := allocated(t, 64<<10)
	pattern(remote, 1)
	registered(t, source, remote, ReadWrite)
	for round := range 3 {
		for i := range 4 { // streams take the lanes in turn
			host := netip.AddrFrom4([4]byte{10, 0, 1, byte(round*4 + i + 1)})
			e := s.rdmaEngine(s.native(fmt.Sprint("requester ", round, i), host, device), host, Config{})
			m := allocated(t, 64<<10)
			registered(t, e, m, LocalOnly)
			_, err := e.SubmitAndWait(soon(t), []Request{{
				Operation: Read, Transport: TransportRDMA, Segment: opened(t, e, source), Local: m.Address(), Remote: remote.Address(), Length: 64 << 10,
			}})
			must(t, err)
			if !bytes.Equal(m.Bytes(), remote.Bytes()) {
				t.Error("other bytes")
			}
		}
	}
}
