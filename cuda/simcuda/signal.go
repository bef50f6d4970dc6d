package simcuda

import (
	"syscall"

	"github.com/orbitte/orbitte/cuda"
)

// signal is a descriptor that callbacks make readable.
type signal struct {
	driver          *Driver
	handle          cuda.SignalHandle
	descriptor      int
	set, clear, end func()
	owed            int    // callbacks that were accepted and have not run
	count           uint64 // that have run since it was read
	closed          bool
}

// OpenSignal implements cuda.Calls.
func (d *Driver) OpenSignal() (h cuda.SignalHandle, err error) {
	err = d.bare(CallOpenSignal, "signal", nil, func() error {
		g, err := d.newSignal()
		if err != nil {
			return refuse(CallOpenSignal, err.Error(), cuda.OutOfMemory)
		}
		d.signals[g.handle] = g
		h = g.handle
		return nil
	})
	if err != nil {
		return 0, err
	}
	return h, nil
}

func (d *Driver) newSignal() (*signal, error) {
	g := &signal{driver: d, handle: cuda.SignalHandle(d.handle())}
	if d.options.Signal != nil {
		var err error
		g.descriptor, g.set, g.clear, g.end, err = d.options.Signal(d)
		return g, err
	}
	d.descriptor++
	n := d.descriptor
	g.descriptor = n
	g.set = func() { d.readable[n] = true }
	g.clear = func() { delete(d.readable, n) }
	g.end = g.clear
	return g, nil
}

// Readable says whether a descriptor that the driver invented (Options.Signal is nil) has something.
func (d *Driver) Readable(descriptor int) bool {
	d.enter()
	defer d.leave()
	return d.readable[descriptor]
}

// SignalDescriptor implements cuda.Calls.
func (d *Driver) SignalDescriptor(h cuda.SignalHandle) int {
	d.enter()
	defer d.leave()
	g := d.signals[h]
	if g == nil || g.closed {
		d.violate("the descriptor of signal %#x, which is not (or no longer) there", uint64(h))
		return -1
	}
	return g.descriptor
}

// TakeSignal implements cuda.Calls.
func (d *Driver) TakeSignal(h cuda.SignalHandle) (uint64, error) {
	d.enter()
	defer d.leave()
	d.counts[CallTakeSignal]++
	g := d.signals[h]
	if g == nil || g.closed {
		d.violate("read of signal %#x, which is not (or no longer) there", uint64(h))
		return 0, refuse(CallTakeSignal, "signal "+syscall.EBADF.Error(), cuda.InvalidHandle)
	}
	if f := d.strike(FailCall, CallTakeSignal, nil, nil); f != nil {
		return 0, fail(CallTakeSignal, "signal", f.Result, f.Effect)
	}
	n := g.count
	if g.count = 0; n > 0 {
		g.clear()
	}
	return n, nil
}

// CloseSignal implements cuda.Calls.
func (d *Driver) CloseSignal(h cuda.SignalHandle) (owed int) {
	d.enter()
	defer d.leave()
	g := d.signals[h]
	if g == nil || g.closed {
		d.violate("close of signal %#x, which is not (or no longer) there", uint64(h))
		return 0
	}
	g.closed = true
	g.settle()
	return g.owed
}

// announce plans the callback of an operation; faults meet it here.
func (g *signal) announce(s *stream) {
	d, v := g.driver, s.context.device
	if d.strike(LoseCallback, callNone, v, s) != nil {
		return // it stays owed for good
	}
	late := d.draw(0, d.options.CallbackMax) + d.late(LateCallback, callNone, v, s)
	d.schedule(late, event{signal: g})
	if d.strike(DoubleCallback, callNone, v, s) != nil {
		g.owed++
		d.schedule(late+d.draw(0, d.options.CallbackMax), event{signal: g})
	}
}

// called runs a callback.
func (g *signal) called() {
	g.owed--
	if g.count++; !g.closed {
		g.set()
	}
	g.settle()
}

// settle closes the descriptor of a signal that was given up when nothing is owed any more.
func (g *signal) settle() {
	if g.closed && g.owed == 0 {
		g.end()
		delete(g.driver.signals, g.handle)
	}
}
