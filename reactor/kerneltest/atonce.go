package kerneltest

import (
	"net/netip"
	"syscall"
	"time"

	"github.com/orbitte/orbitte/reactor"
)

var atOnceCases = []conformance{
	{"AllOfItGoesWhenThereIsRoom", atOnceAll},
	{"BuffersAreGathered", atOnceGathered},
	{"WhatFindsNoRoomIsLeft", atOnceFull},
	{"ManyAtATimeWaitForNobody", atOnceMany},
	{"ASendBehindItWaitsForSpace", atOnceThenSend},
	{"AnEarlierSendIsNotOvertaken", atOnceBehind},
	{"ErrorOfTheStreamIsItsEnd", atOnceError},
	{"CancelledEndsOnce", atOnceCancel},
	{"MemoryIsFreeAfterTheEnd", atOnceMemory},
	{"OtherKindsAreRefused", atOnceOthers},
}

// attempt submits a Send that does not wait.
func (r *rig) attempt(k reactor.Kernel, d reactor.Descriptor, buffers ...[]byte) reactor.Ticket {
	op := reactor.Operation{Kind: reactor.Send, AtOnce: true, Descriptor: d}
	op.More = buffers[copy(op.Buffers[:], buffers):]
	return r.submit(k, op)
}

// attempted submits one and takes its end, for which a few Polls that must not block are enough.
func (r *rig) attempted(k reactor.Kernel, d reactor.Descriptor, buffers ...[]byte) reactor.Completion {
	r.Helper()
	ticket := r.attempt(k, d, buffers...)
	for range 3 {
		r.poll(k, r.out, reactor.Past)
	}
	if o := r.operations[ticket]; o.ended {
		return o.Completion
	}
	r.Fatal("a Send AtOnce has not ended after three Polls")
	return reactor.Completion{}
}

// stuff sends AtOnce, bytes of a counter, until there is no room for any of block; it returns how many went.
func (r *rig) stuff(k reactor.Kernel, d reactor.Descriptor, block []byte) (sent int) {
	r.Helper()
	part, last := false, -1
	for range 2000 {
		for i := range block {
			block[i] = counterByte(sent + i)
		}
		c := r.attempted(k, d, block)
		if c.Err != nil {
			r.Fatalf("a Send AtOnce behind %d bytes: %v", sent, c.Err)
		}
		sent += c.N
		if part = part || c.N > 0 && c.N < len(block); c.N == 0 && last != 0 {
			r.quiet() // what is on its way between the sockets makes room
		} else if c.N == 0 {
			if !part {
				r.Errorf("none of the Sends took a part of its %d bytes", len(block))
			}
			return sent
		}
		last = c.N
	}
	r.Fatalf("sent %d bytes that nobody reads", sent)
	return 0
}

// quiet lets what is on its way arrive.
func (r *rig) quiet() { r.pass(2 * time.Millisecond) }

// counted reads n bytes of a counter.
func (r *rig) counted(k reactor.Kernel, d reactor.Descriptor, n int) {
	r.Helper()
	buffer := r.memory(1 << 20)
	for got := 0; got < n; {
		moved := r.must(r.receive(k, d, buffer[:min(len(buffer), n-got)])).N
		for i := range moved {
			if buffer[i] != counterByte(got+i) {
				r.Fatalf("byte %d of %d is another", got+i, n)
			}
		}
		got += moved
	}
}

func atOnceAll(r *rig) {
	k, c, s := r.pair()
	if end := r.attempted(k, c, r.text("header"), r.text("payload")); end.Err != nil || end.N != len("headerpayload") {
		r.Fatalf("%+v of a small frame", end)
	}
	if got := r.read(k, s, len("headerpayload")); got != "headerpayload" {
		r.Fatalf("got %q", got)
	}
}

func atOnceGathered(r *rig) {
	k, c, s := r.pair()
	data := r.memory(5000)
	pattern(data, 3)
	list := pieces(data, 700, 0, 9)
	for sent := 0; sent < len(data); {
		end := r.attempted(k, c, behind(list, sent)...)
		if end.Err != nil || end.N == 0 {
			r.Fatalf("%+v behind %d bytes", end, sent)
		}
		if got := r.read(k, s, end.N); got != string(data[sent:][:end.N]) {
			r.Fatalf("the bytes behind %d differ", sent)
		}
		sent += end.N
	}
}

// atOnceFull: part of a Send goes, then nothing of the next, and each ends although nobody reads. Every byte that was reported
// as sent arrives, and there is room again then.
//
// proves T-1
func atOnceFull(r *rig) {
	k, c, s := r.pair()
	r.counted(k, s, r.stuff(k, c, r.memory(96<<10+1)))
	r.quiet()
	if end := r.attempted(k, c, r.text("more")); end.Err != nil || end.N == 0 {
		r.Fatalf("%+v where there is room again", end)
	}
}

// atOnceMany: many that are tried together, on streams without room or with little, all end.
func atOnceMany(r *rig) {
	k := r.kernel()
	listener, bound := r.listen(k, r.IPv4)
	block := r.memory(96<<10 + 1)
	var full []reactor.Descriptor
	for range 6 {
		c, _ := r.join(k, listener, bound, k)
		r.stuff(k, c, block)
		full = append(full, c)
	}
	for _, size := range []int{1, len(block)} {
		var tickets []reactor.Ticket
		for _, c := range full {
			tickets = append(tickets, r.attempt(k, c, block[:size]))
		}
		for range 3 * len(full) {
			r.poll(k, r.out, reactor.Past)
		}
		for i, ticket := range tickets {
			if o := r.operations[ticket]; !o.ended || o.Err != nil {
				r.Errorf("stream %d, %d bytes: ended %v, %+v", i, size, o.ended, o.Completion)
			}
		}
	}
}

// atOnceThenSend: one that found no room leaves nothing behind that a Send, which waits, would miss; at either end of a stream.
func atOnceThenSend(r *rig) {
	k, c, s := r.pair()
	for range 4 {
		c, s = s, c
		block := r.memory(96<<10 + 1)
		waiting, sent := r.stuck(k, c, block, r.stuff(k, c, block))
		r.counted(k, s, sent)
		r.read(k, s, r.must(waiting).N)
	}
}

// stuck sends further bytes of the counter until a Send waits, which it returns with the number of bytes before it: a socket
// may find a little room later.
func (r *rig) stuck(k reactor.Kernel, d reactor.Descriptor, block []byte, sent int) (reactor.Ticket, int) {
	r.Helper()
	for range 100 {
		for i := range block {
			block[i] = counterByte(sent + i)
		}
		waiting := r.send(k, d, block)
		r.quiet()
		if !r.operations[waiting].ended {
			return waiting, sent
		}
		sent += r.must(waiting).N
	}
	r.Fatalf("sent %d bytes that nobody reads", sent)
	return 0, 0
}

// atOnceBehind: a Send that waits has the descriptor's place, and another one beside it is refused, AtOnce or not.
func atOnceBehind(r *rig) {
	if !r.Concurrent {
		r.Skip("panics: a second Send on a descriptor is a mistake that this kernel does not answer")
	}
	k, c, s := r.pair()
	block := r.memory(96<<10 + 1)
	waiting, sent := r.stuck(k, c, block, r.stuff(k, c, block))
	r.fails(r.attempt(k, c, r.text("behind")), syscall.EBUSY)
	r.pending(waiting)
	r.counted(k, s, sent)
	n := r.must(waiting).N
	got := r.read(k, s, n)
	for i := range n {
		if got[i] != counterByte(sent+i) {
			r.Fatalf("byte %d of %d is another", i, n)
		}
	}
}

func atOnceError(r *rig) {
	k, c, s := r.pair()
	r.must(r.send(k, s, r.text("unread")))
	r.must(r.submit(k, reactor.Operation{Kind: reactor.Watch, Descriptor: c}))
	receiving := r.receive(k, s, r.memory(8))
	r.close(k, c)
	r.fails(receiving, syscall.ECONNRESET)
	r.fails(r.attempt(k, s, r.text("late")), syscall.EPIPE, syscall.ECONNRESET)
	unconnected := r.open(k, netip.AddrPortFrom(r.IPv4, 1))
	r.fails(r.attempt(k, unconnected, r.text("early")), syscall.EPIPE, syscall.ENOTCONN)
}

func atOnceCancel(r *rig) {
	k, c, s := r.pair()
	sent := 0
	for i := range 40 {
		text := r.text(string(rune('a' + i%26)))
		ticket := r.attempt(k, c, text)
		if i%2 == 0 {
			r.poll(k, r.out, reactor.Past)
		}
		k.Cancel(ticket)
		end := r.await(ticket)
		if end.Err != nil && end.Err != syscall.ECANCELED {
			r.Fatalf("a cancelled Send AtOnce: %+v", end)
		}
		if got := r.read(k, s, end.N); got != string(text[:end.N]) {
			r.Fatalf("got %q", got)
		}
		sent += end.N
	}
	if sent == 0 || sent == 40 {
		r.Errorf("%d of 40 Sends that were cancelled went", sent)
	}
}

// atOnceMemory: what went is a copy, whoever reads it when.
//
// proves T-1
func atOnceMemory(r *rig) {
	k, c, s := r.pair()
	block := r.memory(96<<10 + 1)
	sent := r.stuff(k, c, block)
	clear(block)
	r.counted(k, s, sent)
}

func atOnceOthers(r *rig) {
	k, c, s := r.pair()
	r.must(r.send(k, c, r.text("x")))
	buffer := [2][]byte{r.memory(1)}
	for _, kind := range []reactor.Kind{reactor.Receive, reactor.Watch} {
		r.fails(r.submit(k, reactor.Operation{Kind: kind, AtOnce: true, Descriptor: s, Buffers: buffer}), syscall.EINVAL)
	}
	if got := r.read(k, s, 1); got != "x" {
		r.Fatalf("got %q", got)
	}
}
