package simkernel

import (
	"net/netip"
	"syscall"

	"github.com/orbitte/orbitte/reactor"
)

const (
	ephemeralFirst = 32768
	ephemeralPorts = 28232
	// firstDescriptor leaves out the standard streams.
	firstDescriptor = 3
)

var (
	loopback4 = netip.MustParseAddr("127.0.0.1")
	loopback6 = netip.MustParseAddr("::1")
)

// host is one machine: its ports are shared by its processes.
type host struct {
	world     *World
	address   netip.Addr
	listeners []*socket
	local     map[portUse]bool // ports of connections made from here; looked up by key only
	nextPort  int
	limit     int
}

// portUse is a local port towards one peer, which may not be used twice.
type portUse struct {
	port uint16
	peer netip.AddrPort
}

// hostOf returns the host with this address. Loopback addresses of both families are one host of
// their own, for processes that were given no other.
func (w *World) hostOf(a netip.Addr) *host {
	a = a.Unmap()
	if a == loopback6 {
		a = loopback4
	}
	h := w.hosts[a]
	if h == nil {
		h = &host{world: w, address: a, local: map[portUse]bool{}, limit: w.options.EphemeralPorts}
		w.hosts[a] = h
	}
	return h
}

// owns says whether a socket of this host may be bound to a.
func (h *host) owns(a netip.Addr) bool {
	return a == h.address || a.IsUnspecified() || a == loopback4 || a == loopback6
}

// listener finds who listens for connections to a.
func (h *host) listener(a netip.AddrPort) *socket {
	for _, s := range h.listeners {
		if s.address.Port() == a.Port() && (s.address.Addr() == a.Addr() || s.address.Addr().IsUnspecified() && sameFamily(s.address.Addr(), a.Addr())) {
			return s
		}
	}
	return nil
}

func sameFamily(a, b netip.Addr) bool { return a.Is4() == b.Is4() }

// conflicts says whether a listener on a would collide with another one.
func (h *host) conflicts(a netip.AddrPort) bool {
	for _, s := range h.listeners {
		b := s.address
		if a.Port() == b.Port() && sameFamily(a.Addr(), b.Addr()) &&
			(a.Addr() == b.Addr() || a.Addr().IsUnspecified() || b.Addr().IsUnspecified()) {
			return true
		}
	}
	return false
}

// listenPort chooses a port for a listener on address.
func (h *host) listenPort(address netip.Addr) (netip.AddrPort, bool) {
	for range ephemeralPorts {
		a := netip.AddrPortFrom(address, h.rotate(ephemeralPorts))
		if !h.conflicts(a) {
			return a, true
		}
	}
	return netip.AddrPort{}, false
}

func (h *host) rotate(ports int) uint16 {
	port := ephemeralFirst + h.nextPort%ports
	h.nextPort++
	return uint16(port)
}

// connectPort reserves a local port towards peer.
func (h *host) connectPort(peer netip.AddrPort) (uint16, bool) {
	for range h.limit {
		use := portUse{h.rotate(h.limit), peer}
		if !h.local[use] {
			h.local[use] = true
			return use.port, true
		}
	}
	return 0, false
}

// Process is one simulated process: a descriptor table on a host. Descriptors may be used by all
// kernels of the process.
type Process struct {
	world   *World
	host    *host
	name    string
	sockets []*socket // by descriptor - firstDescriptor; nil: free
	vacant  []int     // free places in sockets: a binary heap, the lowest first
	limit   int
	kernels []*Kernel
	killed  bool
	faults  processFaults
}

// Process starts a process on the host with this address. Processes with the same address share a
// host, and with it the ports.
func (w *World) Process(name string, address netip.Addr) *Process {
	return &Process{world: w, host: w.hostOf(address), name: name, limit: w.options.Descriptors}
}

// Name is the name the process was given.
func (p *Process) Name() string { return p.name }

// Descriptors is how many descriptors the process has open.
func (p *Process) Descriptors() int { return len(p.sockets) - len(p.vacant) }

// LimitDescriptors sets how many descriptors the process may have open; those beyond stay.
func (p *Process) LimitDescriptors(n int) { p.limit = n }

// full says whether no further descriptor may be opened.
func (p *Process) full() bool { return p.Descriptors() >= p.limit }

// install gives a socket the lowest free descriptor, as Linux does, so that stale descriptors hit
// somebody.
func (p *Process) install(s *socket) reactor.Descriptor {
	s.process = p
	if len(p.vacant) > 0 {
		i := p.takeVacant()
		p.sockets[i] = s
		s.descriptor = reactor.Descriptor(i + firstDescriptor)
		return s.descriptor
	}
	p.sockets = append(p.sockets, s)
	s.descriptor = reactor.Descriptor(len(p.sockets) - 1 + firstDescriptor)
	return s.descriptor
}

func (p *Process) find(d reactor.Descriptor) *socket {
	i := int(d) - firstDescriptor
	if i < 0 || i >= len(p.sockets) {
		return nil
	}
	return p.sockets[i]
}

func (p *Process) remove(s *socket) {
	place := int(s.descriptor) - firstDescriptor
	p.sockets[place] = nil
	p.vacant = append(p.vacant, place)
	h := p.vacant
	for i := len(h) - 1; i > 0 && h[i] < h[(i-1)/2]; i = (i - 1) / 2 {
		h[i], h[(i-1)/2] = h[(i-1)/2], h[i]
	}
}

// takeVacant takes the lowest free place.
func (p *Process) takeVacant() int {
	h, last := p.vacant, len(p.vacant)-1
	lowest := h[0]
	h[0] = h[last]
	p.vacant = h[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child+1 < last && h[child+1] < h[child] {
			child++
		}
		if child >= last || h[i] < h[child] {
			return lowest
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}

// Signal makes a descriptor that is no stream, like an eventfd: watching it ends when signal was
// called. It stays signalled until Unsignal of the descriptor.
func (p *Process) Signal() (d reactor.Descriptor, signal func(), err error) {
	if p.full() {
		return reactor.NoDescriptor, nil, syscall.EMFILE
	}
	s := &socket{kind: foreignSocket}
	d = p.install(s)
	return d, func() {
		s.signalled = true
		s.readable()
	}, nil
}

// Unsignal takes the signal from a descriptor made by Signal, as reading an eventfd does.
func (p *Process) Unsignal(d reactor.Descriptor) {
	if s := p.find(d); s != nil {
		s.signalled = false
	}
}

// Kill ends the process at once, as SIGKILL does: its connections are reset, its ports are free, and
// its kernels complete nothing more.
func (p *Process) Kill() {
	p.killed = true
	for _, k := range p.kernels {
		k.die()
	}
	for _, s := range p.sockets {
		if s != nil {
			s.drop()
			s.end(true)
		}
	}
	p.sockets, p.vacant = nil, nil
}
