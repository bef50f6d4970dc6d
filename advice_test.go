package orbitte

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/delegate"
	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
)

// closed tells whether a channel is closed, without waiting.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// over is a context that ended before anything began.
func over() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// says checks which situation an error's advice comes from, and that its text has it.
func says(t *testing.T, err, class error, s situation) *Error {
	t.Helper()
	own := wants(t, err, class)
	want, ok := situations[s][class]
	if !ok || own.Known() != want.known || own.Remedy() != want.remedy {
		t.Fatalf("%v: known %q, remedy %q, want %+v", err, own.Known(), own.Remedy(), want)
	}
	if !strings.Contains(err.Error(), want.known) || !strings.Contains(err.Error(), want.remedy) {
		t.Fatalf("the text lacks them: %v", err)
	}
	return own
}

// field case F-24: what depends on the call is read as well
func TestEverySituationSaysWhatIsKnownAndWhatToDo(t *testing.T) {
	for s, classes := range situations {
		for class, a := range classes {
			if len(a.known) < 10 || len(a.remedy) < 10 || s == submitting {
				t.Errorf("situation %d, %v: %+v", s, class, a)
			}
			if advices[class] == a {
				t.Errorf("situation %d, %v says what its class says", s, class)
			}
			if strings.Contains(a.known, "report") && s != notifying && s != midway {
				t.Errorf("situation %d, %v: there is no report: %q", s, class, a.known)
			}
			own := &Error{Op: "Test", Index: -1, Class: class, situation: s}
			if own.Known() != a.known || own.Remedy() != a.remedy {
				t.Errorf("situation %d, %v: known %q, remedy %q", s, class, own.Known(), own.Remedy())
			}
		}
	}
}

// field case F-24: whose budget ran out, which field of Limits sets it, and whether waiting helps
func TestExhaustionSaysWhoseLimitItIsAndWhetherWaitingHelps(t *testing.T) {
	for budget, field := range limitFields {
		for _, fits := range []bool{true, false} {
			cause := &budgets.Exhausted{Budget: budget + ", lane 3", Unit: "things", Asked: 2, Used: 2, Limit: 3}
			if !fits {
				cause.Asked = 4
			}
			for _, err := range []*Error{
				{Op: "Test", Index: -1, Class: ErrExhausted, Cause: cause},
				{Op: "Test", Index: -1, Class: ErrExhausted, Cause: &lanes.Fault{Cause: lanes.Exhausted, Err: cause}},
			} {
				if !strings.Contains(err.Remedy(), "Limits."+field) || strings.Contains(err.Remedy(), "wait") != fits || strings.Contains(err.Remedy(), "ask for less") == fits {
					t.Errorf("%q, fits later %v: remedy %q", budget, fits, err.Remedy())
				}
			}
		}
	}
	for s, field := range map[situation]string{submitting: "PayloadBytes", notifying: "Notifications"} {
		err := &Error{Op: "Test", Index: -1, Class: ErrExhausted, situation: s, Cause: &lanes.Fault{Cause: lanes.Refused, Status: netproto.StatusExhausted}}
		if !strings.Contains(err.Known(), "the peer's budget") || !strings.Contains(err.Remedy(), field) || !strings.Contains(err.Remedy(), "at the peer") {
			t.Errorf("the peer's: %v", err)
		}
	}
	p := newPair(t, Config{Kernel: Epoll, Lanes: 1, Limits: Limits{Notifications: 1}}, Config{Kernel: Epoll, Lanes: 1, Limits: Limits{SubmittedBytes: 4096}}, 8192)
	_, err := p.requester.SubmitAndWait(soon(t), p.whole(Read))
	if text := wants(t, err, ErrExhausted).Error(); strings.Contains(text, "wait") || strings.Count(text, "raise") != 1 || !strings.Contains(text, "Limits.SubmittedBytes") {
		t.Error(text)
	}
	for range 2 {
		_, err = p.requester.SendNotification(soon(t), p.segment, Notification{})
	}
	if own := wants(t, err, ErrExhausted); !strings.Contains(own.Known(), "its inbox is full") {
		t.Error(own)
	}
	huge := Notification{Message: strings.Repeat("x", 64<<10+1)}
	_, err = p.requester.SendNotification(soon(t), p.segment, huge)
	if text := wants(t, err, ErrExhausted).Error(); !strings.Contains(text, "Limits.NotificationBytes") || strings.Contains(text, "wait for") {
		t.Error(text)
	}
}

// field case F-24: calls whose own context ends
func TestEndedContextsSayWhatEnded(t *testing.T) {
	s := newSimPair(t, 110, simkernel.WorldOptions{}, Config{}, Config{}, 64<<10)
	ctx, e := over(), s.requester
	b, err := e.Submit(soon(t), s.whole(Read))
	must(t, err)
	says(t, second(b.Wait(ctx)), ErrCancelled, waiting)
	says(t, second(b.Wait(within(t, -time.Second))), ErrDeadline, waiting)
	must(t, second(b.Wait(soon(t))))
	must(t, b.Free())
	says(t, second(e.AwaitNotifications(ctx)), ErrCancelled, waiting)
	says(t, second(e.SubmitAndWait(ctx, s.whole(Read))), ErrCancelled, unposted)
	says(t, second(e.SubmitAndWait(within(t, -time.Second), s.whole(Read))), ErrDeadline, unposted)
	says(t, second(e.Submit(ctx, s.whole(Read))), ErrCancelled, unposted)
	says(t, second(e.SubmitAndNotify(ctx, s.whole(Read), Notification{})), ErrCancelled, unposted)
	says(t, second(e.SendNotification(ctx, s.segment, Notification{})), ErrCancelled, unposted)
	says(t, second(e.OpenSegment(ctx, "10.0.0.9:9", Epoch{1})), ErrCancelled, unposted)
	says(t, s.segment.Refresh(ctx), ErrCancelled, unposted)
	s.Link(hostA, hostB).BlackHole(true)
	says(t, second(e.Describe(s.within(10*time.Millisecond), "10.0.0.1:9")), ErrDeadline, asking)
	says(t, s.segment.Refresh(s.within(10*time.Millisecond)), ErrDeadline, asking)
	text := says(t, second(e.SendNotification(s.within(10*time.Millisecond), s.segment, Notification{})), ErrDeadline, notifying).Error()
	if strings.Count(text, ErrDeadline.Error()) != 1 {
		t.Errorf("the class is said twice: %s", text)
	}
}

func TestNoChannelAtAllIsOneErrorAndNotTwo(t *testing.T) {
	s := newSimPair(t, 111, simkernel.WorldOptions{}, Config{}, Config{TCPNotifications: Off, NotificationRPCFallback: Off}, 4096)
	_, err := s.requester.SendNotification(soon(t), s.segment, Notification{})
	if text := says(t, err, ErrUnavailable, notifying).Error(); strings.Count(text, "orbitte:") != 1 || strings.Count(text, "known:") != 1 || !strings.Contains(text, s.source.Endpoint()) {
		t.Error(text)
	}
}

func TestEpochErrorsNameBothEpochsAndSpeakOfNoFrame(t *testing.T) {
	s := newSimPair(t, 112, simkernel.WorldOptions{}, Config{}, Config{}, 4096)
	wrong := Epoch{7: 9}
	_, err := s.requester.OpenSegment(soon(t), s.source.Endpoint(), wrong)
	if text := wants(t, err, ErrStaleEpoch).Error(); !strings.Contains(text, wrong.String()) || !strings.Contains(text, s.source.Epoch().String()) {
		t.Error(text)
	}
	s.segment.epoch = wrong // a segment of a life that has gone
	for _, call := range []func() error{
		func() error { return second(s.requester.SubmitAndWait(soon(t), s.whole(Read))) },
		func() error { return second(s.requester.SubmitAndWait(soon(t), s.whole(Write))) },
		func() error { return second(s.requester.SendNotification(soon(t), s.segment, Notification{})) },
	} {
		if text := wants(t, call(), ErrStaleEpoch).Error(); !strings.Contains(text, wrong.String()) || !strings.Contains(text, s.source.Epoch().String()) {
			t.Error(text)
		}
	}
	for _, bad := range []string{"zz", strings.Repeat("z", 32), ""} {
		_, err = ParseEpoch(bad)
		if text := wants(t, err, ErrInvalid).Error(); strings.Contains(text, "protocol") || !strings.Contains(text, "32 hexadecimal digits") {
			t.Error(text)
		}
	}
}

func TestForeignMagicIsShownInHexadecimal(t *testing.T) {
	_, err := netproto.DecodeReply(append([]byte("SSH-2.0-"), make([]byte, netproto.ReplySize-8)...))
	if err == nil || !strings.Contains(err.Error(), "0x5353482d322e302d") {
		t.Fatal(err)
	}
}

// safeBuffer takes log lines from the engine's goroutine.
type safeBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func TestRefusalsAreCountedByStatusAndTheirReasonsNoted(t *testing.T) {
	var lines safeBuffer
	logger := zerolog.New(&lines)
	s := newSimPair(t, 113, simkernel.WorldOptions{}, Config{Logger: &logger, Limits: Limits{Notifications: 1}}, Config{}, 8192)
	_, err := s.requester.SendNotification(soon(t), s.segment, Notification{})
	must(t, err)
	_, err = s.requester.SendNotification(soon(t), s.segment, Notification{})
	wants(t, err, ErrExhausted)
	learned, err := s.requester.Describe(soon(t), s.source.Endpoint())
	must(t, err)
	must(t, s.requester.CloseSegment(soon(t), learned))
	_, err = s.requester.OpenSegment(soon(t), s.source.Endpoint(), Epoch{1, 2})
	wants(t, err, ErrStaleEpoch)
	must(t, s.source.Unregister(soon(t), s.export))
	only := registered(t, s.source, s.remote, RemoteWrite)
	real := s.segment.view()
	lie, err := segments.NewRemote(s.segment.endpoint, s.segment.epoch, netproto.Descriptor{
		Capabilities: s.requester.capabilities(),
		Regions:      []netproto.Region{{ID: only.ID(), Base: only.Address(), Length: only.Length(), Permission: ReadWrite}},
	}) // a requester that lies to itself
	must(t, err)
	s.segment.remote.Store(lie)
	_, err = s.requester.SubmitAndWait(soon(t), s.whole(Read))
	wants(t, err, ErrPermission)
	s.segment.remote.Store(real)
	_, err = s.requester.SubmitAndWait(soon(t), s.whole(Read))
	wants(t, err, ErrUnknownRegion)
	must(t, s.source.CloseSource(soon(t)))
	_, err = s.requester.SubmitAndWait(soon(t), s.whole(Read))
	wants(t, err, ErrClosed)
	c := s.source.Stats().Totals
	got := [...]uint64{c.RefusedExhausted, c.RefusedStaleEpoch, c.RefusedPermission, c.RefusedUnknownRegion, c.RefusedClosed, c.RefusedRange, c.FramesRefused}
	if want := [...]uint64{1, 1, 1, 1, 1, 0, 6}; got != want { // one more: the describe that learned
		t.Errorf("refusals %v, want %v", got, want)
	}
	s.source.ReceiveNotifications()
	closeEngine(t, s.source)
	text := lines.String()
	for _, want := range []string{"expects another life", Epoch{1, 2}.String(), s.source.Epoch().String(), "does not allow the direction", `"where":"10.0.0.2:`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the log:\n%s", want, text)
		}
	}
}

func TestClosedSegmentIsClosedWhateverARequestAsksFor(t *testing.T) {
	s := newSimPair(t, 114, simkernel.WorldOptions{}, Config{}, Config{}, 4096)
	seg, err := s.requester.OpenSegment(soon(t), s.source.Endpoint(), s.source.Epoch())
	must(t, err)
	must(t, s.requester.CloseSegment(soon(t), seg))
	for name, remote := range map[string]uint64{"covered": s.remote.Address(), "uncovered": 4096} {
		r := s.request(Read, 0, 16)
		r.Segment, r.Remote = seg, remote
		if _, err := s.requester.SubmitAndWait(soon(t), []Request{r}); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFreedBatchAnswersEveryCallAlike(t *testing.T) {
	s := newSimPair(t, 115, simkernel.WorldOptions{}, Config{}, Config{}, 4096)
	b, err := s.requester.Submit(soon(t), s.whole(Read), NotifyAfter(Notification{}))
	must(t, err)
	if state, _, err := b.Task(99); !errors.Is(err, ErrInvalid) || state != 0 || state == TaskQueued || state.String() != "no task" {
		t.Errorf("task 99: %v, %v", state, err)
	}
	must(t, b.Free())
	for range 2 { // detached, then ended
		_, wait := b.Wait(soon(t))
		_, _, poll := b.Poll()
		state, _, task := b.Task(0)
		_, retry := b.RetryNotifications(soon(t))
		for _, err := range []error{wait, poll, task, retry, b.Free()} {
			if !errors.Is(wants(t, err, ErrInvalid), errFreed) || state != 0 {
				t.Errorf("%v, state %v", err, state)
			}
		}
		s.until(time.Second, func() bool { return closed(b.Done()) })
	}
	s.source.ReceiveNotifications()
}

func TestCloseOfAnIdleEngineNeedsNoTime(t *testing.T) {
	eachMode(t, func(t *testing.T, c Config) {
		p := newPair(t, c, c, 4096)
		_, err := p.requester.SubmitAndWait(soon(t), p.whole(Read))
		must(t, err)
		must(t, p.requester.Close(over())) // streams, lanes and all
	})
}

// What holds up the end of lanes holds no memory, and the error must not say so.
func TestCloseThatWaitsForLanesOnlySaysThatMemoryIsQuiet(t *testing.T) {
	block, blocked := make(chan struct{}), make(chan struct{}, 16)
	logger := zerolog.New(writerFunc(func(p []byte) (int, error) {
		blocked <- struct{}{}
		<-block
		return len(p), nil
	}))
	e := newEngine(t, Config{Kernel: Epoll, Lanes: 1, Logger: &logger})
	<-blocked
	own := says(t, e.Close(over()), ErrUnquiesced, tearing)
	if text := own.Error(); strings.Contains(text, "may still") || !strings.Contains(text, "log's writer") {
		t.Error(text)
	}
	close(block)
	must(t, e.Close(soon(t)))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// What a source says at the receipt of a transfer over RDMA, and a source that has no places, are told with what is known of
// the bytes and with the field that helps. field case F-24
func TestWhatASourceOverRDMASaysIsToldAsWhatItIs(t *testing.T) {
	refused := func(status netproto.Status, stage string, err error) *lanes.Fault {
		return &lanes.Fault{Cause: lanes.Refused, Status: status, Stage: stage, Err: err}
	}
	for name, c := range map[string]struct {
		fault        *lanes.Fault
		class        error
		known, field string
	}{
		"source's deadline": {&lanes.Fault{Cause: lanes.Deadline, Stage: rdma.ReceiptStage, Err: &rdma.SourceDeadlineError{}}, ErrDeadline, "effects are in the report", "SourceTimeout at the peer"},
		"source's device":   {refused(netproto.StatusNativeError, rdma.ReceiptStage, nil), ErrPeer, "effects are in the report", "its RDMA devices"},
		"before any grant":  {refused(netproto.StatusNativeError, "RDMA grant", nil), ErrPeer, "no byte was committed", "log"},
		"occupied range":    {refused(netproto.StatusInternalError, "unpin", delegate.ErrOccupied), ErrDeadline, "effects are in the report", "SourceTimeout at the peer"},
		"own queue":         {&lanes.Fault{Cause: lanes.Exhausted, Stage: "RDMA connection", Err: &budgets.Exhausted{Budget: "RDMA completion entries, lane 0, mlx5_0", Unit: "queue pairs", Asked: 1, Used: 4, Limit: 4}}, ErrExhausted, "nothing was posted", "RDMA.Limits.CompletionEntries"},
		"cache misses":      {refused(netproto.StatusCacheMiss, "RDMA grant", &rdma.MissError{Times: 3}), ErrExhausted, "no byte was moved", "RDMA.Limits.Endpoints at the peer"},
	} {
		err := wants(t, failure("SubmitAndWait", c.fault), c.class)
		if !strings.Contains(err.Known(), c.known) || !strings.Contains(err.Remedy(), c.field) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whoever has a WRITE of unknown effect is told what ends it, and that does: the owner's Unregister returns once nothing can
// come any more, within the source's own time for a writer that has fallen silent. A request whose effect is known is not told.
//
// proves T-10
// field case F-24
func TestAWriteOfUnknownEffectIsToldWhatEndsIt(t *testing.T) {
	const size, patience = 1 << 20, 3 * time.Second
	for name, transport := range map[string]Transport{"tcp": TransportTCP, "hptcp": TransportHPTCP} {
		for _, op := range []Operation{Read, Write} {
			t.Run(name+" "+op.String(), func(t *testing.T) {
				s := newFastSim(t, 21, simkernel.WorldOptions{}, Config{SourceTimeout: patience}, Config{}, size)
				r := s.request(op, 0, size)
				r.Transport = transport
				_, err := s.requester.SubmitAndWait(soon(t), []Request{r})
				must(t, err)
				s.Link(hostA, hostB).Delay(100*time.Microsecond, 200*time.Microsecond)
				s.Link(hostB, hostA).Delay(100*time.Microsecond, 200*time.Microsecond)
				s.Later(600*time.Microsecond, func() { // in the middle of the payload
					s.Link(hostA, hostB).BlackHole(true)
					s.Link(hostB, hostA).BlackHole(true)
				})
				report, err := s.requester.SubmitAndWait(s.within(50*time.Millisecond), []Request{r})
				own := wants(t, err, ErrDeadline)
				if told := strings.HasSuffix(own.Remedy(), unknownRemedy); (report.Remote == EffectUnknown) != (op == Write) || told != (op == Write) {
					t.Errorf("%+v: %v", report, err)
				}
				began := s.Now()
				must(t, s.source.Unregister(s.within(2*patience), s.export))
				waited := time.Duration(s.Now() - began)
				if waited > patience || op == Write && waited < patience/2 {
					t.Errorf("Unregister waited %v, the source's time is %v", waited, patience)
				}
				s.Link(hostA, hostB).BlackHole(false)
				s.Link(hostB, hostA).BlackHole(false)
			})
		}
	}
}
