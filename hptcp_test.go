package orbitte

import (
	"bytes"
	"testing"

	"github.com/orbitte/orbitte/netproto"
)

// fast turns HP-TCP on.
func fast(c Config) Config {
	if c.HPTCP == nil {
		c.HPTCP = &HPTCPConfig{}
	}
	return c
}

// newFastPair is a pair whose source serves all of its memory over HP-TCP.
func newFastPair(t testing.TB, source, requester Config, size int) *pair {
	t.Helper()
	p := &pair{source: newEngine(t, fast(source)), requester: newEngine(t, fast(requester))}
	p.silence = driven(t, p.source)
	p.remote, p.local = allocated(t, size), allocated(t, size)
	pattern(p.remote, 1)
	p.export = registered(t, p.source, p.remote, ReadWrite, OverHPTCP)
	p.own = registered(t, p.requester, p.local, LocalOnly)
	p.segment = opened(t, p.requester, p.source)
	return p
}

// hurried is a request over HP-TCP.
func hurried(r Request) Request {
	r.Transport = TransportHPTCP
	return r
}

// READ and WRITE over real sockets, both ways, odd sizes, on every kernel and in every progress mode: exactly the range is
// moved, and no byte beside it.
//
// proves H-1, H-5, G-2, L-4
func TestHPTCPMovesExactlyTheRange(t *testing.T) {
	eachMode(t, func(t *testing.T, c Config) {
		const size = 3<<20 + 17
		p := newFastPair(t, c, c, size)
		for i, length := range []int{1, 4097, 64<<10 + 1, 2<<20 + 3} {
			for _, op := range []Operation{Write, Read} {
				pattern(p.local, 10+i)
				pattern(p.remote, 20+i)
				want := [2][]byte{bytes.Clone(p.local.Bytes()), bytes.Clone(p.remote.Bytes())}
				from, to, changed := p.local, p.remote, 1
				if op == Read {
					from, to, changed = p.remote, p.local, 0
				}
				copy(want[changed][4099:][:length], from.Bytes()[4099:])
				r := hurried(p.request(op, 4099, length))
				r.Atomic = i%2 == 1
				report, err := p.requester.SubmitAndWait(soon(t), []Request{r})
				must(t, err)
				if report.Completed != 1 || report.Bytes != uint64(length) || report.Path != "hptcp" || !report.LocallyDrained {
					t.Fatalf("%v of %d: %+v", op, length, report)
				}
				if !bytes.Equal(p.local.Bytes(), want[0]) || !bytes.Equal(p.remote.Bytes(), want[1]) {
					t.Fatalf("%v of %d: the range is not exact (%p)", op, length, to)
				}
			}
		}
		s := p.requester.Stats()
		if s.HPTCP.Requests < 8 || p.source.Stats().HPTCP.Streams != 4 {
			t.Errorf("%+v", s.HPTCP)
		}
	})
}

// The descriptor tells of the listener, and which regions it serves; an engine without HP-TCP tells of none.
//
// proves H-1, W-8, W-9
func TestHPTCPIsPublishedOnlyWhenItIsOn(t *testing.T) {
	p := newFastPair(t, Config{Lanes: 1}, Config{Lanes: 1}, 4096)
	other := registered(t, p.source, allocated(t, 4096), ReadWrite)
	must(t, p.segment.Refresh(soon(t)))
	d := p.segment.view().Descriptor()
	if d.HPTCP == nil || d.HPTCP.Family != netproto.FamilyIPv4 || d.HPTCP.Port != p.source.hptcp.bound.Port() || d.HPTCP.StreamsMax != 4 ||
		d.HPTCP.ChunkBytesMax != 1<<20 || d.HPTCP.InFlightBytesMax != 4<<20 || !d.Capabilities.Has(netproto.CapabilityHPTCP) {
		t.Errorf("published is %+v", d.HPTCP)
	}
	for _, r := range p.segment.Regions() {
		if r.HPTCP != (r.ID != other.ID()) {
			t.Errorf("%+v", r)
		}
	}
	plain := newPair(t, Config{Lanes: 1}, Config{Lanes: 1}, 4096)
	if d := plain.segment.view().Descriptor(); d.HPTCP != nil || d.Capabilities.Has(netproto.CapabilityHPTCP) || plain.source.Stats().HPTCP != nil {
		t.Errorf("an engine without HP-TCP publishes %+v", d)
	}
}
