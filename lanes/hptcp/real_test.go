package hptcp

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/epoll"
	"github.com/orbitte/orbitte/reactor/uring"
)

func openEpoll(t testing.TB) reactor.Kernel {
	k, err := epoll.New(epoll.Options{})
	must(t, err)
	return k
}

func openRing(t testing.TB) reactor.Kernel {
	if err := uring.Probe(); err != nil {
		t.Skip("no-uring: " + err.Error())
	}
	k, err := uring.New(uring.Options{})
	must(t, err)
	return k
}

// job runs something on a node's lane.
type job struct {
	letter reactor.Letter
	do     func()
	done   chan struct{}
}

// Receive (reactor.Recipient).
func (j *job) Receive(*reactor.Letter, reactor.Instant) {
	j.do()
	close(j.done)
}

// on runs do on the node's running lane and waits for it.
func (n *node) on(do func()) {
	j := &job{do: do, done: make(chan struct{})}
	if err := n.lane.Post(&j.letter, j); err != nil {
		n.t.Error(err)
		return
	}
	<-j.done
}

// realNode is a node with a thread of its own.
func realNode(t testing.TB, k reactor.Kernel, mode reactor.Mode, s setup) (n *node, end func()) {
	n = newNode(t, k, netip.MustParseAddrPort("127.0.0.1:0"), mode, s)
	stopped := make(chan error)
	go func() { stopped <- n.lane.Run() }()
	n.on(n.listener.Start)
	return n, func() {
		var left *int
		n.on(func() { left = n.close() })
		for wait := true; wait; runtime.Gosched() {
			n.on(func() { wait = *left > 0 })
		}
		n.lane.Loop.Stop()
		must(t, <-stopped)
		n.check()
	}
}

// finished runs a transfer on its lane and waits for its end.
func (n *node) finished(a *attempt, p *Peer) lanes.Outcome {
	ended := make(chan lanes.Outcome, 1)
	done := a.Transfer.Done
	a.Transfer.Done = func(t *Transfer) {
		done(t)
		ended <- t.Outcome
	}
	n.on(func() { a.start(p) })
	o := <-ended
	a.Transfer.Done = done
	return o
}

// both are source and requester over real kernels.
func both(t testing.TB, open func(testing.TB) reactor.Kernel, mode reactor.Mode, s, q setup) (source, requester *node, peer *Peer, end func()) {
	s.epoch = sourceEpoch
	source, endSource := realNode(t, open(t), mode, s)
	requester, endRequester := realNode(t, open(t), mode, q)
	return source, requester, requester.peer(source), func() {
		endRequester()
		endSource()
	}
}

// Real sockets with 4 KiB buffers: many partial calls, nothing lost or doubled, over one and over many streams.
//
// proves H-5
// field case F-46
func TestSmallBuffersOverRealSockets(t *testing.T) {
	for name, open := range map[string]func(testing.TB) reactor.Kernel{"epoll": openEpoll, "io_uring": openRing} {
		t.Run(name, func(t *testing.T) {
			mappings(t)
			s := setup{socket: reactor.SocketOptions{SendBuffer: 4096, ReceiveBuffer: 4096}, config: Config{ChunkBytes: 50_000}}
			source, requester, peer, end := both(t, open, reactor.EventDriven, s, s)
			const length = 300_000
			remote, local := source.register(length, netproto.ReadWrite, 1), requester.register(length, netproto.LocalOnly, 2)
			for i, direction := range []lanes.Direction{lanes.Read, lanes.Write, lanes.Read} {
				copy(remote.bytes(), pattern(length, byte(i)))
				copy(local.bytes(), pattern(length, byte(i+1)))
				a := requester.ask(direction, local, remote.ID())
				a.Deadline = requester.lane.Kernel().Now().After(20 * time.Second)
				want := byte(i)
				if direction == lanes.Write {
					want = byte(i + 1)
				}
				if o := requester.finished(a, peer); o.Err != nil || !remote.holds(want) || !local.holds(want) {
					t.Errorf("%v: %+v", direction, o)
				}
			}
			end()
		})
	}
}

// rawEnd moves bytes in one direction over one connection, in calls of one size.
type rawEnd struct {
	loop    *reactor.Loop
	d       reactor.Descriptor
	kind    reactor.Kind
	buffer  []byte
	step    int
	done    int
	total   int
	stopped chan error
	ended   chan struct{}
}

// Complete (reactor.Handler).
func (e *rawEnd) Complete(x *reactor.Event) {
	e.done += x.N
	if e.done >= e.total || x.Err != nil {
		e.ended <- struct{}{}
		return
	}
	e.next()
}

func (e *rawEnd) next() {
	at := e.done % len(e.buffer)
	size := min(e.step-e.done%e.step, len(e.buffer)-at)
	e.loop.Submit(reactor.Operation{Kind: e.kind, Descriptor: e.d, Buffers: [2][]byte{e.buffer[at : at+size]}}, e)
}

// Receive (reactor.Recipient): move everything again.
func (e *rawEnd) Receive(*reactor.Letter, reactor.Instant) {
	e.done = 0
	e.next()
}

// rawStream is what the same kernels do without any protocol: one connection, source to requester.
type rawStream struct {
	ends    [2]*rawEnd
	letters [2]reactor.Letter
}

func newRawStream(b *testing.B, open func(testing.TB) reactor.Kernel, from, to []byte, step int) *rawStream {
	r := &rawStream{}
	for i, buffer := range [][]byte{from, to} {
		loop := reactor.NewLoop(open(b), reactor.Options{Name: "raw", Mode: reactor.Adaptive})
		r.ends[i] = &rawEnd{loop: loop, kind: [...]reactor.Kind{reactor.Send, reactor.Receive}[i], buffer: buffer, step: step, total: len(buffer),
			stopped: make(chan error), ended: make(chan struct{}, 1)}
	}
	server, client := r.ends[0], r.ends[1]
	listener, address, err := server.loop.Kernel().Listen(netip.MustParseAddrPort("127.0.0.1:0"), reactor.SocketOptions{})
	must(b, err)
	client.d, err = client.loop.Kernel().Open(address, reactor.SocketOptions{})
	must(b, err)
	for _, e := range r.ends {
		go func() { e.stopped <- e.loop.Run() }()
	}
	accepted, connected := make(chan reactor.Event, 1), make(chan reactor.Event, 1)
	do := func(e *rawEnd, op reactor.Operation, out chan reactor.Event) {
		j := &job{do: func() { e.loop.Submit(op, tell(out)) }, done: make(chan struct{})}
		must(b, e.loop.Post(&j.letter, j))
	}
	do(server, reactor.Operation{Kind: reactor.Accept, Descriptor: listener}, accepted)
	do(client, reactor.Operation{Kind: reactor.Connect, Descriptor: client.d, Address: address}, connected)
	server.d = (<-accepted).Descriptor
	<-connected
	_, err = server.loop.Kernel().Tune(server.d, reactor.SocketOptions{})
	must(b, err)
	must(b, server.loop.Kernel().Close(listener))
	return r
}

// tell hands an event to a channel.
type tell chan reactor.Event

// Complete (reactor.Handler).
func (c tell) Complete(e *reactor.Event) { c <- *e }

// move moves everything once.
func (r *rawStream) move(b *testing.B) {
	for i, e := range r.ends {
		must(b, e.loop.Post(&r.letters[i], e))
	}
	for _, e := range r.ends {
		<-e.ended
	}
}

func (r *rawStream) close(b *testing.B) {
	for _, e := range r.ends {
		e.loop.Stop()
		must(b, <-e.stopped)
		must(b, e.loop.Kernel().Close(e.d))
		must(b, e.loop.Close())
	}
}

// BenchmarkAgainstRaw moves the same bytes with the raw loop and with this plane, in turn, and reports the ratio: a
// large READ and WRITE against a raw stream in 1 MiB calls, 1,024 and more pages of 4 KiB against a raw stream in
// 64 KiB calls.
func BenchmarkAgainstRaw(b *testing.B) {
	for _, kernel := range []struct {
		name string
		open func(testing.TB) reactor.Kernel
	}{{"epoll", openEpoll}, {"io_uring", openRing}} {
		for _, c := range []struct {
			name  string
			total uint64
			page  uint64
			write bool
			raw   int
		}{
			{"read-64m", 64 << 20, 0, false, 1 << 20}, {"write-64m", 64 << 20, 0, true, 1 << 20},
			{"read-pages-4m", 4 << 20, 4096, false, 64 << 10}, {"write-pages-4m", 4 << 20, 4096, true, 64 << 10},
			{"read-pages-64m", 64 << 20, 4096, false, 64 << 10},
		} {
			b.Run(fmt.Sprintf("%s/%s", kernel.name, c.name), func(b *testing.B) {
				source, requester, peer, end := both(b, kernel.open, reactor.Adaptive, setup{payload: 64 << 20}, setup{payload: 64 << 20})
				room := c.total
				if c.page > 0 {
					room *= 2
				}
				remote, local := source.register(room, netproto.ReadWrite, 1), requester.register(room, netproto.LocalOnly, 2)
				raw := newRawStream(b, kernel.open, remote.bytes()[:c.total], local.bytes()[:c.total], c.raw)
				a := requester.ask(lanes.Read, local, remote.ID())
				if c.write {
					a.Direction = lanes.Write
				}
				a.Length, a.Deadline = c.total, reactor.Forever
				if c.page > 0 { // every other page, out of order on one side
					n := c.total / c.page
					for i := range n {
						a.Spans = append(a.Spans, Span{i * 2 * c.page, (i ^ 1) * 2 * c.page, c.page})
					}
				}
				ended := make(chan struct{}, 1)
				a.Done = func(t *Transfer) { t.Local.Return(); ended <- struct{}{} }
				j := &job{}
				ours := func() {
					*j = job{do: func() { a.start(peer) }, done: make(chan struct{})}
					must(b, requester.lane.Post(&j.letter, j))
					<-j.done
					<-ended
					must(b, a.Outcome.Err)
				}
				ours()
				raw.move(b)
				var mine, theirs []time.Duration
				var cpuMine, cpuTheirs int64
				for b.Loop() {
					used, begin := processorTime(b), time.Now()
					ours()
					usedThen, middle := processorTime(b), time.Now()
					raw.move(b)
					cpuMine, cpuTheirs = cpuMine+usedThen-used, cpuTheirs+processorTime(b)-usedThen
					mine, theirs = append(mine, middle.Sub(begin)), append(theirs, time.Since(middle))
				}
				slices.Sort(mine)
				slices.Sort(theirs)
				ratio := func(at int) float64 { return float64(theirs[at]) / float64(mine[at]) }
				b.ReportMetric(ratio(len(mine)/2), "of-raw") // medians
				b.ReportMetric(ratio(len(mine)/10), "of-raw-p10")
				b.ReportMetric(float64(c.total)/mine[len(mine)/2].Seconds()/1e9, "GB/s")
				b.ReportMetric(float64(c.total)/mine[len(mine)/10].Seconds()/1e9, "GB/s-p10")
				b.ReportMetric(float64(cpuTheirs)/float64(cpuMine), "cpu-of-raw")
				b.ReportMetric(0, "ns/op")
				raw.close(b)
				end()
			})
		}
	}
}
