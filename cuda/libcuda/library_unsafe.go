//go:build linux

package libcuda

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "shim.h"
// #cgo noescape orbcu_load
// #cgo nocallback orbcu_load
import "C"

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/orbitte/orbitte/cuda"
)

// versionMin is CUDA 11.3 (driver 465): cuFlushGPUDirectRDMAWrites and its attributes came with it.
const versionMin = 11030

// exportMin is CUDA 11.7 (driver 515): cuMemGetHandleForAddressRange came with it.
const exportMin = 11070

// library is one opened driver. It has no state besides the gates, and every method may be called from anywhere.
type library struct {
	c     *C.struct_orbcu_driver
	what  cuda.Library
	bus   string // where the PCI devices' folders are
	makes *gate
	ends  *gate // of its own, so that hanging makes keep no end out
	waits *gate // and so that a hanging GPU keeps out neither
	next  *library
}

var _ cuda.Calls = (*library)(nil)

// Load opens libcuda.so.1 as the loader finds it and initialises it (cuInit), which makes no context and may take a
// second. Errors: *NoLibrary, *MissingSymbol, *TooOld, *Stub, *NoDevice, *Permission, *NotReady, *NoCgo. Safe from
// any goroutine; a second call gives the same value. See dlopen(3) and the driver API's cuInit.
func Load() (cuda.Calls, error) { return LoadPath("libcuda.so.1") }

// LoadPath is Load of a library at a path, for one that stands where the loader does not look.
func LoadPath(path string) (cuda.Calls, error) {
	l, err := load(path, nodeFolder)
	if err != nil {
		return nil, err
	}
	return l, nil
}

func load(path, nodes string) (*library, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var failure C.struct_orbcu_load_failure
	c := C.orbcu_load(name, versionMin, &failure)
	if c == nil {
		return nil, loadError(path, nodes, &failure)
	}
	return share(&library{
		c: c, what: cuda.Library{Name: "libcuda", Path: C.GoString(C.orbcu_path(c)), Version: int(C.orbcu_version(c))},
		bus: busFolder, makes: newGate(), ends: newGate(), waits: newGate(),
	}), nil
}

// opened are the drivers, newest first.
var opened atomic.Pointer[library]

// share keeps a driver one value: callers compare them.
func share(l *library) *library {
	for {
		l.next = opened.Load()
		for known := l.next; known != nil; known = known.next {
			if known.c == l.c {
				return known
			}
		}
		if opened.CompareAndSwap(l.next, l) {
			return l
		}
	}
}

func loadError(asked, nodes string, f *C.struct_orbcu_load_failure) error {
	loader, path, version := text(f.text[:]), text(f.path[:]), int(f.version)
	if path == "" {
		path = asked
	}
	switch f.what {
	case C.ORBCU_NO_LIBRARY:
		return &NoLibrary{Path: asked, Loader: loader}
	case C.ORBCU_NO_SYMBOL:
		return &MissingSymbol{Path: path, Symbol: text(f.symbol[:]), Version: version, Loader: loader}
	case C.ORBCU_TOO_OLD:
		return &TooOld{What: "this package", Path: path, Has: version, Needs: versionMin}
	}
	return explain(native(f.done, path, text(f.result[:])), path, version, nodes)
}

// Library says what was loaded.
func (l *library) Library() cuda.Library { return l.what }

// native makes an error of what became of a method.
func native(d C.struct_orbcu_done, object, name string) *cuda.CallError {
	if name == "" {
		name = "unnamed result"
	}
	return &cuda.CallError{
		Call: C.GoString(C.orbcu_call_name(C.int(d.call))), Object: object, Result: cuda.Result(d.result), Name: name, Effect: cuda.Effect(d.effect),
	}
}

// fail is nil where nothing failed.
func (l *library) fail(d C.struct_orbcu_done, object func() string) error {
	if d.result == 0 {
		return nil
	}
	return native(d, object(), C.GoString(C.orbcu_result_name(l.c, d.result)))
}

// behind makes a slow call behind a gate.
func (l *library) behind(g *gate, call string, object func() string, act func() C.struct_orbcu_done) error {
	if err := g.enter(call, g != l.makes); err != nil {
		return err
	}
	done := act()
	g.leave()
	return l.fail(done, object)
}

// name names an object in an error.
func name[H ~uint64](kind string, h H) func() string {
	return func() string { return fmt.Sprintf("%s %#x", kind, uint64(h)) }
}

func gpu(ordinal int) func() string { return func() string { return fmt.Sprintf("GPU %d", ordinal) } }

// text reads a C array of characters.
func text(array []C.char) string { return C.GoString(&array[0]) }
