package tcp

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
)

// sendings notes how many bytes each Send is given.
type sendings struct {
	reactor.Kernel
	bytes []int
}

func (s *sendings) Submit(op *reactor.Operation) {
	if op.Kind == reactor.Send {
		s.bytes = append(s.bytes, len(op.Buffers[0])+len(op.Buffers[1]))
	}
	s.Kernel.Submit(op)
}

func (s *sendings) wrap(k reactor.Kernel) reactor.Kernel {
	s.Kernel = k
	return s
}

// said checks what was sent since the last call.
func (s *sendings) said(t *testing.T, want ...int) {
	t.Helper()
	if !slices.Equal(s.bytes, want) {
		t.Errorf("sent pieces of %v bytes, want %v", s.bytes, want)
	}
	s.bytes = nil
}

// spacious lets a socket take whatever a test sends in one go.
var spacious = simkernel.WorldOptions{Buffer: 16 << 20}

// eachSize runs a test for payloads of each size, staged and direct, on a rig of its own whose sendings are listed.
func eachSize(t *testing.T, seed uint64, sizes []uint64, run func(*testing.T, *rig, uint64, *sendings, setup)) {
	for _, direct := range []bool{false, true} {
		for _, size := range sizes {
			t.Run(fmt.Sprintf("direct %v, %d bytes", direct, size), func(t *testing.T) {
				mappings(t)
				r := newRig(t, seed, spacious)
				defer r.finish()
				sent := &sendings{}
				run(t, r, size, sent, setup{direct: direct, wrap: sent.wrap})
			})
		}
	}
}

// want checks the next replies.
func (w *wire) want(all ...netproto.Status) {
	w.rig.t.Helper()
	for i, status := range all {
		if p := w.reply(); p != (netproto.Reply{Status: status, Epoch: epoch}) {
			w.rig.t.Fatalf("reply %d is %+v, want status %v", i, p, status)
		}
	}
}

// The receipt of a WRITE and the answer to the next request go out in one piece if that request is here already, in
// whatever pieces it came, also when the commit takes several turns. The range has the payload before.
//
// proves T-1, W-14
func TestReceiptTravelsWithTheAnswerToTheNextRequest(t *testing.T) {
	eachSize(t, 1, []uint64{1, 64 << 10, 3<<20 + 5}, func(t *testing.T, r *rig, size uint64, sent *sendings, how setup) {
		source := r.node(sourceHost, how)
		m := source.register(size, netproto.ReadWrite, 1)
		w := r.dial(source.address)
		write, read := requestBytes(netproto.OperationTCPWrite, m.ID(), 0, size), requestBytes(netproto.OperationTCPRead, m.ID(), 0, size)
		must(t, w.send(write))
		w.want(netproto.StatusReady)
		must(t, w.send(append(pattern(size, 2), write...)))
		w.want(netproto.StatusSuccess, netproto.StatusReady)
		if !m.holds(2) {
			t.Fatal("the receipt came and the payload is not there")
		}
		sent.said(t, netproto.ReplySize, 2*netproto.ReplySize)
		must(t, w.send(append(pattern(size, 3), read[:20]...)))
		w.want(netproto.StatusSuccess)
		sent.said(t, netproto.ReplySize)
		must(t, w.send(read[20:]))
		w.reply()
		if b, err := w.receive(int(size)); err != nil || !bytes.Equal(b, pattern(size, 3)) {
			t.Fatalf("the READ behind a WRITE has other bytes: %v", err)
		}
		must(t, w.send(write))
		w.want(netproto.StatusReady)
		must(t, w.send(append(pattern(size, 1), read...)))
		w.want(netproto.StatusSuccess)
		w.reply()
		if b, err := w.receive(int(size)); err != nil || !bytes.Equal(b, pattern(size, 1)) {
			t.Fatalf("the READ behind a WRITE has other bytes: %v", err)
		}
	})
}

// A receipt waits for nothing: not for a range that somebody holds, not for a body. Nor does it put its stream before
// others that wait for a handler.
//
// proves W-14, T-6
func TestReceiptWaitsForNothing(t *testing.T) {
	mappings(t)
	r := newRig(t, 2, simkernel.WorldOptions{})
	defer r.finish()
	sent := &sendings{}
	source := r.node(sourceHost, setup{direct: true, handlers: 1, wrap: sent.wrap})
	m, held := source.register(8, netproto.ReadWrite, 1), source.register(8, netproto.ReadWrite, 1)
	request := func(m *memory) []byte { return requestBytes(netproto.OperationTCPWrite, m.ID(), 0, 4) }
	w := r.dial(source.address)
	must(t, w.send(request(m)))
	w.want(netproto.StatusReady)

	lease, err := held.Lease(0, 8, segments.Shared)
	must(t, err)
	must(t, w.send(append([]byte("abcd"), request(held)...)))
	w.want(netproto.StatusSuccess)
	w.silent()
	lease.Return()
	w.want(netproto.StatusReady)
	sent.said(t, netproto.ReplySize, netproto.ReplySize, netproto.ReplySize)

	note := netproto.Notification{Name: "na", Message: "message"}
	must(t, w.send(append([]byte("efgh"), netproto.AppendRequest(nil, note.Request(netproto.OperationNotify, epoch))...)))
	w.want(netproto.StatusSuccess, netproto.StatusReady)
	must(t, w.send(netproto.AppendNotifyBody(nil, note)))
	w.want(netproto.StatusSuccess)

	// Another stream's frame waits for the only handler. It is refused in the turn in which it gets it, and the next
	// frame of the first stream is answered in that turn, too.
	must(t, w.send(request(m)))
	w.want(netproto.StatusReady)
	other := r.dial(source.address)
	must(t, other.send(requestBytes(netproto.OperationTCPRead, 1<<40, 0, 1)))
	other.silent()
	sent.bytes = nil
	must(t, w.send(append([]byte("ijkl"), request(m)...)))
	w.want(netproto.StatusSuccess, netproto.StatusReady)
	other.want(netproto.StatusUnknownRegion)
	sent.said(t, netproto.ReplySize, 2*netproto.ReplySize)
	must(t, w.send([]byte("mnop")))
	w.want(netproto.StatusSuccess)
	if string(m.bytes()[:4]) != "mnop" || string(held.bytes()[:4]) != "efgh" {
		t.Errorf("the ranges hold %q and %q", m.bytes()[:4], held.bytes()[:4])
	}
}

// What answers the next request comes behind the receipt, also if that is still on its way: the peer does not read.
//
// proves W-14
func TestAnswerBehindAReceiptOnItsWay(t *testing.T) {
	for _, room := range []int{netproto.RequestSize + 4, 2*netproto.ReplySize - 1, 2 * netproto.ReplySize, 2*netproto.ReplySize + 1} {
		mappings(t)
		r := newRig(t, 6, simkernel.WorldOptions{Buffer: room})
		source := r.node(sourceHost, setup{direct: true})
		m, held := source.register(8, netproto.ReadWrite, 1), source.register(8, netproto.ReadWrite, 1)
		lease, err := held.Lease(0, 8, segments.Shared)
		must(t, err)
		w := r.dial(source.address)
		must(t, w.send(requestBytes(netproto.OperationTCPWrite, m.ID(), 0, 4)))
		r.pass(soon) // the next bytes are to find room
		must(t, w.send(append([]byte("abcd"), requestBytes(netproto.OperationTCPWrite, held.ID(), 0, 4)...)))
		r.pass(soon)
		if string(m.bytes()[:4]) != "abcd" {
			t.Fatal("the payload is not there")
		}
		lease.Return()
		r.pass(soon)
		w.want(netproto.StatusReady, netproto.StatusSuccess, netproto.StatusReady)
		must(t, w.send([]byte("efgh")))
		w.want(netproto.StatusSuccess)
		if string(held.bytes()[:4]) != "efgh" {
			t.Error("the second payload is not there")
		}
		r.finish()
	}
}

// What follows a WRITE cannot take its receipt away: neither a frame that breaks the protocol, nor one that is refused, nor
// the end of the source.
//
// proves W-15, G-6
func TestNothingBehindAWriteTakesItsReceipt(t *testing.T) {
	const size = 4
	for _, c := range []struct {
		name   string
		behind func(m *memory) []byte
		close  bool
		after  []netproto.Status
		on     bool
	}{
		{name: "broken", behind: func(*memory) []byte { return bytes.Repeat([]byte{7}, netproto.RequestSize) }, after: []netproto.Status{netproto.StatusProtocolError}},
		{name: "refused", behind: func(m *memory) []byte { return requestBytes(netproto.OperationTCPWrite, m.ID(), size, 1) },
			after: []netproto.Status{netproto.StatusInvalidRange}, on: true},
		{name: "closing", behind: func(m *memory) []byte { return requestBytes(netproto.OperationTCPWrite, m.ID(), 0, 1) }, close: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			mappings(t)
			r := newRig(t, 3, simkernel.WorldOptions{})
			source := r.node(sourceHost, setup{})
			m := source.register(size, netproto.ReadWrite, 1)
			w := r.dial(source.address)
			must(t, w.send(requestBytes(netproto.OperationTCPWrite, m.ID(), 0, size)))
			w.want(netproto.StatusReady)
			must(t, w.send([]byte("ab")))
			r.pass(soon)
			if c.close {
				source.admission.Fence()
				source.server.Close(func() {})
			}
			must(t, w.send(append([]byte("cd"), c.behind(m)...)))
			w.want(append([]netproto.Status{netproto.StatusSuccess}, c.after...)...)
			if c.on {
				must(t, w.send(requestBytes(netproto.OperationTCPRead, m.ID(), 0, 0)))
				w.want(netproto.StatusSuccess)
			} else {
				w.ends()
			}
			if string(m.bytes()) != "abcd" {
				t.Errorf("the range holds %q", m.bytes())
			}
			r.finish()
		})
	}
}

// couple starts a WRITE, and another one that follows it.
func (n *node) couple(c *control.Channel, local *memory) (first, second *attempt, frees *[]uint64) {
	first, second, frees = n.ask(lanes.Write, local, 1), n.ask(lanes.Write, local, 2), new([]uint64)
	first.Free = func() {
		if *frees = append(*frees, first.sent); len(*frees) > 1 {
			return
		}
		if !second.Local.Lend() || !second.Follow(c) {
			n.t.Error("the second WRITE cannot follow")
		}
	}
	done := first.Done
	first.Done = func(t *Transfer) {
		ok := t.Outcome.Err == nil
		done(t)
		if ok {
			second.Release()
		}
	}
	first.start(c)
	return first, second, frees
}

// coupled is couple towards a script, whose wire it returns behind the first request.
func (n *node) coupled(local *memory) (w *wire, first, second *attempt, frees *[]uint64) {
	p := n.rig.listen()
	first, second, frees = n.couple(n.channel(p.address), local)
	w = p.accept()
	w.request()
	return w, first, second, frees
}

// A WRITE's request goes out in one piece with the end of the payload before it. Of a large payload only the last piece
// decides who follows, and its pieces are as many as ever.
//
// proves T-3, W-14
func TestRequestTravelsWithTheEndOfThePayloadBefore(t *testing.T) {
	eachSize(t, 4, []uint64{1, 1 << 20, 3<<20 + 5}, func(t *testing.T, r *rig, size uint64, sent *sendings, how setup) {
		requester := r.node(requesterHost, how)
		w, first, second, frees := requester.coupled(requester.register(size, netproto.LocalOnly, 2))
		must(t, w.send(replyBytes(netproto.StatusReady, 0)))
		b, err := w.receive(int(size))
		if err != nil || !bytes.Equal(b, pattern(size, 2)) {
			t.Fatalf("the first payload is another: %v", err)
		}
		if q := w.request(); q.Region != 2 || q.Length != size {
			t.Fatalf("%+v follows", q)
		}
		last := min(int(size), lastBytes)
		want := []int{netproto.RequestSize, last + netproto.RequestSize}
		if rest := int(size) - last; rest > 0 {
			const chunk = 1<<20 + 128
			want = []int{netproto.RequestSize, chunk, rest - chunk, last + netproto.RequestSize}
		}
		sent.said(t, want...)
		if (*frees)[0] != size-uint64(last) {
			t.Errorf("it was decided after %d bytes who follows", (*frees)[0])
		}
		must(t, w.send(append(replyBytes(netproto.StatusSuccess, 0), replyBytes(netproto.StatusReady, 0)...)))
		b, err = w.receive(int(size))
		if err != nil || !bytes.Equal(b, pattern(size, 2)) {
			t.Fatalf("the second payload is another: %v", err)
		}
		must(t, w.send(replyBytes(netproto.StatusSuccess, 0)))
		for i, a := range []*attempt{first, second} {
			if o := r.wait(a); o.Err != nil || o.Bytes != size || o.Remote != lanes.EffectComplete {
				t.Errorf("WRITE %d: %+v", i, o)
			}
		}
	})
}

// A stream that ends anywhere in a payload, or behind it, leaves the effect of its WRITE unknown, and none of the one whose
// request went along.
//
// proves T-10, T-5
func TestStreamCutAroundTheRequestThatTravelsAlong(t *testing.T) {
	const size = 2<<20 + 100
	for _, room := range []int{100, 1<<20 - 1, 1<<20 + 100, 1<<20 + 101, size - 1, size, size + 1, size + netproto.RequestSize, size + 4096} {
		t.Run(fmt.Sprintf("room for %d", room), func(t *testing.T) {
			mappings(t)
			r := newRig(t, 5, simkernel.WorldOptions{Buffer: room})
			defer r.finish()
			requester := r.node(requesterHost, setup{})
			w, first, second, frees := requester.coupled(requester.register(size, netproto.LocalOnly, 2))
			must(t, w.send(replyBytes(netproto.StatusReady, 0)))
			r.pass(soon)
			w.close() // with unread bytes: a reset
			if o := r.wait(first); o.Err == nil || o.Remote != lanes.EffectUnknown {
				t.Errorf("the WRITE under way: %+v", o)
			}
			if len(*frees) == 0 {
				return
			}
			if o := r.wait(second); o.Err == nil || o.Remote != lanes.EffectNone {
				t.Errorf("the WRITE that followed: %+v", o)
			}
		})
	}
}
