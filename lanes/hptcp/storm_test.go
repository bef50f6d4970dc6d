package hptcp

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// lot is one requester's place for one transfer at a time, with a local and a remote range of its own.
type lot struct {
	source, node  *node
	peer          *Peer
	local, remote *memory
	a             *attempt
	wasLocal      []byte
	wasRemote     []byte
	busy          bool
}

const lotBytes = 30_000

// begin starts a transfer drawn at random.
func (x *lot) begin(random *rand.Rand) {
	if x.a != nil && x.a.Outcome.Remote == lanes.EffectUnknown { // it may be written even now, by bytes that a silent network held back
		x.remote = x.source.register(lotBytes, netproto.ReadWrite, 1)
	}
	copy(x.local.bytes(), pattern(lotBytes, byte(random.IntN(4))))
	copy(x.remote.bytes(), pattern(lotBytes, byte(random.IntN(4))))
	x.wasLocal, x.wasRemote = bytes.Clone(x.local.bytes()), bytes.Clone(x.remote.bytes())
	a := x.node.ask(lanes.Direction(1+random.IntN(2)), x.local, x.remote.ID())
	a.Atomic = random.IntN(4) == 0
	a.Deadline = x.node.lane.Kernel().Now().After(time.Duration(1+random.IntN(3000)) * 100 * time.Microsecond)
	switch random.IntN(3) {
	case 0:
		a.Length = random.Uint64N(200)
	case 1:
		a.Spans = spansOf(random, lotBytes)
		a.Length = total(a.Spans)
	}
	done := a.Done
	a.Done = func(t *Transfer) {
		done(t)
		x.busy = false
	}
	x.a, x.busy = a, true
	a.start(x.peer)
}

// judge holds the outcome against both ranges. It is called when whatever came late has come.
func (x *lot) judge(t *testing.T) {
	t.Helper()
	a := x.a
	if a == nil || a.done == 0 {
		return
	}
	o := a.Outcome
	local, remote := bytes.Clone(x.wasLocal), bytes.Clone(x.wasRemote)
	spans := a.Spans
	if spans == nil {
		spans = []Span{{0, 0, a.Length}}
	}
	apply(a.Direction, spans, local, remote)
	whole := bytes.Equal(x.local.bytes(), local) && bytes.Equal(x.remote.bytes(), remote)
	untouched := bytes.Equal(x.local.bytes(), x.wasLocal) && bytes.Equal(x.remote.bytes(), x.wasRemote)
	switch effect := max(o.Local, o.Remote); {
	case a.done != 1 || !o.Drained:
		t.Errorf("Done %d times, %+v", a.done, o)
	case o.Err == nil && !whole:
		t.Errorf("%v of %d bytes in %d spans succeeded without its bytes", a.Direction, a.Length, len(a.Spans))
	case o.Err != nil && effect == lanes.EffectNone && !untouched:
		t.Errorf("%v of %d bytes in %d spans changed something, and says not: %v", a.Direction, a.Length, len(a.Spans), o.Err)
	case a.Atomic && !whole && !untouched:
		t.Errorf("an Atomic %v left a mixture: %+v", a.Direction, o)
	}
	x.judgeParts(t, spans)
}

// judgeParts holds what the transfer says about its parts against the range that it writes.
func (x *lot) judgeParts(t *testing.T, spans []Span) {
	a, at := x.a, uint64(0)
	now, was, other := x.local.bytes(), x.wasLocal, x.wasRemote
	if a.Direction == lanes.Write {
		now, was, other = x.remote.bytes(), x.wasRemote, x.wasLocal
	}
	for _, s := range spans {
		from, to := s.Remote, s.Local
		if a.Direction == lanes.Write {
			from, to = to, from
		}
		for i := range s.Length {
			switch {
			case at+i < a.Prefix && now[to+i] != other[from+i]:
				t.Fatalf("%v: byte %d is not in place, and the first %d should be: %v", a.Direction, at+i, a.Prefix, a.Outcome.Err)
			case at+i >= a.Begun && now[to+i] != was[to+i]:
				t.Fatalf("%v: byte %d has changed, and only the first %d were asked for: %v", a.Direction, at+i, a.Begun, a.Outcome.Err)
			}
		}
		at += s.Length
	}
}

// storm runs transfers among faults: resets, silences, half closes, ends, deadlines, two requesters.
func storm(t *testing.T, seed uint64, steps int) (well, failed int) {
	random := rand.New(rand.NewPCG(seed, 77))
	o := simkernel.WorldOptions{Buffer: 4096 << random.IntN(5)}
	if random.IntN(2) == 0 {
		o.ChopReceive, o.ChopSend = 1+random.IntN(2000), 1+random.IntN(2000)
	}
	r := newRig(t, seed, o)
	config := Config{ChunkBytes: 500 + random.Uint64N(10_000), InFlightBytes: 1 + random.Uint64N(30_000), Checksums: random.IntN(2) == 0, StreamsMax: 1 + random.IntN(4)}
	source := r.node(sourceHost, setup{epoch: sourceEpoch, config: config, sourceTimeout: 50 * time.Millisecond, sessions: 1 + int64(random.IntN(8))})
	var lots []*lot
	for i, host := range []netip.Addr{requesterHost, otherHost} {
		n := r.node(host, setup{epoch: []netproto.Epoch{requesterEpoch, staleEpoch}[i], config: config, sourceTimeout: 40 * time.Millisecond, idle: 80 * time.Millisecond})
		p := n.peer(source)
		p.spread.count = p.spread.limit
		for range 4 {
			lots = append(lots, &lot{source: source, node: n, peer: p, local: n.register(lotBytes, netproto.LocalOnly, 0), remote: source.register(lotBytes, netproto.ReadWrite, 1)})
		}
	}
	for range steps {
		x := lots[random.IntN(len(lots))]
		switch k := random.IntN(20); {
		case k < 12 && !x.busy:
			r.pass(60 * time.Millisecond * time.Duration(random.IntN(2))) // sometimes time for what is late
			if x.a != nil && x.a.Outcome.Err == nil || x.a == nil {
				x.begin(random)
			} else { // what a source still has of a failed WRITE ends with its time
				r.pass(60 * time.Millisecond)
				x.judge(t)
				x.begin(random)
			}
		case k == 12 && x.busy:
			x.a.Cancel()
		case k == 13 || k == 14:
			if all := r.world.Connections(); len(all) > 0 {
				c, d := all[random.IntN(len(all))], simkernel.Direction(random.IntN(2))
				switch random.IntN(4) {
				case 0:
					c.Reset()
				case 1:
					c.HalfClose(d)
				case 2:
					c.Stall(d, true)
				default:
					c.Stall(d, false)
				}
			}
		default:
			r.pass(time.Duration(random.IntN(3000)) * time.Microsecond)
		}
		for _, y := range lots {
			if y.a != nil && y.a.done > 0 && y.a.Outcome.Err == nil {
				y.judge(t)
			}
		}
		if t.Failed() {
			break
		}
	}
	for _, c := range r.world.Connections() {
		c.Stall(0, false)
		c.Stall(1, false)
	}
	for _, x := range lots {
		r.until("the last transfers", func() bool { return !x.busy })
	}
	r.pass(100 * time.Millisecond)
	for _, x := range lots {
		x.judge(t)
		if x.a != nil && x.a.Outcome.Err == nil {
			well++
		} else {
			failed++
		}
	}
	r.finish()
	return well, failed
}

// Whatever happens to the connections, each transfer ends once, says the truth, and nothing is left.
//
// proves H-3, H-5, T-5, T-10, U-2
func TestStormsLeaveNothingBehind(t *testing.T) {
	mappings(t)
	well, failed := 0, 0
	for seed := range uint64(60) {
		if seed == 12 && testing.Short() {
			break
		}
		a, b := storm(t, seed, 150)
		well, failed = well+a, failed+b
		if t.Failed() {
			t.Fatalf("SEED=%d; replay: storm(t, %d, 150)", seed, seed)
		}
	}
	t.Logf("at the end %d had gone well, %d had failed", well, failed)
}
