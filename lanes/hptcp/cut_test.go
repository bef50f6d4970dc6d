package hptcp

import (
	"fmt"
	"testing"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// payloadBytes and pieceBytes are small, so that every offset of every frame is tried: two requests of one chunk.
const (
	payloadBytes = 40
	pieceBytes   = 25
)

var cuts = []struct {
	name string
	do   func(c *simkernel.Connection, d simkernel.Direction)
}{
	{"reset", func(c *simkernel.Connection, _ simkernel.Direction) { c.Reset() }},
	{"half close", func(c *simkernel.Connection, d simkernel.Direction) { c.HalfClose(d) }},
	{"silence", func(c *simkernel.Connection, d simkernel.Direction) { c.Stall(d, true) }},
}

// cutCase is one connection that is cut once exactly so many bytes were written in a direction.
type cutCase struct {
	direction lanes.Direction
	atomic    bool
	way       simkernel.Direction
	at        int
	cut       int
}

func (c cutCase) String() string {
	return fmt.Sprintf("%v atomic=%v %s after byte %d of way %d", c.direction, c.atomic, cuts[c.cut].name, c.at, c.way)
}

func (c cutCase) run(t *testing.T) {
	r := newRig(t, uint64(c.at)*4+uint64(c.cut), simkernel.WorldOptions{ChopSend: 1, ChopReceive: 1})
	defer r.finish()
	source, requester, peer := r.pair(setup{config: Config{ChunkBytes: pieceBytes}}, setup{config: Config{ChunkBytes: pieceBytes}})
	remote, local := source.register(payloadBytes, netproto.ReadWrite, 1), requester.register(payloadBytes, netproto.LocalOnly, 2)
	var connection *simkernel.Connection
	r.world.OnConnect(func(k *simkernel.Connection) { connection = k })
	a := requester.ask(c.direction, local, remote.ID())
	a.Atomic = c.atomic
	a.start(peer)
	cut := false
	r.until(c.String(), func() bool {
		if !cut && connection != nil && connection.Bytes(c.way) >= uint64(c.at) {
			cut = true
			cuts[c.cut].do(connection, c.way)
		}
		return a.done > 0
	})
	sent := connection.Bytes(simkernel.ToServer)
	r.pass(source.policy.SourceTimeout)
	if !a.Outcome.Drained || !local.backing.Quiet() || !remote.backing.Quiet() {
		t.Errorf("%v: drained %v, leases", c, a.Outcome.Drained)
	}
	if c.direction == lanes.Read {
		c.judgeRead(t, a.Outcome, local)
	} else {
		c.judgeWrite(t, a.Outcome, local, remote, sent)
	}
}

func (c cutCase) judgeWrite(t *testing.T, o lanes.Outcome, local, remote *memory, sent uint64) {
	t.Helper()
	changed, complete := !remote.holds(1), remote.holds(2)
	left := sent > netproto.HPTCPHelloSize+netproto.HPTCPRequestSize+netproto.HPTCPFrameSize // the first payload byte
	switch {
	case o.Err == nil:
		if o.Remote != lanes.EffectComplete || !complete || o.Bytes != payloadBytes {
			t.Errorf("%v: success with %+v, remote complete %v", c, o, complete)
		}
	case o.Remote == lanes.EffectNone && (changed || left):
		t.Errorf("%v: none claimed, remote changed %v, %d bytes sent", c, changed, sent)
	case o.Remote == lanes.EffectUnknown && !left:
		t.Errorf("%v: unknown claimed, but only %d bytes were sent", c, sent)
	case o.Remote == lanes.EffectPartial && (!changed || complete || c.atomic):
		t.Errorf("%v: partial claimed, changed %v, complete %v", c, changed, complete)
	}
	if c.atomic && changed && !complete {
		t.Errorf("%v: the remote range is a mixture", c)
	}
	if !local.holds(2) || o.Local != lanes.EffectNone {
		t.Errorf("%v: the local range of a WRITE changed", c)
	}
}

func (c cutCase) judgeRead(t *testing.T, o lanes.Outcome, local *memory) {
	t.Helper()
	changed := !local.holds(2)
	want := lanes.EffectNone
	switch {
	case o.Err == nil:
		want = lanes.EffectComplete
		if !local.holds(1) || o.Bytes != payloadBytes {
			t.Errorf("%v: success without the bytes", c)
		}
	case changed && !c.atomic:
		want = lanes.EffectPartial
	case changed:
		t.Errorf("%v: a failed READ changed the local range", c)
	}
	if o.Local != want || o.Remote != lanes.EffectNone {
		t.Errorf("%v: %+v, want local effect %v", c, o, want)
	}
}

// A connection that is cut anywhere leaves leases, charges and reports in order: Partial exactly when bytes of the
// local range have changed, Unknown exactly when payload had left, and with Atomic both ranges whole.
//
// proves H-5, T-1, T-5, T-10
func TestCutAnywhereTellsTheTruth(t *testing.T) {
	mappings(t)
	const head, frame = netproto.HPTCPHelloSize, netproto.HPTCPFrameSize
	for _, direction := range []lanes.Direction{lanes.Read, lanes.Write} {
		for _, atomic := range []bool{false, true} {
			frames := [2]int{head + 2*netproto.HPTCPRequestSize, head + 2*frame + payloadBytes}
			if direction == lanes.Write {
				frames = [2]int{head + 2*(netproto.HPTCPRequestSize+frame) + payloadBytes, head + 2*frame}
			}
			for way, length := range frames {
				for at := 0; at <= length; at++ {
					if at < head && at%8 != 0 { // the hellos are sampled
						continue
					}
					for cut := range cuts {
						cutCase{direction, atomic, simkernel.Direction(way), at, cut}.run(t)
					}
				}
			}
		}
	}
}
