package orbitte

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
)

// proves G-5
// field case F-3
func TestCloseSegmentAgainstRunningTransfers(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		c.Limits.Submissions = 64
		p := newPair(t, c, c, 1<<20)
		for range 5 {
			s, err := p.requester.OpenSegment(soon(t), p.source.Endpoint(), p.source.Epoch())
			must(t, err)
			var wait sync.WaitGroup
			var closed, done atomic.Int64
			for i := range 16 {
				wait.Go(func() {
					request := p.request(Read, i*64<<10, 64<<10)
					request.Segment = s
					for {
						report, err := p.requester.SubmitAndWait(soon(t), []Request{request})
						if errors.Is(err, ErrClosed) && report.LocallyDrained {
							closed.Add(1)
							return
						}
						if err != nil {
							t.Error(err)
							return
						}
						done.Add(1)
					}
				})
			}
			for done.Load() < 20 && !t.Failed() {
				time.Sleep(100 * time.Microsecond)
			}
			must(t, p.requester.CloseSegment(soon(t), s))
			must(t, p.requester.CloseSegment(soon(t), s)) // again: nothing
			wait.Wait()
			if closed.Load() != 16 {
				t.Fatalf("%d of 16 were told", closed.Load())
			}
			wants(t, s.Refresh(soon(t)), ErrClosed)
			_, err = p.requester.SendNotification(soon(t), s, Notification{})
			wants(t, err, ErrClosed)
		}
		wants(t, p.requester.CloseSegment(soon(t), nil), ErrInvalid)
	})
}

// proves G-5: drains the peer, then closes its stream; says so when it may not wait
func TestCloseSegmentDrainsThenClosesTheStream(t *testing.T) {
	s := newSimPair(t, 70, simkernel.WorldOptions{}, Config{}, Config{}, 64<<10)
	second, err := s.requester.OpenSegment(soon(t), s.source.Endpoint(), s.source.Epoch())
	must(t, err)
	b, err := s.requester.Submit(s.within(time.Second), s.whole(Read))
	must(t, err)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	wants(t, s.requester.CloseSegment(ended, s.segment), ErrUnquiesced)
	_, err = s.requester.SubmitAndWait(soon(t), s.whole(Read)) // fenced all the same
	wants(t, err, ErrClosed)
	must(t, s.requester.CloseSegment(soon(t), s.segment))
	if _, terminal, err := b.Poll(); !terminal || err != nil {
		t.Fatalf("closed before the transfer ended: %v", err)
	}
	if n := gauge(t, s.requester, "peer streams, lane 0").Used; n != 1 {
		t.Fatalf("%d streams: the second segment uses it", n)
	}
	must(t, s.requester.CloseSegment(soon(t), second))
	if n := gauge(t, s.requester, "peer streams, lane 0").Used; n != 0 || len(s.requester.peers) != 0 {
		t.Fatalf("%d streams after the last segment", n)
	}
	must(t, b.Free())
}

// A segment and its engine may be closed at the same time.
func TestCloseSegmentBesideClose(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		source := newEngine(t, c)
		for range 30 {
			e := newEngine(t, c)
			var open []*Segment
			for range 3 {
				s, err := e.OpenSegment(soon(t), source.Endpoint(), source.Epoch())
				must(t, err)
				open = append(open, s)
			}
			var wait sync.WaitGroup
			for _, s := range open {
				wait.Go(func() {
					if err := e.CloseSegment(soon(t), s); err != nil {
						t.Error(err)
					}
				})
			}
			wait.Go(func() { closeEngine(t, e) })
			wait.Go(func() { closeEngine(t, e) })
			wait.Wait()
		}
	})
}

// proves G-6
func TestCloseSourceAndCloseRequesterFenceForGoodAndWait(t *testing.T) {
	s := newSimPair(t, 71, simkernel.WorldOptions{}, Config{}, Config{}, 256<<10)
	s.Link(hostA, hostB).Delay(time.Millisecond, time.Millisecond)
	b, err := s.requester.Submit(s.within(time.Second), s.whole(Read))
	must(t, err)
	s.until(time.Second, func() bool { return s.export.inner.Loans() > 0 })
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for range 2 { // a time-out keeps it fenced, and it can be called again
		if own := wants(t, s.source.CloseSource(ended), ErrUnquiesced); own.Op != "CloseSource" || !strings.Contains(own.Error(), "1 frames") {
			t.Fatal(own)
		}
		if own := wants(t, s.requester.CloseRequester(ended), ErrUnquiesced); own.Op != "CloseRequester" || !strings.Contains(own.Error(), "1 submissions") {
			t.Fatal(own)
		}
		_, err = s.requester.SubmitAndWait(soon(t), s.whole(Read))
		wants(t, err, ErrClosed)
	}
	wants(t, s.requester.Close(ended), ErrUnquiesced)
	must(t, s.source.CloseSource(soon(t))) // the frame that was admitted goes on
	must(t, s.requester.CloseRequester(soon(t)))
	report, terminal, err := b.Poll()
	if !terminal || err != nil || report.Bytes != 256<<10 {
		t.Fatalf("report %+v, %v", report, err)
	}
	must(t, b.Free())
	_, err = s.requester.SubmitAndWait(soon(t), s.whole(Read))
	wants(t, err, ErrClosed)
	other, _ := s.engine("third", hostC, Config{})
	_, err = other.OpenSegment(s.within(time.Second), s.source.Endpoint(), s.source.Epoch())
	wants(t, err, ErrClosed) // the source answers that it is closed
	seg := opened(t, s.source, other)
	must(t, seg.Refresh(soon(t))) // the closed source still requests
}

// proves G-6: methods of a closed engine say ErrClosed and never hang
func TestClosedEngineAnswersEveryCall(t *testing.T) {
	eachMode(t, func(t *testing.T, c Config) {
		p := newPair(t, c, c, 4096)
		e := p.requester
		_, err := p.requester.SubmitAndNotify(soon(t), p.whole(Read), Notification{})
		must(t, err)
		waiter := make(chan error, 1)
		go func() {
			_, err := e.AwaitNotifications(context.Background())
			waiter <- err
		}()
		b, err := e.Submit(soon(t), p.whole(Read), NotifyAfter(Notification{}))
		must(t, err)
		_, err = b.Wait(soon(t))
		must(t, err)
		for c.Progress == Manual && e.driver.free.Load() { // until the waiter drives
			time.Sleep(time.Millisecond)
		}
		closeEngine(t, e)
		wants(t, <-waiter, ErrClosed)
		ctx := soon(t)
		for name, call := range map[string]func() error{
			"SubmitAndWait":   func() error { return second(e.SubmitAndWait(ctx, p.whole(Read))) },
			"Submit":          func() error { return second(e.Submit(ctx, p.whole(Read))) },
			"SubmitAndNotify": func() error { return second(e.SubmitAndNotify(ctx, p.whole(Read), Notification{})) },
			"empty":           func() error { return second(e.SubmitAndNotify(ctx, nil, Notification{})) },
			"Send":            func() error { return second(e.SendNotification(ctx, p.segment, Notification{})) },
			"Await":           func() error { return second(e.AwaitNotifications(ctx)) },
			"OpenSegment":     func() error { return second(e.OpenSegment(ctx, p.source.Endpoint(), p.source.Epoch())) },
			"own segment":     func() error { return second(e.OpenSegment(ctx, e.Endpoint(), e.Epoch())) },
			"Describe":        func() error { return second(e.Describe(ctx, "name.example:1")) },
			"Refresh":         func() error { return p.segment.Refresh(ctx) },
			"Register":        func() error { return second(e.Register(p.local, 0, 1, LocalOnly)) },
			"RegisterBatch":   func() error { return second(e.RegisterBatch(nil)) },
		} {
			if err := call(); !errors.Is(err, ErrClosed) {
				t.Errorf("%s on a closed engine: %v", name, err)
			}
		}
		must(t, e.CloseSource(ctx))
		must(t, e.CloseRequester(ctx))
		must(t, e.Close(ctx))
		gone, cancel := context.WithCancel(ctx)
		cancel()
		must(t, e.Close(gone)) // closed is closed
		if c.Progress == Manual && e.Progress(time.Millisecond) {
			t.Error("a closed engine progressed")
		}
		if e.ReceiveNotifications() != nil || e.Stats().Kernel == "" || len(e.RetainedResources()) != 0 {
			t.Error("readings of a closed engine")
		}
		must(t, b.Free())
	})
}

// A call in flight ends by RequestTimeout when its context has no deadline, and so does Close.
func TestCloseEndsByTheRequestTimeoutOfWhatRuns(t *testing.T) {
	s := newSimPair(t, 72, simkernel.WorldOptions{}, Config{}, Config{RequestTimeout: 70 * time.Millisecond}, 64<<10)
	s.Link(hostA, hostB).BlackHole(true)
	b, err := s.requester.Submit(context.Background(), s.whole(Read), NotifyAfter(Notification{}))
	must(t, err)
	start := s.Now()
	must(t, s.requester.Close(context.Background()))
	if took := time.Duration(s.Now() - start); took < 60*time.Millisecond || took > 80*time.Millisecond {
		t.Fatalf("Close took %v of virtual time", took)
	}
	report, err := b.Wait(context.Background())
	wants(t, err, ErrDeadline)
	if report.Notification.Status != Skipped || !report.LocallyDrained {
		t.Fatalf("report %+v", report)
	}
	must(t, b.Free())
}

// Close in manual mode from another goroutine than the one that drives.
func TestCloseBesideADriverInManualMode(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		c.Progress, c.Lanes = Manual, 2
		p := newPair(t, c, c, 64<<10)
		stop := make(chan struct{})
		var wait sync.WaitGroup
		wait.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					p.requester.Progress(time.Hour) // a turn ends early when Close needs the lanes
				}
			}
		})
		_, err := p.requester.SubmitAndWait(soon(t), p.whole(Read))
		must(t, err)
		closeEngine(t, p.requester)
		close(stop)
		wait.Wait()
	})
}

// Many goroutines share one driver in manual mode, and none starves.
func TestManySubmittersShareOneDriverInManualMode(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		c.Progress = Manual
		c.Limits = Limits{Submissions: 64}
		p := newPair(t, c, c, 64*1024)
		var wait sync.WaitGroup
		for i := range 64 {
			wait.Go(func() {
				for range 8 {
					if _, err := p.requester.SubmitAndWait(soon(t), []Request{p.request(Read, i*1024, 1024)}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wait.Wait()
		if n := p.requester.Stats().Totals.ReadsDone; n != 64*8 {
			t.Fatalf("%d READs", n)
		}
	})
}

func TestTwoHundredEnginesInARowLeaveNothing(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		leavesNothing(t)
		start := cpuTime(t)
		for range 200 {
			e, err := Open(c)
			must(t, err)
			must(t, e.Close(context.Background()))
			isDrained(t, e)
		}
		each := (cpuTime(t) - start) / 200 // the wall clock would measure the machine's other work
		t.Logf("opening and closing an engine takes %v of CPU", each)
		if each > 10*time.Millisecond {
			t.Fatalf("opening and closing an engine takes %v of CPU", each)
		}
	})
}

// cpuTime is what the process has used.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// withheld is a kernel whose completions do not come while told so, although its clock and its wake-ups do.
type withheld struct {
	reactor.Kernel
	on    atomic.Bool
	asked func() // called meanwhile for each operation; set before on
}

func (k *withheld) Submit(o *reactor.Operation) {
	k.Kernel.Submit(o)
	if k.on.Load() {
		k.asked()
	}
}

func (k *withheld) Poll(out []reactor.Completion, until reactor.Instant) int {
	if k.on.Load() {
		time.Sleep(100 * time.Microsecond)
		return 0
	}
	return k.Kernel.Poll(out, until)
}

// proves G-8, G-9: what is not proven quiet is said, listed and charged, until it is
func TestUnquiescedIsSaidListedAndChargedUntilTheProofComes(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		var kernel *withheld
		own := c
		own.QuiesceTimeout = 20 * time.Millisecond
		own.OpenKernel = func(lane int) (reactor.Kernel, error) {
			k, err := realKernel(c)
			if lane == 0 {
				kernel = &withheld{Kernel: k}
				return kernel, err
			}
			return k, err
		}
		p := newPair(t, c, own, 64<<10)
		ctx, cancel := context.WithCancel(context.Background())
		kernel.asked = cancel // as soon as the request is with the kernel
		kernel.on.Store(true)
		t.Cleanup(func() { kernel.on.Store(false) })
		report, err := p.requester.SubmitAndWait(ctx, p.whole(Read))
		if own := wants(t, err, ErrUnquiesced); own.Op != "SubmitAndWait" || report.LocallyDrained {
			t.Fatalf("%v, %+v", err, report)
		}
		if s := p.requester.Stats(); s.Unquiesced != 1 {
			t.Fatalf("unquiesced %d", s.Unquiesced)
		}
		kept := p.requester.RetainedResources()
		if len(kept) == 0 || kept[0].Kind != "submission" || gauge(t, p.requester, "requester bytes in flight").Used != 64<<10 {
			t.Fatalf("retained %v, charged %v", kept, used(p.requester))
		}
		wants(t, p.requester.Unregister(within(t, time.Millisecond), p.own), ErrUnquiesced)
		if err := p.requester.Close(within(t, time.Millisecond)); !errors.Is(err, ErrUnquiesced) {
			t.Fatalf("Close: %v", err)
		}
		kernel.on.Store(false)
		must(t, p.requester.Unregister(soon(t), p.own)) // the proof came late, and it is seen
		closeEngine(t, p.requester)
		isDrained(t, p.requester)
	})
}

// clinging is a kernel that cannot close streams while told so.
type clinging struct {
	reactor.Kernel
	on bool
}

func (k *clinging) Close(d reactor.Descriptor) error {
	if k.on {
		return syscall.EIO
	}
	return k.Kernel.Close(d)
}

// proves G-9: a destruction that failed keeps memory, charges and stream for good
func TestRetainedTransferStaysOwnedChargedAndListed(t *testing.T) {
	s := newSim(t, 73, simkernel.WorldOptions{})
	keepsOnPurpose(t, 2) // the caller's memory and the staging buffer: the lane ends, with all else of its arena
	source, _ := s.engine("source", hostA, Config{})
	remote := allocated(t, 64<<10)
	registered(t, source, remote, ReadWrite)
	process := s.Process("requester", hostB)
	kernel := &clinging{Kernel: process.Kernel()}
	e, err := Open(s.config(process, Config{OpenKernel: func(int) (reactor.Kernel, error) { return kernel, nil }}, "10.0.0.2:0"))
	must(t, err)
	s.drive(e)
	local, err := Allocate(64 << 10)
	must(t, err)
	handle, err := e.Register(local, 0, 64<<10, LocalOnly)
	must(t, err)
	seg, err := e.OpenSegment(soon(t), source.Endpoint(), source.Epoch())
	must(t, err)
	kernel.on = true
	s.Link(hostA, hostB).Delay(time.Millisecond, time.Millisecond)
	b, err := e.Submit(s.within(500*time.Microsecond), []Request{{Operation: Read, Segment: seg, Local: local.Address(), Remote: remote.Address(), Length: 64 << 10}})
	must(t, err)
	report, err := b.Wait(s.within(time.Second))
	wants(t, err, ErrUnquiesced)
	if report.LocallyDrained || report.Failed != 0 {
		t.Fatalf("report %+v", report)
	}
	if state, _, err := b.Task(0); state != TaskFailed || !errors.Is(err, ErrUnquiesced) {
		t.Fatalf("task %v, %v", state, err)
	}
	must(t, b.Free())
	charged := used(e)
	if charged["requester bytes in flight"] != 64<<10 || charged["requester submissions in flight"] != 1 || charged["async batches"] != 1 || charged["peer streams"] != 1 {
		t.Fatalf("charged %v", charged)
	}
	kinds := map[string]bool{}
	for _, r := range e.RetainedResources() {
		kinds[r.Kind] = true
	}
	if !kinds["submission"] || !kinds["descriptor"] {
		t.Fatalf("retained %v", e.RetainedResources())
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	wants(t, e.Unregister(ended, handle), ErrUnquiesced)
	wants(t, e.Close(ended), ErrUnquiesced)
	must(t, local.Close())
	if handle.inner.Backing().Holders() == 0 {
		t.Fatal("memory that the system may still touch was let go")
	}
}

// keepsOnPurpose accounts for the memory objects that a test leaves retained: by design they have no end.
// It is called right after leavesNothing.
func keepsOnPurpose(t *testing.T, n int64) {
	t.Helper()
	count, bytes := segments.Mappings()
	t.Cleanup(func() {
		c, b := segments.Mappings()
		if c-count != n {
			t.Errorf("%d memory objects are retained, want %d: %v", c-count, n, segments.Residents())
		}
		deliberate.Add(c - count)
		deliberateBytes.Add(b - bytes)
	})
}
