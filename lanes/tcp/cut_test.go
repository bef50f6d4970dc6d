package tcp

import (
	"fmt"
	"testing"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// payloadBytes is small, so that every offset of every frame is tried.
const payloadBytes = 40

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
	way       simkernel.Direction
	at        int
	cut       int
	direct    bool
}

func (c cutCase) String() string {
	return fmt.Sprintf("%v direct=%v %s after byte %d of way %d", c.direction, c.direct, cuts[c.cut].name, c.at, c.way)
}

// run carries the case out and gives what is left of both ranges.
func (c cutCase) run(t *testing.T) {
	r := newRig(t, uint64(c.at)*4+uint64(c.cut), simkernel.WorldOptions{ChopSend: 1, ChopReceive: 1})
	defer r.finish()
	source := r.node(sourceHost, setup{direct: c.direct})
	requester := r.node(requesterHost, setup{direct: c.direct})
	remote := source.register(payloadBytes, netproto.ReadWrite, 1)
	local := requester.register(payloadBytes, netproto.LocalOnly, 2)

	var connection *simkernel.Connection
	r.world.OnConnect(func(k *simkernel.Connection) { connection = k })
	a := requester.ask(c.direction, local, remote.ID()).start(requester.channel(source.address))
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
	c.judge(t, a.Outcome, local, remote, sent)
}

// judge holds the outcome against what really happened to both ranges.
func (c cutCase) judge(t *testing.T, o lanes.Outcome, local, remote *memory, sent uint64) {
	t.Helper()
	if !o.Drained {
		t.Errorf("%v: not drained", c)
	}
	if c.direction == lanes.Read {
		c.judgeRead(t, o, local)
		return
	}
	changed := !remote.holds(1)
	complete := remote.holds(2)
	payloadLeft := sent > netproto.RequestSize
	switch {
	case o.Err == nil:
		if o.Remote != lanes.EffectComplete || !complete || o.Bytes != payloadBytes {
			t.Errorf("%v: success with %+v, remote complete %v", c, o, complete)
		}
	case o.Remote == lanes.EffectNone && (changed || payloadLeft):
		t.Errorf("%v: none claimed, remote changed %v, %d bytes sent", c, changed, sent)
	case o.Remote == lanes.EffectUnknown && !payloadLeft:
		t.Errorf("%v: unknown claimed, but only %d bytes were sent", c, sent)
	case o.Remote != lanes.EffectNone && o.Remote != lanes.EffectUnknown:
		t.Errorf("%v: %+v", c, o)
	}
	if !c.direct && changed && !complete {
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
	case changed && c.direct:
		want = lanes.EffectPartial
	case changed:
		t.Errorf("%v: a failed READ changed the local range", c)
	}
	if o.Local != want || o.Remote != lanes.EffectNone {
		t.Errorf("%v: %+v, want local effect %v", c, o, want)
	}
}

// everyCut runs every cut at every offset of every frame in both directions.
func everyCut(t *testing.T, direct bool) {
	mappings(t)
	frames := map[lanes.Direction][2]int{
		lanes.Read:  {netproto.RequestSize, netproto.ReplySize + payloadBytes},
		lanes.Write: {netproto.RequestSize + payloadBytes, 2 * netproto.ReplySize},
	}
	for _, direction := range []lanes.Direction{lanes.Read, lanes.Write} {
		for way, length := range frames[direction] {
			for at := 0; at <= length; at++ {
				for cut := range cuts {
					c := cutCase{direction, simkernel.Direction(way), at, cut, direct}
					c.run(t)
				}
			}
		}
	}
}

// With owned buffers a connection that is cut anywhere leaves the local range of a READ, and the
// remote range of an uncommitted WRITE, as they were; Unknown is reported exactly when payload bytes
// had left.
//
// proves T-1, T-10
func TestCutAnywhereLeavesRangesWhole(t *testing.T) { everyCut(t, false) }

// With direct placement Partial is reported exactly when bytes of the local range have changed.
//
// proves T-2, T-10
func TestCutAnywhereReportsPartialExactly(t *testing.T) { everyCut(t, true) }
