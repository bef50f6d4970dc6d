package kerneltest

import (
	"syscall"
	"time"

	"github.com/orbitte/orbitte/reactor"
)

var cancelCases = []conformance{
	{"CancelledReceiveEndsOnceAndLosesNothing", cancelReceive},
	{"CancelBeforeTheFirstPoll", cancelAtOnce},
	{"CancelTwiceEndsOnce", cancelTwice},
	{"CancelledAcceptKeepsTheConnection", cancelAccept},
	{"CancelledWatchEndsOnce", cancelWatch},
	{"CancelledSendEndsOnce", cancelSend},
	{"CancelOfFinishedOrUnknownIsIgnored", cancelUnknown},
	{"CancelRacingDataLosesNoByte", cancelRace},
	{"MemoryIsFreeAfterTheEnd", cancelledMemory},
	{"ManyOperationsAreCancelledTogether", cancelMany},
	{"CancelOneOfManyLeavesTheOthers", cancelOne},
}

func cancelReceive(r *rig) {
	k, c, s := r.pair()
	buffer := r.memory(4)
	receiving := r.receive(k, s, buffer)
	r.pass(time.Millisecond)
	r.pending(receiving)
	k.Cancel(receiving)
	r.fails(receiving, syscall.ECANCELED)
	r.must(r.send(k, c, r.text("next")))
	got := ""
	for len(got) < 4 {
		n := r.must(r.receive(k, s, buffer)).N
		got += string(buffer[:n])
	}
	if got != "next" {
		r.Fatalf("got %q", got)
	}
}

func cancelAtOnce(r *rig) {
	k, _, s := r.pair()
	receiving := r.receive(k, s, r.memory(4))
	k.Cancel(receiving)
	r.fails(receiving, syscall.ECANCELED)
	r.pass(2 * time.Millisecond) // a second completion would be found by the rig
}

func cancelTwice(r *rig) {
	k, _, s := r.pair()
	receiving := r.receive(k, s, r.memory(4))
	r.turn(0)
	k.Cancel(receiving)
	k.Cancel(receiving)
	r.fails(receiving, syscall.ECANCELED)
	k.Cancel(receiving)
	r.pass(2 * time.Millisecond)
}

func cancelAccept(r *rig) {
	k := r.kernel()
	listener, bound := r.listen(k, r.IPv4)
	accept := r.submit(k, reactor.Operation{Kind: reactor.Accept, Descriptor: listener})
	r.turn(0)
	k.Cancel(accept)
	r.fails(accept, syscall.ECANCELED)
	c, s := r.join(k, listener, bound, k)
	if got := r.transfer(k, s, c, r.text("still"), 8); string(got) != "still" {
		r.Fatalf("got %q", got)
	}
}

func cancelWatch(r *rig) {
	k, c, s := r.pair()
	watch := r.submit(k, reactor.Operation{Kind: reactor.Watch, Descriptor: s})
	r.pass(time.Millisecond)
	r.pending(watch)
	k.Cancel(watch)
	r.fails(watch, syscall.ECANCELED)
	again := r.submit(k, reactor.Operation{Kind: reactor.Watch, Descriptor: s})
	r.must(r.send(k, c, r.text("x")))
	r.must(again)
}

func cancelSend(r *rig) {
	k, c, s := r.pair()
	waiting, sent := r.fill(k, c)
	k.Cancel(waiting)
	end := r.await(waiting)
	if end.Err != nil && end.Err != syscall.ECANCELED {
		r.Fatalf("cancelled send: %+v", end)
	}
	sent += end.N
	r.close(k, c)
	buffer, got := r.memory(1<<20), 0
	for {
		n := r.must(r.receive(k, s, buffer)).N
		if n == 0 {
			break
		}
		got += n
	}
	if got != sent {
		r.Fatalf("%d bytes were reported as sent, %d arrived", sent, got)
	}
}

func cancelUnknown(r *rig) {
	k, c, s := r.pair()
	buffer := r.memory(4)
	sending := r.send(k, c, r.text("a"))
	r.must(sending)
	k.Cancel(sending)
	k.Cancel(1 << 40)
	k.Cancel(0)
	r.must(r.receive(k, s, buffer))
	r.pass(time.Millisecond)
}

// cancelRace cancels receives while bytes arrive: each byte is delivered exactly once, by whichever
// receive did not end cancelled.
func cancelRace(r *rig) {
	k, c, s := r.pair()
	buffer := r.memory(4)
	var got []byte
	const rounds = 60
	for i := range rounds {
		receiving := r.receive(k, s, buffer)
		if i%3 == 0 {
			r.turn(0)
		}
		sending := r.send(k, c, r.text(string(rune('0'+i%10))))
		if i%2 == 0 {
			r.turn(0)
		}
		k.Cancel(receiving)
		end := r.await(receiving)
		if end.Err != nil && end.Err != syscall.ECANCELED {
			r.Fatalf("round %d: %v", i, end.Err)
		}
		got = append(got, buffer[:end.N]...)
		r.must(sending)
	}
	for len(got) < rounds {
		n := r.must(r.receive(k, s, buffer)).N
		got = append(got, buffer[:n]...)
	}
	for i, b := range got {
		if b != byte('0'+i%10) {
			r.Fatalf("byte %d is %q", i, b)
		}
	}
}

// field case F-14: nothing writes a buffer after its operation has ended.
func cancelledMemory(r *rig) {
	k, c, s := r.pair()
	old, fresh := r.memory(8), r.memory(8)
	for i := range 20 {
		receiving := r.receive(k, s, old)
		r.turn(0)
		k.Cancel(receiving)
		r.fails(receiving, syscall.ECANCELED)
		for j := range old {
			old[j] = 0xEE
		}
		r.must(r.send(k, c, r.text("fresh")))
		for got := 0; got < 5; {
			got += r.must(r.receive(k, s, fresh[got:])).N
		}
		for j := range old {
			if old[j] != 0xEE {
				r.Fatalf("round %d: byte %d of a returned buffer became %#x", i, j, old[j])
			}
		}
		if string(fresh[:5]) != "fresh" {
			r.Fatalf("got %q", fresh)
		}
	}
}

func cancelMany(r *rig) {
	k := r.kernel()
	listener, bound := r.listen(k, r.IPv4)
	var outstanding []reactor.Ticket
	for range 100 {
		c, s := r.join(k, listener, bound, k)
		for _, d := range []reactor.Descriptor{c, s} {
			outstanding = append(outstanding, r.receive(k, d, r.memory(1)),
				r.submit(k, reactor.Operation{Kind: reactor.Watch, Descriptor: d}))
		}
	}
	r.turn(0)
	for _, ticket := range outstanding {
		k.Cancel(ticket)
	}
	for _, ticket := range outstanding {
		r.fails(ticket, syscall.ECANCELED)
	}
}

func cancelOne(r *rig) {
	k := r.kernel()
	listener, bound := r.listen(k, r.IPv4)
	var clients []reactor.Descriptor
	var receives []reactor.Ticket
	for range 8 {
		c, s := r.join(k, listener, bound, k)
		clients = append(clients, c)
		receives = append(receives, r.receive(k, s, r.memory(4)))
	}
	r.turn(0)
	k.Cancel(receives[3])
	r.fails(receives[3], syscall.ECANCELED)
	for i, c := range clients {
		if i != 3 {
			r.pending(receives[i])
			r.must(r.send(k, c, r.text("x")))
			r.must(receives[i])
		}
	}
}
