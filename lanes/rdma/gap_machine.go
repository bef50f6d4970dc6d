package rdma

import (
	"fmt"
	"slices"
	"time"

	"github.com/orbitte/orbitte/netproto"
)

const (
	// gapFirst and gapMax bound how long other pairs of NICs are preferred to one that could not be connected: the time
	// doubles with each failure. A request that tries it again waits for the kernel to find no neighbour, about a second.
	gapFirst, gapMax = 30 * time.Second, 5 * time.Minute
	// gapsMax bounds what is remembered; the gap whose time ends first makes room.
	gapsMax = 256
)

// Gap is a pair of NICs between which no connection could be built. It is about two addresses of one process: when
// either NIC has another address, or the peer is another process, it says nothing any more.
//
//	(none) ──build failed──▶ barred ──time──▶ to be tried again ──failed──▶ barred, twice as long
//	                            barred, to be tried again ──built, the local port changed──▶ (none)
type Gap struct {
	Peer                netproto.Epoch
	Local, Remote       uint8 // stable IDs
	LocalGID, RemoteGID [netproto.GIDSize]byte
	Since, Until        int64 // first failure, and until when others are preferred, in nanoseconds of the engine's clock
	Times               int   // failures
	Reason              string
}

func (g *Gap) between(o *Gap) bool { return g.joins(o.Peer, o.Local, o.Remote) }

func (g *Gap) joins(peer netproto.Epoch, local, remote uint8) bool {
	return g.Local == local && g.Remote == remote && g.Peer == peer
}

// barred is until when the pair is barred; 0: it is not.
func (s *Selector) barred(r *LocalNIC, p *netproto.Path) int64 {
	for i := range s.Gaps {
		g := &s.Gaps[i]
		if g.Until > s.Now && g.joins(s.Peer, r.NIC, p.NIC) && g.LocalGID == r.GID && g.RemoteGID == p.GID {
			return g.Until
		}
	}
	return 0
}

// widen returns the gaps with a new failure at an instant, and what is known of its pair now. The old list stays as it was.
func widen(old []Gap, failed Gap, now int64) ([]Gap, Gap) {
	failed.Since, failed.Times = now, 1
	gaps := make([]Gap, 0, len(old)+1)
	for _, g := range old {
		switch {
		case g.between(&failed):
			if g.LocalGID == failed.LocalGID && g.RemoteGID == failed.RemoteGID {
				failed.Since, failed.Times = g.Since, g.Times+1
			}
		case g.Until+int64(gapMax) > now: // older ones have been of no use to anybody
			gaps = append(gaps, g)
		}
	}
	failed.Until = now + int64(min(gapFirst<<min(failed.Times-1, 8), gapMax))
	if len(gaps) == gapsMax {
		first := 0
		for i := range gaps {
			if gaps[i].Until < gaps[first].Until {
				first = i
			}
		}
		gaps = slices.Delete(gaps, first, first+1)
	}
	return append(gaps, failed), failed
}

// UnreachedError says that no connection could be built between two NICs, before the source granted anything. Until its
// time is over other pairs of NICs are preferred.
type UnreachedError struct {
	Local, Remote string // devices, here and at the peer
	Times         int    // failures in a row
	For           time.Duration
	Err           error // nil: the peer refused, and its log says more
}

func (e *UnreachedError) Error() string {
	text := fmt.Sprintf("no connection could be built between %s here and %s of the peer, %d times in a row; other pairs of devices are preferred for %v", e.Local, e.Remote, e.Times, e.For)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the underlying error.
func (e *UnreachedError) Unwrap() error { return e.Err }
