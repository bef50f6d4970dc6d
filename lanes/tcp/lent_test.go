package tcp

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
)

// lending lets a test's small payloads go as large ones do: from the leased range, as far as the socket takes them at once.
func lending(t *testing.T) {
	before := lentBytes
	lentBytes = 1
	t.Cleanup(func() { lentBytes = before })
}

// free is true exactly when nobody has leased any of the memory.
func (m *memory) free() bool {
	lease, err := m.Lease(0, m.Length(), segments.Exclusive)
	if err != nil {
		return false
	}
	lease.Return()
	return true
}

// overwrite puts another pattern there, as another access would: under a lease of its own.
func (m *memory) overwrite(t *testing.T, seed byte) {
	t.Helper()
	lease, err := m.Lease(0, m.Length(), segments.Exclusive)
	must(t, err)
	copy(lease.Bytes(), pattern(m.Length(), seed))
	lease.Return()
}

// lentSizes are payloads that are lent, and rooms what a socket takes of each: next to nothing, a part, all but a byte, all.
var lentSizes = []uint64{64 << 10, 300_000, 3<<20 + 5}

func rooms(size uint64) []int { return []int{1 + int(size)>>10, 4096, int(size) - 1, int(size) + 200} }

// eachRoom runs a test with each of them.
func eachRoom(t *testing.T, test func(t *testing.T, r *rig, size uint64, room int)) {
	for _, size := range lentSizes {
		for i, room := range rooms(size) {
			t.Run(fmt.Sprintf("%d bytes, room for %d", size, room), func(t *testing.T) {
				mappings(t)
				r := newRig(t, uint64(i), simkernel.WorldOptions{Buffer: room})
				defer r.finish()
				test(t, r, size, room)
			})
		}
	}
}

// A source's range is leased only while the system takes from it and the rest is copied, and not while the peer reads, or does
// not: others can write it when the reply has hardly begun, and the requester still gets what was there before.
//
// proves T-1, M-9
func TestHalfSentReplyIsASnapshotAndLeasesNothing(t *testing.T) {
	eachRoom(t, func(t *testing.T, r *rig, size uint64, room int) {
		source := r.node(sourceHost, setup{})
		m := source.register(size, netproto.ReadWrite, 1)
		w := r.dial(source.address)
		must(t, w.send(requestBytes(netproto.OperationTCPRead, m.ID(), 0, size)))
		r.pass(soon)
		m.overwrite(t, 2)
		if p := w.reply(); p.Status != netproto.StatusSuccess || p.Length != size {
			t.Fatalf("%+v", p)
		}
		if b, err := w.receive(int(size)); err != nil || !bytes.Equal(b, pattern(size, 1)) {
			t.Fatalf("the payload is not the range as it was: %v", err)
		}
		r.pass(soon)
		if m.Loans() != 0 || source.lane.Counts.ReadsServed.Load() != 1 {
			t.Errorf("%d loans, %d READs served", m.Loans(), source.lane.Counts.ReadsServed.Load())
		}
	})
}

// The same of a WRITE's input, whose lease begins when the source is ready for it. The request of who follows goes along behind
// the last byte all the same.
//
// proves T-1, M-9, T-3
func TestHalfSentInputIsASnapshotAndLeasesNothing(t *testing.T) {
	eachRoom(t, func(t *testing.T, r *rig, size uint64, room int) {
		sent := &sendings{}
		requester := r.node(requesterHost, setup{wrap: sent.wrap})
		local := requester.register(size, netproto.LocalOnly, 1)
		w, first, second, _ := requester.coupled(local)
		r.pass(soon)
		if !local.free() {
			t.Error("the input is leased while nobody waits for it")
		}
		must(t, w.send(replyBytes(netproto.StatusReady, 0)))
		r.pass(soon)
		local.overwrite(t, 2)
		if b, err := w.receive(int(size)); err != nil || !bytes.Equal(b, pattern(size, 1)) {
			t.Fatalf("the payload is not the input as it was: %v", err)
		}
		if q := w.request(); q.Region != 2 {
			t.Fatalf("%+v follows", q)
		}
		if slices.Contains(sent.bytes[1:], netproto.RequestSize) && room > 4096 { // smaller ones cut it as they like
			t.Errorf("a request went alone: %v", sent.bytes)
		}
		must(t, w.send(append(replyBytes(netproto.StatusSuccess, 0), replyBytes(netproto.StatusReady, 0)...)))
		if b, err := w.receive(int(size)); err != nil || !bytes.Equal(b, pattern(size, 2)) {
			t.Fatalf("the second payload is not the input as it was: %v", err)
		}
		must(t, w.send(replyBytes(netproto.StatusSuccess, 0)))
		for i, a := range []*attempt{first, second} {
			if o := r.wait(a); o.Err != nil || o.Bytes != size {
				t.Errorf("WRITE %d: %+v", i, o)
			}
		}
	})
}

// What the socket does not take of a large payload is copied slice by slice, a turn each, under the one lease under which the
// beginning went.
//
// proves T-1, L-2
func TestRestOfALargePayloadIsCopiedUnderTheSameLease(t *testing.T) {
	for _, direction := range []lanes.Direction{lanes.Read, lanes.Write} {
		mappings(t)
		r := newRig(t, 1, simkernel.WorldOptions{Buffer: 4096})
		source, requester := r.node(sourceHost, setup{}), r.node(requesterHost, setup{})
		remote, local := source.register(largeBytes, netproto.ReadWrite, 1), requester.register(largeBytes, netproto.LocalOnly, 2)
		at, from := source, remote
		if direction == lanes.Write {
			at, from = requester, local
		}
		a := requester.ask(direction, local, remote.ID())
		a.Deadline = reactor.Forever
		a.start(requester.channel(source.address))
		var held []uint64 // the lane's turns with the range leased
		r.until("the lease's end", func() bool {
			if !from.free() {
				held = append(held, at.lane.Stats().Turns)
			}
			return len(held) > 0 && from.free()
		})
		if turns := held[len(held)-1] - held[0]; turns < largeBytes/lanes.SliceBytes-1 {
			t.Errorf("%v: a payload of more than %d slices was copied within %d turns", direction, largeBytes/lanes.SliceBytes, turns)
		}
		from.overwrite(t, 3)
		again := false
		to, seed := local, byte(1)
		if direction == lanes.Write {
			to, seed = remote, 2
		}
		r.until("the end", func() bool { again = again || !from.free(); return a.done > 0 })
		if again || a.Outcome.Err != nil || !to.holds(seed) {
			t.Errorf("%v: leased again: %v; %+v", direction, again, a.Outcome)
		}
		r.finish()
	}
}

// Somebody writes the range whenever nobody has leased it, and whoever gets the payload never gets a mixture.
//
// proves T-1
// field case F-46
func TestPayloadIsNeverAMixture(t *testing.T) {
	for seed := range uint64(24) {
		for _, direction := range []lanes.Direction{lanes.Read, lanes.Write} {
			mappings(t)
			lending(t)
			o := simkernel.WorldOptions{Buffer: 1 << (8 + seed%12), ChopSend: int(seed%3) * 700, ChopReceive: int(seed%5) * 900}
			size := uint64(30_000)
			if seed == 0 {
				size, o = largeBytes, simkernel.WorldOptions{Buffer: 1 << 20}
			}
			r := newRig(t, seed, o)
			source, requester := r.node(sourceHost, setup{}), r.node(requesterHost, setup{})
			remote, local := source.register(size, netproto.ReadWrite, 1), requester.register(size, netproto.LocalOnly, 2)
			from, to := remote, local
			if direction == lanes.Write {
				from, to = local, remote
			}
			next, c := byte(0), requester.channel(source.address)
			for range 3 {
				a := requester.ask(direction, local, remote.ID()).start(c)
				r.until("a hunted transfer", func() bool {
					if a.done == 0 && from.free() {
						next = (next + 1) & 3
						from.overwrite(t, next)
					}
					return a.done > 0
				})
				if a.Outcome.Err != nil || !to.holds(0) && !to.holds(1) && !to.holds(2) && !to.holds(3) {
					t.Errorf("SEED=%d %v: a mixture, or %+v", seed, direction, a.Outcome)
				}
			}
			r.finish()
		}
	}
}

// However the stream ends while a payload is lent, or its rest is copied, both ends give everything back, the effects are told as
// they are, and buffers are touched by nobody afterwards.
//
// proves T-1, T-10, G-8, T-5
func TestEndsOfALentPayload(t *testing.T) {
	lending(t)
	t.Run("cut", func(t *testing.T) { everyCut(t, false) })
	for _, direction := range []lanes.Direction{lanes.Read, lanes.Write} {
		t.Run(fmt.Sprintf("%v cancelled", direction), func(t *testing.T) {
			mappings(t)
			for step := 0; cancelAfter(t, direction, false, step); step++ {
			}
		})
		t.Run(fmt.Sprintf("%v in the dark", direction), func(t *testing.T) {
			mappings(t)
			for step := 0; blackHoleAfter(t, direction, false, step); step++ {
			}
		})
	}
}

// A stream that ends in the middle of copying the rest ends at once, whoever ends it, and leaves no lease, buffer or timer.
//
// proves T-1, T-10, T-9
func TestEndWhileTheRestIsCopied(t *testing.T) {
	for _, direction := range []lanes.Direction{lanes.Read, lanes.Write} {
		for _, end := range []string{"cancelled", "reset", "late"} {
			mappings(t)
			r := newRig(t, 7, simkernel.WorldOptions{Buffer: 4096})
			source, requester := r.node(sourceHost, setup{}), r.node(requesterHost, setup{})
			remote, local := source.register(largeBytes, netproto.ReadWrite, 1), requester.register(largeBytes, netproto.LocalOnly, 2)
			at, from := source, remote
			if direction == lanes.Write {
				at, from = requester, local
			}
			a := requester.ask(direction, local, remote.ID()).start(requester.channel(source.address))
			r.until("the copy", func() bool { return !from.free() })
			for first := at.lane.Stats().Turns; at.lane.Stats().Turns < first+2; {
				r.world.Step()
			}
			if from.free() {
				t.Fatalf("%v: the copy is over", direction)
			}
			switch end {
			case "cancelled":
				a.Cancel()
			case "reset":
				for _, k := range r.world.Connections() {
					k.Reset()
				}
			case "late":
				r.world.Advance(10 * time.Second)
			}
			o := r.wait(a)
			if o.Err == nil || direction == lanes.Write && o.Remote != lanes.EffectUnknown || o.Local != lanes.EffectNone || !o.Drained {
				t.Errorf("%v %s: %+v", direction, end, o)
			}
			r.until("the source's end", func() bool { return remote.Loans() == 0 })
			if !from.free() || !remote.holds(1) || !local.holds(2) {
				t.Errorf("%v %s: the ranges are leased, or changed", direction, end)
			}
			r.finish()
		}
	}
}

// A reply that is lent comes behind the receipt of the WRITE before it: in one piece with it if there is room, in order if there
// is hardly any, and also if the receipt goes alone, since the range of the reply is in use for a while, and finds no room.
//
// proves W-14, T-1
func TestLentReplyBehindAReceipt(t *testing.T) {
	mappings(t)
	lending(t)
	for _, late := range []bool{false, true} {
		for room := netproto.RequestSize + 4; room < 3*netproto.ReplySize+lentReply+4; room++ {
			lentBehindReceipt(t, room, late)
		}
	}
}

const lentReply = 100

func lentBehindReceipt(t *testing.T, room int, late bool) {
	const size = lentReply
	r := newRig(t, uint64(room), simkernel.WorldOptions{Buffer: room})
	sent := &sendings{}
	source := r.node(sourceHost, setup{wrap: sent.wrap})
	m, other := source.register(4, netproto.ReadWrite, 1), source.register(size, netproto.ReadWrite, 1)
	w := r.dial(source.address)
	must(t, w.send(requestBytes(netproto.OperationTCPWrite, m.ID(), 0, 4)))
	lease, err := other.Lease(0, size, segments.Exclusive)
	must(t, err)
	if !late {
		lease.Return()
	}
	r.pass(soon) // the next bytes are to find room
	must(t, w.send(append([]byte("abcd"), requestBytes(netproto.OperationTCPRead, other.ID(), 0, size)...)))
	r.pass(soon)
	if late {
		lease.Return()
		r.pass(soon)
	}
	other.overwrite(t, 2)
	w.want(netproto.StatusReady, netproto.StatusSuccess)
	if p := w.reply(); p.Status != netproto.StatusSuccess || p.Length != size {
		t.Fatalf("room for %d: %+v", room, p)
	}
	if b, err := w.receive(size); err != nil || !bytes.Equal(b, pattern(size, 1)) {
		t.Fatalf("room for %d: the payload is another: %v", room, err)
	}
	r.finish()
	if all := 2*netproto.ReplySize + size; room >= netproto.ReplySize+all && !late && sent.bytes[len(sent.bytes)-1] != all {
		t.Errorf("room for %d: sent %v", room, sent.bytes)
	}
}

// A reply whose payload is still being copied, because the receipt before it found no room, does not go before its copy is
// whole, although the receipt has gone meanwhile.
//
// proves T-1
func TestReplyBehindAReceiptWaitsForItsCopy(t *testing.T) {
	mappings(t)
	const size = 12 * lanes.SliceBytes
	r := newRig(t, 1, simkernel.WorldOptions{Buffer: netproto.RequestSize + 4, DelayMin: 1, DelayMax: 1})
	defer r.finish()
	source := r.node(sourceHost, setup{payload: size})
	m, other := source.register(4, netproto.ReadWrite, 1), source.register(size, netproto.ReadWrite, 1)
	w := r.dial(source.address)
	must(t, w.send(requestBytes(netproto.OperationTCPWrite, m.ID(), 0, 4)))
	lease, err := other.Lease(0, size, segments.Exclusive)
	must(t, err)
	r.pass(soon)
	must(t, w.send(append([]byte("abcd"), requestBytes(netproto.OperationTCPRead, other.ID(), 0, size)...)))
	r.pass(soon)
	lease.Return()
	r.until("the copy", func() bool { return !other.free() })
	w.want(netproto.StatusReady, netproto.StatusSuccess)
	if other.free() {
		t.Fatal("the copy was over before the receipt was read")
	}
	r.until("the copy's end", other.free)
	other.overwrite(t, 2)
	if p := w.reply(); p.Status != netproto.StatusSuccess || p.Length != size {
		t.Fatalf("%+v", p)
	}
	const most = 100_000 // of a stream that hardly moves
	if b, err := w.receive(most); err != nil || !bytes.Equal(b, pattern(size, 1)[:most]) {
		t.Fatalf("the payload is another: %v", err)
	}
}
