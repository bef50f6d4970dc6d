package uring

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
)

// lostWorld is what a ring has, and has not, when the system stops to let it be entered.
type lostWorld struct {
	*rig
	listener, a, b, c, d reactor.Descriptor
	buffers              [2][]byte
	open                 map[reactor.Ticket]bool
}

func newLostWorld(t *testing.T, o Options) *lostWorld {
	w := &lostWorld{rig: newRig(t, o), open: map[reactor.Ticket]bool{}}
	w.a, w.b = w.pair()
	w.c, w.d = w.pair()
	var err error
	if w.listener, _, err = w.Listen(netip.MustParseAddrPort("127.0.0.1:0"), reactor.SocketOptions{}); err != nil {
		t.Fatal(err)
	}
	w.buffers = [2][]byte{bytes.Repeat([]byte{0xa5}, 100), bytes.Repeat([]byte{0xa5}, 100)}
	w.note(w.start(reactor.Operation{Kind: reactor.Accept, Descriptor: w.listener}))
	w.note(w.start(reactor.Operation{Kind: reactor.Receive, Descriptor: w.a, Buffers: w.buffers}))
	w.note(w.start(reactor.Operation{Kind: reactor.Watch, Descriptor: w.c}))
	for range passesBeforeRing + 4 {
		w.none()
	}
	return w
}

func (w *lostWorld) note(t reactor.Ticket) { w.open[t] = true }

// ends takes completions until none is open, each with the error that names what happened.
func (w *lostWorld) ends(errno syscall.Errno) {
	w.Helper()
	for len(w.open) > 0 {
		c := w.next()
		var lost *LostError
		if !w.open[c.Ticket] || !errors.As(c.Err, &lost) || !errors.Is(c.Err, errno) || !strings.Contains(c.Err.Error(), "permit io_uring_enter") {
			w.Fatalf("%+v, open are %v", c, w.open)
		}
		delete(w.open, c.Ticket)
	}
}

// A filter that forbids the ring's use, and comes when lanes have been using theirs, ends operations and not the process: each
// with an error that names the call and what helps, those that the ring has when the system has let go of it, so that
// nothing touches their buffers any more. Later ones fail at once, Wake and Shutdown do what they did.
//
// field case F-61
func TestAFilterThatComesLaterEndsOperationsAndNotTheProcess(t *testing.T) {
	value := os.Getenv(childErrno)
	if value == "" {
		if err := Probe(); err != nil {
			t.Skip("no-io-uring:", err)
		}
		for _, errno := range []syscall.Errno{unix.EPERM, unix.EACCES, unix.ENOSYS} {
			for set := range len(flagSets(false)) {
				inChild(t, "TestAFilterThatComesLaterEndsOperationsAndNotTheProcess", fmt.Sprintf("%d %d false", errno, set))
			}
			for set := range len(flagSets(true)) {
				inChild(t, "TestAFilterThatComesLaterEndsOperationsAndNotTheProcess", fmt.Sprintf("%d %d true", errno, set))
			}
		}
		return
	}
	var errno syscall.Errno
	var set int
	var o Options
	if _, err := fmt.Sscan(value, (*uintptr)(&errno), &set, &o.AnyThread); err != nil {
		t.Fatal(err)
	}
	o.flags = flagSets(o.AnyThread)[set:]
	holdings(t) // the runtime opens what it keeps
	descriptors, _ := holdings(t)
	t.Cleanup(func() {
		if d, _ := holdings(t); d != descriptors {
			t.Errorf("descriptors %d → %d", descriptors, d)
		}
	})
	w := newLostWorld(t, o)
	forbid(t, unix.SYS_IO_URING_ENTER, 0, uint32(errno))
	w.enter()
	for range 2 { // first with a ring that is to go, then without
		w.note(w.send(w.b, make([]byte, 1)))
		w.note(w.start(reactor.Operation{Kind: reactor.Watch, Descriptor: w.d}))
		w.ends(errno)
	}
	w.untouched()
	gone := w.receive(w.b, make([]byte, 8))
	w.Cancel(gone)
	w.want(gone, 0, unix.ECANCELED)
	for range 3 {
		done := make(chan struct{})
		go func() { w.Wake(); close(done) }()
		var out [1]reactor.Completion
		if n := w.Poll(out[:], reactor.Forever); n != 0 {
			t.Errorf("%+v", out[0])
		}
		<-done
	}
	begin := w.Now()
	var out [1]reactor.Completion
	if n := w.Poll(out[:], begin.After(3*time.Millisecond)); n != 0 || w.Now() < begin.After(3*time.Millisecond) {
		t.Errorf("%d completions after %v", n, time.Duration(w.Now()-begin))
	}
	w.end(w.listener, w.a, w.b, w.c, w.d)
}

// untouched sends to where a receive had been left to the ring: nothing of it arrives in that buffer.
func (w *lostWorld) untouched() {
	if _, err := unix.Write(int(w.b), []byte("late")); err != nil {
		w.Fatal(err)
	}
	for range 100 {
		runtime.Gosched()
	}
	for _, b := range w.buffers {
		if !bytes.Equal(b, bytes.Repeat([]byte{0xa5}, len(b))) {
			w.Errorf("a buffer was touched after the end of its operation: %x", b)
		}
	}
}
