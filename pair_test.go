package orbitte

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/orbitte/orbitte/reactor/simkernel"
)

// batchRig is a pair whose source has four regions of one memory object, of which one can be gone.
type batchRig struct {
	*simPair
	parts []*Registration
}

const partBytes = 16 << 10

func newBatchRig(t *testing.T, seed uint64, placement Placement, gone int) *batchRig {
	s := newSimPair(t, seed, simkernel.WorldOptions{}, Config{TCPHostMemory: placement}, Config{TCPHostMemory: placement}, 4*partBytes)
	must(t, s.source.Unregister(soon(t), s.export))
	r := &batchRig{simPair: s}
	for i := range 4 {
		part, err := s.source.Register(s.remote, uint64(i)*partBytes, partBytes, ReadWrite)
		must(t, err)
		r.parts = append(r.parts, part)
	}
	must(t, s.segment.Refresh(soon(t)))
	if gone >= 0 { // after the segment was read
		must(t, s.source.Unregister(soon(t), r.parts[gone]))
		r.parts = append(r.parts[:gone:gone], r.parts[gone+1:]...)
	}
	return r
}

func (r *batchRig) end(t *testing.T) {
	for _, part := range r.parts {
		must(t, r.source.Unregister(soon(t), part))
	}
}

// A request of a batch may be posted behind the one under way once that one cannot be refused any more.
// proves G-3
func TestBatchStopsAtFirstFailureAndReportsThePrefix(t *testing.T) {
	for _, placement := range []Placement{Staged, Direct} {
		for _, op := range []Operation{Read, Write} {
			t.Run(fmt.Sprint(op, placement), func(t *testing.T) {
				s := newBatchRig(t, 1, placement, 2)
				defer s.end(t)
				fromMemory, toMemory := s.remote, s.local
				if op == Write {
					fromMemory, toMemory = toMemory, fromMemory
				}
				pattern(fromMemory, 9)
				from, to := fromMemory.Bytes(), toMemory.Bytes()
				clear(to)
				var requests []Request
				for i := range 4 {
					requests = append(requests, s.request(op, i*partBytes, partBytes))
				}
				report, err := s.requester.SubmitAndWait(soon(t), requests)
				own := wants(t, err, ErrUnknownRegion)
				if own.Index != 2 || own.Endpoint != s.source.Endpoint() {
					t.Fatalf("index %d, endpoint %q", own.Index, own.Endpoint)
				}
				if report.Completed != 2 || report.Bytes != 2*partBytes || report.Failed != 2 || !report.LocallyDrained ||
					report.Local != EffectNone || report.Remote != EffectNone {
					t.Fatalf("report %+v", report)
				}
				if !bytes.Equal(to[:2*partBytes], from[:2*partBytes]) || !bytes.Equal(to[2*partBytes:], make([]byte, 2*partBytes)) {
					t.Fatal("not exactly the prefix was moved")
				}
				if totals := s.source.Stats().Totals; totals.WritesServed+totals.ReadsServed != 2 {
					t.Fatalf("%d frames were served: the fourth must not be posted", totals.WritesServed+totals.ReadsServed)
				}
			})
		}
	}
}

// Batches of READs and WRITEs over ranges that overlap do what the same requests do one by one, whatever
// is posted ahead; one that fails leaves exactly its prefix.
// proves G-3, T-3
func TestRandomBatchesDoWhatTheirRequestsDoOneByOne(t *testing.T) {
	for seed := uint64(1); seed <= 40; seed++ {
		for _, placement := range []Placement{Staged, Direct} {
			t.Run(fmt.Sprintf("SEED=%d/%d", seed, placement), func(t *testing.T) { randomBatch(t, seed, placement) })
		}
	}
}

func randomBatch(t *testing.T, seed uint64, placement Placement) {
	random := rand.New(rand.NewPCG(seed, uint64(placement)))
	gone := random.IntN(8) - 4
	s := newBatchRig(t, seed, placement, gone)
	defer s.end(t)
	pattern(s.local, int(seed))
	pattern(s.remote, int(seed)+100)
	local, remote := bytes.Clone(s.local.Bytes()), bytes.Clone(s.remote.Bytes())
	var requests []Request
	prefix := -1
	for i := range 2 + random.IntN(14) {
		part, length := random.IntN(4), random.IntN(partBytes+1)
		at := part*partBytes + random.IntN(partBytes-length+1)
		localAt := random.IntN(4*partBytes - length + 1)
		r := s.request([]Operation{Read, Write}[random.IntN(2)], at, length)
		r.Local = s.local.Address() + uint64(localAt)
		requests = append(requests, r)
		if part == gone && prefix < 0 {
			prefix = i
		}
		if prefix >= 0 {
			continue
		}
		if r.Operation == Read {
			copy(local[localAt:], remote[at:at+length])
		} else {
			copy(remote[at:], local[localAt:localAt+length])
		}
	}
	report, err := s.requester.SubmitAndWait(soon(t), requests)
	if prefix < 0 {
		must(t, err)
	} else if wants(t, err, ErrUnknownRegion).Index != prefix || report.Completed != prefix {
		t.Fatalf("SEED=%d: failed at %d, %d completed, not %d (replay: go test . -run RandomBatches)", seed, report.Failed, report.Completed, prefix)
	}
	if !bytes.Equal(local, s.local.Bytes()) || !bytes.Equal(remote, s.remote.Bytes()) {
		t.Fatalf("SEED=%d placement %d: bytes differ from requests done one by one (replay: go test . -run RandomBatches)", seed, placement)
	}
}
