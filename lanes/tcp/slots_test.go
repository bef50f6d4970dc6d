package tcp

import (
	"syscall"
	"testing"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// Busy streams, connecting ones and ones that are being retired keep their slots: a further peer is
// refused with the budget's facts. An idle stream is evicted, the one idle longest first.
//
// proves T-4, U-3
func TestSlotsOfBusyAndUncertainStreamsStayCharged(t *testing.T) {
	mappings(t)
	r := newRig(t, 1, simkernel.WorldOptions{})
	defer r.finish()
	requester := r.node(requesterHost, setup{streams: 2})
	local := requester.register(8, netproto.LocalOnly, 2)
	ports := []*port{r.listen(), r.listen(), r.listen()}
	ask := func(p *port) *attempt { return requester.ask(lanes.Read, local, 1).start(requester.channel(p.address)) }
	used := func() int64 { return requester.lane.Streams.Used() }

	a, b := ask(ports[0]), ask(ports[1])
	exhaustedStreams(t, r.wait(ask(ports[2]))) // both connect
	v, w := ports[0].accept(), ports[1].accept()
	v.request()
	w.request()
	exhaustedStreams(t, r.wait(ask(ports[2]))) // both are busy

	r.until("the requester's rest", func() bool { return requester.lane.Outstanding() == 3 }) // two receives, one accept
	a.Cancel()
	if a.done != 0 || used() != 2 {
		t.Fatalf("a stream that is being retired holds no slot: %d used, done %d", used(), a.done)
	}
	exhaustedStreams(t, ask(ports[2]).Outcome) // one is uncertain
	r.wait(a)
	if used() != 1 {
		t.Errorf("%d slots are used", used())
	}

	must(t, w.send(append(replyBytes(netproto.StatusSuccess, 8), pattern(8, 1)...)))
	r.wait(b)
	r.pass(soon) // b's stream is idle, and watched
	c := ask(ports[0])
	ports[0].accept().answer(1)
	r.wait(c) // idle too, for a shorter time
	d := ask(ports[2])
	x := ports[2].accept()
	x.answer(1)
	if o := r.wait(d); o.Err != nil {
		t.Fatal(o.Err)
	}
	w.ends() // the one that was idle longest
	if used() != 2 || requester.lane.Counts.Evicted.Load() != 1 {
		t.Errorf("%d slots, %d evictions", used(), requester.lane.Counts.Evicted.Load())
	}
}

// A stream of the cache that is in use again is neither evicted for another peer nor watched for its end,
// however long its exchange takes.
//
// proves T-4, T-5
func TestReusedStreamIsBusy(t *testing.T) {
	mappings(t)
	r := newRig(t, 5, simkernel.WorldOptions{})
	defer r.finish()
	requester := r.node(requesterHost, setup{streams: 1})
	local := requester.register(8, netproto.LocalOnly, 2)
	p, other := r.listen(), r.listen()
	c := requester.channel(p.address)
	first := requester.ask(lanes.Read, local, 1).start(c)
	w := p.accept()
	w.answer(1)
	r.wait(first)
	second := requester.ask(lanes.Read, local, 2).start(c) // at once: the stream is not watched yet
	w.request()
	r.pass(soon)
	exhaustedStreams(t, r.wait(requester.ask(lanes.Read, local, 3).start(requester.channel(other.address))))
	must(t, w.send(append(replyBytes(netproto.StatusSuccess, 8), pattern(8, 1)...)))
	if o := r.wait(second); o.Err != nil {
		t.Errorf("%+v", o)
	}
	if n := requester.lane.Counts.StreamsRetired.Load(); n != 0 {
		t.Errorf("%d streams were retired", n)
	}
}

// Channels that wait for an evicted stream's slot get it in their order; none is left behind, and one that
// finds no stream to evict is refused.
//
// proves T-4
func TestNoChannelWaitsForASlotThatNobodyFrees(t *testing.T) {
	for seed := range uint64(20) { // the seed decides how cancelled watches race
		mappings(t)
		r := newRig(t, seed, simkernel.WorldOptions{})
		requester := r.node(requesterHost, setup{streams: 1})
		local := requester.register(8, netproto.LocalOnly, 2)
		ports := []*port{r.listen(), r.listen(), r.listen()}
		first := requester.ask(lanes.Read, local, 1)
		c := requester.channel(ports[0].address)
		first.start(c)
		ports[0].accept().answer(1)
		r.wait(first)
		r.pass(soon) // idle and watched: its retirement takes a turn
		second := requester.ask(lanes.Read, local, 1).start(requester.channel(ports[1].address))
		third := requester.ask(lanes.Read, local, 1).start(requester.channel(ports[2].address))
		again := requester.ask(lanes.Read, local, 1).start(c) // on the stream that is being evicted
		if third.done != 1 {
			t.Fatalf("SEED=%d: the third channel waits although nothing is left to evict", seed)
		}
		exhaustedStreams(t, third.Outcome)
		ports[1].accept().answer(1)
		if o := r.wait(second); o.Err != nil {
			t.Fatalf("SEED=%d: who waited first got no slot: %v", seed, o.Err)
		}
		r.until("the last one", func() bool { return again.done > 0 || ports[0].opened > 1 })
		if again.done == 0 {
			t.Fatal("unexpected connection")
		}
		exhaustedStreams(t, again.Outcome)
		r.finish()
	}
}

// A waiting channel whose request is cancelled gives the slot to the next one, or back.
//
// proves T-4
func TestSlotGoesOnWhenTheWaitingRequestIsCancelled(t *testing.T) {
	mappings(t)
	r := newRig(t, 2, simkernel.WorldOptions{})
	defer r.finish()
	requester := r.node(requesterHost, setup{streams: 1})
	local := requester.register(8, netproto.LocalOnly, 2)
	ports := []*port{r.listen(), r.listen()}
	first := requester.ask(lanes.Read, local, 1).start(requester.channel(ports[0].address))
	ports[0].accept().answer(1)
	r.wait(first)
	r.pass(soon)
	c := requester.channel(ports[1].address)
	second := requester.ask(lanes.Read, local, 1).start(c)
	second.Cancel()
	if second.done != 1 || fault(t, second.Outcome).Cause != lanes.Cancelled {
		t.Fatalf("%+v", second.Outcome)
	}
	r.pass(soon)
	if used := requester.lane.Streams.Used(); used != 0 {
		t.Errorf("%d slots are used", used)
	}
	third := requester.ask(lanes.Read, local, 1).start(c)
	ports[1].accept().answer(1)
	if o := r.wait(third); o.Err != nil {
		t.Error(o.Err)
	}
}

// Those who queue behind a connect that is being abandoned get a connection of their own.
func TestRequestBehindAnAbandonedConnect(t *testing.T) {
	mappings(t)
	r := newRig(t, 3, simkernel.WorldOptions{})
	defer r.finish()
	requester := r.node(requesterHost, setup{})
	local := requester.register(8, netproto.LocalOnly, 2)
	p := r.listen()
	c := requester.channel(p.address)
	first := requester.ask(lanes.Read, local, 1).start(c)
	requester.lane.Turn(reactor.Past) // the connect is on its way
	first.Cancel()
	second := requester.ask(lanes.Read, local, 2).start(c)
	if first.done != 1 || fault(t, first.Outcome).Stage != "connect" {
		t.Fatalf("%+v", first.Outcome)
	}
	w := p.accept()
	if _, err := w.receive(netproto.RequestSize); err != nil { // the first connect won the race against its cancellation
		w = p.accept()
		w.request()
	}
	must(t, w.send(append(replyBytes(netproto.StatusSuccess, 8), pattern(8, 1)...)))
	if o := r.wait(second); o.Err != nil {
		t.Fatal(o.Err)
	}
	if n := requester.lane.Counts.ConnectErrors.Load(); n != 0 {
		t.Errorf("%d connect errors are counted", n)
	}
}

// stubborn refuses to close descriptors while told to.
type stubborn struct {
	reactor.Kernel
	refuses bool
	kept    []reactor.Descriptor
}

func (k *stubborn) Close(d reactor.Descriptor) error {
	if k.refuses {
		k.kept = append(k.kept, d)
		return syscall.EIO
	}
	return k.Kernel.Close(d)
}

// A stream whose descriptor cannot be closed keeps its slot for good, the transfer under it is not
// drained, and nothing is tried on that peer again. Whoever waited for the slot is told.
//
// proves T-4, G-9
func TestRetainedDescriptorKeepsItsSlot(t *testing.T) {
	mappings(t)
	r := newRig(t, 4, simkernel.WorldOptions{})
	var kernel *stubborn
	requester := r.node(requesterHost, setup{streams: 2, wrap: func(k reactor.Kernel) reactor.Kernel {
		kernel = &stubborn{Kernel: k}
		return kernel
	}})
	local := requester.register(8, netproto.LocalOnly, 2)
	ports := []*port{r.listen(), r.listen(), r.listen()}
	c := requester.channel(ports[0].address)
	a := requester.ask(lanes.Read, local, 1).start(c)
	ports[0].accept().request()
	queued := requester.ask(lanes.Read, local, 1).start(c)
	idle := requester.ask(lanes.Read, local, 1).start(requester.channel(ports[1].address))
	ports[1].accept().answer(1)
	r.wait(idle)
	r.pass(soon)

	kernel.refuses = true
	a.Cancel()
	o := r.wait(a)
	if o.Drained || fault(t, o).Cause != lanes.Cancelled {
		t.Errorf("%+v", o)
	}
	if f := fault(t, r.wait(queued)); f.Cause != lanes.Exhausted || !queued.Outcome.Drained {
		t.Errorf("%+v", f)
	}
	again := requester.ask(lanes.Read, local, 1).start(c)
	if again.done != 1 || fault(t, again.Outcome).Cause != lanes.Exhausted {
		t.Errorf("%+v", again.Outcome)
	}
	waits := requester.ask(lanes.Read, local, 1).start(requester.channel(ports[2].address)) // evicts the idle one, which is retained too
	exhaustedStreams(t, r.wait(waits))
	if used, n := requester.lane.Streams.Used(), requester.lane.Counts.RetainedDescriptors.Load(); used != 2 || n != 2 {
		t.Errorf("%d slots are used, %d descriptors retained", used, n)
	}
	kernel.refuses = false
	r.endRetained(requester, kernel)
}

// endRetained closes a node whose streams were retained and checks that their slots stay charged.
func (r *rig) endRetained(n *node, kernel *stubborn) {
	r.t.Helper()
	left := n.close()
	r.until("closing", func() bool { return *left == 0 })
	if used := n.lane.Streams.Used(); used != int64(len(kernel.kept)) {
		r.t.Errorf("%d slots are charged for %d retained descriptors", used, len(kernel.kept))
	}
	for _, m := range n.memories {
		m.backing.Drop()
	}
	n.tracker.RetireAll()
	n.lane.Arena.Close()
	_, _, slots := n.lane.Arena.Lent()
	if slots != len(kernel.kept) {
		r.t.Errorf("%d header slots are lent", slots)
	}
	for range slots { // so that the test's own leak check sees nothing else
		n.lane.Arena.PutSlot(nil)
	}
	n.lane.Arena.Close()
	r.nodes = nil
	r.finish()
}
