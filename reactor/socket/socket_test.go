package socket

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
)

func listener(t *testing.T, at string, o reactor.SocketOptions) (int, netip.AddrPort) {
	t.Helper()
	fd, bound, err := Listen(netip.MustParseAddrPort(at), &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd, bound
}

// attempt tries an operation until it is done, at most two seconds.
func attempt(t *testing.T, op reactor.Operation) reactor.Completion {
	t.Helper()
	var c reactor.Completion
	for end := time.Now().Add(2 * time.Second); !try(&op, &c); {
		if time.Now().After(end) {
			t.Fatalf("operation %d is not done after 2 s", op.Kind)
		}
		time.Sleep(50 * time.Microsecond)
	}
	return c
}

func try(op *reactor.Operation, c *reactor.Completion) bool {
	done, _ := Try(op, c)
	return done
}

func must(t *testing.T, c reactor.Completion) reactor.Completion {
	t.Helper()
	if c.Err != nil {
		t.Fatal(c.Err)
	}
	return c
}

// pair returns both ends of a stream over at, which must be a listening address with port 0.
func pair(t *testing.T, at string, o reactor.SocketOptions) (client, server int) {
	t.Helper()
	l, bound := listener(t, at, o)
	client, err := Open(bound, &o)
	if err != nil {
		t.Fatal(err)
	}
	var c reactor.Completion
	connecting := reactor.Operation{Kind: reactor.Connect, Descriptor: reactor.Descriptor(client), Address: bound}
	done := try(&connecting, &c)
	accepted := must(t, attempt(t, reactor.Operation{Kind: reactor.Accept, Descriptor: reactor.Descriptor(l)}))
	if !done {
		c = attempt(t, connecting)
	}
	must(t, c)
	server = int(accepted.Descriptor)
	local, _ := localName(client)
	if accepted.Address != local {
		t.Errorf("accepted from %v, the client is %v", accepted.Address, local)
	}
	t.Cleanup(func() { _, _ = unix.Close(client), unix.Close(server) })
	return client, server
}

func option(t *testing.T, fd, level, name int) int {
	t.Helper()
	v, err := unix.GetsockoptInt(fd, level, name)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// proves T-8, T-12
// field case F-40: the options that find a silently dead peer within a stated bound are really set.
func TestOptionsAreReadBackOnBothEnds(t *testing.T) {
	o := reactor.SocketOptions{
		KeepaliveIdle: 9500 * time.Millisecond, KeepaliveInterval: 3 * time.Second, KeepaliveCount: 4,
		UserTimeout: 21*time.Second + time.Microsecond, SendBuffer: 64 << 10, ReceiveBuffer: 32 << 10,
	}
	client, accepted := pair(t, "127.0.0.1:0", reactor.SocketOptions{})
	for end, fd := range map[string]int{"client": client, "accepted": accepted} {
		if _, err := Tune(fd, &o); err != nil {
			t.Fatal(end, err)
		}
		for _, want := range []struct {
			name          string
			level, option int
			value         int
		}{
			{"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
			{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 10}, // rounded up
			{"TCP_KEEPINTVL", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 3},
			{"TCP_KEEPCNT", unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 4},
			{"TCP_USER_TIMEOUT", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 21001},
			{"SO_SNDBUF", unix.SOL_SOCKET, unix.SO_SNDBUF, 128 << 10}, // the system doubles
			{"SO_RCVBUF", unix.SOL_SOCKET, unix.SO_RCVBUF, 64 << 10},
		} {
			if got := option(t, fd, want.level, want.option); got != want.value {
				t.Errorf("%s: %s is %d, want %d", end, want.name, got, want.value)
			}
		}
	}
}

// proves T-8
func TestZeroOptionsSetNoDelayAndLeaveTheRest(t *testing.T) {
	plain, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(plain)
	fd, err := Open(netip.MustParseAddrPort("192.0.2.1:1"), &reactor.SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if option(t, fd, unix.IPPROTO_TCP, unix.TCP_NODELAY) != 1 {
		t.Error("TCP_NODELAY is off")
	}
	for _, o := range [][2]int{{unix.SOL_SOCKET, unix.SO_KEEPALIVE}, {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT},
		{unix.SOL_SOCKET, unix.SO_SNDBUF}, {unix.SOL_SOCKET, unix.SO_RCVBUF}} {
		if got, want := option(t, fd, o[0], o[1]), option(t, plain, o[0], o[1]); got != want {
			t.Errorf("option %v is %d, the system's default is %d", o, got, want)
		}
	}
	flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	closing, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if flags&unix.O_NONBLOCK == 0 || closing&unix.FD_CLOEXEC == 0 {
		t.Error("the stream blocks, or survives exec")
	}
}

func TestAutomaticCongestionIsRenoOnTheSameHost(t *testing.T) {
	client, accepted := pair(t, "127.0.0.1:0", reactor.SocketOptions{})
	usual, err := Tune(client, &reactor.SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for end, fd := range map[string]int{"client": client, "accepted": accepted} {
		got, err := Tune(fd, &reactor.SocketOptions{Congestion: AutoCongestion})
		if err != nil || got != "reno" {
			t.Errorf("%s: %q, %v (the system's choice is %q)", end, got, err, usual)
		}
	}
	opened, err := Open(netip.MustParseAddrPort("[::1]:9"), &reactor.SocketOptions{Congestion: AutoCongestion})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(opened)
	if got, _ := congestion(opened); got != "reno" {
		t.Errorf("before connecting to loopback: %q", got)
	}
	remote, err := Open(netip.MustParseAddrPort("192.0.2.1:9"), &reactor.SocketOptions{Congestion: AutoCongestion})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(remote)
	if got, err := Tune(remote, &reactor.SocketOptions{Congestion: AutoCongestion}); err != nil || got != usual {
		t.Errorf("for another host: %q, %v; the system's choice is %q", got, err, usual)
	}
}

func TestSameHostTable(t *testing.T) {
	for _, c := range []struct {
		local, peer string
		same        bool
	}{
		{"127.0.0.1", "127.0.0.1", true}, {"127.0.0.1", "127.8.8.8", true}, {"::1", "::1", true},
		{"192.0.2.1", "192.0.2.1", true}, {"192.0.2.1", "192.0.2.2", false}, {"::ffff:192.0.2.1", "192.0.2.1", true},
		{"2001:db8::1", "2001:db8::2", false}, {"2001:db8::1", "2001:db8::1", true},
	} {
		if got := isSameHost(netip.MustParseAddr(c.local), netip.MustParseAddr(c.peer)); got != c.same {
			t.Errorf("%s to %s: %v", c.local, c.peer, got)
		}
	}
}

func TestBadOptionsAreNamed(t *testing.T) {
	fd, err := Open(netip.MustParseAddrPort("127.0.0.1:9"), &reactor.SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for _, c := range []struct {
		option string
		o      reactor.SocketOptions
		errno  syscall.Errno
	}{
		{"TCP_CONGESTION", reactor.SocketOptions{Congestion: "no-such-control"}, unix.ENOENT},
		{"TCP_KEEPIDLE", reactor.SocketOptions{KeepaliveIdle: 10 * time.Hour}, unix.EINVAL},
		{"TCP_KEEPINTVL", reactor.SocketOptions{KeepaliveInterval: -time.Second}, unix.EINVAL},
		{"TCP_KEEPCNT", reactor.SocketOptions{KeepaliveCount: 128}, unix.EINVAL},
		{"TCP_USER_TIMEOUT", reactor.SocketOptions{UserTimeout: -1}, unix.EINVAL},
		{"SO_SNDBUF", reactor.SocketOptions{SendBuffer: -1}, unix.EINVAL},
		{"SO_RCVBUF", reactor.SocketOptions{ReceiveBuffer: -1}, unix.EINVAL},
	} {
		_, err := Tune(fd, &c.o)
		var refused *OptionError
		if !errors.As(err, &refused) || refused.Option != c.option || !errors.Is(err, c.errno) {
			t.Errorf("%s: %v", c.option, err)
		}
	}
	if _, err := Tune(0, &reactor.SocketOptions{}); err == nil {
		t.Error("tuning a descriptor that is no socket went well")
	}
}

// proves T-8
func TestAddressesOfEveryFamily(t *testing.T) {
	for at, want := range map[string]string{
		"127.0.0.1:0": "127.0.0.1", "[::1]:0": "::1", "[::ffff:127.0.0.1]:0": "127.0.0.1",
	} {
		client, _ := pair(t, at, reactor.SocketOptions{})
		peer, e := peerName(client)
		if e != 0 || peer.Addr() != netip.MustParseAddr(want) || peer.Port() == 0 {
			t.Errorf("%s: connected to %v, %v", at, peer, e)
		}
	}
	// "::" serves IPv4 too, and its peers show as IPv4.
	l, bound := listener(t, "[::]:0", reactor.SocketOptions{})
	to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), bound.Port())
	client, err := Open(to, &reactor.SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(client)
	must(t, attempt(t, reactor.Operation{Kind: reactor.Connect, Descriptor: reactor.Descriptor(client), Address: to}))
	c := must(t, attempt(t, reactor.Operation{Kind: reactor.Accept, Descriptor: reactor.Descriptor(l)}))
	defer unix.Close(int(c.Descriptor))
	if !c.Address.Addr().Is4() {
		t.Errorf("peer is %v", c.Address)
	}
}

func TestAddressConversionRoundTrips(t *testing.T) {
	for _, text := range []string{"127.0.0.1:0", "255.1.2.3:65535", "[::]:1", "[2001:db8::5]:443", "[fe80::1%7]:80", "[fe80::1%lo]:80"} {
		want := netip.MustParseAddrPort(text)
		s, e := encode(want)
		if e != 0 {
			t.Fatal(text, e)
		}
		got := s.decode()
		if want.Addr().Zone() == "lo" {
			want = netip.AddrPortFrom(want.Addr().WithZone("1"), want.Port())
		}
		if got != want {
			t.Errorf("%s came back as %v", text, got)
		}
	}
	if _, e := encode(netip.AddrPort{}); e != unix.EAFNOSUPPORT {
		t.Error("the zero address:", e)
	}
	if _, e := encode(netip.MustParseAddrPort("[fe80::1%nosuchlink]:80")); e != unix.ENODEV {
		t.Error("an unknown zone:", e)
	}
	if got := (&address{}).decode(); got.IsValid() {
		t.Error("an empty sockaddr became", got)
	}
}

// field case F-38: sending to a closed peer is an error, never a signal.
func TestSendToClosedPeerRaisesNoSignal(t *testing.T) {
	signals := make(chan os.Signal, 8)
	// SIGWINCH, of a higher number, marks the end: when it is seen, an earlier SIGPIPE was seen before.
	signal.Notify(signals, unix.SIGPIPE, unix.SIGWINCH)
	defer signal.Stop(signals)
	for _, buffers := range [][2][]byte{{[]byte("one")}, {[]byte("one"), []byte("two")}} {
		client, server := pair(t, "127.0.0.1:0", reactor.SocketOptions{})
		if err := unix.Shutdown(client, unix.SHUT_WR); err != nil {
			t.Fatal(err)
		}
		_ = server
		c := attempt(t, reactor.Operation{Kind: reactor.Send, Descriptor: reactor.Descriptor(client), Buffers: buffers})
		if c.Err != unix.EPIPE {
			t.Errorf("%d buffers: %+v", len(buffers), c)
		}
	}
	if err := unix.Kill(unix.Getpid(), unix.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	if s := <-signals; s != unix.SIGWINCH {
		t.Error("got", s)
	}
}

// field case F-67: a listener that cannot be opened says why.
func TestBindToUsedPortIsNamed(t *testing.T) {
	_, bound := listener(t, "127.0.0.1:0", reactor.SocketOptions{})
	_, _, err := Listen(bound, &reactor.SocketOptions{})
	var refused *CallError
	if !errors.As(err, &refused) || refused.Call != "bind" || !errors.Is(err, unix.EADDRINUSE) ||
		!strings.Contains(err.Error(), bound.String()) {
		t.Error(err)
	}
}

func TestListenerTakesItsOldPortBack(t *testing.T) {
	client, server := 0, 0
	var bound netip.AddrPort
	func() {
		l, at, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"), &reactor.SocketOptions{ReuseAddress: true})
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(l)
		bound = at
		if client, err = Open(at, &reactor.SocketOptions{}); err != nil {
			t.Fatal(err)
		}
		must(t, attempt(t, reactor.Operation{Kind: reactor.Connect, Descriptor: reactor.Descriptor(client), Address: at}))
		server = int(must(t, attempt(t, reactor.Operation{Kind: reactor.Accept, Descriptor: reactor.Descriptor(l)})).Descriptor)
	}()
	_, _ = unix.Close(server), unix.Close(client) // our end is in TIME_WAIT now
	listener(t, bound.String(), reactor.SocketOptions{ReuseAddress: true})
}

// A socket that connects to its own port is no peer.
func TestSelfConnectionIsRefused(t *testing.T) {
	fd, bound, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"), &reactor.SocketOptions{ReuseAddress: true})
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	self, to, err := create(bound)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(self)
	if e := bind(self, &to); e != 0 {
		t.Fatal(e)
	}
	c := attempt(t, reactor.Operation{Kind: reactor.Connect, Descriptor: reactor.Descriptor(self), Address: bound})
	if c.Err != unix.ECONNREFUSED {
		t.Errorf("%+v", c)
	}
}

func TestTwoBuffersAreFilledInOrder(t *testing.T) {
	client, server := pair(t, "127.0.0.1:0", reactor.SocketOptions{})
	for _, split := range []int{0, 1, 3, 6} {
		text := []byte("abcdef")
		c := must(t, attempt(t, reactor.Operation{Kind: reactor.Send, Descriptor: reactor.Descriptor(client),
			Buffers: [2][]byte{text[:split], text[split:]}}))
		got := make([]byte, 8)
		c = must(t, attempt(t, reactor.Operation{Kind: reactor.Receive, Descriptor: reactor.Descriptor(server),
			Buffers: [2][]byte{got[:6-split], got[6-split:]}}))
		if string(got[:c.N]) != "abcdef" {
			t.Errorf("split %d: %q", split, got[:c.N])
		}
	}
}

func TestReceiveTellsWhatIsLeft(t *testing.T) {
	client, server := pair(t, "127.0.0.1:0", reactor.SocketOptions{})
	if _, err := Tune(server, &reactor.SocketOptions{}); err != nil {
		t.Fatal(err)
	}
	must(t, attempt(t, reactor.Operation{Kind: reactor.Send, Descriptor: reactor.Descriptor(client), Buffers: [2][]byte{make([]byte, 30)}}))
	for _, want := range []int{20, 10, 0} {
		attempt(t, reactor.Operation{Kind: reactor.Watch, Descriptor: reactor.Descriptor(server)})
		receive := reactor.Operation{Kind: reactor.Receive, Descriptor: reactor.Descriptor(server), Buffers: [2][]byte{make([]byte, 4), make([]byte, 6)}}
		var c reactor.Completion
		if done, left := Try(&receive, &c); !done || c.N != 10 || left != want {
			t.Fatalf("%+v, left %d, want %d", c, left, want)
		}
	}
	must(t, attempt(t, reactor.Operation{Kind: reactor.Send, Descriptor: reactor.Descriptor(client), Buffers: [2][]byte{make([]byte, 10)}}))
	if err := unix.Shutdown(client, unix.SHUT_WR); err != nil {
		t.Fatal(err)
	}
	ended := []unix.PollFd{{Fd: int32(server), Events: unix.POLLRDHUP}} // the end follows the bytes; before it comes, nothing is rightly left
	if n, err := unix.Poll(ended, 20_000); n != 1 || err != nil {
		t.Fatalf("the end of the stream has not come: %d, %v", n, err)
	}
	receive := reactor.Operation{Kind: reactor.Receive, Descriptor: reactor.Descriptor(server), Buffers: [2][]byte{make([]byte, 10)}}
	var c reactor.Completion
	if _, left := Try(&receive, &c); c.N != 10 || left < 1 {
		t.Errorf("before the end of the stream: %+v, left %d", c, left)
	}
}

// A look moves what a try would, and says as much but for what is left.
func TestLookIsATryThatDoesNotAsk(t *testing.T) {
	client, server := pair(t, "127.0.0.1:0", reactor.SocketOptions{})
	got := make([]byte, 8)
	one := reactor.Operation{Kind: reactor.Receive, Descriptor: reactor.Descriptor(server), Ticket: 7, Buffers: [2][]byte{got[:4]}}
	two, many, second := one, one, one
	two.Buffers, many.More, second.Buffers = [2][]byte{got[:2], got[2:4]}, [][]byte{got[4:]}, [2][]byte{nil, got[:4]}
	var c reactor.Completion
	if done, left := Look(&one, &c); done || left != Unknown {
		t.Fatalf("an empty socket: done %v, %+v, left %d", done, c, left)
	}
	must(t, attempt(t, reactor.Operation{Kind: reactor.Send, Descriptor: reactor.Descriptor(client), Buffers: [2][]byte{[]byte("abcdEFGHijklmnopqrstuv")}}))
	attempt(t, reactor.Operation{Kind: reactor.Watch, Descriptor: reactor.Descriptor(server)})
	for _, want := range []struct {
		op   *reactor.Operation
		text string
	}{{&one, "abcd"}, {&two, "EFGH"}, {&many, "ijklmnop"}, {&second, "qrst"}, {&one, "uv"}} {
		if done, _ := Look(want.op, &c); !done || c.Err != nil || c.Ticket != 7 || string(got[:c.N]) != want.text {
			t.Fatalf("%q, %+v, want %q", got[:c.N], c, want.text)
		}
	}
	if err := unix.Shutdown(client, unix.SHUT_WR); err != nil {
		t.Fatal(err)
	}
	attempt(t, reactor.Operation{Kind: reactor.Watch, Descriptor: reactor.Descriptor(server)})
	if done, _ := Look(&one, &c); !done || c.Err != nil || c.N != 0 {
		t.Fatalf("the end: %v, %+v", done, c)
	}
	one.Descriptor = 1 << 20
	if done, _ := Look(&one, &c); !done || c.Err != unix.EBADF || c.N != 0 {
		t.Fatalf("no descriptor: %v, %+v", done, c)
	}
}

func TestCallsAreBoundedInBytes(t *testing.T) {
	op := reactor.Operation{Buffers: [2][]byte{make([]byte, CallBytes-1), make([]byte, 10)}}
	var iov [2]unix.Iovec
	if n := vector(&iov, &op.Buffers); n != CallBytes || iov[1].Len != 1 || asked(&op) != CallBytes {
		t.Errorf("%d bytes, second %d, asked %d", n, iov[1].Len, asked(&op))
	}
}

// However many buffers an operation has, as many of them as a call takes are moved in their order, and counted.
func TestAsManyBuffersMoveAsACallTakes(t *testing.T) {
	client, server := pair(t, "127.0.0.1:0", reactor.SocketOptions{})
	defer unix.Close(client)
	defer unix.Close(server)
	for _, least := range []int{0, 1} { // every third buffer is empty, or none
		for _, parts := range []int{3, fewParts, fewParts + 1, someParts, someParts + 1, reactor.CallBuffers, reactor.CallBuffers + 9} {
			from, to := make([]byte, 3*parts), make([]byte, 3*parts)
			for i := range from {
				from[i] = byte(i*7 + parts)
			}
			send, size := manyBuffers(reactor.Send, client, from, parts, least)
			receive, _ := manyBuffers(reactor.Receive, server, to, parts, least)
			o := NewOperations(1)
			if r := o.At(o.Add(&send)); r.Asked != size {
				t.Errorf("%d buffers: asked for %d bytes, want %d", parts, r.Asked, size)
			}
			if c := must(t, attempt(t, send)); c.N != size {
				t.Fatalf("%d buffers: sent %d bytes, want %d", parts, c.N, size)
			}
			if c := must(t, attempt(t, receive)); c.N != size || !bytes.Equal(from[:size], to[:size]) {
				t.Errorf("%d buffers: received %d bytes, want these %d", parts, c.N, size)
			}
		}
	}
}

// manyBuffers is an operation with so many buffers of at least so many bytes, and how many bytes one call moves.
func manyBuffers(kind reactor.Kind, fd int, memory []byte, parts, least int) (op reactor.Operation, size int) {
	op = reactor.Operation{Kind: kind, Descriptor: reactor.Descriptor(fd)}
	for i := range parts {
		n := least + i%3
		part := memory[:n:n]
		if memory = memory[n:]; i < reactor.CallBuffers {
			size += n
		}
		if i < len(op.Buffers) {
			op.Buffers[i] = part
		} else {
			op.More = append(op.More, part)
		}
	}
	return op, size
}

// proves L-6
func TestTryAllocatesNothing(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	l, _ := listener(t, "127.0.0.1:0", reactor.SocketOptions{})
	a, b := make([]byte, 52), make([]byte, 100)
	send := reactor.Operation{Kind: reactor.Send, Descriptor: reactor.Descriptor(ends[0]), Buffers: [2][]byte{a, b}}
	receive := reactor.Operation{Kind: reactor.Receive, Descriptor: reactor.Descriptor(ends[1]), Buffers: [2][]byte{a, b}}
	accept := reactor.Operation{Kind: reactor.Accept, Descriptor: reactor.Descriptor(l)}
	watch := reactor.Operation{Kind: reactor.Watch, Descriptor: reactor.Descriptor(ends[1])}
	var c reactor.Completion
	if n := testing.AllocsPerRun(100, func() {
		if !try(&send, &c) || !try(&watch, &c) || !try(&receive, &c) || try(&accept, &c) || try(&receive, &c) {
			t.Fatal("a try ended differently")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
