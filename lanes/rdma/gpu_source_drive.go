package rdma

import (
	"errors"
	"time"

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
//	granted ──receipts, and no DONE for wordPatience──▶ torn ──▶ down, range given back ──DONE──▶ ended
type directGrant struct {
	errand  errand
	err     error
	torn    bool            // true exactly from the moment on when the connections are being ended
	out     bool            // true exactly when a requester may know a key
	down    bool            // true exactly when that is over, and the writes are visible
	closing int             // connections whose end is not told
	patient reactor.Instant // until when the requester's word is waited for once all receipts are here; 0: they are not
}

func (d *directGrant) reset() {
	d.err, d.torn, d.out, d.down, d.closing, d.patient = nil, false, false, false, 0, 0
}

// wordPatience is how long grants whose receipts are all here wait for the requester's DONE before they end without it: longer
// than a device tries again for an acknowledgement that was lost (pairTimeout, pairRetries), for which the pair must be there.
const wordPatience = time.Second

// linger ends grants whose receipts are all here and whose requester's word does not come, and gives their range back: what has
// the requester's stream may wait for just that range. DONE is still waited for, and answered.
func (p *parent) linger() {
	d, lane := &p.straight, p.source.rails.lane
	if p.machine.stage != parentGranted || !p.direct() || !p.machine.all(childReceived) {
		return
	}
	switch now := lane.Now(); {
	case d.down && !p.machine.unproven && p.lease.Held():
		p.lease.Return() // proof: every pair, region and domain is gone, and what was written is visible
	case d.torn:
	case d.patient == 0:
		d.patient = now.After(wordPatience)
		lane.Arm(&p.retry, d.patient, (*parentRetry)(p))
	case now >= d.patient:
		p.tearDown()
	}
}

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
		case p.machine.stage != parentRevoking:
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
