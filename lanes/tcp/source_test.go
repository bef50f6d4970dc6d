package tcp

import (
	"bytes"
	"errors"
	"io"
	"math"
	"syscall"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
)

// The bytes of each exchange, as a source speaks them.
//
// proves W-14
func TestSourceSpeaksEachExchange(t *testing.T) {
	mappings(t)
	r := newRig(t, 1, simkernel.WorldOptions{})
	defer r.finish()
	source := r.node(sourceHost, setup{})
	m := source.register(100, netproto.ReadWrite, 1)
	w := r.dial(source.address)

	must(t, w.send(requestBytes(netproto.OperationTCPRead, m.ID(), 10, 20)))
	if p := w.reply(); p != (netproto.Reply{Status: netproto.StatusSuccess, Epoch: epoch, Length: 20}) {
		t.Fatalf("READ: %+v", p)
	}
	if b, err := w.receive(20); err != nil || !bytes.Equal(b, pattern(100, 1)[10:30]) {
		t.Fatalf("READ: %x %v", b, err)
	}

	must(t, w.send(requestBytes(netproto.OperationTCPWrite, m.ID(), 5, 8)))
	if p := w.reply(); p != (netproto.Reply{Status: netproto.StatusReady, Epoch: epoch}) {
		t.Fatalf("WRITE: %+v", p)
	}
	must(t, w.send([]byte("abcdefg")))
	w.silent()
	if !m.holds(1) {
		t.Fatal("a WRITE changed the range before it was complete")
	}
	must(t, w.send([]byte("h")))
	if p := w.reply(); p != (netproto.Reply{Status: netproto.StatusSuccess, Epoch: epoch}) {
		t.Fatalf("WRITE: %+v", p)
	}
	if string(m.bytes()[5:13]) != "abcdefgh" {
		t.Fatal("the WRITE was acknowledged and is not there")
	}

	note := netproto.Notification{Name: "na", Message: "message"}
	must(t, w.send(netproto.AppendRequest(nil, note.Request(netproto.OperationNotify, epoch))))
	if p := w.reply(); p.Status != netproto.StatusReady {
		t.Fatalf("notify: %+v", p)
	}
	must(t, w.send(netproto.AppendNotifyBody(nil, note)))
	if p := w.reply(); p.Status != netproto.StatusSuccess {
		t.Fatalf("notify: %+v", p)
	}
	if got := source.inbox.Drain(); len(got) != 1 || got[0].Name != "na" || got[0].Text != "message" {
		t.Fatalf("inbox: %+v", got)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lie is a request that the source must refuse, whatever the requester's metadata says.
type lie struct {
	name   string
	frame  netproto.Request
	status netproto.Status
	closes bool // the frame breaks the protocol, so the stream ends
}

func lies(readOnly, writeOnly, local, both *memory) []lie {
	frame := func(op netproto.Operation, e netproto.Epoch, region, offset, length uint64) netproto.Request {
		return netproto.Request{Operation: op, Epoch: e, Region: region, Offset: offset, Length: length}
	}
	read, write := netproto.OperationTCPRead, netproto.OperationTCPWrite
	return []lie{
		{"READ of another epoch", frame(read, otherEpoch, both.ID(), 0, 8), netproto.StatusEpochMismatch, false},
		{"READ of no epoch", frame(read, netproto.Epoch{}, both.ID(), 0, 8), netproto.StatusEpochMismatch, false},
		{"WRITE of another epoch", frame(write, otherEpoch, both.ID(), 0, 8), netproto.StatusEpochMismatch, false},
		{"unknown region", frame(read, epoch, 99, 0, 8), netproto.StatusUnknownRegion, false},
		{"unknown region WRITE", frame(write, epoch, math.MaxUint64, 0, 8), netproto.StatusUnknownRegion, false},
		{"region zero", frame(read, epoch, 0, 0, 8), netproto.StatusUnknownRegion, true},
		{"READ of a write-only region", frame(read, epoch, writeOnly.ID(), 0, 8), netproto.StatusPermissionDenied, false},
		{"WRITE to a read-only region", frame(write, epoch, readOnly.ID(), 0, 8), netproto.StatusPermissionDenied, false},
		{"READ of a local region", frame(read, epoch, local.ID(), 0, 8), netproto.StatusPermissionDenied, false},
		{"WRITE to a local region", frame(write, epoch, local.ID(), 0, 8), netproto.StatusPermissionDenied, false},
		{"empty READ of a local region", frame(read, epoch, local.ID(), 0, 0), netproto.StatusPermissionDenied, false},
		{"one byte too many", frame(read, epoch, both.ID(), 0, 101), netproto.StatusInvalidRange, false},
		{"one byte too far", frame(write, epoch, both.ID(), 93, 8), netproto.StatusInvalidRange, false},
		{"empty beyond the end", frame(read, epoch, both.ID(), 101, 0), netproto.StatusInvalidRange, false},
		{"overflow", frame(read, epoch, both.ID(), math.MaxUint64, 8), netproto.StatusInvalidRange, true},
		{"above the source's payload limit", frame(write, epoch, both.ID(), 0, 4097), netproto.StatusExhausted, false},
		{"above the protocol's payload limit", frame(write, epoch, both.ID(), 0, netproto.PayloadBytesMax+1), netproto.StatusExhausted, true},
		{"2^31", frame(read, epoch, both.ID(), 0, 1<<31), netproto.StatusExhausted, true},
		{"2^32+1", frame(read, epoch, both.ID(), 1<<32+1, 8), netproto.StatusInvalidRange, false},
		{"RDMA READ", frame(netproto.OperationRDMARead, epoch, both.ID(), 0, 8), netproto.StatusBackendUnavailable, false},
		{"RDMA WRITE of another epoch", frame(netproto.OperationRDMAWrite, otherEpoch, both.ID(), 0, 8), netproto.StatusEpochMismatch, false},
		{"describe with a region", frame(netproto.OperationDescribe, epoch, both.ID(), 0, 0), netproto.StatusProtocolError, true},
		{"describe with an offset", frame(netproto.OperationDescribe, epoch, 0, 1, 0), netproto.StatusProtocolError, true},
		{"describe with a length", frame(netproto.OperationDescribe, epoch, 0, 0, 1), netproto.StatusProtocolError, true},
		{"describe of another epoch", frame(netproto.OperationDescribe, otherEpoch, 0, 0, 0), netproto.StatusEpochMismatch, false},
		{"describe to learn the epoch", frame(netproto.OperationDescribe, netproto.Epoch{}, 0, 0, 0), netproto.StatusEpochMismatch, false},
		{"notify with a region", frame(netproto.OperationNotify, epoch, 1, 1, 1), netproto.StatusProtocolError, true},
		{"notify that overflows", frame(netproto.OperationNotify, epoch, 0, math.MaxUint64, 1), netproto.StatusInvalidRange, true},
		{"notify above the protocol's limit", frame(netproto.OperationNotify, epoch, 0, netproto.NotificationBytesMax, 1), netproto.StatusExhausted, true},
		{"notify above the engine's limit", frame(netproto.OperationNotify, epoch, 0, 64<<10, 1), netproto.StatusExhausted, false},
		{"control notify of another epoch", frame(netproto.OperationControlNotify, otherEpoch, 0, 1, 1), netproto.StatusEpochMismatch, false},
	}
}

// body is what stands behind some requests.
func body(r netproto.Request) []byte {
	if !r.Operation.Grants() {
		return nil
	}
	life := netproto.Incarnation{1}
	return netproto.AppendGrantRequest(nil, &netproto.GrantRequest{
		Profile: netproto.ProfileWindow, Requester: netproto.Epoch{1}, Generation: 1,
		Connections: []netproto.GrantConnection{{Requester: life, Source: life}}, Slices: []netproto.GrantSlice{{Offset: r.Offset, Length: r.Length}},
	})
}

// A source checks epoch, region, permission, range and size of each frame by itself, answers with the
// matching status and its real epoch, and touches nothing. A frame that only asks for too much leaves
// the stream usable; one that breaks the protocol ends it.
//
// proves T-11, W-12, W-13, M-8
func TestLyingRequesterIsRefusedWithTheMatchingStatus(t *testing.T) {
	mappings(t)
	r := newRig(t, 2, simkernel.WorldOptions{})
	defer r.finish()
	source := r.node(sourceHost, setup{payload: 4096})
	readOnly, writeOnly := source.register(100, netproto.RemoteRead, 1), source.register(100, netproto.RemoteWrite, 1)
	local, both := source.register(100, netproto.LocalOnly, 1), source.register(100, netproto.ReadWrite, 1)
	big := source.register(1<<20, netproto.ReadWrite, 1)
	for _, l := range lies(readOnly, writeOnly, local, both) {
		w := r.dial(source.address)
		if l.status == netproto.StatusExhausted && l.frame.Region == both.ID() {
			l.frame.Region = big.ID()
		}
		must(t, w.send(append(netproto.AppendRequest(nil, l.frame), body(l.frame)...)))
		if p := w.reply(); p != (netproto.Reply{Status: l.status, Epoch: epoch}) {
			t.Errorf("%s: %+v, want %v", l.name, p, l.status)
		}
		if l.closes {
			w.ends()
			continue
		}
		must(t, w.send(requestBytes(netproto.OperationTCPRead, both.ID(), 0, 0)))
		if p := w.reply(); p.Status != netproto.StatusSuccess {
			t.Errorf("%s: the stream is not clean afterwards: %+v", l.name, p)
		}
	}
	for _, m := range source.memories {
		if !m.holds(1) {
			t.Error("a refused frame changed memory")
		}
	}
	source.admission.Fence()
	w := r.dial(source.address)
	must(t, w.send(requestBytes(netproto.OperationTCPRead, both.ID(), 0, 8)))
	if p := w.reply(); p.Status != netproto.StatusSourceClosed {
		t.Errorf("a fenced source answers %+v", p)
	}
}

// Unknown versions, operations and magic, and non-zero reserved bytes on a live stream, are answered with
// a protocol error; then the stream ends, whatever follows.
//
// proves W-15
func TestUnreadableHeadersEndALiveStream(t *testing.T) {
	mappings(t)
	r := newRig(t, 3, simkernel.WorldOptions{ChopReceive: 9})
	defer r.finish()
	source := r.node(sourceHost, setup{})
	m := source.register(100, netproto.ReadWrite, 1)
	good := requestBytes(netproto.OperationTCPRead, m.ID(), 0, 4)
	type change struct {
		at    int
		value byte
	}
	changes := []change{{0, 'o'}, {7, 1}, {8, 1}, {9, 18}, {9, 20}, {11, 1}, {11, 0x80}}
	for op := 0; op < 256; op++ {
		if !netproto.Operation(op).Known() {
			changes = append(changes, change{10, byte(op)})
		}
	}
	for _, c := range changes {
		w := r.dial(source.address)
		must(t, w.send(good))
		if p := w.reply(); p.Status != netproto.StatusSuccess {
			t.Fatalf("%+v", p)
		}
		if _, err := w.receive(4); err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(good)
		bad[c.at] = c.value
		must(t, w.send(bad))
		if p := w.reply(); p != (netproto.Reply{Status: netproto.StatusProtocolError, Epoch: epoch}) {
			t.Errorf("byte %d = %d: %+v", c.at, c.value, p)
		}
		w.ends()
	}
}

// A request header, and two requests behind each other, arrive in pieces that end at each offset.
//
// field case F-31
func TestFrameBoundaryAtEachOffsetAtTheSource(t *testing.T) {
	mappings(t)
	r := newRig(t, 4, simkernel.WorldOptions{})
	defer r.finish()
	source := r.node(sourceHost, setup{})
	m := source.register(16, netproto.ReadWrite, 1)
	w := r.dial(source.address)
	both := append(requestBytes(netproto.OperationTCPRead, m.ID(), 0, 3), requestBytes(netproto.OperationTCPRead, m.ID(), 8, 5)...)
	for at := 1; at < len(both); at++ {
		must(t, w.send(both[:at]))
		r.pass(time.Millisecond)
		must(t, w.send(both[at:]))
		for _, want := range [][]byte{pattern(16, 1)[:3], pattern(16, 1)[8:13]} {
			if p := w.reply(); p.Status != netproto.StatusSuccess || p.Length != uint64(len(want)) {
				t.Fatalf("cut at %d: %+v", at, p)
			}
			if b, err := w.receive(len(want)); err != nil || !bytes.Equal(b, want) {
				t.Fatalf("cut at %d: %x %v", at, b, err)
			}
		}
	}
}

// occupy sends a WRITE of one byte and does not send the byte: a handler stays busy.
func occupy(r *rig, source *node, m *memory) *wire {
	w := r.dial(source.address)
	must(r.t, w.send(requestBytes(netproto.OperationTCPWrite, m.ID(), 0, 1)))
	return w
}

// An idle stream holds a slot and nothing else; each frame gets a handler and its own deadline, which
// starts when the frame is accepted.
//
// proves T-6, T-9
func TestIdleStreamsHoldNothingAndEachFrameHasItsOwnDeadline(t *testing.T) {
	mappings(t)
	r := newRig(t, 5, simkernel.WorldOptions{})
	defer r.finish()
	source := r.node(sourceHost, setup{})
	m := source.register(16, netproto.ReadWrite, 1)
	w := r.dial(source.address)
	for range 3 {
		must(t, w.send(requestBytes(netproto.OperationTCPRead, m.ID(), 0, 16)))
		w.reply()
		if _, err := w.receive(16); err != nil {
			t.Fatal(err)
		}
		r.pass(3 * time.Second) // three of them are longer than one source deadline
		if h, q := source.admission.Handlers.Used(), source.admission.Queue.Used(); h != 0 || q != 0 || m.Loans() != 0 {
			t.Fatalf("an idle stream holds %d handlers, %d places in the queue, %d loans", h, q, m.Loans())
		}
		if buffers, _, slots := source.lane.Arena.Lent(); buffers != 0 || slots != 1 || source.lane.Sessions.Used() != 1 {
			t.Fatalf("an idle stream holds %d buffers, %d header slots, %d session slots", buffers, slots, source.lane.Sessions.Used())
		}
	}
	must(t, w.send(requestBytes(netproto.OperationTCPWrite, m.ID(), 0, 4)))
	accepted := r.world.Now()
	w.reply()
	if source.admission.Handlers.Used() != 1 || m.Loans() != 1 {
		t.Fatal("a served frame holds no handler or no loan")
	}
	must(t, w.send([]byte("abc"))) // progress does not move the deadline
	w.ends()
	if took := time.Duration(r.world.Now() - accepted); took < source.policy.SourceTimeout || took > source.policy.SourceTimeout+soon {
		t.Errorf("a stalled frame was ended after %v, want %v", took, source.policy.SourceTimeout)
	}
	if !m.holds(1) || m.Loans() != 0 || source.admission.Handlers.Used() != 0 || source.lane.Counts.SourceTimeouts.Load() != 1 {
		t.Error("a stalled WRITE left something behind")
	}
}

// Handlers and queue are bounded. What finds both full is closed after the grace; what waits in the
// queue is served in order when a handler is free, and has a deadline of its own there.
//
// proves T-6
func TestOverflowClosesAfterTheGraceAndTheQueueIsServedInOrder(t *testing.T) {
	mappings(t)
	r := newRig(t, 6, simkernel.WorldOptions{DelayMin: time.Microsecond, DelayMax: time.Microsecond})
	defer r.finish()
	source := r.node(sourceHost, setup{handlers: 2, queue: 1})
	m := source.register(16, netproto.ReadWrite, 1)
	busy := []*wire{occupy(r, source, m), occupy(r, source, m)}
	for _, w := range busy {
		w.reply()
	}
	waits := occupy(r, source, m)
	waits.silent()
	over := occupy(r, source, m)
	arrived := r.world.Now()
	if h, q := source.admission.Handlers.Used(), source.admission.Queue.Used(); h != 2 || q != 1 {
		t.Fatalf("%d handlers and %d in the queue, want 2 and 1", h, q)
	}
	over.ends()
	const grace = 100 * time.Millisecond
	if took := time.Duration(r.world.Now() - arrived); took < grace-time.Millisecond || took > grace+soon {
		t.Errorf("the overflow was closed after %v, want %v", took, grace)
	}
	if n := source.lane.Counts.OverflowedSessions.Load(); n != 1 {
		t.Errorf("%d overflows are counted", n)
	}
	waits.silent()
	must(t, busy[1].send([]byte("x")))
	busy[1].reply()
	if p := waits.reply(); p.Status != netproto.StatusReady {
		t.Fatalf("%+v", p)
	}
	if q := source.admission.Queue.Used(); q != 0 {
		t.Errorf("%d in the queue", q)
	}
	for _, w := range []*wire{busy[0], waits} {
		must(t, w.send([]byte("y")))
		w.reply()
	}
}

// A place in the queue that becomes free goes to the frame that has waited longest without one: from then
// on it has the queue's time, not the grace's.
//
// proves T-6
func TestFreePlaceInTheQueueIsPassedOn(t *testing.T) {
	mappings(t)
	r := newRig(t, 19, simkernel.WorldOptions{})
	defer r.finish()
	source := r.node(sourceHost, setup{handlers: 1, queue: 1})
	m := source.register(16, netproto.ReadWrite, 1)
	first := occupy(r, source, m)
	first.reply()
	second := occupy(r, source, m)
	r.pass(soon)
	third, fourth := occupy(r, source, m), occupy(r, source, m)
	r.pass(soon)
	must(t, first.send([]byte("1")))
	first.reply()
	second.reply()
	r.pass(time.Second)
	fourth.ends()
	must(t, second.send([]byte("2")))
	second.reply()
	if p := third.reply(); p.Status != netproto.StatusReady {
		t.Fatalf("%+v", p)
	}
	must(t, third.send([]byte("3")))
	third.reply()
}

// A session whose descriptor cannot be closed keeps its slot, and closing does not wait for it.
//
// proves T-6, G-9
func TestRetainedSessionKeepsItsSlot(t *testing.T) {
	r := newRig(t, 20, simkernel.WorldOptions{})
	var kernel *stubborn
	source := r.node(sourceHost, setup{wrap: func(k reactor.Kernel) reactor.Kernel {
		kernel = &stubborn{Kernel: k}
		return kernel
	}})
	m := source.register(16, netproto.ReadWrite, 1)
	w := occupy(r, source, m)
	w.reply()
	kernel.refuses = true
	w.close()
	r.until("the loss", func() bool { return source.admission.Handlers.Used() == 0 })
	if used, kept := source.lane.Sessions.Used(), source.lane.Counts.RetainedDescriptors.Load(); used != 1 || kept != 1 || m.Loans() != 0 {
		t.Errorf("%d slots, %d descriptors, %d loans", used, kept, m.Loans())
	}
	note, ok := source.lane.Journal.Next()
	if !ok || note.Kind != lanes.NoteRetained || note.Where == "" || note.Err == nil {
		t.Errorf("%+v", note)
	}
	kernel.refuses = false
	left := source.close()
	r.until("closing", func() bool { return *left == 0 })
}

// A burst beyond handlers and queue that the handlers work off within the grace costs nobody a
// connection.
//
// proves T-6
func TestBurstWithinTheGraceIsServed(t *testing.T) {
	mappings(t)
	r := newRig(t, 7, simkernel.WorldOptions{})
	defer r.finish()
	source := r.node(sourceHost, setup{handlers: 1, queue: 1})
	m := source.register(16, netproto.ReadWrite, 1)
	var all []*wire
	for range 5 {
		all = append(all, occupy(r, source, m))
	}
	for _, w := range all {
		if p := w.reply(); p.Status != netproto.StatusReady {
			t.Fatalf("%+v", p)
		}
		must(t, w.send([]byte("z")))
		if p := w.reply(); p.Status != netproto.StatusSuccess {
			t.Fatalf("%+v", p)
		}
	}
	if n := source.lane.Counts.OverflowedSessions.Load(); n != 0 {
		t.Errorf("%d connections were closed", n)
	}
}

// Handlers and queue are the engine's, not the lane's: a frame that waits on one lane is served when a
// handler is free on another one, and fencing answers it there.
//
// proves T-6, G-6
func TestHandlerFreedOnOneLaneServesAnother(t *testing.T) {
	mappings(t)
	r := newRig(t, 18, simkernel.WorldOptions{})
	defer r.finish()
	first := r.node(sourceHost, setup{handlers: 1, queue: 2})
	second := r.node(requesterHost, setup{beside: first})
	here, there := first.register(16, netproto.ReadWrite, 1), second.register(16, netproto.ReadWrite, 1)
	busy := occupy(r, first, here)
	busy.reply()
	waits := occupy(r, second, there)
	waits.silent()
	must(t, busy.send([]byte("1")))
	busy.reply()
	if p := waits.reply(); p.Status != netproto.StatusReady {
		t.Fatalf("%+v", p)
	}
	fenced := occupy(r, first, here)
	fenced.silent()
	first.admission.Fence()
	if p := fenced.reply(); p.Status != netproto.StatusSourceClosed {
		t.Errorf("%+v", p)
	}
	must(t, waits.send([]byte("2")))
	waits.reply()
	select {
	case <-first.admission.Gate.Quiet():
	default:
		t.Error("frames are counted after the last one has ended")
	}
}

// A client that leaves while its frame waits in the queue takes nothing with it.
//
// proves T-6
func TestClientThatLeavesTheQueueLeavesNothing(t *testing.T) {
	mappings(t)
	r := newRig(t, 8, simkernel.WorldOptions{})
	defer r.finish()
	source := r.node(sourceHost, setup{handlers: 1, queue: 2})
	m := source.register(16, netproto.ReadWrite, 1)
	first := occupy(r, source, m)
	first.reply()
	second, third := occupy(r, source, m), occupy(r, source, m)
	third.silent()
	second.close()
	r.pass(soon)
	must(t, first.send([]byte("1")))
	first.reply()
	// The frame of the one that left may be served once; its answer finds nobody.
	if p := third.reply(); p.Status != netproto.StatusReady {
		t.Fatalf("%+v", p)
	}
	must(t, third.send([]byte("3")))
	third.reply()
}

// The number of idle streams is bounded, and idle ones never keep a new client out: the one that was
// idle longest goes.
//
// proves T-6
// field case F-29
func TestIdleClientsDoNotKeepANewOneOut(t *testing.T) {
	mappings(t)
	r := newRig(t, 9, simkernel.WorldOptions{})
	defer r.finish()
	const limit = 5
	source := r.node(sourceHost, setup{sessions: limit})
	m := source.register(16, netproto.ReadWrite, 1)
	var idle []*wire
	for range limit {
		idle = append(idle, r.dial(source.address))
		r.pass(time.Millisecond)
	}
	serve := func(w *wire) {
		must(t, w.send(requestBytes(netproto.OperationTCPRead, m.ID(), 0, 1)))
		w.reply()
		if _, err := w.receive(1); err != nil {
			t.Fatal(err)
		}
	}
	serve(idle[0]) // now idle[1] is the one idle longest
	late := r.dial(source.address)
	serve(late)
	idle[1].ends()
	if used := source.lane.Sessions.Used(); used != limit {
		t.Errorf("%d streams, the limit is %d", used, limit)
	}
	serve(idle[0])
	if n := source.lane.Counts.Evicted.Load(); n != 1 {
		t.Errorf("%d were evicted", n)
	}
}

// When every stream is busy a new one is closed at once, and the busy ones go on.
//
// proves T-6
func TestBusyStreamsAreNotEvicted(t *testing.T) {
	mappings(t)
	r := newRig(t, 10, simkernel.WorldOptions{})
	defer r.finish()
	source := r.node(sourceHost, setup{sessions: 2})
	m := source.register(16, netproto.ReadWrite, 1)
	busy := []*wire{occupy(r, source, m), occupy(r, source, m)}
	for _, w := range busy {
		w.reply()
	}
	r.dial(source.address).ends()
	for _, w := range busy {
		must(t, w.send([]byte("w")))
		if p := w.reply(); p.Status != netproto.StatusSuccess {
			t.Fatalf("%+v", p)
		}
	}
}

// A stream without a frame is closed after the idle time, one with half a header after the source's.
//
// proves T-6
func TestIdleStreamIsClosed(t *testing.T) {
	mappings(t)
	r := newRig(t, 11, simkernel.WorldOptions{})
	defer r.finish()
	source := r.node(sourceHost, setup{idle: 30 * time.Second})
	for _, part := range []int{0, 1, 51} {
		w := r.dial(source.address)
		at := r.world.Now()
		must(t, w.send(requestBytes(netproto.OperationDescribe, 0, 0, 0)[:part]))
		w.ends()
		want := 30 * time.Second
		if part > 0 {
			want = source.lane.Policy.SourceTimeout
		}
		if took := time.Duration(r.world.Now() - at); took < want-soon || took > want+soon {
			t.Errorf("with %d bytes of a header the stream was closed after %v", part, took)
		}
	}
	if n := source.lane.Counts.IdleClosed.Load(); n != 3 {
		t.Errorf("%d idle streams are counted", n)
	}
}

// A peer that speaks another protocol is told so at its first wrong byte, before a whole header is there.
//
// proves W-15
func TestForeignProtocolIsRefusedAtItsFirstWrongByte(t *testing.T) {
	mappings(t)
	r := newRig(t, 21, simkernel.WorldOptions{})
	defer r.finish()
	source := r.node(sourceHost, setup{})
	for _, text := range []string{"G", "ORBITTE\x01", "ORBITTE\x00\x00\x12"} {
		w := r.dial(source.address)
		at := r.world.Now()
		must(t, w.send([]byte(text)))
		if p := w.reply(); p.Status != netproto.StatusProtocolError {
			t.Errorf("%q: %+v", text, p)
		}
		w.ends()
		if took := time.Duration(r.world.Now() - at); took > soon {
			t.Errorf("%q was refused after %v", text, took)
		}
	}
}

// A range that another access holds is waited for, until the source's deadline.
//
// proves M-9
func TestSourceWaitsForAConflictingLeaseUntilItsDeadline(t *testing.T) {
	for _, direct := range []bool{false, true} {
		for _, op := range []netproto.Operation{netproto.OperationTCPRead, netproto.OperationTCPWrite} {
			mappings(t)
			r := newRig(t, 12, simkernel.WorldOptions{})
			source := r.node(sourceHost, setup{direct: direct})
			m := source.register(4, netproto.ReadWrite, 1)
			for _, released := range []bool{true, false} {
				lease, err := m.Lease(0, 4, segments.Exclusive)
				must(t, err)
				w := r.dial(source.address)
				must(t, w.send(requestBytes(op, m.ID(), 0, 4)))
				if op == netproto.OperationTCPWrite && !direct {
					w.reply()
					must(t, w.send([]byte("wait")))
				}
				w.silent()
				if released {
					lease.Return()
					if p := w.reply(); p.Status == netproto.StatusExhausted {
						t.Errorf("%+v", p)
					}
					w.close()
					r.pass(soon)
					copy(m.bytes(), pattern(4, 1))
					continue
				}
				w.ends()
				lease.Return()
				if !m.holds(1) {
					t.Errorf("direct %v, %v: the range changed under somebody's lease", direct, op)
				}
			}
			if source.lane.Counts.ConflictRetries.Load() == 0 {
				t.Error("no retry is counted")
			}
			r.finish()
		}
	}
}

// A range is unregistered and its memory reused while a slow reader is in the middle of a READ: with
// owned buffers the reader gets the bytes as they were, all of them; with direct placement the memory
// cannot be had before the reader is done or cut off. It never sees success with mixed bytes.
//
// field case F-11
// proves M-6
func TestRangeTakenBackUnderASlowReader(t *testing.T) {
	for _, direct := range []bool{false, true} {
		mappings(t)
		r := newRig(t, 13, simkernel.WorldOptions{Buffer: 4096})
		source := r.node(sourceHost, setup{direct: direct})
		const length = 64 << 10
		m := source.register(length, netproto.ReadWrite, 1)
		w := r.dial(source.address)
		must(t, w.send(requestBytes(netproto.OperationTCPRead, m.ID(), 0, length)))
		w.reply()
		got, err := w.receive(1000)
		must(t, err)
		if last, err := source.tracker.Unregister(m.ID()); err != nil || !last {
			t.Fatal(last, err)
		}
		if m.Loans() != 1 {
			t.Fatalf("%d loans", m.Loans())
		}
		lease, err := m.backing.Lend(0, length, segments.Exclusive)
		switch {
		case direct && !errors.Is(err, segments.ErrConflict):
			t.Fatalf("the range could be leased under a direct READ: %v", err)
		case !direct && err != nil:
			t.Fatal(err)
		case !direct:
			copy(lease.Bytes(), pattern(length, 3))
			lease.Return()
		}
		rest, err := w.receive(length - len(got))
		must(t, err)
		if !bytes.Equal(append(got, rest...), pattern(length, 1)) {
			t.Errorf("direct %v: the reader got mixed bytes", direct)
		}
		r.pass(soon)
		if m.Loans() != 0 || source.registrations.Used() != 0 {
			t.Errorf("direct %v: the registration did not end", direct)
		}
		must(t, w.send(requestBytes(netproto.OperationTCPRead, m.ID(), 0, 1)))
		if p := w.reply(); p.Status != netproto.StatusUnknownRegion {
			t.Errorf("%+v", p)
		}
		r.finish()
	}
}

// A reader that stops is cut off at the source's deadline, and the range is free again.
//
// field case F-11
func TestStoppedReaderIsCutOff(t *testing.T) {
	mappings(t)
	r := newRig(t, 14, simkernel.WorldOptions{Buffer: 4096})
	defer r.finish()
	source := r.node(sourceHost, setup{direct: true})
	m := source.register(64<<10, netproto.ReadWrite, 1)
	w := r.dial(source.address)
	must(t, w.send(requestBytes(netproto.OperationTCPRead, m.ID(), 0, 64<<10)))
	w.reply()
	r.pass(source.policy.SourceTimeout + soon)
	lease, err := m.backing.Lend(0, 64<<10, segments.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	lease.Return()
	if b, err := w.receive(64 << 10); err == nil {
		t.Errorf("the reader got all %d bytes", len(b))
	}
}

// Closing a source answers what waits, lets what is served end, and ends every stream.
//
// proves G-6
func TestClosingSourceWithFramesInEveryState(t *testing.T) {
	mappings(t)
	r := newRig(t, 15, simkernel.WorldOptions{})
	source := r.node(sourceHost, setup{handlers: 1, queue: 1})
	m := source.register(16, netproto.ReadWrite, 1)
	idle, half := r.dial(source.address), r.dial(source.address)
	must(t, half.send([]byte("ORB")))
	serving := occupy(r, source, m)
	serving.reply()
	waiting := occupy(r, source, m)
	waiting.silent()
	source.admission.Fence()
	gone := false
	source.server.Close(func() { gone = true })
	if p := waiting.reply(); p.Status != netproto.StatusSourceClosed {
		t.Errorf("%+v", p)
	}
	idle.ends()
	half.ends()
	waiting.ends()
	if gone {
		t.Fatal("the server has ended under a frame")
	}
	must(t, serving.send([]byte("s")))
	if p := serving.reply(); p.Status != netproto.StatusSuccess {
		t.Errorf("%+v", p)
	}
	serving.ends()
	if !gone || source.server.Sessions() != 0 {
		t.Error("the server did not end")
	}
	r.finish()
}

// A client that resets, or leaves, at each point of each exchange leaves nothing at the source.
//
// proves T-6, U-1
func TestClientGoneAtEachByteLeavesNothing(t *testing.T) {
	mappings(t)
	r := newRig(t, 16, simkernel.WorldOptions{})
	defer r.finish()
	source := r.node(sourceHost, setup{})
	m := source.register(64<<10, netproto.ReadWrite, 1)
	note := netproto.Notification{Name: "n", Message: "m"}
	scripts := [][]byte{
		requestBytes(netproto.OperationTCPRead, m.ID(), 0, 64<<10),
		append(requestBytes(netproto.OperationTCPWrite, m.ID(), 0, 9), "123456789"...),
		netproto.AppendNotifyBody(netproto.AppendRequest(nil, note.Request(netproto.OperationNotify, epoch)), note),
		requestBytes(netproto.OperationDescribe, 0, 0, 0),
	}
	for i, script := range scripts {
		for at := range script {
			w := r.dial(source.address)
			must(t, w.send(script[:at]))
			r.pass(time.Millisecond)
			w.close()
			r.pass(time.Millisecond)
			if buffers, _, slots := source.lane.Arena.Lent(); buffers != 0 || slots != 0 || source.lane.Sessions.Used() != 0 ||
				source.admission.Handlers.Used() != 0 || m.Loans() != 0 {
				t.Fatalf("script %d left after byte %d: %d buffers, %d slots", i, at, buffers, slots)
			}
			if got := source.inbox.Drain(); len(got) != 0 {
				t.Fatalf("a partial notification of %d bytes was delivered", at)
			}
		}
	}
	if !m.holds(1) {
		t.Error("a partial WRITE was committed")
	}
}

// refusesTune lets Tune fail: an accepted peer that is gone already.
type refusesTune struct{ reactor.Kernel }

func (refusesTune) Tune(reactor.Descriptor, reactor.SocketOptions) (string, error) {
	return "", syscall.EINVAL
}

// A connection that cannot be tuned is closed and costs nothing.
//
// proves T-7
func TestAcceptedPeerThatIsGoneCostsNothing(t *testing.T) {
	mappings(t)
	r := newRig(t, 17, simkernel.WorldOptions{})
	defer r.finish()
	source := r.node(sourceHost, setup{wrap: func(k reactor.Kernel) reactor.Kernel { return refusesTune{k} }})
	w := r.dial(source.address)
	if _, err := w.receive(1); err != io.EOF && err != syscall.ECONNRESET {
		t.Fatal(err)
	}
	if source.lane.Sessions.Used() != 0 {
		t.Error("it holds a slot")
	}
}
