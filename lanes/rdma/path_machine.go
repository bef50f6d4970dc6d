package rdma

import (
	"fmt"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
)

// LocalNIC is one local NIC, as far as choosing a path needs it. The position in a list has no meaning; the NIC's
// stable ID has.
type LocalNIC struct {
	NIC    uint8 // below netproto.PathsMax
	Active bool  // its context takes new queue pairs
	Link   netproto.LinkLayer
	GID    [netproto.GIDSize]byte
	Name   string // of the device
}

// Path is a chosen pair of NICs.
type Path struct {
	Local, Remote uint8 // stable IDs
	Tier          uint8 // of the local NIC towards the memory; 0 is nearest
	SameName      bool
	Barred        int64 // until when other pairs are preferred, since no connection could be built; 0: not barred
}

func (p Path) String() string {
	return fmt.Sprintf("NIC %d to NIC %d, tier %d", p.Local, p.Remote, p.Tier)
}

// NoPath says why no path can be taken, by how many NICs each reason excludes. Nothing was posted.
type NoPath struct {
	Rails, Masked, Paused, Unmatched int // local NICs; unmatched: active, and no compatible remote path
	Remote, RemotePaused             int // remote paths
}

func (e *NoPath) Error() string {
	return fmt.Sprintf("no RDMA path: of %d local NICs the mask excludes %d, %d are paused, %d match none of the peer's %d paths (%d of them paused); "+
		"nothing was posted and no other transport is taken instead; see `orbitte devices` on both hosts",
		e.Rails, e.Masked, e.Paused, e.Unmatched, e.Remote, e.RemotePaused)
}

// Status is what a source answers.
func (e *NoPath) Status() netproto.Status { return netproto.StatusBackendUnavailable }

// Fault is the same as the end of a transfer.
func (e *NoPath) Fault() *lanes.Fault {
	return &lanes.Fault{Cause: lanes.Unreachable, Stage: "path", Err: e}
}

// Loads are the bytes in flight that are charged to each local NIC, by stable ID.
type Loads [netproto.PathsMax]uint64

// Tiers are the ways from each local NIC to one piece of memory, by stable ID; 0 is nearest.
type Tiers [netproto.PathsMax]uint8

// Selector chooses a path for each slice (SPEC R-3). It belongs to one lane.
type Selector struct {
	Mask uint64 // a bit for each NIC that may be used; 0: all (SPEC R-1)
	Gaps []Gap  // pairs of NICs that could not be connected; those to Peer count
	Peer netproto.Epoch
	Now  int64 // in nanoseconds, on the clock of the gaps
	next int   // stable ID with which the next search among equals begins
}

// Choose takes, of the local NICs that the mask allows, that are active and have a compatible remote path: those of the
// best tier, of them the one with the fewest charged bytes, and of equal ones the next in turn. The remote NIC is the
// one of the same name, if its path is compatible, otherwise the one of the same stable ID, otherwise the first
// compatible one. A pair that could not be connected a short while ago is taken only when there is no other, and then
// the one that is to be tried again first. It allocates only when it refuses, with *NoPath.
func (s *Selector) Choose(rails []LocalNIC, remote []netproto.Path, tiers *Tiers, loads *Loads) (Path, error) {
	best, found := Path{}, false
	for i := range rails {
		r := &rails[i]
		if !s.allows(r.NIC) || !r.Active {
			continue
		}
		to, barred := s.match(r, remote)
		if to == nil {
			continue
		}
		p := Path{Local: r.NIC, Remote: to.NIC, Tier: tiers[r.NIC], SameName: to.Name == r.Name, Barred: barred}
		if !found || s.better(p, best, loads) {
			best, found = p, true
		}
	}
	if !found {
		return Path{}, s.explain(rails, remote)
	}
	s.next = (int(best.Local) + 1) % netproto.PathsMax
	return best, nil
}

func (s *Selector) allows(nic uint8) bool { return s.Mask == 0 || s.Mask&(1<<nic) != 0 }

func (s *Selector) better(a, b Path, loads *Loads) bool {
	if a.Barred != b.Barred {
		return a.Barred < b.Barred
	}
	if a.Tier != b.Tier {
		return a.Tier < b.Tier
	}
	if x, y := loads[a.Local], loads[b.Local]; x != y {
		return x < y
	}
	return s.turns(a.Local) < s.turns(b.Local)
}

// turns is how many steps of the rotation a NIC has to wait.
func (s *Selector) turns(nic uint8) int {
	return (int(nic) - s.next + netproto.PathsMax) % netproto.PathsMax
}

// match finds the remote path for a local NIC: the same name first, then in stable NIC order (SPEC R-3). That order is read
// as one of pairs: the NICs of both sides are paired by rising stable ID, each with the same one, and only one that has no
// such partner takes the lowest. Read as "the lowest remote NIC for every local one" it would have hosts that name their
// devices differently, such as the two ends of test/vm, all meet at one NIC, which wires that do not reach each other cannot.
//
// A pair that is barred comes after all that are not, and of barred ones the one whose time ends first; nil: none is compatible.
func (s *Selector) match(r *LocalNIC, remote []netproto.Path) (first *netproto.Path, until int64) {
	for i := range remote {
		p := &remote[i]
		if !compatible(r, p) {
			continue
		}
		if barred := s.barred(r, p); first == nil || barred < until || barred == until && closer(r, p, first) {
			first, until = p, barred
		}
	}
	return first, until
}

// closer is the order of remote paths for one local NIC.
func closer(r *LocalNIC, a, b *netproto.Path) bool {
	if x, y := a.Name == r.Name, b.Name == r.Name; x || y {
		return x && !y
	}
	return b.NIC != r.NIC && (a.NIC == r.NIC || a.NIC < b.NIC)
}

// compatible says whether a connection between two NICs can be tried: both active, on one kind of link, and on Ethernet
// with addresses of one family, since a device refuses mixed ones. It is no proof that packets arrive.
func compatible(r *LocalNIC, p *netproto.Path) bool {
	if p.State != netproto.PathActive || p.Link != r.Link {
		return false
	}
	return r.Link == netproto.LinkInfiniBand || mapped(r.GID) == mapped(p.GID)
}

// mapped says whether a GID is an IPv4-mapped address.
func mapped(g [netproto.GIDSize]byte) bool {
	return [12]byte(g[:12]) == [12]byte{10: 0xff, 11: 0xff}
}

func (s *Selector) explain(rails []LocalNIC, remote []netproto.Path) *NoPath {
	e := &NoPath{Rails: len(rails), Remote: len(remote)}
	for i := range rails {
		switch {
		case !s.allows(rails[i].NIC):
			e.Masked++
		case !rails[i].Active:
			e.Paused++
		default:
			e.Unmatched++
		}
	}
	for i := range remote {
		if remote[i].State != netproto.PathActive {
			e.RemotePaused++
		}
	}
	return e
}
