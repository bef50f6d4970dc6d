package tcp

import (
	"bytes"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// sessionSeeds are whole, partial and hostile conversations with a source.
func sessionSeeds() [][]byte {
	read := requestBytes(netproto.OperationTCPRead, 1, 0, 64)
	write := append(requestBytes(netproto.OperationTCPWrite, 1, 8, 16), "0123456789abcdef"...)
	note := netproto.Notification{Name: "name", Message: "message"}
	notify := netproto.AppendNotifyBody(netproto.AppendRequest(nil, note.Request(netproto.OperationNotify, epoch)), note)
	spoiled := bytes.Clone(notify)
	spoiled[len(spoiled)-1] = 1
	return [][]byte{
		nil, read, write, notify, spoiled,
		requestBytes(netproto.OperationDescribe, 0, 0, 0),
		bytes.Join([][]byte{read, write, notify, read}, nil),
		read[:51], write[:60], notify[:len(notify)-1],
		requestBytes(netproto.OperationTCPWrite, 2, 1<<63, 1<<63),
		requestBytes(netproto.OperationTCPRead, 1, 0, netproto.PayloadBytesMax),
		requestBytes(netproto.OperationRDMAReadSliced, 1, 0, 1),
		bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 8),
	}
}

// FuzzSession feeds arbitrary bytes, cut into pieces of the given size, to a source session on the twin.
// It never panics; it answers with whole frames or closes; afterwards every gauge is at zero.
//
// proves W-15, T-11
func FuzzSession(f *testing.F) {
	for _, seed := range sessionSeeds() {
		f.Add(seed, byte(0), false)
		f.Add(seed, byte(7), true)
	}
	f.Fuzz(func(t *testing.T, script []byte, piece byte, direct bool) {
		r := newRig(t, uint64(len(script)), simkernel.WorldOptions{ChopReceive: int(piece)})
		source := r.node(sourceHost, setup{direct: direct, payload: 4096, sourceTimeout: time.Second, idle: 2 * time.Second})
		region := source.register(64, netproto.ReadWrite, 1)
		hidden := source.register(64, netproto.LocalOnly, 1)
		w := r.dial(source.address)
		_ = w.send(script)            // a refused stream is closed while we still send
		_, _ = w.receive(1 << 20)     // every answer; then the idle or the source timeout ends the stream
		r.pass(10 * time.Millisecond) // its last operations come back
		if s := source.server.Sessions(); s != 0 || region.Loans() != 0 || source.admission.Gate.Inside() != 0 {
			t.Errorf("%d sessions, %d loans, %d frames are left", s, region.Loans(), source.admission.Gate.Inside())
		}
		if !hidden.holds(1) {
			t.Error("a region that was never published has changed")
		}
		r.finish()
	})
}

// FuzzReplies feeds arbitrary reply bytes to a transfer of a requester. It never panics; the transfer
// ends exactly once; success needs the exact frames; a range changes only as the report says.
//
// proves W-15, T-1
func FuzzReplies(f *testing.F) {
	answer := append(replyBytes(netproto.StatusSuccess, payloadBytes), pattern(payloadBytes, 1)...)
	write := append(replyBytes(netproto.StatusReady, 0), replyBytes(netproto.StatusSuccess, 0)...)
	for _, seed := range [][]byte{
		nil, answer, write, answer[:50], write[:36], write[:70], replyBytes(netproto.StatusPermissionDenied, 0),
		replyBytes(netproto.StatusSuccess, 1<<60), append(replyBytes(netproto.StatusExhausted, 0), 1), append(bytes.Clone(answer), answer...),
	} {
		for mode := range byte(4) {
			f.Add(seed, mode, byte(0))
		}
		f.Add(seed, byte(0), byte(5))
	}
	f.Fuzz(func(t *testing.T, script []byte, mode, piece byte) {
		direction, direct := lanes.Read, mode&2 != 0
		if mode&1 != 0 {
			direction = lanes.Write
		}
		r := newRig(t, uint64(len(script)), simkernel.WorldOptions{ChopReceive: int(piece)})
		requester := r.node(requesterHost, setup{direct: direct})
		local := requester.register(payloadBytes, netproto.LocalOnly, 2)
		p := r.listen()
		a := requester.ask(direction, local, 1).start(requester.channel(p.address))
		w := p.accept()
		w.request()
		_ = w.send(script)
		o := r.wait(a)
		changed := !local.holds(2)
		switch {
		case o.Err == nil && direction == lanes.Read:
			if !bytes.HasPrefix(script, replyBytes(netproto.StatusSuccess, payloadBytes)) || !bytes.Equal(local.bytes(), script[netproto.ReplySize:][:payloadBytes]) {
				t.Errorf("success for %x", script)
			}
		case o.Err == nil:
			if !bytes.HasPrefix(script, write) || o.Remote != lanes.EffectComplete {
				t.Errorf("success for %x: %+v", script, o)
			}
		case changed && o.Local != lanes.EffectPartial, direction == lanes.Write && changed:
			t.Errorf("the local range changed, reported is %+v", o)
		case direction == lanes.Write && bytes.HasPrefix(script, replyBytes(netproto.StatusReady, 0)) != (o.Remote == lanes.EffectUnknown):
			t.Errorf("%+v after %x", o, script)
		}
		r.pass(soon)
		r.finish()
	})
}
