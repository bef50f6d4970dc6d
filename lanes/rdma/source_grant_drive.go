package rdma

import (
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	flows "github.com/orbitte/orbitte/lanes/staging"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/verbs"
)

// bind gives every child its window over exactly its range (SPEC R-11).
func (p *parent) bind() {
	p.machine.stage = parentBinding
	for i := range p.children {
		x := &p.children[i]
		x.link.c.queue(x.pair, &x.hunger, p, i)
	}
	for _, l := range p.links[:p.used] {
		for pair := range l.c.Width() {
			if l.c.Open() {
				l.c.pump(pair)
			}
		}
	}
}

// base is the address of the request's first byte, and the region that windows are bound in.
func (p *parent) base(d *Device) (address uint64, region *verbs.MemoryRegion) {
	switch {
	case p.chunked():
		rails := p.source.rails
		return p.part.Address(), rails.chunkRegion(rails.Rail(d.NIC), flows.Source, p.part.Chunk())
	case p.staging != nil:
		return p.staging.backing.Address(), p.staging.region(d)
	}
	_, region = p.registered.On(d.NIC)
	return p.registration.Address() + p.offset, region
}

// work makes the BIND of one child (eater).
func (p *parent) work(c *Connection, i int) (verbs.Work, bool) {
	x, slice := &p.children[i], &p.request.Slices[i]
	if p.machine.stage != parentBinding || p.machine.phases[i] != childPlanned {
		return verbs.Work{}, false
	}
	address, region := p.base(c.Device)
	if address += slice.Offset - p.offset; region == nil || !region.Covers(address, slice.Length) {
		p.fail(netproto.StatusBackendUnavailable)
		return verbs.Work{}, false
	}
	access := verbs.AccessRemoteRead
	if p.write {
		access = verbs.AccessRemoteWrite
	}
	tag := c.TagSend(p, uint64(i))
	w, err := x.window.PrepareBind(tag, c.Pair(x.pair), region, address, slice.Length, access)
	if err != nil { // the memory is being unregistered, or the window has no key left
		c.Untag(tag)
		p.fail(netproto.StatusUnknownRegion)
		return verbs.Work{}, false
	}
	x.flying, p.machine.phases[i] = true, childBinding
	x.terms.address = address
	return w, true
}

// spilled (eater).
func (p *parent) spilled(c *Connection, i int, w *verbs.Work, err error) {
	c.rails.note(c, err)
	if w.Window.Phase() == verbs.WindowPrepared {
		w.Window.Cancel()
	}
	p.children[i].flying, p.machine.phases[i] = false, childPlanned
	p.fail(netproto.StatusNativeError)
}

// more (eater).
func (p *parent) more(int) bool { return false }

// Reaped takes the end of a BIND (Owner).
func (p *parent) Reaped(word uint64, w *verbs.Reaped) {
	x := &p.children[word]
	x.flying = false
	if w.Status == verbs.WorkSuccess {
		p.machine.phases[word] = childBound
	} else {
		c := x.link.c
		c.rails.note(c, &WorkError{Connection: c.String(), Status: w.Status, Vendor: w.Vendor})
		p.fail(netproto.StatusNativeError)
	}
	if x.link.c.Open() {
		x.link.c.pump(x.pair)
	}
	p.advance()
}

// publish tells the requester its grants, now that each has its window and its receive.
func (p *parent) publish() {
	r := p.source.rails
	buffer, err := r.lane.Arena.Get(netproto.GrantsSizeMax)
	if err != nil {
		p.fail(netproto.StatusExhausted)
		return
	}
	payload := buffer.Bytes(netproto.GrantsSizeMax)[:0]
	p.straight.out = true
	for i := range p.children {
		x, slice := &p.children[i], &p.request.Slices[i]
		c := x.link.c
		x.terms = grantTerms{
			requester: p.request.Requester, source: r.transport.config.Epoch, requesterEnd: c.Other, sourceEnd: c.Own, direction: operation(c.Direction),
			parent: p.request.Generation, grant: r.transport.generation(&r.transport.grants.generations), region: p.region, offset: slice.Offset, length: slice.Length,
			profile: p.profile(), address: x.terms.address, key: x.publish(), slice: uint16(i), slices: uint16(len(p.children)),
			requesterNIC: c.OtherNIC, sourceNIC: c.Device.NIC, pair: uint8(x.pair),
			sourceNumber: uint32(c.Pair(x.pair).Number()), requesterPair: c.OtherPairs[x.pair].Number,
		}
		grant := [1]netproto.Grant{{
			Generation: x.terms.grant, Address: x.terms.address, Length: slice.Length, Key: x.terms.key, Slot: uint32(i), Connection: slice.Connection, Pair: slice.Pair,
		}}
		payload = netproto.AppendGrants(payload, grant[:])
		p.machine.phases[i] = childPublished
		x.told = true
		c.rail.Expect(1)
	}
	r.transport.grants.granted.Add(uint64(len(p.children)))
	p.machine.stage = parentAnswering
	p.asker.buffer = buffer
	p.asker.slip.Answer(netproto.StatusSuccess, payload)
}

// publish is the key of a grant, from here on known to others.
func (x *child) publish() uint32 {
	if x.window == nil {
		return uint32(x.link.c.private.grant.RemoteKey())
	}
	return uint32(x.window.Publish())
}

// ended is true exactly when a message that agrees with the grant has ended its key; that of a region ends with the
// connection.
func (x *child) ended(m *verbs.Reaped) bool { return x.window == nil || x.window.EndByPeer(m) }

// receive takes the receipt of one child: its window is idle again.
func (p *parent) receive(i int) {
	x := &p.children[i]
	if x.window != nil {
		x.link.c.rail.stock.putWindow(x.window)
		x.window = nil
	}
	p.machine.receive(i)
	if p.staging == nil && p.gpu.memory == nil && p.lease.Held() && p.machine.all(childReceived) { // who waits for it may keep DONE from coming
		p.lease.Return() // proof: the device has reported the end of every key
	}
	carried := &x.link.c.Device.traffic.served
	if p.write {
		carried = &x.link.c.Device.traffic.stored
	}
	carried.add(x.terms.length)
	p.unexpect(i)
	p.source.rails.transport.grants.received.Add(1)
	p.advance()
}

// unexpect ends what a child keeps of its pair.
func (p *parent) unexpect(i int) {
	x := &p.children[i]
	if x.told {
		x.told = false
		x.link.c.rail.Expect(-1)
	}
	x.link.c.count(x.pair, -1, 0)
	p.reserved--
}

// Expire is the source's deadline, or the end of a grace (reactor.TimerHandler). A commit under way goes on: it is bounded,
// and would otherwise leave the range half changed (SPEC T-1).
func (p *parent) Expire(*reactor.Timer, reactor.Instant) {
	if p.machine.stage == parentCommit && (p.lease.Held() && p.staging != nil || p.direct() || p.gpu.flow.Active()) {
		return
	}
	p.forced = true
	if !p.machine.given {
		p.source.rails.lane.Counts.SourceTimeouts.Add(1)
	}
	status := statusDeadline
	if p.machine.stage == parentFilling { // it waited for a range that others hold, or for its turn to copy
		status = netproto.StatusExhausted
	}
	p.fail(status)
	p.advance()
}

// statusDeadline is what a requester hears when the source's own deadline ended its grants: the source's reason, and
// neither the requester's fault nor the device's. Nothing else answers DONE so.
const statusDeadline = netproto.StatusInternalError

// asker is the handler of the frame that asked for the grants (control.Handler).
type asker struct {
	parent *parent
	slip   control.Slip
	asks   bool // true exactly until it is answered, or the stream is gone
	buffer lanes.Buffer
}

// Sent ends the frame.
func (a *asker) Sent(int) {
	a.asks = false
	if !a.buffer.Held() { // a refusal, after the parent's end
		a.parent.recycle()
		return
	}
	a.parent.source.rails.lane.Arena.Put(&a.buffer)
	if m := &a.parent.machine; m.stage == parentAnswering {
		m.stage = parentGranted
	}
	a.parent.advance()
}

// Received does not happen: the body came before.
func (a *asker) Received(int) {}

// Lost: the requester may never learn what was granted to it.
func (a *asker) Lost(control.Loss) {
	a.asks = false
	if !a.parent.live { // its end was to be told
		a.parent.recycle()
		return
	}
	if a.buffer.Held() {
		a.parent.source.rails.lane.Arena.Put(&a.buffer)
	}
	a.parent.forced = true
	a.parent.fail(netproto.StatusNativeError)
	a.parent.advance()
}
