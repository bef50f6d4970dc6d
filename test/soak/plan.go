package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// An action is a kind of fault.
type action string

const (
	doKill  action = "kill"   // SIGKILL; after length the next life of the peer starts on the same address
	doStop  action = "stop"   // SIGSTOP, and SIGCONT after length
	doFiles action = "starve" // RLIMIT_NOFILE down to what is open and bytes more, for length
	doReset action = "reset"  // the peer's proxies reset each connection behind bytes, for length
	doHole  action = "swallow"
	doHalf  action = "half-close"
	doDelay action = "delay" // each piece of data by bytes µs
	doLose  action = "lose-acknowledgement"
)

// An event is one fault: what happens to whom, when, for how long.
type event struct {
	at     time.Duration
	do     action
	peer   int
	length time.Duration
	bytes  int64
	up     bool // towards the source
}

func (e event) String() string {
	way := "back"
	if e.up {
		way = "up"
	}
	text := fmt.Sprintf("%9.3f %s p%d for %v", e.at.Seconds(), e.do, e.peer, e.length)
	switch e.do {
	case doKill, doStop:
		return text
	case doFiles:
		return fmt.Sprintf("%s, %d more descriptors", text, e.bytes)
	case doDelay:
		return fmt.Sprintf("%s, %d µs", text, e.bytes)
	}
	return fmt.Sprintf("%s, %s, behind %d bytes", text, way, e.bytes)
}

// weights of the actions, a kill first, and the longest time one of each lasts.
var weights = []struct {
	do     action
	weight int
	most   time.Duration
}{
	{doKill, 4, 1500 * time.Millisecond},
	{doStop, 3, 3 * time.Second},
	{doFiles, 2, 2 * time.Second},
	{doReset, 4, time.Second},
	{doHole, 3, 2 * time.Second},
	{doHalf, 2, time.Second},
	{doDelay, 2, 2 * time.Second},
	{doLose, 4, time.Second},
}

// steady peers are never killed: what grows slowly shows in them.
const steady = 2

// plan is every fault of a run, in order. It follows from the seed, the length of the run and the number of peers.
func plan(seed uint64, length time.Duration, peers int, pace time.Duration) []event {
	dice := rand.New(rand.NewPCG(seed, 1))
	total := 0
	for _, w := range weights {
		total += w.weight
	}
	var events []event
	for at := 2 * time.Second; ; {
		at += time.Duration(dice.Int64N(int64(2*pace))) + 50*time.Millisecond
		if at > length {
			return events
		}
		n, i := dice.IntN(total), 0
		for ; n >= weights[i].weight; i++ {
			n -= weights[i].weight
		}
		if len(events) == 0 { // whatever the seed, somebody is killed
			i = 0
		}
		e := event{at: at, do: weights[i].do, peer: dice.IntN(peers), up: dice.IntN(2) == 0}
		e.length = 100*time.Millisecond + time.Duration(dice.Int64N(int64(weights[i].most))).Round(time.Millisecond)
		switch e.do {
		case doKill:
			e.peer = steady + dice.IntN(peers-steady)
		case doFiles:
			e.bytes = dice.Int64N(4)
		case doDelay:
			e.bytes = 100 + dice.Int64N(20_000)
		case doLose: // a receipt is the second reply of a WRITE; sometimes half of one comes
			e.up, e.bytes = false, []int64{0, 1, 18, 35, 36, 37, 54, 71}[dice.IntN(8)]
		default:
			e.bytes = logUniform(dice, 1, 4<<20)
		}
		events = append(events, e)
	}
}

// logUniform is from low to high, each order of magnitude as likely as the others.
func logUniform(dice *rand.Rand, low, high int64) int64 {
	x := low
	for x < high && dice.IntN(4) != 0 {
		x *= 2
	}
	return min(x+dice.Int64N(x), high)
}

func planText(events []event) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}
