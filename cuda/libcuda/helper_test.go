//go:build cgo

package libcuda

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/orbitte/orbitte/cuda"
)

func TestMain(m *testing.M) {
	if err := openControl(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(fakes.folder)
		os.Exit(code)
	}))
}

// must ends the test when a call failed that should not.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until waits for a condition that another thread brings about.
func until(t testing.TB, what string, now func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if now() {
			return
		}
		runtime.Gosched()
	}
	t.Fatal("never happened: " + what)
}

func contains(t testing.TB, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
}

// hostBytes is pinned memory as a slice.
func hostBytes(address uint64, n int) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&address))), n)
}

// A bench is one GPU with one of everything.
type bench struct {
	t      testing.TB
	l      *library
	c      cuda.ContextHandle
	stream cuda.StreamHandle
	event  cuda.EventHandle
	signal cuda.SignalHandle
	device cuda.Pointer
	host   uint64
	bytes  []byte // of host
}

const benchBytes = 1 << 16

// newBench opens one on a GPU; it ends with the test.
func newBench(t testing.TB, ordinal int) *bench {
	t.Helper()
	b := &bench{t: t, l: loadFake(t)}
	b.c = must(b.l.AcquirePrimary(ordinal))(t)
	b.stream = must(b.l.CreateStream(b.c))(t)
	b.event = must(b.l.CreateEvent(b.c))(t)
	b.signal = must(b.l.OpenSignal())(t)
	b.device = must(b.l.Allocate(b.c, benchBytes))(t)
	b.host = must(b.l.AllocateHost(b.c, benchBytes))(t)
	b.bytes = hostBytes(b.host, benchBytes)
	t.Cleanup(func() {
		set(&page.hold, 0)
		set(&page.sticky, 0)
		if b.signal != 0 {
			check(t, b.l.Synchronize(b.c, b.stream))
			b.l.CloseSignal(b.signal)
		}
		check(t, b.l.DestroyEvent(b.c, b.event))
		check(t, b.l.DestroyStream(b.c, b.stream))
		check(t, b.l.Free(b.c, b.device))
		check(t, b.l.FreeHost(b.c, b.host))
		check(t, b.l.ReleasePrimary(ordinal))
	})
	return b
}

// there and back are copies of n bytes between the bench's two memories.
func (b *bench) there(n int) cuda.Copy {
	return cuda.Copy{To: b.device, From: cuda.Pointer(b.host), Bytes: uint64(n)}
}

func (b *bench) back(n int) cuda.Copy {
	return cuda.Copy{To: cuda.Pointer(b.host), From: b.device, Bytes: uint64(n)}
}

// submit is a Submit that must succeed in whole.
func (b *bench) submit(list ...cuda.Copy) {
	b.t.Helper()
	how, err := b.l.Submit(b.c, b.stream, list, b.event, b.signal)
	want := cuda.Submitted{Copies: len(list), Recorded: true, Signaled: b.signal != 0}
	if err != nil || how != want {
		b.t.Fatalf("submitted %+v, %v", how, err)
	}
}

func (b *bench) complete() bool {
	b.t.Helper()
	return must(b.l.Query(b.c, b.event))(b.t)
}

func (b *bench) readable() bool { return readable(b.l.SignalDescriptor(b.signal)) }

// await takes the signal until the event is complete.
func (b *bench) await() {
	b.t.Helper()
	until(b.t, "the signal and then the event", func() bool {
		return must(b.l.TakeSignal(b.signal))(b.t) > 0 && b.complete()
	})
}
