//go:build cgo

package libibverbs

import (
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/orbitte/orbitte/verbs"
)

// fakes are the stand-in libraries built so far, by the flags they were built with.
var fakes = struct {
	sync.Mutex
	folder string
	paths  map[string]string
}{paths: map[string]string{}}

func TestMain(m *testing.M) {
	childMain()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if fakes.folder != "" {
			_ = os.RemoveAll(fakes.folder)
		}
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

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// until waits for a condition that another goroutine brings about.
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

func receives(n int) []verbs.ReceiveWork {
	work := make([]verbs.ReceiveWork, n)
	for i := range work {
		work[i] = verbs.ReceiveWork{ID: uint64(i) + 1, Length: 1}
	}
	return work
}

func ids(c []verbs.Completion) (all []uint64) {
	for i := range c {
		all = append(all, c[i].ID)
	}
	return all
}

func count(n int) (all []uint64) {
	for i := range n {
		all = append(all, uint64(i)+1)
	}
	return all
}

// A bench is one device with everything on it.
type bench struct {
	l        *library
	device   verbs.DeviceHandle
	domain   verbs.DomainHandle
	channel  verbs.ChannelHandle
	sends    verbs.QueueHandle
	receives verbs.QueueHandle
	pair     verbs.PairHandle
}

// takeAll polls until both queues are empty.
func (b *bench) takeAll(t testing.TB) (sends, receives []verbs.Completion) {
	t.Helper()
	out := make([]verbs.Completion, 50)
	for {
		sent, received, err := b.l.Poll(b.sends, b.receives, out)
		check(t, err)
		sends = append(sends, out[:sent]...)
		receives = append(receives, out[sent:sent+received]...)
		if sent+received < len(out) {
			return sends, receives
		}
	}
}

func contains(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
}
