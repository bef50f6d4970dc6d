package orbitte

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// proves N-1
func TestNotificationsOfEveryShapeArriveInOrder(t *testing.T) {
	s := newSimPair(t, 60, simkernel.WorldOptions{}, Config{}, Config{}, 4096)
	self := opened(t, s.source, s.source)
	long := strings.Repeat("é", 16<<10) // 32 KiB
	notes := []Notification{{"", ""}, {"a", ""}, {"", "b"}, {"a", "b"}, {"a", "b"}, {"ключ", "値"}, {long, long}, {"", ""}}
	for _, to := range []struct {
		from *Engine
		seg  *Segment
	}{{s.requester, s.segment}, {s.source, self}} {
		for _, n := range notes {
			report, err := to.from.SendNotification(soon(t), to.seg, n)
			must(t, err)
			if report.Status != Delivered || report.Effect != EffectComplete || report.Err != nil {
				t.Fatalf("report %+v", report)
			}
		}
		got := s.source.ReceiveNotifications() // the receipt confirmed the enqueue
		if len(got) != len(notes) {
			t.Fatalf("%d of %d arrived", len(got), len(notes))
		}
		for i := range notes {
			if got[i] != notes[i] {
				t.Fatalf("notification %d differs", i)
			}
		}
		for _, bad := range []Notification{{"\xff", ""}, {"", "a\xc0"}} {
			_, err := to.from.SendNotification(soon(t), to.seg, bad)
			wants(t, err, ErrInvalid)
		}
		_, err := to.from.SendNotification(soon(t), to.seg, Notification{long, long + "x"})
		exhausted(t, err, "one notification", 64<<10, 0)
	}
	if got := s.source.ReceiveNotifications(); got != nil {
		t.Fatalf("refused notifications arrived: %d", len(got))
	}
	_, err := s.requester.SendNotification(soon(t), nil, Notification{})
	wants(t, err, ErrInvalid)
	_, err = s.requester.SendNotification(soon(t), self, Notification{})
	wants(t, err, ErrInvalid)
}

// proves N-2
func TestConcurrentPollersGetDisjointNotificationsInOrder(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		p := newPair(t, c, c, 4096)
		const many = 600
		var seen [many]atomic.Int32
		var received atomic.Int64
		var pollers sync.WaitGroup
		ctx := soon(t)
		for range 4 {
			pollers.Go(func() {
				for received.Load() < many {
					notes, err := p.source.AwaitNotifications(within(t, 50*time.Millisecond))
					if errors.Is(err, ErrDeadline) {
						continue
					}
					last := -1
					for _, n := range notes {
						var i int
						if _, err := fmt.Sscan(n.Message, &i); err != nil || i <= last {
							t.Errorf("%q after %d, %v", n.Message, last, err)
							return
						}
						last = i
						seen[i].Add(1)
					}
					received.Add(int64(len(notes)))
				}
			})
		}
		for i := range many {
			_, err := p.requester.SendNotification(ctx, p.segment, Notification{Message: fmt.Sprint(i)})
			must(t, err)
		}
		pollers.Wait()
		for i := range seen {
			if n := seen[i].Load(); n != 1 {
				t.Fatalf("notification %d was received %d times", i, n)
			}
		}
	})
}

// proves N-3
func TestNotificationFollowsDataOnceAndOnlyAfterSuccess(t *testing.T) {
	s := newSimPair(t, 61, simkernel.WorldOptions{}, Config{Limits: Limits{Notifications: 1}}, Config{}, 4096)
	note := Notification{"step", "1"}
	report, err := s.requester.SubmitAndNotify(soon(t), nil, note) // empty
	must(t, err)
	if report.Notification.Status != Skipped || s.source.ReceiveNotifications() != nil {
		t.Fatalf("empty batch: %+v", report.Notification)
	}
	bad := s.request(Read, 0, 4096)
	bad.Remote++
	report, err = s.requester.SubmitAndNotify(soon(t), []Request{bad}, note) // failed
	wants(t, err, ErrUnknownRegion)
	if report.Notification.Status != Skipped || s.source.ReceiveNotifications() != nil {
		t.Fatalf("failed batch: %+v", report.Notification)
	}
	again, err := s.requester.OpenSegment(soon(t), s.source.Endpoint(), s.source.Epoch()) // the same peer twice is one peer
	must(t, err)
	twice := s.request(Write, 0, 1)
	twice.Segment = again
	report, err = s.requester.SubmitAndNotify(soon(t), []Request{s.request(Write, 0, 4096), twice}, note)
	must(t, err)
	must(t, s.requester.CloseSegment(soon(t), again))
	if report.Notification.Status != Delivered || report.Completed != 2 {
		t.Fatalf("report %+v", report)
	}
	writes := s.source.Stats().Totals.WritesServed
	report, err = s.requester.SubmitAndNotify(soon(t), s.whole(Write), note) // the inbox is full
	must(t, err)                                                             // the data is there
	if report.Completed != 1 || report.Notification.Status != Failed || report.Notification.Effect != EffectNone || !errors.Is(report.Notification.Err, ErrExhausted) {
		t.Fatalf("report %+v", report)
	}
	if n := s.source.Stats().Totals.WritesServed; n != writes+1 {
		t.Fatalf("%d WRITEs: a failed notification must not replay data", n-writes)
	}
	if notes := s.source.ReceiveNotifications(); len(notes) != 1 || notes[0] != note {
		t.Fatalf("inbox %v", notes)
	}
	other, _ := s.engine("third", hostC, Config{})
	m := allocated(t, 16)
	registered(t, other, m, ReadWrite)
	_, err = s.requester.SubmitAndNotify(soon(t), []Request{s.request(Read, 0, 16),
		{Operation: Read, Segment: opened(t, s.requester, other), Local: s.local.Address(), Remote: m.Address(), Length: 16}}, note)
	wants(t, err, ErrInvalid) // two peers
}

// proves N-5
func TestChannelsAreTriedInOrderAndOnlyAnUnavailableOnePermitsTheNext(t *testing.T) {
	for _, c := range []struct {
		senderTCP, senderRPC, receiverTCP Switch
		delivered                         bool
		refused                           uint64 // frames that the source refused on the way
	}{
		{Default, Default, Default, true, 0},
		{On, On, Off, true, 1}, // the TCP channel is not installed at the receiver: the RPC is next
		{On, Off, Off, false, 1},
		{Off, On, On, true, 0},
		{Off, Default, Off, true, 0},
		{Off, Off, On, false, 0},
	} {
		s := newSimPair(t, 62, simkernel.WorldOptions{}, Config{TCPNotifications: c.receiverTCP},
			Config{TCPNotifications: c.senderTCP, NotificationRPCFallback: c.senderRPC}, 4096)
		report, err := s.requester.SendNotification(soon(t), s.segment, Notification{"n", "m"})
		if c.delivered {
			must(t, err)
		} else {
			wants(t, err, ErrUnavailable)
		}
		got := s.source.ReceiveNotifications()
		refused := s.source.Stats().Totals.FramesRefused
		if (report.Status == Delivered) != c.delivered || (len(got) == 1) != c.delivered || refused != c.refused {
			t.Errorf("%+v: %v, %d in the inbox, %d frames refused", c, report.Status, len(got), refused)
		}
	}
}

// proves N-5: when the RPC fails too, the last channel's error and an uncertain RPC effect are kept
func TestFailedFallbackKeepsBothErrorsAndTheUncertainEffect(t *testing.T) {
	s := newSimPair(t, 63, simkernel.WorldOptions{}, Config{TCPNotifications: Off, Limits: Limits{Notifications: 1}}, Config{}, 4096)
	both := func(report NotificationReport, err error) {
		t.Helper()
		text := err.Error()
		if report.Status != Failed || report.Err != err || !strings.Contains(text, "control RPC") ||
			!strings.Contains(text, netproto.StatusBackendUnavailable.String()) {
			t.Fatalf("report %+v: %v", report, err)
		}
	}
	_, err := s.requester.SendNotification(soon(t), s.segment, Notification{"fills", "the inbox"})
	must(t, err)
	report, err := s.requester.SendNotification(soon(t), s.segment, Notification{"one", "too many"})
	wants(t, err, ErrExhausted)
	both(report, err)
	if report.Effect != EffectNone {
		t.Fatalf("effect %v", report.Effect)
	}
	s.source.ReceiveNotifications()
	wire := s.Connections()[0] // refusal of the TCP channel, ready of the RPC, and the receipt that is lost
	wire.ResetAfter(simkernel.ToClient, wire.Bytes(simkernel.ToClient)+2*netproto.ReplySize+5)
	report, err = s.requester.SendNotification(soon(t), s.segment, Notification{"perhaps", "there"})
	wants(t, err, ErrDisconnected)
	both(report, err)
	if report.Effect != EffectUnknown {
		t.Fatalf("effect %v", report.Effect)
	}
	if got := s.source.ReceiveNotifications(); len(got) != 1 { // it was there, in fact
		t.Fatalf("inbox %v", got)
	}
}

// proves N-4 at the API
func TestLostReceiptIsUnknownAndLostRequestIsNone(t *testing.T) {
	for cut, want := range map[uint64]Effect{5: EffectNone, netproto.ReplySize + 5: EffectUnknown} {
		s := newSimPair(t, 64, simkernel.WorldOptions{}, Config{}, Config{}, 4096)
		wire := s.Connections()[0]
		wire.ResetAfter(simkernel.ToClient, wire.Bytes(simkernel.ToClient)+cut)
		report, err := s.requester.SendNotification(soon(t), s.segment, Notification{"a", "b"})
		wants(t, err, ErrDisconnected)
		if report.Effect != want {
			t.Errorf("cut after %d bytes: effect %v, want %v", cut, report.Effect, want)
		}
		if got := len(s.source.ReceiveNotifications()); (got == 1) != (want == EffectUnknown) {
			t.Errorf("cut after %d bytes: %d in the inbox", cut, got)
		}
	}
}

// proves N-6
func TestHookKeepsOnlyDestinationsThatMayBeRetried(t *testing.T) {
	s := newSimPair(t, 65, simkernel.WorldOptions{}, Config{}, Config{}, 4096)
	full, _ := s.engine("full", hostC, Config{Limits: Limits{Notifications: 1}})
	torn, _ := s.engine("torn", hostC, Config{})
	requests := s.whole(Read)
	for _, e := range []*Engine{full, torn} {
		m := allocated(t, 4096)
		registered(t, e, m, ReadWrite)
		requests = append(requests, Request{Operation: Read, Segment: opened(t, s.requester, e), Local: s.local.Address(), Remote: m.Address(), Length: 4096})
	}
	_, err := full.SendNotification(soon(t), opened(t, full, full), Notification{"fills", "it"})
	must(t, err)
	for _, wire := range s.Connections() { // lose torn's receipt: after its data came ready and receipt
		if wire.Server().String() == torn.Endpoint() {
			wire.ResetAfter(simkernel.ToClient, wire.Bytes(simkernel.ToClient)+netproto.ReplySize+4096+netproto.ReplySize+5)
		}
	}
	note := Notification{"layer", "done"}
	b, err := s.requester.Submit(soon(t), requests, NotifyAfter(note))
	must(t, err)
	if gauge(t, s.requester, "requester bytes in flight").Used != 3*4096+int64(note.size()) {
		t.Fatalf("the notification is not charged: %v", used(s.requester))
	}
	report, err := b.Wait(soon(t))
	must(t, err) // the data's
	if report.Completed != 3 || report.Notification.Status != Failed || !errors.Is(report.Notification.Err, ErrExhausted) {
		t.Fatalf("report %+v", report)
	}
	left, err := b.RetryNotifications(soon(t))
	wants(t, err, ErrExhausted)
	if left != 1 {
		t.Fatalf("%d are left, want only the one that certainly did not get it", left)
	}
	full.ReceiveNotifications()
	left, err = b.RetryNotifications(soon(t))
	must(t, err)
	if left != 0 {
		t.Fatalf("%d are left", left)
	}
	left, err = b.RetryNotifications(soon(t))
	must(t, err)
	for _, e := range []*Engine{s.source, full, torn} {
		if got := e.ReceiveNotifications(); len(got) != 1 || got[0] != note {
			t.Errorf("%s received %v", e.Endpoint(), got)
		}
	}
	if left != 0 || s.source.Stats().Totals.ReadsServed != 1 {
		t.Fatal("data was replayed")
	}
	must(t, b.Free())
}

// A batch is admitted as a whole: fencing the requester, or closing the segment, after Submit does not
// take its notification away; cancelling does.
func TestHookBelongsToTheSubmission(t *testing.T) {
	for _, c := range []struct {
		name   string
		during func(s *simPair, b *Batch)
		want   NotificationStatus
	}{
		{"fenced", func(s *simPair, _ *Batch) { s.requester.requester.Fence() }, Delivered},
		{"segment fenced", func(s *simPair, _ *Batch) { s.segment.gate.Fence() }, Delivered},
		{"cancelled in the notification", func(s *simPair, b *Batch) { b.Cancel() }, Failed},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSimPair(t, 66, simkernel.WorldOptions{}, Config{}, Config{}, 4096)
			s.Link(hostA, hostB).Delay(time.Millisecond, time.Millisecond)
			b, err := s.requester.Submit(s.within(time.Second), s.whole(Read), NotifyAfter(Notification{"a", "b"}))
			must(t, err)
			s.until(time.Second, func() bool { state, _, _ := b.Task(0); return state == TaskSucceeded })
			c.during(s, b)
			report, err := b.Wait(s.within(time.Second))
			must(t, err)
			if report.Notification.Status != c.want {
				t.Fatalf("notification %+v", report.Notification)
			}
			if c.want == Failed && (!errors.Is(report.Notification.Err, ErrCancelled) || report.Notification.Effect == lanes.EffectComplete) {
				t.Fatalf("notification %+v", report.Notification)
			}
			must(t, b.Free())
		})
	}
}

func TestNotifyAfterIsCheckedBeforeAnythingRuns(t *testing.T) {
	s := newSimPair(t, 67, simkernel.WorldOptions{}, Config{}, Config{Limits: Limits{SubmittedBytes: 5000}}, 4096)
	before := used(s.requester)
	_, err := s.requester.Submit(soon(t), s.whole(Read), NotifyAfter(Notification{"\xff", ""}))
	wants(t, err, ErrInvalid)
	_, err = s.requester.Submit(soon(t), s.whole(Read), NotifyAfter(Notification{"", strings.Repeat("x", 2000)}))
	wants(t, err, ErrExhausted)
	b, err := s.requester.Submit(soon(t), []Request{{}}, NotifyAfter(Notification{}))
	if b != nil {
		t.Fatal("a batch without a segment was accepted")
	}
	wants(t, err, ErrInvalid)
	if after := used(s.requester); !mapsEqual(after, before) {
		t.Fatalf("charges %v, before %v", after, before)
	}
	failing := s.whole(Read)
	must(t, s.source.Unregister(soon(t), s.export))
	b, err = s.requester.Submit(soon(t), failing, NotifyAfter(Notification{"never", "sent"}))
	must(t, err)
	report, err := b.Wait(soon(t))
	wants(t, err, ErrUnknownRegion)
	left, retry := b.RetryNotifications(soon(t))
	if report.Notification.Status != Skipped || left != 0 || retry != nil || s.source.ReceiveNotifications() != nil {
		t.Fatalf("after failed data: %+v, %d left, %v", report.Notification, left, retry)
	}
	must(t, b.Free())
}

// field case F-49
func TestTenThousandSubmitAndNotifyLoseAndDoubleNothing(t *testing.T) {
	const many, senders = 10_000, 24
	p := newPair(t, Config{Lanes: 1}, Config{Lanes: 1}, 64<<10)
	var next, refusals atomic.Int64
	var wait sync.WaitGroup
	ctx := soon(t)
	for worker := range senders {
		wait.Go(func() {
			for i := next.Add(1) - 1; i < many; i = next.Add(1) - 1 {
				note := Notification{Name: "n", Message: fmt.Sprint(i)}
				report, err := p.requester.SubmitAndNotify(ctx, []Request{p.request(Write, worker*64, 64)}, note)
				if err != nil {
					t.Error(err)
					return
				}
				fate, err := report.Notification, report.Notification.Err
				for errors.Is(err, ErrExhausted) && fate.Effect == EffectNone { // back-pressure: the data stays moved
					refusals.Add(1)
					time.Sleep(time.Millisecond)
					fate, err = p.requester.SendNotification(ctx, p.segment, note)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	refused := func() bool { return gauge(t, p.source, "pending notifications").Refusals > 0 }
	for !refused() && ctx.Err() == nil && !t.Failed() { // nobody consumes until the inbox has refused somebody
		time.Sleep(time.Millisecond)
	}
	seen := make([]int, many)
	for received := 0; received < many && !t.Failed(); {
		notes, err := p.source.AwaitNotifications(ctx)
		must(t, err)
		for _, n := range notes {
			var i int
			if _, err := fmt.Sscan(n.Message, &i); err != nil {
				t.Fatal(err)
			}
			seen[i]++
		}
		received += len(notes)
		time.Sleep(time.Millisecond)
	}
	wait.Wait()
	for i, n := range seen {
		if n != 1 {
			t.Fatalf("notification %d arrived %d times", i, n)
		}
	}
	if refusals.Load() == 0 || gauge(t, p.source, "pending notifications").Peak > 1024 {
		t.Fatalf("%d refusals: the inbox never pressed back", refusals.Load())
	}
	if n := p.source.Stats().Totals.WritesServed; n != many {
		t.Fatalf("%d WRITEs were served for %d submissions", n, many)
	}
}

// A segment of another engine is the caller's mistake in every call that takes one, and nothing is taken.
// proves N-1, N-3
func TestForeignSegmentsAreRefusedAlike(t *testing.T) {
	e, other := newEngine(t, Config{Lanes: 1}), newEngine(t, Config{Lanes: 1})
	foreign := opened(t, other, e)
	for _, s := range []*Segment{nil, foreign} {
		requests := []Request{{Operation: Read, Segment: s}}
		_, err := e.SubmitAndNotify(soon(t), requests, Notification{})
		wants(t, err, ErrInvalid)
		_, err = e.Submit(soon(t), requests, NotifyAfter(Notification{}))
		wants(t, err, ErrInvalid)
		_, err = e.SendNotification(soon(t), s, Notification{})
		wants(t, err, ErrInvalid)
	}
}
