//go:build cgo && !vm

package libibverbs

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/orbitte/orbitte/verbs"
)

// A block keeps every call of one function inside the library until release.
type block struct {
	ours *os.File
	in   *os.File
}

func blockCalls(t *testing.T, function string) *block {
	t.Helper()
	in, ours, err := os.Pipe()
	check(t, err)
	t.Setenv("FAKE_BLOCK", fmt.Sprintf("%s:%d", function, in.Fd())) // Fd makes it blocking
	return &block{ours, in}
}

func (b *block) release(t *testing.T) {
	t.Helper()
	check(t, b.ours.Close())
}

// soon calls what must not wait.
func soon(t *testing.T, what string, call func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	until(t, what, func() bool { return len(done) == 1 })
	return <-done
}

// field case F-55
func TestAThousandBlockedCallsTakeABoundedNumberOfThreads(t *testing.T) {
	b := newBench(t)
	const calls = 1000
	block := blockCalls(t, "ibv_reg_mr")
	before := threads(t)
	done := make(chan error, calls)
	for range calls {
		go func() {
			h, _, _, err := b.l.Register(b.domain, 4096, 1, 0)
			if err == nil {
				err = b.l.Deregister(h)
			}
			done <- err
		}()
	}
	until(t, "all calls are inside or wait", func() bool {
		return len(b.l.opens.places) == callsMax && b.l.opens.waiting.Load() == calls-callsMax
	})
	// Each of the 16 calls inside has a thread; the scheduler keeps some of its own beside them.
	const more = 64
	if now := threads(t); now > before+more {
		t.Errorf("%d calls are blocked and there are %d threads, before %d", calls, now, before)
	}
	// Other work goes on: hot calls pass no gate, and ends have one of their own.
	if n, err := b.l.PostSend(b.pair, writes(1)); n != 1 || err != nil {
		t.Error(n, err)
	}
	if sent, _ := b.takeAll(t); len(sent) != 1 {
		t.Error("polled", len(sent))
	}
	block.release(t)
	for range calls {
		check(t, <-done)
	}
	check(t, block.in.Close())
	if n := len(b.l.opens.places) + int(b.l.opens.waiting.Load()); n != 0 {
		t.Errorf("%d calls are still counted", n)
	}
}

// field case F-55
func TestTooManyWaitingCallsAreRefusedByTypeButNoEndIs(t *testing.T) {
	b := newBench(t)
	domain := must(b.l.AllocateDomain(b.device))(t)
	windows := make([]verbs.WindowHandle, callsMax+waitingMax+10)
	for i := range windows {
		w, _, err := b.l.AllocateWindow(domain)
		check(t, err)
		windows[i] = w
	}
	block := blockCalls(t, "ibv_alloc_pd")
	done := make(chan error)
	for range callsMax + waitingMax {
		go func() {
			d, err := b.l.AllocateDomain(b.device)
			if err == nil {
				err = b.l.FreeDomain(d)
			}
			done <- err
		}()
	}
	until(t, "the gate is full", func() bool { return b.l.opens.waiting.Load() == waitingMax })
	err := soon(t, "the refusal", func() error { _, err := b.l.AllocateDomain(b.device); return err })
	var busy *Busy
	if !errors.Is(err, ErrBusy) || !errors.Is(err, syscall.EAGAIN) || !errors.As(err, &busy) || busy.Call != "ibv_alloc_pd" {
		t.Errorf("one more: %v", err)
	} else {
		contains(t, err, "was not begun", fmt.Sprint(callsMax), fmt.Sprint(waitingMax))
	}
	for _, w := range windows { // ends do not wait for opens
		check(t, soon(t, "an end", func() error { return b.l.FreeWindow(w) }))
	}
	block.release(t)
	for range callsMax + waitingMax {
		check(t, <-done)
	}
	check(t, block.in.Close())
	block = blockCalls(t, "ibv_dealloc_pd")
	ends := callsMax + waitingMax + 10
	for range ends {
		d := must(b.l.AllocateDomain(b.device))(t)
		go func() { done <- b.l.FreeDomain(d) }()
	}
	until(t, "more ends wait than an open may", func() bool { return b.l.ends.waiting.Load() == int64(ends-callsMax) })
	block.release(t)
	for range ends {
		check(t, <-done)
	}
	check(t, block.in.Close())
	check(t, b.l.FreeDomain(domain))
}
