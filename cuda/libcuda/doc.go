// Package libcuda is the CUDA driver library libcuda.so.1 behind cuda.Calls. Load opens it at run time, so a program
// that imports this package builds without the CUDA SDK and without the library, and one that does not import it links
// no C. Without cgo the package builds as well; Load then fails with *NoCgo.
//
// It owns the opened library, which stays loaded until the process ends, since the driver has threads of its own.
// Every native object belongs to the caller; its handle is the driver's own pointer as a number, and using it after its
// end is the caller's mistake, which nothing here can notice. A signal is the one object that is ours: its eventfd is
// closed by CloseSignal, or by the last host callback that is still owed, so that a late one never writes to a
// stranger's file. A callback that never comes keeps that descriptor open for good.
//
// It may import cuda, x/sys and the standard library. C is in *.c and *_unsafe.go: abi.h declares what is called and read
// of the driver's interface (test/abi compares it with an installed cuda.h), driver.h its functions and the frame of
// each method, shim.h what Go calls. No Go code is entered from a driver's thread.
//
// A method is one crossing on one thread, so that no other goroutine meets its context; the push is left out where the
// context is current already. Slow calls pass a gate, hot ones (Submit, Query, Attributes, Zero) never do:
//
//	current ─▶ push ─▶ act ─▶ pop ─▶ done        call ─▶ refused (*Busy) when too many wait, unless it ends or awaits
//	             │       │      └──refused─▶ Effect Done   └──▶ waiting, a goroutine and no thread ─▶ inside, 16 at once
//	             └───────┴─▶ the error of what failed first
//
// Outside it relies on glibc's dlopen, on the driver API of CUDA 11.3 or newer (driver 465: cuFlushGPUDirectRDMAWrites
// and the attributes that tell whether it works; ExportRange needs 11.7), on eventfd(2), on /dev/nvidia* and on
// /sys/bus/pci. Load calls cuInit: a machine that cannot work says so there, and no context appears by it. The driver's
// state does not survive fork(2) without exec.
package libcuda
