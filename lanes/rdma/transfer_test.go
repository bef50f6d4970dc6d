package rdma

import (
	"fmt"
	"testing"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

func complete(t *testing.T, o lanes.Outcome, d lanes.Direction, n uint64) {
	t.Helper()
	want := lanes.Outcome{Bytes: n, Local: lanes.EffectComplete, Drained: true}
	if d == lanes.Write {
		want.Local, want.Remote = lanes.EffectNone, lanes.EffectComplete
	}
	if o != want {
		t.Fatalf("outcome %+v, want %+v", o, want)
	}
}

// proves
func TestReadsAndWritesOfAllSizesArriveWholeAndLeaveNothing(t *testing.T) {
	sizes := []uint64{1, 141, 64<<10 - 1, 64 << 10, 64<<10 + 1, 129 << 10, 5 << 20}
	everyKind(t, func(t *testing.T, p simverbs.Personality, mode Progress) {
		for _, rails := range []int{1, 2} {
			t.Run(fmt.Sprint(rails), func(t *testing.T) {
				o := siteOptions{config: Config{Progress: mode}}
				if rails == 1 {
					o.devices = single(p)
				}
				e := newEnds(t, p, endsOptions{o, o})
				for _, n := range sizes {
					remote := e.to.memory(n+3, netproto.ReadWrite, 1)
					local := e.from.memory(n, netproto.LocalOnly, 2)
					complete(t, e.run(e.transfer(lanes.Read, local, remote, 3)), lanes.Read, n)
					if string(local.bytes()) != string(pattern(n+3, 1)[3:]) {
						t.Fatalf("READ of %d bytes: other bytes arrived", n)
					}
					copy(local.bytes(), pattern(n, 3))
					complete(t, e.run(e.transfer(lanes.Write, local, remote, 3)), lanes.Write, n)
					if string(remote.bytes()) != string(pattern(n+3, 1)[:3])+string(pattern(n, 3)) {
						t.Fatalf("WRITE of %d bytes: other bytes arrived", n)
					}
				}
				e.end()
			})
		}
	})
}
