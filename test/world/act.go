package world

import (
	"fmt"
	"strings"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/test/faults"
)

// Outcomes of actions that do nothing.
const (
	absent = "absent" // an object does not exist, or is gone, or the name is taken
	busy   = "busy"   // another call waits in this life, or a request in flight uses the range
	begun  = "begun"  // a call that waits; its end is told later
)

type deed func(*run, faults.Action) string

var deeds map[faults.Kind]deed

func init() { // the table is read by functions that it lists
	deeds = map[faults.Kind]deed{
		faults.Allocate: (*run).allocate, faults.FreeMemory: (*run).freeMemory, faults.Register: (*run).register,
		faults.Unregister: (*run).unregister, faults.Fill: (*run).fill, faults.OpenSegment: (*run).openSegment,
		faults.Refresh: (*run).refresh, faults.CloseSegment: (*run).closeSegment, faults.Transfer: (*run).transfer,
		faults.Submit: (*run).submit, faults.Cancel: (*run).cancel, faults.FreeBatch: (*run).freeBatch,
		faults.RetryNotes: (*run).retryNotes, faults.Notify: (*run).notify, faults.Receive: (*run).receive,
		faults.CloseSource: (*run).closeSource, faults.CloseRequester: (*run).closeRequester, faults.Close: (*run).close,
		faults.Start: (*run).startAgain, faults.RegisterBadBatch: (*run).registerBadBatch,

		faults.Kill: (*run).kill, faults.Stop: (*run).stop, faults.Continue: (*run).goOn, faults.Reset: (*run).reset,
		faults.ResetAfter: (*run).resetAfter, faults.HalfClose: (*run).halfClose, faults.Stall: (*run).stall,
		faults.BlackHole: (*run).blackHole, faults.Delay: (*run).delay, faults.FailAccepts: (*run).failAccepts,
		faults.FailConnects: (*run).failConnects, faults.FailOpens: (*run).failOpens, faults.HangConnects: (*run).hangConnects,
		faults.LimitDescriptors: (*run).limitDescriptors, faults.StepWall: (*run).stepWall, faults.Advance: (*run).advance,

		faults.PortDown: (*run).portDown, faults.PortUp: (*run).portUp, faults.ChangeGID: (*run).changeGID,
		faults.RemoveDevice: (*run).removeDevice, faults.CutRail: (*run).cutRail, faults.DelayRail: (*run).delayRail,
		faults.SpoilCompletion: (*run).spoilCompletion, faults.BadWork: (*run).badWork, faults.FailCall: (*run).failCall,

		faults.SlowCopy: (*run).slowCopy, faults.SpoilCallback: (*run).spoilCallback, faults.FailDriver: (*run).failDriver, faults.LoseGPU: (*run).loseGPU,
	}
}

// act carries out one action, or finds that it has no object.
func (r *run) act(a faults.Action) {
	r.lookAgain()
	result := deeds[a.Kind](r, a)
	r.tell("%v => %s", a, result)
	r.count("%v: %s", a.Kind, result)
	if result != absent && result != busy {
		kind := "action"
		if a.Kind.IsFault() {
			kind = "fault"
		}
		r.count("%s %v", kind, a.Kind)
	}
}

// life is the open life that the action names, or nil.
func (r *run) life(a faults.Action, p faults.Param) *life {
	if i := a.Int(p); i < len(r.slots) {
		return r.slots[i].current()
	}
	return nil
}

// idle says why no further call that waits can be taken; empty when it can.
func (r *run) idle(l *life) string {
	switch {
	case l == nil || !l.alive():
		return absent
	case len(l.queue) >= queueMax:
		return busy
	}
	return ""
}

func (r *run) allocate(a faults.Action) string {
	l, length := r.life(a, faults.EngineOf), a.Int(faults.Length)
	if l == nil || r.memories[a.Int(faults.Memory)] != nil || length <= 0 || length > memoryBytesMax {
		return absent
	}
	m := &memory{name: a.Int(faults.Memory), life: l}
	var err error
	if m.object, m.gpu, err = l.onDevice(a); m.object != nil {
		m.vault, m.data, m.ordinal = l.vault, make([]byte, length), a.Int(faults.GPU)-1
		if m.gpu && l.flushes() {
			m.seen = make([]byte, length)
		}
	} else if err == nil && a.Bool(faults.Adopted) {
		m.object, err = orbitte.Adopt(make([]byte, length))
	} else if err == nil {
		m.object, err = orbitte.Allocate(length)
	}
	if err != nil {
		return class(err)
	}
	if m.vault == nil {
		m.data = m.object.Bytes()
	}
	fill(m.data, uint64(m.name)<<32|1)
	m.store(0, length)
	m.shadow = append([]byte(nil), m.data...)
	l.memories = append(l.memories, m)
	r.memories[m.name] = m
	return "ok"
}

// memoryBytesMax bounds one memory object of a script.
const memoryBytesMax = 4 << 20

// memory is an object that can still be named.
func (r *run) memory(name int) *memory {
	if m := r.memories[name]; m != nil && !m.closed {
		return m
	}
	return nil
}

// freeMemory closes a memory object that no request in flight names; registrations may keep it alive.
func (r *run) freeMemory(a faults.Action) string {
	m := r.memory(a.Int(faults.Memory))
	switch {
	case m == nil || !m.life.alive():
		return absent
	case len(m.targets)+len(m.sources) > 0:
		return busy
	}
	for _, g := range m.life.ranges {
		if g.memory == m && !g.gone {
			return busy
		}
	}
	m.closed = true
	return class(m.object.Close())
}

func (r *run) register(a faults.Action) string {
	l, m := r.life(a, faults.EngineOf), r.memory(a.Int(faults.Memory))
	if l == nil || m == nil || m.life != l || r.registrations[a.Int(faults.Registration)] != nil {
		return absent
	}
	if l.caller != nil && l.native != nil && (l.reaches() || l.slot.config.Bool(faults.RemoteStaging)) {
		return busy // one that fails waits for the cold loop, which the call that waits would have to drive
	}
	handle, err := r.registerOnce(l, m, a)
	if err != nil {
		return class(err)
	}
	r.operations++
	g := &registration{name: a.Int(faults.Registration), life: l, handle: handle, memory: m, born: r.operations, shown: r.turn}
	r.registrations[g.name] = g
	l.ranges = append(l.ranges, g)
	return "ok"
}

// registerOnce registers a range; every fourth one comes as a batch that names it twice, which is one reference (M-5).
func (r *run) registerOnce(l *life, m *memory, a faults.Action) (*orbitte.Registration, error) {
	one := orbitte.Range{
		Memory: m.object, Offset: uint64(a.Get(faults.Offset)), Length: uint64(a.Get(faults.Length)), Permission: netproto.Permission(a.Get(faults.Permission)),
		HPTCP: l.opted(a.Int(faults.Registration)) && !m.gpu,
	}
	if a.Int(faults.Registration)%4 != 0 {
		var options []orbitte.RegisterOption
		if one.HPTCP {
			options = append(options, orbitte.OverHPTCP)
		}
		return l.engine.Register(one.Memory, one.Offset, one.Length, one.Permission, options...)
	}
	handles, err := l.engine.RegisterBatch([]orbitte.Range{one, one})
	if err != nil {
		return nil, err
	}
	return handles[0], nil
}

func (r *run) unregister(a faults.Action) string {
	g := r.registrations[a.Int(faults.Registration)]
	if g == nil || g.gone {
		return absent
	}
	if why := r.idle(g.life); why != "" {
		return why
	}
	g.life.call("unregister", a.Duration(faults.Deadline), func(ctx *lease) {
		g.leaving = true
		if g.hidden == 0 {
			g.hidden = max(r.turn, 1)
		}
		err := g.life.engine.Unregister(ctx, g.handle)
		g.gone = g.gone || err == nil
		r.ended(g.life, "unregister", err)
		if err == nil {
			r.unlent(g)
		}
	})
	return begun
}

// ended tells the end of a call that waits.
func (r *run) ended(l *life, what string, err error) {
	if l.killed {
		return // the call is unwound long after
	}
	l.impatient = l.impatient || class(err) == "deadline" || class(err) == "cancelled"
	r.tell("%v %s => %s", l, what, class(err))
	r.count("%s: %s", what, class(err))
}

// fill is the program's own write into its memory. It keeps away from ranges that a socket may be reading or
// writing at the moment; those who stage take the whole content of one moment.
func (r *run) fill(a faults.Action) string {
	m := r.memory(a.Int(faults.Memory))
	at, length := a.Int(faults.Offset), a.Int(faults.Length)
	if m == nil || !m.life.alive() || at+length > len(m.data) {
		return absent
	}
	if m.busy(at, length, true) {
		return busy
	}
	m.write(at, length, uint64(a.Get(faults.Stamp)))
	return "ok"
}

func (r *run) openSegment(a faults.Action) string {
	l := r.life(a, faults.EngineOf)
	if peer := a.Int(faults.Peer); peer >= len(r.slots) || len(r.slots[peer].lives) == 0 || r.segments[a.Int(faults.Segment)] != nil {
		return absent
	}
	if why := r.idle(l); why != "" {
		return why
	}
	lives := r.slots[a.Int(faults.Peer)].lives
	peer := lives[len(lives)-1]
	if a.Bool(faults.Stale) {
		if len(lives) < 2 {
			return absent
		}
		peer = lives[len(lives)-2]
	}
	s := &segment{name: a.Int(faults.Segment), life: l, peer: peer}
	r.segments[s.name] = s
	s.gone = true // until it is open
	l.call("open-segment", a.Duration(faults.Deadline), func(ctx *lease) {
		alive, since := peer.alive(), r.turn
		r.operations++
		s.born = r.operations
		handle, err := l.engine.OpenSegment(ctx, peer.slot.address.String(), peer.epoch)
		if err == nil {
			s.handle, s.gone = handle, false
			l.segments = append(l.segments, s)
		}
		r.ended(l, "open-segment", err)
		r.epoch(l, peer, alive, err)
		r.published(s, since, err)
	})
	return begun
}

// published holds the list of a segment that was just read against what its peer had registered at one moment since then.
func (r *run) published(s *segment, since int, err error) {
	if err != nil || s.life.killed || !s.peer.alive() {
		return
	}
	listed, lasting, possible := map[uint64]bool{}, map[uint64]bool{}, map[uint64]bool{}
	for _, region := range s.handle.Regions() {
		listed[region.ID] = true
	}
	for _, g := range s.peer.ranges {
		id := g.handle.ID()
		possible[id] = possible[id] || g.hidden == 0 || g.hidden >= since
		lasting[id] = lasting[id] || g.hidden == 0 && g.shown < since && g.handle.Permission() != netproto.LocalOnly
	}
	for _, g := range s.peer.ranges {
		switch id := g.handle.ID(); {
		case listed[id] && !possible[id]:
			r.violate(OracleResult, "%v: segment %d lists registration %d, which was given back before", s.life, s.name, g.name)
		case lasting[id] && !listed[id]:
			r.violate(OracleResult, "%v: segment %d does not list registration %d, which was there all the time", s.life, s.name, g.name)
		}
	}
}

// epoch checks a success, or a refusal, against who has the address.
func (r *run) epoch(l, peer *life, alive bool, err error) {
	switch {
	case l.killed:
	case err == nil && !alive:
		r.violate(OracleEpoch, "%v had ended, and was opened or asked with success", peer)
	case class(err) == "stale-epoch" && peer.alive():
		r.violate(OracleEpoch, "%v is alive, and was refused as stale", peer)
	}
}

// segment is an open segment of an open life.
func (r *run) segment(a faults.Action) *segment {
	if s := r.segments[a.Int(faults.Segment)]; s != nil && !s.gone && s.life.alive() {
		return s
	}
	return nil
}

func (r *run) refresh(a faults.Action) string {
	s := r.segment(a)
	if s == nil {
		return absent
	}
	if why := r.idle(s.life); why != "" {
		return why
	}
	s.life.call("refresh", a.Duration(faults.Deadline), func(ctx *lease) {
		alive, since := s.peer.alive(), r.turn
		err := s.handle.Refresh(ctx)
		r.ended(s.life, "refresh", err)
		r.epoch(s.life, s.peer, alive, err)
		r.published(s, since, err)
	})
	return begun
}

func (r *run) closeSegment(a faults.Action) string {
	s := r.segment(a)
	if s == nil {
		return absent
	}
	if why := r.idle(s.life); why != "" {
		return why
	}
	s.life.call("close-segment", a.Duration(faults.Deadline), func(ctx *lease) {
		err := s.life.engine.CloseSegment(ctx, s.handle)
		s.gone = s.gone || err == nil
		r.ended(s.life, "close-segment", err)
	})
	return begun
}

func (r *run) receive(a faults.Action) string {
	l := r.life(a, faults.EngineOf)
	if l == nil {
		return absent
	}
	list := l.engine.ReceiveNotifications()
	r.received(l, list)
	if len(list) > 0 {
		return "ok"
	}
	return "none"
}

func (r *run) closeSource(a faults.Action) string {
	l := r.life(a, faults.EngineOf)
	if why := r.idle(l); why != "" {
		return why
	}
	l.fenced = true
	l.call("close-source", a.Duration(faults.Deadline), func(ctx *lease) { r.idles(l, "close-source", "source handlers", l.engine.CloseSource(ctx)) })
	return begun
}

func (r *run) closeRequester(a faults.Action) string {
	l := r.life(a, faults.EngineOf)
	if why := r.idle(l); why != "" {
		return why
	}
	l.call("close-requester", a.Duration(faults.Deadline), func(ctx *lease) {
		r.idles(l, "close-requester", "requester submissions in flight", l.engine.CloseRequester(ctx))
	})
	return begun
}

func (r *run) close(a faults.Action) string {
	l := r.life(a, faults.EngineOf)
	if why := r.idle(l); why != "" {
		return why
	}
	l.fenced = true
	l.call("close", l.patience(), func(ctx *lease) {
		err := l.engine.Close(ctx)
		if r.ended(l, "close", err); err != nil && l.killed {
			return // nobody heard it, and its time passed by other clocks; the burial closes again, without an end
		}
		r.afterClose(l, err)
	})
	return begun
}

// afterClose checks a closed engine: what it owned is gone, what is the program's stays.
func (r *run) afterClose(l *life, err error) {
	if err != nil && l.doubtful {
		r.retainedFor(l, err)
		return
	}
	if err != nil {
		r.violate(OracleError, "%v: Close without a deadline failed: %v", l, err)
		return
	}
	r.after(l)
	for _, s := range l.open {
		if !s.ended {
			r.violate(OracleTerminal, "%v: Close returned before a submission has ended", l)
		}
	}
	l.closed = true
	l.task.Remove()
	if n := l.descriptors(); n > 0 {
		r.violate(OracleLeft, "%v has %d descriptors open after Close", l, n)
	}
}

func (r *run) startAgain(a faults.Action) string {
	i := a.Int(faults.EngineOf)
	if i >= len(r.slots) || r.slots[i].current() != nil || len(r.slots[i].lives) >= 255 {
		return absent
	}
	return class(r.start(r.slots[i]))
}

// noteText is what a notification with this name says: it tells whose it is.
func noteText(name, size int) orbitte.Notification {
	return orbitte.Notification{Name: fmt.Sprintf("note %d", name), Message: strings.Repeat("m", min(size, 128<<10))}
}
