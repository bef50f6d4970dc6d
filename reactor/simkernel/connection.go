package simkernel

import (
	"net/netip"
	"syscall"
	"time"

	"github.com/orbitte/orbitte/reactor"
)

// Direction is one of the two ways through a connection. The client's end writes ToServer.
type Direction uint8

const (
	ToServer Direction = iota
	ToClient
)

const (
	// synRetries and synRetryFirst give the 127 s after which Linux gives up connecting, tcp(7).
	synRetries    = 7
	synRetryFirst = time.Second
	// unreachableAfter is how long a neighbour is looked for before the host counts as unreachable.
	unreachableAfter = 3 * time.Second
	// portWait is how long a port rests after an active close (TIME_WAIT).
	portWait = time.Minute
)

// Connection is one TCP connection, from its first packet until both ends are gone. Its exported
// methods are faults and observations for tests.
type Connection struct {
	world          *World
	id             int
	ends           [2]*socket // by the direction they write; nil: none yet, or closed
	client, server netip.AddrPort
	host, peer     *host // the client's; the server's, nil when there is no such host
	pipes          [2]pipe
	links          [2]*Link
	active         bool // the client closed first, so its port has to wait
	reset          bool
	removed        bool

	older, newer *Connection // among those that have an end left
}

// dial starts to connect s; errno is 0 when it is under way.
func (p *Process) dial(s *socket, to netip.AddrPort) syscall.Errno {
	w := p.world
	if !to.IsValid() || to.Port() == 0 || !sameFamily(to.Addr(), s.family) {
		return syscall.EINVAL
	}
	fault := p.faults.connect.take()
	port, ok := p.host.connectPort(to)
	if !ok {
		return syscall.EADDRNOTAVAIL
	}
	from, peer := p.host.address, w.hosts[to.Addr().Unmap()]
	if a := to.Addr(); a.IsLoopback() || a.IsUnspecified() {
		peer = p.host
		if a.IsLoopback() {
			from = a
		}
	}
	c := &Connection{
		world: w, id: w.opened, host: p.host, peer: peer,
		client: netip.AddrPortFrom(from, port), server: to,
	}
	w.opened++
	c.links[ToServer] = w.Link(p.host.address, w.far(p, peer, to))
	c.links[ToClient] = w.Link(w.far(p, peer, to), p.host.address)
	c.ends[ToServer] = s
	s.connection, s.side, s.connecting = c, ToServer, true
	w.enlist(c)
	if w.onConnect != nil {
		w.onConnect(c)
	}
	switch {
	case fault != 0:
		w.schedule(event{at: c.arrival(ToServer), kind: eventFailed, connection: c, errno: fault})
	case peer == nil:
		w.schedule(event{at: w.Now().After(unreachableAfter), kind: eventFailed, connection: c, errno: syscall.EHOSTUNREACH})
	default:
		w.schedule(event{at: c.arrival(ToServer), kind: eventSyn, connection: c})
	}
	return 0
}

// far is the address by which the link to the server is known.
func (w *World) far(_ *Process, peer *host, to netip.AddrPort) netip.Addr {
	if peer != nil {
		return peer.address
	}
	return to.Addr()
}

// local says whether both ends are on one host.
func (c *Connection) local() bool { return c.host == c.peer }

// arrival draws when a packet that leaves now arrives; packets of one direction stay in order.
func (c *Connection) arrival(d Direction) reactor.Instant {
	p := &c.pipes[d]
	p.last = max(p.last, c.world.Now().After(c.links[d].draw(c.world)))
	return p.last
}

// dark says whether packets of this direction vanish now.
func (c *Connection) dark(d Direction) bool { return c.links[d].black || c.pipes[d].stalled }

func (c *Connection) synArrives(attempt int) {
	w, client := c.world, c.ends[ToServer]
	if client == nil {
		return
	}
	listener := c.peer.listener(c.server)
	switch {
	case c.reset: // a fault broke it on the way
		w.schedule(event{at: c.arrival(ToClient), kind: eventFailed, connection: c, errno: syscall.ECONNRESET})
	case c.dark(ToServer) || c.dark(ToClient) || listener != nil && listener.refuses():
		c.retrySyn(attempt)
	case listener == nil:
		w.schedule(event{at: c.arrival(ToClient), kind: eventFailed, connection: c, errno: syscall.ECONNREFUSED})
	default:
		s := &socket{connection: c, side: ToClient, connected: true, options: listener.options, family: c.server.Addr()}
		c.ends[ToClient] = s
		listener.waiting = append(listener.waiting, s)
		listener.readable()
		w.schedule(event{at: c.arrival(ToClient), kind: eventConnected, connection: c})
	}
}

// refuses says whether a connection request is dropped; the client then asks again.
func (s *socket) refuses() bool {
	return len(s.waiting) > s.backlog || s.process.faults.hang.take() != 0
}

func (c *Connection) retrySyn(attempt int) {
	e := event{at: c.world.Now().After(synRetryFirst << attempt), kind: eventSyn, connection: c, n: attempt + 1}
	if attempt+1 >= synRetries {
		e.kind, e.errno = eventFailed, syscall.ETIMEDOUT
	}
	c.world.schedule(e)
}

// answerArrives ends the client's connecting.
func (c *Connection) answerArrives(errno syscall.Errno) {
	client := c.ends[ToServer]
	switch {
	case errno == 0 && c.dark(ToClient):
		c.world.schedule(event{at: c.world.Now().After(synRetryFirst), kind: eventConnected, connection: c})
		return
	case client == nil:
		if c.ends[ToClient] != nil {
			c.sendReset(ToServer)
		}
		return
	}
	client.connecting = false
	if errno == 0 {
		client.connected = true
	} else {
		client.refusal = errno
		client.connection = nil
		c.ends[ToServer] = nil
		c.retire()
	}
	client.writable()
	client.readable()
}

// write puts bytes of one end on their way and says how many fitted.
func (c *Connection) write(d Direction, op *reactor.Operation, chop int) int {
	p := &c.pipes[d]
	limit := c.world.options.Buffer - int(p.written-p.read)
	resets := false
	if p.resetAt > p.written {
		left := int(min(p.resetAt-p.written, uint64(c.world.options.Buffer)))
		limit = min(limit, left)
		resets = true
	}
	n := p.put(op, min(limit, chop), c.world.options.Buffer, &c.world.rings)
	if n == 0 {
		return 0
	}
	c.world.schedule(event{at: c.arrival(d), kind: eventSegment, connection: c, direction: d, n: n})
	if resets && p.written == p.resetAt {
		c.Reset()
	}
	return n
}

func (c *Connection) segmentArrives(d Direction, n int) {
	p := &c.pipes[d]
	if c.dark(d) || p.held > 0 {
		p.held += n
		c.startUserTimer(d)
		return
	}
	switch receiver := c.ends[1-d]; {
	case receiver == nil || receiver.broken: // nobody takes it; the writer is told once
		if !p.refused {
			p.refused = true
			c.sendReset(1 - d)
		}
	default:
		p.arrived += uint64(n)
		receiver.readable()
	}
}

func (c *Connection) finishArrives(d Direction) {
	p := &c.pipes[d]
	if c.dark(d) || p.held > 0 {
		p.heldFinish = true
		return
	}
	p.finished = true
	if receiver := c.ends[1-d]; receiver != nil {
		receiver.readable()
	}
}

func (c *Connection) sendReset(d Direction) {
	c.reset = true
	c.world.schedule(event{at: c.arrival(d), kind: eventReset, connection: c, direction: d})
}

func (c *Connection) resetArrives(d Direction) {
	if receiver := c.ends[1-d]; receiver != nil && !c.dark(d) {
		receiver.fail(syscall.ECONNRESET)
	}
}

// close takes one end away: in order when everything was read, by a reset otherwise.
func (c *Connection) close(s *socket, abort bool) {
	d := s.side
	other := c.ends[1-d]
	c.ends[d] = nil
	s.connection = nil
	switch {
	case s.connecting || s.broken:
	case abort || c.pipes[1-d].available() > 0:
		c.pipes[d].closed = true
		c.sendReset(d)
	default:
		c.finish(d)
		c.active = c.active || d == ToServer && other != nil && !c.pipes[ToClient].finished
	}
	c.retire()
}

// finish ends one direction after the bytes that are on their way.
func (c *Connection) finish(d Direction) {
	if p := &c.pipes[d]; !p.closed {
		p.closed = true
		c.world.schedule(event{at: c.arrival(d), kind: eventFinish, connection: c, direction: d})
	}
}

// retire forgets a connection that has no ends any more.
func (c *Connection) retire() {
	if c.removed || c.ends[0] != nil || c.ends[1] != nil {
		return
	}
	c.removed = true
	c.world.forget(c)
	if c.active && !c.reset {
		c.world.schedule(event{at: c.world.Now().After(portWait), kind: eventPort, connection: c})
		return
	}
	c.freePort()
}

func (c *Connection) freePort() { delete(c.host.local, portUse{c.client.Port(), c.server}) }

// enlist adds c to the world's connections.
func (w *World) enlist(c *Connection) {
	c.older = w.newest
	if c.older == nil {
		w.oldest = c
	} else {
		c.older.newer = c
	}
	w.newest = c
}

// forget takes c out of the world's connections, and its memory back.
func (w *World) forget(c *Connection) {
	if c.older == nil {
		w.oldest = c.newer
	} else {
		c.older.newer = c.newer
	}
	if c.newer == nil {
		w.newest = c.older
	} else {
		c.newer.older = c.older
	}
	c.older, c.newer = nil, nil
	for d := range c.pipes {
		c.pipes[d].drop(&w.rings)
	}
}
