package socket

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// address is a struct sockaddr_in or sockaddr_in6 (ip(7), ipv6(7)) as bytes.
type address struct {
	bytes  [unix.SizeofSockaddrInet6]byte
	length uint32
}

// family says which sockets reach a: AF_INET also for IPv4 written as IPv6 (::ffff:192.0.2.1), so that one
// peer has one spelling. An invalid address has no family.
func family(a netip.Addr) int {
	switch {
	case a.Is4(), a.Is4In6():
		return unix.AF_INET
	case a.Is6():
		return unix.AF_INET6
	}
	return unix.AF_UNSPEC
}

// encode writes a for the kernel; EAFNOSUPPORT for an invalid address, ENODEV for an unknown zone.
func encode(a netip.AddrPort) (address, syscall.Errno) {
	var s address
	ip := a.Addr().Unmap()
	binary.BigEndian.PutUint16(s.bytes[2:], a.Port())
	switch family(ip) {
	case unix.AF_INET:
		binary.NativeEndian.PutUint16(s.bytes[:], unix.AF_INET)
		four := ip.As4()
		copy(s.bytes[4:], four[:])
		s.length = unix.SizeofSockaddrInet4
	case unix.AF_INET6:
		binary.NativeEndian.PutUint16(s.bytes[:], unix.AF_INET6)
		sixteen := ip.As16()
		copy(s.bytes[8:], sixteen[:])
		scope, errno := scopeOf(ip.Zone())
		if errno != 0 {
			return s, errno
		}
		binary.NativeEndian.PutUint32(s.bytes[24:], scope)
		s.length = unix.SizeofSockaddrInet6
	default:
		return s, unix.EAFNOSUPPORT
	}
	return s, 0
}

// decode reads what the kernel wrote; the zero AddrPort for a family other than IPv4 and IPv6. IPv4 written
// as IPv6 comes back as IPv4. It allocates only for link-local addresses (their zone).
func (s *address) decode() netip.AddrPort {
	port := binary.BigEndian.Uint16(s.bytes[2:])
	switch {
	case s.length >= unix.SizeofSockaddrInet4 && binary.NativeEndian.Uint16(s.bytes[:]) == unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(s.bytes[4:8])), port)
	case s.length >= unix.SizeofSockaddrInet6 && binary.NativeEndian.Uint16(s.bytes[:]) == unix.AF_INET6:
		ip := netip.AddrFrom16([16]byte(s.bytes[8:24])).Unmap()
		if scope := binary.NativeEndian.Uint32(s.bytes[24:]); scope != 0 && ip.Is6() {
			ip = ip.WithZone(strconv.FormatUint(uint64(scope), 10))
		}
		return netip.AddrPortFrom(ip, port)
	}
	return netip.AddrPort{}
}

// scopeOf turns a zone, an interface's number or name, into a scope ID.
func scopeOf(zone string) (uint32, syscall.Errno) {
	if zone == "" {
		return 0, 0
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n), 0
	}
	link, err := net.InterfaceByName(zone)
	if err != nil {
		return 0, unix.ENODEV
	}
	return uint32(link.Index), 0
}
