package tcp

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/staging"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// combination is where the two ranges of a transfer are.
type combination struct{ local, remote bool }

func (c combination) String() string {
	names := map[bool]string{false: "host", true: "device"}
	return names[c.local] + "-" + names[c.remote]
}

var combinations = []combination{{true, false}, {false, true}, {true, true}}

func forEachWay(t *testing.T, f func(t *testing.T, c combination, d lanes.Direction)) {
	for _, c := range combinations {
		for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
			t.Run(fmt.Sprintf("%v-%v", d, c), func(t *testing.T) { f(t, c, d) })
		}
	}
}

// Every border of chunks moves every byte and no other, between host and device memory of two engines, from and to odd
// offsets; where the bytes lie does not change what an outcome says.
//
// proves C-4
func TestDeviceRangesMoveByteForByteAcrossChunkBorders(t *testing.T) {
	mappings(t)
	const size, payload = 300, 61
	forEachWay(t, func(t *testing.T, c combination, d lanes.Direction) {
		for _, chunk := range []uint64{1, 2, 3, 7, 20, 30, 31, 59, 60, 61, 62, 100} {
			r := newRig(t, chunk, simkernel.WorldOptions{})
			gpu := &staging.Config{ChunkBytes: chunk, Chunks: int(1 + chunk%4)}
			source, requester := r.node(sourceHost, setup{gpu: gpu}), r.node(requesterHost, setup{gpu: gpu})
			remote, local := source.place(c.remote, size, netproto.ReadWrite, 1), requester.place(c.local, size, netproto.LocalOnly, 2)
			channel := requester.channel(source.address)
			from, to := remote, local
			if d == lanes.Write {
				from, to = local, remote
			}
			want := to.bytes()
			for _, n := range []uint64{payload, 1, 0, payload - 1} {
				for _, at := range [][2]uint64{{0, 0}, {1, 13}, {size - n, 3}, {77, size - n}} {
					a := requester.ask(d, local, remote.ID())
					a.LocalOffset, a.Offset, a.Length = at[0], at[1], n
					o := r.wait(a.start(channel))
					if o.Err != nil || o.Bytes != n || !o.Drained || (d == lanes.Read) != (o.Local == lanes.EffectComplete) || (d == lanes.Write) != (o.Remote == lanes.EffectComplete) {
						t.Fatalf("%d bytes by %d, %v: %+v", n, chunk, at, o)
					}
					source, target := at[1], at[0]
					if d == lanes.Write {
						source, target = target, source
					}
					copy(want[target:target+n], from.bytes()[source:])
					if !bytes.Equal(to.bytes(), want) {
						t.Fatalf("%d bytes by %d, %v: wrong bytes", n, chunk, at)
					}
				}
			}
			if got := requester.gpu.stage.Stats(); c.local && got.CopiedBytes == 0 {
				t.Errorf("%+v", got)
			}
			r.finish()
		}
	})
}

// Two engines that READ from and WRITE to each other's GPUs with one chunk in each role never wait for each other for
// good, whatever the number of transfers, and also when the network takes no more than a chunk.
//
// proves C-4
func TestTwoEnginesWithOneChunkEachNeverDeadlock(t *testing.T) {
	mappings(t)
	for seed := range uint64(10) {
		t.Logf("SEED=%d", seed)
		gpu, size, world := &staging.Config{ChunkBytes: 10, Chunks: 1}, uint64(50), simkernel.WorldOptions{}
		if seed%2 == 1 {
			gpu.ChunkBytes, size, world.Buffer = 8_000, 40_000, 4096
		}
		r := newRig(t, seed, world)
		s := setup{gpu: gpu, handlers: 8, queue: 64, sessions: 64, streams: 64, sourceTimeout: time.Minute}
		nodes := []*node{r.node(sourceHost, s), r.node(requesterHost, s)}
		var remotes []*memory
		for _, n := range nodes {
			remotes = append(remotes, n.registerDevice(32*size, netproto.ReadWrite, 1))
		}
		var all []*attempt
		var locals []*memory
		for i := range 32 {
			here, there := nodes[i%2], nodes[1-i%2]
			local := here.registerDevice(size+45, netproto.LocalOnly, byte(2+i%2))
			a := here.ask(lanes.Read+lanes.Direction(i/2%2), local, remotes[1-i%2].ID())
			a.Offset, a.Deadline, a.Length = uint64(i)*size, reactor.Forever, size
			all, locals = append(all, a.start(here.channel(there.address))), append(locals, local)
		}
		for i, a := range all {
			if o := r.wait(a); o.Err != nil {
				t.Errorf("transfer %d: %v", i, o.Err)
			} else if !bytes.Equal(locals[i].bytes()[:size], remotes[1-i%2].bytes()[a.Offset:a.Offset+size]) {
				t.Errorf("transfer %d: wrong bytes", i)
			}
		}
		r.finish()
	}
}

// While a piece is on the wire, a copy is under way, at both ends and both ways; with one chunk there is none.
//
// proves C-4
func TestCopiesOverlapWithTheNetwork(t *testing.T) {
	mappings(t)
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		for chunks, want := range map[int]bool{1: false, 2: true} {
			r := newRig(t, 3, simkernel.WorldOptions{})
			gpu := &staging.Config{ChunkBytes: 64 << 10, Chunks: chunks}
			source, requester := r.node(sourceHost, setup{gpu: gpu}), r.node(requesterHost, setup{gpu: gpu})
			remote, local := source.registerDevice(1<<20, netproto.ReadWrite, 1), requester.registerDevice(1<<20, netproto.LocalOnly, 2)
			overlaps, h := [2]int{}, &serving{service: source.service}
			source.service.idle = append(source.service.idle, h)
			a := requester.ask(d, local, remote.ID())
			r.world.Add(func() bool { // looks at each step, and does nothing
				if a.done == 0 && a.device.wire && requester.gpu.stage.Stats().Flying > 0 {
					overlaps[0]++
				}
				if h.device.wire && source.gpu.stage.Stats().Flying > 0 {
					overlaps[1]++
				}
				return false
			})
			if o := r.wait(a.start(requester.channel(source.address))); o.Err != nil {
				t.Error(o.Err)
			}
			if (overlaps[0] > 0) != want || (overlaps[1] > 0) != want {
				t.Errorf("%v with %d chunks: seen %v overlaps at requester and source", d, chunks, overlaps)
			}
			r.finish()
		}
	}
}

// Steady transfers of device ranges allocate nothing on either lane.
//
// proves L-6
func TestSteadyDeviceTransfersAllocateNothing(t *testing.T) {
	mappings(t)
	forEachWay(t, func(t *testing.T, c combination, d lanes.Direction) {
		r := newRig(t, 1, simkernel.WorldOptions{})
		s := setup{gpu: &staging.Config{ChunkBytes: 4 << 10, Chunks: 2}, still: true}
		source, requester := r.node(sourceHost, s), r.node(requesterHost, s)
		remote, local := source.place(c.remote, 30_000, netproto.ReadWrite, 1), requester.place(c.local, 30_000, netproto.LocalOnly, 2)
		channel := requester.channel(source.address)
		a := requester.ask(d, local, remote.ID())
		a.Deadline = reactor.Forever
		ended := false
		a.Done = func(t *Transfer) { t.Local.Return(); ended = true }
		done := func() bool { return ended }
		run := func() {
			ended = false
			a.start(channel)
			r.until("a steady transfer", done)
		}
		for range 50 {
			run()
		}
		if n := testing.AllocsPerRun(100, run); n != 0 {
			t.Errorf("%v allocations", n)
		}
		if a.Outcome.Err != nil {
			t.Error(a.Outcome.Err)
		}
		r.finish()
	})
}

// A request that ends early, at any moment, by its context or by its deadline, ends when its copies have: no copy is
// under way behind it, and what it says of the ranges is true. A WRITE that may have arrived says so.
//
// proves G-8, T-10
func TestADeviceTransferEndedAtAnyMomentLeavesNoCopyBehind(t *testing.T) {
	mappings(t)
	forEachWay(t, func(t *testing.T, c combination, d lanes.Direction) {
		for at := time.Duration(0); at < 3*time.Millisecond; at += 67 * time.Microsecond {
			for _, how := range []string{"cancel", "deadline", "lost"} {
				r := newRig(t, uint64(at), simkernel.WorldOptions{})
				gpu := &staging.Config{ChunkBytes: 4 << 10, Chunks: 2}
				source, requester := r.node(sourceHost, setup{gpu: gpu, sourceTimeout: 50 * time.Millisecond}), r.node(requesterHost, setup{gpu: gpu})
				remote, local := source.place(c.remote, 40_000, netproto.ReadWrite, 1), requester.place(c.local, 40_000, netproto.LocalOnly, 2)
				for _, n := range []*node{source, requester} {
					n.gpu.driver.Plan(simcuda.Fault{Kind: simcuda.SlowCopy, Count: -1, By: 100 * time.Microsecond})
				}
				a := requester.ask(d, local, remote.ID())
				if how == "deadline" {
					a.Deadline = r.world.Now().After(at + 1)
				}
				a.start(requester.channel(source.address))
				r.pass(at)
				switch how {
				case "cancel":
					a.Cancel()
				case "lost":
					for _, c := range r.world.Connections() {
						c.Reset()
					}
				}
				o := r.wait(a)
				if requester.gpu.driver.Live().Operations > 0 || requester.gpu.stage.Stats().InUse > 0 {
					t.Errorf("%s after %v: a copy is under way behind the end", how, at)
				}
				early(t, d, o, local, remote)
				r.finish()
			}
		}
	})
}

// early checks what an outcome says of its ranges.
func early(t *testing.T, d lanes.Direction, o lanes.Outcome, local, remote *memory) {
	t.Helper()
	target, seed, effect := local, byte(2), o.Local
	if d == lanes.Write {
		target, effect = remote, o.Remote
		seed = 1
	}
	switch {
	case !o.Drained:
		t.Errorf("%+v, want drained", o)
	case o.Err == nil && !target.holds(3-seed):
		t.Error("success with wrong bytes")
	case o.Err != nil && effect == lanes.EffectNone && !target.holds(seed):
		t.Errorf("the range was changed, and the outcome says that it was not: %+v", o)
	case o.Err != nil && effect == lanes.EffectComplete:
		t.Errorf("%+v", o)
	}
}
