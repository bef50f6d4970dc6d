package orbitte

import (
	"bytes"
	"fmt"
	"testing"
)

// slottedSide is a side with RDMA that offers, or asks for, slots of its peers.
func slottedSide(device bool, slots int, change func(*Config)) gpuSide {
	c := Config{Limits: small, RemoteStaging: &RemoteStagingConfig{Slots: slots}, RDMA: &RDMAConfig{}}
	if change != nil {
		change(&c)
	}
	return gpuSide{config: c, device: device}
}

// directedOverRDMA is a request that directs the peer's staging, whose payload goes over RDMA.
func (p *gpuPair) directedOverRDMA(op Operation, offset, n, slots int) Request {
	r := p.overRDMA(op, offset, n)
	r.RemoteSlots = slots
	return r
}

// direct runs one such request, and checks that it moved exactly its range and went the way that was foretold.
func (p *gpuPair) direct(t testing.TB, op Operation, offset, n, slots, seed int) Report {
	t.Helper()
	put(t, p.sourceDriver, p.remote, seed)
	put(t, p.requesterDriver, p.local, seed+100)
	here, there := content(t, p.requesterDriver, p.local), content(t, p.sourceDriver, p.remote)
	if op == Read {
		copy(here[offset:][:n], there[offset:])
	} else {
		copy(there[offset:][:n], here[offset:])
	}
	r := p.directedOverRDMA(op, offset, n, slots)
	foretold, err := p.segment.PathOf(r)
	must(t, err)
	report, err := p.requester.SubmitAndWait(soon(t), []Request{r})
	if err != nil || report.Bytes != uint64(n) || !report.LocallyDrained {
		t.Fatalf("%v of %d with %d slots: %+v, %v", op, n, slots, report, err)
	}
	if !bytes.Equal(content(t, p.requesterDriver, p.local), here) || !bytes.Equal(content(t, p.sourceDriver, p.remote), there) {
		t.Fatalf("%v of %d bytes at %d with %d slots moved not exactly its range", op, n, offset, slots)
	}
	if undeviced(report.Path) != undeviced(foretold) {
		t.Errorf("the path was foretold as %q, and is %q", foretold, report.Path)
	}
	return report
}

// Requests with remote slots over RDMA, serial and pipelined, move exactly the range between a peer's GPU and host or
// device memory here, whatever the policies for memory that is staged without slots; the payload is RDMA's, the copies are
// the source's, and nothing stays charged.
//
// proves C-8, R-5, R-9, R-11, U-1, U-2
func TestRemoteSlotsMoveExactlyTheRangeOverRDMA(t *testing.T) {
	const size = 20 << 10
	for i, x := range []struct {
		here              bool
		source, requester HostMemory
	}{{false, HostDirect, HostDirect}, {true, HostDirect, HostDirect}, {false, HostStaged, HostDirect}, {false, HostDirect, HostStaged}} {
		t.Run(fmt.Sprintf("%+v", x), func(t *testing.T) {
			p := newGPUPair(t, uint64(700+i), size,
				slottedSide(true, 16, func(c *Config) { c.RDMA.HostMemory = x.source }),
				slottedSide(x.here, 16, func(c *Config) { c.RDMA.HostMemory = x.requester }))
			asked, copies := uint64(0), uint64(0)
			for i, n := range []int{1, 1008, 1009, 1010, 2019, 7 * 1009, size - 5003} {
				for k, op := range []Operation{Read, Write, Read} {
					slots := []int{1, 2, 16}[(i+k)%3]
					report := p.direct(t, op, 5003-i, n, slots, i+k)
					mentions(t, report.Path, "rdma, staged", "remote staging, "+map[bool]string{true: "serial", false: "pipelined"}[slots == 1], "staged through pinned host memory", "mlx5_")
					asked++
					copies += uint64(n+1008) / 1009
				}
			}
			s := p.source.Stats()
			if x := s.RemoteStaging; x.Pinned != asked || x.Copied != copies || x.Copies != copies || x.Pins+x.Slots+x.Retained != 0 || x.Failed != 0 {
				t.Errorf("%+v, %d copies of %d requests wanted", x, copies, asked)
			}
			if s.RDMA.Granted < copies || s.RDMA.Granted != s.RDMA.Received || s.RDMA.Revoked != 0 || s.RDMA.Staged != 0 {
				t.Errorf("%+v", s.RDMA)
			}
			if g := gauge(t, p.source, slotsBudget); g.Used != 0 || g.Peak != 16 {
				t.Errorf("%+v", g)
			}
			p.atRest(t)
		})
	}
}
