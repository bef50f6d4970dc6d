//go:build cgo

package libcuda

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"

	"github.com/orbitte/orbitte/cuda"
)

// proves C-3
func TestCopiesRunInOrderAndTheEventProvesThem(t *testing.T) {
	b := newBench(t, 0)
	for i := range b.bytes {
		b.bytes[i] = byte(i * 7)
	}
	set(&page.hold, 1)
	half := cuda.Pointer(benchBytes / 2)
	b.submit(b.there(benchBytes), cuda.Copy{To: b.device + half, From: b.device, Bytes: uint64(half)}, b.back(benchBytes))
	if b.complete() {
		t.Error("complete before anything ran")
	}
	set(&page.hold, 0)
	b.await()
	for i := range b.bytes {
		if want := byte((i % int(half)) * 7); b.bytes[i] != want {
			t.Fatalf("byte %d is %d, want %d", i, b.bytes[i], want)
		}
	}
	check(t, b.l.Zero(b.c, b.stream, b.device+1, 2))
	b.submit(b.back(4))
	b.await()
	if b.bytes[0] != 0 || b.bytes[1] != 0 || b.bytes[2] != 0 || b.bytes[3] != 21 {
		t.Errorf("after zeroing two bytes: % x", b.bytes[:4])
	}
}

func TestSubmitWithNothingToCopyStillRecords(t *testing.T) {
	b := newBench(t, 0)
	b.submit()
	b.await()
	signal := b.signal
	b.signal = 0
	b.submit() // and without a signal nobody is told
	until(t, "the event", b.complete)
	check(t, b.l.Synchronize(b.c, b.stream))
	b.signal = signal
	if b.readable() {
		t.Error("a submission without a signal rang one")
	}
}

func TestSubmitSaysHowFarItCame(t *testing.T) {
	b := newBench(t, 0)
	for _, row := range []struct {
		call   string
		nth    uint32
		result cuda.Result
		want   cuda.Submitted
		effect cuda.Effect
	}{
		{"cuMemcpyAsync", 1, cuda.InvalidValue, cuda.Submitted{}, cuda.None},
		{"cuMemcpyAsync", 3, cuda.InvalidHandle, cuda.Submitted{Copies: 2}, cuda.None},
		{"cuMemcpyAsync", 2, cuda.OutOfMemory, cuda.Submitted{Copies: 1, Unknown: true}, cuda.Maybe},
		{"cuMemcpyAsync", 2, cuda.IllegalAddress, cuda.Submitted{Copies: 1, Unknown: true}, cuda.Maybe},
		{"cuEventRecord", 1, cuda.InvalidHandle, cuda.Submitted{Copies: 3}, cuda.None},
		{"cuEventRecord", 1, cuda.LaunchFailed, cuda.Submitted{Copies: 3, Unknown: true}, cuda.Maybe},
		{"cuCtxPushCurrent_v2", 1, cuda.InvalidContext, cuda.Submitted{}, cuda.None},
		{"cuCtxGetCurrent", 1, cuda.Unknown, cuda.Submitted{}, cuda.None},
	} {
		page.fail(t, row.call, row.nth, uint32(row.result), false)
		how, err := b.l.Submit(b.c, b.stream, []cuda.Copy{b.there(8), b.there(8), b.there(8)}, b.event, b.signal)
		var e *cuda.CallError
		if !errors.As(err, &e) || e.Call != row.call || e.Result != row.result || e.Effect != row.effect || e.Name == "" {
			t.Errorf("%s %d: %v", row.call, row.result, err)
		}
		if how != row.want {
			t.Errorf("%s %d: %+v, want %+v", row.call, row.result, how, row.want)
		}
		check(t, b.l.Synchronize(b.c, b.stream))
	}
	if b.l.SignalDescriptor(b.signal) < 0 || b.readable() {
		t.Error("a failed submission rang the signal")
	}
}

func TestACopyThatLeavesItsAllocationIsRefused(t *testing.T) {
	b := newBench(t, 0)
	how, err := b.l.Submit(b.c, b.stream, []cuda.Copy{b.there(8), b.there(benchBytes + 1)}, b.event, b.signal)
	if !errors.Is(err, &cuda.CallError{Result: cuda.InvalidValue}) || how != (cuda.Submitted{Copies: 1}) {
		t.Errorf("%+v, %v", how, err)
	}
}

func TestAContextThatFailsAnswersEverythingWithItsError(t *testing.T) {
	b := newBench(t, 0)
	b.submit(b.there(8))
	b.await()
	set(&page.sticky, uint32(cuda.IllegalAddress))
	refused := func(what string, err error, effect cuda.Effect) {
		t.Helper()
		var e *cuda.CallError
		if !errors.As(err, &e) || e.Result != cuda.IllegalAddress || e.Effect != effect {
			t.Errorf("%s: %v", what, err)
		}
	}
	how, err := b.l.Submit(b.c, b.stream, []cuda.Copy{b.there(8)}, b.event, b.signal)
	refused("submit", err, cuda.Maybe)
	if how != (cuda.Submitted{Unknown: true}) {
		t.Errorf("%+v", how)
	}
	_, err = b.l.Query(b.c, b.event)
	refused("query", err, cuda.None)
	refused("synchronize", b.l.Synchronize(b.c, b.stream), cuda.None)
	refused("zero", b.l.Zero(b.c, b.stream, b.device, 1), cuda.Maybe)
	_, err = b.l.Allocate(b.c, 4096)
	refused("allocate", err, cuda.Maybe)
	refused("free", b.l.Free(b.c, b.device), cuda.Maybe)
	set(&page.sticky, 0)
}

// sink keeps a read from being optimised away.
var sink byte

// The bytes behind a device pointer are nobody's but the device's: touching them in this process ends it.
func TestDeviceMemoryCannotBeTouchedByTheHost(t *testing.T) {
	b := newBench(t, 0)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() == nil {
			t.Error("the stand-in's device memory can be read by the host")
		}
	}()
	sink = hostBytes(uint64(b.device), 1)[0]
}

// proves L-6
func TestHotCallsAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("race: the detector allocates")
	}
	b := newBench(t, 0)
	list := []cuda.Copy{b.there(64), b.back(64)}
	n := testing.AllocsPerRun(200, func() {
		how, err := b.l.Submit(b.c, b.stream, list, b.event, b.signal)
		if err != nil || !how.Signaled {
			t.Error(how, err)
		}
		for {
			done, err := b.l.Query(b.c, b.event)
			if err != nil {
				t.Error(err)
			}
			if done {
				break
			}
		}
		if _, err := b.l.TakeSignal(b.signal); err != nil {
			t.Error(err)
		}
		if info, err := b.l.Attributes(uint64(b.device)); err != nil || info.Bytes != benchBytes {
			t.Error(info, err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations for a submission, its queries, its signal and a look at a pointer", n)
	}
}

// churn is one goroutine's life: objects on a GPU, copies there and back, everything checked.
func churn(l *library, seed uint64, ordinal int) error {
	chance := rand.New(rand.NewPCG(seed, uint64(ordinal)))
	if chance.IntN(4) == 0 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	c, err := l.AcquirePrimary(ordinal)
	if err != nil {
		return err
	}
	stream, err1 := l.CreateStream(c)
	event, err2 := l.CreateEvent(c)
	signal, err3 := l.OpenSignal()
	host, err4 := l.AllocateHost(c, 1<<14)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	bytes := hostBytes(host, 1<<14)
	for range 20 {
		device, err := l.Allocate(c, 1<<13)
		if err != nil {
			return err
		}
		n := 1 + chance.IntN(1<<13)
		for i := range n {
			bytes[i] = byte(chance.Uint32())
		}
		there := []cuda.Copy{{To: device, From: cuda.Pointer(host), Bytes: uint64(n)}}
		back := []cuda.Copy{{To: cuda.Pointer(host) + 1<<13, From: device, Bytes: uint64(n)}}
		for _, list := range [][]cuda.Copy{there, back} {
			if _, err := l.Submit(c, stream, list, event, signal); err != nil {
				return err
			}
			runtime.Gosched()
		}
		for done := false; !done; {
			if done, err = l.Query(c, event); err != nil {
				return err
			}
			runtime.Gosched()
		}
		if string(bytes[:n]) != string(bytes[1<<13:1<<13+n]) {
			return fmt.Errorf("%d bytes came back changed", n)
		}
		if info, err := l.Attributes(uint64(device) + uint64(n) - 1); err != nil || info.Context != c || info.Ordinal != ordinal || info.Start != device {
			return fmt.Errorf("%+v, %w", info, err)
		}
		if err := l.Free(c, device); err != nil {
			return err
		}
	}
	err = l.Synchronize(c, stream)
	l.CloseSignal(signal)
	return errors.Join(err, l.DestroyEvent(c, event), l.DestroyStream(c, stream), l.FreeHost(c, host), l.ReleasePrimary(ordinal))
}

// Goroutines move between threads and threads between contexts; the stand-in looks at the thread at every call.
func TestContextsNeverMeetAnotherGoroutine(t *testing.T) {
	seed := uint64(1)
	if text := os.Getenv("SEED"); text != "" {
		_, _ = fmt.Sscan(text, &seed)
	}
	t.Logf("SEED=%d go test -run '^TestContextsNeverMeetAnotherGoroutine$' ./cuda/libcuda", seed)
	l := loadFake(t)
	set(&page.delay, 50)
	set(&page.callbackDelay, 50)
	before, objects := atomic.LoadUint64(&page.pushes), page.counts()
	const goroutines = 48
	done := make(chan error, goroutines)
	for i := range goroutines {
		go func() { done <- churn(l, seed+uint64(i), i%2) }()
	}
	for range goroutines {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if atomic.LoadUint64(&page.pushes)-before < goroutines*20*6 {
		t.Errorf("only %d pushes", page.pushes-before)
	}
	if got := page.counts(); got != objects {
		t.Errorf("contexts, allocations, pinned blocks, streams, events: %v before, %v after", objects, got)
	}
}
