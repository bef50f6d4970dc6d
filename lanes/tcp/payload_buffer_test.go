package tcp

import (
	"fmt"
	"testing"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// pieces notes in how many buffers each Send and each Receive goes.
type pieces struct {
	reactor.Kernel
	sent, received []int
}

func (p *pieces) Submit(op *reactor.Operation) {
	n := 0
	for _, b := range op.Buffers {
		n += min(len(b), 1)
	}
	switch op.Kind {
	case reactor.Send:
		p.sent = append(p.sent, n)
	case reactor.Receive:
		p.received = append(p.received, n)
	}
	p.Kernel.Submit(op)
}

func (p *pieces) wrap(k reactor.Kernel) reactor.Kernel {
	p.Kernel = k
	return p
}

// A small staged READ is one buffer wherever it goes: request and what may come behind it, header and payload. A larger one
// has its payload apart, as has one that is placed directly.
//
// proves T-1, T-2
func TestSmallReadIsOneBufferAtBothEnds(t *testing.T) {
	for _, direct := range []bool{false, true} {
		for _, size := range []uint64{1, 4096, framedBytesMax, framedBytesMax + 1} {
			t.Run(fmt.Sprintf("direct %v, %d bytes", direct, size), func(t *testing.T) {
				mappings(t)
				r := newRig(t, 1, spacious)
				defer r.finish()
				at, by := &pieces{}, &pieces{}
				source, requester := r.node(sourceHost, setup{direct: direct, wrap: at.wrap}), r.node(requesterHost, setup{direct: direct, wrap: by.wrap})
				remote, local := source.register(size, netproto.ReadWrite, 1), requester.register(size, netproto.LocalOnly, 2)
				c := requester.channel(source.address)
				want := 2
				if !direct && size <= framedBytesMax {
					want = 1
				}
				for range 3 {
					at.sent, at.received, by.received = nil, nil, nil
					a := requester.ask(lanes.Read, local, remote.ID())
					if o := r.wait(a.start(c)); o.Err != nil || !local.holds(1) {
						t.Fatalf("%+v", o)
					}
					if len(at.sent) == 0 || at.sent[0] != want || len(by.received) == 0 || by.received[0] != want {
						t.Errorf("the reply was sent in %v and received in %v buffers, want %d first", at.sent, by.received, want)
					}
				}
				for _, n := range at.received {
					if n != 1 {
						t.Errorf("the source received requests in %v buffers", at.received)
					}
				}
			})
		}
	}
}

// The room before a payload changes nothing about it, whatever pieces it comes in, one READ behind the other.
//
// proves T-1
func TestSmallReadsInPiecesHaveEveryByte(t *testing.T) {
	for seed := range uint64(20) {
		mappings(t)
		r := newRig(t, seed, simkernel.WorldOptions{ChopReceive: 50})
		source, requester := r.node(sourceHost, setup{}), r.node(requesterHost, setup{})
		c := requester.channel(source.address)
		var all []*attempt
		var locals []*memory
		for i, size := range []uint64{1, 100, 4096, framedBytesMax, framedBytesMax + 1} {
			remote := source.register(size, netproto.ReadWrite, byte(i+1))
			locals = append(locals, requester.register(size, netproto.LocalOnly, 99))
			all = append(all, requester.ask(lanes.Read, locals[i], remote.ID()).start(c))
		}
		for i, a := range all {
			if o := r.wait(a); o.Err != nil || !locals[i].holds(byte(i+1)) {
				t.Fatalf("SEED=%d: READ %d: %+v", seed, i, o)
			}
		}
		r.finish()
	}
}
