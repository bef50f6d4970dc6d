package epoll

import (
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
)

// rig is one kernel and the tickets given out.
type rig struct {
	*testing.T
	*Kernel
	last reactor.Ticket
}

func newRig(t *testing.T) *rig {
	k, err := New(Options{AnyThread: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Bind(); err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, Kernel: k}
	t.Cleanup(func() {
		if err := k.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) start(op reactor.Operation) reactor.Ticket {
	r.last++
	op.Ticket = r.last
	r.Submit(&op)
	return op.Ticket
}

// next polls for one completion, at most two seconds.
func (r *rig) next() reactor.Completion {
	r.Helper()
	var out [1]reactor.Completion
	if r.Poll(out[:], r.Now().After(2*time.Second)) == 0 {
		r.Fatal("no completion within 2 s")
	}
	return out[0]
}

// none says that nothing completes now.
func (r *rig) none() {
	r.Helper()
	var out [1]reactor.Completion
	for range 3 * glancesMost {
		if r.Poll(out[:], 0) != 0 {
			r.Fatalf("unexpected completion %+v", out[0])
		}
	}
}

func (r *rig) want(ticket reactor.Ticket, n int, err error) {
	r.Helper()
	c := r.next()
	if c.Ticket != ticket || c.N != n || c.Err != err {
		r.Fatalf("got %+v, want ticket %d, %d bytes, error %v", c, ticket, n, err)
	}
}

// pair connects two streams over loopback.
func (r *rig) pair() (client, server reactor.Descriptor) {
	r.Helper()
	var o reactor.SocketOptions
	listener, bound, err := r.Listen(netip.MustParseAddrPort("127.0.0.1:0"), o)
	if err != nil {
		r.Fatal(err)
	}
	client, err = r.Open(bound, o)
	if err != nil {
		r.Fatal(err)
	}
	r.start(reactor.Operation{Kind: reactor.Accept, Descriptor: listener})
	r.start(reactor.Operation{Kind: reactor.Connect, Descriptor: client, Address: bound})
	server = reactor.NoDescriptor
	for range 2 {
		c := r.next()
		if c.Err != nil {
			r.Fatal(c.Err)
		}
		if c.Descriptor != client {
			server = c.Descriptor
		}
	}
	r.end(listener)
	return client, server
}

func (r *rig) end(ds ...reactor.Descriptor) {
	r.Helper()
	for _, d := range ds {
		if err := r.Close(d); err != nil {
			r.Error(err)
		}
	}
}

func (r *rig) receive(d reactor.Descriptor, b []byte) reactor.Ticket {
	return r.start(reactor.Operation{Kind: reactor.Receive, Descriptor: d, Buffers: [2][]byte{b}})
}

func (r *rig) send(d reactor.Descriptor, b []byte) reactor.Ticket {
	return r.start(reactor.Operation{Kind: reactor.Send, Descriptor: d, Buffers: [2][]byte{b}})
}

// A frame costs its sender one call and its receiver a wait and a call, in both progress styles.
func TestFrameCostsOneCallToSendAndTwoToReceive(t *testing.T) {
	for _, size := range []int{64, 4096} {
		t.Run(strconv.Itoa(size)+" bytes asked", func(t *testing.T) { frameCosts(t, size) })
	}
}

func frameCosts(t *testing.T, size int) {
	r := newRig(t)
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
	if got := after.Crossings - before.Crossings; got != 3*frames {
		t.Errorf("%d frames cost %d crossings, want %d", frames, got, 3*frames)
	}
	if got := after.Waits - before.Waits; got != frames {
		t.Errorf("%d frames cost %d waits, want %d", frames, got, frames)
	}
	r.end(client, server)
}

// proves L-6
func TestExchangeAllocatesNothing(t *testing.T) {
	r := newRig(t)
	client, server := r.pair()
	buffer := make([]byte, 4096)
	header, payload := make([]byte, 52), make([]byte, 1000)
	var out [4]reactor.Completion
	n := testing.AllocsPerRun(200, func() {
		r.start(reactor.Operation{Kind: reactor.Receive, Descriptor: server, Buffers: [2][]byte{buffer[:52], buffer[52:]}})
		r.start(reactor.Operation{Kind: reactor.Send, Descriptor: client, Buffers: [2][]byte{header, payload}})
		w := r.start(reactor.Operation{Kind: reactor.Watch, Descriptor: client})
		r.Cancel(w)
		for done := 0; done < 3; {
			done += r.Poll(out[:], r.Now().After(time.Second))
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per exchange", n)
	}
	r.end(client, server)
}

// A short read says "empty", yet the hang-up that stands behind it must still be found.
func TestShortReadBeforeHangUpStillFindsTheEnd(t *testing.T) {
	for name, when := range map[string]int{"hang-up seen first": 0, "hang-up unseen": 1, "hang-up later": 2} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			client, server := r.pair()
			buffer := make([]byte, 64)
			first := r.receive(server, buffer)
			r.none() // registered and blocked now
			r.want(r.send(client, []byte("a")), 1, nil)
			r.want(first, 1, nil)
			r.want(r.send(client, []byte("bye")), 3, nil)
			if when < 2 {
				r.end(client)
			}
			if when == 0 {
				r.look(time.Second) // the event is taken before the bytes are
			}
			r.want(r.receive(server, buffer), 3, nil)
			if when == 2 {
				r.end(client)
			}
			r.want(r.receive(server, buffer), 0, nil)
			r.end(server)
		})
	}
}

// The number of a closed descriptor comes back for another socket; what was known of the first is void.
func TestDescriptorNumberUsedAgainStartsAnew(t *testing.T) {
	r := newRig(t)
	buffer := make([]byte, 64)
	for range 20 {
		client, server := r.pair()
		got := r.receive(server, buffer)
		r.none()
		r.want(r.send(client, []byte("x")), 1, nil)
		r.want(got, 1, nil)
		again := r.receive(server, buffer)
		r.none()
		r.Cancel(again)
		r.want(again, 0, unix.ECANCELED)
		r.end(client, server)
	}
	if n := r.Counters().Unwatched; n > 20 {
		t.Errorf("%d stale events", n)
	}
}

// The number of a stream that was known to be blocked comes back for somebody else's descriptor.
func TestClosedStreamLeavesNoHintForItsNumber(t *testing.T) {
	r := newRig(t)
	client, server := r.pair()
	got := r.receive(server, make([]byte, 8))
	r.none()
	r.Cancel(got)
	r.want(got, 0, unix.ECANCELED)
	r.end(server)
	fd, err := unix.Eventfd(1, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if fd != int(server) {
		if err := unix.Dup3(fd, int(server), unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(int(server))
	}
	r.want(r.start(reactor.Operation{Kind: reactor.Watch, Descriptor: server}), 0, nil)
	r.end(client)
}

// Another owner closes a watched descriptor and its number comes back.
func TestWatchOfForeignDescriptorSurvivesReuse(t *testing.T) {
	r := newRig(t)
	for round := range 5 {
		fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		d := reactor.Descriptor(fd)
		for range 3 {
			w := r.start(reactor.Operation{Kind: reactor.Watch, Descriptor: d})
			r.none()
			if _, err := unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
				t.Fatal(err)
			}
			r.want(w, 0, nil)
			r.want(r.start(reactor.Operation{Kind: reactor.Watch, Descriptor: d}), 0, nil) // still readable
			var b [8]byte
			if _, err := unix.Read(fd, b[:]); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Close(fd); err != nil { // not through the kernel
			t.Fatal(round, err)
		}
	}
}

// The client's end was registered for output while it connected; that must not show with every input.
func TestConnectedEndIsNotWokenForOutput(t *testing.T) {
	r := newRig(t)
	client, server := r.pair()
	buffer := make([]byte, 64)
	var out [1]reactor.Completion
	for range 10 {
		got := r.receive(client, buffer)
		r.Poll(out[:], 0) // registers, or finds it blocked
		r.want(r.send(server, []byte("x")), 1, nil)
		for r.Poll(out[:], 0) == 0 { // by chance through the hot stream, before its event was taken
		}
		if out[0].Ticket != got || out[0].N != 1 {
			t.Fatalf("%+v", out[0])
		}
		n, e := r.sleep(time.Millisecond)
		for e == unix.EINTR { // a signal of the Go runtime
			n, e = r.sleep(time.Millisecond)
		}
		if n != 0 || e != 0 {
			t.Fatalf("%d events %+v after all bytes were taken, %v", n, r.events[0], e)
		}
	}
	r.end(client, server)
}

func TestWatchBesideReceive(t *testing.T) {
	r := newRig(t)
	client, server := r.pair()
	buffer := make([]byte, 64)
	for range 3 {
		got := r.receive(server, buffer)
		w := r.start(reactor.Operation{Kind: reactor.Watch, Descriptor: server})
		r.none()
		r.want(r.send(client, []byte("x")), 1, nil)
		seen := map[reactor.Ticket]bool{}
		for range 2 {
			c := r.next()
			if c.Err != nil {
				t.Fatal(c.Err)
			}
			seen[c.Ticket] = true
		}
		if !seen[got] || !seen[w] {
			t.Fatalf("completed: %v", seen)
		}
	}
	r.end(client, server)
}

// A registration outlives close(2) while a forked child holds the same open file.
func TestCloseRemovesARegistrationThatADuplicateKeepsAlive(t *testing.T) {
	r := newRig(t)
	client, server := r.pair()
	got := r.receive(server, make([]byte, 8))
	r.none()
	r.Cancel(got)
	r.want(got, 0, unix.ECANCELED)
	duplicate, err := unix.Dup(int(server))
	if err != nil {
		t.Fatal(err)
	}
	r.end(server)
	r.want(r.send(client, []byte("x")), 1, nil)
	r.none()
	if n := r.Counters().Unwatched; n != 0 {
		t.Errorf("%d events of a closed descriptor", n)
	}
	_ = unix.Close(duplicate)
	r.end(client)
}

func TestBulkMovesEveryByteThroughBlockedSends(t *testing.T) {
	r := newRig(t)
	client, server := r.pair()
	const total = 32 << 20
	data := make([]byte, 3<<20)
	for i := range data {
		data[i] = byte(i * 7)
	}
	buffer := make([]byte, 700_001)
	sent, got := 0, 0
	var out [2]reactor.Completion
	sending := r.send(client, data)
	receiving := r.receive(server, buffer)
	for got < total {
		for _, c := range out[:r.Poll(out[:], r.Now().After(time.Second))] {
			if c.Err != nil {
				t.Fatal(c.Err)
			}
			switch c.Ticket {
			case sending:
				sent += c.N
				if sent < total {
					at := sent % len(data)
					sending = r.send(client, data[at:min(len(data), at+total-sent)])
				}
			case receiving:
				for i, b := range buffer[:c.N] {
					if b != byte((got+i)%len(data)*7) {
						t.Fatalf("byte %d differs", got+i)
					}
				}
				if got += c.N; got < total {
					receiving = r.receive(server, buffer)
				}
			}
		}
	}
	r.end(client, server)
}

func TestOpenAndShutdownLeaveNothing(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := count()
	for range 100 {
		k, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Shutdown(); err != nil {
			t.Fatal(err)
		}
		k.Wake()
	}
	if after := count(); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// Waits without epoll_pwait2 are rounded up to whole milliseconds, never down.
func TestCoarseWaitReachesItsDeadline(t *testing.T) {
	r := newRig(t)
	r.coarse = true
	var out [1]reactor.Completion
	until := r.Now().After(1500 * time.Microsecond)
	if n := r.Poll(out[:], until); n != 0 {
		t.Fatal(n)
	}
	if now := r.Now(); now < until {
		t.Errorf("returned %d ns before its time", until-now)
	}
	if w := r.Counters().Waits; w > 1 {
		t.Errorf("%d waits", w)
	}
}

// field case F-22
func TestPollWithPassedDeadlineDoesNotBlock(t *testing.T) {
	r := newRig(t)
	var out [1]reactor.Completion
	r.Poll(out[:], r.Now()-1)
	if w := r.Counters().Waits; w != 0 {
		t.Errorf("%d blocking waits", w)
	}
}

func TestRefusedOperationsCompleteWithTheReason(t *testing.T) {
	r := newRig(t)
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

// Somebody closes a registered descriptor while a duplicate keeps its open file in the set: the events that
// still come belong to an earlier life of the number.
func TestEventsOfAnEarlierLifeAreIgnored(t *testing.T) {
	r := newRig(t)
	client, server := r.pair()
	got := r.receive(server, make([]byte, 8))
	r.none()
	r.Cancel(got)
	r.want(got, 0, unix.ECANCELED)
	duplicate, err := unix.Dup(int(server))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(duplicate)
	_ = unix.Close(int(server)) // not through the kernel
	again, err := r.Open(netip.MustParseAddrPort("127.0.0.1:9"), reactor.SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if again != server {
		t.Skipf("the number %d did not come back", server)
	}
	r.want(r.send(client, []byte("x")), 1, nil)
	r.none()
	if n := r.Counters().Unwatched; n != 1 {
		t.Errorf("%d events of an earlier life, want 1", n)
	}
	r.end(client, again)
}
