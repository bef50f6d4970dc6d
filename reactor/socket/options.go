package socket

import (
	"errors"
	"math"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
)

// AutoCongestion asks for reno when the peer is on the same host and for nothing otherwise. The model-based
// default of many systems (bbr) paces, which costs loopback up to five times; reno needs no privilege.
const AutoCongestion = "auto"

const sameHostCongestion = "reno"

// Tune applies o to a stream and returns the congestion control it has then. On a stream without a peer yet,
// AutoCongestion does nothing; tune it again when it is connected.
func Tune(fd int, o *reactor.SocketOptions) (string, error) {
	if err := apply(fd, o); err != nil {
		return "", err
	}
	if o.Congestion == AutoCongestion && sameHost(fd) {
		easeCongestion(fd)
	}
	return congestion(fd)
}

// apply sets everything but AutoCongestion.
func apply(fd int, o *reactor.SocketOptions) error {
	if err := setInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, "TCP_NODELAY", 1); err != nil {
		return err
	}
	// Tells with each receive how much is left, which saves the next one if that is nothing (Linux 4.18).
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_INQ, 1)
	if err := setKeepalive(fd, o); err != nil {
		return err
	}
	if o.UserTimeout != 0 {
		ms, err := ticks("TCP_USER_TIMEOUT", o.UserTimeout, time.Millisecond, math.MaxInt32)
		if err != nil {
			return err
		}
		if err := setInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, "TCP_USER_TIMEOUT", ms); err != nil {
			return err
		}
	}
	if err := setBuffers(fd, o); err != nil {
		return err
	}
	if o.Congestion == "" || o.Congestion == AutoCongestion {
		return nil
	}
	return setCongestion(fd, o.Congestion)
}

// setKeepalive turns keepalive on when any of its three numbers is given. Linux takes 1–32767 s, 1–32767 s
// and 1–127 probes (tcp(7)).
func setKeepalive(fd int, o *reactor.SocketOptions) error {
	if o.KeepaliveIdle == 0 && o.KeepaliveInterval == 0 && o.KeepaliveCount == 0 {
		return nil
	}
	if err := setInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, "SO_KEEPALIVE", 1); err != nil {
		return err
	}
	for _, t := range [...]struct {
		name   string
		option int
		value  time.Duration
	}{
		{"TCP_KEEPIDLE", unix.TCP_KEEPIDLE, o.KeepaliveIdle},
		{"TCP_KEEPINTVL", unix.TCP_KEEPINTVL, o.KeepaliveInterval},
	} {
		if t.value == 0 {
			continue
		}
		s, err := ticks(t.name, t.value, time.Second, math.MaxInt16)
		if err != nil {
			return err
		}
		if err := setInt(fd, unix.IPPROTO_TCP, t.option, t.name, s); err != nil {
			return err
		}
	}
	if o.KeepaliveCount == 0 {
		return nil
	}
	return setInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, "TCP_KEEPCNT", o.KeepaliveCount)
}

// ticks converts d to whole units, rounded up so that no time is shorter than asked for.
func ticks(option string, d, unit time.Duration, most int) (int, error) {
	n := d / unit
	if d%unit > 0 {
		n++
	}
	if d < 0 || n > time.Duration(most) {
		limit := "give a time from " + unit.String() + " to " + strconv.Itoa(most) + " times that"
		return 0, &OptionError{option, d.String(), unix.EINVAL, limit}
	}
	return int(n), nil
}

// setBuffers fixes the socket buffers. The system doubles the values and silently caps them at
// net.core.wmem_max and rmem_max (socket(7)).
func setBuffers(fd int, o *reactor.SocketOptions) error {
	if o.SendBuffer != 0 {
		if err := setBuffer(fd, unix.SO_SNDBUF, "SO_SNDBUF", o.SendBuffer); err != nil {
			return err
		}
	}
	if o.ReceiveBuffer != 0 {
		return setBuffer(fd, unix.SO_RCVBUF, "SO_RCVBUF", o.ReceiveBuffer)
	}
	return nil
}

func setBuffer(fd, option int, name string, value int) error {
	if value < 0 || value > math.MaxInt32 {
		return &OptionError{name, strconv.Itoa(value), unix.EINVAL, "give bytes, or 0 for autotuning"}
	}
	return setInt(fd, unix.SOL_SOCKET, option, name, value)
}

// setCongestion sets a congestion control that was asked for by name.
func setCongestion(fd int, name string) error {
	err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
	if err == nil {
		return nil
	}
	var errno syscall.Errno
	errors.As(err, &errno)
	remedy := "load the module tcp_" + name + " or take one of net.ipv4.tcp_available_congestion_control"
	if errno == unix.EPERM {
		remedy = "add it to net.ipv4.tcp_allowed_congestion_control, or give the process CAP_NET_ADMIN"
	}
	return &OptionError{"TCP_CONGESTION", name, errno, remedy}
}

// easeCongestion is the automatic choice, which the system may refuse without harm: Tune reports what the
// stream really has.
func easeCongestion(fd int) {
	_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, sameHostCongestion)
}

// congestion reads which congestion control a stream has.
func congestion(fd int) (string, error) {
	s, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err != nil {
		return "", optionError("TCP_CONGESTION", "(read)", err)
	}
	return s, nil
}

// sameHost says whether the stream's peer is this machine: a loopback address, or the stream's own one.
func sameHost(fd int) bool {
	peer, e := peerName(fd)
	if e != 0 || !peer.IsValid() {
		return false
	}
	local, e := localName(fd)
	return e == 0 && isSameHost(local.Addr(), peer.Addr())
}

func isSameHost(local, peer netip.Addr) bool {
	return peer.IsLoopback() || peer.Unmap() == local.Unmap()
}

func setInt(fd, level, option int, name string, value int) error {
	if err := unix.SetsockoptInt(fd, level, option, value); err != nil {
		return optionError(name, strconv.Itoa(value), err)
	}
	return nil
}

func optionError(name, value string, err error) error {
	var errno syscall.Errno
	errors.As(err, &errno)
	remedy := ""
	if errno == unix.EOPNOTSUPP || errno == unix.ENOPROTOOPT {
		remedy = "the descriptor is no TCP socket"
	}
	return &OptionError{name, value, errno, remedy}
}
