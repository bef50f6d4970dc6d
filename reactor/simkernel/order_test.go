package simkernel_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// orders lets so many streams of a kernel become ready in turn, and tells in which order their receives are done, Poll by Poll.
func orders(t *testing.T, seed uint64, reorder, streams int) (order []int, polls string) {
	t.Helper()
	w := simkernel.NewWorld(seed, simkernel.WorldOptions{Reorder: reorder})
	k := w.Process("one", hostA).Kernel()
	d, bound, err := k.Listen(netip.AddrPortFrom(hostA, 0), reactor.SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := make([]reactor.Completion, 64)
	poll := func(wanted int) (got []reactor.Completion) {
		for end := w.Now().After(time.Second); len(got) < wanted; {
			n := k.Poll(out, end)
			if n == 0 {
				t.Fatalf("%d of %d operations ended", len(got), wanted)
			}
			got = append(got, out[:n]...)
			polls += fmt.Sprint(n, " ")
		}
		return got
	}
	var ends [2][]reactor.Descriptor
	for range streams {
		c, err := k.Open(bound, reactor.SocketOptions{})
		if err != nil {
			t.Fatal(err)
		}
		k.Submit(&reactor.Operation{Kind: reactor.Accept, Descriptor: d, Ticket: 1})
		k.Submit(&reactor.Operation{Kind: reactor.Connect, Descriptor: c, Address: bound, Ticket: 2})
		for _, e := range poll(2) {
			if e.Ticket == 1 {
				ends[1] = append(ends[1], e.Descriptor)
			}
		}
		ends[0] = append(ends[0], c)
	}
	for _, c := range ends[0] {
		k.Submit(&reactor.Operation{Kind: reactor.Send, Descriptor: c, Buffers: [2][]byte{{1}}})
	}
	poll(streams)
	w.Advance(time.Second) // everything has arrived
	polls = ""
	for i, s := range ends[1] {
		k.Submit(&reactor.Operation{Kind: reactor.Receive, Descriptor: s, Ticket: reactor.Ticket(i), Buffers: [2][]byte{make([]byte, 1)}})
	}
	for _, e := range poll(streams) {
		order = append(order, int(e.Ticket))
	}
	return order, polls
}

// A world that reorders lets operations overtake each other, in an order that its seed decides and repeats; all orders of a few
// come, and none waits for long. One that does not keeps to the order in which they became ready.
//
// proves L-2, L-3
func TestReadyOperationsOvertakeEachOtherAsTheSeedSays(t *testing.T) {
	seen, cut := map[string]bool{}, map[string]bool{}
	for seed := uint64(1); seed <= 300; seed++ {
		order, polls := orders(t, seed, 3, 4)
		again, pollsAgain := orders(t, seed, 3, 4)
		if fmt.Sprint(order, polls) != fmt.Sprint(again, pollsAgain) {
			t.Fatalf("SEED=%d: %v in %s, then %v in %s", seed, order, polls, again, pollsAgain)
		}
		seen[fmt.Sprint(order)], cut[polls] = true, true
	}
	if len(seen) != 24 || len(cut) < 3 {
		t.Errorf("%d of 24 orders, %d ways to end a Poll", len(seen), len(cut))
	}
	for seed := uint64(1); seed <= 20; seed++ {
		if order, polls := orders(t, seed, 0, 40); fmt.Sprint(order) != fmt.Sprint(upTo(40)) || polls != "40 " {
			t.Fatalf("SEED=%d: %v in %s", seed, order, polls)
		}
		order, _ := orders(t, seed, 6, 40)
		for place, i := range order {
			if place > i+16 {
				t.Fatalf("SEED=%d: number %d came at place %d: %v", seed, i, place, order)
			}
		}
	}
}

func upTo(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}
