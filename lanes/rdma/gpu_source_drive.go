package rdma

import (
	"errors"

	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/verbs"
)

// directGrant is what a parent has whose range is on a GPU that devices reach themselves. Each slice has a connection of its
// own, whose end is the end of the grant's authority, however that comes: the pair is destroyed, then the region, then
// the domain, and what was written is made visible to the GPU. Only then is the range anybody else's (SPEC C-7).
//
//	stocking ──regions (cold loop)──▶ granted ──receipts and DONE, or a failure──▶ torn ──every connection gone──▶
//	  (flushing) ──▶ down: visible, or not proven
type directGrant struct {
	errand  errand
	err     error
	torn    bool // true exactly from the moment on when the connections are being ended
	out     bool // true exactly when a requester may know a key
	down    bool // true exactly when that is over, and the writes are visible
	closing int  // connections whose end is not told
}

func (d *directGrant) reset() { d.err, d.torn, d.out, d.down, d.closing = nil, false, false, false, 0 }

// profile is how the grants of a parent end: by windows, or by regions of their own.
func (p *parent) profile() netproto.GrantProfile {
	if p.direct() {
		return netproto.ProfileRegion
	}
	return netproto.ProfileWindow
}

// direct is true exactly when devices reach the parent's range on a GPU themselves.
func (p *parent) direct() bool {
	return p.gpu.memory != nil && p.source.rails.transport.config.Device == DeviceDirect
}

// alone is true exactly when each slice of a parent of direct grants has a connection of its own, which is for nothing else.
func (p *parent) alone() bool {
	if p.used != len(p.children) {
		return false
	}
	for i := range p.children {
		for j := range i {
			if p.children[i].link == p.children[j].link {
				return false
			}
		}
	}
	return true
}

// grantRegions registers the exact range of each slice in its connection's domain, with no more than the permission that was
// asked for, then posts the receives.
func (p *parent) grantRegions() {
	if p.away {
		return
	}
	p.away = true
	r := p.source.rails
	access := verbs.AccessRemoteRead
	if p.write {
		access = verbs.AccessRemoteWrite | verbs.AccessLocalWrite // the one needs the other (ibv_reg_mr(3))
	}
	p.straight.errand.send(r.transport.config.Cold, r.lane.Loop, func() {
		for i := range p.children {
			c, slice := p.children[i].link.c, &p.request.Slices[i]
			c.private.memory = p.gpu.memory
			if c.private.grant, p.straight.err = p.registered.reach(c.private.domain, p.registration.Address()+slice.Offset, slice.Length, access); p.straight.err != nil {
				return
			}
		}
	}, func(reactor.Instant) {
		p.away = false
		if p.straight.err != nil {
			p.fail(netproto.StatusNativeError)
		}
		if p.machine.stage == parentStocking {
			p.regionsReady()
		}
		p.advance()
	})
}

func (p *parent) regionsReady() {
	for i := range p.children {
		x := &p.children[i]
		if err := x.link.c.listen(x.pair); err != nil {
			p.fail(netproto.StatusNativeError)
			return
		}
		x.terms.address = p.registration.Address() + p.request.Slices[i].Offset
	}
	if p.machine.stage != parentStocking { // a receive that failed ended a connection
		return
	}
	for i := range p.machine.phases {
		p.machine.phases[i] = childBound
	}
	p.machine.stage, p.again = parentBinding, true
}

// tearDown ends every connection of a parent of direct grants, and with it the grant's region and domain.
func (p *parent) tearDown() {
	d := &p.straight
	if d.torn {
		return
	}
	d.torn, d.closing = true, p.used+1
	for _, l := range p.links[:p.used] {
		l.c.onEnd(p.linkEnded)
		switch {
		case l.dead: // Quiet gives its hold back, or has
		case p.machine.stage == parentCommit:
			p.source.rails.store.Retire(l.c.array)
			l.hold.Release()
		default:
			l.c.Fail(errRevoked, p.by)
		}
	}
	p.linkEnded(nil)
}

// linkEnded is told the end of one connection: its pair, region and domain are gone, or not.
func (p *parent) linkEnded(err error) {
	d := &p.straight
	if err != nil {
		p.machine.unproven, d.err = true, errors.Join(d.err, err)
	}
	if d.closing--; d.closing > 0 {
		return
	}
	if !p.write || p.machine.unproven || !d.out || !flushes(p.gpu.memory) {
		p.isDown()
		return
	}
	p.source.rails.flush(p.gpu.memory, p.by, func(err error) {
		d.err = err
		p.machine.unproven = d.err != nil
		p.isDown()
	})
}

// isDown ends what is left of the grants.
func (p *parent) isDown() {
	p.straight.down = true
	phase := childGone
	if p.machine.unproven {
		phase = childKept
	}
	for i := range p.children {
		if p.machine.phases[i] != childReceived {
			p.settled(i, phase)
			p.source.rails.transport.grants.revoked.Add(1)
		}
	}
	p.advance()
}

// commitDirect ends a parent whose receipts are all here, once its grants are down.
func (p *parent) commitDirect() {
	p.tearDown()
	switch {
	case !p.straight.down:
	case p.machine.unproven:
		p.fail(netproto.StatusNativeError) // revoke retains it
	default:
		p.end() // proof: every pair, region and domain is gone, and what was written is visible
	}
}
