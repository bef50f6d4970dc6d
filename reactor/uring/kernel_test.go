package uring

import (
	"bytes"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/socket"
)

// A frame costs its sender one call, and its receiver one: the enter that submits and waits also receives.
func TestFrameCostsOneCallToSendAndOneToReceive(t *testing.T) {
	for _, size := range []int{64, 4096} {
		t.Run(strconv.Itoa(size)+" bytes asked", func(t *testing.T) { frameCosts(t, size) })
	}
}

func frameCosts(t *testing.T, size int) {
	r := newRig(t, Options{})
	client, server := r.pair()
	buffer := make([]byte, size)
	frame := make([]byte, 64)
	exchange := func() {
		got := r.receive(server, buffer)
		sent := r.send(client, frame)
		r.want(sent, 64, nil)
		r.want(got, 64, nil)
	}
	for range 3 {
		exchange()
	}
	before := r.Counters()
	const frames = 100
	for range frames {
		exchange()
	}
	after := r.Counters()
	if got := after.Crossings - before.Crossings; got != 2*frames {
		t.Errorf("%d frames cost %d crossings, want %d", frames, got, 2*frames)
	}
	r.end(client, server)
}

// Looks at an idle ring make no system call.
func TestSpinningOnAnIdleRingCostsNoCall(t *testing.T) {
	r := newRig(t, Options{})
	client, server := r.pair()
	got := r.receive(server, make([]byte, 8))
	r.none()
	before := r.Counters().Crossings
	for range 1000 {
		r.none()
	}
	if n := r.Counters().Crossings - before; n != 0 {
		t.Errorf("%d system calls", n)
	}
	r.want(r.send(client, []byte("x")), 1, nil)
	r.want(got, 1, nil)
	r.end(client, server)
}

// Many small operations meet in one call.
func TestQueuedSmallSendsGoInOneCall(t *testing.T) {
	r := newRig(t, Options{})
	const streams = 16
	var clients, servers [streams]reactor.Descriptor
	for i := range streams {
		clients[i], servers[i] = r.pair()
	}
	before := r.Counters().Crossings
	for i := range streams {
		r.send(clients[i], []byte("x"))
	}
	out := make([]reactor.Completion, streams)
	for done := 0; done < streams; {
		done += r.Poll(out, r.Now().After(time.Second))
	}
	if n := r.Counters().Crossings - before; n != 1 {
		t.Errorf("%d sends cost %d crossings", streams, n)
	}
	r.end(clients[:]...)
	r.end(servers[:]...)
}

// proves L-6
func TestExchangeAllocatesNothing(t *testing.T) {
	r := newRig(t, Options{})
	client, server := r.pair()
	buffer := make([]byte, 4096)
	header, payload := make([]byte, 52), make([]byte, 1000)
	var out [4]reactor.Completion
	n := testing.AllocsPerRun(200, func() {
		r.start(reactor.Operation{Kind: reactor.Receive, Descriptor: server, Buffers: [2][]byte{buffer[:52], buffer[52:]}})
		w := r.start(reactor.Operation{Kind: reactor.Watch, Descriptor: client})
		for range passesBeforeRing + 2 {
			r.Poll(out[:], 0) // both are in the ring then
		}
		r.Cancel(w)
		r.start(reactor.Operation{Kind: reactor.Send, Descriptor: client, Buffers: [2][]byte{header, payload}})
		for done := 0; done < 3; {
			done += r.Poll(out[:], r.Now().After(time.Second))
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per exchange", n)
	}
	r.end(client, server)
}

// The bytes of two buffers land where they belong when the ring itself receives and sends.
func TestRingFillsTwoBuffersAndSendsTwo(t *testing.T) {
	r := newRig(t, Options{})
	client, server := r.pair()
	head, body := make([]byte, 5), make([]byte, 100)
	got := r.start(reactor.Operation{Kind: reactor.Receive, Descriptor: server, Buffers: [2][]byte{head, body}})
	r.none()
	r.endpoints.At(client).Blocked[1] = true // so that the send goes through the ring
	sent := r.start(reactor.Operation{Kind: reactor.Send, Descriptor: client, Buffers: [2][]byte{[]byte("header"), []byte("payload")}})
	seen := map[reactor.Ticket]reactor.Completion{}
	for range 2 {
		c := r.next()
		seen[c.Ticket] = c
	}
	if seen[sent].N != 13 || seen[got].N != 13 {
		t.Fatalf("%+v", seen)
	}
	if text := string(head) + string(body[:8]); text != "headerpayload" {
		t.Errorf("got %q", text)
	}
	r.end(client, server)
}

// field case F-14: a buffer whose Receive was cancelled is never written after the completion.
func TestCancelledBufferStaysUntouched(t *testing.T) {
	r := newRig(t, Options{})
	client, server := r.pair()
	buffer := make([]byte, 64)
	poison := bytes.Repeat([]byte{0xa5}, len(buffer))
	for round := range 50 {
		copy(buffer, poison)
		got := r.receive(server, buffer)
		r.none()
		if round%2 == 0 {
			r.want(r.send(client, []byte("late")), 4, nil)
		}
		r.Cancel(got)
		c := r.next()
		if c.Ticket != got || c.Err != nil && c.Err != unix.ECANCELED {
			t.Fatalf("%+v", c)
		}
		copy(buffer, poison)
		if round%2 != 0 {
			r.want(r.send(client, []byte("late")), 4, nil)
		}
		for range 5 {
			r.none()
		}
		if !bytes.Equal(buffer, poison) {
			t.Fatalf("round %d: the buffer changed after the end of its operation", round)
		}
		if c.Err != nil { // the bytes are still to come
			r.want(r.receive(server, make([]byte, 64)), 4, nil)
		}
	}
	r.end(client, server)
}

// holdings counts the open descriptors, and the KiB of mappings that are kept from forked children ("dc" in
// proc_pid_smaps(5)), as all of this package are and hardly any other.
func holdings(t *testing.T) (descriptors, kib int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for line := range strings.Lines(string(smaps)) {
		switch words := strings.Fields(line); words[0] {
		case "Size:":
			size, _ = strconv.Atoi(words[1])
		case "VmFlags:":
			if slices.Contains(words, "dc") {
				kib += size
			}
		}
	}
	return len(entries), kib
}

func TestOpenAndShutdownLeaveNothing(t *testing.T) {
	round := func(any bool) {
		k, err := New(Options{AnyThread: any})
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Bind(); err != nil {
			t.Fatal(err)
		}
		var out [1]reactor.Completion
		k.Poll(out[:], k.Now().After(time.Microsecond)) // the ring waits for the eventfd now
		if _, err := k.blocks.at(300); err != nil {
			t.Fatal(err)
		}
		if err := k.Shutdown(); err != nil {
			t.Fatal(err)
		}
		if err := k.Shutdown(); err != nil {
			t.Fatal("second shutdown:", err)
		}
		k.Wake()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	descriptors, kib := holdings(t)
	for i := range 100 {
		round(i%2 == 0)
	}
	if d, m := holdings(t); d != descriptors || m != kib {
		t.Errorf("descriptors %d → %d, mappings %d → %d KiB", descriptors, d, kib, m)
	}
	k, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, m := holdings(t); m == kib {
		t.Error("an open kernel's mappings are not seen, so nothing was proven")
	}
	if err := k.Shutdown(); err != nil {
		t.Fatal(err)
	}
}

// The end of a thread makes the system give back what that thread submitted; the operation goes on.
func TestOperationSurvivesTheThreadThatSubmittedIt(t *testing.T) {
	r := newRig(t, Options{AnyThread: true})
	client, server := r.pair()
	got := r.receive(server, make([]byte, 8))
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		var out [1]reactor.Completion
		if n := r.Poll(out[:], r.Now().After(time.Millisecond)); n != 0 {
			t.Errorf("completed: %+v", out[0])
		}
	}()
	<-done
	var out [1]reactor.Completion
	for end := r.Now().After(50 * time.Millisecond); r.Now() < end; {
		if r.Poll(out[:], r.Now().After(time.Millisecond)) != 0 {
			t.Fatalf("completed: %+v", out[0])
		}
	}
	r.want(r.send(client, []byte("alive")), 5, nil)
	r.want(got, 5, nil)
	r.end(client, server)
}

// field case F-22
func TestWaitEndsAtItsTimeAndNotBefore(t *testing.T) {
	r := newRig(t, Options{})
	var out [1]reactor.Completion
	for _, d := range []time.Duration{-1, 0, time.Millisecond, 50 * time.Millisecond} {
		until := r.Now() + reactor.Instant(d)
		if n := r.Poll(out[:], until); n != 0 {
			t.Fatal(n)
		}
		if now := r.Now(); now < until {
			t.Errorf("%v: returned %d ns early", d, until-now)
		}
	}
	if w := r.Counters().Waits; w < 2 {
		t.Errorf("%d blocking waits, want at least 2", w)
	}
}

// An older kernel without multishot poll: each wake-up needs a new entry.
func TestWakeWithoutMultishot(t *testing.T) {
	r := newRig(t, Options{})
	r.multishot = false
	var out [1]reactor.Completion
	for range 5 {
		time.AfterFunc(time.Millisecond, r.Wake)
		before := r.Now()
		if n := r.Poll(out[:], r.Now().After(5*time.Second)); n != 0 {
			t.Fatal(n)
		}
		if r.Now() > before.After(4*time.Second) {
			t.Fatal("the wake-up was lost")
		}
	}
	if w := r.Counters().Waits; w > 12 {
		t.Errorf("5 wake-ups cost %d waits", w)
	}
}

func TestRefusedOperationsCompleteWithTheReason(t *testing.T) {
	r := newRig(t, Options{})
	client, server := r.pair()
	first := r.receive(server, make([]byte, 8))
	r.want(r.receive(server, make([]byte, 8)), 0, unix.EBUSY)
	r.want(r.receive(client, nil), 0, unix.EINVAL)
	r.want(r.send(client, nil), 0, unix.EINVAL)
	r.want(r.start(reactor.Operation{Kind: 99, Descriptor: client}), 0, unix.EINVAL)
	r.want(r.receive(reactor.NoDescriptor, make([]byte, 8)), 0, unix.EBADF)
	r.want(r.receive(1<<30, make([]byte, 8)), 0, unix.EBADF)
	r.want(r.send(client, []byte("x")), 1, nil)
	r.want(first, 1, nil)
	r.end(client, server)
}

// field case F-38: the ring, too, sends to a closed peer without a signal.
func TestRingRaisesNoSignal(t *testing.T) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGPIPE, unix.SIGWINCH)
	defer signal.Stop(signals)
	r := newRig(t, Options{})
	for _, second := range []string{"", "two"} {
		client, server := r.pair()
		if err := unix.Shutdown(int(client), unix.SHUT_WR); err != nil {
			t.Fatal(err)
		}
		r.endpoints.At(client).Blocked[1] = true // so that the send goes through the ring
		r.want(r.start(reactor.Operation{Kind: reactor.Send, Descriptor: client,
			Buffers: [2][]byte{[]byte("one"), []byte(second)}}), 0, unix.EPIPE)
		r.end(client, server)
	}
	if err := unix.Kill(unix.Getpid(), unix.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	if s := <-signals; s != unix.SIGWINCH { // of a higher number: an earlier SIGPIPE would come first
		t.Error("got", s)
	}
}

// A stream that can be served at once, again and again, does not keep the ring from finishing another's Receive.
func TestBusyStreamDoesNotKeepTheRingWaiting(t *testing.T) {
	r := newRig(t, Options{})
	feeder, busy := r.pair()
	talker, quiet := r.pair()
	waiting := r.receive(quiet, make([]byte, 8))
	r.none()
	r.want(r.send(feeder, make([]byte, 4096)), 4096, nil)
	if _, err := unix.Write(int(talker), []byte("hello")); err != nil {
		t.Fatal(err)
	}
	one := make([]byte, 1)
	var out [1]reactor.Completion
	for range 100 {
		r.receive(busy, one)
		if r.Poll(out[:], r.Now().After(time.Second)) == 0 {
			t.Fatal("nothing within 1 s")
		}
		if out[0].Ticket == waiting {
			r.next() // the byte
			r.end(feeder, busy, talker, quiet)
			return
		}
	}
	t.Error("the other Receive did not end in 100 polls")
}

// A Receive that no other is tried beside, and one of payload, is tried for as long as a peer may take to answer or to copy while
// the lane spins,
// others a few times; then the ring has them, and looks cost nothing.
func TestSpinningTriesAFewTimesBeforeItUsesTheRing(t *testing.T) {
	for _, c := range []struct{ bytes, others, least, most int }{
		{8, 0, lonePasses, lonePasses + 2}, {socket.SmallBytes, 0, lonePasses, lonePasses + 2}, {socket.SmallBytes + 1, 0, lonePasses, lonePasses + 2},
		{8, 1, lonePasses, lonePasses + passesBeforeRing + 4}, {socket.SmallBytes, 2, lonePasses, lonePasses + 2*passesBeforeRing + 6},
	} {
		r := newRig(t, Options{})
		client, server := r.pair()
		ends := []reactor.Descriptor{client, server}
		var beside []reactor.Ticket
		var out [1]reactor.Completion
		for range 3 {
			r.Poll(out[:], 0)
		}
		before := r.Counters().Crossings
		got := r.receive(server, make([]byte, c.bytes))
		for range c.others {
			a, b := r.pair()
			ends, beside = append(ends, a, b), append(beside, r.receive(b, make([]byte, 8)))
		}
		for range 1000 {
			r.Poll(out[:], 0)
		}
		if n := int(r.Counters().Crossings - before); n < c.least || n > c.most {
			t.Errorf("%d bytes, %d others: %d system calls in 1000 looks", c.bytes, c.others, n)
		}
		r.want(r.send(client, []byte("x")), 1, nil)
		r.want(got, 1, nil)
		for _, ticket := range beside {
			r.Cancel(ticket)
			r.want(ticket, 0, unix.ECANCELED)
		}
		r.end(ends...)
	}
}
