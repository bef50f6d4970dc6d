package hptcp

import (
	"bytes"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// pagesAsked is a request for two runs of pages.
func pagesAsked(kind netproto.HPTCPKind) []byte {
	q := netproto.HPTCPRequest{HPTCPFrame: netproto.HPTCPFrame{Kind: kind, Tag: tag, Length: 48}, Region: 1, Unit: 16, RunsSize: 4}
	return append(netproto.AppendHPTCPRequest(nil, q), 0, 4, 2, 2)
}

// sessionSeeds are whole, partial and hostile conversations with a source, behind a good hello.
func sessionSeeds() [][]byte {
	read, write := ask(netproto.HPTCPRead, tag, 1, 0, 64), append(ask(netproto.HPTCPWrite, tag, 1, 8, 16), chunk(tag, 0, []byte("0123456789abcdef"))...)
	atomic := bytes.Clone(write)
	atomic[1] = netproto.HPTCPAtomic
	refused := append(ask(netproto.HPTCPWrite, tag, 2, 0, 16), chunk(tag, 0, make([]byte, 16))...)
	return [][]byte{
		nil, read, write, atomic, refused, pagesAsked(netproto.HPTCPRead), append(pagesAsked(netproto.HPTCPWrite), chunk(tag, 0, make([]byte, 48))...),
		bytes.Join([][]byte{read, write, atomic, refused, pagesAsked(netproto.HPTCPRead), read}, nil),
		read[:30], write[:70], ask(netproto.HPTCPRead, tag, 1, 1<<40, 8), end(tag, 0), chunk(tag, 0, make([]byte, 8)),
		bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 8),
	}
}

// FuzzSession feeds arbitrary bytes, cut into pieces of the given size, to a source's stream on the twin, behind a good
// hello or as one. It never panics, and afterwards every gauge is at zero.
//
// proves W-15, T-11, H-2, H-3
func FuzzSession(f *testing.F) {
	for _, seed := range sessionSeeds() {
		f.Add(seed, byte(0), true)
		f.Add(seed, byte(7), true)
	}
	f.Add(netproto.AppendHPTCPHello(nil, netproto.HPTCPHello{Expected: sourceEpoch, Requester: requesterEpoch, Chunk: 100, InFlight: 100}), byte(3), false)
	f.Fuzz(func(t *testing.T, script []byte, piece byte, greeted bool) {
		r := newRig(t, uint64(len(script)), simkernel.WorldOptions{ChopReceive: int(piece)})
		source := r.node(sourceHost, setup{epoch: sourceEpoch, payload: 4096, sourceTimeout: time.Second, idle: 2 * time.Second})
		region, hidden := source.register(64, netproto.ReadWrite, 1), source.register(64, netproto.LocalOnly, 1)
		w := r.dial(source.address)
		if greeted {
			w.close()
			w = r.greet(source)
		}
		_ = w.send(script)        // a refused stream is closed while we still send
		_, _ = w.receive(1 << 20) // every answer; then the idle or the source timeout ends the stream
		r.pass(soon)              // its last operations come back
		if s := source.service.Sessions(); s != 0 || region.Loans() != 0 || source.gate.Inside() != 0 {
			t.Errorf("%d sessions, %d loans, %d requests are left", s, region.Loans(), source.gate.Inside())
		}
		if !hidden.holds(1) {
			t.Error("a region that was never published has changed")
		}
		r.finish()
	})
}

// FuzzAnswers feeds arbitrary bytes to a requester that waits for two requests of one transfer, behind a good welcome or
// as one. It never panics; the transfer ends exactly once; success needs the bytes; a range changes only as reported.
//
// proves W-15, H-3, H-5
func FuzzAnswers(f *testing.F) {
	first, second := netproto.HPTCPTag{Slot: 0, Generation: 1}, netproto.HPTCPTag{Slot: 1, Generation: 1}
	good := append(chunk(first, 0, pattern(64, 1)[:40]), chunk(second, 0, pattern(64, 1)[40:])...)
	wrote := append(end(first, 0), end(second, 0)...)
	for _, seed := range [][]byte{
		nil, good, wrote, good[:50], good[:100], append(bytes.Clone(good), good...), append(end(first, netproto.StatusPermissionDenied), end(second, 0)...),
		append(chunk(second, 0, pattern(64, 1)[40:]), chunk(first, 0, pattern(64, 1)[:40])...), chunk(first, 1, make([]byte, 8)), chunk(first, 0, make([]byte, 41)),
	} {
		for mode := range byte(8) {
			f.Add(seed, mode, byte(0))
		}
		f.Add(seed, byte(0), byte(5))
	}
	f.Fuzz(func(t *testing.T, script []byte, mode, piece byte) {
		r := newRig(t, uint64(len(script)), simkernel.WorldOptions{ChopReceive: int(piece)})
		requester := r.node(requesterHost, setup{config: Config{ChunkBytes: 40}, sourceTimeout: time.Second})
		p := r.listen()
		local := requester.register(64, netproto.LocalOnly, 2)
		a := requester.ask(lanes.Read, local, 7)
		if mode&1 != 0 {
			a.Direction = lanes.Write
		}
		a.Atomic = mode&2 != 0
		a.start(requester.script(p))
		w := p.accept()
		if mode&4 == 0 {
			w.welcome(nil)
		}
		_ = w.send(script)
		o := r.wait(a)
		changed := !local.holds(2)
		switch {
		case o.Err == nil && a.Direction == lanes.Read && mode&4 == 0 && len(script) < 64:
			t.Errorf("success for %x", script)
		case o.Err == nil && o.Bytes != 64:
			t.Errorf("%+v", o)
		case o.Err != nil && changed != (o.Local == lanes.EffectPartial) && !bytes.Contains(script, pattern(64, 2)[:1]):
			t.Errorf("the local range changed: %v, reported is %+v", changed, o)
		case a.Direction == lanes.Write && changed, o.Err != nil && a.Atomic && changed:
			t.Errorf("the local range has changed: %+v", o)
		}
		r.pass(soon)
		r.finish()
	})
}
