//go:build linux

package libibverbs

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "shim.h"
// #cgo noescape orb_load
// #cgo nocallback orb_load
import "C"

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/orbitte/orbitte/verbs"
)

// library is one opened library. It has no state besides the gates, and every method may be called from anywhere.
type library struct {
	c           *C.struct_orb_library
	what        verbs.Library
	nodes       string // where the devices' nodes are
	opens, ends *gate  // two, so that hanging opens keep no end out
	vector      atomic.Uint32
}

var _ verbs.Calls = (*library)(nil)

// Load opens libibverbs.so.1 as the loader finds it. It needs no device: Devices then lists none. Errors: *NoLibrary,
// *MissingSymbol, *NoCgo. See dlopen(3). Safe from any goroutine; a second call gives a second value of the same library.
func Load() (verbs.Calls, error) { return LoadPath("libibverbs.so.1") }

// LoadPath is Load of a library at a path, for one that stands where the loader does not look.
func LoadPath(path string) (verbs.Calls, error) {
	l, err := load(path)
	if err != nil {
		return nil, err
	}
	return l, nil
}

func load(path string) (*library, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var failure C.struct_orb_load_failure
	c := C.orb_load(name, &failure)
	if c == nil {
		text, symbol := C.GoString(&failure.text[0]), C.GoString(&failure.symbol[0])
		if symbol == "" {
			return nil, &NoLibrary{Path: path, Loader: text}
		}
		return nil, &MissingSymbol{Path: path, Symbol: symbol, Version: C.GoString(&failure.version[0]), Loader: text}
	}
	found := C.GoString(C.orb_path(c))
	return &library{
		c: c, what: verbs.Library{Name: "libibverbs", Path: found, Version: fileVersion(found)},
		nodes: nodeFolder, opens: newGate(), ends: newGate(),
	}, nil
}

// Library says what was loaded.
func (l *library) Library() verbs.Library { return l.what }

// Preflight says whether this process may register so many further bytes; see MemoryLockAllows.
func (l *library) Preflight(bytes uint64) error { return MemoryLockAllows(bytes) }

// fail makes an error of a call's errno.
func fail(call, object string, code C.int) error {
	return &verbs.CallError{Call: call, Object: object, Errno: syscall.Errno(code)}
}

// name names an object in an error.
func name[H ~uint64](kind string, h H) string { return fmt.Sprintf("%s %#x", kind, uint64(h)) }

// device names an opened device in an error.
func device(d verbs.DeviceHandle) string { return C.GoString(C.orb_device_name(C.uint64_t(d))) }

// text reads a C array of characters.
func text(array []C.char) string { return C.GoString(&array[0]) }
