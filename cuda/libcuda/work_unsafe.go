//go:build linux

package libcuda

// #include "abi.h"
// #include "shim.h"
// #cgo noescape orbcu_submit
// #cgo nocallback orbcu_submit
// #cgo nocallback orbcu_query
// #cgo nocallback orbcu_synchronize
// #cgo nocallback orbcu_zero
// #cgo noescape orbcu_open_signal
// #cgo nocallback orbcu_open_signal
// #cgo nocallback orbcu_signal_descriptor
// #cgo noescape orbcu_take_signal
// #cgo nocallback orbcu_take_signal
// #cgo nocallback orbcu_close_signal
import "C"

import (
	"syscall"
	"unsafe"

	"github.com/orbitte/orbitte/cuda"
)

// Lists cross as they lie: each difference of two layouts would make one of these arrays' lengths something else than
// 0, and the package would not build. work.c holds the C side against numbers, layout_test.go the Go side.
var (
	_ [0]struct{} = [unsafe.Sizeof(cuda.Copy{}) - C.sizeof_struct_orbcu_copy]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(cuda.Copy{}.From) - unsafe.Offsetof(C.struct_orbcu_copy{}.from)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(cuda.Copy{}.Bytes) - unsafe.Offsetof(C.struct_orbcu_copy{}.bytes)]struct{}{}

	_ [0]struct{} = [cuda.None - C.ORBCU_NONE]struct{}{}
	_ [0]struct{} = [cuda.Maybe - C.ORBCU_MAYBE]struct{}{}
	_ [0]struct{} = [cuda.Done - C.ORBCU_DONE]struct{}{}
)

// OpenSignal fails with *SignalError.
func (l *library) OpenSignal() (cuda.SignalHandle, error) {
	var out C.uint64_t
	if code := C.orbcu_open_signal(&out); code != 0 {
		return 0, &SignalError{Call: "eventfd", Errno: syscall.Errno(code)}
	}
	return cuda.SignalHandle(out), nil
}

func (l *library) SignalDescriptor(s cuda.SignalHandle) int {
	return int(C.orbcu_signal_descriptor(C.uint64_t(s)))
}

func (l *library) TakeSignal(s cuda.SignalHandle) (uint64, error) {
	var callbacks C.uint64_t
	if code := C.orbcu_take_signal(C.uint64_t(s), &callbacks); code != 0 {
		return 0, &SignalError{Call: "read", Errno: syscall.Errno(code)}
	}
	return uint64(callbacks), nil
}

func (l *library) CloseSignal(s cuda.SignalHandle) int {
	return int(C.orbcu_close_signal(C.uint64_t(s)))
}

// Submit crosses once for the whole list.
func (l *library) Submit(c cuda.ContextHandle, s cuda.StreamHandle, list []cuda.Copy, e cuda.EventHandle, signal cuda.SignalHandle) (cuda.Submitted, error) {
	out := C.orbcu_submit(l.c, C.uint64_t(c), C.uint64_t(s), (*C.struct_orbcu_copy)(unsafe.Pointer(unsafe.SliceData(list))), C.int32_t(len(list)),
		C.uint64_t(e), C.uint64_t(signal))
	how := cuda.Submitted{Copies: int(out.copies), Unknown: out.unknown != 0, Recorded: out.recorded != 0, Signaled: out.signaled != 0}
	if out.done.result != 0 {
		return how, l.fail(out.done, name("stream", s))
	}
	return how, nil
}

func (l *library) Query(c cuda.ContextHandle, e cuda.EventHandle) (bool, error) {
	done := C.orbcu_query(l.c, C.uint64_t(c), C.uint64_t(e))
	switch {
	case done.result == C.ORB_CUDA_SUCCESS:
		return true, nil
	case done.result == C.ORB_CUDA_ERROR_NOT_READY:
		return false, nil
	}
	return false, l.fail(done, name("event", e))
}

func (l *library) Synchronize(c cuda.ContextHandle, s cuda.StreamHandle) error {
	return l.behind(l.waits, "cuStreamSynchronize", name("stream", s), func() C.struct_orbcu_done {
		return C.orbcu_synchronize(l.c, C.uint64_t(c), C.uint64_t(s))
	})
}

func (l *library) Zero(c cuda.ContextHandle, s cuda.StreamHandle, p cuda.Pointer, bytes uint64) error {
	done := C.orbcu_zero(l.c, C.uint64_t(c), C.uint64_t(s), C.uint64_t(p), C.uint64_t(bytes))
	if done.result != 0 {
		return l.fail(done, name("stream", s))
	}
	return nil
}
