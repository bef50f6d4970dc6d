//go:build cgo && !vm

package libibverbs

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/orbitte/orbitte/verbs"
)

// refusal is the ID of work that fails when it is posted; see testdata/fake.c.
func refusal(way uint64, e syscall.Errno) uint64 { return way<<32 | uint64(e) }

func writes(n int) []verbs.SendWork {
	work := make([]verbs.SendWork, n)
	for i := range work {
		work[i] = verbs.SendWork{ID: uint64(i) + 1, Operation: verbs.Write, Flags: verbs.Signaled, Length: 1}
	}
	return work
}

func TestEachKindOfWorkArrivesWhole(t *testing.T) {
	b := newBench(t)
	region, key, _, err := b.l.Register(b.domain, 4096, 100, 0x13)
	check(t, err)
	window, now, err := b.l.AllocateWindow(b.domain)
	check(t, err)
	const flags = verbs.Fence | verbs.Signaled | verbs.Solicited
	work := []verbs.SendWork{
		{ID: 1, Operation: verbs.Write, Flags: flags, Address: 1000, Length: 200, LocalKey: 30, Remote: 5000, RemoteKey: 600},
		{ID: 2, Operation: verbs.Read, Flags: flags, Address: 1000, Length: 200, LocalKey: 30, Remote: 5000, RemoteKey: 600},
		{ID: 3, Operation: verbs.Send, Flags: flags, Address: 1000, Length: 200, LocalKey: 30},
		{ID: 4, Operation: verbs.SendWithInvalidate, Flags: flags, Address: 1000, Length: 200, LocalKey: 30, RemoteKey: 600},
		{ID: 5, Operation: verbs.BindWindow, Flags: flags, Window: window, Region: region, Remote: 5000, Span: 700, RemoteKey: 0x177, Access: verbs.AccessRemoteRead},
		{ID: 6, Operation: verbs.LocalInvalidate, Flags: flags, RemoteKey: 600, Address: 1, Length: 2},
		{ID: 7, Operation: verbs.Write, Flags: flags, Address: 1000, LocalKey: 30, Remote: 5000, RemoteKey: 600}, // no bytes
	}
	if n, err := b.l.PostSend(b.pair, work); n != len(work) || err != nil {
		t.Fatal(n, err)
	}
	const pair = 16<<16 | 17<<8 | 18
	want := []verbs.Completion{
		{ID: 1, Operation: 0, Vendor: 1, Length: 1230, Invalidated: 5600, Pair: pair, Flags: uint32(flags)},
		{ID: 2, Operation: 4, Vendor: 1, Length: 1230, Invalidated: 5600, Pair: pair, Flags: uint32(flags)},
		{ID: 3, Operation: 2, Vendor: 1, Length: 1230, Pair: pair, Flags: uint32(flags)},
		{ID: 4, Operation: 9, Vendor: 1, Length: 1230, Invalidated: 600, Pair: pair, Flags: uint32(flags)},
		{ID: 5, Operation: 8, Vendor: uint32(now), Length: 5000 + 700 + 4 + uint32(key), Invalidated: 0x177, Pair: pair, Flags: uint32(flags)},
		{ID: 6, Operation: 7, Invalidated: 600, Pair: pair, Flags: uint32(flags)},
		{ID: 7, Operation: 0, Invalidated: 5600, Pair: pair, Flags: uint32(flags)},
	}
	if got, _ := b.takeAll(t); !slices.Equal(got, want) {
		t.Errorf("got\n%+v, want\n%+v", got, want)
	}
	if n, err := b.l.PostReceive(b.pair, []verbs.ReceiveWork{{ID: 8, Address: 1000, Length: 200, LocalKey: 30}, {ID: 9}}); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	want = []verbs.Completion{{ID: 8, Operation: verbs.CompletedReceive, Vendor: 1, Length: 1230, Pair: pair}, {ID: 9, Operation: verbs.CompletedReceive, Pair: pair}}
	if _, got := b.takeAll(t); !slices.Equal(got, want) {
		t.Errorf("got\n%+v, want\n%+v", got, want)
	}
	check(t, b.l.FreeWindow(window))
	check(t, b.l.Deregister(region))
}

// proves R-17
func TestBadWRGivesTheAcceptedCountAtEachIndex(t *testing.T) {
	b := newBench(t)
	const n = 70 // three lists of sends, two of receives
	for i := range n {
		for _, way := range []uint64{0xBAD0, 0xBAD5} {
			sends, recvs := writes(n), receives(n)
			sends[i].ID, recvs[i].ID = refusal(way, syscall.ENOMEM), refusal(way, syscall.EINVAL)
			if got, err := b.l.PostSend(b.pair, sends); got != i || !errors.Is(err, syscall.ENOMEM) {
				t.Errorf("send %d: accepted %d, %v", i, got, err)
			}
			if got, err := b.l.PostReceive(b.pair, recvs); got != i || !errors.Is(err, syscall.EINVAL) {
				t.Errorf("receive %d: accepted %d, %v", i, got, err)
			}
			sent, received := b.takeAll(t)
			if !slices.Equal(ids(sent), count(i)) || !slices.Equal(ids(received), count(i)) {
				t.Fatalf("refused at %d: the device took %v and %v", i, ids(sent), ids(received))
			}
		}
	}
}

// proves R-17
func TestAnUnprovenBadWRGivesANegativeCount(t *testing.T) {
	b := newBench(t)
	for _, way := range []uint64{0xBAD1, 0xBAD2, 0xBAD3, 0xBAD4} {
		for _, i := range []int{0, 1, 31, 32, 69} {
			sends, recvs := writes(70), receives(70)
			sends[i].ID, recvs[i].ID = refusal(way, syscall.ENOMEM), refusal(way, syscall.ENOMEM)
			if got, err := b.l.PostSend(b.pair, sends); got >= 0 || !errors.Is(err, syscall.ENOMEM) {
				t.Errorf("%x at send %d: accepted %d, %v", way, i, got, err)
			}
			if got, err := b.l.PostReceive(b.pair, recvs); got >= 0 || !errors.Is(err, syscall.ENOMEM) {
				t.Errorf("%x at receive %d: accepted %d, %v", way, i, got, err)
			}
			b.takeAll(t)
		}
	}
}

func TestWorkThatNoDeviceCouldKnowIsRefusedBehindWhatIsBeforeIt(t *testing.T) {
	b := newBench(t)
	for _, wrong := range []verbs.SendWork{
		{Operation: 0}, {Operation: 7}, {Operation: verbs.BindWindow, Region: 1}, {Operation: verbs.BindWindow, Window: 1},
	} {
		for _, i := range []int{0, 5, 32, 40} {
			work := writes(50)
			work[i] = wrong
			if got, err := b.l.PostSend(b.pair, work); got != i || !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%+v at %d: accepted %d, %v", wrong, i, got, err)
			}
			if sent, _ := b.takeAll(t); !slices.Equal(ids(sent), count(i)) {
				t.Errorf("%+v at %d: the device took %v", wrong, i, ids(sent))
			}
		}
	}
	if n, err := b.l.PostSend(b.pair, nil); n != 0 || err != nil {
		t.Errorf("nothing: %d, %v", n, err)
	}
}

func TestEachBindNamesTheWindowByItsPresentKey(t *testing.T) {
	b := newBench(t)
	region, _, _, err := b.l.Register(b.domain, 4096, 100, 0x13)
	check(t, err)
	window, first, err := b.l.AllocateWindow(b.domain)
	check(t, err)
	bind := func(key verbs.RemoteKey) verbs.SendWork {
		return verbs.SendWork{Operation: verbs.BindWindow, Flags: verbs.Signaled, Window: window, Region: region, Span: 1, RemoteKey: key}
	}
	refused := bind(first + 9)
	refused.ID = refusal(0xBAD0, syscall.ENOMEM)
	// Two binds in one list, one alone, one that was not accepted and so gives no key, and one after it.
	for i, work := range [][]verbs.SendWork{{bind(first + 1), bind(first + 2)}, {bind(first + 3)}, {refused}, {bind(first + 4)}} {
		if n, err := b.l.PostSend(b.pair, work); (n != len(work) || err != nil) && i != 2 {
			t.Fatal(n, err)
		}
	}
	sent, _ := b.takeAll(t)
	var keys []verbs.RemoteKey
	for _, c := range sent {
		keys = append(keys, verbs.RemoteKey(c.Vendor)-first)
	}
	if !slices.Equal(keys, []verbs.RemoteKey{0, 1, 2, 3}) {
		t.Errorf("present keys were %v", keys)
	}
	check(t, b.l.FreeWindow(window))
	check(t, b.l.Deregister(region))
}

func TestPollTakesSendsThenReceivesAndNoMoreThanItHasRoomFor(t *testing.T) {
	b := newBench(t)
	for _, n := range []int{0, 1, 31, 32, 33, 64, 100} {
		for _, room := range []int{1, 2, 32, 33, 64, 65, 99, 100, 150, 200, 300} {
			if got, err := b.l.PostSend(b.pair, writes(n)); got != n || err != nil {
				t.Fatal(got, err)
			}
			if got, err := b.l.PostReceive(b.pair, receives(n)); got != n || err != nil {
				t.Fatal(got, err)
			}
			out := make([]verbs.Completion, room+1)
			out[room].ID = 77
			sent, received, err := b.l.Poll(b.sends, b.receives, out[:room])
			if err != nil || sent != min(n, room) || received != min(n, room-sent) || out[room].ID != 77 {
				t.Fatalf("%d each, room for %d: took %d and %d, %v", n, room, sent, received, err)
			}
			if !slices.Equal(ids(out[:sent]), count(sent)) || !slices.Equal(ids(out[sent:sent+received]), count(received)) {
				t.Fatalf("%d each, room for %d: took %v", n, room, ids(out))
			}
			b.takeAll(t)
		}
	}
	if _, err := b.l.PostSend(b.pair, writes(3)); err != nil {
		t.Fatal(err)
	}
	out := make([]verbs.Completion, 10)
	if sent, received, err := b.l.Poll(0, b.receives, out); sent != 0 || received != 0 || err != nil {
		t.Error("without sends:", sent, received, err)
	}
	if sent, received, err := b.l.Poll(b.sends, b.sends, out[:2]); sent != 2 || received != 0 || err != nil {
		t.Error("one queue for both:", sent, received, err)
	}
	if sent, received, err := b.l.Poll(b.sends, 0, nil); sent != 0 || received != 0 || err != nil {
		t.Error("no room:", sent, received, err)
	}
	if sent, received, err := b.l.Poll(b.sends, 0, out); sent != 1 || received != 0 || err != nil {
		t.Error("without receives:", sent, received, err)
	}
}

// proves R-17
func TestAFailedPollNamesItsQueueAndKeepsWhatWasTakenBefore(t *testing.T) {
	b := newBench(t)
	out := make([]verbs.Completion, 100)
	for _, way := range []uint64{0xBAD8, 0xBAD9} {
		for _, n := range []int{0, 3, 40} {
			sends := append(writes(n), verbs.SendWork{ID: refusal(way, 2), Operation: verbs.Write, Flags: verbs.Signaled})
			if _, err := b.l.PostSend(b.pair, sends); err != nil {
				t.Fatal(err)
			}
			sent, err := pollOut(t, b, out, n)
			fails(t, err, "queue of sends", way)
			recvs := append(receives(n), verbs.ReceiveWork{ID: refusal(way, 2)})
			if _, err := b.l.PostReceive(b.pair, recvs); err != nil {
				t.Fatal(err)
			}
			received, err := pollOut(t, b, out, n)
			fails(t, err, "queue of receives", way)
			if sent != n || received != n {
				t.Errorf("%d before the failure: took %d and %d", n, sent, received)
			}
		}
	}
}

// pollOut polls until the failure; what comes before it may come alone.
func pollOut(t *testing.T, b *bench, out []verbs.Completion, most int) (taken int, err error) {
	for range most + 2 {
		sent, received, e := b.l.Poll(b.sends, b.receives, out[taken:])
		taken += sent + received
		if e != nil {
			return taken, e
		}
	}
	t.Fatal("no poll failed")
	return 0, nil
}

func fails(t *testing.T, err error, queue string, way uint64) {
	t.Helper()
	var native *verbs.CallError
	if !errors.As(err, &native) || native.Call != "ibv_poll_cq" || native.Errno != syscall.EIO {
		t.Fatalf("got %v", err)
	}
	contains(t, err, queue)
	if way == 0xBAD8 {
		contains(t, err, fmt.Sprintf("it returned %d", -2))
	}
}

func TestHotCallsAllocateNothing(t *testing.T) {
	b := newBench(t)
	sends, recvs, out := writes(40), receives(40), make([]verbs.Completion, 100)
	for name, call := range map[string]func(){
		"PostSend, PostReceive, Poll": func() {
			if n, err := b.l.PostSend(b.pair, sends); n != 40 || err != nil {
				t.Error(n, err)
			}
			if n, err := b.l.PostReceive(b.pair, recvs); n != 40 || err != nil {
				t.Error(n, err)
			}
			if sent, received, err := b.l.Poll(b.sends, b.receives, out); sent != 40 || received != 40 || err != nil {
				t.Error(sent, received, err)
			}
		},
		"Arm": func() {
			if err := b.l.Arm(b.sends); err != nil {
				t.Error(err)
			}
		},
		"NextEvent": func() {
			if _, ok, err := b.l.NextEvent(b.channel); ok || err != nil {
				t.Error(ok, err)
			}
		},
		"NextAsync": func() {
			if _, ok, err := b.l.NextAsync(b.device); ok || err != nil {
				t.Error(ok, err)
			}
		},
	} {
		if n := testing.AllocsPerRun(100, call); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// BenchmarkCrossing is the least that a call into C takes here; what the others take beyond it is theirs.
func BenchmarkCrossing(b *testing.B) {
	k := newBench(b)
	for b.Loop() {
		if k.l.AsyncDescriptor(k.device) < 0 {
			b.Fatal("no descriptor")
		}
	}
}

func BenchmarkPollEmpty(b *testing.B) {
	k := newBench(b)
	out := make([]verbs.Completion, 64)
	for b.Loop() {
		if sent, received, err := k.l.Poll(k.sends, k.receives, out); sent+received != 0 || err != nil {
			b.Fatal(sent, received, err)
		}
	}
}

// BenchmarkPostAndPoll posts a list and takes its completions: two crossings for n works.
func BenchmarkPostAndPoll(b *testing.B) {
	for _, n := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			k := newBench(b)
			work, out := writes(n), make([]verbs.Completion, 64)
			for b.Loop() {
				if got, err := k.l.PostSend(k.pair, work); got != n || err != nil {
					b.Fatal(got, err)
				}
				if sent, _, err := k.l.Poll(k.sends, k.receives, out); sent != n || err != nil {
					b.Fatal(sent, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/work")
		})
	}
}
