package orbitte

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
)

// proves G-2, G-3, L-4
func TestReadWriteAndNotifyInEveryModeOnEveryKernel(t *testing.T) {
	eachMode(t, func(t *testing.T, c Config) {
		p := newPair(t, c, c, 3<<20)
		report, err := p.requester.SubmitAndWait(soon(t), p.whole(Read))
		must(t, err)
		if report.Completed != 1 || report.Bytes != 3<<20 || report.Failed != -1 || !report.LocallyDrained || report.Path != "tcp" {
			t.Fatalf("report %+v", report)
		}
		if !bytes.Equal(p.local.Bytes(), p.remote.Bytes()) {
			t.Fatal("the READ's bytes differ")
		}
		pattern(p.local, 9)
		report, err = p.requester.SubmitAndNotify(soon(t), p.whole(Write), Notification{"layer", "7"})
		must(t, err)
		if report.Notification.Status != Delivered || report.Notification.Effect != EffectComplete {
			t.Fatalf("notification %+v", report.Notification)
		}
		if !bytes.Equal(p.local.Bytes(), p.remote.Bytes()) {
			t.Fatal("the WRITE's bytes differ")
		}
		notes, err := p.source.AwaitNotifications(soon(t))
		if err != nil || len(notes) != 1 || notes[0] != (Notification{"layer", "7"}) {
			t.Fatalf("notifications %v, %v", notes, err)
		}
	})
}

// proves T-2 at the API: the path is named, and both directions move every byte
func TestDirectPlacementIsNamedInTheReport(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		c.TCPHostMemory = Direct
		p := newPair(t, c, c, 2<<20)
		for _, op := range []Operation{Read, Write} {
			report, err := p.requester.SubmitAndWait(soon(t), p.whole(op))
			must(t, err)
			if report.Path != "tcp direct" || !bytes.Equal(p.local.Bytes(), p.remote.Bytes()) {
				t.Fatalf("%v: path %q", op, report.Path)
			}
			pattern(p.local, 5)
		}
	})
}

// proves G-2, G-4
func TestPreflightRefusesBeforeAnyEffect(t *testing.T) {
	s := newSimPair(t, 2, simkernel.WorldOptions{}, Config{}, Config{}, 64<<10)
	good := s.request(Read, 0, 4096)
	change := func(f func(*Request)) Request {
		r := good
		f(&r)
		return r
	}
	before := s.source.Stats().Totals
	for name, c := range map[string]struct {
		request Request
		class   error
	}{
		"no operation":        {change(func(r *Request) { r.Operation = 0 }), ErrInvalid},
		"no segment":          {change(func(r *Request) { r.Segment = nil }), ErrInvalid},
		"rdma":                {change(func(r *Request) { r.Transport = TransportRDMA }), ErrUnavailable},
		"hptcp":               {change(func(r *Request) { r.Transport = TransportHPTCP }), ErrUnavailable},
		"local uncovered":     {change(func(r *Request) { r.Local = s.local.Address() + uint64(s.local.Len()) }), ErrUncovered},
		"local end uncovered": {change(func(r *Request) { r.Local += uint64(s.local.Len()) - 4095 }), ErrUncovered},
		"remote uncovered":    {change(func(r *Request) { r.Remote = 4096 }), ErrUnknownRegion},
		"remote overflow":     {change(func(r *Request) { r.Remote = ^uint64(0) - 10 }), ErrInvalid},
		"local overflow":      {change(func(r *Request) { r.Local = ^uint64(0) - 10 }), ErrInvalid},
		"payload limit":       {change(func(r *Request) { r.Length = 8<<20 + 1 }), ErrExhausted},
		"absurd length":       {change(func(r *Request) { r.Length = ^uint64(0) }), ErrInvalid},
		"no transport":        {change(func(r *Request) { r.Transport = 9 }), ErrInvalid},
	} {
		report, err := s.requester.SubmitAndWait(soon(t), []Request{good, c.request})
		own := wants(t, err, c.class)
		if own.Index != 1 {
			t.Errorf("%s: index %d", name, own.Index)
		}
		if report.Completed != 0 || report.Failed != own.Index || !report.LocallyDrained || report.Path != "" {
			t.Errorf("%s: report %+v", name, report)
		}
	}
	if after := s.source.Stats().Totals; after != before {
		t.Fatalf("the source saw something: %+v, before %+v", after, before)
	}
	if !bytes.Equal(s.local.Bytes(), make([]byte, s.local.Len())) {
		t.Fatal("bytes were moved")
	}
}

// proves G-7
func TestZeroLengthRequestIsCheckedAndMovesNothing(t *testing.T) {
	s := newSimPair(t, 3, simkernel.WorldOptions{}, Config{}, Config{}, 4096)
	for _, op := range []Operation{Read, Write} {
		report, err := s.requester.SubmitAndWait(soon(t), []Request{s.request(op, 0, 0)})
		must(t, err)
		if report.Completed != 1 || report.Bytes != 0 {
			t.Fatalf("%v: report %+v", op, report)
		}
	}
	empty := s.request(Read, 0, 0)
	empty.Remote = 1 << 40
	_, err := s.requester.SubmitAndWait(soon(t), []Request{empty})
	wants(t, err, ErrUnknownRegion)
	empty = s.request(Read, 0, 0)
	empty.Local = 1 << 40
	_, err = s.requester.SubmitAndWait(soon(t), []Request{empty})
	wants(t, err, ErrUncovered)
	_, err = s.requester.Register(s.local, 0, 0, LocalOnly)
	wants(t, err, ErrInvalid)
}

// proves G-1
// field case F-7
func TestSwappedPortsRefuseTheOtherEpoch(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		requester := newEngine(t, c)
		first, second := newEngine(t, c), newEngine(t, c)
		memory, local := allocated(t, 4096), allocated(t, 4096)
		registered(t, requester, local, LocalOnly)
		swap := func(e *Engine, at string) *Engine {
			renewed := c
			renewed.Bind = at
			swapped := newEngine(t, renewed)
			registered(t, swapped, memory, ReadWrite) // the same address: only the epoch tells them apart
			return swapped
		}
		one := registered(t, first, memory, ReadWrite)
		two := registered(t, second, memory, ReadWrite)
		toFirst, toSecond := opened(t, requester, first), opened(t, requester, second)
		must(t, first.Unregister(soon(t), one))
		must(t, second.Unregister(soon(t), two))
		closeEngine(t, first)
		closeEngine(t, second)
		swapped := []*Engine{swap(first, second.Endpoint()), swap(second, first.Endpoint())}
		for _, s := range []*Segment{toFirst, toSecond} {
			for _, op := range []Operation{Read, Write} {
				_, err := requester.SubmitAndWait(soon(t), []Request{{Operation: op, Segment: s, Local: local.Address(), Remote: memory.Address(), Length: 4096}})
				wants(t, err, ErrStaleEpoch)
			}
			_, err := requester.SendNotification(soon(t), s, Notification{})
			wants(t, err, ErrStaleEpoch)
			wants(t, s.Refresh(soon(t)), ErrStaleEpoch)
		}
		_, err := requester.OpenSegment(soon(t), swapped[0].Endpoint(), swapped[1].Epoch())
		wants(t, err, ErrStaleEpoch)
		for _, e := range swapped {
			if totals := e.Stats().Totals; totals.ReadsServed+totals.WritesServed+totals.NotificationsReceived != 0 {
				t.Fatalf("the wrong process served %+v", totals)
			}
		}
	})
}

// field case F-1
func TestRememberedRegionIsStaleAfterReregistration(t *testing.T) {
	s := newSimPair(t, 4, simkernel.WorldOptions{}, Config{}, Config{}, 4096)
	must(t, s.source.Unregister(soon(t), s.export))
	again := registered(t, s.source, s.remote, ReadWrite)
	if again.Address() != s.remote.Address() || again.ID() == s.export.ID() {
		t.Fatalf("not the same address under a new ID: %#x, %d", again.Address(), again.ID())
	}
	before := append([]byte(nil), s.remote.Bytes()...)
	for _, op := range []Operation{Read, Write} {
		_, err := s.requester.SubmitAndWait(soon(t), s.whole(op))
		wants(t, err, ErrUnknownRegion)
	}
	if !bytes.Equal(s.local.Bytes(), make([]byte, 4096)) || !bytes.Equal(s.remote.Bytes(), before) {
		t.Fatal("bytes were moved under a stale registration")
	}
	must(t, s.segment.Refresh(soon(t)))
	_, err := s.requester.SubmitAndWait(soon(t), s.whole(Read))
	must(t, err)
}

// proves M-8
func TestSourceChecksPermissionsWhateverTheRequesterBelieves(t *testing.T) {
	s := newSimPair(t, 5, simkernel.WorldOptions{}, Config{}, Config{}, 16<<10)
	must(t, s.source.Unregister(soon(t), s.export))
	kinds := []Permission{LocalOnly, RemoteRead, RemoteWrite, ReadWrite}
	forged := netproto.Descriptor{Capabilities: s.requester.capabilities()}
	for i, p := range kinds {
		r, err := s.source.Register(s.remote, uint64(i)*4096, 4096, p)
		must(t, err)
		t.Cleanup(func() { must(t, s.source.Unregister(soon(t), r)) })
		forged.Regions = append(forged.Regions, netproto.Region{ID: r.ID(), Base: r.Address(), Length: 4096, Permission: ReadWrite})
	}
	must(t, s.segment.Refresh(soon(t)))
	if regions := s.segment.Regions(); len(regions) != 3 || regions[0].Permission != RemoteRead || regions[2].Permission != ReadWrite {
		t.Fatalf("published: %+v; local-only ranges are never exported", regions)
	}
	allowed := func(p Permission, op Operation) bool {
		return op == Read && p&RemoteRead != 0 || op == Write && p&RemoteWrite != 0
	}
	refused := s.source.Stats().Totals.FramesRefused
	for i, p := range kinds {
		for _, op := range []Operation{Read, Write} {
			_, err := s.requester.SubmitAndWait(soon(t), []Request{s.request(op, i*4096, 4096)})
			switch {
			case allowed(p, op):
				must(t, err)
			case p == LocalOnly:
				wants(t, err, ErrUnknownRegion)
			default:
				wants(t, err, ErrPermission)
			}
		}
	}
	if s.source.Stats().Totals.FramesRefused != refused {
		t.Fatal("what the descriptor forbids was posted all the same")
	}
	remote, err := segments.NewRemote(s.segment.endpoint, s.segment.epoch, forged)
	must(t, err)
	s.segment.remote.Store(remote) // a requester that lies to itself
	before := append([]byte(nil), s.remote.Bytes()...)
	for i, p := range kinds {
		for _, op := range []Operation{Read, Write} {
			if allowed(p, op) {
				continue
			}
			served := s.source.Stats().Totals.FramesRefused
			_, err := s.requester.SubmitAndWait(soon(t), []Request{s.request(op, i*4096, 4096)})
			if !errors.Is(err, ErrPermission) && !(p == LocalOnly && errors.Is(err, ErrUnknownRegion)) {
				t.Fatalf("%v of %v with forged metadata: %v", op, p, err)
			}
			if s.source.Stats().Totals.FramesRefused != served+1 {
				t.Fatal("the source was not asked")
			}
		}
	}
	if !bytes.Equal(s.remote.Bytes(), before) {
		t.Fatal("a forged WRITE changed the source")
	}
}

// proves G-8, B-3
func TestCancelledReadLeavesLocalRangeAndCancelledWriteIsUnknown(t *testing.T) {
	for _, op := range []Operation{Read, Write} {
		t.Run(op.String(), func(t *testing.T) {
			s := newSimPair(t, 6, simkernel.WorldOptions{}, Config{}, Config{}, 1<<20)
			pattern(s.local, 77)
			before := append([]byte(nil), s.local.Bytes()...)
			link := s.Link(hostA, hostB)
			if op == Write {
				link = s.Link(hostB, hostA)
			}
			link.Delay(100*time.Microsecond, 200*time.Microsecond)
			b, err := s.requester.Submit(s.within(time.Second), s.whole(op))
			must(t, err)
			s.Later(600*time.Microsecond, b.Cancel) // in the middle of the payload
			report, err := b.Wait(s.within(2 * time.Second))
			own := wants(t, err, ErrCancelled)
			if !errors.Is(err, context.Canceled) || own.Index != 0 || !report.LocallyDrained {
				t.Fatalf("%v, report %+v", err, report)
			}
			if op == Read && (report.Local != EffectNone || !bytes.Equal(s.local.Bytes(), before)) {
				t.Fatalf("a cancelled READ touched the local range: %v", report.Local)
			}
			if op == Write && report.Remote != EffectUnknown {
				t.Fatalf("remote effect %v", report.Remote)
			}
			if s.requester.Stats().Totals.StreamsRetired == 0 {
				t.Fatal("the stream was not retired")
			}
			must(t, b.Free())
			_, err = s.requester.SubmitAndWait(s.within(time.Second), s.whole(op)) // on a new stream
			must(t, err)
		})
	}
}

// proves G-8: a call whose context is cancelled comes back soon, with its memory quiet
func TestCancelledCallsComeBackDrained(t *testing.T) {
	eachMode(t, func(t *testing.T, c Config) {
		source := c
		source.Progress = Manual
		p := newPair(t, source, c, 64<<10)
		p.silence() // from here on the source answers nothing
		for name, call := range map[string]func(context.Context) (Report, error){
			"READ":  func(ctx context.Context) (Report, error) { return p.requester.SubmitAndWait(ctx, p.whole(Read)) },
			"WRITE": func(ctx context.Context) (Report, error) { return p.requester.SubmitAndWait(ctx, p.whole(Write)) },
			"SubmitAndNotify": func(ctx context.Context) (Report, error) {
				return p.requester.SubmitAndNotify(ctx, p.whole(Read), Notification{})
			},
			"Submit": func(ctx context.Context) (Report, error) {
				b, err := p.requester.Submit(ctx, p.whole(Read))
				must(t, err)
				defer b.Free()
				return b.Wait(soon(t))
			},
			"SendNotification": func(ctx context.Context) (Report, error) {
				_, err := p.requester.SendNotification(ctx, p.segment, Notification{})
				return Report{LocallyDrained: true}, err
			},
			"OpenSegment": func(ctx context.Context) (Report, error) {
				_, err := p.requester.OpenSegment(ctx, p.source.Endpoint(), Epoch{1})
				return Report{LocallyDrained: true}, err
			},
			"Refresh": func(ctx context.Context) (Report, error) {
				return Report{LocallyDrained: true}, p.segment.Refresh(ctx)
			},
		} {
			ctx, cancel := context.WithCancel(context.Background())
			timer := time.AfterFunc(5*time.Millisecond, cancel)
			report, err := call(ctx)
			timer.Stop()
			if !errors.Is(err, ErrCancelled) || !report.LocallyDrained || report.Local != EffectNone {
				t.Errorf("%s: %v, report %+v", name, err, report)
			}
			cancel()
		}
		if got := used(p.requester)["requester submissions in flight"]; got != 0 {
			t.Errorf("%d submissions are charged", got)
		}
	})
}

// proves B-3: a group that is ended before its lane has looked at it posts nothing
func TestGroupEndedBeforeItRunsPostsNothing(t *testing.T) {
	s := newSimPair(t, 13, simkernel.WorldOptions{}, Config{}, Config{}, 4096)
	g := newGroup(s.requester)
	must(t, s.requester.enter(&g.place))
	must(t, g.admit(s.whole(Write)))
	g.ended, g.deadline = g.told, s.requester.deadline(context.Background())
	g.end()
	must(t, g.run(false))
	must(t, s.requester.awaitGroup(context.Background(), g))
	var report Report
	err := g.report(&report)
	if !errors.Is(err, ErrCancelled) || report.Remote != EffectNone || s.source.Stats().Totals.WritesServed != 0 {
		t.Fatalf("%v, report %+v", err, report)
	}
}

// proves G-8
// field case F-22
func TestWaitsEndByTheirTimeout(t *testing.T) {
	s := newSimPair(t, 7, simkernel.WorldOptions{}, Config{}, Config{}, 64<<10)
	s.Link(hostA, hostB).BlackHole(true)
	s.Link(hostB, hostA).BlackHole(true)
	for _, d := range []time.Duration{time.Millisecond, 50 * time.Millisecond} {
		for name, call := range map[string]func(context.Context) error{
			"SubmitAndWait": func(ctx context.Context) error {
				_, err := s.requester.SubmitAndWait(ctx, s.whole(Read))
				return err
			},
			"SubmitAndNotify": func(ctx context.Context) error {
				_, err := s.requester.SubmitAndNotify(ctx, s.whole(Read), Notification{})
				return err
			},
			"SendNotification": func(ctx context.Context) error {
				_, err := s.requester.SendNotification(ctx, s.segment, Notification{})
				return err
			},
			"OpenSegment": func(ctx context.Context) error {
				_, err := s.requester.OpenSegment(ctx, "10.0.0.9:1", s.source.Epoch())
				return err
			},
			"Refresh": func(ctx context.Context) error { return s.segment.Refresh(ctx) },
		} {
			start := s.Now()
			err := call(s.within(d))
			if took := time.Duration(s.Now() - start); took < d || took > d+5*time.Millisecond {
				t.Errorf("%s with %v took %v of virtual time", name, d, took)
			}
			if own := wants(t, err, ErrDeadline); !errors.Is(err, context.DeadlineExceeded) || own.Op == "" {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// field case F-22
func TestExpiredContextPostsNothing(t *testing.T) {
	s := newSimPair(t, 8, simkernel.WorldOptions{}, Config{}, Config{}, 4096)
	expired, cancel := context.WithDeadline(context.Background(), time.Unix(1, 0))
	defer cancel()
	cancelled, cancel2 := context.WithCancel(context.Background())
	cancel2()
	before, charged := s.source.Stats().Totals, used(s.requester)
	for ctx, class := range map[context.Context]error{expired: ErrDeadline, cancelled: ErrCancelled} {
		_, err := s.requester.SubmitAndWait(ctx, s.whole(Read))
		wants(t, err, class)
		_, err = s.requester.SubmitAndNotify(ctx, s.whole(Write), Notification{})
		wants(t, err, class)
		_, err = s.requester.Submit(ctx, s.whole(Read))
		wants(t, err, class)
		_, err = s.requester.SendNotification(ctx, s.segment, Notification{})
		wants(t, err, class)
		_, err = s.requester.OpenSegment(ctx, s.source.Endpoint(), s.source.Epoch())
		wants(t, err, class)
		_, err = s.requester.AwaitNotifications(ctx)
		wants(t, err, class)
		wants(t, s.segment.Refresh(ctx), class)
	}
	if after := s.source.Stats().Totals; after != before {
		t.Fatalf("the source saw something: %+v, before %+v", after, before)
	}
	if after := used(s.requester); !mapsEqual(after, charged) {
		t.Fatalf("charges %v, before %v", after, charged)
	}
}

func mapsEqual(a, b map[string]int64) bool {
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return len(a) == len(b)
}

// field case F-71
func TestRequestToItselfOpensNoSocket(t *testing.T) {
	w := newSim(t, 9, simkernel.WorldOptions{})
	e, process := w.engine("self", hostA, Config{})
	from, to := allocated(t, 1<<20), allocated(t, 1<<20)
	pattern(from, 3)
	registered(t, e, from, ReadWrite)
	registered(t, e, to, ReadWrite)
	open := process.Descriptors()
	s := opened(t, e, e)
	submitted := e.runners[0].lane.Kernel().Counters().Submitted
	if !s.Local() {
		t.Fatal("the engine's own segment is not local")
	}
	report, err := e.SubmitAndNotify(soon(t), []Request{
		{Operation: Read, Segment: s, Local: to.Address(), Remote: from.Address(), Length: 1 << 20},
		{Operation: Write, Segment: s, Local: from.Address(), Remote: to.Address(), Length: 1 << 20},
	}, Notification{"a", "b"})
	must(t, err)
	if report.Path != "local copy" || report.Completed != 2 || report.Notification.Status != Delivered || !bytes.Equal(from.Bytes(), to.Bytes()) {
		t.Fatalf("report %+v", report)
	}
	if notes := e.ReceiveNotifications(); len(notes) != 1 || notes[0] != (Notification{"a", "b"}) {
		t.Fatalf("notifications %v", notes)
	}
	if after := e.runners[0].lane.Kernel().Counters().Submitted; after != submitted || process.Descriptors() != open || len(w.Connections()) != 0 {
		t.Fatalf("%d operations, %d descriptors, %d connections: a socket was used", after-submitted, process.Descriptors()-open, len(w.Connections()))
	}
	_, err = e.SubmitAndWait(soon(t), []Request{{Operation: Read, Segment: s, Local: to.Address() + 10, Remote: to.Address(), Length: 100}})
	wants(t, err, ErrInvalid) // it would wait for its own lease
}

// proves M-9
func TestConflictingAccessWaitsOrFailsAcrossEnginesThatShareMemory(t *testing.T) {
	s := newSimPair(t, 10, simkernel.WorldOptions{}, Config{}, Config{}, 64<<10)
	other, _ := s.engine("third", hostC, Config{})
	alias, err := other.Register(s.local, 4096, 8192, ReadWrite) // another engine, another registration, the same memory
	must(t, err)
	defer func() { must(t, other.Unregister(soon(t), alias)) }()
	lease, err := s.local.backing.Lend(6000, 1, segments.Exclusive) // somebody uses one byte of it
	must(t, err)
	_, err = s.requester.SubmitAndWait(s.within(20*time.Millisecond), []Request{s.request(Read, 4096, 4096)})
	own := wants(t, err, ErrDeadline)
	if !errors.Is(err, segments.ErrConflict) {
		t.Fatalf("the conflict is not named: %v", own)
	}
	if !bytes.Equal(s.local.Bytes(), make([]byte, s.local.Len())) {
		t.Fatal("bytes were written under somebody else's lease")
	}
	seg := opened(t, s.requester, other)
	into := allocated(t, 8192)
	registered(t, s.requester, into, LocalOnly)
	read := []Request{{Operation: Read, Segment: seg, Local: into.Address(), Remote: s.local.Address() + 4096, Length: 8192}}
	_, err = s.requester.SubmitAndWait(s.within(20*time.Millisecond), read) // the alias meets the same lease at its source
	wants(t, err, ErrDeadline)
	for _, at := range []int{0, 6001, 32 << 10} { // disjoint ranges go on side by side
		_, err = s.requester.SubmitAndWait(s.within(20*time.Millisecond), []Request{s.request(Read, at, 2048)})
		must(t, err)
	}
	s.Later(5*time.Millisecond, lease.Return)
	_, err = s.requester.SubmitAndWait(s.within(20*time.Millisecond), read) // waits for the lease, then goes on
	must(t, err)
	if !bytes.Equal(into.Bytes(), s.local.Bytes()[4096:4096+8192]) {
		t.Fatal("bytes differ")
	}
}

// proves G-2, M-6, M-1
func TestAdmittedWorkKeepsRegistrationAndMemoryUntilItEnds(t *testing.T) {
	s := newSimPair(t, 11, simkernel.WorldOptions{}, Config{}, Config{}, 256<<10)
	s.Link(hostA, hostB).Delay(time.Millisecond, 2*time.Millisecond)
	own, err := Allocate(64 << 10) // closed below, while the transfer runs
	must(t, err)
	handle, err := s.requester.Register(own, 0, 64<<10, LocalOnly)
	must(t, err)
	b, err := s.requester.Submit(s.within(time.Second), []Request{{Operation: Read, Segment: s.segment, Local: own.Address(), Remote: s.remote.Address(), Length: 64 << 10}})
	must(t, err)
	memory := own.Bytes()
	must(t, own.Close())
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	err = s.requester.Unregister(gone, handle) // does not wait, but the region is gone
	wants(t, err, ErrUnquiesced)
	if len(s.requester.RetainedResources()) != 1 || gauge(t, s.requester, "registered bytes").Used != int64(s.local.Len())+64<<10 {
		t.Fatalf("retained %v, charged %v", s.requester.RetainedResources(), used(s.requester))
	}
	_, err = s.requester.SubmitAndWait(soon(t), []Request{{Operation: Read, Segment: s.segment, Local: handle.Address(), Remote: s.remote.Address(), Length: 1}})
	wants(t, err, ErrUncovered)
	s.Later(0, func() {})
	s.until(time.Second, func() bool {
		if _, terminal, _ := b.Poll(); terminal {
			return true
		}
		copied := append([]byte(nil), memory[:16]...) // still mapped
		runtime.KeepAlive(copied)
		return false
	})
	_, _, err = b.Poll()
	must(t, err)
	must(t, s.requester.Unregister(s.within(time.Second), handle)) // now it has ended
	wants(t, s.requester.Unregister(soon(t), handle), ErrInvalid)
	must(t, b.Free())
}

// field case F-73
func TestUnequalPayloadLimitsAreRespectedOnBothSides(t *testing.T) {
	for _, limits := range [][2]uint64{{4096, 8192}, {8192, 4096}} {
		s := newSimPair(t, 12, simkernel.WorldOptions{}, Config{Limits: Limits{PayloadBytes: limits[0]}}, Config{Limits: Limits{PayloadBytes: limits[1]}}, 64<<10)
		if most := s.segment.TransferBytesMax(); most != 4096 {
			t.Fatalf("source %d, requester %d: the segment says %d", limits[0], limits[1], most)
		}
		var split []Request
		for at := 0; at < 64<<10; at += 4096 {
			split = append(split, s.request(Read, at, 4096))
		}
		report, err := s.requester.SubmitAndWait(soon(t), split)
		must(t, err)
		if report.Bytes != 64<<10 || !bytes.Equal(s.local.Bytes(), s.remote.Bytes()) {
			t.Fatalf("report %+v", report)
		}
		_, err = s.requester.SubmitAndWait(soon(t), []Request{s.request(Read, 0, 4097)})
		wants(t, err, ErrExhausted)
		if limits[0] > limits[1] {
			continue
		}
		d := *s.segment.view().Descriptor() // a requester that believes in more than the source serves
		d.Capabilities.TransferBytesMax = 1 << 20
		remote, err := segments.NewRemote(s.segment.endpoint, s.segment.epoch, d)
		must(t, err)
		s.segment.remote.Store(remote)
		for _, op := range []Operation{Read, Write} {
			_, err = s.requester.SubmitAndWait(soon(t), []Request{s.request(op, 0, 8192)})
			wants(t, err, ErrExhausted)
			var fault *lanes.Fault
			if !errors.As(err, &fault) || fault.Status != netproto.StatusExhausted {
				t.Fatalf("%v: not the source's refusal: %v", op, err)
			}
		}
	}
}
