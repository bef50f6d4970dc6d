package uring_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/uring"
)

// flow is one direction of a stream: byte i of it is pattern(i).
type flow struct {
	from, to         reactor.Descriptor
	sent, got, limit int
	sending, taking  reactor.Ticket // 0: none outstanding
	out, in          [2][]byte
}

func pattern(i int) byte { return byte(i*131 ^ i>>8) }

// chaos drives flows over one kernel with random sizes, cancels, watches and waits.
type chaos struct {
	*testing.T
	reactor.Kernel
	*rand.Rand
	flows   []*flow
	last    reactor.Ticket
	pending map[reactor.Ticket]func(reactor.Completion)
	watched map[reactor.Descriptor]reactor.Ticket
}

func (c *chaos) start(op reactor.Operation, f func(reactor.Completion)) reactor.Ticket {
	c.last++
	op.Ticket = c.last
	c.pending[op.Ticket] = f
	c.Submit(&op)
	return op.Ticket
}

// split makes two buffers of n bytes together.
func (c *chaos) split(n int) [2][]byte {
	b, at := make([]byte, n), 0
	if c.IntN(2) == 0 {
		at = c.IntN(n + 1)
	}
	return [2][]byte{b[:at:at], b[at:]}
}

func (c *chaos) size() int { return 1 + c.IntN(1<<c.IntN(21)) }

func (c *chaos) send(f *flow) {
	f.out = c.split(min(c.size(), f.limit-f.sent))
	for i := range f.out[0] {
		f.out[0][i] = pattern(f.sent + i)
	}
	for i := range f.out[1] {
		f.out[1][i] = pattern(f.sent + len(f.out[0]) + i)
	}
	f.sending = c.start(reactor.Operation{Kind: reactor.Send, Descriptor: f.from, Buffers: f.out}, func(done reactor.Completion) {
		f.sending = 0
		f.sent += done.N
		c.tolerate(done)
	})
}

func (c *chaos) receive(f *flow) {
	f.in = c.split(c.size())
	f.taking = c.start(reactor.Operation{Kind: reactor.Receive, Descriptor: f.to, Buffers: f.in}, func(done reactor.Completion) {
		f.taking = 0
		c.tolerate(done)
		for i := range done.N {
			b, at := f.in[0], i
			if i >= len(b) {
				b, at = f.in[1], i-len(b)
			}
			if b[at] != pattern(f.got+i) {
				c.Fatalf("byte %d of descriptor %d differs", f.got+i, f.to)
			}
		}
		f.got += done.N
	})
}

func (c *chaos) tolerate(done reactor.Completion) {
	if done.Err != nil && done.Err != unix.ECANCELED || done.Err != nil && done.N != 0 {
		c.Fatalf("%+v", done)
	}
}

func (c *chaos) step() {
	f := c.flows[c.IntN(len(c.flows))]
	switch c.IntN(12) {
	case 0:
		c.Cancel(reactor.Ticket(1 + c.IntN(int(c.last))))
	case 1:
		c.Cancel([]reactor.Ticket{f.sending, f.taking}[c.IntN(2)])
	case 2:
		if c.watched[f.to] == 0 {
			d := f.to
			c.watched[d] = c.start(reactor.Operation{Kind: reactor.Watch, Descriptor: d}, func(done reactor.Completion) {
				c.watched[d] = 0
				c.tolerate(done)
			})
		}
	case 3, 4, 5:
		if f.sending == 0 && f.sent < f.limit {
			c.send(f)
		}
	case 6, 7, 8:
		if f.taking == 0 {
			c.receive(f)
		}
	case 9:
		c.poll(c.Now().After(time.Duration(c.IntN(200)) * time.Microsecond))
	default:
		c.poll(0)
	}
}

func (c *chaos) poll(until reactor.Instant) {
	var out [5]reactor.Completion
	for _, done := range out[:c.Poll(out[:1+c.IntN(len(out))], until)] {
		f := c.pending[done.Ticket]
		if f == nil {
			c.Fatalf("a completion for nobody, or the second: %+v", done)
		}
		delete(c.pending, done.Ticket)
		f(done)
	}
}

func (c *chaos) finished() bool {
	for _, f := range c.flows {
		if f.got < f.limit {
			return false
		}
	}
	return true
}

// Random sizes, splits, cancels, watches and waits: every byte arrives once and in order, every operation
// ends once. Replay: ORBITTE_SEED=n go test -run RandomTraffic ./reactor/uring
func TestRandomTrafficArrivesOnceAndInOrder(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("ORBITTE_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("SEED=%d", seed)
	kernels := append(benchmarked[:len(benchmarked):len(benchmarked)], benchmarked[0])
	kernels[2].name = "io_uring tiny"
	kernels[2].open = func() (reactor.Kernel, error) { return uring.New(uring.Options{Entries: 1, Completions: 1}) }
	kernels = append(kernels, kernels[0])
	kernels[3].name = "io_uring wandering"
	kernels[3].open = func() (reactor.Kernel, error) { return wander(t) }
	for i, kernel := range kernels {
		t.Run(kernel.name, func(t *testing.T) {
			runtime.LockOSThread()
			k, err := kernel.open()
			if err == nil {
				err = k.Bind()
			}
			if err != nil {
				t.Fatal(err)
			}
			c := &chaos{T: t, Kernel: k, Rand: rand.New(rand.NewPCG(seed, uint64(i))),
				pending: map[reactor.Ticket]func(reactor.Completion){}, watched: map[reactor.Descriptor]reactor.Ticket{}}
			c.run()
		})
	}
}

// wandering is a kernel for any thread whose Submit and Poll run on three threads in turn.
type wandering struct {
	reactor.Kernel
	threads [3]chan func()
	turn    int
}

func wander(t *testing.T) (reactor.Kernel, error) {
	k, err := uring.New(uring.Options{AnyThread: true})
	w := &wandering{Kernel: k}
	for i := range w.threads {
		work := make(chan func())
		w.threads[i] = work
		t.Cleanup(func() { close(work) })
		go func() {
			runtime.LockOSThread()
			for f := range work {
				f()
			}
		}()
	}
	return w, err
}

func (w *wandering) on(f func()) {
	w.turn++
	done := make(chan struct{})
	w.threads[w.turn%len(w.threads)] <- func() { f(); close(done) }
	<-done
}

func (w *wandering) Submit(op *reactor.Operation) { w.on(func() { w.Kernel.Submit(op) }) }

func (w *wandering) Poll(out []reactor.Completion, until reactor.Instant) (n int) {
	w.on(func() { n = w.Kernel.Poll(out, until) })
	return n
}

func (c *chaos) run() {
	const streams, limit = 5, 2 << 20
	var ds []reactor.Descriptor
	for range streams {
		a, b := connected(c.T, c.Kernel)
		ds = append(ds, a, b)
		c.flows = append(c.flows, &flow{from: a, to: b, limit: limit}, &flow{from: b, to: a, limit: limit})
	}
	c.last++
	for end := c.Now().After(30 * time.Second); !c.finished(); c.step() {
		if c.Now() > end {
			c.Fatal("stuck: ", c.state())
		}
	}
	for ticket := range c.pending {
		c.Cancel(ticket)
	}
	for end := c.Now().After(5 * time.Second); len(c.pending) > 0; c.poll(end) {
		if c.Now() >= end {
			c.Fatalf("%d operations do not end", len(c.pending))
		}
	}
	for _, d := range ds {
		if err := c.Close(d); err != nil {
			c.Error(err)
		}
	}
	if n := c.Counters(); n.Submitted != n.Completed {
		c.Errorf("%+v", n)
	}
	if err := c.Shutdown(); err != nil {
		c.Error(err)
	}
}

func (c *chaos) state() string {
	s := ""
	for _, f := range c.flows {
		s += fmt.Sprintf("%d→%d sent %d got %d (send %d, receive %d); ", f.from, f.to, f.sent, f.got, f.sending, f.taking)
	}
	return s
}

// connected makes both ends of a stream on one kernel that has nothing outstanding.
func connected(tb testing.TB, k reactor.Kernel) (client, server reactor.Descriptor) {
	o := reactor.SocketOptions{Congestion: "auto"}
	listener, bound, err := k.Listen(netip.MustParseAddrPort("127.0.0.1:0"), o)
	if err != nil {
		tb.Fatal(err)
	}
	if client, err = k.Open(bound, o); err != nil {
		tb.Fatal(err)
	}
	k.Submit(&reactor.Operation{Kind: reactor.Connect, Descriptor: client, Ticket: 1 << 40, Address: bound})
	k.Submit(&reactor.Operation{Kind: reactor.Accept, Descriptor: listener, Ticket: 1<<40 + 1})
	var out [1]reactor.Completion
	for done := 0; done < 2; {
		if k.Poll(out[:], reactor.Forever) == 1 {
			if out[0].Err != nil {
				tb.Fatal(out[0].Err)
			}
			done++
			if out[0].Ticket != 1<<40 {
				server = out[0].Descriptor
			}
		}
	}
	if err := k.Close(listener); err != nil {
		tb.Fatal(err)
	}
	return client, server
}
