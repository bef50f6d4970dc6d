package kerneltest

import (
	"slices"
	"time"

	"github.com/orbitte/orbitte/reactor"
)

var fairCases = []conformance{
	{"ReadyDescriptorsTakeTurns", takeTurns},
	{"CompletionsBeyondTheSliceComeLater", boundedSlice},
	{"BusyStreamDoesNotHideAQuietOne", quietStream},
	{"BusyStreamDoesNotHideAccept", busyAccept},
	{"LikelyStreamDoesNotHideAnother", likelyStream},
	{"SmallOperationIsNotBehindPayload", smallFirst},
}

// takeTurns keeps six streams readable all the time and takes two completions at once: all of them
// must advance alike.
func takeTurns(r *rig) {
	if r.Reorders {
		r.Skip("reorders: what is ready comes in any order on this kernel")
	}
	k := r.kernel()
	listener, bound := r.listen(k, r.IPv4)
	const streams, rounds = 6, 60
	var served [streams]int
	var receiving [streams]reactor.Ticket
	var readers [streams]reactor.Descriptor
	buffer := r.memory(streams)
	for i := range streams {
		c, s := r.join(k, listener, bound, k)
		data := r.memory(rounds * 2)
		for sent := 0; sent < len(data); {
			sent += r.must(r.send(k, c, data[sent:])).N
		}
		readers[i] = s
	}
	r.pass(5 * time.Millisecond)
	for i := range streams {
		receiving[i] = r.receive(k, readers[i], buffer[i:i+1])
	}
	for total := 0; total < streams*rounds; {
		total += r.poll(k, r.out[:2], k.Now().After(time.Millisecond))
		least, most := served[0], served[0]
		for i := range streams {
			if r.operations[receiving[i]].ended {
				r.must(receiving[i])
				served[i]++
				receiving[i] = r.receive(k, readers[i], buffer[i:i+1])
			}
			least, most = min(least, served[i]), max(most, served[i])
		}
		if most-least > 2 {
			r.Fatalf("streams were served %v times", served)
		}
	}
}

// likelyStream answers again and again, until a kernel that guesses asks nobody else; what comes on another stream while
// the likely one stays silent is found all the same, by Polls that must not block.
func likelyStream(r *rig) {
	k := r.kernel()
	listener, bound := r.listen(k, r.IPv4)
	c, s := r.join(k, listener, bound, k)
	otherEnd, other := r.join(k, listener, bound, k)
	for range 3 {
		waiting := r.receive(k, other, r.memory(1))
		for range 40 {
			receiving := r.receive(k, s, r.memory(1))
			for range 3 {
				r.poll(k, r.out, reactor.Past)
			}
			r.must(r.send(k, c, r.text("x")))
			r.must(receiving)
		}
		silent := r.receive(k, s, r.memory(1))
		r.poll(k, r.out, reactor.Past)
		r.must(r.send(k, otherEnd, r.text("y")))
		r.pass(time.Millisecond) // it has arrived
		for end := k.Now().After(patience); !r.operations[waiting].ended; r.poll(k, r.out, reactor.Past) {
			if k.Now() > end {
				r.Fatal("a stream with bytes is hidden behind one without")
			}
		}
		r.must(r.send(k, c, r.text("x")))
		r.must(silent)
	}
}

// smallFirst: payload waits for the next Poll when something else is done in this one, and is done piece by piece; what a
// small request needs is never behind more than one piece of payload.
//
// proves L-2
func smallFirst(r *rig) {
	if !r.Concurrent {
		r.Skip("virtual-time: payload takes no time on this kernel")
	}
	k := r.kernel()
	listener, bound := r.listen(k, r.IPv4)
	const payload = 64<<10 + 1
	var streams []reactor.Descriptor
	for range 3 {
		c, _ := r.join(k, listener, bound, k)
		streams = append(streams, c)
	}
	var sends []reactor.Ticket // they are done at once, whether their peer reads or not
	for i, bytes := range []int{payload, payload, 1} {
		sends = append(sends, r.send(k, streams[i], r.memory(bytes)))
	}
	var order []int
	for end := k.Now().After(patience); len(order) < len(sends) && k.Now() < end; {
		if n := r.poll(k, r.out, reactor.Past); n > 1 {
			r.Errorf("%d operations were done in one Poll", n)
		}
		for i, ticket := range sends {
			if r.operations[ticket].ended && !slices.Contains(order, i) {
				order = append(order, i)
			}
		}
	}
	if !slices.Equal(order, []int{2, 0, 1}) {
		r.Errorf("done in the order %v", order)
	}
}

func boundedSlice(r *rig) {
	k := r.kernel()
	listener, bound := r.listen(k, r.IPv4)
	const streams = 12
	var readers []reactor.Descriptor
	for range streams {
		c, s := r.join(k, listener, bound, k)
		r.must(r.send(k, c, r.text("x")))
		readers = append(readers, s)
	}
	r.pass(2 * time.Millisecond)
	var receives []reactor.Ticket
	for _, s := range readers {
		receives = append(receives, r.receive(k, s, r.memory(1)))
	}
	ended := 0
	for end := k.Now().After(patience); ended < streams; {
		if k.Now() > end {
			r.Fatalf("%d of %d operations ended", ended, streams)
		}
		ended += r.poll(k, r.out[:1], k.Now().After(time.Millisecond))
	}
	for _, ticket := range receives {
		r.must(ticket)
	}
}

// pump keeps a stream busy: a byte is always on its way, sent and received anew for ever.
type pump struct {
	c, s               reactor.Descriptor
	sending, receiving reactor.Ticket
	frame, buffer      []byte
}

func (r *rig) newPump(k reactor.Kernel, c, s reactor.Descriptor) *pump {
	p := &pump{c: c, s: s, frame: r.memory(64), buffer: r.memory(1)}
	p.sending, p.receiving = r.send(k, c, p.frame), r.receive(k, s, p.buffer)
	return p
}

func (p *pump) turn(r *rig, k reactor.Kernel) {
	if r.operations[p.sending].ended {
		p.sending = r.send(k, p.c, p.frame)
	}
	if r.operations[p.receiving].ended {
		p.receiving = r.receive(k, p.s, p.buffer)
	}
}

// stepUntil polls for one completion at a time, keeps the pumps going and says how many polls the
// operation needed.
func (r *rig) stepUntil(k reactor.Kernel, ticket reactor.Ticket, pumps ...*pump) int {
	r.Helper()
	polls := 0
	for end := k.Now().After(patience); !r.operations[ticket].ended; polls++ {
		if k.Now() > end {
			r.Fatalf("ticket %d did not end in %d polls", ticket, polls)
		}
		r.poll(k, r.out[:1], k.Now().After(time.Millisecond))
		for _, p := range pumps {
			p.turn(r, k)
		}
	}
	return polls
}

func quietStream(r *rig) {
	k := r.kernel()
	listener, bound := r.listen(k, r.IPv4)
	var pumps []*pump
	for range 3 {
		c, s := r.join(k, listener, bound, k)
		pumps = append(pumps, r.newPump(k, c, s))
	}
	c, s := r.join(k, listener, bound, k)
	for range 10 {
		receiving := r.receive(k, s, r.memory(1))
		r.stepUntil(k, r.send(k, c, r.text("q")), pumps...)
		r.stepUntil(k, receiving, pumps...)
	}
}

func busyAccept(r *rig) {
	k := r.kernel()
	listener, bound := r.listen(k, r.IPv4)
	c, s := r.join(k, listener, bound, k)
	busy := r.newPump(k, c, s)
	for range 5 {
		accept := r.submit(k, reactor.Operation{Kind: reactor.Accept, Descriptor: listener})
		client := r.open(k, bound)
		connect := r.connect(k, client, bound)
		r.stepUntil(k, connect, busy)
		r.stepUntil(k, accept, busy)
		r.own(k, r.must(accept).Descriptor)
		r.must(connect)
	}
}
