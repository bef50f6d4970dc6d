package orbitte

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/orbitte/orbitte/verbs/simverbs"
)

// proves R-10, U-1
func TestManyPeersShareASourcesQueuesAndIdleConnectionsGiveWay(t *testing.T) {
	s := newRDMASim(t, 150, simverbs.Hardware)
	source := s.rdmaEngine(s.native("source", hostA), hostA, Config{})
	remote := allocated(t, 256<<10)
	pattern(remote, 1)
	registered(t, source, remote, ReadWrite)
	for i := range 12 {
		host := netip.AddrFrom4([4]byte{10, 0, 1, byte(i + 1)})
		e := s.rdmaEngine(s.native(fmt.Sprintf("requester %d", i), host), host, Config{})
		m := allocated(t, 256<<10)
		registered(t, e, m, LocalOnly)
		segment := opened(t, e, source)
		for _, op := range []Operation{Read, Write} {
			_, err := e.SubmitAndWait(soon(t), []Request{{Operation: op, Transport: TransportRDMA, Segment: segment, Local: m.Address(), Remote: remote.Address(), Length: 256 << 10}})
			if err != nil {
				t.Fatalf("peer %d, %v: %v; %+v", i, op, err, source.Stats().RDMA)
			}
		}
		if !bytes.Equal(m.Bytes(), remote.Bytes()) {
			t.Errorf("peer %d has other bytes", i)
		}
	}
}
