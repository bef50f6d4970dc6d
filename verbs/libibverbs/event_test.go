//go:build cgo && !vm

package libibverbs

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/verbs"
)

// waitsNever checks that reading a descriptor returns at once; the test would hang otherwise.
func waitsNever(t *testing.T, descriptor int) {
	t.Helper()
	flags, err := unix.FcntlInt(uintptr(descriptor), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_NONBLOCK == 0 {
		t.Fatalf("descriptor %d has flags %#x (%v): it blocks", descriptor, flags, err)
	}
}

// readable says whether a descriptor has something to read now.
func readable(t *testing.T, descriptor int) bool {
	t.Helper()
	p := []unix.PollFd{{Fd: int32(descriptor), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	check(t, err)
	return n == 1
}

func TestCompletionEventsAreTakenAndAcknowledgedWithoutBlocking(t *testing.T) {
	b := newBench(t)
	waitsNever(t, b.l.ChannelDescriptor(b.channel))
	if q, ok, err := b.l.NextEvent(b.channel); q != 0 || ok || err != nil {
		t.Fatal("nothing happened yet:", q, ok, err)
	}
	descriptor := b.l.ChannelDescriptor(b.channel)
	for _, q := range []verbs.QueueHandle{b.sends, b.receives} {
		if err := b.l.Arm(q); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.l.PostReceive(b.pair, receives(3)); err != nil {
		t.Fatal(err)
	}
	if !readable(t, descriptor) {
		t.Error("the channel's descriptor does not show the event")
	}
	if q, ok, err := b.l.NextEvent(b.channel); q != b.receives || !ok || err != nil {
		t.Error("receives:", q, ok, err)
	}
	if _, err := b.l.PostSend(b.pair, writes(3)); err != nil {
		t.Fatal(err)
	}
	if q, ok, err := b.l.NextEvent(b.channel); q != b.sends || !ok || err != nil {
		t.Error("sends:", q, ok, err)
	}
	if _, ok, err := b.l.NextEvent(b.channel); ok || err != nil || readable(t, descriptor) {
		t.Error("three completions on one arm gave more than one event:", ok, err)
	}
	// The end of the test destroys both queues; the stand-in refuses that while an event is unacknowledged.
}

func TestAsynchronousEventsNameTheirObject(t *testing.T) {
	b := newBench(t)
	descriptor := b.l.AsyncDescriptor(b.device)
	waitsNever(t, descriptor)
	for kind := verbs.AsyncQueueError; kind <= verbs.AsyncGIDChange+1; kind++ {
		want := verbs.AsyncEvent{Kind: kind}
		switch kind {
		case verbs.AsyncQueueError:
			want.Queue = b.sends
		case verbs.AsyncPairFatal, verbs.AsyncPairRequestError, verbs.AsyncPairAccessError, verbs.AsyncCommunicationEstablished,
			verbs.AsyncSendQueueDrained, verbs.AsyncPathMigrated, verbs.AsyncPathMigrationError, verbs.AsyncPairLastWork:
			want.Pair = b.pair
		case verbs.AsyncPortActive, verbs.AsyncPortError, verbs.AsyncLIDChange, verbs.AsyncPKeyChange, verbs.AsyncManagerChange,
			verbs.AsyncClientReregister, verbs.AsyncGIDChange:
			want.Port = 2
		}
		cause := []verbs.SendWork{{Operation: verbs.LocalInvalidate, RemoteKey: 0xa5000000 | verbs.RemoteKey(kind)}}
		if _, err := b.l.PostSend(b.pair, cause); err != nil {
			t.Fatal(err)
		}
		if !readable(t, descriptor) {
			t.Errorf("kind %d: the device's descriptor does not show the event", kind)
		}
		if got, ok, err := b.l.NextAsync(b.device); got != want || !ok || err != nil {
			t.Errorf("got %+v (%v, %v), want %+v", got, ok, err, want)
		}
		if _, ok, err := b.l.NextAsync(b.device); ok || err != nil {
			t.Errorf("kind %d: a second event: %v, %v", kind, ok, err)
		}
	}
	// The end of the test closes the device; the stand-in refuses that while an event is unacknowledged.
}

func TestQueuesAreSpreadOverTheCompletionVectors(t *testing.T) {
	b := newBench(t)
	for range 7 { // the stand-in refuses a vector that the device lacks
		q := must(b.l.CreateQueue(b.device, 1, 0))(t)
		check(t, b.l.DestroyQueue(q))
	}
	if got := b.l.vector.Load(); got != 9 {
		t.Errorf("%d queues were spread, want 9", got)
	}
}
