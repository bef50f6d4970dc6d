package tcp

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/epoll"
	"github.com/orbitte/orbitte/reactor/uring"
)

// realKernels are those of this system.
func realKernels(t *testing.T, run func(t *testing.T, open func() reactor.Kernel)) {
	t.Run("epoll", func(t *testing.T) {
		run(t, func() reactor.Kernel {
			k, err := epoll.New(epoll.Options{})
			must(t, err)
			return k
		})
	})
	t.Run("io_uring", func(t *testing.T) {
		if err := uring.Probe(); err != nil {
			t.Skip("no-uring: " + err.Error())
		}
		run(t, func() reactor.Kernel {
			k, err := uring.New(uring.Options{})
			must(t, err)
			return k
		})
	})
}

// job runs something on a node's lane.
type job struct {
	letter reactor.Letter
	do     func()
	done   chan struct{}
}

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
func realNode(t *testing.T, open func() reactor.Kernel, mode reactor.Mode, s setup) (n *node, end func()) {
	n = newNode(t, open(), netip.MustParseAddrPort("127.0.0.1:0"), mode, s)
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
func (n *node) finished(a *attempt, c *control.Channel) lanes.Outcome {
	ended := make(chan lanes.Outcome, 1)
	done := a.Transfer.Done
	a.Transfer.Done = func(t *Transfer) {
		done(t)
		ended <- t.Outcome
	}
	n.on(func() { a.start(c) })
	return <-ended
}

// Real sockets with 4 KiB buffers: many partial transfers, nothing lost or doubled.
//
// field case F-46
func TestSmallBuffersOverRealSockets(t *testing.T) {
	mappings(t)
	seed := rand.Uint64()
	t.Logf("SEED=%d; replay by setting it in this test", seed)
	random := rand.New(rand.NewPCG(seed, 46))
	realKernels(t, func(t *testing.T, open func() reactor.Kernel) {
		for _, direct := range []bool{false, true} {
			s := setup{direct: direct, socket: reactor.SocketOptions{SendBuffer: 4096, ReceiveBuffer: 4096}}
			source, endSource := realNode(t, open, reactor.EventDriven, s)
			requester, endRequester := realNode(t, open, reactor.EventDriven, s)
			const length = 300_000
			remote, local := source.register(length, netproto.ReadWrite, 1), requester.register(length, netproto.LocalOnly, 2)
			c := requester.channel(source.address)
			for range 4 {
				n, from, to := 1+random.Uint64N(length), uint64(0), uint64(0)
				from, to = random.Uint64N(length-n+1), random.Uint64N(length-n+1)
				for _, direction := range []lanes.Direction{lanes.Write, lanes.Read} {
					copy(remote.bytes(), pattern(length, 1))
					copy(local.bytes(), pattern(length, 2))
					a := requester.ask(direction, local, remote.ID())
					a.LocalOffset, a.Offset, a.Length, a.Deadline = to, from, n, requester.lane.Kernel().Now().After(20*time.Second)
					want := [2][]byte{pattern(length, 1), pattern(length, 2)}
					if direction == lanes.Write {
						copy(want[0][from:], want[1][to:][:n])
					} else {
						copy(want[1][to:], want[0][from:][:n])
					}
					if o := requester.finished(a, c); o.Err != nil || string(remote.bytes()) != string(want[0]) || string(local.bytes()) != string(want[1]) {
						t.Errorf("%v of %d bytes, direct %v: %+v", direction, n, direct, o)
					}
				}
			}
			endRequester()
			endSource()
		}
	})
}

// crossings are what one kernel did for one operation.
type crossings struct{ submitted, crossings, waits float64 }

func (k crossings) String() string {
	return fmt.Sprintf("%.2f submitted, %.2f crossings of which %.2f could block", k.submitted, k.crossings, k.waits)
}

func (n *node) counters() (c reactor.Counters) {
	n.on(func() { c = n.lane.Kernel().Counters() })
	return c
}

func per(before, after reactor.Counters, operations int) crossings {
	f := float64(operations)
	return crossings{float64(after.Submitted-before.Submitted) / f, float64(after.Crossings-before.Crossings) / f, float64(after.Waits-before.Waits) / f}
}

// A steady small READ is two frames, request and reply with payload; a WRITE is four: request, ready,
// payload, receipt. Each end submits one operation for each frame, sent or received. An event-driven lane
// pays, at most:
//
//	epoll, frame sent:         1 crossing  (sendmsg is tried at once and completes there)
//	epoll, frame received:     2 crossings (epoll_wait is the completion, recvmsg moves the bytes)
//	io_uring, frame sent:      1 crossing  (the enter that submits it returns its completion)
//	io_uring, frame received:  1 crossing  (one enter submits the receive and waits for it)
//
// So no frame costs more than one crossing to submit and one to complete in its direction. A lane that
// spins instead of blocking looks more often; those looks are not the frame's.
func TestSteadyFramesCostAtMostOneSubmitAndOneCompletion(t *testing.T) {
	mappings(t)
	received := map[string]float64{"epoll": 2, "io_uring": 1}
	const slack = 0.2 // for a turn that somebody else's letter woke
	realKernels(t, func(t *testing.T, open func() reactor.Kernel) {
		source, endSource := realNode(t, open, reactor.EventDriven, setup{})
		requester, endRequester := realNode(t, open, reactor.EventDriven, setup{})
		remote, local := source.register(64, netproto.ReadWrite, 1), requester.register(64, netproto.LocalOnly, 2)
		c := requester.channel(source.address)
		for _, direction := range []lanes.Direction{lanes.Read, lanes.Write} {
			const operations = 200
			each := float64(direction) // frames sent, and frames received: 1 for READ, 2 for WRITE
			bound := each*1 + each*received[requester.lane.Kernel().Name()]
			requester.steady(direction, local, remote, c, 20)
			s, q := source.counters(), requester.counters()
			requester.steady(direction, local, remote, c, operations)
			for end, k := range map[string]crossings{"requester": per(q, requester.counters(), operations), "source": per(s, source.counters(), operations)} {
				t.Logf("%v, %s: %v", direction, end, k)
				if k.submitted > 2*each+slack || k.crossings > bound+slack {
					t.Errorf("%v, %s: %v for %v frames, want at most %v crossings", direction, end, k, 2*each, bound)
				}
			}
		}
		endRequester()
		endSource()
	})
}

// steady runs transfers one after the other on the lane.
func (n *node) steady(d lanes.Direction, local, remote *memory, c *control.Channel, operations int) {
	a := n.ask(d, local, remote.ID())
	a.Deadline = reactor.Forever
	ended := make(chan error, 1)
	a.Transfer.Done = func(t *Transfer) {
		if operations--; operations > 0 && t.Outcome.Err == nil {
			t.Start(c)
			return
		}
		t.Local.Return()
		ended <- t.Outcome.Err
	}
	n.on(func() { a.start(c) })
	must(n.t, <-ended)
}
