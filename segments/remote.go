package segments

import (
	"slices"

	"github.com/orbitte/orbitte/netproto"
)

// Remote is a peer's segment as this engine sees it: what its descriptor said, in one life (epoch) of the
// peer. It carries no authority, since the source checks every request again (SPEC G-1, G-2). It is
// immutable and may be used from any goroutine.
type Remote struct {
	endpoint   string
	epoch      netproto.Epoch
	descriptor netproto.Descriptor
	order      index
	byAddress  []int32 // positions in the descriptor, in the index's order; nil when its own order is that
}

// NewRemote indexes a decoded descriptor, which it then owns. Regions come in rising ID order, as the decoder
// demands. The error is a *RangeError for a region whose range overflows.
func NewRemote(endpoint string, epoch netproto.Epoch, d netproto.Descriptor) (*Remote, error) {
	remote := &Remote{endpoint: endpoint, epoch: epoch, descriptor: d, order: newIndex(len(d.Regions))}
	inOrder := func(a, b netproto.Region) int { return before(extentOf(&a), extentOf(&b)) }
	if !slices.IsSortedFunc(d.Regions, inOrder) {
		remote.byAddress = make([]int32, len(d.Regions))
		for i := range remote.byAddress {
			remote.byAddress[i] = int32(i)
		}
		slices.SortStableFunc(remote.byAddress, func(a, b int32) int { return inOrder(d.Regions[a], d.Regions[b]) })
	}
	for i := range d.Regions {
		extent := extentOf(remote.at(i))
		if !extent.Valid() {
			return nil, overflow(extent)
		}
		remote.order.add(extent)
	}
	return remote, nil
}

// Endpoint is where the peer was found.
func (r *Remote) Endpoint() string { return r.endpoint }

// Epoch names the life of the peer that the descriptor belongs to.
func (r *Remote) Epoch() netproto.Epoch { return r.epoch }

// Descriptor is what the peer published. It is shared: read only.
func (r *Remote) Descriptor() *netproto.Descriptor { return &r.descriptor }

// Cover resolves a remote address range to the first region that covers it whole, in the order of SPEC M-7, and
// the offset in it. The region is shared: read only. Errors: *RangeError when the range overflows, *Uncovered. No
// allocation unless it fails.
func (r *Remote) Cover(address, length uint64) (*netproto.Region, uint64, error) {
	asked := Range{address, length}
	if !asked.Valid() {
		return nil, 0, overflow(asked)
	}
	i, ok := r.order.cover(asked)
	if !ok {
		return nil, 0, &Uncovered{Owner: r.endpoint, Asked: asked}
	}
	region := r.at(i)
	return region, address - region.Base, nil
}

// at is the region at a position of the index.
func (r *Remote) at(i int) *netproto.Region {
	if r.byAddress != nil {
		i = int(r.byAddress[i])
	}
	return &r.descriptor.Regions[i]
}

// Find returns the region with this ID.
func (r *Remote) Find(id uint64) (netproto.Region, bool) {
	regions := r.descriptor.Regions
	i, ok := slices.BinarySearchFunc(regions, id, func(region netproto.Region, want uint64) int {
		switch {
		case region.ID < want:
			return -1
		case region.ID > want:
			return 1
		}
		return 0
	})
	if !ok {
		return netproto.Region{}, false
	}
	return regions[i], true
}

func extentOf(r *netproto.Region) Range { return Range{r.Base, r.Length} }
