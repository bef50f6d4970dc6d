package delegate

import (
	"slices"

	"github.com/orbitte/orbitte/lanes/rdma"
)

// grants is the payload of one transfer over RDMA: each part is a transfer of its own between the local range and a slot,
// which the source grants by windows like any other host memory (SPEC ). Parts run beside each other, made when
// they are first needed.
type grants struct {
	parts []*grantedPart
	ways  []rdma.Path // that the last run took, each once
}

// grantedPart is one of them.
type grantedPart struct {
	rdma.Transfer
	part   uint64
	flying bool
}

// start moves a part.
func (g *grants) start(t *Transfer, part uint64) {
	x := g.idle(t)
	offset, length := t.machine.span(part)
	x.part, x.flying = part, true
	x.Direction, x.Local, x.LocalOffset = t.Direction, t.Local, t.LocalOffset+offset
	x.Region, x.Offset, x.Length = t.region(part), 0, length
	x.Epoch, x.Remote, x.Deadline = t.Epoch, rdma.RemoteSlot, t.Deadline
	x.Start(t.Rails, t.Peer)
}

// idle is a part that is not under way.
func (g *grants) idle(t *Transfer) *grantedPart {
	for _, x := range g.parts {
		if !x.flying {
			return x
		}
	}
	x := &grantedPart{}
	x.Done = func(*rdma.Transfer) {
		x.flying = false
		g.note(x)
		t.partEnded(x.part, &x.Outcome) // last: all of this may have another owner when it returns
	}
	g.parts = append(g.parts, x)
	return x
}

// note remembers the pairs of devices that a part took.
func (g *grants) note(x *grantedPart) {
	before := len(g.ways)
	g.ways = x.Transfer.Ways(g.ways)
	kept := g.ways[:before]
	for _, w := range g.ways[before:] {
		if !slices.ContainsFunc(kept, func(k rdma.Path) bool { return k.Local == w.Local && k.Remote == w.Remote }) {
			kept = append(kept, w)
		}
	}
	g.ways = kept
}

// cancel ends all parts that are under way.
func (g *grants) cancel() {
	for _, x := range g.parts {
		if x.flying {
			x.Cancel()
		}
	}
}

// Ways appends the pairs of devices that the payload of the last run took over RDMA.
func (t *Transfer) Ways(dst []rdma.Path) []rdma.Path { return append(dst, t.grants.ways...) }
