package kerneltest

import (
	"errors"
	"net/netip"
	"syscall"

	"github.com/orbitte/orbitte/reactor"
)

var listenCases = []conformance{
	{"PortZeroReportsTheRealPort", portZero},
	{"AcceptedPeerAddressIsTheClientsOwn", acceptedAddress},
	{"ServesIPv6", servesIPv6},
	{"UnspecifiedAddressIsReportedAndServed", unspecified},
	{"UsedPortIsRefused", usedPort},
	{"UnknownAddressIsRefused", unknownAddress},
	{"ConnectToClosedPortIsRefused", refusedConnect},
	{"ConnectionsWaitInTheBacklog", backlog},
	{"ManyAcceptsOneAfterTheOther", manyAccepts},
	{"ListenerRestartsOnItsPort", restartListener},
	{"CloseWithOutstandingAcceptIsBusy", closeBusyListener},
	{"AcceptedOnOneKernelServedOnAnother", servedElsewhere},
	{"TuneReportsCongestionControl", tune},
	{"UnknownCongestionControlIsAnError", unknownCongestion},
	{"ReusedDescriptorStartsAfresh", reusedDescriptor},
	{"CloseOfUnknownDescriptorFails", closeUnknown},
}

func portZero(r *rig) {
	k := r.kernel()
	_, a := r.listen(k, r.IPv4)
	_, b := r.listen(k, r.IPv4)
	if a.Port() == 0 || b.Port() == 0 || a.Port() == b.Port() || a.Addr() != r.IPv4 {
		r.Fatalf("two listeners on %v port 0 report %v and %v", r.IPv4, a, b)
	}
}

func acceptedAddress(r *rig) {
	k := r.kernel()
	listener, bound := r.listen(k, r.IPv4)
	accept := r.submit(k, reactor.Operation{Kind: reactor.Accept, Descriptor: listener})
	c := r.open(k, bound)
	if got := r.must(r.connect(k, c, bound)); got.Descriptor != reactor.NoDescriptor && got.Descriptor != 0 && got.Descriptor != c {
		r.Fatalf("connect reports descriptor %d", got.Descriptor)
	}
	got := r.must(accept)
	r.own(k, got.Descriptor)
	if got.Descriptor < 0 || got.Descriptor == c || got.Descriptor == listener {
		r.Fatalf("accepted descriptor is %d, client %d, listener %d", got.Descriptor, c, listener)
	}
	if got.Address.Addr() != r.IPv4 || got.Address.Port() == 0 || got.Address == bound {
		r.Fatalf("peer of the accepted stream is %v, listener %v", got.Address, bound)
	}
}

func servesIPv6(r *rig) {
	if !r.IPv6.IsValid() {
		r.Skip("no IPv6 here")
	}
	k := r.kernel()
	listener, bound := r.listen(k, r.IPv6)
	if bound.Addr() != r.IPv6 || bound.Port() == 0 {
		r.Fatalf("bound to %v", bound)
	}
	c, s := r.join(k, listener, bound, k)
	if got := r.transfer(k, c, s, r.text("over six"), 3); string(got) != "over six" {
		r.Fatalf("got %q", got)
	}
}

// field case F-43: the address reported is the one bound, so that nobody mistakes it for a reachable one.
func unspecified(r *rig) {
	k := r.kernel()
	listener, bound := r.listen(k, netip.IPv4Unspecified())
	if !bound.Addr().IsUnspecified() || bound.Port() == 0 {
		r.Fatalf("bound to %v", bound)
	}
	c, s := r.join(k, listener, netip.AddrPortFrom(r.IPv4, bound.Port()), k)
	if got := r.transfer(k, c, s, r.text("any"), 8); string(got) != "any" {
		r.Fatalf("got %q", got)
	}
}

// reusedDescriptor ends streams with cancelled operations; the next stream most often gets the same
// number and must not inherit anything.
func reusedDescriptor(r *rig) {
	k := r.kernel()
	listener, bound := r.listen(k, r.IPv4)
	for range 20 {
		c, s := r.join(k, listener, bound, k)
		receiving := r.receive(k, s, r.memory(4))
		watch := r.submit(k, reactor.Operation{Kind: reactor.Watch, Descriptor: s})
		r.turn(0)
		r.must(r.send(k, c, r.text("now")))
		r.must(receiving)
		k.Cancel(watch)
		r.await(watch)
		last := r.receive(k, c, r.memory(4))
		r.turn(0)
		k.Cancel(last)
		r.fails(last, syscall.ECANCELED)
		r.close(k, s)
		r.close(k, c)
	}
}

func usedPort(r *rig) {
	k, other := r.kernel(), r.kernel()
	_, bound := r.listen(k, r.IPv4)
	for _, second := range []reactor.Kernel{k, other} {
		_, _, err := second.Listen(bound, reactor.SocketOptions{ReuseAddress: true})
		if !errors.Is(err, syscall.EADDRINUSE) {
			r.Fatalf("second listener on %v: %v", bound, err)
		}
	}
}

func unknownAddress(r *rig) {
	k := r.kernel()
	_, _, err := k.Listen(netip.MustParseAddrPort("203.0.113.7:0"), reactor.SocketOptions{})
	if !errors.Is(err, syscall.EADDRNOTAVAIL) {
		r.Fatalf("listen on an address of another host: %v", err)
	}
	if _, _, err := k.Listen(netip.AddrPort{}, reactor.SocketOptions{}); err == nil {
		r.Fatal("listen on no address succeeded")
	}
	if _, err := k.Open(netip.AddrPort{}, reactor.SocketOptions{}); err == nil {
		r.Fatal("open for no address succeeded")
	}
}

func refusedConnect(r *rig) {
	k := r.kernel()
	listener, bound := r.listen(k, r.IPv4)
	r.close(k, listener)
	r.fails(r.connect(k, r.open(k, bound), bound), syscall.ECONNREFUSED)
}

func backlog(r *rig) {
	k := r.kernel()
	listener, bound := r.listen(k, r.IPv4)
	const clients = 20
	for range clients {
		r.must(r.connect(k, r.open(k, bound), bound))
	}
	seen := map[netip.AddrPort]bool{}
	for range clients {
		c := r.must(r.submit(k, reactor.Operation{Kind: reactor.Accept, Descriptor: listener}))
		r.own(k, c.Descriptor)
		seen[c.Address] = true
	}
	if len(seen) != clients {
		r.Fatalf("%d different peers of %d", len(seen), clients)
	}
}

func manyAccepts(r *rig) {
	server, client := r.kernel(), r.kernel()
	listener, bound := r.listen(server, r.IPv4)
	for range 50 {
		c, s := r.join(server, listener, bound, client)
		r.close(client, c)
		r.close(server, s)
	}
}

func restartListener(r *rig) {
	k := r.kernel()
	listener, bound := r.listen(k, r.IPv4)
	for range 3 {
		c, s := r.join(k, listener, bound, k)
		r.close(k, s) // the server closes first and keeps the waiting state
		r.close(k, c)
		r.close(k, listener)
		d, again, err := k.Listen(bound, reactor.SocketOptions{ReuseAddress: true})
		if err != nil || again != bound {
			r.Fatalf("listen again on %v: %v, %v", bound, again, err)
		}
		listener = r.own(k, d)
	}
}

func closeBusyListener(r *rig) {
	k := r.kernel()
	listener, _ := r.listen(k, r.IPv4)
	accept := r.submit(k, reactor.Operation{Kind: reactor.Accept, Descriptor: listener})
	for range 2 {
		if err := k.Close(listener); !errors.Is(err, syscall.EBUSY) {
			r.Fatalf("close with an outstanding accept: %v", err)
		}
		r.turn(0)
	}
	k.Cancel(accept)
	r.fails(accept, syscall.ECANCELED)
	r.close(k, listener)
}

func servedElsewhere(r *rig) {
	acceptor, lane, client := r.kernel(), r.kernel(), r.kernel()
	listener, bound := r.listen(acceptor, r.IPv4)
	c, s := r.join(acceptor, listener, bound, client)
	for i, k := range []reactor.Kernel{lane, acceptor, lane} {
		buffer := r.memory(1)
		receiving := r.receive(k, s, buffer)
		r.must(r.send(client, c, r.text("ping")))
		if n := r.must(receiving).N; n != 1 || buffer[0] != 'p' {
			r.Fatalf("round %d: got %q", i, buffer[:n])
		}
		if got := r.read(k, s, 3); got != "ing" {
			r.Fatalf("round %d: got %q", i, got)
		}
		r.must(r.send(k, s, r.text("pong")))
		if got := r.read(client, c, 4); got != "pong" {
			r.Fatalf("round %d: got %q", i, got)
		}
	}
	r.close(lane, s)
	if n := r.must(r.receive(client, c, r.memory(1))).N; n != 0 {
		r.Fatalf("%d bytes after the end", n)
	}
}

func tune(r *rig) {
	k, c, s := r.pair()
	o := reactor.SocketOptions{
		KeepaliveIdle: 15e9, KeepaliveInterval: 5e9, KeepaliveCount: 3, UserTimeout: 30e9, Congestion: "auto",
	}
	for _, d := range []reactor.Descriptor{c, s} {
		name, err := k.Tune(d, o)
		if err != nil || name == "" {
			r.Fatalf("tune: congestion control %q, error %v", name, err)
		}
	}
	if got := r.transfer(k, c, s, r.text("tuned"), 8); string(got) != "tuned" {
		r.Fatalf("got %q", got)
	}
}

func unknownCongestion(r *rig) {
	k, c, _ := r.pair()
	if _, err := k.Tune(c, reactor.SocketOptions{Congestion: "no-such-control"}); err == nil {
		r.Fatal("an unavailable congestion control was accepted")
	}
}

func closeUnknown(r *rig) {
	k := r.kernel()
	listener, _ := r.listen(k, r.IPv4)
	r.close(k, listener)
	if err := k.Close(listener); !errors.Is(err, syscall.EBADF) {
		r.Fatalf("second close: %v", err)
	}
	if err := k.Close(reactor.NoDescriptor); !errors.Is(err, syscall.EBADF) {
		r.Fatalf("close of no descriptor: %v", err)
	}
}
