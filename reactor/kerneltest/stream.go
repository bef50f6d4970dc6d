package kerneltest

import (
	"bytes"
	"hash/crc32"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/orbitte/orbitte/reactor"
)

var streamCases = []conformance{
	{"TwoBuffersAreGatheredAndScattered", twoBuffers},
	{"EitherBufferMayBeEmpty", emptyBuffer},
	{"ManyBuffersAreGatheredAndScattered", manyBuffers},
	{"MoreBuffersThanOneCallTakesArriveInOrder", tooManyBuffers},
	{"ManyBuffersWaitForTheirBytes", manyBuffersWait},
	{"ReceiveTakesWhatIsThere", shortReceive},
	{"LargeTransferArrivesWhole", largeTransfer},
	{"BothDirectionsAtOnce", fullDuplex},
	{"EndOfStreamAfterTheLastByte", endOfStream},
	{"ResetEndsReceiveAndSend", reset},
	{"SendAfterPeerClosedFailsWithoutSignal", noSignal},
	{"SendWaitsForSpace", sendWaits},
	{"ManyPairsOnOneKernel", manyPairs},
	{"ListenerCloseEndsWaitingConnections", listenerCloseEndsWaiting},
	{"CloseWithOutstandingOperationsIsBusy", closeBusy},
	{"ShutdownWithOutstandingOperationsIsBusy", shutdownBusy},
	{"UnknownDescriptorFailsByCompletion", unknownDescriptor},
}

func twoBuffers(r *rig) {
	k, c, s := r.pair()
	sent := r.must(r.send(k, c, r.text("header"), r.text("payload")))
	if sent.N != len("headerpayload") {
		r.Fatalf("the kernel sent %d bytes of a small frame", sent.N)
	}
	header, payload := r.memory(4), r.memory(32)
	var got []byte
	for len(got) < sent.N {
		n := r.must(r.receive(k, s, header, payload)).N
		got = append(got, header[:min(n, len(header))]...)
		got = append(got, payload[:max(0, n-len(header))]...)
	}
	if string(got) != "headerpayload" {
		r.Fatalf("got %q", got)
	}
}

func emptyBuffer(r *rig) {
	k, c, s := r.pair()
	r.must(r.send(k, c, nil, r.text("a")))
	r.must(r.send(k, c, r.text("b"), nil))
	one := r.memory(1)
	if n := r.must(r.receive(k, s, nil, one)).N; n != 1 || one[0] != 'a' {
		r.Fatalf("got %d bytes, %q", n, one)
	}
	if n := r.must(r.receive(k, s, one, nil)).N; n != 1 || one[0] != 'b' {
		r.Fatalf("got %d bytes, %q", n, one)
	}
}

// pieces cuts b into pieces of these sizes in turn, some of them empty.
func pieces(b []byte, sizes ...int) (list [][]byte) {
	for i := 0; len(b) > 0; i++ {
		n := min(sizes[i%len(sizes)], len(b))
		list = append(list, b[:n:n])
		b = b[n:]
	}
	return list
}

// behind leaves the first done bytes of a list out.
func behind(list [][]byte, done int) (rest [][]byte) {
	for _, b := range list {
		n := min(done, len(b))
		done -= n
		if n < len(b) {
			rest = append(rest, b[n:])
		}
	}
	return rest
}

// throughMany moves data through lists of buffers on both sides, in as many operations as it takes.
func throughMany(r *rig, data []byte, out, in [][]byte) {
	k, c, s := r.pair()
	for sent, got := 0, 0; got < len(data); {
		if sent < len(data) {
			sent += r.must(r.send(k, c, behind(out, sent)...)).N
		}
		got += r.must(r.receive(k, s, behind(in, got)...)).N
	}
}

func manyBuffers(r *rig) {
	for _, sizes := range [][2][]int{{{1, 0, 2}, {5}}, {{700}, {3, 0, 0, 900}}, {{4096}, {4096}}} {
		data, got := r.memory(60_000), r.memory(60_000)
		pattern(data, 7)
		throughMany(r, data, pieces(data, sizes[0]...), pieces(got, sizes[1]...))
		if !bytes.Equal(got, data) {
			r.Fatalf("sizes %v: the bytes differ", sizes)
		}
	}
}

func tooManyBuffers(r *rig) {
	data, got := r.memory(3*reactor.CallBuffers), r.memory(3*reactor.CallBuffers)
	pattern(data, 9)
	throughMany(r, data, pieces(data, 1), pieces(got, 1))
	if !bytes.Equal(got, data) {
		r.Fatalf("the bytes differ")
	}
	large, into := r.memory(3<<20), r.memory(3<<20)
	pattern(large, 10)
	throughMany(r, large, pieces(large, 4096), pieces(into, 4096))
	if crc32.ChecksumIEEE(into) != crc32.ChecksumIEEE(large) {
		r.Fatalf("the bytes of a large list differ")
	}
}

func manyBuffersWait(r *rig) {
	k, c, s := r.pair()
	a := r.memory(6)
	receiving := r.receive(k, s, pieces(a, 2)...)
	r.pass(2 * time.Millisecond)
	r.pending(receiving)
	sent := r.must(r.send(k, c, nil, nil, r.text("ab"), nil, r.text("cd"))).N
	n := r.must(receiving).N
	for n < sent {
		n += r.must(r.receive(k, s, behind(pieces(a, 2), n)...)).N
	}
	if string(a[:sent]) != "abcd"[:sent] {
		r.Fatalf("got %q", a)
	}
}

func shortReceive(r *rig) {
	k, c, s := r.pair()
	large := r.memory(4096)
	receiving := r.receive(k, s, large)
	r.pass(2 * time.Millisecond)
	r.pending(receiving)
	r.must(r.send(k, c, r.text("x")))
	if n := r.must(receiving).N; n != 1 || large[0] != 'x' || large[1] != 0 {
		r.Fatalf("received %d bytes, %q", n, large[:2])
	}
}

func pattern(data []byte, seed uint32) {
	for i := range data {
		seed = seed*1664525 + 1013904223
		data[i] = byte(seed >> 24)
	}
}

func largeTransfer(r *rig) {
	k, c, s := r.pair()
	data := r.memory(3<<20 + 17)
	pattern(data, 1)
	for _, step := range []int{64 << 10, 1<<20 + 1} {
		got := r.transfer(k, c, s, data, step)
		if crc32.ChecksumIEEE(got) != crc32.ChecksumIEEE(data) {
			r.Fatalf("step %d: the bytes differ", step)
		}
	}
}

func fullDuplex(r *rig) {
	k, c, s := r.pair()
	buffer := [2][]byte{r.memory(8), r.memory(8)}
	for range 20 {
		a, b := r.receive(k, c, buffer[0]), r.receive(k, s, buffer[1])
		x, y := r.send(k, c, r.text("to s")), r.send(k, s, r.text("to c"))
		r.must(x)
		r.must(y)
		n, m := r.must(a).N, r.must(b).N
		for n < 4 {
			n += r.must(r.receive(k, c, buffer[0][n:])).N
		}
		for m < 4 {
			m += r.must(r.receive(k, s, buffer[1][m:])).N
		}
		if string(buffer[0][:n]) != "to c" || string(buffer[1][:m]) != "to s" {
			r.Fatalf("got %q and %q", buffer[0][:n], buffer[1][:m])
		}
	}
}

func endOfStream(r *rig) {
	k, c, s := r.pair()
	r.must(r.send(k, c, r.text("last")))
	r.close(k, c)
	buffer := r.memory(3)
	var got []byte
	for {
		n := r.must(r.receive(k, s, buffer)).N
		if n == 0 {
			break
		}
		got = append(got, buffer[:n]...)
	}
	if string(got) != "last" {
		r.Fatalf("got %q before the end", got)
	}
	if n := r.must(r.receive(k, s, buffer)).N; n != 0 {
		r.Fatalf("%d bytes after the end", n)
	}
}

// reset closes one end while bytes for it are unread, which makes the system send a reset.
func reset(r *rig) {
	k, c, s := r.pair()
	buffer := r.memory(8)
	r.must(r.send(k, s, r.text("unread")))
	watch := r.submit(k, reactor.Operation{Kind: reactor.Watch, Descriptor: c})
	r.must(watch)
	receiving := r.receive(k, s, buffer)
	r.close(k, c)
	r.fails(receiving, syscall.ECONNRESET)
	r.fails(r.send(k, s, r.text("late")), syscall.EPIPE, syscall.ECONNRESET)
}

// field case F-38: a peer that closed must cost an error, not the process.
func noSignal(r *rig) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGPIPE)
	defer signal.Stop(signals)
	k, c, s := r.pair()
	r.close(k, c)
	for range 20 {
		end := r.await(r.send(k, s, r.text("header"), r.text("to nobody")))
		if end.Err != nil {
			if end.Err != syscall.EPIPE && end.Err != syscall.ECONNRESET {
				r.Fatalf("send to a closed peer: %v", end.Err)
			}
			select {
			case <-signals:
				r.Fatal("SIGPIPE was raised")
			default:
			}
			return
		}
		r.pass(time.Millisecond)
	}
	r.Fatal("20 sends to a closed peer succeeded")
}

// fill sends until a send finds no space; it returns that send and the bytes sent before.
func (r *rig) fill(k reactor.Kernel, d reactor.Descriptor) (waiting reactor.Ticket, sent int) {
	r.Helper()
	block := r.memory(256 << 10)
	for range 2000 {
		ticket := r.send(k, d, block)
		r.pass(2 * time.Millisecond)
		o := r.operations[ticket]
		if !o.ended {
			return ticket, sent
		}
		sent += r.must(ticket).N
	}
	r.Fatalf("sent %d bytes that nobody reads", sent)
	return 0, 0
}

func sendWaits(r *rig) {
	k, c, s := r.pair()
	waiting, sent := r.fill(k, c)
	buffer := r.memory(1 << 20)
	got := 0
	for got < sent {
		got += r.must(r.receive(k, s, buffer)).N
	}
	sent += r.must(waiting).N
	for got < sent {
		got += r.must(r.receive(k, s, buffer)).N
	}
	if got != sent {
		r.Fatalf("sent %d, received %d", sent, got)
	}
}

func manyPairs(r *rig) {
	k := r.kernel()
	listener, bound := r.listen(k, r.IPv4)
	type stream struct {
		c, s      reactor.Descriptor
		receiving reactor.Ticket
		buffer    []byte
	}
	streams := make([]stream, 40)
	for i := range streams {
		c, s := r.join(k, listener, bound, k)
		streams[i] = stream{c: c, s: s, buffer: r.memory(4)}
		streams[i].receiving = r.receive(k, s, streams[i].buffer)
	}
	for i := range streams {
		r.send(k, streams[i].c, nil, r.text(string(rune('A'+i))))
	}
	for i := range streams {
		if n := r.must(streams[i].receiving).N; n != 1 || streams[i].buffer[0] != byte('A'+i) {
			r.Fatalf("stream %d: %d bytes, %q", i, n, streams[i].buffer)
		}
	}
}

func listenerCloseEndsWaiting(r *rig) {
	k := r.kernel()
	listener, bound := r.listen(k, r.IPv4)
	c := r.open(k, bound)
	r.must(r.connect(k, c, bound))
	r.pass(time.Millisecond)
	r.close(k, listener)
	end := r.await(r.receive(k, c, r.memory(4)))
	if end.N != 0 || end.Err != nil && end.Err != syscall.ECONNRESET {
		r.Fatalf("receive on a connection nobody accepted: %+v", end)
	}
}

func closeBusy(r *rig) {
	k, c, s := r.pair()
	buffer := r.memory(4)
	receiving := r.receive(k, s, buffer)
	for range 2 {
		if err := k.Close(s); err != syscall.EBUSY {
			r.Fatalf("close with an outstanding receive: %v", err)
		}
		r.pass(time.Millisecond)
	}
	r.must(r.send(k, c, r.text("go")))
	r.must(receiving)
	if !bytes.HasPrefix([]byte("go"), buffer[:1]) {
		r.Fatalf("got %q", buffer)
	}
	r.close(k, s)
}

func shutdownBusy(r *rig) {
	k, c, s := r.pair()
	buffer := r.memory(4)
	receiving := r.receive(k, s, buffer)
	r.turn(0)
	if err := k.Shutdown(); err != syscall.EBUSY {
		r.Fatalf("shutdown with an outstanding receive: %v", err)
	}
	r.must(r.send(k, c, r.text("on")))
	r.must(receiving)
}

func unknownDescriptor(r *rig) {
	k := r.kernel()
	listener, bound := r.listen(k, r.IPv4)
	r.close(k, listener)
	for _, op := range []reactor.Operation{
		{Kind: reactor.Accept}, {Kind: reactor.Connect, Address: bound}, {Kind: reactor.Watch},
		{Kind: reactor.Receive, Buffers: [2][]byte{r.memory(1)}}, {Kind: reactor.Send, Buffers: [2][]byte{r.text("x")}},
	} {
		op.Descriptor = listener
		r.fails(r.submit(k, op), syscall.EBADF)
	}
}
