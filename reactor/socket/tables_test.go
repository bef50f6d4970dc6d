package socket

import (
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
)

func TestOperationsKeepTheirOrderAndReuseSlots(t *testing.T) {
	o := NewOperations(1)
	var slots []int32
	for i := range 5 {
		slot := o.Add(&reactor.Operation{Ticket: reactor.Ticket(100 + i)})
		o.Push(slot)
		o.Push(slot) // stays where it is
		slots = append(slots, slot)
	}
	if o.Len() != 5 || o.Queued() != 5 || o.Find(103) != slots[3] || o.Find(99) != NoSlot {
		t.Fatal("wrong counts or slots")
	}
	for _, want := range slots {
		if got := o.Pop(); got != want {
			t.Fatalf("popped %d, want %d", got, want)
		}
		o.Remove(want)
		if o.Valid(want) || o.Find(reactor.Ticket(100+want)) != NoSlot {
			t.Fatal("a removed operation is found")
		}
	}
	if o.Pop() != NoSlot || o.Len() != 0 || o.Queued() != 0 || o.Valid(-1) || o.Valid(1000) {
		t.Fatal("something is left")
	}
	if n := testing.AllocsPerRun(100, func() {
		for i := range 5 {
			o.Push(o.Add(&reactor.Operation{Ticket: reactor.Ticket(i)}))
		}
		for slot := o.Pop(); slot != NoSlot; slot = o.Pop() {
			o.Remove(slot)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestRemovingAQueuedOperationPanics(t *testing.T) {
	o := NewOperations(1)
	slot := o.Add(&reactor.Operation{})
	o.Push(slot)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	o.Remove(slot)
}

func TestEndpointsRefuseWildNumbers(t *testing.T) {
	var e Endpoints
	if e.At(1<<30) != nil || len(e.table) != 0 {
		t.Errorf("the table has %d entries", len(e.table))
	}
	first := *e.At(0)
	e.Begin(0, true)
	if second := e.At(0); second.Generation != first.Generation+1 || !second.Stream || !second.Idle() {
		t.Errorf("%+v", *second)
	}
	e.At(0).Seated[Output] = 5
	e.Begin(0, false)
	if again := e.At(0); again.Seated[Output] != 5 || !again.Stream {
		t.Errorf("a busy descriptor was forgotten: %+v", *again)
	}
}

func TestClockAgreesWithTheSystemAndSaturates(t *testing.T) {
	var c Clock
	var ts unix.Timespec
	for range 5 {
		before := c.Now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			t.Fatal(err)
		}
		after := c.Now()
		const skew = reactor.Instant(50 * time.Microsecond) // of the pairing at start
		if at := reactor.Instant(ts.Nano()); at < before-skew || at > after+skew {
			t.Errorf("CLOCK_MONOTONIC is %d, between %d and %d expected", at, before, after)
		}
	}
	if got := c.At(time.Now().Add(200 * 365 * 24 * time.Hour)); got <= c.Now() {
		t.Error("a far time lies in the past:", got)
	}
	if got := c.At(time.Time{}); got >= c.Now() {
		t.Error("the zero time lies in the future:", got)
	}
	in := c.At(time.Now().Add(time.Hour)) - c.Now()
	if d := time.Duration(in) - time.Hour; d > 0 || d < -time.Second {
		t.Errorf("an hour ahead is %v off", d)
	}
}

// No wake-up is lost, whatever the order, and none is written after Close.
func TestWakerLosesNothingBetweenSleepAndWake(t *testing.T) {
	w, err := NewWaker()
	if err != nil {
		t.Fatal(err)
	}
	const wakes = 2000
	turn := make(chan struct{})
	var callers sync.WaitGroup
	callers.Go(func() {
		for range wakes {
			<-turn
			w.Wake()
			w.Wake()
		}
	})
	for i := range wakes {
		turn <- struct{}{}
		w.Drain() // what the last round's second Wake left
		if w.Sleep() {
			poll := []unix.PollFd{{Fd: int32(w.Descriptor()), Events: unix.POLLIN}}
			for {
				n, err := unix.Poll(poll, 2000)
				if err == unix.EINTR {
					continue
				}
				if n != 1 {
					t.Fatalf("wake-up %d was lost", i)
				}
				break
			}
		}
		w.Risen()
		if !w.Take() {
			t.Fatalf("wake-up %d: woken without a pending wake", i)
		}
	}
	callers.Wait()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	// The number comes back for a stranger.
	stranger, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(stranger)
	w.fd = stranger
	w.Take()
	w.Sleep()
	w.Wake()
	var b [8]byte
	if _, err := unix.Read(stranger, b[:]); err != unix.EAGAIN {
		t.Error("a wake-up after Close was written:", err)
	}
}

// Large operations come behind the others, the oldest first of each, and after so many of those have their turn.
//
// proves L-2
func TestLargeOperationsComeBehindOthersButCome(t *testing.T) {
	o := NewOperations(4)
	add := func(bytes int) int32 {
		slot := o.Add(&reactor.Operation{Kind: reactor.Receive, More: [][]byte{make([]byte, bytes/2), make([]byte, bytes-bytes/2)}})
		o.Push(slot)
		return slot
	}
	first, second := add(SmallBytes+1), add(SmallBytes+1)
	var small []int32
	for range 2*smallInARow + 3 {
		small = append(small, add(SmallBytes))
	}
	var want []int32
	want = append(append(want, small[:smallInARow]...), first)
	want = append(append(want, small[smallInARow:2*smallInARow]...), second)
	want = append(want, small[2*smallInARow:]...)
	for i, slot := range want {
		if large := slot == first || slot == second; o.Peek() != slot || o.LargeNext() != large || o.At(slot).Large != large {
			t.Fatalf("operation %d: next is %d (large: %v), wanted %d", i, o.Peek(), o.LargeNext(), slot)
		}
		if got := o.Pop(); got != slot || o.Queued() != len(want)-1-i {
			t.Fatalf("operation %d: took %d of %d left", i, got, o.Queued())
		}
		o.Remove(slot)
	}
	if o.Pop() != NoSlot || o.LargeNext() || o.Len() != 0 {
		t.Fatal("something is left")
	}
}
