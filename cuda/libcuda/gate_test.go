//go:build cgo

package libcuda

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/orbitte/orbitte/cuda"
)

// A block keeps every call of one function inside the driver until release.
type block struct{ ours, in *os.File }

func blockCalls(t *testing.T, function string) *block {
	t.Helper()
	in, ours, err := os.Pipe()
	check(t, err)
	t.Setenv("FAKE_CUDA_BLOCK", fmt.Sprintf("%s:%d", function, in.Fd())) // Fd makes it blocking
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

// threads counts this process's threads.
func threads(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/task")
	check(t, err)
	return len(all)
}

// field case F-55
func TestAThousandBlockedCallsTakeABoundedNumberOfThreads(t *testing.T) {
	b := newBench(t, 0)
	const calls = 1000
	block := blockCalls(t, "cuMemAlloc_v2")
	before := threads(t)
	done := make(chan error, calls)
	for range calls {
		go func() {
			p, err := b.l.Allocate(b.c, 64)
			if err == nil {
				err = b.l.Free(b.c, p)
			}
			done <- err
		}()
	}
	until(t, "all calls are inside or wait", func() bool {
		return len(b.l.makes.places) == callsMax && b.l.makes.waiting.Load() == calls-callsMax
	})
	if grown := threads(t) - before; grown > callsMax+8 {
		t.Errorf("%d blocked calls took %d threads more", calls, grown)
	}
	// Hot calls, ends and waits pass meanwhile.
	b.submit(b.there(8))
	b.await()
	check(t, soon(t, "a wait", func() error { return b.l.Synchronize(b.c, b.stream) }))
	check(t, soon(t, "a look", func() error { _, err := b.l.Attributes(uint64(b.device)); return err }))
	check(t, soon(t, "zeroing", func() error { return b.l.Zero(b.c, b.stream, b.device, 1) }))
	block.release(t)
	for range calls {
		check(t, <-done)
	}
	check(t, block.in.Close())
}

func TestMoreThanMayWaitIsRefusedUnlessItEndsOrAwaits(t *testing.T) {
	b := newBench(t, 0)
	var events []cuda.EventHandle
	for range 5 {
		events = append(events, must(b.l.CreateEvent(b.c))(t))
	}
	block := blockCalls(t, "cuMemAlloc_v2")
	done := make(chan error, callsMax+waitingMax)
	for range callsMax + waitingMax {
		go func() {
			p, err := b.l.Allocate(b.c, 64)
			if err == nil {
				err = b.l.Free(b.c, p)
			}
			done <- err
		}()
	}
	until(t, "the gate is full", func() bool { return b.l.makes.waiting.Load() == waitingMax })
	err := soon(t, "the refusal", func() error { _, err := b.l.CreateEvent(b.c); return err })
	var busy *Busy
	if !errors.Is(err, ErrBusy) || !errors.Is(err, syscall.EAGAIN) || !errors.As(err, &busy) || busy.Call != "cuEventCreate" {
		t.Errorf("one more: %v", err)
	} else {
		contains(t, err, "was not begun", fmt.Sprint(callsMax), fmt.Sprint(waitingMax))
	}
	for _, e := range events { // ends do not wait for makes
		check(t, soon(t, "an end", func() error { return b.l.DestroyEvent(b.c, e) }))
	}
	block.release(t)
	for range callsMax + waitingMax {
		check(t, <-done)
	}
	check(t, block.in.Close())
	block = blockCalls(t, "cuStreamSynchronize")
	waits := callsMax + waitingMax + 10
	for range waits {
		go func() { done <- b.l.Synchronize(b.c, b.stream) }()
	}
	until(t, "more wait than a make may", func() bool { return b.l.waits.waiting.Load() == int64(waits-callsMax) })
	check(t, soon(t, "a make beside them", func() error {
		e, err := b.l.CreateEvent(b.c)
		return errors.Join(err, b.l.DestroyEvent(b.c, e))
	}))
	block.release(t)
	for range waits {
		check(t, <-done)
	}
	check(t, block.in.Close())
}
