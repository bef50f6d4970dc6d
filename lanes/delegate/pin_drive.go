package delegate

import (
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/lanes/staging"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

type pinState uint8

const (
	pinIdle     pinState = iota // for reuse
	pinPinned                   // its peer may use it
	pinDraining                 // Unpin came; its copies go on to their end
	pinEnding                   // taken back; what is under way is ended
)

// pin is the slots of one requester for one device range.
type pin struct {
	service *Service
	state   pinState
	name    netproto.PinName
	tenant  control.Tenant
	write   bool
	region  uint64
	offset  uint64 // of the range, in the region
	length  uint64
	slots   [netproto.PinSlotsMax]slot
	n       int
	failure netproto.Status  // of the first copy that failed
	asker   *control.Session // whose Unpin waits; nil: none does, or it is lost
	timer   reactor.Timer
	settled bool // true exactly from the return of the slots on
}

func (p *pin) begin(session *control.Session, r netproto.Request, asked netproto.Pin) {
	s := p.service
	p.state, p.settled, p.failure, p.asker = pinPinned, false, netproto.StatusSuccess, nil
	p.name = netproto.PinName{Requester: asked.Requester, Generation: asked.Generation, Number: s.number()}
	p.write, p.region, p.offset, p.length = asked.Direction == netproto.PinWrite, r.Region, r.Offset, r.Length
	for i := range p.slots[:p.n] {
		x := &p.slots[i]
		x.machine = slotMachine{write: p.write, size: s.slotBytes()}
		x.waiter, x.holder = nil, nil
	}
	s.pins = append(s.pins, p)
	s.counts.pins.Add(1)
	s.counts.pinned.Add(1)
	session.Lodge(&p.tenant, p)
	p.renew()
}

// renew starts the source's deadline anew: a pin of which nothing is heard for so long is taken back.
func (p *pin) renew() {
	lane := p.service.lane
	lane.Arm(&p.timer, lane.Now().After(lane.Policy.SourceTimeout), p)
}

// Expire takes the pin back, unless a frame has one of its slots, which has a deadline of its own (reactor.TimerHandler).
func (p *pin) Expire(*reactor.Timer, reactor.Instant) {
	for i := range p.slots[:p.n] {
		if p.slots[i].machine.inside {
			p.renew()
			return
		}
	}
	p.service.counts.expired.Add(1)
	p.end()
}

// Evicted: the stream is gone, and with it the pin (control.Landlord).
func (p *pin) Evicted() {
	p.asker = nil
	if p.state != pinEnding {
		p.service.counts.orphaned.Add(1)
	}
	p.end()
	for i := range p.slots[:p.n] {
		p.slots[i].revoke()
	}
}

// check says whether all copies may begin, and borrows the device range for each.
func (p *pin) check(copies []netproto.DelegateCopy) netproto.Status {
	status := netproto.StatusSuccess
	for i, c := range copies {
		switch {
		case int(c.Slot) >= p.n:
			status = netproto.StatusProtocolError
		case !segments.Within(c.Offset, c.Length, p.length):
			status = netproto.StatusInvalidRange
		default:
			status = p.slots[c.Slot].machine.order(c.Length)
		}
		if status == netproto.StatusSuccess {
			status = p.borrow(c)
		}
		if status != netproto.StatusSuccess {
			for _, before := range copies[:i] {
				p.slots[before.Slot].giveBack()
			}
			break
		}
	}
	return status
}

// borrow checks the device range once more: the region may have gone since.
func (p *pin) borrow(c netproto.DelegateCopy) netproto.Status {
	registration, err := p.service.lane.Tracker.Admit(p.region, p.offset+c.Offset, c.Length, wanted(p.write))
	if err != nil {
		return netproto.StatusOf(err)
	}
	if status := p.service.able(registration); status != netproto.StatusSuccess {
		registration.Return()
		return status
	}
	p.slots[c.Slot].registration = registration
	return netproto.StatusSuccess
}

// drain waits for the copies of a pin that is given back.
func (p *pin) drain(session *control.Session) {
	p.state, p.asker = pinDraining, session
	p.renew()
	p.settle()
}

// end takes the pin back. Copies under way are ended: those that have not begun do not, the others are waited for.
func (p *pin) end() {
	if p.state == pinEnding || p.state == pinIdle {
		return
	}
	p.state = pinEnding
	p.service.lane.Disarm(&p.timer)
	for i := range p.slots[:p.n] {
		p.slots[i].stop()
	}
	p.settle()
}

// settle gives the slots back once neither a copy nor a frame touches them.
func (p *pin) settle() {
	if p.settled || p.state != pinDraining && p.state != pinEnding {
		return
	}
	for i := range p.slots[:p.n] {
		if !p.slots[i].machine.quiet() {
			return
		}
	}
	s, asker, failure := p.service, p.asker, p.failure
	p.settled, p.asker = true, nil
	s.lane.Disarm(&p.timer) // of a pin that was given back
	p.tenant.Leave()
	s.counts.pins.Add(-1)
	for i, other := range s.pins {
		if other == p {
			s.pins = append(s.pins[:i], s.pins[i+1:]...)
			break
		}
	}
	p.giveBack()
	s.server.Leave()
	switch {
	case asker == nil:
	case failure != netproto.StatusSuccess:
		asker.Refuse(failure)
	default:
		asker.Answer(asker.Room())
	}
}

// giveBack returns the slots; those whose copy is not proven to have ended stay, and stay charged. Proof for the others:
// each copy's flow has ended with the device's word, and each frame has left.
func (p *pin) giveBack() {
	s, n := p.service, p.n
	for i := range p.slots[:n] {
		x := &p.slots[i]
		if x.machine.state == slotLost {
			s.counts.lost.Add(1)
			x.lent.Lose()
		} else {
			x.lent.Return()
			x.charge.Repay()
			s.counts.slots.Add(-1)
		}
		x.lent = staging.Slot{}
	}
	p.n, p.state = 0, pinIdle
	s.idle = append(s.idle, p)
}

// unpinning is the handler of an Unpin that waits for copies.
type unpinning pin

// Sent does not happen: the answer has a handler of its own (control.Handler).
func (u *unpinning) Sent(int) {}

// Received does not happen (control.Handler).
func (u *unpinning) Received(int) {}

// Lost: the pin is evicted next (control.Handler).
func (u *unpinning) Lost(control.Loss) { u.asker = nil }
