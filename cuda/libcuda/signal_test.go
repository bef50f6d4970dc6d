//go:build cgo

package libcuda

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/cuda"
)

// readable says whether a descriptor has something.
func readable(descriptor int) bool {
	p := []unix.PollFd{{Fd: int32(descriptor), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n == 1 && p[0].Revents&unix.POLLIN != 0
}

// openDescriptor says whether this process has it, as an eventfd.
func openDescriptor(descriptor int) bool {
	what, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", descriptor))
	return err == nil && what == "anon_inode:[eventfd]"
}

// proves C-5
func TestASignalTellsOfCallbacksOnceAndIsNoProof(t *testing.T) {
	b := newBench(t, 0)
	descriptor := b.l.SignalDescriptor(b.signal)
	flags := must(unix.FcntlInt(uintptr(descriptor), unix.F_GETFL, 0))(t)
	closes := must(unix.FcntlInt(uintptr(descriptor), unix.F_GETFD, 0))(t)
	if flags&unix.O_NONBLOCK == 0 || closes&unix.FD_CLOEXEC == 0 {
		t.Errorf("the descriptor blocks or outlives exec: flags %#x, %#x", flags, closes)
	}
	if n, err := b.l.TakeSignal(b.signal); n != 0 || err != nil {
		t.Errorf("a fresh signal: %d, %v", n, err)
	}
	set(&page.hold, 1)
	for range 3 {
		b.submit(b.there(8))
	}
	if b.complete() || b.readable() {
		t.Error("complete, or signalled, before anything ran")
	}
	set(&page.hold, 0)
	var seen uint64
	until(t, "three callbacks", func() bool { seen += must(b.l.TakeSignal(b.signal))(t); return seen >= 3 })
	if seen != 3 || b.readable() || !b.complete() {
		t.Errorf("%d callbacks, readable %v, complete %v", seen, b.readable(), b.complete())
	}
}

// A callback that comes after CloseSignal finds its own descriptor still open, and closes it.
func TestALateCallbackWritesToNobodyElsesDescriptor(t *testing.T) {
	b := newBench(t, 0)
	set(&page.hold, 1)
	b.submit(b.there(8))
	b.submit(b.there(8))
	descriptor := b.l.SignalDescriptor(b.signal)
	if owed := b.l.CloseSignal(b.signal); owed != 2 {
		t.Errorf("%d callbacks owed, want 2", owed)
	}
	b.signal = 0
	if !openDescriptor(descriptor) {
		t.Fatal("the descriptor was closed under two callbacks")
	}
	others := make([]int, 50) // nobody gets the number meanwhile
	for i := range others {
		others[i] = must(unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC))(t)
		if others[i] == descriptor {
			t.Fatal("the number was given to another")
		}
	}
	set(&page.hold, 0)
	until(t, "the last callback closes it", func() bool { return !openDescriptor(descriptor) })
	for _, o := range others {
		if readable(o) {
			t.Error("a late callback wrote to another's descriptor")
		}
		check(t, unix.Close(o))
	}
	check(t, b.l.Synchronize(b.c, b.stream))
}

func TestASignalThatIsOwedNothingClosesAtOnce(t *testing.T) {
	b := newBench(t, 0)
	b.submit(b.there(8))
	b.await()
	check(t, b.l.Synchronize(b.c, b.stream))
	descriptor := b.l.SignalDescriptor(b.signal)
	if owed := b.l.CloseSignal(b.signal); owed != 0 || openDescriptor(descriptor) {
		t.Errorf("owed %d, open %v", owed, openDescriptor(descriptor))
	}
	b.signal = 0
}

func TestALostCallbackKeepsTheDescriptorForGood(t *testing.T) {
	b := newBench(t, 0)
	set(&page.lose, 1)
	b.submit(b.there(8))
	until(t, "the event", b.complete)
	check(t, b.l.Synchronize(b.c, b.stream))
	if b.readable() {
		t.Error("a lost callback signalled")
	}
	descriptor := b.l.SignalDescriptor(b.signal)
	if owed := b.l.CloseSignal(b.signal); owed != 1 || !openDescriptor(descriptor) {
		t.Errorf("owed %d, open %v", owed, openDescriptor(descriptor))
	}
	b.signal = 0
	check(t, unix.Close(descriptor)) // the test's end only: nothing will ever ring it
}

// The share of a callback that was refused is given back; one of which nobody knows stays.
func TestARefusedCallbackIsOwedOnlyWhenItMayCome(t *testing.T) {
	b := newBench(t, 0)
	for _, row := range []struct {
		result cuda.Result
		after  bool
		effect cuda.Effect
		owed   int
	}{
		{cuda.NotSupported, false, cuda.None, 0},
		{cuda.LaunchFailed, true, cuda.Maybe, 1},
	} {
		signal := must(b.l.OpenSignal())(t)
		descriptor := b.l.SignalDescriptor(signal)
		set(&page.hold, 1)
		page.fail(t, "cuLaunchHostFunc", 1, uint32(row.result), row.after)
		how, err := b.l.Submit(b.c, b.stream, []cuda.Copy{b.there(8)}, b.event, signal)
		var e *cuda.CallError
		if !errors.As(err, &e) || e.Call != "cuLaunchHostFunc" || e.Result != row.result || e.Effect != row.effect {
			t.Errorf("result %d: %v", row.result, err)
		}
		if want := (cuda.Submitted{Copies: 1, Recorded: true}); how != want {
			t.Errorf("result %d: %+v", row.result, how)
		}
		if owed := b.l.CloseSignal(signal); owed != row.owed || openDescriptor(descriptor) != (row.owed > 0) {
			t.Errorf("result %d: owed %d, open %v", row.result, owed, openDescriptor(descriptor))
		}
		set(&page.hold, 0)
		until(t, "the descriptor closes", func() bool { return !openDescriptor(descriptor) })
	}
}

func TestASignalSaysThatDescriptorsAreUsedUp(t *testing.T) {
	l := loadFake(t)
	var limit unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	low := limit
	low.Cur = 0
	check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	_, err := l.OpenSignal()
	check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	var call *cuda.CallError
	if !errors.Is(err, ErrSignal) || !errors.Is(err, syscall.EMFILE) || !errors.As(err, &call) || call.Effect != cuda.None {
		t.Fatalf("got %v", err)
	}
	contains(t, err, "eventfd", "ulimit -n")
}

func TestManySubmitToOneStreamAtTheSameTime(t *testing.T) {
	b := newBench(t, 0)
	const threads, each = 8, 50
	before := atomic.LoadUint64(&page.copies)
	done := make(chan error, threads)
	for range threads {
		go func() {
			done <- func() error {
				event, err := b.l.CreateEvent(b.c)
				if err != nil {
					return err
				}
				for range each {
					if _, err := b.l.Submit(b.c, b.stream, []cuda.Copy{b.there(8)}, event, b.signal); err != nil {
						return err
					}
				}
				return b.l.DestroyEvent(b.c, event)
			}()
		}()
	}
	for range threads {
		check(t, <-done)
	}
	var rung uint64
	until(t, "every callback", func() bool { rung += must(b.l.TakeSignal(b.signal))(t); return rung >= threads*each })
	if got := atomic.LoadUint64(&page.copies) - before; got != threads*each || rung != threads*each {
		t.Errorf("%d copies, %d callbacks", got, rung)
	}
}
