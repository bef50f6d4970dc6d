package reactor

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

// fakeKernel completes what a test hands it. Its clock moves only when the test, or a Poll that waits
// until an instant, moves it; a Poll that waits for ever really waits for Wake.
type fakeKernel struct {
	now       atomic.Int64
	ready     []Completion
	echo      bool // every submitted operation is ready at once
	moves     int  // N of echoed completions
	submitted []Operation
	cancelled []Ticket
	wake      chan struct{}
	polls     atomic.Int64
	waits     atomic.Int64
	wakes     atomic.Int64
	untils    []Instant // of the first 1,000 polls
	asked     []int     // len(out) of the same
	step      int64     // how far each Poll moves the clock
	onPoll    func()
	bindError error
	shutdowns int
}

func newFakeKernel() *fakeKernel {
	k := &fakeKernel{wake: make(chan struct{}, 1)}
	k.now.Store(1000)
	return k
}

func (k *fakeKernel) Name() string           { return "fake" }
func (k *fakeKernel) Now() Instant           { return Instant(k.now.Load()) }
func (k *fakeKernel) At(t time.Time) Instant { return Instant(t.UnixNano()) }
func (k *fakeKernel) Bind() error            { return k.bindError }

func (k *fakeKernel) Listen(a netip.AddrPort, _ SocketOptions) (Descriptor, netip.AddrPort, error) {
	return 1, a, nil
}
func (k *fakeKernel) Open(netip.AddrPort, SocketOptions) (Descriptor, error) { return 2, nil }
func (k *fakeKernel) Tune(Descriptor, SocketOptions) (string, error)         { return "fake", nil }
func (k *fakeKernel) Close(Descriptor) error                                 { return nil }
func (k *fakeKernel) Cancel(t Ticket)                                        { k.cancelled = append(k.cancelled, t) }
func (k *fakeKernel) Shutdown() error                                        { k.shutdowns++; return nil }

func (k *fakeKernel) Counters() Counters {
	return Counters{Crossings: uint64(k.polls.Load()), Waits: uint64(k.waits.Load())}
}

func (k *fakeKernel) Submit(op *Operation) {
	if k.echo {
		k.ready = append(k.ready, Completion{Ticket: op.Ticket, N: k.moves})
		return
	}
	k.submitted = append(k.submitted, *op)
}

func (k *fakeKernel) Wake() {
	k.wakes.Add(1)
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *fakeKernel) Poll(out []Completion, until Instant) int {
	k.polls.Add(1)
	if k.onPoll != nil {
		k.onPoll()
	}
	if len(k.untils) < 1000 {
		k.untils, k.asked = append(k.untils, until), append(k.asked, len(out))
	}
	k.now.Add(k.step)
	n := copy(out, k.ready)
	k.ready = append(k.ready[:0], k.ready[n:]...)
	if n > 0 || until <= k.Now() {
		return n
	}
	k.waits.Add(1)
	if until == Forever {
		<-k.wake
		return 0
	}
	select {
	case <-k.wake:
	default:
		k.now.Store(int64(until))
	}
	return 0
}

// finish hands the loop the completion of an operation.
func (k *fakeKernel) finish(c Completion) { k.ready = append(k.ready, c) }

type handlerFunc func(Event)

func (f handlerFunc) Complete(e *Event) { f(*e) }

type timerFunc func(*Timer, Instant)

func (f timerFunc) Expire(t *Timer, now Instant) { f(t, now) }

type recipientFunc func(*Letter, Instant)

func (f recipientFunc) Receive(m *Letter, now Instant) { f(m, now) }

func manualLoop(t *testing.T, k Kernel, o Options) *Loop {
	t.Helper()
	o.Mode = Manual
	l := NewLoop(k, o)
	if err := l.Bind(); err != nil {
		t.Fatal(err)
	}
	return l
}
