package simkernel

import (
	"net/netip"
	"syscall"

	"github.com/orbitte/orbitte/reactor"
)

type socketKind uint8

const (
	streamSocket socketKind = iota
	listenSocket
	foreignSocket
)

// socket is what a descriptor names.
type socket struct {
	kind       socketKind
	process    *Process // nil until accepted
	descriptor reactor.Descriptor
	options    reactor.SocketOptions

	// Outstanding operations, ready or parked; Accept is in receiving, Connect in sending.
	receiving, sending, watching *operation

	// Streams.
	family     netip.Addr // an address of the family the socket was opened for
	connection *Connection
	side       Direction // the direction this end writes
	connecting bool
	connected  bool
	refusal    syscall.Errno // how the last connect failed; taken by the Connect operation
	failure    syscall.Errno // reported once, to a receive or a send
	broken     bool          // reset or timed out: nothing more arrives or leaves

	// Listeners.
	address netip.AddrPort
	waiting []*socket // server ends that nobody accepted yet
	backlog int

	signalled bool // foreign descriptors
}

// incoming and outgoing are the two directions as seen from this end.
func (s *socket) incoming() *pipe { return &s.connection.pipes[1-s.side] }
func (s *socket) outgoing() *pipe { return &s.connection.pipes[s.side] }

// readable puts the operations that wait for bytes, an end or a connection back in line.
func (s *socket) readable() {
	s.receiving.requeue()
	s.watching.requeue()
}

func (s *socket) writable() { s.sending.requeue() }

func (s *socket) busy() bool { return s.receiving != nil || s.sending != nil || s.watching != nil }

// drop forgets outstanding operations; only a killed process does this.
func (s *socket) drop() { s.receiving, s.sending, s.watching = nil, nil, nil }

// fail breaks the stream: errno is reported once, unless the peer's end was seen before, as Linux does.
func (s *socket) fail(errno syscall.Errno) {
	if s.broken {
		return
	}
	s.broken = true
	if !s.incoming().finished {
		s.failure = errno
	}
	s.readable()
	s.writable()
}

// end lets go of what the socket has; abort resets the connection instead of finishing it.
func (s *socket) end(abort bool) {
	switch s.kind {
	case listenSocket:
		s.process.host.unlisten(s)
		for _, waiting := range s.waiting {
			waiting.end(true)
		}
		s.waiting = nil
	case streamSocket:
		if s.connection != nil {
			s.connection.close(s, abort)
		}
	}
}

func (h *host) unlisten(s *socket) {
	for i, other := range h.listeners {
		if other == s {
			h.listeners = append(h.listeners[:i], h.listeners[i+1:]...)
			return
		}
	}
}

// listen makes a listener.
func (p *Process) listen(a netip.AddrPort, o reactor.SocketOptions) (*socket, error) {
	switch {
	case !a.Addr().IsValid():
		return nil, syscall.EINVAL
	case p.faults.listen.take() != 0:
		return nil, p.faults.listen.errno
	case p.full():
		return nil, syscall.EMFILE
	case !p.host.owns(a.Addr()):
		return nil, syscall.EADDRNOTAVAIL
	}
	if a.Port() == 0 {
		chosen, ok := p.host.listenPort(a.Addr())
		if !ok {
			return nil, syscall.EADDRINUSE
		}
		a = chosen
	} else if p.host.conflicts(a) {
		return nil, syscall.EADDRINUSE
	}
	s := &socket{kind: listenSocket, address: a, options: o, backlog: o.Backlog}
	if s.backlog <= 0 {
		s.backlog = 128
	}
	p.install(s)
	p.host.listeners = append(p.host.listeners, s)
	return s, nil
}

// congestion says which congestion control a stream has under these options.
func (s *socket) congestion(o reactor.SocketOptions) (string, error) {
	switch o.Congestion {
	case "":
		return "cubic", nil
	case "reno", "cubic", "bbr":
		return o.Congestion, nil
	case "auto":
		if s.connection != nil && s.connection.local() {
			return "reno", nil
		}
		return "cubic", nil
	}
	return "", syscall.ENOENT
}

// receive moves bytes that arrived; done is false when there is nothing to say yet.
func (s *socket) receive(op *reactor.Operation, chop int) (n int, errno syscall.Errno, done bool) {
	if s.connection == nil || !s.connected {
		return 0, syscall.ENOTCONN, true
	}
	in := s.incoming()
	if in.available() > 0 {
		n = in.take(op, chop, &s.connection.world.rings)
		if writer := s.connection.ends[1-s.side]; writer != nil {
			writer.writable()
		}
		return n, 0, true
	}
	if s.failure != 0 {
		errno, s.failure = s.failure, 0
		return 0, errno, true
	}
	return 0, 0, in.finished || s.broken
}

// send takes bytes on their way; done is false when there is no space.
func (s *socket) send(op *reactor.Operation, chop int) (n int, errno syscall.Errno, done bool) {
	switch {
	case s.failure != 0:
		errno, s.failure = s.failure, 0
		return 0, errno, true
	case s.broken:
		return 0, syscall.EPIPE, true
	case s.connection == nil || !s.connected:
		return 0, syscall.ENOTCONN, true
	case s.outgoing().closed:
		return 0, syscall.EPIPE, true
	}
	n = s.connection.write(s.side, op, chop)
	return n, 0, n > 0
}

// ready says whether a Watch ends.
func (s *socket) ready() bool {
	switch s.kind {
	case listenSocket:
		return len(s.waiting) > 0
	case foreignSocket:
		return s.signalled
	}
	return s.connection != nil && s.connected && (s.incoming().available() > 0 || s.incoming().finished) ||
		s.broken || s.failure != 0
}
