package rdma

import (
	"errors"
	"fmt"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/verbs"
)

var (
	errRevoked = errors.New("grants were revoked: their requester gave them up, or the source's deadline for them passed")
	errNoProof = errors.New("the device is not proven done with the granted range")
)

// fail begins the end of a parent that is not complete. The first reason stays.
func (p *parent) fail(status netproto.Status) {
	m := &p.machine
	m.fail(status)
	if m.stage == parentRevoking || m.stage == parentIdle {
		return
	}
	m.stage = parentRevoking
	lane := p.source.rails.lane
	p.by = lane.Now().After(CleanupWindow)
	lane.Disarm(&p.retry)
	for i := range p.children {
		p.children[i].hunger.leave()
	}
	p.again = true
}

// revoke takes authority back as far as it goes now. A key that the requester may know is taken back only with its pair in
// the error state (verbs.MemoryWindow.Free); until the parent is forced its receipt is waited for.
func (p *parent) revoke() {
	if p.away {
		return
	}
	if p.direct() {
		if p.tearDown(); !p.straight.down {
			return
		}
	}
	for i := range p.children {
		x := &p.children[i]
		switch phase := p.machine.phases[i]; {
		case phase == childPlanned:
			if x.window != nil {
				x.link.c.rail.stock.putWindow(x.window)
				x.window = nil
			}
			p.settled(i, childGone)
		case phase == childBound, phase == childBinding && !x.flying:
			p.free(i)
		case phase == childBinding && p.forced && !x.link.dead, phase == childPublished && p.forced && !x.link.dead:
			x.link.c.Fail(errRevoked, p.by)
		}
	}
	quiet, known := p.machine.quiet()
	if !quiet || p.asker.buffer.Held() || p.unflow(known) {
		return
	}
	if _, known = p.machine.quiet(); !known {
		p.retain()
	}
	p.end()
}

func (p *parent) settled(i int, phase childPhase) {
	p.machine.phases[i] = phase
	p.unexpect(i)
}

// free ends a window that gives, or may give, authority.
func (p *parent) free(i int) {
	x := &p.children[i]
	p.source.rails.transport.grants.revoked.Add(1)
	if x.window.Free() != nil {
		p.settled(i, childKept)
		return
	}
	x.window = nil
	p.settled(i, childGone)
}

// Lost (User).
func (l *link) Lost(*Connection, error) {
	p := l.parent
	l.dead = true
	for i := range p.children {
		if x := &p.children[i]; x.link == l {
			x.hunger.leave()
			if !p.machine.phases[i].settled() {
				p.fail(netproto.StatusNativeError)
			}
		}
	}
	p.advance()
}

// Quiet frees the windows that were bound over the connection, then gives it back (User).
func (l *link) Quiet(*Connection, bool) {
	p := l.parent
	l.mute = true
	for i := range p.children {
		if x := &p.children[i]; x.link == l && x.window != nil {
			switch p.machine.phases[i] {
			case childBinding, childBound, childPublished:
				p.free(i)
			}
		}
	}
	l.hold.Release()
	p.advance()
}

// granted is what an unproven parent keeps.
type grantRemains struct {
	lease        segments.Lease
	count, bytes budgets.Charge
	registration *segments.Registration
	registered   *Registered
	staging      *staging
	windows      []*verbs.MemoryWindow
}

// giveBack follows a late proof that no copy is under way (flows.Flow.KeepUntil), of a parent all of whose keys have ended.
// What goes through chunks has neither a registration with devices nor staging of its own.
func (r *grantRemains) giveBack() {
	if r.lease.Held() {
		r.lease.Return()
	}
	if r.registration != nil {
		r.registration.Return()
	}
	if r.count.Held() {
		r.count.Repay() // proof: no key is left, and the copies have ended
	}
}

// retain keeps what the device may still reach (SPEC G-9), or a copy whose end a GPU's driver may still prove.
func (p *parent) retain() {
	r, late := p.late, p.late != nil
	if p.late = nil; !late {
		r = &grantRemains{}
	}
	r.lease, r.registration, r.registered, r.staging = p.lease, p.registration, p.registered, p.staging
	p.lease, p.registration, p.registered, p.staging = segments.Lease{}, nil, nil, nil
	p.loseSlot()
	r.count = p.count.Move()
	if p.bytes.Held() {
		r.bytes = p.bytes.Move()
	}
	for i := range p.children {
		if w := p.children[i].window; w != nil {
			r.windows = append(r.windows, w)
			p.children[i].window = nil
		}
	}
	p.machine.status = netproto.StatusNativeError
	if late {
		return // the flow's residue lists it
	}
	p.source.rails.transport.keep(&Residue{
		Object: fmt.Sprintf("grants over %d bytes of region %d", p.length, p.region), Bytes: p.length, Reason: errNoProof, owner: r,
	})
}

// giveBack returns what a parent holds. Proof: no child gives authority: its receipt named the ended key, its window was
// freed, or nothing was bound.
func (p *parent) giveBack() {
	for ; p.reserved > 0; p.reserved-- { // those that were refused before anything was bound
		x := &p.children[p.reserved-1]
		x.link.c.count(x.pair, -1, 0)
	}
	for _, l := range p.links[:p.used] {
		if l.hold.Connection != nil {
			l.hold.Release()
		}
		l.c = nil
	}
	if p.lease.Held() {
		p.lease.Return()
	}
	if p.staging != nil {
		p.staging.end(p.source.rails)
		p.staging = nil
	}
	if p.registered != nil {
		p.registered.Return()
		p.registered = nil
	}
	if p.registration != nil {
		p.registration.Return()
		p.registration = nil
	}
	for _, c := range [...]*budgets.Charge{&p.bytes, &p.count} {
		if c.Held() {
			c.Repay()
		}
	}
	p.leaveSlot()
}

// end finishes a parent, and answers whoever waits for that.
func (p *parent) end() {
	s := p.source
	lane := s.rails.lane
	lane.Disarm(&p.timer)
	lane.Disarm(&p.retry)
	ok := p.machine.stage == parentCommit
	kept := !ok && p.count.Amount() == 0
	if !ok && !p.machine.given {
		s.ended.add(endedParent{p.request.Requester, p.request.Generation, p.machine.status, kept})
	}
	p.giveBack()
	p.machine.stage = parentIdle
	s.rails.pending--
	for i, other := range s.parents {
		if other == p {
			s.parents = append(s.parents[:i], s.parents[i+1:]...)
			break
		}
	}
	switch counts := &lane.Counts; {
	case ok && p.write:
		counts.WritesServed.Add(1)
		counts.BytesStored.Add(p.length)
	case ok:
		counts.ReadsServed.Add(1)
		counts.BytesServed.Add(p.length)
	}
	if p.asker.asks {
		p.asker.slip.Answer(p.machine.status, nil)
	}
	if f := p.ending; f != nil {
		p.ending = nil
		switch {
		case f.abandon && kept:
			f.answer(netproto.StatusNativeError)
		case f.abandon:
			f.answer(netproto.StatusSuccess)
		default:
			f.answer(p.machine.status)
		}
	}
	p.leave()
	s.rails.settle()
}

// find returns the parent with a name; nil: there is none on this lane.
func (s *GrantService) find(requester netproto.Epoch, generation uint64) *parent {
	for _, p := range s.parents {
		if p.request.Generation == generation && p.request.Requester == requester {
			return p
		}
	}
	return nil
}

// parentService serves DONE (65) and ABANDON (66) on one lane.
type parentService struct {
	source  *GrantService
	abandon bool
}

// frame is the handler of one of them (control.Handler). Its letter visits the lanes until one knows the parent.
type frame struct {
	home    *GrantService
	abandon bool
	slip    control.Slip
	gone    bool // true exactly when the stream is gone
	what    netproto.Parent
	at      int // index of the lane that is visited; -1: home
	letter  reactor.Letter
	status  netproto.Status
	known   bool // true exactly when the answer is on its way home
	replied bool // true exactly while the answer is on its way to the requester
}

// Serve (control.Service).
func (x parentService) Serve(session *control.Session, _ netproto.Request) {
	s := x.source
	what, err := netproto.DecodeParent(session.Body())
	if err != nil {
		session.Violate(err)
		return
	}
	var f *frame
	if n := len(s.frames); n > 0 {
		f, s.frames = s.frames[n-1], s.frames[:n-1]
	} else {
		f = &frame{}
	}
	f.home, f.abandon, f.gone, f.what, f.at, f.known = s, x.abandon, false, what, -1, false
	session.Detach(&f.slip, f)
	if !f.visit(s) {
		f.hop()
	}
}

// hop goes to the next lane. A parent that no lane knows has no grants: giving it up succeeds, being done with it does not.
func (f *frame) hop() {
	all := f.home.rails.transport.rails
	for f.at++; f.at < len(all); f.at++ {
		if r := all[f.at]; r != f.home.rails && r.upper.source != nil && r.lane.Post(&f.letter, f) == nil {
			return
		}
	}
	f.at--
	status := netproto.StatusProtocolError
	if f.abandon {
		status = netproto.StatusSuccess
	}
	f.answer(status)
}

// Receive looks on the lane that is visited, or answers at home (reactor.Recipient).
func (f *frame) Receive(*reactor.Letter, reactor.Instant) {
	if f.known {
		f.reply()
		return
	}
	if !f.visit(f.home.rails.transport.rails[f.at].upper.source) {
		f.hop()
	}
}

func (f *frame) visit(s *GrantService) bool {
	p := s.find(f.what.Requester, f.what.Generation)
	if p == nil {
		ended := s.ended.find(f.what.Requester, f.what.Generation)
		if ended != nil {
			f.answer(ended.answer(f.abandon))
		}
		return ended != nil
	}
	if int(f.what.Slices) != len(p.children) {
		f.answer(netproto.StatusProtocolError)
		return true
	}
	p.told(f)
	return true
}

// told takes the requester's word that it is done, or gives up.
func (p *parent) told(f *frame) {
	m := &p.machine
	if other := p.ending; other != nil {
		if !f.abandon || other.abandon { // said twice
			f.answer(netproto.StatusProtocolError)
			return
		}
		p.ending = nil
		other.answer(netproto.StatusProtocolError)
	}
	p.ending = f
	if !f.abandon {
		m.done = true
		if m.stage == parentRevoking {
			p.forced = true
		}
		p.advance()
		return
	}
	m.given = true
	if m.stage != parentCommit {
		lane := p.source.rails.lane
		lane.Arm(&p.timer, min(p.deadline, lane.Now().After(abandonGrace)), p)
		p.fail(netproto.StatusProtocolError)
	}
	p.advance()
}

// answer takes the answer home.
func (f *frame) answer(status netproto.Status) {
	f.status = status
	if f.at < 0 {
		f.reply()
		return
	}
	f.known = true
	_ = f.home.rails.lane.Post(&f.letter, f) // a lane that is closed has no sessions left
}

func (f *frame) reply() {
	if f.gone {
		f.rest()
		return
	}
	f.replied = true
	f.slip.Answer(f.status, nil)
}

// rest lets the frame be used again.
func (f *frame) rest() {
	f.replied = false
	f.home.frames = append(f.home.frames, f)
}

// Sent ends the frame.
func (f *frame) Sent(int) { f.rest() }

// Received does not happen.
func (f *frame) Received(int) {}

// Lost: nobody waits for the answer any more. While the answer itself was on its way, the frame ends here.
func (f *frame) Lost(control.Loss) {
	if f.replied {
		f.rest()
		return
	}
	f.gone = true
}

// well is the receives of one connection at the source. They belong to the pair, not to a grant: whichever grant ends
// next takes the next one, and only the message says which it was (SPEC R-14).
type well struct {
	c   *Connection
	out []int32 // slots that are with the device
}

// listen posts the receives that are reserved on a pair.
func (c *Connection) listen(pair int) error {
	if c.well == nil {
		w := &well{c: c}
		c.well = w
		c.onEnd(w.end)
	}
	n := c.line(pair)
	k := c.stock()
	for n.listening < n.reserved {
		slot := k.take()
		address, key := k.place(slot)
		list := &c.rails.upper.receive
		list[0] = verbs.ReceiveWork{ID: c.TagReceive(c.well, uint64(pair)<<32|uint64(slot)), Address: address, Length: messageSlotBytes, LocalKey: key}
		c.well.out = append(c.well.out, slot)
		c.count(pair, 0, 1)
		if err := c.PostReceive(pair, list[:]); err != nil {
			if posted(err) == 0 {
				c.count(pair, 0, -1)
				c.well.remove(slot)
				k.put(slot)
			}
			return err
		}
	}
	return nil
}

func (w *well) remove(slot int32) {
	for i, other := range w.out {
		if other == slot {
			w.out[i] = w.out[len(w.out)-1]
			w.out = w.out[:len(w.out)-1]
			return
		}
	}
}

// end gives back the slots whose completions were lost. Proof: the pairs are destroyed; otherwise the device keeps them.
func (w *well) end(err error) {
	if err != nil {
		return
	}
	for _, slot := range w.out {
		w.c.stock().put(slot)
	}
	w.out = nil
}

// ReceiptError says that a message on a connection ends no grant of it.
type ReceiptError struct {
	Connection string
	What       string
	Err        error
}

func (e *ReceiptError) Error() string {
	text := fmt.Sprintf("%s: a message ends no grant: %s", e.Connection, e.What)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text + "; the connection is drained and its grants are revoked"
}

// Unwrap gives the reason.
func (e *ReceiptError) Unwrap() error { return e.Err }

// Reaped takes one message (Owner; SPEC R-13).
func (w *well) Reaped(word uint64, m *verbs.Reaped) {
	c, pair, slot := w.c, int(word>>32), int32(uint32(word))
	w.remove(slot)
	c.count(pair, 0, -1)
	k := c.stock()
	defer k.put(slot) // proof: its completion
	if m.Status != verbs.WorkSuccess {
		return
	}
	if m.Length != netproto.BindingSize {
		w.violated("its length", fmt.Errorf("%d bytes, want %d", m.Length, netproto.BindingSize))
		return
	}
	b, err := netproto.DecodeBinding(k.bytes(slot))
	if err != nil {
		w.violated("its bytes", err)
		return
	}
	p := c.rails.upper.source.find(b.Requester, b.Parent)
	i := -1
	if p != nil {
		i = p.named(b.Grant)
	}
	switch {
	case i < 0:
		w.violated("no such grant", nil)
	case p.children[i].link.c != c || p.children[i].pair != pair || !p.children[i].terms.agrees(&b):
		w.violated("it does not agree with the grant that it names", nil)
	case !p.children[i].ended(m):
		w.violated(fmt.Sprintf("the device ended key %#x, want %#x", uint32(m.Invalidated), p.children[i].terms.key), nil)
	default:
		p.receive(i)
	}
}

// named finds the grant that is out under a generation; -1: none is.
func (p *parent) named(generation uint64) int {
	for i := range p.children {
		if p.machine.phases[i] == childPublished && p.children[i].terms.grant == generation {
			return i
		}
	}
	return -1
}

func (w *well) violated(what string, err error) {
	c := w.c
	c.rails.transport.grants.violations.Add(1)
	why := &ReceiptError{Connection: c.String(), What: what, Err: err}
	lane := c.rails.lane
	lane.Journal.Add(lane.Now(), lanes.Note{Kind: lanes.NoteProtocol, Where: c.String(), Err: why})
	c.Fail(why, 0)
}
