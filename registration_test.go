package orbitte

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
)

// proves M-1
func TestAllocatedMemoryIsPageAlignedZeroedAndOffTheHeap(t *testing.T) {
	before, _ := segments.Mappings()
	m := allocated(t, 100_000)
	if m.Address()%4096 != 0 || m.Len() != 100_000 || len(m.Bytes()) != 100_000 {
		t.Fatalf("address %#x, %d bytes", m.Address(), m.Len())
	}
	if !bytes.Equal(m.Bytes(), make([]byte, 100_000)) {
		t.Fatal("not zeroed")
	}
	must(t, m.Prefault())
	if count, _ := segments.Mappings(); count != before+1 {
		t.Fatalf("%d memory objects, want %d", count, before+1)
	}
	must(t, m.Close())
	must(t, m.Close()) // a second Close does nothing
	if count, _ := segments.Mappings(); count != before || m.Bytes() != nil {
		t.Fatal("the memory did not end")
	}
	wants(t, m.Prefault(), ErrClosed)
	for _, n := range []int{0, -1} {
		_, err := Allocate(n)
		wants(t, err, ErrInvalid)
	}
}

// proves M-1
func TestAdoptedSliceIsUsedInPlaceAndPinned(t *testing.T) {
	e := newEngine(t, Config{Kernel: Epoll, Lanes: 1})
	b := make([]byte, 5000)
	m, err := Adopt(b[1000:3000])
	must(t, err)
	if &m.Bytes()[0] != &b[1000] || m.Len() != 2000 || cap(m.Bytes()) != 2000 {
		t.Fatal("not exactly the slice")
	}
	r := registered(t, e, m, ReadWrite)
	if r.Length() != 2000 || r.Address() != m.Address() || r.Permission() != ReadWrite {
		t.Fatalf("registration %+v", r)
	}
	must(t, m.Close())
	if live := segments.Residents(); len(live) == 0 { // the registration keeps the pin
		t.Fatal("the pin ended before the registration")
	}
	_, err = Adopt(nil)
	wants(t, err, ErrInvalid)
}

// proves M-1: handles keep the backing until the last of them ends
func TestRegistrationOutlivesTheMemoryHandle(t *testing.T) {
	s := newSimPair(t, 30, simkernel.WorldOptions{}, Config{}, Config{}, 4096)
	m, err := Allocate(4096)
	must(t, err)
	pattern(m, 8)
	want := append([]byte(nil), m.Bytes()...)
	r, err := s.source.Register(m, 0, 4096, RemoteRead)
	must(t, err)
	again, err := s.source.Register(m, 0, 4096, RemoteRead)
	must(t, err)
	must(t, m.Close())
	must(t, s.segment.Refresh(soon(t)))
	read := []Request{{Operation: Read, Segment: s.segment, Local: s.local.Address(), Remote: r.Address(), Length: 4096}}
	_, err = s.requester.SubmitAndWait(soon(t), read)
	must(t, err)
	if !bytes.Equal(s.local.Bytes(), want) {
		t.Fatal("bytes differ")
	}
	_, err = s.source.Register(m, 0, 100, RemoteRead) // the handle is closed for new registrations
	wants(t, err, ErrInvalid)
	must(t, s.source.Unregister(soon(t), r))
	_, err = s.requester.SubmitAndWait(soon(t), read) // one handle is left
	must(t, err)
	must(t, s.source.Unregister(soon(t), again))
	if n := m.backing.Holders(); n != 0 {
		t.Fatalf("%d holders are left", n)
	}
}

// proves M-3
func TestSubrangesMayOverlapWithinOneMemoryObjectOnly(t *testing.T) {
	e := newEngine(t, Config{Kernel: Epoll, Lanes: 1})
	b := make([]byte, 64<<10)
	whole, err := Adopt(b)
	must(t, err)
	defer whole.Close()
	part, err := Adopt(b[4096:8192]) // another memory object over the same bytes
	must(t, err)
	defer part.Close()
	for _, at := range []uint64{0, 100, 8191} {
		r, err := e.Register(whole, at, 8192, ReadWrite)
		must(t, err)
		defer func() { must(t, e.Unregister(soon(t), r)) }()
	}
	charged := used(e)
	_, err = e.Register(part, 0, 4096, ReadWrite)
	if own := wants(t, err, ErrInvalid); !errors.Is(own, segments.ErrForeignAlias) {
		t.Fatalf("not said why: %v", err)
	}
	for _, r := range []Range{
		{Memory: whole, Length: 64<<10 + 1, Permission: ReadWrite}, {Memory: whole, Offset: 64 << 10, Length: 1, Permission: ReadWrite},
		{Memory: whole, Offset: ^uint64(0), Length: 2, Permission: ReadWrite}, {Memory: whole, Length: 1, Permission: 77}, {Length: 1, Permission: ReadWrite},
	} {
		_, err = e.Register(r.Memory, r.Offset, r.Length, r.Permission)
		wants(t, err, ErrInvalid)
	}
	if now := used(e); !mapsEqual(now, charged) {
		t.Fatalf("refusals left charges %v, before %v", now, charged)
	}
}

// proves M-4
// field case F-9
func TestBatchThatFailsAtAnyElementChangesNothing(t *testing.T) {
	const n = 8
	s := newSimPair(t, 31, simkernel.WorldOptions{}, Config{Limits: Limits{Registrations: n + 1}}, Config{}, 64<<10)
	foreign := allocated(t, 4096)
	kept := registered(t, s.source, foreign, RemoteRead)
	lastID := kept.ID()
	for bad := range n {
		ranges := make([]Range, n)
		for i := range ranges {
			ranges[i] = Range{Memory: s.remote, Offset: uint64(i) * 4096, Length: 4096, Permission: ReadWrite}
		}
		ranges[bad].Length = 0
		before, regions := used(s.source), s.source.tracker.Mirror().Regions()
		handles, err := s.source.RegisterBatch(ranges)
		if own := wants(t, err, ErrInvalid); own.Index != bad || handles != nil {
			t.Fatalf("element %d: %#v", bad, own)
		}
		if after := used(s.source); !mapsEqual(after, before) || !slices.Equal(s.source.tracker.Mirror().Regions(), regions) {
			t.Fatalf("failing at %d left %v, before %v", bad, after, before)
		}
	}
	handles, err := s.source.RegisterBatch([]Range{{Memory: s.remote, Offset: 0, Length: 100, Permission: RemoteRead}, {Memory: s.remote, Offset: 100, Length: 100, Permission: RemoteWrite}, {Memory: s.remote, Offset: 0, Length: 100, Permission: ReadWrite}})
	must(t, err)
	if handles[0] != handles[2] || handles[0].ID() != lastID+1 || handles[1].ID() != lastID+2 || handles[0].Permission() != RemoteRead {
		t.Fatalf("duplicates of one batch are one: %v", handles)
	}
	must(t, s.segment.Refresh(soon(t))) // published at once
	if got := len(s.segment.Regions()); got != 4 {
		t.Fatalf("%d regions are published", got)
	}
	must(t, s.source.Unregister(soon(t), handles[0]))
	must(t, s.source.Unregister(soon(t), handles[1]))
	wants(t, s.source.Unregister(soon(t), handles[2]), ErrInvalid)
}

// proves M-5
// field case F-8
func TestDuplicateRegistrationsShareOneChargeAndEndWithTheLast(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 8))
	e := newEngine(t, Config{Kernel: Epoll, Lanes: 1})
	m := allocated(t, 4096)
	const k = 20
	var handles []*Registration
	for i := range k {
		r, err := e.Register(m, 0, 4096, []Permission{RemoteRead, ReadWrite, LocalOnly}[i%3])
		must(t, err)
		if r.ID() != 1 || r.Permission() != RemoteRead { // the first permission wins
			t.Fatalf("handle %d: ID %d, %v", i, r.ID(), r.Permission())
		}
		handles = append(handles, r)
	}
	random.Shuffle(k, func(i, j int) { handles[i], handles[j] = handles[j], handles[i] })
	for i, r := range handles {
		if g := gauge(t, e, "registered bytes"); g.Used != 4096 || gauge(t, e, "retained registrations").Used != 1 {
			t.Fatalf("after %d of %d: %d bytes charged", i, k, g.Used)
		}
		if len(e.tracker.Mirror().Regions()) != 1 {
			t.Fatalf("gone after %d of %d", i, k)
		}
		must(t, e.Unregister(soon(t), r))
		wants(t, e.Unregister(soon(t), r), ErrInvalid)
	}
	if gauge(t, e, "registered bytes").Used != 0 || len(e.tracker.Mirror().Regions()) != 0 {
		t.Fatal("the last handle did not end it")
	}
	r := registered(t, e, m, ReadWrite)
	if r.ID() != 2 || r.Permission() != ReadWrite {
		t.Fatalf("ID %d", r.ID())
	}
	wants(t, e.Unregister(soon(t), nil), ErrInvalid)
	other := newEngine(t, Config{Kernel: Epoll, Lanes: 1})
	wants(t, other.Unregister(soon(t), r), ErrInvalid)
}

// proves M-6
func TestUnregisterHidesAtOnceAndIDsAreNeverReused(t *testing.T) {
	s := newSimPair(t, 32, simkernel.WorldOptions{}, Config{}, Config{}, 64<<10)
	seen := map[uint64]bool{s.export.ID(): true}
	for i := range 50 {
		r, err := s.source.Register(s.remote, uint64(i), 4096, ReadWrite)
		must(t, err)
		if seen[r.ID()] {
			t.Fatalf("ID %d was given out twice", r.ID())
		}
		seen[r.ID()] = true
		must(t, s.source.Unregister(soon(t), r))
	}
	s.Link(hostA, hostB).Delay(time.Millisecond, time.Millisecond)
	b, err := s.requester.Submit(s.within(time.Second), []Request{s.request(Read, 0, 32<<10)})
	must(t, err)
	s.until(time.Second, func() bool { return s.export.inner.Loans() > 0 }) // the source has admitted it
	unregistered := make(chan error, 1)
	s.Later(0, func() { // hidden at once, while the frame is served
		_, err := s.export.giveBack()
		unregistered <- err
	})
	report, err := b.Wait(s.within(time.Second))
	must(t, err)
	must(t, <-unregistered)
	if report.Bytes != 32<<10 || !bytes.Equal(s.local.Bytes()[:32<<10], s.remote.Bytes()[:32<<10]) {
		t.Fatal("admitted work did not keep its backing")
	}
	_, err = s.requester.SubmitAndWait(s.within(time.Second), []Request{s.request(Read, 0, 32<<10)})
	wants(t, err, ErrUnknownRegion)
	must(t, s.source.Unregister(soon(t), s.export))
	must(t, b.Free())
}

// proves U-3
func TestRegistrationLimitsNameBudgetLimitAndUse(t *testing.T) {
	e := newEngine(t, Config{Kernel: Epoll, Lanes: 1, Limits: Limits{Registrations: 2, RegisteredBytes: 8192}})
	m := allocated(t, 64<<10)
	registered(t, e, allocated(t, 4096), ReadWrite)
	_, err := e.RegisterBatch([]Range{{Memory: m, Offset: 0, Length: 1, Permission: LocalOnly}, {Memory: m, Offset: 1, Length: 1, Permission: LocalOnly}})
	exhausted(t, err, "retained registrations", 2, 2)
	_, err = e.Register(m, 0, 8192, LocalOnly)
	exhausted(t, err, "registered bytes", 8192, 4096)
}

// exhausted checks SPEC U-3: a typed error that names budget, limit and use.
func exhausted(t *testing.T, err error, budget string, limit, use int64) {
	t.Helper()
	wants(t, err, ErrExhausted)
	var why *budgets.Exhausted
	if !errors.As(err, &why) || why.Budget != budget || why.Limit != limit || why.Used != use {
		t.Fatalf("%v: %+v, want %q with limit %d and use %d", err, why, budget, limit, use)
	}
	if text := err.Error(); !bytes.Contains([]byte(text), []byte(budget)) {
		t.Fatalf("the text does not name the budget: %s", text)
	}
}

func TestMemoryMayCloseWhileItIsBeingRegistered(t *testing.T) {
	e := newEngine(t, Config{Kernel: Epoll, Lanes: 1})
	for range 200 {
		m, err := Allocate(4096)
		must(t, err)
		var wait sync.WaitGroup
		wait.Go(func() { m.Close() })
		wait.Go(func() {
			r, err := e.Register(m, 0, 4096, ReadWrite)
			if err == nil {
				err = e.Unregister(soon(t), r)
			}
			if err != nil && !errors.Is(err, ErrInvalid) {
				t.Error(err)
			}
		})
		wait.Wait()
	}
}
