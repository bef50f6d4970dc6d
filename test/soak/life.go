package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/orbitte/orbitte"
)

const (
	peersMax   = 6
	workersMax = 4
	closeMax   = 30 * time.Second // of one Close, Unregister or CloseSegment: deadlines and source timeouts are far shorter
)

// A life is one engine, from Open to the look at what it left.
type life struct {
	p        *peer
	slot     int
	number   int
	dice     *rand.Rand // of the life's own goroutine
	engine   *orbitte.Engine
	config   orbitte.Config
	board    *board
	segments segmentTable
	mail     mail
	leaving  atomic.Bool                 // true exactly from the first fence on: ErrClosed is no surprise
	errors   [len(expected)]atomic.Int64 // calls that ended with each
	stop     chan struct{}
	workers  sync.WaitGroup
}

func newLife(p *peer, slot, number int, seed uint64) *life {
	return &life{p: p, slot: slot, number: number, dice: rand.New(rand.NewPCG(seed, 3)), stop: make(chan struct{})}
}

// name is unique in the run: "p1.2/0.7" is the seventh engine in place 0 of the second life of peer 1.
func (l *life) name() string { return fmt.Sprintf("%s.%d/%d.%d", l.p.name, l.p.life, l.slot, l.number) }

func (l *life) fail(format string, args ...any) {
	l.p.fail("%s (%s): %s", l.name(), l.describe(), fmt.Sprintf(format, args...))
}

func (l *life) placement() string {
	if l.config.TCPHostMemory == orbitte.Direct {
		return "direct"
	}
	return "staged"
}

func (l *life) describe() string {
	c := &l.config
	kernel := map[orbitte.KernelChoice]string{orbitte.Auto: "auto", orbitte.IOUring: "io_uring", orbitte.Epoll: "epoll"}[c.Kernel]
	progress := map[orbitte.Progress]string{orbitte.Adaptive: "adaptive", orbitte.EventDriven: "event-driven", orbitte.Busy: "busy", orbitte.Manual: "manual"}[c.Progress]
	limits := "default"
	if c.Limits.Submissions != 0 {
		limits = "tiny"
	}
	return fmt.Sprintf("%s %s %s lanes=%d limits=%s", kernel, progress, l.placement(), c.Lanes, limits)
}

// choose is the configuration of this life.
func (l *life) choose() {
	d := l.dice
	c := orbitte.Config{
		Bind: address(l.p.parent, l.p.index, l.slot), Lanes: 1 + d.IntN(2), Kernel: orbitte.Epoll,
		RequestTimeout: time.Duration(1+d.IntN(3)) * time.Second, SourceTimeout: time.Duration(1+d.IntN(3)) * time.Second,
		IdleTimeout: time.Duration(logUniform(d, 50, 5000)) * time.Millisecond, QuiesceTimeout: 20 * time.Second,
	}
	if d.IntN(2) == 0 {
		c.Kernel = orbitte.Auto // io_uring where it may be used
	}
	c.Progress = []orbitte.Progress{orbitte.Adaptive, orbitte.EventDriven, orbitte.Manual}[d.IntN(3)]
	if l.p.index == 2 && d.IntN(4) == 0 { // one at a time may take a processor for itself
		c.Progress, c.Lanes = orbitte.Busy, 1
	}
	if d.IntN(2) == 0 {
		c.TCPHostMemory = orbitte.Direct
	}
	if d.IntN(8) == 0 {
		c.TCPNotifications = orbitte.Off // the control RPC carries them
	}
	if d.IntN(3) == 0 {
		c.Limits = orbitte.Limits{
			Registrations: 64, BatchRequests: 4, Batches: 2, BatchSlots: 6, Submissions: 3, SubmittedBytes: 512 << 10, PayloadBytes: 128 << 10,
			SourceHandlers: 1, SourceQueue: 1, PeerSegments: 3, Notifications: 4, NotificationQueue: 8 << 10, NotificationBytes: 4 << 10,
		}
	}
	l.config = c
}

// open opens the engine; a process without descriptors tries for a while. False when that was in vain.
func (l *life) open() bool {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		e, err := orbitte.Open(l.config)
		switch {
		case err == nil:
			l.engine = e
			return true
		case !scarce(err):
			l.fail("Open: %v", err)
		}
		l.p.count.refused.Add(1)
		if time.Now().After(end) || l.p.over() {
			l.p.say("note no engine: %v", err)
			return false
		}
	}
}

// scarce is true exactly for the errors of a process without descriptors.
func scarce(err error) bool { return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) }

// live is the whole life.
func (l *life) live() {
	l.choose()
	if !l.open() {
		return
	}
	l.segments.life, l.mail.life = l, l
	l.mail.begin()
	driven := l.drive()
	if l.p.role != "requester" {
		l.publish()
	}
	l.p.say("up %d %s %s %s %s", l.slot, l.engine.Endpoint(), l.engine.Epoch(), l.placement(), l.describe())
	l.work()
	length := time.Duration(logUniform(l.dice, 200, 8000)) * time.Millisecond
	select {
	case <-time.After(length):
	case <-l.p.ending:
	}
	how := l.close()
	close(driven.over)
	<-driven.done
	l.board.close(l)
	l.mail.report()
	l.look()
	l.p.say("note closed %s after %v, %s", l.name(), length, how)
	for n, class := range expected {
		l.p.say("error %d %v", l.errors[n].Load(), class)
	}
	l.p.say("down %s %s", l.name(), l.engine.Epoch())
}

// driver drives an engine in manual mode until over is closed.
type driver struct{ over, done chan struct{} }

func (l *life) drive() driver {
	d := driver{make(chan struct{}), make(chan struct{})}
	go func() {
		defer close(d.done)
		for l.config.Progress == orbitte.Manual {
			select {
			case <-d.over:
				return
			default:
			}
			if !l.engine.Progress(500 * time.Microsecond) {
				time.Sleep(50 * time.Microsecond) // another call drives
			}
		}
		<-d.over
	}()
	return d
}

// work starts everybody who uses the engine.
func (l *life) work() {
	start := func(do func()) {
		l.workers.Add(1)
		go func() {
			defer l.workers.Done()
			do()
		}()
	}
	start(l.mail.receive)
	if l.p.role != "requester" {
		seed := l.dice.Uint64()
		start(func() { l.churn(rand.New(rand.NewPCG(seed, 4))) })
	}
	if l.p.role == "source" {
		return
	}
	for n := range l.p.workers {
		w := newWorker(l, n, l.dice.Uint64())
		start(w.loop)
	}
}

func (l *life) stopped() bool {
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}

// close ends the engine in one of the orders that users have, and says which.
func (l *life) close() string {
	switch l.dice.IntN(4) {
	case 0:
		close(l.stop)
		l.workers.Wait()
		l.segments.closeAll()
		l.mustClose("Close", l.engine.Close)
		return "everybody had stopped"
	case 1:
		l.leaving.Store(true)
		l.mustClose("Close", l.engine.Close)
		close(l.stop)
		l.workers.Wait()
		return "in the middle of the work"
	case 2:
		l.leaving.Store(true)
		l.mustClose("CloseSource", l.engine.CloseSource)
		time.Sleep(time.Duration(l.dice.IntN(50)) * time.Millisecond)
		l.mustClose("CloseRequester", l.engine.CloseRequester)
		close(l.stop)
		l.workers.Wait()
		l.mustClose("Close", l.engine.Close)
		return "source first"
	}
	l.leaving.Store(true)
	tries := 0
	done := l.p.watch.begin(time.Now().Add(closeMax), "%s Close, again and again", l.name())
	for ; ; tries++ {
		err := closeWithin(l.engine, time.Duration(l.dice.IntN(2000))*time.Microsecond)
		if err == nil {
			break
		}
		if !errors.Is(err, orbitte.ErrUnquiesced) {
			l.fail("Close with little time: %v", err)
		}
	}
	done()
	close(l.stop)
	l.workers.Wait()
	return fmt.Sprintf("at try %d", tries+1)
}

func closeWithin(e *orbitte.Engine, d time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return e.Close(ctx)
}

// mustClose is a call that waits for what is under way, which ends by deadlines that are far shorter. Its own context
// is no part of the test: time in which the process was stopped must not end it.
func (l *life) mustClose(what string, do func(context.Context) error) {
	done := l.p.watch.begin(time.Now().Add(closeMax), "%s %s", l.name(), what)
	defer done()
	if err := do(context.Background()); err != nil {
		l.fail("%s: %v", what, err)
	}
}

// look holds the closed engine, to which everything was given back, to SPEC U-2 and G-9.
func (l *life) look() {
	stats := l.engine.Stats()
	for _, g := range stats.Gauges {
		if g.Used != 0 {
			l.fail("after the drain %d %s are charged to %q", g.Used, g.Unit, g.Name)
		}
	}
	if kept := l.engine.RetainedResources(); len(kept) > 0 || stats.Unquiesced != 0 {
		l.fail("after the drain: unquiesced %d, retained %v", stats.Unquiesced, kept)
	}
	if n := stats.Totals.RetainedDescriptors; n != 0 {
		l.fail("%d descriptors were retained", n)
	}
}
