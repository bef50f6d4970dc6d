package libcuda

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/orbitte/orbitte/cuda"
)

// What errors.Is matches. Each has one type that carries the facts.
var (
	ErrNoCgo         = errors.New("built without cgo")                    // *NoCgo
	ErrNoLibrary     = errors.New("no CUDA driver library")               // *NoLibrary
	ErrMissingSymbol = errors.New("CUDA driver library lacks a function") // *MissingSymbol
	ErrTooOld        = errors.New("CUDA driver too old")                  // *TooOld
	ErrStub          = errors.New("CUDA driver library is a stub")        // *Stub
	ErrNoDevice      = errors.New("no GPU")                               // *NoDevice
	ErrPermission    = errors.New("GPU is not accessible")                // *Permission
	ErrNotReady      = errors.New("CUDA driver cannot start")             // *NotReady
	ErrSignal        = errors.New("no eventfd")                           // *SignalError
	ErrBusy          = errors.New("too many driver calls")                // *Busy
)

// NoCgo says that this program was built without cgo, or for a system that is not Linux. Nothing was tried.
type NoCgo struct{}

func (*NoCgo) Error() string {
	return "libcuda: this program was built without cgo, which the CUDA driver needs; build it on Linux with CGO_ENABLED=1 and a C compiler"
}

// Is matches ErrNoCgo.
func (*NoCgo) Is(target error) bool { return target == ErrNoCgo }

// NoLibrary says that the loader could not open the library.
type NoLibrary struct {
	Path   string // what was asked for
	Loader string // the loader's own words
}

func (e *NoLibrary) Error() string {
	return fmt.Sprintf("libcuda: %s cannot be loaded (%s); it comes with NVIDIA's driver (Debian: libcuda1), in a container with the GPU (docker run --gpus all, capability compute); or set LD_LIBRARY_PATH to its folder", e.Path, e.Loader)
}

// Is matches ErrNoLibrary.
func (e *NoLibrary) Is(target error) bool { return target == ErrNoLibrary }

// MissingSymbol says that a library was opened and lacks a function that its version should have.
type MissingSymbol struct {
	Path    string
	Symbol  string // "cuMemAlloc_v2"
	Version int    // what the library calls itself, such as 12040; 0: it was not asked yet
	Loader  string // the loader's own words
}

func (e *MissingSymbol) Error() string {
	return fmt.Sprintf("libcuda: %s (%s) has no %s (%s); it is no CUDA driver or a broken one: install NVIDIA's driver anew, and look for another libcuda.so.1 in LD_LIBRARY_PATH", e.Path, version(e.Version), e.Symbol, e.Loader)
}

// Is matches ErrMissingSymbol.
func (e *MissingSymbol) Is(target error) bool { return target == ErrMissingSymbol }

// TooOld says that the driver is older than what was asked needs.
type TooOld struct {
	What  string // "this package", or a function such as "cuMemGetHandleForAddressRange"
	Path  string
	Has   int             // the driver's version of the API: 11020
	Needs int             // the least that is needed: 11030
	Call  *cuda.CallError // the failed call; nil from Load
}

func (e *TooOld) Error() string {
	return fmt.Sprintf("libcuda: %s is a driver of %s and %s needs %s or newer; install a newer NVIDIA driver (nvidia-smi shows the version as \"CUDA Version\")", e.Path, version(e.Has), e.What, version(e.Needs))
}

// Is matches ErrTooOld.
func (e *TooOld) Is(target error) bool { return target == ErrTooOld }

// Unwrap gives the native error.
func (e *TooOld) Unwrap() error { return unwrap(e.Call) }

// Stub says that the library is the one that the SDK has for linking: it has every name and does nothing.
type Stub struct {
	Path string
	Call *cuda.CallError
}

func (e *Stub) Error() string {
	return fmt.Sprintf("libcuda: %s is the SDK's stub for linking and no driver; take its folder (…/stubs) out of LD_LIBRARY_PATH, or install NVIDIA's driver (%v)", e.Path, e.Call)
}

// Is matches ErrStub.
func (e *Stub) Is(target error) bool { return target == ErrStub }

// Unwrap gives the native error.
func (e *Stub) Unwrap() error { return unwrap(e.Call) }

// NoDevice says that the driver is there and sees no GPU.
type NoDevice struct {
	Path    string
	Version int
	Hidden  bool   // CUDA_VISIBLE_DEVICES is set
	Visible string // to this
	Node    string // the control node, such as "/dev/nvidiactl"
	NodeErr error  // why it cannot be seen; nil: it is there
	Call    *cuda.CallError
}

func (e *NoDevice) Error() string {
	why := "look with nvidia-smi and in the kernel's log"
	switch {
	case e.NodeErr != nil:
		why = fmt.Sprintf("%s: %v; load the kernel module (modprobe nvidia) and, in a container, pass it the GPU (docker run --gpus all)", e.Node, e.NodeErr)
	case e.Hidden:
		why = fmt.Sprintf("CUDA_VISIBLE_DEVICES is %q, which hides some or all; unset it or name a GPU that is there", e.Visible)
	}
	return fmt.Sprintf("libcuda: %s (%s) sees no GPU (%v); %s", e.Path, version(e.Version), e.Call, why)
}

// Is matches ErrNoDevice.
func (e *NoDevice) Is(target error) bool { return target == ErrNoDevice }

// Unwrap gives the native error.
func (e *NoDevice) Unwrap() error { return unwrap(e.Call) }

// Permission says that a GPU is there and the process may not open it.
type Permission struct {
	Node string // "/dev/nvidia0"
	Err  error  // why, an errno of opening the node
	Call *cuda.CallError
}

func (e *Permission) Error() string {
	return fmt.Sprintf("libcuda: no access to %s (%v); give the user read and write permission on it (groups video or render, or a udev rule) and, in a container, allow the device (%v)", e.Node, e.Err, e.Call)
}

// Is matches ErrPermission.
func (e *Permission) Is(target error) bool { return target == ErrPermission }

// Unwrap gives the reason and the native error.
func (e *Permission) Unwrap() []error { return []error{e.Err, e.Call} }

// NotReady says that the driver refused to start for a reason of its own.
type NotReady struct {
	Path    string
	Version int
	Call    *cuda.CallError
}

// remedies of the results with which cuInit refuses.
var remedies = map[cuda.Result]string{
	46:                      "the GPU is taken: another process holds it in exclusive mode, or MPS does; end that process",
	102:                     "the virtual GPU has no licence; ask who runs the host",
	cuda.SystemNotReady:     "a service that the GPUs need is not up; start nvidia-fabricmanager (NVSwitch) or nvidia-persistenced, then try again",
	cuda.DriverMismatch:     "the library and the loaded kernel module are of different versions; reboot, or reload the module, after a driver update; in a container, mount the host's library",
	cuda.CompatNotSupported: "a library of the package cuda-compat was taken, which this GPU or driver does not support; take its folder out of LD_LIBRARY_PATH",
	805:                     "no connection to the MPS server; start nvidia-cuda-mps-control or unset CUDA_MPS_PIPE_DIRECTORY",
	806:                     "the MPS server failed; restart nvidia-cuda-mps-control",
	807:                     "the MPS server is not ready; try again",
}

func (e *NotReady) Error() string {
	remedy, ok := remedies[e.Call.Result]
	if !ok {
		remedy = "look with nvidia-smi and in the kernel's log (dmesg, lines with NVRM and Xid)"
	}
	return fmt.Sprintf("libcuda: %s (%s) cannot start: %v; %s", e.Path, version(e.Version), e.Call, remedy)
}

// Is matches ErrNotReady.
func (e *NotReady) Is(target error) bool { return target == ErrNotReady }

// Unwrap gives the native error.
func (e *NotReady) Unwrap() error { return unwrap(e.Call) }

// SignalError says that the system refused to make or to read a signal's eventfd.
type SignalError struct {
	Call  string // "eventfd" or "read"
	Errno syscall.Errno
}

// operatingSystem is CUDA_ERROR_OPERATING_SYSTEM.
const operatingSystem cuda.Result = 304

func (e *SignalError) Error() string {
	remedy := "a program that closes or reads descriptors of others may have touched it"
	if e.Call == "eventfd" {
		remedy = "raise the limit of open files (ulimit -n), or close some"
	}
	return fmt.Sprintf("libcuda: %s of a signal's descriptor: %v (errno %d); %s", e.Call, e.Errno, int(e.Errno), remedy)
}

// Is matches ErrSignal.
func (e *SignalError) Is(target error) bool { return target == ErrSignal }

// Unwrap gives the errno, and the form that every failed call has.
func (e *SignalError) Unwrap() []error {
	return []error{e.Errno, &cuda.CallError{Call: e.Call, Object: "a signal", Result: operatingSystem, Name: e.Errno.Error(), Effect: cuda.None}}
}

// Busy says that a call was refused before it entered the driver, since too many are inside and waiting: it had no
// effect. Calls that end an object, or wait for one, are never refused so.
type Busy struct {
	Call    string
	Inside  int // at most so many at once
	Waiting int // and so many wait already
}

func (e *Busy) Error() string {
	return fmt.Sprintf("libcuda: %s was not begun: %d driver calls are inside the library and %d wait; the driver or a GPU hangs, or the program makes far too many at once", e.Call, e.Inside, e.Waiting)
}

// Is matches ErrBusy and EAGAIN.
func (e *Busy) Is(target error) bool { return target == ErrBusy || target == error(syscall.EAGAIN) }

// unwrap keeps a nil pointer from becoming an error.
func unwrap(e *cuda.CallError) error {
	if e == nil {
		return nil
	}
	return e
}

// version writes a version as NVIDIA does.
func version(v int) string {
	if v == 0 {
		return "version unknown"
	}
	return fmt.Sprintf("CUDA %d.%d", v/1000, v%1000/10)
}
