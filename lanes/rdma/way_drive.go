package rdma

import "github.com/orbitte/orbitte/netproto"

// Reach says whether some device may carry a transfer to a peer with these paths now: nil, or *NoPath. Any goroutine; it
// allocates only when it refuses. A lane may refuse all the same, when its queues are broken.
func (t *Transport) Reach(remote []netproto.Path) error {
	s := Selector{Mask: t.config.Mask}
	for _, d := range t.devices {
		local := d.local()
		if !s.allows(local.NIC) || !local.Active {
			continue
		}
		if _, ok := match(&local, remote); ok {
			return nil
		}
	}
	_, err := t.Ways(remote)
	return err
}

// Ways are the pairs of NICs that slices to a peer with these paths may take now: those of the best tier towards memory
// whose node is not known, by rising NIC ID. Any goroutine.
func (t *Transport) Ways(remote []netproto.Path) (ways []Path, err error) {
	s := Selector{Mask: t.config.Mask}
	tiers := t.HostTiers(-1)
	var locals []LocalNIC
	for _, d := range t.devices {
		local := d.local()
		locals = append(locals, local)
		if !s.allows(local.NIC) || !local.Active {
			continue
		}
		to, ok := match(&local, remote)
		if !ok {
			continue
		}
		way := Path{Local: local.NIC, Remote: to.NIC, Tier: tiers[local.NIC], SameName: to.Name == local.Name}
		if len(ways) > 0 && way.Tier < ways[0].Tier {
			ways = ways[:0]
		}
		if len(ways) == 0 || way.Tier == ways[0].Tier {
			ways = append(ways, way)
		}
	}
	if len(ways) == 0 {
		return nil, s.explain(locals, remote)
	}
	return ways, nil
}

// Ways appends the pairs of NICs that the last run took, or was to take, each once; none when it came to no path.
func (t *Transfer) Ways(dst []Path) []Path {
	for _, l := range t.legs[:t.used] {
		dst = append(dst, l.path)
	}
	return dst
}

// Part ends the connections to a peer, before its channel is closed, and calls done on the lane when they have ended at
// both sides, or are retained. The peer's transfers have ended. A connection that is still being built stays idle until
// its places are needed.
func (r *Rails) Part(p *Peer, done func()) {
	left := 1
	one := func(error) {
		if left--; left == 0 {
			done()
		}
	}
	for _, rail := range r.rails {
		for i := len(rail.connections) - 1; i >= 0; i-- {
			if i >= len(rail.connections) {
				continue
			}
			if c := rail.connections[i]; c.Role == Requester && c.peer == p {
				left++
				c.Close(one)
			}
		}
	}
	one(nil)
}
