package simverbs_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// worldOptions let a fabric live in a simulated world: its clock, its timers and its descriptors.
func worldOptions(w *simkernel.World, processes map[string]*simkernel.Process) simverbs.Options {
	return simverbs.Options{
		Now:   func() time.Duration { return time.Duration(w.Now()) },
		Later: w.Later,
		Sleep: w.Advance,
		Signal: func(p *simverbs.Process) (int, func(), func(), func(), error) {
			process := processes[p.Name()]
			d, signal, err := process.Signal()
			return int(d), signal, func() { process.Unsignal(d) }, func() {}, err
		},
	}
}

// A loop of the simulated world waits for a completion channel; nothing else moves the clock.
func TestAFabricLivesInASimulatedWorld(t *testing.T) {
	w := simkernel.NewWorld(seedOf(t), simkernel.WorldOptions{})
	processes := map[string]*simkernel.Process{}
	for i, name := range []string{"a", "b"} {
		processes[name] = w.Process(name, netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}))
	}
	f := newFabric(t, worldOptions(w, processes))
	an, bn := open(t, f, "a"), open(t, f, "b")
	channel, err := an.CreateChannel(an.device)
	an.must(err)
	a, b := an.end(16, channel), bn.end(16, 0)
	join(a, b)
	from, to := a.piece(100<<10, 1, everyone), b.piece(100<<10, 2, everyone)

	kernel := processes["a"].Kernel()
	if err := kernel.Bind(); err != nil {
		t.Fatal(err)
	}
	watch := func() {
		kernel.Submit(&reactor.Operation{Kind: reactor.Watch, Ticket: 1, Descriptor: reactor.Descriptor(a.ChannelDescriptor(channel))})
	}
	rounds := 0
	begin := func() {
		watch()
		a.must(a.Arm(a.sends))
		a.post(writing(uint64(rounds), from, to, 100<<10))
	}
	begin()
	out := make([]reactor.Completion, 4)
	for rounds < 10 {
		if n := kernel.Poll(out, kernel.Now().After(second)); n != 1 {
			t.Fatalf("round %d: the channel's descriptor stays quiet", rounds)
		}
		q, some, err := a.NextEvent(channel)
		if q != a.sends || !some || err != nil {
			t.Fatalf("round %d: event of queue %d, %v, %v", rounds, q, some, err)
		}
		a.take()
		if rounds++; rounds < 10 {
			begin()
		}
	}
	if len(a.sent) != 10 || a.sent[9].ID != 9 || to.bytes[100<<10-1] != 1 {
		t.Errorf("completions of %v", ids(a.sent))
	}

	// An address that nobody has takes a second of the world.
	late, began := an.end(4, 0), w.Now()
	an.must(an.ModifyPair(late.pair, verbs.Transition{To: verbs.PairInit, Port: 1}))
	nobody := bn.gid.GID
	nobody[15] = 99
	if err := an.ModifyPair(late.pair, verbs.Transition{To: verbs.PairReadyToReceive, MTU: 1024, SourceGID: 1, RemoteGID: nobody}); err == nil {
		t.Error("an address that nobody has was found")
	}
	if took := time.Duration(w.Now() - began); took < second {
		t.Errorf("it took %v", took)
	}
}
