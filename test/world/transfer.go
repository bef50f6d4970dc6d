package world

import (
	"context"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/test/faults"
)

// requestTimeoutDefault is the engine's own, when the script sets none.
const requestTimeoutDefault = 30 * time.Second

// prepared is a Transfer or Submit action whose objects were found.
type prepared struct {
	life     *life
	requests []orbitte.Request
	ops      []*op
	bytes    uint64
}

// prepare finds the objects of an action's requests; nil when one is missing.
func (r *run) prepare(l *life, a faults.Action) *prepared {
	p := &prepared{life: l}
	for i, q := range a.Requests {
		s, local, remote := r.segments[q.Segment], r.memory(q.Memory), r.memories[q.Target]
		if s == nil || s.gone || s.life != l || local == nil || local.life != l || remote == nil {
			return nil
		}
		if q.Offset > len(local.data) || q.At > len(remote.shadow) {
			return nil
		}
		request := orbitte.Request{
			Segment: s.handle, Local: local.object.Address() + uint64(q.Offset), Remote: remote.object.Address() + uint64(q.At), Length: uint64(q.Length),
		}
		o := &op{index: i, segment: s, write: q.Write, local: local, remote: remote, length: q.Length}
		if q.Write {
			request.Operation = orbitte.Write
			o.from, o.fromAt, o.to, o.toAt = local, q.Offset, remote, q.At
			o.direct = remote.life.direct || remote.gpu
		} else {
			request.Operation = orbitte.Read
			o.from, o.fromAt, o.to, o.toAt = remote, q.At, local, q.Offset
			o.direct = l.direct || local.gpu
		}
		if q.Transport == 1 {
			request.Transport = orbitte.TransportRDMA
			o.rdma, o.direct = q.Length > 0 && s.peer != l, o.to.life.exposes() || o.to.gpu
		}
		if q.Slots > 0 {
			request.RemoteSlots = q.Slots
			o.slotted, o.direct = q.Length > 0 && s.peer != l, true
		}
		if q.Transport == 2 {
			o.overHPTCP(q, &request)
		}
		if s.peer == l {
			o.direct = o.copies() // otherwise a copy in the process, in one turn
		}
		if !o.within() { // the neighbour in the address space may be anybody's
			request.Local, request.Remote = request.Local|nowhere, request.Remote|nowhere
		}
		p.requests, p.ops, p.bytes = append(p.requests, request), append(p.ops, o), p.bytes+request.Length
	}
	return p
}

// nowhere is a bit that no address of a program has.
const nowhere = 1 << 62

// within is true exactly when the op's ranges lie inside their memory objects. Others are refused by every check.
func (o *op) within() bool {
	return o.fromAt+o.length <= len(o.from.shadow) && o.toAt+o.length <= len(o.to.shadow)
}

// stamp gives each WRITE a payload of its own, where no request in flight uses the range.
func (r *run) stamp(p *prepared) {
	for _, o := range p.ops {
		if o.write && o.within() && !o.local.busy(o.fromAt, o.length, true) {
			r.operations++
			o.local.write(o.fromAt, o.length, r.operations<<8|2)
		}
	}
}

// admitted makes a submission of what the engine has accepted, or is about to run.
func (r *run) admitted(p *prepared, a faults.Action) *submission {
	s := &submission{life: p.life, name: a.Int(faults.Batch), bytes: p.bytes, started: r.net.Now(), deadline: r.deadline(p.life, a)}
	if d := a.Duration(faults.Within); d > 0 {
		s.within = r.net.Now().After(d)
	}
	s.ops = p.ops
	s.cut()
	s.ops = nil
	for _, o := range p.ops {
		r.operations++
		o.number, o.submission = r.operations, s
		if o.within() {
			s.ops = append(s.ops, o)
			o.start()
			o.claim()
			if !o.apart() { // its payload never goes over the control stream
				r.asked[o.key()]++
			}
		} else {
			o.over = true // the engine refuses the whole submission
			s.ops = append(s.ops, o)
		}
	}
	p.life.open = append(p.life.open, s)
	return s
}

func (r *run) deadline(l *life, a faults.Action) reactor.Instant {
	d := a.Duration(faults.Deadline)
	if d == 0 {
		d = l.slot.config.Duration(faults.RequestTimeout)
	}
	if d == 0 {
		d = requestTimeoutDefault
	}
	return r.net.Now().After(d)
}

// addNote makes the action's notification, to every life that its requests go to.
func (r *run) addNote(l *life, a faults.Action, s *submission) *note {
	name := a.Int(faults.Note)
	if name == 0 {
		return nil
	}
	n := &note{name: name, from: l, text: noteText(name, a.Int(faults.Size)), submission: s, received: map[*life]int{}}
	r.order++
	n.started = r.order
	r.notes[name] = n
	r.sent = append(r.sent, n)
	return n
}

// sendTo adds a destination, once.
func (n *note) sendTo(l *life) {
	for _, other := range n.to {
		if other == l {
			return
		}
	}
	n.to = append(n.to, l)
	l.inbound = append(l.inbound, n)
}

// attach makes the notification of a submission.
func (r *run) attach(l *life, a faults.Action, s *submission) {
	if s.note = r.addNote(l, a, s); s.note == nil {
		return
	}
	s.bytes += uint64(len(s.note.text.Name) + len(s.note.text.Message))
	for _, q := range a.Requests {
		s.note.sendTo(r.segments[q.Segment].peer)
	}
}

// refused undoes a submission that the engine's checks refused: nothing may have happened.
func (r *run) refused(s *submission, err error) {
	s.ended, s.freed = true, true
	for _, o := range s.ops {
		if o.within() {
			r.unchanged(o, "was refused")
			o.leave(false)
		}
	}
	if s.note != nil {
		r.noteEnded(s.note, orbitte.NotificationReport{Status: orbitte.Skipped, Err: err})
	}
	r.expected(s, err)
}

func (r *run) transfer(a faults.Action) string {
	l := r.life(a, faults.EngineOf)
	if why := r.idle(l); why != "" {
		return why
	}
	if r.prepare(l, a) == nil || r.notes[a.Int(faults.Note)] != nil {
		return absent
	}
	l.call("transfer", a.Duration(faults.Deadline), func(ctx *lease) {
		p := r.prepare(l, a)
		if p == nil || r.notes[a.Int(faults.Note)] != nil {
			r.tell("%v transfer => %s", l, absent)
			return
		}
		r.stamp(p)
		s := r.admitted(p, a)
		r.attach(l, a, s)
		s.freed = true
		report, err := r.carryOut(ctx, l, p, s)
		if l.killed {
			return // the call is unwound long after
		}
		r.tell("%v transfer => %s %d", l, outcome(report, err), report.Bytes)
		r.countOutcome("transfer", report, err)
		r.after(l)
		r.conclude(s, report, err)
	})
	return begun
}

func (r *run) carryOut(ctx context.Context, l *life, p *prepared, s *submission) (orbitte.Report, error) {
	r.requests += len(p.requests)
	if s.note == nil {
		return l.engine.SubmitAndWait(ctx, p.requests)
	}
	return l.engine.SubmitAndNotify(ctx, p.requests, s.note.text)
}

// conclude ends a synchronous submission.
func (r *run) conclude(s *submission, report orbitte.Report, err error) {
	for _, o := range s.ops {
		if !o.within() {
			if err == nil {
				r.violate(OracleResult, "%v: a request outside of its memory object succeeded", s.life)
			}
			r.refused(s, err)
			return
		}
	}
	if err != nil && report.Failed < 0 && report.Completed == 0 {
		if !report.LocallyDrained {
			r.violate(OracleResult, "%v: a submission ended without proof that its memory is quiet: %v", s.life, err)
		}
		r.refused(s, err)
		return
	}
	r.report(s, report, err)
	r.poison(s)
}

// poison overwrites what READs brought, in worlds that ask for it: whoever still writes or reads there is found.
func (r *run) poison(s *submission) {
	if !r.script.World.Bool(faults.Poison) {
		return
	}
	for _, o := range s.ops {
		m := o.local
		at := o.toAt
		if o.write {
			at = o.fromAt
		}
		if o.within() && !m.closed && m.life.alive() && !m.busy(at, o.length, true) {
			r.operations++
			m.write(at, o.length, r.operations<<8|3)
		}
	}
}

func (r *run) submit(a faults.Action) string {
	l := r.life(a, faults.EngineOf)
	if l == nil || r.batches[a.Int(faults.Batch)] != nil || r.notes[a.Int(faults.Note)] != nil {
		return absent
	}
	p := r.prepare(l, a)
	if p == nil {
		return absent
	}
	r.stamp(p)
	s := r.admitted(p, a)
	r.attach(l, a, s)
	var options []orbitte.SubmitOption
	if s.note != nil {
		options = append(options, orbitte.NotifyAfter(s.note.text))
	}
	batch, err := l.engine.Submit(r.bare(a.Duration(faults.Deadline)), p.requests, options...)
	if err != nil {
		r.refused(s, err)
		return class(err)
	}
	for _, o := range s.ops {
		if !o.within() {
			r.violate(OracleResult, "%v: a request outside of its memory object was accepted", l)
		}
	}
	r.requests += len(p.requests)
	s.batch = batch
	r.batches[s.name] = s
	if len(p.requests) == 0 {
		r.poll(s) // it has ended already, and its engine may have no step to make
	}
	return "ok"
}

func (r *run) cancel(a faults.Action) string {
	if name := a.Int(faults.Batch); name != 0 {
		s := r.batches[name]
		if s == nil || s.freed || !s.life.alive() {
			return absent
		}
		s.spoil()
		s.batch.Cancel()
		return "ok"
	}
	l := r.life(a, faults.EngineOf)
	if l == nil || l.caller == nil || l.caller.context == nil || l.caller.context.err != nil || l.caller.what == "close" {
		return absent
	}
	for _, s := range l.open {
		if s.batch == nil {
			s.spoil()
		}
	}
	l.caller.context.end(context.Canceled)
	return "ok"
}

func (r *run) freeBatch(a faults.Action) string {
	s := r.batches[a.Int(faults.Batch)]
	if s == nil || s.freed || !s.life.alive() {
		return absent
	}
	if !s.ended { // detached: its own report is not to be had any more, so the model keeps looking through a second handle
		return busy
	}
	s.freed = true
	return class(s.batch.Free())
}

func (r *run) retryNotes(a faults.Action) string {
	s := r.batches[a.Int(faults.Batch)]
	if s == nil || s.freed || !s.ended || s.note == nil {
		return absent
	}
	if why := r.idle(s.life); why != "" {
		return why
	}
	s.life.call("retry-notes", a.Duration(faults.Deadline), func(ctx *lease) {
		n := s.note
		if s.freed {
			return
		}
		if n.status == orbitte.Failed {
			n.ended, n.effect = false, orbitte.EffectUnknown // until it is told, it may arrive
		}
		left, err := s.batch.RetryNotifications(ctx)
		if s.life.killed {
			return
		}
		r.ended(s.life, "retry-notes", err)
		if n.status != orbitte.Failed {
			return
		}
		n.ended = true
		if err == nil && left == 0 && len(n.to) == 1 && n.wasNone {
			r.order++
			n.status, n.effect, n.delivered = orbitte.Delivered, orbitte.EffectComplete, r.order
		}
	})
	return begun
}

func (r *run) notify(a faults.Action) string {
	s := r.segment(a)
	if s == nil || s.life != r.life(a, faults.EngineOf) || a.Int(faults.Note) == 0 || r.notes[a.Int(faults.Note)] != nil {
		return absent
	}
	if why := r.idle(s.life); why != "" {
		return why
	}
	s.life.call("notify", a.Duration(faults.Deadline), func(ctx *lease) {
		if s.gone || r.notes[a.Int(faults.Note)] != nil {
			r.tell("%v notify => %s", s.life, absent)
			return
		}
		n := r.addNote(s.life, a, nil)
		n.sendTo(s.peer)
		report, err := s.life.engine.SendNotification(ctx, s.handle, n.text)
		if s.life.killed {
			return
		}
		r.tell("%v notify => %s %v %v", s.life, class(err), report.Status, report.Effect)
		r.count("notify: %s", class(err))
		if (err == nil) != (report.Status == orbitte.Delivered) {
			r.violate(OracleNote, "%v: the notification is %v, and the error %v", s.life, report.Status, err)
		}
		r.noteEnded(n, report)
		r.epoch(s.life, s.peer, true, err)
	})
	return begun
}
