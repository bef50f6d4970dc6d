package rdma

import (
	"fmt"
	"testing"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// stagedEnds makes two engines with the given policies.
func stagedEnds(t testing.TB, p simverbs.Personality, mode Progress, from, to netproto.HostMemoryPolicy) *ends {
	return newEnds(t, p, endsOptions{
		siteOptions{config: Config{Progress: mode, Host: from}}, siteOptions{config: Config{Progress: mode, Host: to}},
	})
}

// stagedCases are the policies of requester and source of which at least one stages.
var stagedCases = [][2]netproto.HostMemoryPolicy{
	{netproto.HostStaged, netproto.HostDirect}, {netproto.HostDirect, netproto.HostStaged}, {netproto.HostStaged, netproto.HostStaged},
}

// proves
func TestStagedTransfersArriveWholeOverConnectionsOfTheirOwn(t *testing.T) {
	everyKind(t, func(t *testing.T, p simverbs.Personality, mode Progress) {
		for _, hosts := range stagedCases {
			t.Run(fmt.Sprintf("%d,%d", hosts[0], hosts[1]), func(t *testing.T) {
				e := stagedEnds(t, p, mode, hosts[0], hosts[1])
				built := uint64(0)
				for _, n := range []uint64{1, 64<<10 + 1, 5<<20 + 7} {
					remote := e.to.memory(n+3, netproto.ReadWrite, 1)
					local := e.from.memory(n, netproto.LocalOnly, 2)
					for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
						if d == lanes.Write {
							copy(local.bytes(), pattern(n, 3))
						}
						complete(t, e.run(e.transfer(d, local, remote, 3)), d, n)
						s := e.from.transport.Stats()
						if s.Built == built || s.Gone != s.Built {
							t.Fatalf("%v of %d bytes: %d connections were built before, %d now, %d are gone", d, n, built, s.Built, s.Gone)
						}
						built = s.Built
						if there := e.to.transport.Stats(); there.Gone != there.Accepted {
							t.Fatalf("the source accepted %d connections, %d are gone", there.Accepted, there.Gone)
						}
						if used := e.from.transport.config.Budgets.Endpoints.Used() + e.to.transport.config.Budgets.Endpoints.Used(); used != 0 {
							t.Fatalf("%d queue pairs are left", used)
						}
						if d == lanes.Read && string(local.bytes()) != string(pattern(n+3, 1)[3:]) {
							t.Fatalf("READ of %d bytes: other bytes arrived", n)
						}
						if d == lanes.Write && string(remote.bytes()) != string(pattern(n+3, 1)[:3])+string(pattern(n, 3)) {
							t.Fatalf("WRITE of %d bytes: other bytes arrived", n)
						}
					}
				}
				e.until("staging given back", func() bool {
					return e.from.transport.config.Budgets.StagingBytes.Used()+e.to.transport.config.Budgets.StagingBytes.Used() == 0
				})
				e.end()
			})
		}
	})
}
