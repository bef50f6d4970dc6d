package orbitte

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
)

// proves U-1, U-3: the defaults of the contract's table
func TestBudgetDefaultsAreTheContracts(t *testing.T) {
	e := newEngine(t, Config{Kernel: Epoll, Lanes: 2})
	sums, names := map[string]int64{}, map[string]bool{}
	for _, g := range e.Stats().Gauges {
		sums[budgetOf(g)] += g.Limit
		if g.Unit == "" || g.Used != 0 || names[g.Name] {
			t.Errorf("%+v, or its name is not its own", g)
		}
		names[g.Name] = true
		if limitFields[budgetOf(g)] == "" {
			t.Errorf("no field of Limits is named for %q", g.Name)
		}
	}
	want := map[string]int64{
		"retained registrations": 1024, "registered bytes": 1 << 30, "async batches": 32, "async batch slots": 32768,
		"requester submissions in flight": 32, "requester bytes in flight": 64 << 20, "source handlers": 4, "source queue": 4,
		"pending notifications": 1024, "pending notification bytes": 1 << 20, "name look-ups in flight": 32,
		"peer streams": 1024, "accepted streams": 1024,
	}
	if !mapsEqual(sums, want) {
		t.Fatalf("limits %v, want %v", sums, want)
	}
	c := e.config
	if c.Limits.BatchRequests != 1024 || c.Limits.PayloadBytes != 8<<20 || c.Limits.NotificationBytes != 64<<10 || c.SourceTimeout != 5*time.Second ||
		!strings.HasPrefix(e.Endpoint(), "127.0.0.1:") {
		t.Fatalf("configuration %+v, endpoint %s", c, e.Endpoint())
	}
}

// proves U-1, U-2, U-3
func TestEveryRequesterBudgetRefusesWithNameLimitAndUse(t *testing.T) {
	limits := Limits{Submissions: 2, SubmittedBytes: 10_000, BatchRequests: 3, Batches: 3, PayloadBytes: 8000, NotificationBytes: 100}
	s := newSimPair(t, 80, simkernel.WorldOptions{}, Config{}, Config{Limits: limits}, 64<<10)
	s.Link(hostA, hostB).Delay(time.Millisecond, time.Millisecond)
	before := s.source.Stats().Totals
	wait := func(rs ...Request) error { return second(s.requester.SubmitAndWait(soon(t), rs)) }
	one := s.request(Read, 0, 1)

	exhausted(t, wait(one, one, one, one), "batch descriptors", 3, 0)
	exhausted(t, wait(s.request(Read, 0, 6000), s.request(Read, 0, 6000)), "requester bytes in flight", 10_000, 0)
	exhausted(t, wait(s.request(Read, 0, 8001)), "one payload (the smaller limit of both sides)", 8000, 0)
	_, err := s.requester.SendNotification(soon(t), s.segment, Notification{"", strings.Repeat("x", 101)})
	exhausted(t, err, "one notification", 100, 0)

	first, err := s.requester.Submit(soon(t), []Request{s.request(Read, 0, 6000)})
	must(t, err)
	exhausted(t, wait(s.request(Read, 0, 4001)), "requester bytes in flight", 10_000, 6000)
	_, err = s.requester.SubmitAndNotify(soon(t), []Request{s.request(Read, 0, 3990)}, Notification{"", strings.Repeat("x", 11)})
	exhausted(t, err, "requester bytes in flight", 10_000, 6011)
	second2, err := s.requester.Submit(soon(t), []Request{one})
	must(t, err)
	for name, call := range map[string]func() error{
		"SubmitAndWait": func() error { return wait(one) },
		"Submit":        func() error { return second(s.requester.Submit(soon(t), []Request{one})) },
		"SubmitAndNotify": func() error {
			return second(s.requester.SubmitAndNotify(soon(t), []Request{one}, Notification{}))
		},
		"Send":    func() error { return second(s.requester.SendNotification(soon(t), s.segment, Notification{})) },
		"Open":    func() error { return second(s.requester.OpenSegment(soon(t), "10.0.0.9:9", Epoch{1})) },
		"Refresh": func() error { return s.segment.Refresh(soon(t)) },
	} {
		t.Run(name, func(t *testing.T) { exhausted(t, call(), "requester submissions in flight", 2, 2) })
	}
	for _, b := range []*Batch{first, second2} {
		_, err := b.Wait(soon(t))
		must(t, err)
		must(t, b.Free())
	}
	for name, n := range used(s.requester) { // refusals left nothing, and what ran is repaid
		if n != 0 && name != "retained registrations" && name != "registered bytes" && name != "peer streams" {
			t.Errorf("%d charged to %q", n, name)
		}
	}
	after := s.source.Stats().Totals
	if after.ReadsServed != before.ReadsServed+2 || after.NotificationsReceived != 0 || after.FramesRefused != before.FramesRefused {
		t.Fatalf("the source saw %+v, before %+v", after, before)
	}
	if g := gauge(t, s.requester, "requester submissions in flight"); g.Peak != 2 || g.Refusals != 6 {
		t.Fatalf("%+v", g)
	}
}

// proves U-3: limits of the peer are named as the peer's
func TestEverySourceBudgetRefusesBeforeTheEffect(t *testing.T) {
	s := newSimPair(t, 81, simkernel.WorldOptions{}, Config{Limits: Limits{Notifications: 2, NotificationQueue: 100, NotificationBytes: 90}}, Config{}, 4096)
	send := func(n int) error {
		_, err := s.requester.SendNotification(soon(t), s.segment, Notification{"", strings.Repeat("x", n)})
		return err
	}
	refusal := func(err error) {
		t.Helper()
		wants(t, err, ErrExhausted)
		var fault *lanes.Fault
		if !errors.As(err, &fault) || fault.Status != netproto.StatusExhausted {
			t.Fatalf("not the source's word: %v", err)
		}
	}
	refusal(send(91)) // one notification
	must(t, send(60))
	refusal(send(41)) // bytes
	must(t, send(40))
	refusal(send(0)) // count
	if g := gauge(t, s.source, "pending notification bytes"); g.Used != 100 || g.Peak != 100 {
		t.Fatalf("%+v", g)
	}
	if n := len(s.source.ReceiveNotifications()); n != 2 || gauge(t, s.source, "pending notifications").Used != 0 {
		t.Fatalf("%d notifications", n)
	}
}

// proves U-3: streams
func TestStreamSlotsAreABudgetAndIdleStreamsMakeRoom(t *testing.T) {
	s := newSim(t, 82, simkernel.WorldOptions{})
	e, process := s.engine("requester", hostA, Config{Limits: Limits{PeerSegments: 2}})
	local := allocated(t, 4096)
	registered(t, e, local, LocalOnly)
	var segs []*Segment
	var reads []Request
	for i := range 4 { // idle streams are evicted for new peers
		source, _ := s.engine(fmt.Sprint("source", i), hostB, Config{})
		m := allocated(t, 4096)
		registered(t, source, m, ReadWrite)
		segs = append(segs, opened(t, e, source))
		reads = append(reads, Request{Operation: Read, Segment: segs[i], Local: local.Address(), Remote: m.Address(), Length: 4096})
	}
	if g := gauge(t, e, "peer streams, lane 0"); g.Used > 2 || g.Peak > 2 || g.Refusals != 0 || e.Stats().Totals.Evicted < 2 {
		t.Fatalf("%+v, evicted %d", g, e.Stats().Totals.Evicted)
	}
	s.Link(hostB, hostA).Delay(time.Millisecond, time.Millisecond)
	var busy []*Batch
	for i := range 2 {
		b, err := e.Submit(soon(t), reads[i:i+1])
		must(t, err)
		busy = append(busy, b)
	}
	s.until(time.Second, func() bool {
		a, _, _ := busy[0].Task(0)
		b, _, _ := busy[1].Task(0)
		return a == TaskRunning && b == TaskRunning && gauge(t, e, "peer streams, lane 0").Used == 2
	})
	_, err := e.SubmitAndWait(soon(t), reads[2:3]) // busy streams are never evicted
	exhausted(t, err, "peer streams, lane 0", 2, 2)
	for _, b := range busy {
		_, err := b.Wait(soon(t))
		must(t, err)
		must(t, b.Free())
	}
	process.LimitDescriptors(process.Descriptors())
	process.FailOpens(syscall.EMFILE, 1)
	_, err = e.SubmitAndWait(soon(t), reads[3:4])
	if own := wants(t, err, ErrExhausted); !errors.Is(own, syscall.EMFILE) {
		t.Fatalf("the system's limit is not named: %v", err)
	}
}

func TestLookupBudgetRefuses(t *testing.T) {
	release := make(chan struct{})
	e := newEngine(t, Config{Kernel: Epoll, Lanes: 1, Limits: Limits{Lookups: 1}, Resolver: func(ctx context.Context, _ string) ([]netip.Addr, error) {
		<-release
		return nil, ctx.Err()
	}})
	first := make(chan error, 1)
	go func() { first <- second(e.OpenSegment(context.Background(), "a.example:1", Epoch{1})) }()
	for gauge(t, e, "name look-ups in flight").Used == 0 {
		time.Sleep(time.Millisecond)
	}
	_, err := e.OpenSegment(soon(t), "b.example:1", Epoch{1})
	exhausted(t, err, "name look-ups in flight", 1, 1)
	close(release)
	wants(t, <-first, ErrUnreachable)
}

func TestLookupWithoutADeadlineEndsByTheRequestTimeout(t *testing.T) {
	eachMode(t, func(t *testing.T, c Config) {
		c.RequestTimeout = 10 * time.Millisecond
		c.Resolver = func(ctx context.Context, _ string) ([]netip.Addr, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		e := newEngine(t, c)
		_, err := e.OpenSegment(context.Background(), "slow.example:1", Epoch{1})
		wants(t, err, ErrDeadline)
	})
}

// field case F-24
func TestEveryErrorClassSaysWhatIsKnownAndWhatToDo(t *testing.T) {
	classes := []error{
		ErrInvalid, ErrClosed, ErrExhausted, ErrUncovered, ErrUnknownRegion, ErrPermission, ErrConflict, ErrUnavailable, ErrStaleEpoch,
		ErrUnreachable, ErrDisconnected, ErrDeadline, ErrCancelled, ErrProtocol, ErrPeer, ErrUnquiesced, ErrSystem, ErrDevice,
	}
	if len(classes) != len(advices) {
		t.Fatalf("%d classes, advice for %d", len(classes), len(advices))
	}
	seen := map[string]error{}
	for _, class := range classes {
		err := &Error{Op: "SubmitAndWait", Index: 3, Endpoint: "10.0.0.1:7000", Class: class, Cause: syscall.EIO}
		text := err.Error()
		for _, part := range []string{"orbitte: SubmitAndWait: request 3: peer 10.0.0.1:7000: ", class.Error(), syscall.EIO.Error(), "known: " + err.Known(), "remedy: " + err.Remedy()} {
			if !strings.Contains(text, part) {
				t.Errorf("%v: no %q in %q", class, part, text)
			}
		}
		if len(err.Known()) < 10 || len(err.Remedy()) < 10 {
			t.Errorf("%v: known %q, remedy %q", class, err.Known(), err.Remedy())
		}
		if other := seen[class.Error()]; other != nil {
			t.Errorf("%v and %v read the same", class, other)
		}
		seen[class.Error()] = class
		if !errors.Is(err, class) || !errors.Is(err, syscall.EIO) {
			t.Errorf("%v: not found by errors.Is", class)
		}
		for _, other := range classes {
			if other != class && errors.Is(err, other) {
				t.Errorf("%v is also %v", class, other)
			}
		}
	}
	if !errors.Is(&Error{Class: ErrDeadline}, context.DeadlineExceeded) || !errors.Is(&Error{Class: ErrCancelled}, context.Canceled) {
		t.Error("the context's errors do not match")
	}
	if text := (&Error{Op: "RegisterBatch", Index: 0, Class: ErrInvalid}).Error(); !strings.Contains(text, "range 0: ") {
		t.Error(text)
	}
	if text := (&Error{Op: "Close", Index: -1, Class: ErrSystem}).Error(); strings.Contains(text, "request") || strings.Contains(text, "peer ") {
		t.Error(text)
	}
}

// field case F-24: every error of the rooms below has its class
func TestErrorsOfTheRoomsBelowAreSorted(t *testing.T) {
	for _, c := range []struct {
		err  error
		want error
	}{
		{&budgets.Exhausted{}, ErrExhausted}, {&segments.RegionLimit{}, ErrExhausted}, {&segments.LeaseLimit{}, ErrExhausted},
		{&segments.Conflict{}, ErrConflict}, {&segments.Uncovered{}, ErrUncovered}, {&segments.PermissionError{}, ErrPermission},
		{&segments.RangeError{}, ErrInvalid}, {&segments.ForeignAlias{}, ErrInvalid}, {&segments.UnknownRegion{}, ErrInvalid},
		{&segments.MemoryError{}, ErrSystem}, {syscall.EIO, ErrSystem}, {context.DeadlineExceeded, ErrDeadline}, {context.Canceled, ErrCancelled},
		{&Error{Class: ErrStaleEpoch}, ErrStaleEpoch},
		{&lanes.Fault{Cause: lanes.Unreachable}, ErrUnreachable}, {&lanes.Fault{Cause: lanes.Disconnected}, ErrDisconnected},
		{&lanes.Fault{Cause: lanes.Deadline}, ErrDeadline}, {&lanes.Fault{Cause: lanes.Cancelled}, ErrCancelled},
		{&lanes.Fault{Cause: lanes.Violated}, ErrProtocol}, {&lanes.Fault{Cause: lanes.Conflicted}, ErrConflict},
		{&lanes.Fault{Cause: lanes.Exhausted}, ErrExhausted}, {&lanes.Fault{Cause: lanes.Closed}, ErrClosed}, {&lanes.Fault{}, ErrSystem},
	} {
		if got := classOf(c.err); got != c.want {
			t.Errorf("%T %v: %v, want %v", c.err, c.err, got, c.want)
		}
		if got := classOf(fmt.Errorf("wrapped: %w", c.err)); got != c.want {
			t.Errorf("wrapped %T: %v, want %v", c.err, got, c.want)
		}
	}
	for status, want := range map[netproto.Status]error{
		netproto.StatusEpochMismatch: ErrStaleEpoch, netproto.StatusUnknownRegion: ErrUnknownRegion, netproto.StatusPermissionDenied: ErrPermission,
		netproto.StatusInvalidRange: ErrUnknownRegion, netproto.StatusSourceClosed: ErrClosed, netproto.StatusExhausted: ErrExhausted,
		netproto.StatusProtocolError: ErrProtocol, netproto.StatusInternalError: ErrPeer, netproto.StatusBackendUnavailable: ErrUnavailable,
		netproto.StatusNativeError: ErrPeer, 200: ErrPeer,
	} {
		if got := classOf(&lanes.Fault{Cause: lanes.Refused, Status: status}); got != want {
			t.Errorf("%v: %v, want %v", status, got, want)
		}
	}
}

func TestNamesOfStatesAndPathsAreWords(t *testing.T) {
	var names []string
	for i := range 7 {
		names = append(names, TaskState(i).String(), Transport(i).String(), NotificationStatus(i).String())
	}
	for _, want := range []string{"queued", "running", "succeeded", "failed", "skipped", "no task", "state 6", "tcp", "rdma", "hptcp", "transport 3", "none", "delivered"} {
		if !slices.Contains(names, want) {
			t.Errorf("no %q in %v", want, names)
		}
	}
	epoch := Epoch{1, 2}
	if again, err := ParseEpoch(epoch.String()); err != nil || again != epoch {
		t.Errorf("%v, %v", again, err)
	}
	_, err := ParseEpoch("xyz")
	wants(t, err, ErrInvalid)
}
