package orbitte

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/orbitte/orbitte/reactor/simkernel"
)

// proves B-1, B-4
func TestBatchIsToldByWaitChannelAndPoll(t *testing.T) {
	eachMode(t, func(t *testing.T, c Config) {
		p := newPair(t, c, c, 1<<20)
		var requests []Request
		for at := 0; at < 1<<20; at += 64 << 10 {
			requests = append(requests, p.request(Read, at, 64<<10))
		}
		b, err := p.requester.Submit(soon(t), requests)
		must(t, err)
		report, err := b.Wait(soon(t))
		must(t, err)
		<-b.Done()
		polled, terminal, err := b.Poll()
		must(t, err)
		if !terminal || report.Completed != 16 || report.Bytes != 1<<20 || polled.Bytes != report.Bytes || b.Len() != 16 {
			t.Fatalf("report %+v, polled %+v", report, polled)
		}
		for i := range b.Len() {
			if state, n, err := b.Task(i); state != TaskSucceeded || n != 64<<10 || err != nil {
				t.Fatalf("task %d: %v, %d bytes, %v", i, state, n, err)
			}
		}
		for _, i := range []int{-1, 16} {
			_, _, err := b.Task(i)
			wants(t, err, ErrInvalid)
		}
		if !bytes.Equal(p.local.Bytes(), p.remote.Bytes()) {
			t.Fatal("bytes differ")
		}
		must(t, b.Free())
		wants(t, b.Free(), ErrInvalid)
		_, err = b.Wait(soon(t))
		wants(t, err, ErrInvalid)
	})
}

// proves B-1: one task at a time, states only move forward
func TestTaskStatesAdvanceInOrder(t *testing.T) {
	s := newSimPair(t, 50, simkernel.WorldOptions{}, Config{}, Config{}, 256<<10)
	b, err := s.requester.Submit(s.within(time.Second), []Request{s.request(Read, 0, 128<<10), s.request(Read, 128<<10, 128<<10)})
	must(t, err)
	if _, terminal, _ := b.Poll(); terminal {
		t.Fatal("terminal before anything ran")
	}
	var last [2]TaskState
	seen := map[[2]TaskState]bool{}
	s.until(time.Second, func() bool {
		for i := range last {
			state, n, err := b.Task(i)
			if err != nil || state < last[i] || !state.Terminal() && n != 0 {
				t.Fatalf("task %d went from %v to %v, %d bytes, %v", i, last[i], state, n, err)
			}
			last[i] = state
		}
		seen[last] = true
		_, terminal, _ := b.Poll()
		if terminal && !(last[0].Terminal() && last[1].Terminal()) {
			t.Fatal("the whole is terminal before its tasks")
		}
		return terminal
	})
	for _, want := range [][2]TaskState{{TaskQueued, TaskQueued}, {TaskRunning, TaskQueued}, {TaskSucceeded, TaskRunning}, {TaskSucceeded, TaskSucceeded}} {
		if !seen[want] {
			t.Errorf("%v was never seen, only %v", want, seen)
		}
	}
	must(t, b.Free())
}

// proves B-4: under the race detector, an outcome that were written after its state would be found
func TestOutcomeIsCompleteWhenItsTerminalStateIsVisible(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		p := newPair(t, c, c, 64<<10)
		for range 50 {
			b, err := p.requester.Submit(soon(t), []Request{p.request(Read, 0, 1024), p.request(Write, 1024, 1024), p.request(Read, 0, 4096)})
			must(t, err)
			var pollers sync.WaitGroup
			for range 2 {
				pollers.Go(func() {
					for i := 0; i < b.Len(); {
						state, n, err := b.Task(i)
						if !state.Terminal() {
							continue
						}
						if state == TaskSucceeded && (err != nil || n == 0) {
							t.Errorf("task %d: %v with %d bytes, %v", i, state, n, err)
						}
						i++
					}
					for {
						if report, terminal, err := b.Poll(); terminal {
							if report.Completed != 3 || err != nil {
								t.Errorf("report %+v, %v", report, err)
							}
							return
						}
					}
				})
			}
			pollers.Wait()
			must(t, b.Free())
		}
	})
}

// proves B-3
func TestCancelledQueuedWorkPostsNothing(t *testing.T) {
	s := newSimPair(t, 51, simkernel.WorldOptions{}, Config{}, Config{}, 512<<10)
	s.Link(hostA, hostB).Delay(time.Millisecond, time.Millisecond)
	running, err := s.requester.Submit(s.within(time.Second), []Request{s.request(Read, 0, 256<<10)})
	must(t, err)
	queued, err := s.requester.Submit(s.within(time.Second), []Request{s.request(Write, 256<<10, 1024), s.request(Write, 257<<10, 1024)})
	must(t, err)
	s.until(time.Second, func() bool { state, _, _ := running.Task(0); return state == TaskRunning })
	queued.Cancel()
	report, err := queued.Wait(s.within(time.Second))
	wants(t, err, ErrCancelled)
	if report.Completed != 0 || report.Failed != 0 || report.Remote != EffectNone || !report.LocallyDrained {
		t.Fatalf("report %+v", report)
	}
	if state, _, err := queued.Task(0); state != TaskFailed || !errors.Is(err, ErrCancelled) {
		t.Fatalf("task 0: %v, %v", state, err)
	}
	if state, _, err := queued.Task(1); state != TaskSkipped || err != nil {
		t.Fatalf("task 1: %v, %v", state, err)
	}
	report, err = running.Wait(s.within(time.Second)) // its stream was left alone
	must(t, err)
	totals := s.source.Stats().Totals
	if report.Bytes != 256<<10 || totals.WritesServed != 0 || totals.FramesRefused != 0 || totals.ReadsServed != 1 || totals.Accepted != 1 {
		t.Fatalf("the source saw %+v", totals)
	}
	never, err := s.requester.Submit(s.within(time.Second), s.whole(Write))
	must(t, err)
	never.Cancel() // before the lane has looked at it
	_, err = never.Wait(s.within(time.Second))
	wants(t, err, ErrCancelled)
	if totals := s.source.Stats().Totals; totals.WritesServed != 0 {
		t.Fatalf("the source saw %+v", totals)
	}
	for _, b := range []*Batch{running, queued, never} {
		b.Cancel() // after the end it does nothing
		must(t, b.Free())
	}
}

// A context that ends between admission and start must not be lost.
func TestContextThatEndsAtTheStartEndsTheWork(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		p := newPair(t, c, c, 64<<10)
		for range 300 {
			ctx, cancel := context.WithCancel(context.Background())
			go cancel()
			report, err := p.requester.SubmitAndWait(ctx, p.whole(Read))
			if err != nil && (!errors.Is(err, ErrCancelled) || !report.LocallyDrained) {
				t.Fatalf("%v, %+v", err, report)
			}
		}
	})
}

// proves B-2, B-3
func TestDetachedBatchGoesOnAndStaysCharged(t *testing.T) {
	s := newSimPair(t, 52, simkernel.WorldOptions{}, Config{}, Config{Limits: Limits{Batches: 2, BatchSlots: 5}}, 64<<10)
	b, err := s.requester.Submit(s.within(time.Second), []Request{s.request(Read, 0, 64<<10), s.request(Read, 0, 1)})
	must(t, err)
	must(t, b.Free()) // detached
	if gauge(t, s.requester, "async batches").Used != 1 || gauge(t, s.requester, "async batch slots").Used != 2 {
		t.Fatalf("charged %v", used(s.requester))
	}
	s.until(time.Second, func() bool { return closed(b.Done()) })
	if !bytes.Equal(s.local.Bytes(), s.remote.Bytes()) {
		t.Fatal("the detached batch did not go on")
	}
	if gauge(t, s.requester, "async batches").Used != 0 || gauge(t, s.requester, "async batch slots").Used != 0 {
		t.Fatalf("drained, but charged %v", used(s.requester))
	}
	open, err := s.requester.Submit(soon(t), s.whole(Read))
	must(t, err)
	_, err = open.Wait(soon(t))
	must(t, err)
	if gauge(t, s.requester, "async batches").Used != 1 { // finished but not freed
		t.Fatalf("charged %v", used(s.requester))
	}
	_, err = s.requester.Submit(soon(t), make([]Request, 5))
	exhausted(t, err, "async batch slots", 5, 1)
	second, err := s.requester.Submit(soon(t), nil)
	must(t, err)
	_, err = s.requester.Submit(soon(t), nil)
	exhausted(t, err, "async batches", 2, 2)
	must(t, open.Free())
	must(t, second.Free())
}

// proves B-3: batch handles outlive the engine
func TestBatchHandlesOutliveClose(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		p := newPair(t, c, c, 1<<20)
		done, err := p.requester.Submit(soon(t), p.whole(Read))
		must(t, err)
		_, err = done.Wait(soon(t))
		must(t, err)
		running, err := p.requester.Submit(soon(t), p.whole(Read))
		must(t, err)
		closeEngine(t, p.requester) // waits for the running one
		for _, b := range []*Batch{done, running} {
			report, err := b.Wait(soon(t))
			must(t, err)
			if report.Bytes != 1<<20 {
				t.Fatalf("report %+v", report)
			}
			if state, n, err := b.Task(0); state != TaskSucceeded || n != 1<<20 || err != nil {
				t.Fatalf("task: %v, %d, %v", state, n, err)
			}
			b.Cancel()
			must(t, b.Free())
		}
		_, err = done.RetryNotifications(soon(t))
		wants(t, err, ErrInvalid)
	})
}

func TestBatchOfSeveralPeersCrossesLanes(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		c.Lanes = 2
		requester, local := newEngine(t, c), allocated(t, 64<<10)
		registered(t, requester, local, LocalOnly)
		var requests []Request
		for i := range 4 {
			source, m := newEngine(t, Config{Kernel: c.Kernel, Lanes: 1}), allocated(t, 16<<10)
			pattern(m, i)
			registered(t, source, m, RemoteRead)
			seg := opened(t, requester, source)
			requests = append(requests, Request{Operation: Read, Segment: seg, Local: local.Address() + uint64(i)*16<<10, Remote: m.Address(), Length: 16 << 10})
		}
		for range 20 {
			b, err := requester.Submit(soon(t), append(requests, requests...))
			must(t, err)
			report, err := b.Wait(soon(t))
			must(t, err)
			if report.Completed != 8 {
				t.Fatalf("report %+v", report)
			}
			must(t, b.Free())
			c, err := requester.Submit(soon(t), append(requests, requests...))
			must(t, err)
			c.Cancel() // at whatever lane the group is
			if _, err = c.Wait(soon(t)); err != nil && !errors.Is(err, ErrCancelled) {
				t.Fatal(err)
			}
			must(t, c.Free())
		}
	})
}
