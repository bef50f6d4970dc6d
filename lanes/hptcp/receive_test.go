package hptcp

import (
	"slices"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// watched is a kernel whose receives somebody looks at.
type watched struct {
	reactor.Kernel
	t      testing.TB
	out    map[reactor.Ticket][2][][]byte // the list of each that is out: the owner's, and as it was
	behind []int                          // of each that had payload to receive: the room behind it
}

func (k *watched) Submit(op *reactor.Operation) {
	if op.Kind == reactor.Receive {
		k.out[op.Ticket] = [2][][]byte{op.More, slices.Clone(op.More)}
		if len(op.Buffers[1]) > 0 {
			k.behind = append(k.behind, len(op.Part(op.Parts()-1)))
		}
	}
	k.Kernel.Submit(op)
}

func (k *watched) Poll(out []reactor.Completion, until reactor.Instant) int {
	for _, lists := range k.out {
		same := func(a, b []byte) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }
		if !slices.EqualFunc(lists[0], lists[1], same) {
			k.t.Error("the list of a receive was changed before it had ended")
		}
	}
	n := k.Kernel.Poll(out, until)
	for _, c := range out[:n] {
		delete(k.out, c.Ticket)
	}
	return n
}

// Behind a large payload comes another one, which goes straight to its place when little more than its frame is received with
// the one before it; behind small ones come many frames, which one receive takes. The list of a receive stays as it is until
// the receive has ended, whatever part of it each one fills.
//
// proves H-4, H-8
func TestBehindALargePayloadLittleIsReceivedAside(t *testing.T) {
	const length, page = 2 << 20, 4096
	mappings(t)
	for _, c := range []struct {
		name        string
		size, pages uint64
		least, most int
	}{{"large", length, 1, 0, inboxBehind}, {"pages", 1 << 20, 256, 0, inboxBehind}, {"small", 40 << 10, 1, inboxMin, inboxBytes}} {
		r := newRig(t, 3, simkernel.WorldOptions{ChopReceive: 100_000})
		var kernels []*watched
		wrap := func(k reactor.Kernel) reactor.Kernel {
			kernels = append(kernels, &watched{Kernel: k, t: t, out: map[reactor.Ticket][2][][]byte{}})
			return kernels[len(kernels)-1]
		}
		source, requester, peer := r.pair(setup{wrap: wrap}, setup{wrap: wrap})
		remote, local := source.register(length, netproto.ReadWrite, 1), requester.register(length, netproto.LocalOnly, 2)
		for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
			a := requester.ask(d, local, remote.ID())
			if a.Length = c.size; c.pages > 1 {
				for i := range c.pages {
					a.Spans = append(a.Spans, Span{i * 37 % c.pages * 2 * page, i * 2 * page, page})
				}
				a.Set = setOf(t, local.Registration, a.Spans)
			}
			if o := r.wait(a.start(peer)); o.Err != nil {
				t.Fatalf("%s, %v: %+v", c.name, d, o)
			}
		}
		for i, k := range kernels {
			if len(k.behind) == 0 {
				t.Errorf("%s: node %d received no payload", c.name, i)
			}
			for _, n := range k.behind {
				if n < c.least || n > c.most {
					t.Errorf("%s: node %d had room for %d bytes behind a payload, want %d to %d", c.name, i, n, c.least, c.most)
					break
				}
			}
		}
		r.finish()
	}
}

// That holds for the next receive as well, where the payload ended with the one before, and no longer: frames may follow.
//
// proves H-4
func TestTheReceiveBehindALargePayloadIsSmallOnce(t *testing.T) {
	mappings(t)
	r := newRig(t, 5, simkernel.WorldOptions{})
	config := Config{StreamsMax: 1}
	source, requester, peer := r.pair(setup{config: config}, setup{config: config})
	remote, local := source.register(1<<20, netproto.ReadWrite, 1), requester.register(1<<20, netproto.LocalOnly, 2)
	for _, c := range []struct {
		direction   lanes.Direction
		length      uint64
		least, most int
	}{{lanes.Read, 100, inboxMin, inboxBytes}, {lanes.Read, 1 << 20, 0, inboxBehind}, {lanes.Write, 100, inboxMin, inboxBytes}} {
		a := requester.ask(c.direction, local, remote.ID())
		a.Length = c.length
		if o := r.wait(a.start(peer)); o.Err != nil {
			t.Fatalf("%+v", o)
		}
		r.pass(time.Millisecond) // until the next receive is out
		if list := peer.links[0].stream.asked(); len(list) != 1 || len(list[0]) < c.least || len(list[0]) > c.most {
			t.Errorf("behind %d bytes there is room for %d in %d buffers, want %d to %d in one", c.length, len(list[0]), len(list), c.least, c.most)
		}
	}
	r.finish()
}
