package world

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/delegate"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/segments"
)

// Oracles, by the names that violations have.
const (
	OracleBytes    = "bytes"    // a byte changed that no request in flight explains
	OracleResult   = "result"   // a report does not agree with the bytes
	OracleTerminal = "terminal" // a request or call outlived its deadline
	OracleEpoch    = "epoch"    // a stale epoch succeeded, or a true one was refused
	OracleNote     = "note"     // a notification was lost, doubled, early, or out of order
	OracleCharge   = "charge"   // a gauge above its limit, below what is held, or not zero at the end
	OracleStream   = "stream"   // a stream was used after a fault, or a frame was sent twice or out of order
	OracleFair     = "fair"     // a healthy peer's request waited for another peer
	OracleLeft     = "left"     // something is left at the end
	OracleHang     = "hang"     // the end of the run was not reached
	OraclePanic    = "panic"    // an engine or twin panicked
	OracleError    = "error"    // an error that no fault of the world explains
	OracleService  = "service"  // an engine cannot be reached when all faults are over
	OracleRight    = "right"    // a request succeeded that its region forbids
)

const (
	// grace is how long after its deadline a request may end. An engine needs some turns to cancel what the
	// kernel has and to close the stream; each costs microseconds of virtual time, and a conflicting lease or a full
	// listener queue is looked at again after a millisecond at most.
	grace = 20 * time.Millisecond
	// graceSteps is how many steps its engine must have had since: one that was stopped, or a clock that jumped,
	// is no fault of the engine.
	graceSteps = 200
	// sampleEvery is after how many turns the gauges are looked at.
	sampleEvery = 64
)

// after holds a life against the model when it has made a step.
func (r *run) after(l *life) {
	if !r.explain(l) {
		return
	}
	for i := 0; i < len(l.open); i++ {
		s := l.open[i]
		if !s.ended {
			if s.batch != nil {
				r.poll(s)
			}
			r.overdue(s)
		}
		if s.ended && s.freed {
			l.open = append(l.open[:i], l.open[i+1:]...)
			i--
		}
	}
}

// explain explains what changed in a life's memory. What one memory got in this step may have come from another one
// that changed in it, before or after: those that can be explained go first and show what they held in between.
func (r *run) explain(l *life) bool {
	var changed []*memory
	for _, m := range l.memories {
		if m.look(); !m.closed && !bytes.Equal(m.data, m.shadow) {
			m.show()
			changed = append(changed, m)
		}
	}
	done := changed
	imagined := false
	for len(changed) > 0 {
		left := changed[:0:0]
		for _, m := range changed {
			if m.change() >= 0 {
				left = append(left, m)
			}
		}
		switch {
		case len(left) < len(changed):
			imagined = false
		case imagined && left[0].tangled():
			r.count("blind: tangled copies")
			left = left[1:]
		case imagined:
			at := left[0].change()
			r.violate(OracleBytes, "%v: byte %d of memory %d changed, and no request in flight explains it: %s", l, at, left[0].name, left[0].difference())
			return false
		default: // perhaps an op read in the middle of the step what another one wrote before it
			for _, m := range left {
				m.imagine()
			}
			imagined = true
		}
		changed = left
	}
	for _, m := range done {
		for _, o := range m.targets {
			r.inTurn(o)
		}
	}
	return true
}

// poll takes what an asynchronous submission says: each success as soon as it shows, the rest with the whole.
func (r *run) poll(s *submission) {
	for i, o := range s.ops {
		if o.over {
			continue
		}
		state, bytes, err := s.batch.Task(i)
		if state == orbitte.TaskSucceeded {
			if err != nil || bytes != uint64(o.length) {
				r.violate(OracleResult, "task %d succeeded with %d bytes of %d and error %v", i, bytes, o.length, err)
			}
			r.succeeded(o)
		}
	}
	report, terminal, err := s.batch.Poll()
	if !terminal {
		return
	}
	for i, o := range s.ops {
		if state, _, _ := s.batch.Task(i); !state.Terminal() {
			r.violate(OracleResult, "batch %d is terminal, but its task %d is %v", s.name, i, state)
		} else if o.over != (state == orbitte.TaskSucceeded) {
			r.violate(OracleResult, "task %d of batch %d succeeded and is now %v", i, s.name, state)
		}
	}
	r.report(s, report, err)
	r.tell("%v batch %d => %s", s.life, s.name, outcome(report, err))
	r.countOutcome("batch", report, err)
}

// report holds a submission's report against the model, and ends it.
func (r *run) report(s *submission, report orbitte.Report, err error) {
	s.ended = true
	s.kept = !report.LocallyDrained
	bytes := uint64(0)
	for _, o := range s.ops[:min(report.Completed, len(s.ops))] {
		bytes += uint64(o.length)
	}
	switch {
	case report.Completed > len(s.ops) || bytes != report.Bytes:
		r.violate(OracleResult, "the report says %d completed requests with %d bytes, which have %d", report.Completed, report.Bytes, bytes)
		return
	case (err == nil) != (report.Completed == len(s.ops)) || (err == nil) != (report.Failed < 0):
		r.violate(OracleResult, "%d of %d requests completed, failed is %d, and the error is %v", report.Completed, len(s.ops), report.Failed, err)
		return
	case !report.LocallyDrained && !r.unquiesced(s, err):
		r.violate(OracleResult, "a submission ended without proof that its memory is quiet: %v", err)
		return
	}
	for i, o := range s.ops {
		switch {
		case i < report.Completed:
			if !o.over {
				r.succeeded(o)
			}
		case i == report.Failed, o.fast && i <= report.Failed+report.Begun:
			r.failed(o, report, err)
		default:
			r.unchanged(o, "skipped")
			o.leave(false)
		}
	}
	r.expected(s, err)
	if s.note != nil {
		r.noteEnded(s.note, report.Notification)
	}
	if s.within > 0 && r.unfair(s, err) {
		r.violate(OracleFair, "%v: a request to a healthy peer ended %v after its bound with %v", s.life, time.Duration(r.net.Now()-s.within), err)
	}
}

// unfair is true exactly when a request that was promised a bound ended behind it, or by a fault that was not its own.
// One that was refused, cancelled, or asked for what is not there ended for a reason of its own.
func (r *run) unfair(s *submission, err error) bool {
	switch class(err) {
	case "ok":
		return r.net.Now() > s.within
	case "deadline", "disconnected", "unreachable":
		return true
	}
	return false
}

func (r *run) succeeded(o *op) {
	if o.submission.batch != nil || o.index == len(o.submission.ops)-1 { // of the others nobody hears at once
		r.proven(o)
	}
	if o.rdma {
		r.count("rdma: ok")
	}
	if o.fast {
		r.count("hptcp: ok")
	}
	if o.from.gpu || o.to.gpu {
		r.count("cuda: ok")
	}
	o.countDirect()
	o.matched = o.matched || o.hiddenBy()
	o.uncover()
	if !o.matched && o.length > 0 {
		r.violate(OracleResult, "%v: %v succeeded, but its destination never held what its source held", o.submission.life, o)
	}
	r.unexposed(o)
	if !o.permitted() {
		r.violate(OracleRight, "%v: %v succeeded, but its region forbids it", o.submission.life, o)
	}
	o.leave(false)
}

// failed checks what the report says about the range that the failed request writes.
func (r *run) failed(o *op, report orbitte.Report, err error) {
	effect, other := report.Local, report.Remote
	if o.write {
		effect, other = report.Remote, report.Local
	}
	switch {
	case other != orbitte.EffectNone:
		r.violate(OracleResult, "a failed request reports effect %v on the range that it reads", other)
	case effect == orbitte.EffectNone:
		r.unchanged(o, "failed without effect")
	case effect == orbitte.EffectComplete:
		r.violate(OracleResult, "a failed request reports that its effect is complete: %v", err)
	case effect == orbitte.EffectPartial && !o.direct:
		r.violate(OracleResult, "a staged request reports a partial effect: %v", err)
	case effect == orbitte.EffectUnknown && !o.write:
		r.violate(OracleResult, "a READ does not know what it did to its own memory: %v", err)
	}
	if effect != orbitte.EffectNone && report.LocallyDrained {
		r.proven(o)
	}
	o.leave(effect == orbitte.EffectUnknown || o.submission.kept)
}

// unchanged checks that a request changed nothing. One that only may have is given the benefit.
func (r *run) unchanged(o *op, how string) {
	if o.certain && o.touched {
		r.violate(OracleResult, "%v: %v %s, but it changed its destination", o.submission.life, o, how)
	}
}

// expected holds an error against what the world did. Nobody here breaks the protocol.
func (r *run) expected(s *submission, err error) {
	switch {
	case err == nil, r.peerFailed(s, err), s.life.keeps && errors.Is(err, orbitte.ErrUnquiesced):
	case errors.Is(err, orbitte.ErrDevice):
		r.deviceFailed(s, err)
	case errors.Is(err, orbitte.ErrUnquiesced), errors.Is(err, orbitte.ErrProtocol), errors.Is(err, orbitte.ErrPeer):
		r.violate(OracleError, "%v: %v", s.life, err)
	case errors.Is(err, orbitte.ErrUncovered), errors.Is(err, orbitte.ErrUnknownRegion), errors.Is(err, orbitte.ErrPermission):
		r.wronglyRefused(s, err)
	default:
		if errors.Is(err, orbitte.ErrDeadline) || errors.Is(err, orbitte.ErrCancelled) {
			s.spoil()
		}
		r.unfounded(s, err)
		if !r.beside(s, err) && !s.unpinned(err) {
			r.unexplained(s.life, err)
		}
	}
}

// unfounded finds a refusal that the model knows to be wrong: of what fits by the error's own figures, or of a payload that
// both sides admit.
func (r *run) unfounded(s *submission, err error) {
	var full *budgets.Exhausted
	var fault *lanes.Fault
	switch {
	case errors.As(err, &full) && full.Used+full.Asked <= full.Limit:
		r.violate(OracleError, "%v: what fits was refused: %v", s.life, err)
	case errors.As(err, &fault) && fault.Cause == lanes.Refused && fault.Status == netproto.StatusExhausted && !s.failedOp(err).overRDMA() && !s.failedOp(err).sourceFailed():
		r.violate(OracleError, "%v: a source refused a payload that its limits admit: %v", s.life, err)
	case errors.Is(err, delegate.ErrOccupied) && s.failedOp(err).early(r.net.Now()):
		r.violate(OracleError, "%v: a source's own deadline is said to have passed, and has not: %v", s.life, err)
	}
}

// overdue finds what outlives its deadline.
func (r *run) overdue(s *submission) {
	if s.ended || s.deadline == 0 || r.net.Now() <= s.deadline.After(s.late()) {
		return
	}
	if s.steps++; s.steps > graceSteps {
		r.violate(OracleTerminal, "%v: a submission has not ended %v after its deadline", s.life, time.Duration(r.net.Now()-s.deadline))
	}
}

// received takes notifications out of a life's inbox.
func (r *run) received(l *life, list []orbitte.Notification) {
	for _, text := range list {
		n := r.noteOf(l, text)
		if n == nil {
			r.violate(OracleNote, "%v received %q, which nobody sent to it", l, text.Name)
			return
		}
		r.order++
		n.received[l]++
		switch {
		case n.received[l] > 1:
			r.violate(OracleNote, "%v received %s twice", l, text.Name)
		case n.ended && n.effect == orbitte.EffectNone && n.status != orbitte.Delivered:
			r.violate(OracleNote, "%v received %s, which was %v without effect", l, text.Name, n.status)
		}
		r.inOrder(l, n)
		if n.submission != nil {
			for _, o := range n.submission.ops {
				if o.length > 0 && !o.matched {
					r.violate(OracleNote, "%v received %s before %v, which it follows", l, text.Name, o)
				}
			}
		}
	}
}

func (r *run) noteOf(l *life, text orbitte.Notification) *note {
	for _, n := range l.inbound {
		if n.text == text {
			return n
		}
	}
	return nil
}

// inOrder: what had its receipt before another one of the same sender was begun is received before it (N-2).
func (r *run) inOrder(l *life, late *note) {
	for _, early := range l.inbound {
		if early.from == late.from && early.delivered > 0 && early.delivered < late.started && early.received[l] == 0 {
			r.violate(OracleNote, "%v received %s before %s, whose receipt came before it was sent", l, late.text.Name, early.text.Name)
		}
	}
}

func (r *run) noteEnded(n *note, report orbitte.NotificationReport) {
	r.order++
	n.ended, n.status, n.effect = true, report.Status, report.Effect
	n.wasNone = n.effect == orbitte.EffectNone
	r.count("note: %v %v", report.Status, report.Effect)
	switch report.Status {
	case orbitte.Delivered:
		n.delivered = r.order
	case orbitte.Skipped, orbitte.NotNotified:
		n.effect = orbitte.EffectNone
	}
	if n.effect == orbitte.EffectNone && n.status != orbitte.Delivered {
		for _, l := range n.to {
			if n.received[l] > 0 && len(n.to) == 1 {
				r.violate(OracleNote, "%v received %s, which was %v without effect: %v", l, n.text.Name, n.status, report.Err)
			}
		}
	}
	if len(n.to) > 1 && n.status == orbitte.Failed {
		n.effect = orbitte.EffectUnknown // some may have it
	}
}

// sample looks at a life's gauges: none above its limit, and each at least what the model knows to be held.
func (r *run) sample(l *life) {
	if l.killed || l.engine == nil {
		return
	}
	var bytes, submissions, batches, slots int64
	for _, s := range l.open {
		if s.batch != nil && !s.freed {
			batches++
			slots += int64(len(s.ops))
		}
		if !s.ended && !l.paid(s) {
			submissions++
			bytes += int64(s.held())
		}
	}
	stats := l.engine.Stats()
	r.servedInTime(l, stats)
	r.contexts(l)
	for _, g := range stats.Gauges {
		if g.Used > g.Limit || g.Peak > g.Limit || g.Used < 0 {
			r.violate(OracleCharge, "%v: %s has %d in use, peak %d, limit %d", l, g.Name, g.Used, g.Peak, g.Limit)
		}
		least := map[string]int64{"requester bytes in flight": bytes, "requester submissions in flight": submissions, "async batches": batches, "async batch slots": slots}
		if want, ok := least[g.Name]; ok && g.Used < want {
			r.violate(OracleCharge, "%v: %s has %d in use, but %d are held", l, g.Name, g.Used, want)
		}
	}
}

// paid is true when a submission that the model has not seen end may have given back what it held: a batch that is
// terminal and was not looked at since, or a call on an engine of several lanes, which hears of its end only when the
// turn of the others is over.
func (l *life) paid(s *submission) bool {
	if s.batch == nil {
		return len(l.doors) > 1
	}
	_, terminal, _ := s.batch.Poll()
	return terminal
}

// drained checks a life after everything of it was given back.
func (r *run) drained(l *life) {
	if l.keeps || l.retainsGPU() {
		return
	}
	for _, g := range l.engine.Stats().Gauges {
		if g.Used != 0 || g.Peak > g.Limit {
			r.violate(OracleCharge, "%v: after the end %d %s are charged to %q, peak %d of %d", l, g.Used, g.Unit, g.Name, g.Peak, g.Limit)
		}
	}
	if kept := l.engine.RetainedResources(); len(kept) > 0 {
		r.violate(OracleLeft, "%v retains %v", l, kept)
	}
	if n := l.descriptors(); n > 0 {
		r.violate(OracleLeft, "%v has %d descriptors open after its end", l, n)
	}
}

// nothingLeft counts the memory objects of the process, those of the engines' own buffers included.
func (r *run) nothingLeft() {
	r.nativeLeft()
	r.driverLeft()
	if now, _ := segments.Mappings(); now != r.residents && !r.leaks {
		r.violate(OracleLeft, "%d memory objects are left; before the run there were %d%s", now, r.residents, r.keepers())
	}
	if n := len(r.net.Connections()); n > 0 {
		r.violate(OracleLeft, "%d connections are left", n)
	}
}

// outcome is a report in one word or two, the same in every run.
func outcome(report orbitte.Report, err error) string {
	if err == nil {
		return "ok"
	}
	text := class(err)
	if report.Local != lanes.EffectNone {
		text += " local " + report.Local.String()
	}
	if report.Remote != lanes.EffectNone {
		text += " remote " + report.Remote.String()
	}
	return text
}

func (r *run) countOutcome(what string, report orbitte.Report, err error) {
	r.count("%s: %s", what, outcome(report, err))
}

var classes = []struct {
	err  error
	name string
}{
	{orbitte.ErrInvalid, "invalid"}, {orbitte.ErrClosed, "closed"}, {orbitte.ErrExhausted, "exhausted"}, {orbitte.ErrUncovered, "uncovered"},
	{orbitte.ErrUnknownRegion, "unknown-region"}, {orbitte.ErrPermission, "permission"}, {orbitte.ErrConflict, "conflict"},
	{orbitte.ErrUnavailable, "unavailable"}, {orbitte.ErrStaleEpoch, "stale-epoch"}, {orbitte.ErrUnreachable, "unreachable"},
	{orbitte.ErrDisconnected, "disconnected"}, {orbitte.ErrDeadline, "deadline"}, {orbitte.ErrCancelled, "cancelled"},
	{orbitte.ErrDevice, "device"}, {orbitte.ErrProtocol, "protocol"}, {orbitte.ErrPeer, "peer"}, {orbitte.ErrUnquiesced, "unquiesced"}, {orbitte.ErrSystem, "system"},
}

// class names an error's class; nil is ok.
func class(err error) string {
	if err == nil {
		return "ok"
	}
	var own *orbitte.Error
	if errors.As(err, &own) {
		for _, c := range classes {
			if own.Class == c.err {
				return c.name
			}
		}
	}
	return "foreign"
}

// keepers names whose memory has not ended.
func (r *run) keepers() (text string) {
	for _, resident := range segments.Residents() {
		for _, l := range r.lives {
			for _, m := range l.memories {
				if m.object.Address() == resident.Address {
					text += fmt.Sprintf("; %v memory %d", l, m.name)
				}
			}
		}
	}
	return text
}
