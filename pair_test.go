package orbitte

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/orbitte/orbitte/netproto"
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

// A cancel that arrives while a READ is committing reaches the READ posted behind it, which the source
// never answers.
// proves B-3, G-8
func TestCancelDuringACommitEndsWhatFollows(t *testing.T) {
	const size = 64 << 20
	hold := make(chan struct{})
	served := 0
	source, ended := newHandmade(t, size, netproto.CapabilityTCP, func(c net.Conn, r netproto.Request) bool {
		if served++; served > 1 {
			<-hold
			return false
		}
		_, _ = c.Write(netproto.AppendReply(nil, netproto.Reply{Status: netproto.StatusSuccess, Epoch: handmadeEpoch, Length: r.Length}))
		_, _ = c.Write(bytes.Repeat([]byte{1}, int(r.Length)))
		return true
	})
	e := newEngine(t, Config{Lanes: 1, Limits: Limits{PayloadBytes: size, SubmittedBytes: 2 * size}, RequestTimeout: time.Minute})
	m := allocated(t, size)
	registered(t, e, m, LocalOnly)
	s, err := e.OpenSegment(soon(t), source, handmadeEpoch)
	must(t, err)
	b, err := e.Submit(context.Background(), []Request{
		{Operation: Read, Segment: s, Local: m.Address(), Remote: handmadeBase, Length: size},
		{Operation: Read, Segment: s, Local: m.Address(), Remote: handmadeBase, Length: 4096},
	})
	must(t, err)
	for m.Bytes()[0] == 0 { // until the first slice is there: mapped memory, of which the race detector knows nothing
		runtime.Gosched()
	}
	b.Cancel()
	_, err = b.Wait(soon(t)) // long before the request's deadline
	wants(t, err, ErrCancelled)
	must(t, b.Free())
	must(t, e.CloseSegment(soon(t), s))
	close(hold)
	ended()
}

// Two engines of one process share a memory object. What one request moves the next one of the batch moves
// on, whatever could have been posted ahead.
// proves G-3, M-9
func TestBatchesOverSharedMemoryKeepTheirOrder(t *testing.T) {
	for _, requester := range []Placement{Staged, Direct} {
		for _, source := range []Placement{Staged, Direct} {
			for seed := uint64(1); seed <= 25; seed++ {
				t.Run(fmt.Sprintf("%d%d/SEED=%d", requester, source, seed), func(t *testing.T) { sharedBatch(t, seed, requester, source) })
			}
		}
	}
}

func sharedBatch(t *testing.T, seed uint64, requester, source Placement) {
	const size = 64 << 10
	random := rand.New(rand.NewPCG(seed, 5))
	a := newEngine(t, Config{Lanes: 1, TCPHostMemory: requester})
	b := newEngine(t, Config{Lanes: 1, TCPHostMemory: source})
	m := allocated(t, size)
	registered(t, a, m, ReadWrite)
	registered(t, b, m, ReadWrite)
	s := opened(t, a, b)
	pattern(m, int(seed))
	model := bytes.Clone(m.Bytes())
	var requests []Request
	for len(requests) < 8 {
		length := random.IntN(size / 4)
		x, y := random.IntN(size-length), random.IntN(size-length)
		if max(x, y)-min(x, y) < length {
			continue // not with itself
		}
		r := Request{Operation: Operation(1 + random.IntN(2)), Segment: s, Local: m.Address() + uint64(x), Remote: m.Address() + uint64(y), Length: uint64(length)}
		to, from := x, y
		if r.Operation == Write {
			to, from = y, x
		}
		copy(model[to:to+length], model[from:from+length])
		requests = append(requests, r)
	}
	report, err := a.SubmitAndWait(soon(t), requests)
	must(t, err)
	if report.Completed != len(requests) || !bytes.Equal(model, m.Bytes()) {
		t.Fatalf("SEED=%d: bytes differ from requests done one by one; %+v", seed, report)
	}
}

// A source that does not serve TCP gets no TCP request.
// proves G-4
func TestASourceWithoutTCPFailsPreflight(t *testing.T) {
	source, ended := newHandmade(t, 4096, netproto.CapabilityNotify, func(_ net.Conn, r netproto.Request) bool {
		t.Errorf("%v was posted", r.Operation)
		return false
	})
	e := newEngine(t, Config{Lanes: 1})
	m := allocated(t, 4096)
	registered(t, e, m, LocalOnly)
	s, err := e.OpenSegment(soon(t), source, handmadeEpoch)
	must(t, err)
	_, err = e.SubmitAndWait(soon(t), []Request{{Operation: Read, Segment: s, Local: m.Address(), Remote: handmadeBase, Length: 64}})
	wants(t, err, ErrUnavailable)
	must(t, e.CloseSegment(soon(t), s))
	ended()
}

var handmadeEpoch = Epoch{1, 2, 3}

const handmadeBase = 1 << 40

// newHandmade is a source made by hand with one region, which answers describe; serve gets everything else.
// It returns the endpoint, and a function that waits until the one connection is closed at this end, too.
func newHandmade(t *testing.T, size uint64, bits netproto.Capability, serve func(net.Conn, netproto.Request) bool) (endpoint string, ended func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	d := netproto.Descriptor{
		Capabilities: netproto.Capabilities{Bits: bits, TransferBytesMax: 64 << 20},
		Regions:      []netproto.Region{{ID: 1, Base: handmadeBase, Length: size, Permission: ReadWrite}},
	}
	body := netproto.AppendDescriptor(nil, &d)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		for {
			header := make([]byte, netproto.RequestSize)
			if _, err := io.ReadFull(c, header); err != nil {
				return
			}
			r, err := netproto.DecodeRequest(header)
			switch {
			case err != nil:
				return
			case r.Operation == netproto.OperationDescribe:
				_, _ = c.Write(netproto.AppendReply(nil, netproto.Reply{Status: netproto.StatusSuccess, Epoch: handmadeEpoch, Length: uint64(len(body))}))
				_, _ = c.Write(body)
			case !serve(c, r):
				return
			}
		}
	}()
	return l.Addr().String(), func() { <-done }
}

// The lane allocates nothing per request: a batch of 64 costs what a batch of one does, the caller's own
// share included.
// proves L-6
func TestRequestsOfABatchAllocateNothing(t *testing.T) {
	var perBatch [2]float64
	for i, n := range []int{1, 64} {
		s := newSimPair(t, uint64(i), simkernel.WorldOptions{}, Config{}, Config{}, 64<<10)
		var requests []Request
		for k := range n {
			requests = append(requests, s.request([]Operation{Read, Write}[k%2], k%16*4096, 4096))
		}
		submit := func() {
			_, err := s.requester.SubmitAndWait(context.Background(), requests)
			must(t, err)
		}
		for range 20 {
			submit()
		}
		perBatch[i] = testing.AllocsPerRun(50, submit)
	}
	if perBatch[1] > perBatch[0]+8 { // under the race detector pools forget now and then; 63 more would be one each
		t.Fatalf("%v allocations for one request, %v for 64", perBatch[0], perBatch[1])
	}
}
