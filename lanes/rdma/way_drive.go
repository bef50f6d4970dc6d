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
		if to, _ := s.match(&local, remote); to != nil {
			return nil
		}
	}
	_, err := t.Ways(netproto.Epoch{}, remote, 0)
	return err
}

// Ways are the pairs of NICs that slices to a peer with these paths may take at an instant (nanoseconds of the engine's
// clock): those that could be connected, or of which that is not known, of them those of the best tier towards memory
// whose node is not known, by rising NIC ID. Any goroutine.
func (t *Transport) Ways(peer netproto.Epoch, remote []netproto.Path, now int64) (ways []Path, err error) {
	s := Selector{Mask: t.config.Mask, Gaps: t.Gaps(), Peer: peer, Now: now}
	tiers := t.HostTiers(-1)
	var locals []LocalNIC
	for _, d := range t.devices {
		local := d.local()
		locals = append(locals, local)
		if !s.allows(local.NIC) || !local.Active {
			continue
		}
		to, barred := s.match(&local, remote)
		if to == nil {
			continue
		}
		way := Path{Local: local.NIC, Remote: to.NIC, Tier: tiers[local.NIC], SameName: to.Name == local.Name, Barred: barred}
		if len(ways) > 0 && (way.Barred < ways[0].Barred || way.Barred == ways[0].Barred && way.Tier < ways[0].Tier) {
			ways = ways[:0]
		}
		if len(ways) == 0 || way.Barred == ways[0].Barred && way.Tier == ways[0].Tier {
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
	if t.walked {
		return append(dst, t.walk.ways...)
	}
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
