package socket

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
)

// DefaultBacklog is the backlog of a listener whose options name none; the system caps it at
// net.core.somaxconn.
const DefaultBacklog = 128

// Listen makes a listening stream socket; the caller closes it. "::" listens on IPv4 as well. The returned
// address has the port that the system chose for port 0.
func Listen(at netip.AddrPort, o *reactor.SocketOptions) (int, netip.AddrPort, error) {
	fd, to, err := create(at)
	if err != nil {
		return -1, netip.AddrPort{}, err
	}
	bound, err := listen(fd, at, &to, o)
	if err != nil {
		_ = unix.Close(fd)
		return -1, netip.AddrPort{}, err
	}
	return fd, bound, nil
}

func listen(fd int, at netip.AddrPort, to *address, o *reactor.SocketOptions) (netip.AddrPort, error) {
	if o.ReuseAddress {
		if err := setInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, "SO_REUSEADDR", 1); err != nil {
			return netip.AddrPort{}, err
		}
	}
	if family(at.Addr()) == unix.AF_INET6 {
		if err := setInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, "IPV6_V6ONLY", 0); err != nil {
			return netip.AddrPort{}, err
		}
	}
	// Accepted streams inherit these, and the receive buffer must be known before the handshake.
	if err := apply(fd, o); err != nil {
		return netip.AddrPort{}, err
	}
	if e := bind(fd, to); e != 0 {
		return netip.AddrPort{}, callError("bind", at.String(), e)
	}
	backlog := o.Backlog
	if backlog == 0 {
		backlog = DefaultBacklog
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return netip.AddrPort{}, callError("listen", at.String(), err)
	}
	bound, e := localName(fd)
	if e != 0 {
		return netip.AddrPort{}, callError("getsockname", at.String(), e)
	}
	return bound, nil
}

// Open makes a stream socket that can connect to peer; the caller closes it.
func Open(peer netip.AddrPort, o *reactor.SocketOptions) (int, error) {
	fd, _, err := create(peer)
	if err != nil {
		return -1, err
	}
	if err := apply(fd, o); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	if o.Congestion == AutoCongestion && peer.Addr().IsLoopback() {
		easeCongestion(fd) // known before connecting, so that the first flight has it
	}
	return fd, nil
}

// Close closes a descriptor. Linux has released it also when close(2) says EINTR.
func Close(fd int) error {
	err := unix.Close(fd)
	if err == nil || err == unix.EINTR {
		return nil
	}
	return callError("close", "descriptor", err)
}

func create(a netip.AddrPort) (int, address, error) {
	to, e := encode(a)
	if e != 0 {
		return -1, to, callError("socket", a.String(), e)
	}
	fd, err := unix.Socket(family(a.Addr()), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return -1, to, callError("socket", a.String(), err)
	}
	return fd, to, nil
}
