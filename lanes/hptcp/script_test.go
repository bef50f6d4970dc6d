package hptcp

import (
	"io"
	"net/netip"
	"testing"

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
}

// Complete (reactor.Handler).
func (w *wire) Complete(e *reactor.Event) { w.event, w.answered, w.ticket = *e, true, 0 }

// do submits one operation and lets the world go on until it has ended.
func (w *wire) do(op reactor.Operation) reactor.Event {
	w.rig.t.Helper()
	op.Descriptor = w.descriptor
	w.answered = false
	w.ticket = w.rig.loop.Submit(op, w)
	w.rig.until("a scripted operation", func() bool { return w.answered })
	return w.event
}

// dial connects a scripted requester.
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

// greet opens a data stream to a source by hand.
func (r *rig) greet(n *node) *wire {
	r.t.Helper()
	w := r.dial(n.address)
	h := helloTo(n)
	h.Stream = uint16(r.greeted % 2)
	r.greeted++
	must(r.t, w.send(netproto.AppendHPTCPHello(nil, h)))
	b, err := w.receive(netproto.HPTCPHelloSize)
	must(r.t, err)
	if _, err = netproto.DecodeHPTCPWelcome(h, b); err != nil {
		r.t.Fatal(err)
	}
	return w
}

// wireEpoch is the life of whoever is at the other end of a wire.
var wireEpoch = netproto.Epoch{0: 0xee}

func helloTo(n *node) netproto.HPTCPHello {
	return netproto.HPTCPHello{Expected: n.policy.Epoch, Requester: wireEpoch, Chunk: 64 << 10, InFlight: 1 << 20}
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

// frame waits for a whole frame.
func (w *wire) frame() netproto.HPTCPFrame {
	w.rig.t.Helper()
	b, err := w.receive(netproto.HPTCPFrameSize)
	must(w.rig.t, err)
	f, err := netproto.DecodeHPTCPFrame(b)
	must(w.rig.t, err)
	return f
}

// request waits for a whole request with its runs.
func (w *wire) request() (netproto.HPTCPRequest, []netproto.HPTCPRun) {
	w.rig.t.Helper()
	b, err := w.receive(netproto.HPTCPRequestSize)
	must(w.rig.t, err)
	r, err := netproto.DecodeHPTCPRequest(b)
	must(w.rig.t, err)
	b, err = w.receive(int(r.RunsSize))
	must(w.rig.t, err)
	if r.Unit == 0 {
		return r, nil
	}
	runs, err := netproto.DecodeHPTCPRuns(nil, r, b)
	must(w.rig.t, err)
	return r, runs
}

// welcome takes a hello and accepts it.
func (w *wire) welcome(change func(*netproto.HPTCPWelcome)) netproto.HPTCPHello {
	w.rig.t.Helper()
	b, err := w.receive(netproto.HPTCPHelloSize)
	must(w.rig.t, err)
	h, err := netproto.DecodeHPTCPHello(b)
	must(w.rig.t, err)
	terms := netproto.HPTCPWelcome{Source: h.Expected, Requester: h.Requester, Slots: 64, Flags: h.Flags, Chunk: h.Chunk, InFlight: h.InFlight}
	if change != nil {
		change(&terms)
	}
	must(w.rig.t, w.send(netproto.AppendHPTCPWelcome(nil, terms)))
	return h
}

// chunk is a chunk's frame with its payload.
func chunk(tag netproto.HPTCPTag, offset uint64, payload []byte) []byte {
	f := netproto.HPTCPFrame{Kind: netproto.HPTCPChunk, Tag: tag, Offset: offset, Length: uint64(len(payload))}
	return append(netproto.AppendHPTCPFrame(nil, f), payload...)
}

// end is an END's frame.
func end(tag netproto.HPTCPTag, status netproto.Status) []byte {
	return netproto.AppendHPTCPFrame(nil, netproto.HPTCPFrame{Kind: netproto.HPTCPEnd, Status: status, Tag: tag})
}

// ask is a request's frame.
func ask(kind netproto.HPTCPKind, tag netproto.HPTCPTag, region, offset, length uint64) []byte {
	return netproto.AppendHPTCPRequest(nil, netproto.HPTCPRequest{HPTCPFrame: netproto.HPTCPFrame{Kind: kind, Tag: tag, Offset: offset, Length: length}, Region: region})
}

// ends checks that the other side closes without another byte.
func (w *wire) ends() {
	w.rig.t.Helper()
	if b, err := w.receive(1); err == nil {
		w.rig.t.Fatalf("got byte %#x, want the end of the stream", b[0])
	}
}

func (w *wire) close() {
	if w.descriptor == reactor.NoDescriptor {
		return
	}
	if w.ticket != 0 {
		w.rig.loop.Cancel(w.ticket)
		w.rig.until("the end of a scripted operation", func() bool { return w.ticket == 0 })
	}
	must(w.rig.t, w.rig.loop.Kernel().Close(w.descriptor))
	w.descriptor = reactor.NoDescriptor
}

// port is a scripted source's listener.
type port struct {
	wire
	address netip.AddrPort
}

func (r *rig) listen() *port {
	r.t.Helper()
	d, address, err := r.loop.Kernel().Listen(netip.AddrPortFrom(scriptHost, 0), reactor.SocketOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	p := &port{wire{rig: r, descriptor: d}, address}
	r.ports = append(r.ports, p)
	return p
}

// accept waits for a connection.
func (p *port) accept() *wire {
	p.rig.t.Helper()
	e := p.do(reactor.Operation{Kind: reactor.Accept})
	if e.Err != nil {
		p.rig.t.Fatal(e.Err)
	}
	w := &wire{rig: p.rig, descriptor: e.Descriptor}
	p.rig.wires = append(p.rig.wires, w)
	return w
}

// script is a peer at a scripted source.
func (n *node) script(p *port) *Peer {
	e := Config{StreamsMax: 1, ChunkBytes: 64 << 10}.Endpoint(netproto.FamilyIPv4, p.address.Port())
	return n.peerAt(p.address, sourceEpoch, *e)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
