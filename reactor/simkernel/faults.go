package simkernel

import (
	"net/netip"
	"syscall"
	"time"

	"github.com/orbitte/orbitte/reactor"
)

// userTimeoutDefault is how long Linux keeps resending when no user timeout is set: about 15 minutes
// with the default tcp_retries2, tcp(7).
const userTimeoutDefault = 924 * time.Second

// countdown makes the next few calls fail.
type countdown struct {
	errno syscall.Errno
	left  int
}

func (c *countdown) take() syscall.Errno {
	if c.left == 0 {
		return 0
	}
	c.left--
	return c.errno
}

type processFaults struct {
	accept, connect, open, listen, hang countdown
}

// FailAccepts makes the next n accepts end with errno (EMFILE, ENFILE, ENOBUFS, ECONNABORTED, …).
func (p *Process) FailAccepts(errno syscall.Errno, n int) { p.faults.accept = countdown{errno, n} }

// FailConnects makes the next n connects of this process end with errno after one packet's time.
func (p *Process) FailConnects(errno syscall.Errno, n int) { p.faults.connect = countdown{errno, n} }

// FailOpens makes the next n opens return errno.
func (p *Process) FailOpens(errno syscall.Errno, n int) { p.faults.open = countdown{errno, n} }

// FailListens makes the next n listens return errno.
func (p *Process) FailListens(errno syscall.Errno, n int) { p.faults.listen = countdown{errno, n} }

// HangConnects makes this process's listeners drop the next n connection requests; a client asks
// again after one second, two, four and so on, and gives up after 127 seconds.
func (p *Process) HangConnects(n int) { p.faults.hang = countdown{syscall.ETIMEDOUT, n} }

// route names the link from one host to another.
type route struct{ from, to netip.Addr }

// Link is the way from one host to another. Each direction is a link of its own.
type Link struct {
	delayMin, delayMax time.Duration
	black              bool
	changes            int // how often black changed
	from, to           netip.Addr
	world              *World
}

// Link returns the link between two hosts, named by the addresses their processes were given.
func (w *World) Link(from, to netip.Addr) *Link {
	from, to = w.canonical(from), w.canonical(to)
	l := w.links[route{from, to}]
	if l == nil {
		l = &Link{from: from, to: to, world: w, delayMin: w.options.DelayMin, delayMax: w.options.DelayMax}
		w.links[route{from, to}] = l
	}
	return l
}

func (w *World) canonical(a netip.Addr) netip.Addr {
	if a = a.Unmap(); a == loopback6 {
		return loopback4
	}
	return a
}

func (l *Link) draw(w *World) time.Duration {
	return l.delayMin + time.Duration(w.random.Int64N(int64(l.delayMax-l.delayMin)+1))
}

// Delay sets how long packets travel from now on.
func (l *Link) Delay(shortest, longest time.Duration) {
	l.delayMin, l.delayMax = shortest, max(shortest, longest)
}

// BlackHole makes packets vanish without a word, until it is called with false; then what was lost is
// sent again. Meanwhile user timeouts and keepalives run out.
func (l *Link) BlackHole(on bool) {
	if l.black == on {
		return
	}
	l.black = on
	l.changes++
	for c := l.world.oldest; c != nil; c = c.newer {
		for d := range c.links {
			if c.links[d] == l {
				c.darkened(Direction(d), on)
			}
		}
	}
}

// Connections are those that have an end left, oldest first. The slice is the caller's.
func (w *World) Connections() []*Connection {
	var list []*Connection
	for c := w.oldest; c != nil; c = c.newer {
		list = append(list, c)
	}
	return list
}

// OnConnect calls f for each connection when its first packet leaves, so that a test can plan its
// faults.
func (w *World) OnConnect(f func(*Connection)) { w.onConnect = f }

// ID counts a world's connections from 0.
func (c *Connection) ID() int { return c.id }

// Client and Server are the two addresses.
func (c *Connection) Client() netip.AddrPort { return c.client }

// Server is the address the client connected to.
func (c *Connection) Server() netip.AddrPort { return c.server }

// Bytes is how many bytes were written in a direction so far.
func (c *Connection) Bytes(d Direction) uint64 { return c.pipes[d].written }

// Reset breaks the connection from the middle: both ends learn of it after what is on its way to
// them.
func (c *Connection) Reset() {
	c.sendReset(ToServer)
	c.sendReset(ToClient)
}

// ResetAfter resets the connection once exactly so many bytes were written in a direction, counted
// from its start; 0 takes the fault back. Bytes that were written already reset it at once.
func (c *Connection) ResetAfter(d Direction, bytes uint64) {
	c.pipes[d].resetAt = bytes
	if bytes > 0 && c.pipes[d].written >= bytes {
		c.Reset()
	}
}

// HalfClose ends one direction after the bytes already written, as shutdown(2) of the writer would;
// the writer's later sends fail.
func (c *Connection) HalfClose(d Direction) {
	c.finish(d)
	if writer := c.ends[d]; writer != nil {
		writer.writable()
	}
}

// Stall makes packets of one direction vanish, as Link.BlackHole does for all connections of a link.
func (c *Connection) Stall(d Direction, on bool) {
	if c.pipes[d].stalled != on {
		c.pipes[d].stalled = on
		c.links[d].changes++
		c.darkened(d, on)
	}
}

// darkened follows a change of what vanishes in direction d.
func (c *Connection) darkened(d Direction, on bool) {
	if on {
		c.startKeepalive(ToServer)
		c.startKeepalive(ToClient)
		return
	}
	if c.dark(d) {
		return
	}
	c.probeHalfOpen(d)
	p := &c.pipes[d]
	n, finish := p.held, p.heldFinish
	p.held, p.heldFinish = 0, false
	if n > 0 {
		c.world.schedule(event{at: c.arrival(d), kind: eventSegment, connection: c, direction: d, n: n})
	}
	if finish {
		c.world.schedule(event{at: c.arrival(d), kind: eventFinish, connection: c, direction: d})
	}
}

// probeHalfOpen follows the end of a silence in direction d. When the end that writes d has gone
// without its peer being told, the peer's next keepalive probe is answered with a reset.
func (c *Connection) probeHalfOpen(d Direction) {
	writer, peer, p := c.ends[d], c.ends[1-d], &c.pipes[d]
	if peer == nil || peer.broken || peer.options.KeepaliveIdle <= 0 || p.finished || p.heldFinish {
		return
	}
	if writer == nil || writer.broken {
		c.world.schedule(event{at: c.world.Now().After(peer.options.KeepaliveIdle), kind: eventReset, connection: c, direction: d})
	}
}

// startUserTimer runs while bytes of end d are lost: they stay without acknowledgement.
func (c *Connection) startUserTimer(d Direction) {
	p, s := &c.pipes[d], c.ends[d]
	if p.heldSince != 0 || s == nil {
		return
	}
	p.heldSince = c.world.Now()
	timeout := s.options.UserTimeout
	if timeout <= 0 {
		timeout = userTimeoutDefault
	}
	c.world.schedule(event{at: p.heldSince.After(timeout), kind: eventUserTimer, connection: c, direction: d})
}

func (c *Connection) userTimer(d Direction) {
	p := &c.pipes[d]
	p.heldSince = 0
	if s := c.ends[d]; s != nil && p.held > 0 && c.dark(d) {
		s.fail(syscall.ETIMEDOUT)
	}
}

// silence counts changes of both links, so that a timer knows whether all was dark since it began.
func (c *Connection) silence() int { return c.links[ToServer].changes + c.links[ToClient].changes }

// startKeepalive runs while probes of end d, or the answers to them, are lost.
func (c *Connection) startKeepalive(d Direction) {
	s := c.ends[d]
	if s == nil || !s.connected || s.options.KeepaliveIdle <= 0 {
		return
	}
	o := s.options
	interval, count := o.KeepaliveInterval, o.KeepaliveCount
	if interval <= 0 {
		interval = 75 * time.Second // tcp(7)
	}
	if count <= 0 {
		count = 9
	}
	after := o.KeepaliveIdle + interval*time.Duration(count)
	if o.UserTimeout > 0 {
		after = max(o.KeepaliveIdle+interval, o.UserTimeout) // a user timeout replaces the count
	}
	c.world.schedule(event{at: c.world.Now().After(after), kind: eventKeepalive, connection: c, direction: d, n: c.silence()})
}

func (c *Connection) keepaliveTimer(d Direction, silence int) {
	if s := c.ends[d]; s != nil && s.connected && silence == c.silence() && (c.dark(ToServer) || c.dark(ToClient)) {
		s.fail(syscall.ETIMEDOUT)
	}
}

// Now is the clock of the world the connection is in.
func (c *Connection) Now() reactor.Instant { return c.world.Now() }
