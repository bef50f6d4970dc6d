package socket

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// CallError is a refused system call: which, on what, why, and what helps. errors.Is finds the Errno.
type CallError struct {
	Call   string // "bind"
	Object string // an address, or what the descriptor is for
	Errno  syscall.Errno
	Remedy string // "" when none is known
}

func (e *CallError) Error() string {
	return withRemedy(fmt.Sprintf("socket: %s %s: %v", e.Call, e.Object, e.Errno), e.Remedy)
}

func (e *CallError) Unwrap() error { return e.Errno }

// OptionError is a socket option that the system refused or that has no meaning. errors.Is finds the Errno.
type OptionError struct {
	Option string // "TCP_CONGESTION"
	Value  string // as it was asked for
	Errno  syscall.Errno
	Remedy string
}

func (e *OptionError) Error() string {
	return withRemedy(fmt.Sprintf("socket: option %s = %s: %v", e.Option, e.Value, e.Errno), e.Remedy)
}

func (e *OptionError) Unwrap() error { return e.Errno }

func withRemedy(text, remedy string) string {
	if remedy == "" {
		return text
	}
	return text + " (" + remedy + ")"
}

// remedies are for errors whose text alone does not tell what to do.
var remedies = map[syscall.Errno]string{
	unix.EMFILE:        "raise RLIMIT_NOFILE or close descriptors of this process",
	unix.ENFILE:        "raise fs.file-max or close descriptors on this machine",
	unix.EADDRINUSE:    "another socket listens there; choose another port, or port 0",
	unix.EADDRNOTAVAIL: "no network interface of this machine has that address",
	unix.EACCES:        "ports below net.ipv4.ip_unprivileged_port_start need CAP_NET_BIND_SERVICE",
	unix.EAFNOSUPPORT:  "the address is invalid, or its family is disabled here",
}

// callError wraps what x/sys returned.
func callError(call, object string, err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return fmt.Errorf("socket: %s %s: %w", call, object, err)
	}
	return &CallError{call, object, errno, remedies[errno]}
}
