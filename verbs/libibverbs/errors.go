package libibverbs

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/orbitte/orbitte/verbs"
)

// What errors.Is matches. Each has one type that carries the facts.
var (
	ErrNoCgo         = errors.New("built without cgo")             // *NoCgo
	ErrNoLibrary     = errors.New("no RDMA library")               // *NoLibrary
	ErrMissingSymbol = errors.New("RDMA library lacks a function") // *MissingSymbol
	ErrNoDevice      = errors.New("no RDMA device")                // *NoDevice
	ErrPermission    = errors.New("RDMA device is not accessible") // *Permission
	ErrBusy          = errors.New("too many native calls")         // *Busy
)

// NoCgo says that this program was built without cgo, or for a system that is not Linux. Nothing was tried.
type NoCgo struct{}

func (*NoCgo) Error() string {
	return "libibverbs: this program was built without cgo, which the native RDMA library needs; build it on Linux with CGO_ENABLED=1 and a C compiler"
}

// Is matches ErrNoCgo.
func (*NoCgo) Is(target error) bool { return target == ErrNoCgo }

// NoLibrary says that the loader could not open the library.
type NoLibrary struct {
	Path   string // what was asked for
	Loader string // the loader's own words
}

func (e *NoLibrary) Error() string {
	return fmt.Sprintf("libibverbs: %s cannot be loaded (%s); install it (Debian, Ubuntu: libibverbs1 ibverbs-providers; Fedora, RHEL: libibverbs) or set LD_LIBRARY_PATH", e.Path, e.Loader)
}

// Is matches ErrNoLibrary.
func (*NoLibrary) Is(target error) bool { return target == ErrNoLibrary }

// MissingSymbol says that a library was opened and lacks a function that this package needs.
type MissingSymbol struct {
	Path    string
	Symbol  string // "ibv_create_qp"
	Version string // "IBVERBS_1.1"
	Loader  string // the loader's own words
}

func (e *MissingSymbol) Error() string {
	return fmt.Sprintf("libibverbs: %s has no %s of version %s (%s); it is no rdma-core library or a broken one: install libibverbs1 of rdma-core", e.Path, e.Symbol, e.Version, e.Loader)
}

// Is matches ErrMissingSymbol.
func (*MissingSymbol) Is(target error) bool { return target == ErrMissingSymbol }

// NoDevice says that there is no device of a name.
type NoDevice struct {
	Name string   // asked for
	Seen []string // the devices there are
	Err  *verbs.CallError
}

func (e *NoDevice) Error() string {
	if len(e.Seen) == 0 {
		return fmt.Sprintf("libibverbs: no device %q: this process sees no RDMA device at all; load the adapter's driver (such as mlx5_ib) and, in a container, pass it /dev/infiniband and /sys/class/infiniband", e.Name)
	}
	return fmt.Sprintf("libibverbs: no device %q; there are: %s", e.Name, strings.Join(e.Seen, ", "))
}

// Is matches ErrNoDevice.
func (*NoDevice) Is(target error) bool { return target == ErrNoDevice }

// Unwrap gives the native error.
func (e *NoDevice) Unwrap() error { return e.Err }

// Permission says that a device is there and the process may not open it.
type Permission struct {
	Device string
	Node   string           // "/dev/infiniband/uverbs0"
	Err    error            // why, an errno of opening the node
	Call   *verbs.CallError // from OpenDevice: what the library said, which may be less (it looks for the node elsewhere and reports that)
}

func (e *Permission) Error() string {
	if errors.Is(e.Err, syscall.ENOENT) {
		return fmt.Sprintf("libibverbs: device %s has no node %s (%v); load ib_uverbs and, in a container, pass it the node", e.Device, e.Node, e.Err)
	}
	return fmt.Sprintf("libibverbs: device %s: no access to %s (%v); give the user read and write permission on it (group rdma, or a udev rule) and, in a container, allow the device", e.Device, e.Node, e.Err)
}

// Is matches ErrPermission.
func (*Permission) Is(target error) bool { return target == ErrPermission }

// Unwrap gives the reason and the native error.
func (e *Permission) Unwrap() []error {
	if e.Call == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Call}
}

// Busy says that a call was refused before it entered the library, since too many are inside and waiting: it had no
// effect. Calls that end an object are never refused so.
type Busy struct {
	Call    string
	Inside  int // at most so many at once
	Waiting int // and so many wait already
}

func (e *Busy) Error() string {
	return fmt.Sprintf("libibverbs: %s was not begun: %d native calls are inside the library and %d wait; the driver or a device hangs, or the program makes far too many at once", e.Call, e.Inside, e.Waiting)
}

// Is matches ErrBusy and EAGAIN.
func (*Busy) Is(target error) bool { return target == ErrBusy || target == error(syscall.EAGAIN) }
