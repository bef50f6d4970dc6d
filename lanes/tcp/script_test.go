package tcp

import (
	"io"
	"net/netip"

	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
)

// wire is a scripted peer's end of one connection: raw bytes, no machine.
type wire struct {
	rig        *rig
	descriptor reactor.Descriptor
	event      reactor.Event
	ticket     reactor.Ticket
	answered   bool
	dead       bool
}

// Complete (reactor.Handler).
func (w *wire) Complete(e *reactor.Event) { w.event, w.answered, w.ticket = *e, true, 0 }

// do submits one operation and lets the world go on until it has ended.
func (w *wire) do(op reactor.Operation) reactor.Event {
	w.rig.t.Helper()
	w.begin(op)
	w.rig.until("a scripted operation", func() bool { return w.answered })
	return w.event
}

func (w *wire) begin(op reactor.Operation) {
	op.Descriptor = w.descriptor
	w.answered = false
	w.ticket = w.rig.loop.Submit(op, w)
}

// dial connects a scripted client.
func (r *rig) dial(to netip.AddrPort) *wire {
	r.t.Helper()
	d, err := r.loop.Kernel().Open(to, reactor.SocketOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	w := &wire{rig: r, descriptor: d}
	r.wires = append(r.wires, w)
	if e := w.do(reactor.Operation{Kind: reactor.Connect, Address: to}); e.Err != nil {
		r.t.Fatal(e.Err)
	}
	return w
}

// send sends all of b; the error is the system's.
func (w *wire) send(b []byte) error {
	w.rig.t.Helper()
	for len(b) > 0 {
		e := w.do(reactor.Operation{Kind: reactor.Send, Buffers: [2][]byte{b}})
		if e.Err != nil {
			return e.Err
		}
		b = b[e.N:]
	}
	return nil
}

// receive waits for n bytes; the error is io.EOF or the system's, with the bytes before it.
func (w *wire) receive(n int) ([]byte, error) {
	w.rig.t.Helper()
	b := make([]byte, n)
	got := 0
	for got < n {
		e := w.do(reactor.Operation{Kind: reactor.Receive, Buffers: [2][]byte{b[got:]}})
		if e.Err != nil {
			return b[:got], e.Err
		}
		if e.N == 0 {
			return b[:got], io.EOF
		}
		got += e.N
	}
	return b, nil
}

// request waits for a whole request.
func (w *wire) request() netproto.Request {
	w.rig.t.Helper()
	b, err := w.receive(netproto.RequestSize)
	if err != nil {
		w.rig.t.Fatalf("no request: %v after %d bytes", err, len(b))
	}
	q, err := netproto.DecodeRequest(b)
	if err != nil {
		w.rig.t.Fatal(err)
	}
	return q
}

// reply waits for a whole reply.
func (w *wire) reply() netproto.Reply {
	w.rig.t.Helper()
	b, err := w.receive(netproto.ReplySize)
	if err != nil {
		w.rig.t.Fatalf("no reply: %v after %d bytes", err, len(b))
	}
	p, err := netproto.DecodeReply(b)
	if err != nil {
		w.rig.t.Fatal(err)
	}
	return p
}

// ends checks that the other side closes without another byte.
func (w *wire) ends() {
	w.rig.t.Helper()
	if b, err := w.receive(1); err == nil {
		w.rig.t.Fatalf("got byte %#x, want the end of the stream", b[0])
	}
}

// drains takes what was sent and checks that the other side closes then.
func (w *wire) drains() {
	w.rig.t.Helper()
	if b, err := w.receive(1 << 10); err == nil {
		w.rig.t.Fatalf("got %d bytes and no end of the stream", len(b))
	}
}

// silent checks that nothing arrives within the next d, neither bytes nor the end.
func (w *wire) silent() {
	w.rig.t.Helper()
	b := make([]byte, 1)
	w.begin(reactor.Operation{Kind: reactor.Receive, Buffers: [2][]byte{b}})
	w.rig.pass(soon)
	if w.answered {
		w.rig.t.Fatalf("got %+v, want silence", w.event)
	}
	w.rig.loop.Cancel(w.ticket)
	w.rig.until("cancelling", func() bool { return w.answered })
}

func (w *wire) close() {
	if !w.dead {
		w.dead = true
		if err := w.rig.loop.Kernel().Close(w.descriptor); err != nil {
			w.rig.t.Error(err)
		}
	}
}

// port is a scripted source's listener.
type port struct {
	wire
	address netip.AddrPort
	opened  int
}

func (r *rig) listen() *port { return r.listenAt(netip.AddrPortFrom(scriptHost, 0)) }

func (r *rig) listenAt(at netip.AddrPort) *port {
	r.t.Helper()
	d, address, err := r.loop.Kernel().Listen(at, reactor.SocketOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	p := &port{wire: wire{rig: r, descriptor: d}, address: address}
	r.ports = append(r.ports, p)
	return p
}

// accept waits for the next connection.
func (p *port) accept() *wire {
	p.rig.t.Helper()
	e := p.do(reactor.Operation{Kind: reactor.Accept})
	if e.Err != nil {
		p.rig.t.Fatal(e.Err)
	}
	p.opened++
	w := &wire{rig: p.rig, descriptor: e.Descriptor}
	p.rig.wires = append(p.rig.wires, w)
	return w
}

// nobody checks that no further connection comes soon.
func (p *port) nobody() {
	p.rig.t.Helper()
	p.begin(reactor.Operation{Kind: reactor.Accept})
	p.rig.pass(soon)
	if p.answered {
		p.rig.t.Fatal("a connection came that nobody expected")
	}
	p.rig.loop.Cancel(p.ticket)
	p.rig.until("cancelling", func() bool { return p.answered })
}

// Frames as bytes.
func requestBytes(op netproto.Operation, region, offset, length uint64) []byte {
	return netproto.AppendRequest(nil, netproto.Request{Operation: op, Epoch: epoch, Region: region, Offset: offset, Length: length})
}

func replyBytes(status netproto.Status, length uint64) []byte {
	return netproto.AppendReply(nil, netproto.Reply{Status: status, Epoch: epoch, Length: length})
}
