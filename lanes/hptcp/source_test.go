package hptcp

import (
	"bytes"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
)

var tag = netproto.HPTCPTag{Slot: 3, Generation: 9}

// A hello to another life, with a stream too many, or of another protocol finds no stream; the refusal names the
// life that there is.
//
// proves H-2, G-1
func TestHelloBindsVersionAndBothLives(t *testing.T) {
	mappings(t)
	r := newRig(t, 1, simkernel.WorldOptions{ChopReceive: 5})
	source, requester, _ := r.pair(setup{config: Config{StreamsMax: 2}}, setup{})
	remote, local := source.register(64, netproto.ReadWrite, 1), requester.register(64, netproto.LocalOnly, 2)

	stale := requester.peerAt(source.address, staleEpoch, *source.config.Endpoint(netproto.FamilyIPv4, source.address.Port()))
	o := r.wait(requester.ask(lanes.Read, local, remote.ID()).start(stale))
	if f := fault(t, o); f.Cause != lanes.Refused || f.Status != netproto.StatusEpochMismatch || f.Actual != sourceEpoch || f.Expected != staleEpoch {
		t.Errorf("%+v", f)
	}
	for what, c := range map[string]struct {
		change func(*netproto.HPTCPHello)
		want   netproto.Status
	}{
		"stale life":          {func(h *netproto.HPTCPHello) { h.Expected = staleEpoch }, netproto.StatusEpochMismatch},
		"a stream beyond all": {func(h *netproto.HPTCPHello) { h.Stream = 2 }, netproto.StatusExhausted},
	} {
		h := helloTo(source)
		c.change(&h)
		w := r.dial(source.address)
		must(t, w.send(netproto.AppendHPTCPHello(nil, h)))
		b, err := w.receive(netproto.HPTCPHelloSize)
		must(t, err)
		got, err := netproto.DecodeHPTCPWelcome(h, b)
		if err != nil || got.Status != c.want || got.Source != sourceEpoch {
			t.Errorf("%s: %+v %v", what, got, err)
		}
		w.ends()
	}
	one, two, three := r.greet(source), r.greet(source), r.greet(source) // the third one comes in the place of the first
	one.ends()
	if n := source.service.Sessions(); n != 2 {
		t.Errorf("%d streams of one life, which has two", n)
	}
	_, _ = two, three
	old := netproto.AppendHPTCPHello(nil, helloTo(source))
	old[9] = netproto.Version - 1
	control := netproto.AppendRequest(nil, netproto.Request{Operation: netproto.OperationTCPRead, Epoch: sourceEpoch, Region: 1, Length: 8})
	for _, hello := range [][]byte{old, append(control, make([]byte, 12)...), bytes.Repeat([]byte("GET / HT"), 8)} {
		w := r.dial(source.address)
		must(t, w.send(hello))
		w.ends()
	}
	if !local.holds(2) {
		t.Error("the local range has changed")
	}
	r.finish()
}

// The source checks each request by itself, with the answers of operations 1 and 2, and the stream goes on.
//
// proves H-6, M-8, T-11
func TestSourceChecksEveryRequest(t *testing.T) {
	mappings(t)
	r := newRig(t, 1, simkernel.WorldOptions{ChopReceive: 40, ChopSend: 40})
	source, requester, peer := r.pair(setup{payload: 1 << 20, config: Config{ChunkBytes: 16 << 10}}, setup{payload: 8 << 20, config: Config{ChunkBytes: 16 << 10}})
	const length = 100_000
	local := requester.register(length, netproto.LocalOnly, 2)
	readable, writable := source.register(length, netproto.RemoteRead, 1), source.register(length, netproto.RemoteWrite, 1)
	private, foreign := source.register(length, netproto.LocalOnly, 1), source.registerAs(length, netproto.ReadWrite, 1, 0)
	beyond := requester.ask(lanes.Write, local, writable.ID())
	beyond.Offset = 1
	pages := requester.ask(lanes.Write, local, writable.ID())
	pages.Spans, pages.Length = []Span{{0, 0, 10}, {10, length - 9, 10}}, 20
	for what, c := range map[string]struct {
		a    *attempt
		want netproto.Status
	}{
		"unknown":           {requester.ask(lanes.Read, local, 77), netproto.StatusUnknownRegion},
		"READ, write only":  {requester.ask(lanes.Read, local, writable.ID()), netproto.StatusPermissionDenied},
		"WRITE, read only":  {requester.ask(lanes.Write, local, readable.ID()), netproto.StatusPermissionDenied},
		"local only":        {requester.ask(lanes.Read, local, private.ID()), netproto.StatusPermissionDenied},
		"not of this plane": {requester.ask(lanes.Read, local, foreign.ID()), netproto.StatusBackendUnavailable},
		"beyond the end":    {beyond, netproto.StatusInvalidRange},
		"one page beyond":   {pages, netproto.StatusInvalidRange},
	} {
		o := r.wait(c.a.start(peer))
		if f := fault(t, o); f.Cause != lanes.Refused || f.Status != c.want || !o.Drained {
			t.Errorf("%s: %+v", what, o)
		}
		if o.Local != lanes.EffectNone || c.a.Offset == 0 && o.Remote != lanes.EffectNone {
			t.Errorf("%s: %+v, nothing was changed", what, o)
		}
	}
	large := requester.register(2<<20, netproto.LocalOnly, 2)
	big := requester.ask(lanes.Write, large, writable.ID())
	big.Atomic = true
	if f := fault(t, r.wait(big.start(peer))); f.Status != netproto.StatusExhausted {
		t.Errorf("a payload above the source's limit: %+v", f)
	}
	if n := requester.lane.Counts.StreamsRetired.Load(); n != 0 {
		t.Errorf("refusals have cost %d streams", n)
	}
	if !readable.holds(1) || !private.holds(1) || !foreign.holds(1) || !local.holds(2) {
		t.Error("a refused request has changed a range")
	}
	source.gate.Fence()
	if f := fault(t, r.wait(requester.ask(lanes.Read, local, readable.ID()).start(peer))); f.Status != netproto.StatusSourceClosed {
		t.Errorf("a fenced source: %+v", f)
	}
	r.finish()
}

// What no requester sends ends the stream: chunks that nobody waits for, out of order, of another tag, more requests or
// bytes than agreed, half a WRITE's chunks with another request between them.
//
// proves H-3, H-7, W-15
func TestForgedFramesEndTheStream(t *testing.T) {
	read := func(n int) (b []byte) {
		for i := range n {
			b = append(b, ask(netproto.HPTCPRead, netproto.HPTCPTag{Slot: uint32(i), Generation: 1}, 1, 0, 64)...)
		}
		return b
	}
	other := netproto.HPTCPTag{Slot: 3, Generation: 8}
	for what, script := range map[string][]byte{
		"orphan chunk":       chunk(tag, 0, make([]byte, 8)),
		"chunk of a READ":    append(ask(netproto.HPTCPRead, tag, 1, 0, 8), chunk(tag, 0, make([]byte, 8))...),
		"another generation": append(ask(netproto.HPTCPWrite, tag, 1, 0, 8), chunk(other, 0, make([]byte, 8))...),
		"gap":                append(ask(netproto.HPTCPWrite, tag, 1, 0, 8), chunk(tag, 4, make([]byte, 4))...),
		"too long":           append(ask(netproto.HPTCPWrite, tag, 1, 0, 8), chunk(tag, 0, make([]byte, 9))...),
		"double chunk":       append(append(ask(netproto.HPTCPWrite, tag, 1, 0, 8), chunk(tag, 0, make([]byte, 4))...), chunk(tag, 0, make([]byte, 4))...),
		"request between":    append(append(ask(netproto.HPTCPWrite, tag, 1, 0, 8), chunk(tag, 0, make([]byte, 4))...), read(1)...),
		"an END":             end(tag, 0),
		"more bytes":         bytes.Repeat(ask(netproto.HPTCPRead, tag, 1, 0, 1<<20), 3), // one is in the box, and no longer counted
		"more requests":      read(1000),
		"refused, too long":  append(ask(netproto.HPTCPWrite, tag, 9, 0, 8), chunk(tag, 0, make([]byte, 9))...),
		"unknown kind":       append([]byte{9}, make([]byte, 47)...),
	} {
		t.Run(what, func(t *testing.T) {
			mappings(t)
			r := newRig(t, 4, simkernel.WorldOptions{Buffer: 8 << 10, ChopReceive: 100})
			source := r.node(sourceHost, setup{epoch: sourceEpoch})
			remote := source.register(1<<20, netproto.ReadWrite, 1)
			w := r.greet(source)
			begin := r.world.Now()
			_ = w.send(script)
			for err := error(nil); err == nil; {
				_, err = w.receive(1)
			}
			if took := time.Duration(r.world.Now() - begin); took >= source.policy.SourceTimeout {
				t.Errorf("it took %v, so a timeout ended it", took)
			}
			r.pass(soon)
			if source.service.Sessions() != 0 || remote.Loans() != 0 || !remote.backing.Quiet() {
				t.Errorf("%d sessions, %d loans are left", source.service.Sessions(), remote.Loans())
			}
			r.finish()
		})
	}
}

// A stopped requester, one that reads nothing and one that sends half a payload, holds up nobody else, and is ended by
// the source's deadline.
//
// proves H-7, T-9
// field case F-45
func TestStoppedPeersDelayNobodyElse(t *testing.T) {
	mappings(t)
	r := newRig(t, 5, simkernel.WorldOptions{Buffer: 64 << 10})
	source, requester, peer := r.pair(setup{}, setup{})
	const length = 1 << 20
	remote := source.register(length, netproto.ReadWrite, 1)
	reader, writer := r.greet(source), r.greet(source)
	must(t, reader.send(ask(netproto.HPTCPRead, tag, remote.ID(), 0, length)))
	must(t, writer.send(append(ask(netproto.HPTCPWrite, tag, remote.ID(), length/2, 1000), chunk(tag, 0, make([]byte, 1000))[:500]...)))
	r.pass(soon)
	local := requester.register(4096, netproto.LocalOnly, 2)
	worst := time.Duration(0)
	for i := range 200 {
		a := requester.ask([]lanes.Direction{lanes.Read, lanes.Write}[i%2], local, source.register(0x1000, netproto.ReadWrite, 1).ID())
		begin := r.world.Now()
		if o := r.wait(a.start(peer)); o.Err != nil {
			t.Fatal(o.Err)
		}
		if i > 0 {
			worst = max(worst, time.Duration(a.at-begin))
		}
		source.memories[len(source.memories)-1].backing.Drop()
		_, err := source.tracker.Unregister(source.memories[len(source.memories)-1].ID())
		must(t, err)
		source.memories = source.memories[:len(source.memories)-1]
	}
	if worst > time.Millisecond {
		t.Errorf("a small request took %v", worst)
	}
	if n := source.service.Sessions(); n < 3 {
		t.Errorf("%d sessions, want the stopped ones too", n)
	}
	r.pass(source.policy.SourceTimeout)
	if n := source.lane.Counts.SourceTimeouts.Load(); n != 2 || !remote.backing.Quiet() {
		t.Errorf("%d streams were ended by the deadline, lease free %v", n, remote.backing.Quiet())
	}
	r.finish()
}

// A conflicting access delays only the stream that wants the same bytes; other pages of the pool go on meanwhile.
//
// proves M-9, H-5
func TestOnlyTheSameBytesWait(t *testing.T) {
	mappings(t)
	r := newRig(t, 6, simkernel.WorldOptions{})
	source, requester, peer := r.pair(setup{}, setup{})
	remote, local := source.register(1<<16, netproto.ReadWrite, 1), requester.register(1<<16, netproto.LocalOnly, 2)
	other := r.node(otherHost, setup{epoch: staleEpoch})
	page := func(n *node, at *memory, p *Peer, odd uint64) *attempt {
		a := n.ask(lanes.Write, at, remote.ID())
		a.Length = 0
		for i := odd; i < 16; i += 2 {
			a.Spans = append(a.Spans, Span{i * 4096, i * 4096, 4096})
			a.Length += 4096
		}
		return a
	}
	held, err := remote.Lease(2*4096, 4096, segments.Shared) // page 2 is in use
	must(t, err)
	even := page(requester, local, peer, 0).start(peer)
	from := other.register(1<<16, netproto.LocalOnly, 3)
	odd := page(other, from, nil, 1).start(other.peer(source))
	if o := r.wait(odd); o.Err != nil {
		t.Errorf("the pages between: %v", o.Err)
	}
	if even.done > 0 || source.lane.Counts.ConflictRetries.Load() == 0 {
		t.Error("a leased page was written")
	}
	held.Return()
	if o := r.wait(even); o.Err != nil {
		t.Error(o.Err)
	}
	for i := range uint64(16) {
		want := pattern(1<<16, byte(2+i%2))[i*4096:][:4096]
		if !bytes.Equal(remote.bytes()[i*4096:][:4096], want) {
			t.Errorf("page %d has wrong bytes", i)
		}
	}
	r.finish()
}

// Idle streams hold nothing but their place, are bounded, make room for new ones, and are closed in the end.
//
// proves T-6
// field case F-29
func TestIdleStreamsMakeRoom(t *testing.T) {
	mappings(t)
	r := newRig(t, 7, simkernel.WorldOptions{})
	source := r.node(sourceHost, setup{epoch: sourceEpoch, sessions: 2})
	first, second := r.greet(source), r.greet(source)
	third := r.greet(source)
	first.ends()
	if n := source.lane.Counts.Evicted.Load(); n != 1 {
		t.Errorf("%d were evicted", n)
	}
	_, _ = second, third
	r.pass(source.policy.SourceTimeout + time.Second)
	if n := source.service.Sessions(); n != 2 {
		t.Errorf("%d idle streams are left after the time of a request", n)
	}
	r.pass(source.policy.IdleTimeout)
	if n := source.service.Sessions(); n != 0 || source.lane.Counts.IdleClosed.Load() != 2 {
		t.Errorf("%d sessions are left, %d idle ones were closed", n, source.lane.Counts.IdleClosed.Load())
	}
	half := r.greet(source)
	must(t, half.send(ask(netproto.HPTCPRead, tag, 1, 0, 8)[:20]))
	silent := r.dial(source.address)
	r.pass(source.policy.SourceTimeout + time.Second)
	half.ends()
	silent.ends()
	r.finish()
}

// A WRITE whose chunk has other bytes than its checksum says is answered with the offset; so is a READ's at the
// requester.
//
// proves H-9
func TestFirstMismatchIsReportedWithItsOffset(t *testing.T) {
	mappings(t)
	r := newRig(t, 8, simkernel.WorldOptions{ChopReceive: 100})
	source := r.node(sourceHost, setup{epoch: sourceEpoch})
	remote := source.register(300, netproto.ReadWrite, 1)
	w := r.dial(source.address)
	h := helloTo(source)
	h.Flags = netproto.HPTCPChecksums
	must(t, w.send(netproto.AppendHPTCPHello(nil, h)))
	_, err := w.receive(netproto.HPTCPHelloSize)
	must(t, err)
	piece := func(at uint64, wrong bool) []byte {
		payload := pattern(300, 2)[at:][:100]
		f := netproto.HPTCPFrame{Kind: netproto.HPTCPChunk, Tag: tag, Offset: at, Length: 100, Check: checksum([][]byte{payload})}
		if wrong {
			f.Check++
		}
		return append(netproto.AppendHPTCPFrame(nil, f), payload...)
	}
	script := ask(netproto.HPTCPWrite, tag, remote.ID(), 0, 300)
	must(t, w.send(bytes.Join([][]byte{script, piece(0, false), piece(100, true), piece(200, true)}, nil)))
	if f := w.frame(); f.Kind != netproto.HPTCPEnd || f.Flags != netproto.HPTCPMismatch || f.Offset != 100 || f.Tag != tag {
		t.Errorf("%+v", f)
	}
	must(t, w.send(bytes.Join([][]byte{script, piece(0, false), piece(100, false), piece(200, false)}, nil)))
	if f := w.frame(); f.Kind != netproto.HPTCPEnd || f.Status != netproto.StatusSuccess || !remote.holds(2) {
		t.Errorf("a good WRITE on the same stream: %+v", f)
	}
	if n := source.config.Counts.Mismatches.Load(); n != 1 {
		t.Errorf("%d mismatches were counted", n)
	}
	r.finish()
}

// A request of more ranges than a requester puts into one is refused before any of them is listed: 8 KiB of runs could
// name a million, which cost 64 MiB and half a second of the lane.
//
// proves H-6, L-2
func TestSourceRefusesMoreRangesThanOneRequestHas(t *testing.T) {
	mappings(t)
	r := newRig(t, 1, simkernel.WorldOptions{})
	source := r.node(sourceHost, setup{epoch: sourceEpoch})
	region := source.register(64<<10, netproto.ReadWrite, 1)
	w := r.greet(source)
	for i, c := range []struct {
		kind netproto.HPTCPKind
		runs []uint64 // each with so many ranges
		want netproto.Status
	}{
		{netproto.HPTCPRead, []uint64{spansMax + 1}, netproto.StatusExhausted},
		{netproto.HPTCPRead, []uint64{2, spansMax - 1}, netproto.StatusExhausted},
		{netproto.HPTCPWrite, []uint64{spansMax, 1}, netproto.StatusExhausted},
		{netproto.HPTCPWrite, []uint64{spansMax}, netproto.StatusSuccess},
	} {
		tag := netproto.HPTCPTag{Slot: uint32(i), Generation: 1}
		q := netproto.HPTCPRequest{HPTCPFrame: netproto.HPTCPFrame{Kind: c.kind, Tag: tag}, Region: region.ID(), Unit: 1}
		var runs []byte
		end := uint64(0)
		for _, n := range c.runs {
			run := netproto.HPTCPRun{Start: end + 1, Length: 1, Count: n, Stride: 2}
			if n == 1 {
				run.Stride = 0
			}
			if q.Length == 0 {
				q.Offset, end = run.Start, run.Start
			}
			runs, end = netproto.AppendHPTCPRun(runs, run, 1, end)
			q.Length += n
		}
		q.RunsSize = uint32(len(runs))
		must(t, w.send(append(netproto.AppendHPTCPRequest(nil, q), runs...)))
		if c.kind == netproto.HPTCPWrite {
			must(t, w.send(chunk(tag, 0, make([]byte, q.Length))))
		}
		if f := w.frame(); f.Kind != netproto.HPTCPEnd || f.Tag != tag || f.Status != c.want {
			t.Errorf("runs of %v ranges: %+v, want %v", c.runs, f, c.want)
		}
	}
	r.finish()
}

// A requester that takes no answer has the source's time for it, whatever it asks for meanwhile: its READ does not keep the
// range from others for longer.
//
// proves T-9, H-7
func TestLaterFramesGiveAnAnswerNoMoreTime(t *testing.T) {
	mappings(t)
	for what, frame := range map[string]func(region uint64) []byte{
		"nothing":      func(uint64) []byte { return nil },
		"half a frame": func(uint64) []byte { return []byte{byte(netproto.HPTCPRead)} },
		"READ":         func(region uint64) []byte { return ask(netproto.HPTCPRead, tag, region, 0, 0) },
		"WRITE": func(region uint64) []byte {
			return append(ask(netproto.HPTCPWrite, tag, region, 0, 8), chunk(tag, 0, make([]byte, 8))...)
		},
		"refused": func(uint64) []byte {
			return append(ask(netproto.HPTCPWrite, tag, 99, 0, 8), chunk(tag, 0, make([]byte, 8))...)
		},
	} {
		r := newRig(t, 1, simkernel.WorldOptions{})
		source := r.node(sourceHost, setup{epoch: sourceEpoch})
		region := source.register(8<<20, netproto.RemoteRead, 1)
		other := source.register(64, netproto.ReadWrite, 1)
		w := r.greet(source)
		must(t, w.send(ask(netproto.HPTCPRead, netproto.HPTCPTag{Slot: 1, Generation: 1}, region.ID(), 0, 900<<10)))
		begun := r.world.Now()
		for region.Loans() == 0 {
			r.pass(time.Microsecond)
		}
		for region.Loans() > 0 && r.world.Now() < begun.After(time.Minute) {
			r.pass(4 * time.Second)
			_ = w.send(frame(other.ID()))
		}
		if held := time.Duration(r.world.Now() - begun); held > 10*time.Second {
			t.Errorf("%s: the READ that nobody takes was held for %v", what, held)
		}
		r.finish()
	}
}

// A source that closes while the payload of a WRITE is on its way which it has refused takes the rest, so that its answer
// arrives, and then ends the stream: the requester's patience with an idle stream is not waited for.
//
// proves G-6
func TestAStreamThatThrowsPayloadAwayEndsBehindItWhenTheSourceCloses(t *testing.T) {
	mappings(t)
	r := newRig(t, 19, simkernel.WorldOptions{})
	source := r.node(sourceHost, setup{epoch: sourceEpoch})
	remote := source.register(4096, netproto.ReadWrite, 1)
	w := r.greet(source)
	source.gate.Fence()
	payload := pattern(4096, 2)
	must(t, w.send(append(ask(netproto.HPTCPWrite, tag, remote.ID(), 0, 4096), chunk(tag, 0, payload[:2048])...)))
	if f := w.frame(); f.Kind != netproto.HPTCPEnd || f.Status != netproto.StatusSourceClosed {
		t.Fatalf("got %+v, want the refusal", f)
	}
	r.pass(soon) // the source hears that its answer has left
	closed := false
	source.service.Close(func() { closed = true })
	r.pass(soon)
	if closed {
		t.Fatal("the stream has ended before the payload that was on its way")
	}
	must(t, w.send(chunk(tag, 2048, payload[2048:])))
	last := r.world.Now()
	w.ends()
	r.until("the service's end", func() bool { return closed })
	if took := time.Duration(r.world.Now() - last); took > soon {
		t.Errorf("the stream has ended %v behind its last byte, want at once", took)
	}
	if !remote.holds(1) {
		t.Error("a refused request has changed a range")
	}
	w.close()
	r.finish()
}
