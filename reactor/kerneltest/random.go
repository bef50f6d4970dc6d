package kerneltest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/orbitte/orbitte/reactor"
)

var randomCases = []conformance{{"WorkKeepsEveryByte", randomWork}}

// flow is one direction of a stream: the sender writes the bytes of a counter, the receiver checks
// them.
type flow struct {
	from, to           reactor.Descriptor
	sender, receiver   reactor.Kernel
	sending, receiving reactor.Ticket
	out, in            []byte
	sent, received     int
}

func counterByte(i int) byte { return byte(i ^ i>>8 ^ i>>16) }

// randomWork sends, receives and cancels at random on a few streams and two kernels. Whatever the
// order: each operation ends once, a cancelled one has moved nothing, and every byte that was
// reported as sent arrives, in order. ORBITTE_SEED replays a run.
func randomWork(r *rig) {
	seed := rand.Uint64()
	if text := os.Getenv("ORBITTE_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	r.Logf("SEED=%d (replay: ORBITTE_SEED=%d)", seed, seed)
	random := rand.New(rand.NewPCG(seed, 4))
	a, b := r.kernel(), r.kernel()
	listener, bound := r.listen(a, r.IPv4)
	var flows []*flow
	for range 4 {
		c, s := r.join(a, listener, bound, b)
		for _, f := range []*flow{{from: c, to: s, sender: b, receiver: a}, {from: s, to: c, sender: a, receiver: b}} {
			f.out, f.in = r.memory(64<<10), r.memory(64<<10)
			flows = append(flows, f)
		}
	}
	for range 4000 {
		flows[random.IntN(len(flows))].act(r, random)
		switch random.IntN(4) {
		case 0:
			r.poll(a, r.out[:1+random.IntN(len(r.out))], reactor.Past)
		case 1:
			r.poll(b, r.out[:1+random.IntN(len(r.out))], reactor.Past)
		}
	}
	for _, f := range flows {
		f.drain(r)
	}
}

// act does one thing at random: start what is not under way, or cancel it.
func (f *flow) act(r *rig, random *rand.Rand) {
	f.collect(r)
	cut := func(b []byte) (x, y []byte) {
		b = b[:1+random.IntN(min(len(b), 1<<random.IntN(17)))]
		at := random.IntN(len(b) + 1)
		return b[:at], b[at:]
	}
	switch {
	case random.IntN(8) == 0:
		if f.sending != 0 && random.IntN(2) == 0 {
			f.sender.Cancel(f.sending)
		} else if f.receiving != 0 {
			f.receiver.Cancel(f.receiving)
		}
	case f.sending == 0 && random.IntN(2) == 0:
		x, y := cut(f.out)
		for i := range len(x) + len(y) {
			f.out[i] = counterByte(f.sent + i)
		}
		send := r.send
		if random.IntN(2) == 0 {
			send = r.attempt
		}
		f.sending = send(f.sender, f.from, x, y)
	case f.receiving == 0:
		x, y := cut(f.in)
		f.receiving = r.receive(f.receiver, f.to, x, y)
	}
}

// collect takes the ends of what was under way.
func (f *flow) collect(r *rig) {
	r.Helper()
	if o := r.operations[f.sending]; f.sending != 0 && o.ended {
		f.ended(r, o)
		f.sent += o.N
		f.sending = 0
	}
	if o := r.operations[f.receiving]; f.receiving != 0 && o.ended {
		f.ended(r, o)
		for i := range o.N {
			if f.in[i] != counterByte(f.received+i) {
				r.Fatalf("byte %d of %d → %d is %#x, wanted %#x", f.received+i, f.from, f.to, f.in[i], counterByte(f.received+i))
			}
		}
		f.received += o.N
		f.receiving = 0
	}
}

func (f *flow) ended(r *rig, o *operation) {
	r.Helper()
	if o.Err != nil && o.Err != syscall.ECANCELED {
		r.Fatalf("operation of kind %d: %v", o.Kind, o.Err)
	}
}

// drain lets everything arrive.
func (f *flow) drain(r *rig) {
	r.Helper()
	end := f.sender.Now().After(patience)
	for f.sending != 0 || f.received < f.sent {
		if f.sender.Now() > end {
			r.Fatalf("%d bytes were sent, %d have arrived", f.sent, f.received)
		}
		if f.receiving == 0 {
			f.receiving = r.receive(f.receiver, f.to, f.in)
		}
		r.turn(time.Millisecond)
		f.collect(r)
	}
	if f.received != f.sent {
		r.Fatalf("%d bytes were sent, %d arrived", f.sent, f.received)
	}
}
