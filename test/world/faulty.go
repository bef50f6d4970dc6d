package world

import (
	"syscall"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/test/faults"
)

// errnos by the words of faults.Errno.
var errnos = map[string]syscall.Errno{
	"EMFILE": syscall.EMFILE, "ENFILE": syscall.ENFILE, "ENOBUFS": syscall.ENOBUFS, "ECONNABORTED": syscall.ECONNABORTED,
	"EINTR": syscall.EINTR, "ENOMEM": syscall.ENOMEM, "ECONNREFUSED": syscall.ECONNREFUSED, "ENETUNREACH": syscall.ENETUNREACH,
	"ETIMEDOUT": syscall.ETIMEDOUT,
}

// kill ends a life as SIGKILL does. What its requests wrote elsewhere may be there or not.
func (r *run) kill(a faults.Action) string {
	l := r.life(a, faults.EngineOf)
	if l == nil {
		return absent
	}
	r.received(l, l.engine.ReceiveNotifications()) // what was in the inbox was delivered
	l.killed, l.died = true, r.net.Now()
	l.killNative()
	l.process.Kill()
	l.task.Remove()
	for _, s := range l.open {
		if s.ended {
			continue
		}
		s.ended = true
		for _, o := range s.ops {
			if !o.over {
				o.leave(o.write)
			}
		}
	}
	for _, n := range r.sent {
		if n.from == l && !n.ended {
			n.ended, n.status, n.effect = true, orbitte.Failed, orbitte.EffectUnknown
		}
	}
	return "ok"
}

func (r *run) stop(a faults.Action) string {
	l := r.life(a, faults.EngineOf)
	if l == nil || l.stopped {
		return absent
	}
	l.stopped = true
	return "ok"
}

func (r *run) goOn(a faults.Action) string {
	l := r.life(a, faults.EngineOf)
	if l == nil || !l.stopped {
		return absent
	}
	l.stopped, l.rested = false, false
	l.task.Ready()
	return "ok"
}

// connection picks one of those that have an end at the engine's host, by its place among them.
func (r *run) connection(a faults.Action) *simkernel.Connection {
	if a.Int(faults.EngineOf) >= len(r.slots) {
		return nil
	}
	host := r.slots[a.Int(faults.EngineOf)].host
	var found []*simkernel.Connection
	for _, c := range r.net.Connections() {
		if c.Client().Addr() == host || c.Server().Addr() == host {
			found = append(found, c)
		}
	}
	if len(found) == 0 {
		return nil
	}
	return found[a.Int(faults.Connection)%len(found)]
}

func direction(a faults.Action) simkernel.Direction {
	return simkernel.Direction(a.Get(faults.Direction))
}

func (r *run) reset(a faults.Action) string {
	c := r.connection(a)
	if c == nil {
		return absent
	}
	c.Reset()
	return "ok"
}

func (r *run) resetAfter(a faults.Action) string {
	c := r.connection(a)
	if c == nil {
		return absent
	}
	c.ResetAfter(direction(a), c.Bytes(direction(a))+uint64(a.Get(faults.Bytes))+1)
	return "ok"
}

func (r *run) halfClose(a faults.Action) string {
	c := r.connection(a)
	if c == nil {
		return absent
	}
	c.HalfClose(direction(a))
	return "ok"
}

func (r *run) stall(a faults.Action) string {
	if !a.Bool(faults.On) {
		if len(r.stalled) == 0 {
			return absent
		}
		s := r.stalled[0]
		r.stalled = r.stalled[1:]
		s.connection.Stall(s.direction, false)
		return "ok"
	}
	c := r.connection(a)
	if c == nil {
		return absent
	}
	c.Stall(direction(a), true)
	r.stalled = append(r.stalled, stalled{c, direction(a)})
	return "ok"
}

// link is the way from one engine's host to another's; nil when there is none.
func (r *run) link(a faults.Action) *simkernel.Link {
	from, to := a.Int(faults.EngineOf), a.Int(faults.Peer)
	if from >= len(r.slots) || to >= len(r.slots) {
		return nil
	}
	return r.net.Link(r.slots[from].host, r.slots[to].host)
}

func (r *run) blackHole(a faults.Action) string {
	l := r.link(a)
	if l == nil {
		return absent
	}
	l.BlackHole(a.Bool(faults.On))
	return "ok"
}

func (r *run) delay(a faults.Action) string {
	l := r.link(a)
	if l == nil {
		return absent
	}
	l.Delay(a.Duration(faults.DelayMin), a.Duration(faults.DelayMax))
	return "ok"
}

// process is the slot's last process; faults may meet it before its engine, or after.
func (r *run) process(a faults.Action) *simkernel.Process {
	if l := r.life(a, faults.EngineOf); l != nil {
		return l.process
	}
	return nil
}

func (r *run) failing(a faults.Action, set func(p *simkernel.Process, errno syscall.Errno, n int)) string {
	p := r.process(a)
	if p == nil {
		return absent
	}
	set(p, errnos[a.Word(faults.Errno)], a.Int(faults.Count))
	return "ok"
}

func (r *run) failAccepts(a faults.Action) string {
	return r.failing(a, (*simkernel.Process).FailAccepts)
}

func (r *run) failConnects(a faults.Action) string {
	return r.failing(a, (*simkernel.Process).FailConnects)
}

func (r *run) failOpens(a faults.Action) string {
	return r.failing(a, (*simkernel.Process).FailOpens)
}

func (r *run) hangConnects(a faults.Action) string {
	return r.failing(a, func(p *simkernel.Process, _ syscall.Errno, n int) { p.HangConnects(n) })
}

// limitDescriptors allows so many more than are open; what is open stays.
func (r *run) limitDescriptors(a faults.Action) string {
	return r.failing(a, func(p *simkernel.Process, _ syscall.Errno, n int) { p.LimitDescriptors(p.Descriptors() + n) })
}

func (r *run) stepWall(a faults.Action) string {
	r.net.StepWall(a.Duration(faults.By))
	return "ok"
}

// advanceMax bounds one jump of the clock.
const advanceMax = time.Hour

func (r *run) advance(a faults.Action) string {
	d := a.Duration(faults.By)
	if d < 0 || d > advanceMax {
		return absent
	}
	r.net.Advance(d)
	for _, l := range r.lives { // nobody could serve in the time that was skipped
		l.serving = serving{}
	}
	return "ok"
}

// heal ends every fault.
func (r *run) heal() {
	r.healFabric()
	for _, s := range r.stalled {
		s.connection.Stall(s.direction, false)
	}
	r.stalled = nil
	for _, from := range r.slots {
		for _, to := range r.slots {
			r.net.Link(from.host, to.host).BlackHole(false)
		}
	}
	for _, l := range r.lives {
		p := l.process
		p.FailAccepts(0, 0)
		p.FailConnects(0, 0)
		p.FailOpens(0, 0)
		p.HangConnects(0)
		p.LimitDescriptors(1 << 20)
		if l.stopped {
			l.stopped, l.rested = false, false
			l.task.Ready()
		}
	}
}
