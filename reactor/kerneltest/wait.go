package kerneltest

import (
	"testing"
	"time"

	"github.com/orbitte/orbitte/reactor"
)

var waitCases = []conformance{
	{"PollReturnsAtUntil", untilRespected},
	{"PastUntilDoesNotBlock", pastUntil},
	{"BriefPollPerformsAndTheNextOneLooks", briefPoll},
	{"WhatSpinningReceivesLosesNothingBehindIt", spinningReceives},
	{"WakeBeforePollIsNotLost", wakeBefore},
	{"WakeDuringPollEndsIt", wakeDuring},
	{"WakesAreConsumedTogether", wakesCoalesce},
	{"IdlePollMakesOneWait", idleWaits},
	{"WatchSeesDataAndTakesNone", watchData},
	{"WatchSeesTheEnd", watchEnd},
	{"WatchStandsBesideReceive", watchBeside},
	{"WatchIsOneShot", watchOnce},
	{"ForeignDescriptorIsWatched", watchForeign},
	{"ClockConvertsWallTime", wallTime},
	{"SteadyStateAllocatesNothing", noAllocation},
}

func untilRespected(r *rig) {
	k := r.kernel()
	for _, d := range []time.Duration{20 * time.Microsecond, time.Millisecond, 15 * time.Millisecond} {
		until := k.Now().After(d)
		if n := r.poll(k, r.out, until); n != 0 {
			r.Fatalf("%d completions out of nothing", n)
		}
		if now := k.Now(); now < until {
			r.Fatalf("Poll came back %v early", time.Duration(until-now))
		}
	}
}

func pastUntil(r *rig) {
	k, _, s := r.pair()
	receiving := r.receive(k, s, r.memory(1))
	start := k.Now()
	for range 10 {
		r.poll(k, r.out, reactor.Past)
		r.poll(k, r.out, 0)
		r.poll(k, r.out, k.Now())
	}
	if d := time.Duration(k.Now() - start); d > 2*time.Second {
		r.Fatalf("30 polls that must not block took %v", d)
	}
	r.pending(receiving)
}

// briefPoll: a Poll until Brief performs what was submitted and does not block; what has come is found by the other Polls
// between them, whatever they are.
func briefPoll(r *rig) {
	k, c, s := r.pair()
	for range 20 {
		receiving := r.receive(k, s, r.memory(1))
		r.pass(100 * time.Microsecond)
		sending := r.send(k, c, r.text("x"))
		for end := k.Now().After(patience); !r.operations[receiving].ended || !r.operations[sending].ended; {
			if k.Now() > end {
				r.Fatal("nothing came of a stream with bytes")
			}
			r.poll(k, r.out, reactor.Brief)
			if r.poll(k, r.out, reactor.Past) == 0 {
				r.poll(k, r.out, k.Now().After(time.Microsecond)) // virtual time passes only here
			}
		}
	}
}

// spinningReceives: a Receive that waits while the lane spins gets just what it asks for; what is behind that, bytes or the
// end of the stream, is found by a Poll that blocks, although no further event announces it.
func spinningReceives(r *rig) {
	for _, ends := range []bool{false, true} {
		k, c, s := r.pair()
		for i := range 10 {
			buffer := r.memory(4)
			receiving := r.receive(k, s, buffer)
			for range 5 + i { // a kernel may look in different ways
				r.poll(k, r.out, reactor.Past)
			}
			r.pending(receiving)
			sending := r.send(k, c, r.text("fourmore"))
			for end := k.Now().After(patience); !r.operations[receiving].ended || !r.operations[sending].ended; {
				if k.Now() > end {
					r.Fatal("nothing came of a stream with bytes")
				}
				if r.poll(k, r.out, reactor.Past) == 0 {
					r.poll(k, r.out, k.Now().After(time.Microsecond)) // virtual time passes only here
				}
			}
			n := r.must(receiving).N
			if got := string(buffer[:n]) + r.read(k, s, 8-n); got != "fourmore" {
				r.Fatalf("received %q, %d bytes of it first", got, n)
			}
		}
		if !ends {
			continue
		}
		receiving := r.receive(k, s, r.memory(4))
		r.poll(k, r.out, reactor.Past)
		r.must(r.send(k, c, r.text("last")))
		r.close(k, c)
		for range 20 {
			r.poll(k, r.out, reactor.Past)
		}
		if n := r.must(receiving).N; n < 4 {
			r.read(k, s, 4-n)
		}
		if n := r.must(r.receive(k, s, r.memory(4))).N; n != 0 {
			r.Fatalf("%d bytes behind the last", n)
		}
	}
}

func wakeBefore(r *rig) {
	k := r.kernel()
	for range 3 {
		k.Wake()
		start := k.Now()
		if n := r.poll(k, r.out, k.Now().After(patience)); n != 0 {
			r.Fatalf("%d completions out of nothing", n)
		}
		if d := time.Duration(k.Now() - start); d > patience/2 {
			r.Fatalf("the wake-up was lost: Poll blocked for %v", d)
		}
	}
}

func wakeDuring(r *rig) {
	k := r.kernel()
	start := k.Now()
	r.Later(5*time.Millisecond, k.Wake)
	r.poll(k, r.out, k.Now().After(patience))
	if d := time.Duration(k.Now() - start); d > patience/2 {
		r.Fatalf("the wake-up was lost: Poll blocked for %v", d)
	}
}

// wakesCoalesce: many wake-ups end one Poll; the next one blocks as if none had been.
func wakesCoalesce(r *rig) {
	k := r.kernel()
	for range 100 {
		k.Wake()
	}
	r.poll(k, r.out, k.Now().After(patience))
	until := k.Now().After(5 * time.Millisecond)
	r.poll(k, r.out, until)
	if now := k.Now(); now < until {
		r.Fatalf("a consumed wake-up ended another Poll %v early", time.Duration(until-now))
	}
}

// field case F-51: an idle kernel waits once and looks at nothing meanwhile.
func idleWaits(r *rig) {
	k, c, s := r.pair()
	r.receive(k, c, r.memory(1))
	r.submit(k, reactor.Operation{Kind: reactor.Watch, Descriptor: s})
	r.poll(k, r.out, reactor.Past)
	before := k.Counters()
	r.poll(k, r.out, k.Now().After(20*time.Millisecond))
	after := k.Counters()
	if waits := after.Waits - before.Waits; waits > 2 {
		r.Fatalf("an idle Poll waited %d times", waits)
	}
	if crossings := after.Crossings - before.Crossings; crossings > 4 {
		r.Fatalf("an idle Poll made %d system calls", crossings)
	}
}

func watchData(r *rig) {
	k, c, s := r.pair()
	watch := r.submit(k, reactor.Operation{Kind: reactor.Watch, Descriptor: s})
	r.pass(time.Millisecond)
	r.pending(watch)
	r.must(r.send(k, c, r.text("whole")))
	r.must(watch)
	r.must(r.submit(k, reactor.Operation{Kind: reactor.Watch, Descriptor: s})) // still readable
	buffer, got := r.memory(8), ""
	for len(got) < 5 {
		n := r.must(r.receive(k, s, buffer)).N
		got += string(buffer[:n])
	}
	if got != "whole" {
		r.Fatalf("got %q", got)
	}
}

func watchEnd(r *rig) {
	k, c, s := r.pair()
	watch := r.submit(k, reactor.Operation{Kind: reactor.Watch, Descriptor: s})
	r.turn(0)
	r.close(k, c)
	r.await(watch)
	if n := r.must(r.receive(k, s, r.memory(1))).N; n != 0 {
		r.Fatalf("%d bytes after the end", n)
	}
}

func watchBeside(r *rig) {
	k, c, s := r.pair()
	watch := r.submit(k, reactor.Operation{Kind: reactor.Watch, Descriptor: s})
	receiving := r.receive(k, s, r.memory(4))
	r.turn(0)
	r.must(r.send(k, c, r.text("xyz")))
	r.must(receiving)
	// The receive may have taken everything first; then the watch waits for more.
	r.must(r.send(k, c, r.text("x")))
	r.must(watch)
}

func watchOnce(r *rig) {
	k, c, s := r.pair()
	watch := r.submit(k, reactor.Operation{Kind: reactor.Watch, Descriptor: s})
	for range 3 {
		r.must(r.send(k, c, r.text("x")))
		r.must(watch)
		r.pass(time.Millisecond) // a second completion would be found by the rig
	}
}

func watchForeign(r *rig) {
	if r.Foreign == nil {
		r.Skip("no foreign descriptors here")
	}
	k := r.kernel()
	d, signal, end, err := r.Foreign()
	if err != nil {
		r.Fatal(err)
	}
	watch := r.submit(k, reactor.Operation{Kind: reactor.Watch, Descriptor: d})
	r.pass(time.Millisecond)
	r.pending(watch)
	r.Later(2*time.Millisecond, signal)
	start := k.Now()
	r.poll(k, r.out, k.Now().After(patience)) // blocks until the signal
	r.must(watch)
	if d := time.Duration(k.Now() - start); d > patience/2 {
		r.Fatalf("a readable descriptor did not end Poll: %v", d)
	}
	cancelled := r.submit(k, reactor.Operation{Kind: reactor.Watch, Descriptor: d})
	r.must(cancelled) // nobody took the signal: still readable
	end()
}

func wallTime(r *rig) {
	k := r.kernel()
	base := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	if d := k.At(base.Add(time.Hour)) - k.At(base); d < reactor.Instant(time.Hour-time.Second) || d > reactor.Instant(time.Hour+time.Second) {
		r.Fatalf("an hour of wall time is %v", time.Duration(d))
	}
	if a, b := k.Now(), k.Now(); b < a {
		r.Fatalf("the clock went back from %d to %d", a, b)
	}
	if k.At(time.Unix(0, 0)) > k.Now() {
		r.Fatal("a time long ago lies ahead")
	}
}

// noAllocation bounces a frame between two streams of one kernel.
func noAllocation(r *rig) {
	k, c, s := r.pair()
	frame, buffer := r.text("0123456789abcdef"), r.memory(16)
	var op reactor.Operation
	ticket := r.last + 1000
	run := func(op *reactor.Operation) int {
		ticket++
		op.Ticket = ticket
		k.Submit(op)
		for {
			if n := k.Poll(r.out, k.Now().After(time.Second)); n > 0 {
				return r.out[0].N
			}
		}
	}
	bounce := func() {
		op = reactor.Operation{Kind: reactor.Send, Descriptor: c, Buffers: [2][]byte{frame[:4], frame[4:]}}
		sent := run(&op)
		for sent > 0 {
			op = reactor.Operation{Kind: reactor.Receive, Descriptor: s, Buffers: [2][]byte{buffer[:2], buffer[2:]}}
			sent -= run(&op)
		}
	}
	for range 100 {
		bounce()
	}
	if n := testing.AllocsPerRun(200, bounce); n != 0 {
		r.Fatalf("a send and a receive allocate %v times", n)
	}
}
