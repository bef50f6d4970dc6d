package simkernel_test

import (
	"bytes"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// plain drives kernels without a loop: one operation after another.
type plain struct {
	*testing.T
	w                *simkernel.World
	server, client   *simkernel.Process
	ks, kc           *simkernel.Kernel
	listener         reactor.Descriptor
	bound            netip.AddrPort
	ticket           reactor.Ticket
	ended            map[reactor.Ticket]reactor.Completion
	conn             *simkernel.Connection
	clientD, serverD reactor.Descriptor
}

func newPlain(t *testing.T, o simkernel.WorldOptions) *plain {
	p := &plain{T: t, w: simkernel.NewWorld(11, o), ended: map[reactor.Ticket]reactor.Completion{}}
	p.server, p.client = p.w.Process("server", hostA), p.w.Process("client", hostB)
	p.ks, p.kc = p.server.Kernel(), p.client.Kernel()
	p.w.OnConnect(func(c *simkernel.Connection) { p.conn = c })
	p.listen(0)
	return p
}

func (p *plain) listen(port uint16) {
	p.Helper()
	var err error
	p.listener, p.bound, err = p.ks.Listen(netip.AddrPortFrom(hostA, port), reactor.SocketOptions{})
	if err != nil {
		p.Fatal(err)
	}
}

func (p *plain) submit(k *simkernel.Kernel, op reactor.Operation) reactor.Ticket {
	p.ticket++
	op.Ticket = p.ticket
	k.Submit(&op)
	return p.ticket
}

func (p *plain) await(ticket reactor.Ticket) reactor.Completion {
	p.Helper()
	out := make([]reactor.Completion, 8)
	for end := p.w.Now().After(time.Hour); p.w.Now() < end; {
		for _, k := range []*simkernel.Kernel{p.ks, p.kc} {
			for _, c := range out[:k.Poll(out, reactor.Past)] {
				p.ended[c.Ticket] = c
			}
		}
		if c, ok := p.ended[ticket]; ok {
			return c
		}
		for _, c := range out[:p.kc.Poll(out, p.w.Now().After(10*time.Millisecond))] {
			p.ended[c.Ticket] = c
		}
	}
	p.Fatalf("ticket %d did not end in an hour", ticket)
	return reactor.Completion{}
}

func (p *plain) do(k *simkernel.Kernel, kind reactor.Kind, d reactor.Descriptor, b []byte) reactor.Completion {
	p.Helper()
	return p.await(p.submit(k, reactor.Operation{Kind: kind, Descriptor: d, Buffers: [2][]byte{b}, Address: p.bound}))
}

func (p *plain) open(o reactor.SocketOptions) reactor.Descriptor {
	p.Helper()
	d, err := p.kc.Open(p.bound, o)
	if err != nil {
		p.Fatal(err)
	}
	return d
}

func (p *plain) connect(o reactor.SocketOptions) {
	p.Helper()
	p.clientD = p.open(o)
	if c := p.do(p.kc, reactor.Connect, p.clientD, nil); c.Err != nil {
		p.Fatal(c.Err)
	}
	c := p.do(p.ks, reactor.Accept, p.listener, nil)
	if c.Err != nil {
		p.Fatal(c.Err)
	}
	p.serverD = c.Descriptor
}

func (p *plain) wants(what string, got reactor.Completion, n int, err error) {
	p.Helper()
	if got.N != n || got.Err != err {
		p.Fatalf("%s: N %d, error %v; wanted %d, %v", what, got.N, got.Err, n, err)
	}
}

func TestKernelConformanceWithShortReceives(t *testing.T) {
	kerneltestRun(t, simkernel.WorldOptions{ChopReceive: 4096})
}

func TestKernelConformanceOnASlowLink(t *testing.T) {
	kerneltestRun(t, simkernel.WorldOptions{DelayMin: time.Microsecond, DelayMax: 3 * time.Millisecond, Buffer: 4096})
}

func TestResetAfterAnExactByte(t *testing.T) {
	for at := uint64(1); at <= 12; at++ {
		p := newPlain(t, simkernel.WorldOptions{ChopSend: 5})
		p.connect(reactor.SocketOptions{})
		p.conn.ResetAfter(simkernel.ToServer, at)
		var got []byte
		buffer := make([]byte, 4)
		for sent := 0; sent < 20; {
			c := p.do(p.kc, reactor.Send, p.clientD, []byte("0123456789abcdefghij")[sent:])
			if c.Err != nil {
				break
			}
			sent += c.N
		}
		for {
			c := p.do(p.ks, reactor.Receive, p.serverD, buffer)
			if c.Err != nil {
				p.wants("end", c, 0, syscall.ECONNRESET)
				break
			}
			got = append(got, buffer[:c.N]...)
		}
		if !bytes.Equal(got, []byte("0123456789abcdefghij")[:at]) {
			t.Fatalf("reset after %d bytes delivered %q", at, got)
		}
		p.wants("after the reset", p.do(p.ks, reactor.Receive, p.serverD, buffer), 0, nil)
		p.wants("send after the reset", p.do(p.ks, reactor.Send, p.serverD, buffer), 0, syscall.EPIPE)
	}
}

func TestBlackHoleEndsByUserTimeout(t *testing.T) {
	p := newPlain(t, simkernel.WorldOptions{})
	p.connect(reactor.SocketOptions{UserTimeout: 7 * time.Second})
	p.w.Link(hostB, hostA).BlackHole(true)
	start := p.w.Now()
	p.wants("send", p.do(p.kc, reactor.Send, p.clientD, []byte("lost")), 4, nil)
	p.wants("receive", p.do(p.kc, reactor.Receive, p.clientD, make([]byte, 4)), 0, syscall.ETIMEDOUT)
	if d := time.Duration(p.w.Now() - start); d < 7*time.Second || d > 8*time.Second {
		t.Fatalf("found after %v", d)
	}
}

func TestKeepaliveFindsASilentPeerAndSparesAPausedOne(t *testing.T) {
	o := reactor.SocketOptions{KeepaliveIdle: 10 * time.Second, KeepaliveInterval: 2 * time.Second, KeepaliveCount: 3}
	p := newPlain(t, simkernel.WorldOptions{})
	p.connect(o)
	link := p.w.Link(hostA, hostB)
	receiving := p.submit(p.kc, reactor.Operation{Kind: reactor.Receive, Descriptor: p.clientD, Buffers: [2][]byte{make([]byte, 4)}})
	link.BlackHole(true)
	p.w.Advance(5 * time.Second)
	link.BlackHole(false)
	p.w.Advance(time.Minute)
	p.wants("send after a pause", p.do(p.ks, reactor.Send, p.serverD, []byte("back")), 4, nil)
	p.wants("receive after a pause", p.await(receiving), 4, nil)
	start := p.w.Now()
	link.BlackHole(true)
	p.wants("silence", p.do(p.kc, reactor.Receive, p.clientD, make([]byte, 4)), 0, syscall.ETIMEDOUT)
	if d := time.Duration(p.w.Now() - start); d < 16*time.Second || d > 17*time.Second {
		t.Fatalf("found after %v", d)
	}
}

// Each silence counts for itself: a timer of the first one must not end the second one early.
func TestKeepaliveStartsAnewAfterALifeSign(t *testing.T) {
	o := reactor.SocketOptions{KeepaliveIdle: 10 * time.Second, KeepaliveInterval: 2 * time.Second, KeepaliveCount: 3}
	p := newPlain(t, simkernel.WorldOptions{})
	p.connect(o)
	link := p.w.Link(hostA, hostB)
	link.BlackHole(true)
	p.w.Advance(5 * time.Second)
	link.BlackHole(false)
	p.w.Advance(9 * time.Second)
	link.BlackHole(true)
	start := p.w.Now()
	p.wants("silence", p.do(p.kc, reactor.Receive, p.clientD, make([]byte, 4)), 0, syscall.ETIMEDOUT)
	if d := time.Duration(p.w.Now() - start); d < 16*time.Second || d > 17*time.Second {
		t.Fatalf("found after %v", d)
	}
}

// Linux reports EPIPE, and no reset, to who saw the end of the stream before the reset.
func TestResetAfterTheEndIsABrokenPipe(t *testing.T) {
	p := newPlain(t, simkernel.WorldOptions{})
	p.connect(reactor.SocketOptions{})
	_ = p.kc.Close(p.clientD)
	p.wants("end", p.do(p.ks, reactor.Receive, p.serverD, make([]byte, 1)), 0, nil)
	p.wants("unnoticed", p.do(p.ks, reactor.Send, p.serverD, []byte("x")), 1, nil)
	p.w.Advance(time.Second)
	p.wants("still the end", p.do(p.ks, reactor.Receive, p.serverD, make([]byte, 1)), 0, nil)
	p.wants("broken", p.do(p.ks, reactor.Send, p.serverD, []byte("x")), 0, syscall.EPIPE)
}

func TestLostBytesArriveWhenTheLinkIsBack(t *testing.T) {
	p := newPlain(t, simkernel.WorldOptions{})
	p.connect(reactor.SocketOptions{})
	p.conn.Stall(simkernel.ToServer, true)
	p.do(p.kc, reactor.Send, p.clientD, []byte("la"))
	p.do(p.kc, reactor.Send, p.clientD, []byte("te"))
	if err := p.kc.Close(p.clientD); err != nil {
		t.Fatal(err)
	}
	p.w.Advance(time.Second)
	receiving := p.submit(p.ks, reactor.Operation{Kind: reactor.Receive, Descriptor: p.serverD, Buffers: [2][]byte{make([]byte, 8)}})
	p.w.Advance(time.Second)
	if p.ks.Poll(make([]reactor.Completion, 1), reactor.Past) != 0 {
		t.Fatal("bytes came through a stalled direction")
	}
	p.conn.Stall(simkernel.ToServer, false)
	p.wants("bytes", p.await(receiving), 4, nil)
	p.wants("end", p.do(p.ks, reactor.Receive, p.serverD, make([]byte, 8)), 0, nil)
}

func TestHalfCloseEndsOneDirection(t *testing.T) {
	p := newPlain(t, simkernel.WorldOptions{})
	p.connect(reactor.SocketOptions{})
	p.do(p.kc, reactor.Send, p.clientD, []byte("bye"))
	p.conn.HalfClose(simkernel.ToServer)
	p.wants("bytes before", p.do(p.ks, reactor.Receive, p.serverD, make([]byte, 8)), 3, nil)
	p.wants("end", p.do(p.ks, reactor.Receive, p.serverD, make([]byte, 8)), 0, nil)
	p.wants("writer", p.do(p.kc, reactor.Send, p.clientD, []byte("x")), 0, syscall.EPIPE)
	p.wants("other way", p.do(p.ks, reactor.Send, p.serverD, []byte("still")), 5, nil)
	p.wants("other way", p.do(p.kc, reactor.Receive, p.clientD, make([]byte, 8)), 5, nil)
}

func TestConnectFaults(t *testing.T) {
	p := newPlain(t, simkernel.WorldOptions{})
	start := p.w.Now()
	took := func(least, most time.Duration) {
		t.Helper()
		if d := time.Duration(p.w.Now() - start); d < least || d > most {
			t.Fatalf("took %v, wanted %v to %v", d, least, most)
		}
		start = p.w.Now()
	}
	p.server.HangConnects(2) // asks again after 1 s, then after 2 s
	p.connect(reactor.SocketOptions{})
	took(3*time.Second, 3200*time.Millisecond)
	p.server.HangConnects(100)
	p.wants("hanging", p.do(p.kc, reactor.Connect, p.open(reactor.SocketOptions{}), nil), 0, syscall.ETIMEDOUT)
	took(127*time.Second, 128*time.Second)
	p.server.HangConnects(0)
	p.client.FailConnects(syscall.ENETUNREACH, 1)
	p.wants("failed", p.do(p.kc, reactor.Connect, p.open(reactor.SocketOptions{}), nil), 0, syscall.ENETUNREACH)
	took(0, 100*time.Millisecond)
	p.bound = netip.MustParseAddrPort("10.9.9.9:1")
	p.wants("nobody", p.do(p.kc, reactor.Connect, p.open(reactor.SocketOptions{}), nil), 0, syscall.EHOSTUNREACH)
	took(3*time.Second, 3100*time.Millisecond)
}

func TestAbandonedConnectLeavesNoConnection(t *testing.T) {
	p := newPlain(t, simkernel.WorldOptions{DelayMin: time.Millisecond, DelayMax: time.Millisecond})
	d := p.open(reactor.SocketOptions{})
	connecting := p.submit(p.kc, reactor.Operation{Kind: reactor.Connect, Descriptor: d, Address: p.bound})
	p.kc.Poll(make([]reactor.Completion, 1), p.w.Now().After(1500*time.Microsecond))
	p.kc.Cancel(connecting)
	p.wants("cancelled", p.await(connecting), 0, syscall.ECANCELED)
	if err := p.kc.Close(d); err != nil {
		t.Fatal(err)
	}
	p.w.Advance(time.Second)
	c := p.do(p.ks, reactor.Accept, p.listener, nil)
	p.wants("accept", c, 0, nil)
	p.wants("peer is gone", p.do(p.ks, reactor.Receive, c.Descriptor, make([]byte, 1)), 0, syscall.ECONNRESET)
	if err := p.ks.Close(c.Descriptor); err != nil {
		t.Fatal(err)
	}
	if left := p.w.Connections(); len(left) != 0 {
		t.Fatalf("%d connections left", len(left))
	}
}

func TestDescriptorsRunOut(t *testing.T) {
	p := newPlain(t, simkernel.WorldOptions{})
	p.connect(reactor.SocketOptions{})
	p.server.LimitDescriptors(p.server.Descriptors())
	c := p.open(reactor.SocketOptions{})
	p.wants("connect", p.do(p.kc, reactor.Connect, c, nil), 0, nil)
	p.wants("full", p.do(p.ks, reactor.Accept, p.listener, nil), 0, syscall.EMFILE)
	if _, _, err := p.ks.Listen(netip.AddrPortFrom(hostA, 0), reactor.SocketOptions{}); err != syscall.EMFILE {
		t.Fatalf("listen: %v", err)
	}
	if err := p.ks.Close(p.serverD); err != nil {
		t.Fatal(err)
	}
	if got := p.do(p.ks, reactor.Accept, p.listener, nil); got.Err != nil || got.Descriptor != p.serverD {
		t.Fatalf("the freed descriptor %d was to be used again: %+v", p.serverD, got)
	}
	p.server.FailAccepts(syscall.ENOBUFS, 2)
	for range 2 {
		p.wants("fault", p.do(p.ks, reactor.Accept, p.listener, nil), 0, syscall.ENOBUFS)
	}
	p.client.FailOpens(syscall.ENFILE, 1)
	if _, err := p.kc.Open(p.bound, reactor.SocketOptions{}); err != syscall.ENFILE {
		t.Fatalf("open: %v", err)
	}
	p.server.LimitDescriptors(100)
	p.server.FailListens(syscall.EACCES, 1)
	if _, _, err := p.ks.Listen(netip.AddrPortFrom(hostA, 0), reactor.SocketOptions{}); err != syscall.EACCES {
		t.Fatalf("listen: %v", err)
	}
}

func TestPortsRestAfterAnActiveClose(t *testing.T) {
	p := newPlain(t, simkernel.WorldOptions{EphemeralPorts: 3})
	for range 3 {
		p.connect(reactor.SocketOptions{})
		_ = p.kc.Close(p.clientD)
		p.wants("end", p.do(p.ks, reactor.Receive, p.serverD, make([]byte, 1)), 0, nil)
		_ = p.ks.Close(p.serverD)
	}
	d := p.open(reactor.SocketOptions{})
	p.wants("no port", p.do(p.kc, reactor.Connect, d, nil), 0, syscall.EADDRNOTAVAIL)
	p.w.Advance(61 * time.Second)
	p.wants("a minute later", p.do(p.kc, reactor.Connect, d, nil), 0, nil)
}

func TestKilledProcessResetsItsPeersAndFreesItsPort(t *testing.T) {
	p := newPlain(t, simkernel.WorldOptions{})
	p.connect(reactor.SocketOptions{})
	receiving := p.submit(p.ks, reactor.Operation{Kind: reactor.Receive, Descriptor: p.serverD, Buffers: [2][]byte{make([]byte, 8)}})
	waiting := p.open(reactor.SocketOptions{})
	p.wants("waits in the backlog", p.do(p.kc, reactor.Connect, waiting, nil), 0, nil)
	p.server.Kill()
	p.wants("peer", p.do(p.kc, reactor.Receive, p.clientD, make([]byte, 8)), 0, syscall.ECONNRESET)
	p.wants("backlog", p.do(p.kc, reactor.Receive, waiting, make([]byte, 8)), 0, syscall.ECONNRESET)
	if _, ended := p.ended[receiving]; ended || p.server.Descriptors() != 0 {
		t.Fatal("a killed process goes on")
	}
	p.wants("nobody listens", p.do(p.kc, reactor.Connect, p.open(reactor.SocketOptions{}), nil), 0, syscall.ECONNREFUSED)
	if err := p.ks.Bind(); err != syscall.ESRCH {
		t.Fatalf("bind in a killed process: %v", err)
	}
	p.server = p.w.Process("server", hostA)
	p.ks = p.server.Kernel()
	p.listen(p.bound.Port())
	p.connect(reactor.SocketOptions{})
}

func TestFaultsAtTheFirstPacket(t *testing.T) {
	p := newPlain(t, simkernel.WorldOptions{})
	p.w.OnConnect(func(c *simkernel.Connection) { c.Reset() })
	p.wants("reset on the way", p.do(p.kc, reactor.Connect, p.open(reactor.SocketOptions{}), nil), 0, syscall.ECONNRESET)
	accept := p.submit(p.ks, reactor.Operation{Kind: reactor.Accept, Descriptor: p.listener})
	p.w.Advance(time.Minute)
	if n := p.ks.Poll(make([]reactor.Completion, 1), reactor.Past); n != 0 {
		t.Fatal("the server saw a connection that was reset on its way")
	}
	p.w.OnConnect(func(*simkernel.Connection) { p.client.Kill() })
	p.submit(p.kc, reactor.Operation{Kind: reactor.Watch, Descriptor: p.open(reactor.SocketOptions{})})
	p.submit(p.kc, reactor.Operation{Kind: reactor.Connect, Descriptor: p.open(reactor.SocketOptions{}), Address: p.bound})
	if n := p.kc.Poll(make([]reactor.Completion, 4), p.w.Now().After(time.Minute)); n != 0 || p.client.Descriptors() != 0 {
		t.Fatalf("%d completions of a killed process, %d descriptors", n, p.client.Descriptors())
	}
	if len(p.w.Connections()) != 0 {
		t.Fatal("a killed process left a connection")
	}
	p.ks.Cancel(accept)
	p.wants("accept", p.await(accept), 0, syscall.ECANCELED)
}

// A process dies behind a silent link: its peer is told by the first thing it sends after the link is
// back, or by keepalive when it sends nothing.
func TestHalfOpenConnectionIsFoundWhenTheLinkIsBack(t *testing.T) {
	for _, sends := range []bool{true, false} {
		p := newPlain(t, simkernel.WorldOptions{})
		p.connect(reactor.SocketOptions{KeepaliveIdle: 20 * time.Second, KeepaliveInterval: time.Second, KeepaliveCount: 9})
		link := p.w.Link(hostA, hostB)
		link.BlackHole(true)
		p.server.Kill()
		p.w.Advance(time.Second)
		link.BlackHole(false)
		start := p.w.Now()
		if sends {
			p.wants("send", p.do(p.kc, reactor.Send, p.clientD, []byte("hello")), 5, nil)
		}
		p.wants("receive", p.do(p.kc, reactor.Receive, p.clientD, make([]byte, 1)), 0, syscall.ECONNRESET)
		if d := time.Duration(p.w.Now() - start); sends != (d < time.Second) || d > 21*time.Second {
			t.Fatalf("sends %v: found after %v", sends, d)
		}
	}
}

func TestCancelRacesWithTheEndEitherWay(t *testing.T) {
	outcomes := map[error]int{}
	p := newPlain(t, simkernel.WorldOptions{})
	p.connect(reactor.SocketOptions{})
	for range 40 {
		p.do(p.kc, reactor.Send, p.clientD, []byte("x"))
		p.w.Advance(time.Millisecond)
		receiving := p.submit(p.ks, reactor.Operation{Kind: reactor.Receive, Descriptor: p.serverD, Buffers: [2][]byte{make([]byte, 1)}})
		p.ks.Cancel(receiving)
		outcomes[p.await(receiving).Err]++
	}
	if outcomes[nil] == 0 || outcomes[syscall.ECANCELED] == 0 {
		t.Fatalf("outcomes %v", outcomes)
	}
}

func TestMisuseOfTheDoorPanics(t *testing.T) {
	p := newPlain(t, simkernel.WorldOptions{})
	p.connect(reactor.SocketOptions{})
	op := reactor.Operation{Kind: reactor.Receive, Descriptor: p.serverD, Buffers: [2][]byte{make([]byte, 1)}}
	p.submit(p.ks, op)
	for _, misuse := range []reactor.Operation{op, {Kind: reactor.Send, Descriptor: p.serverD}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v was accepted", misuse)
				}
			}()
			p.submit(p.ks, misuse)
		}()
	}
}

func TestUnreadBytesStayBounded(t *testing.T) {
	p := newPlain(t, simkernel.WorldOptions{Buffer: 1000})
	p.connect(reactor.SocketOptions{})
	p.wants("send", p.do(p.kc, reactor.Send, p.clientD, make([]byte, 5000)), 1000, nil)
	waiting := p.submit(p.kc, reactor.Operation{Kind: reactor.Send, Descriptor: p.clientD, Buffers: [2][]byte{make([]byte, 10)}})
	p.w.Advance(time.Second)
	p.wants("receive", p.do(p.ks, reactor.Receive, p.serverD, make([]byte, 3)), 3, nil)
	p.wants("space for three", p.await(waiting), 3, nil)
	if n := p.conn.Bytes(simkernel.ToServer); n != 1003 {
		t.Fatalf("%d bytes written", n)
	}
}
