package uring

import (
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/orbitte/orbitte/reactor"
)

// rig is one kernel and the tickets given out.
type rig struct {
	*testing.T
	*Kernel
	last reactor.Ticket
}

func newRig(t *testing.T, o Options) *rig {
	runtime.LockOSThread()
	k, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Bind(); err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, Kernel: k}
	t.Cleanup(func() {
		if err := k.Shutdown(); err != nil {
			t.Error(err)
		}
		runtime.UnlockOSThread()
	})
	return r
}

func (r *rig) start(op reactor.Operation) reactor.Ticket {
	r.last++
	op.Ticket = r.last
	r.Submit(&op)
	return op.Ticket
}

// next polls for one completion, at most two seconds.
func (r *rig) next() reactor.Completion {
	r.Helper()
	var out [1]reactor.Completion
	if r.Poll(out[:], r.Now().After(2*time.Second)) == 0 {
		r.Fatal("no completion within 2 s")
	}
	return out[0]
}

// none says that nothing completes now.
func (r *rig) none() {
	r.Helper()
	var out [1]reactor.Completion
	for range lonePasses + 4 {
		if r.Poll(out[:], 0) != 0 {
			r.Fatalf("unexpected completion %+v", out[0])
		}
	}
}

func (r *rig) want(ticket reactor.Ticket, n int, err error) {
	r.Helper()
	c := r.next()
	if c.Ticket != ticket || c.N != n || c.Err != err {
		r.Fatalf("got %+v, want ticket %d, %d bytes, error %v", c, ticket, n, err)
	}
}

// pair connects two streams over loopback.
func (r *rig) pair() (client, server reactor.Descriptor) {
	r.Helper()
	var o reactor.SocketOptions
	listener, bound, err := r.Listen(netip.MustParseAddrPort("127.0.0.1:0"), o)
	if err != nil {
		r.Fatal(err)
	}
	client, err = r.Open(bound, o)
	if err != nil {
		r.Fatal(err)
	}
	r.start(reactor.Operation{Kind: reactor.Accept, Descriptor: listener})
	r.start(reactor.Operation{Kind: reactor.Connect, Descriptor: client, Address: bound})
	server = reactor.NoDescriptor
	for range 2 {
		c := r.next()
		if c.Err != nil {
			r.Fatal(c.Err)
		}
		if c.Descriptor != client {
			server = c.Descriptor
		}
	}
	r.end(listener)
	return client, server
}

func (r *rig) end(ds ...reactor.Descriptor) {
	r.Helper()
	for _, d := range ds {
		if err := r.Close(d); err != nil {
			r.Error(err)
		}
	}
}

func (r *rig) receive(d reactor.Descriptor, b []byte) reactor.Ticket {
	return r.start(reactor.Operation{Kind: reactor.Receive, Descriptor: d, Buffers: [2][]byte{b}})
}

func (r *rig) send(d reactor.Descriptor, b []byte) reactor.Ticket {
	return r.start(reactor.Operation{Kind: reactor.Send, Descriptor: d, Buffers: [2][]byte{b}})
}
