package rdma

import (
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/verbs"
)

// asyncBatch is how many asynchronous events one turn takes from one device.
const asyncBatch = 64

// monitor watches the devices of the engine, on its first lane (SPEC ): it takes their asynchronous events,
// and looks at every port each second, on the cold loop, since events get lost.
//
//	resting ──second, event──▶ looking (cold loop) ──▶ deciding: pause, or resume when the old pairs are gone ──▶ resting
type monitor struct {
	rails   *Rails // of the first lane
	watches []*deviceWatch
	timer   reactor.Timer
	errand  errand
	looks   []look
	again   bool // true exactly when something happened while the cold loop looked
	stopped bool
}

// look is what the cold loop saw of one device.
type look struct {
	verdict verbs.Verdict
	err     error
	done    bool
}

// deviceWatch waits for asynchronous events of one device.
type deviceWatch struct {
	monitor *monitor
	device  *Device
	ticket  reactor.Ticket // non-zero exactly while the descriptor is watched
	told    bool           // true exactly when the lanes were told that the device is fenced
}

// start begins on the first lane.
func (m *monitor) start(r *Rails) {
	m.rails = r
	m.looks = make([]look, len(r.transport.devices))
	for _, d := range r.transport.devices {
		w := &deviceWatch{monitor: m, device: d}
		m.watches = append(m.watches, w)
		w.watch()
	}
	m.rest()
}

func (m *monitor) rest() {
	m.rails.lane.Arm(&m.timer, m.rails.lane.Now().After(m.rails.transport.config.MonitorInterval), m)
}

// stop ends the watches; running tells when the last one is back.
func (m *monitor) stop() {
	if m.rails == nil || m.stopped {
		m.stopped = true
		return
	}
	m.stopped = true
	m.rails.lane.Disarm(&m.timer)
	for _, w := range m.watches {
		if w.ticket != 0 {
			m.rails.lane.Cancel(w.ticket)
		}
	}
}

// running is true exactly while something of the monitor is under way.
func (m *monitor) running() bool {
	if m.rails == nil {
		return false
	}
	for _, w := range m.watches {
		if w.ticket != 0 {
			return true
		}
	}
	return m.errand.away || !m.stopped
}

// Expire is the scan of each second (reactor.TimerHandler).
func (m *monitor) Expire(*reactor.Timer, reactor.Instant) {
	m.rails.transport.counts.ticks.Add(1)
	m.look()
}

// look sends the cold loop to all devices; a look under way is followed by another one.
func (m *monitor) look() {
	if m.stopped {
		return
	}
	if m.errand.away {
		m.again = true
		return
	}
	m.again = false
	m.rails.lane.Disarm(&m.timer)
	t := m.rails.transport
	m.errand.send(t.config.Cold, m.rails.lane.Loop, func() {
		for i, d := range t.devices {
			m.looks[i] = look{}
			if state, _ := d.State(); state != verbs.Fenced {
				t.counts.queries.Add(1)
				m.looks[i].verdict, m.looks[i].err = d.Context.Refresh()
				m.looks[i].done = true
			}
		}
	}, m.decide)
}

// decide follows a look.
func (m *monitor) decide(reactor.Instant) {
	if m.stopped {
		m.rails.settle()
		return
	}
	changed := false
	for i, w := range m.watches {
		changed = w.decide(&m.looks[i]) || changed
	}
	if changed && m.rails.transport.config.Changed != nil {
		m.rails.transport.config.Changed()
	}
	if m.again {
		m.look()
		return
	}
	m.rest()
}

// decide pauses a device whose address is not what connections were made with, and resumes one that has an address again
// once no pair of the old one is left. It says whether the descriptor changes.
func (w *deviceWatch) decide(l *look) bool {
	state, _ := w.device.State()
	switch {
	case state == verbs.Fenced:
		return w.fenced()
	case !l.done:
	case state == verbs.Active && l.err != nil:
		return w.pause("its port cannot be queried: " + l.err.Error())
	case state == verbs.Active && !l.verdict.Keep:
		return w.pause(l.verdict.Why)
	case state == verbs.Paused && l.err == nil && l.verdict.Usable && !l.verdict.Keep:
		if w.device.Context.Resume(l.verdict.Route) != nil {
			return false // pairs of the old address are left: the next look asks again
		}
		w.device.transport.counts.recoveries.Add(1)
		w.device.transport.closeGaps(func(g *Gap) bool { return g.Local == w.device.NIC })
		return true
	}
	return false
}

// pause closes the way for new connections; those that exist are drained by their lanes.
func (w *deviceWatch) pause(why string) bool {
	w.device.Context.Pause(why)
	w.tell()
	return true
}

// fenced tells the lanes once that the device is lost.
func (w *deviceWatch) fenced() bool {
	if w.told {
		return false
	}
	w.told = true
	w.tell()
	return true
}

// tell sends a letter to each lane's rail of the device.
func (w *deviceWatch) tell() {
	for _, r := range w.device.transport.rails {
		if rail := r.Rail(w.device.NIC); rail != nil {
			_ = r.lane.Post(&rail.letter, rail) // a lane that is closed has no connections
		}
	}
}

// Receive ends the rail's connections when its device takes none any more (reactor.Recipient).
func (r *Rail) Receive(*reactor.Letter, reactor.Instant) {
	state, why := r.Device.State()
	if state == verbs.Active {
		return // resumed, after all pairs were gone
	}
	err := &verbs.FencedError{Object: r.Device.Context.String(), State: state.String(), Reason: why}
	for i := len(r.connections) - 1; i >= 0; i-- {
		if i < len(r.connections) {
			r.connections[i].Fail(err, 0)
		}
	}
}

// watch waits for the next event.
func (w *deviceWatch) watch() {
	w.ticket = w.monitor.rails.lane.Submit(reactor.Operation{
		Kind: reactor.Watch, Descriptor: reactor.Descriptor(w.device.Context.EventDescriptor()),
	}, w)
}

// Complete takes the events of the device (reactor.Handler).
func (w *deviceWatch) Complete(e *reactor.Event) {
	w.ticket = 0
	m := w.monitor
	if m.stopped {
		m.rails.settle()
		return
	}
	if e.Err != nil {
		w.device.Context.Fence("its events cannot be watched: " + e.Err.Error())
	}
	for range asyncBatch {
		if state, _ := w.device.State(); state == verbs.Fenced {
			break
		}
		event, ok, err := w.device.Context.NextEvent()
		if err != nil || !ok {
			break
		}
		w.take(event)
	}
	if state, _ := w.device.State(); state == verbs.Fenced {
		if w.fenced() && m.rails.transport.config.Changed != nil {
			m.rails.transport.config.Changed()
		}
		return // nothing more is to be heard
	}
	w.watch()
}

// take sorts one event.
func (w *deviceWatch) take(e verbs.AsyncEvent) {
	switch e.Kind.Reach() {
	case verbs.ReachPort:
		w.monitor.look()
	case verbs.ReachPair, verbs.ReachQueue:
		for _, r := range w.device.transport.rails {
			if rail := r.Rail(w.device.NIC); rail != nil {
				n := &nativeEvent{rail: rail, event: e}
				_ = r.lane.Post(&n.letter, n) // a lane that is closed has no pairs
			}
		}
	}
}

// nativeEvent carries an event of a pair or queue to the lane that may have it.
type nativeEvent struct {
	letter reactor.Letter
	rail   *Rail
	event  verbs.AsyncEvent
}

// Receive (reactor.Recipient).
func (n *nativeEvent) Receive(*reactor.Letter, reactor.Instant) {
	r := n.rail
	if r.ended {
		return
	}
	sends, receives := r.sends.Touch(n.event), r.receives.Touch(n.event)
	if !sends && !receives {
		return
	}
	if n.event.Kind.Reach() == verbs.ReachQueue {
		r.breakDown(n.event.Kind.String())
		return
	}
	r.sweep()
}
