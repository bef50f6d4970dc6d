package field

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/netproto"
)

const gib = 1 << 30

// pair is a source and a requester in their own processes, one memory each.
type pair struct {
	t         *testing.T
	at, from  *child
	source    opened
	requester opened
	remote    placed
	local     placed
	segment   int
}

func newPair(t *testing.T, s settings, at, from place) *pair {
	t.Helper()
	p := &pair{t: t, at: spawn(t, "source"), from: spawn(t, "requester")}
	p.source, p.requester = ask[opened](p.at, "open", s), ask[opened](p.from, "open", s)
	at.Permission = orbitte.ReadWrite
	p.remote, p.local = ask[placed](p.at, "place", at), ask[placed](p.from, "place", from)
	p.segment = ask[int](p.from, "segment", peerOf{Endpoint: p.source.Endpoint, Epoch: p.source.Epoch, Timeout: patience / 2})
	return p
}

func (p *pair) close() {
	p.t.Helper()
	for _, c := range []*child{p.from, p.at} {
		if left := ask[[]string](c, "close", engineOf{}); len(left) > 0 {
			p.t.Errorf("%s: left after Close: %v", c.name, left)
		}
	}
}

func (p *pair) transfer(operation orbitte.Operation, local, remote, length uint64) (transfer, error) {
	return try[transfer](p.from, "transfer", transfer{
		Segment: p.segment, Operation: operation, Local: p.local.Address + local, Remote: p.remote.Address + remote, Length: length, Timeout: patience / 2,
	})
}

// round writes length bytes to an offset and reads them back to another place; neighbours stay zero.
func (p *pair) round(remote, length, seed uint64) {
	p.t.Helper()
	const margin = 16
	ask[bool](p.from, "fill", run{Memory: p.local.Memory, Length: length, Seed: seed})
	if _, err := p.transfer(orbitte.Write, 0, remote, length); err != nil {
		p.t.Errorf("WRITE of %d at %d: %v", length, remote, err)
		return
	}
	// What stands at the source is the pattern that was filled in at 0, so its seed there is shifted back.
	if n := ask[int](p.at, "check", run{Memory: p.remote.Memory, Offset: remote, Length: length, Seed: seed - remote}); n != 0 {
		p.t.Errorf("WRITE of %d at %d: %d bytes differ at the source", length, remote, n)
	}
	for _, edge := range []uint64{remote - margin, remote + length} {
		if n := ask[int](p.at, "check", run{Memory: p.remote.Memory, Offset: edge, Length: margin}); n != 0 {
			p.t.Errorf("WRITE of %d at %d touched its neighbour at %d", length, remote, edge)
		}
	}
	back := uint64(1 << 20)
	if _, err := p.transfer(orbitte.Read, back, remote, length); err != nil {
		p.t.Errorf("READ of %d at %d: %v", length, remote, err)
		return
	}
	if n := ask[int](p.from, "check", run{Memory: p.local.Memory, Offset: back, Length: length, Seed: seed - back}); n != 0 {
		p.t.Errorf("READ of %d at %d: %d bytes differ", length, remote, n)
	}
	ask[bool](p.at, "fill", run{Memory: p.remote.Memory, Offset: remote, Length: length})
}

// field case F-32
func TestLengthsAndOffsetsNearPowersOfTwo(t *testing.T) {
	t.Parallel()
	for _, placement := range []string{"staged", "direct"} {
		t.Run(placement, func(t *testing.T) {
			onKernels(t, func(t *testing.T, kernel orbitte.KernelChoice) {
				t.Parallel()
				s := settings{Kernel: kernel, Direct: placement == "direct", Limits: orbitte.Limits{RegisteredBytes: 8 * gib}}
				p := newPair(t, s, place{Bytes: 5 * gib, Sparse: true}, place{Bytes: 4 << 20})
				seed := uint64(1)
				for _, length := range []uint64{1, 65535, 65536, 65537} {
					for _, offset := range []uint64{
						1 << 16, math.MaxUint16 << 4, math.MaxInt32, 1 << 31, 1<<31 + 1<<20, math.MaxUint32 - 1<<20, math.MaxUint32, 1 << 32, 1<<32 + 1,
						1<<32 - 65536*8, 5*gib - 65537 - 16,
					} {
						if offset%3 == length%3 || length == 65536 { // a choice of the pairs, all offsets and all lengths
							p.round(offset-(offset%2)*(length/2), length, seed<<40)
							seed++
						}
					}
				}
				p.refusals()
				p.close()
			})
		})
	}
}

// refusals holds that lengths beyond every limit are refused before anything moves.
func (p *pair) refusals() {
	p.t.Helper()
	for _, length := range []uint64{8<<20 + 1, math.MaxInt32, 1 << 31, math.MaxUint32, 1<<32 + 1, 5 * gib, math.MaxInt64, math.MaxUint64} {
		for _, operation := range []orbitte.Operation{orbitte.Read, orbitte.Write} {
			class := orbitte.ErrExhausted
			if length >= math.MaxInt64 { // beyond all memory, not just beyond a limit
				class = orbitte.ErrInvalid
			}
			if _, err := p.transfer(operation, 0, 0, length); !errors.Is(err, class) {
				p.t.Errorf("%v of %d bytes: %v, want %v", operation, length, err, class)
			}
		}
	}
	for _, c := range []struct {
		remote, length uint64
		class          error
	}{
		{5*gib - 65535, 65536, orbitte.ErrUnknownRegion}, // one byte past the end
		{5 * gib, 1, orbitte.ErrUnknownRegion},
		{math.MaxUint64 - p.remote.Address - 5, 65536, orbitte.ErrInvalid}, // wraps
	} {
		if _, err := p.transfer(orbitte.Read, 0, c.remote, c.length); !errors.Is(err, c.class) {
			p.t.Errorf("READ of %d at offset %d: %v, want %v", c.length, c.remote, err, c.class)
		}
	}
	p.hostileLengths()
}

// hostileLengths asks the source itself, past every check of a requester.
func (p *pair) hostileLengths() {
	p.t.Helper()
	for _, c := range []struct {
		offset, length uint64
		want           netproto.Status
	}{
		{0, 1<<32 + 1, netproto.StatusExhausted},
		{1, math.MaxInt32, netproto.StatusExhausted},
		{0, 1 << 31, netproto.StatusExhausted},
		{0, 8<<20 + 1, netproto.StatusExhausted},
		{math.MaxUint64, 2, netproto.StatusInvalidRange},
		{5*gib - 1, 2, netproto.StatusInvalidRange},
		{5*gib + 1, 0, netproto.StatusInvalidRange},
		{1 << 33, 1, netproto.StatusInvalidRange},
	} {
		for _, operation := range []netproto.Operation{netproto.OperationTCPRead, netproto.OperationTCPWrite} {
			w := dial(p.t, p.source.Endpoint)
			w.request(netproto.Request{Operation: operation, Epoch: p.source.Epoch, Region: p.remote.Region, Offset: c.offset, Length: c.length})
			if r := w.reply(); r.Status != c.want {
				p.t.Errorf("%v of %d at %d: status %v, want %v", operation, c.length, c.offset, r.Status, c.want)
			}
			if err := w.Close(); err != nil {
				p.t.Error(err)
			}
		}
	}
	eventually(time.Second, func() bool {
		return ask[counters](p.at, "stats", engineOf{}).Gauges["source handlers"] == 0
	})
}
