package verbs

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// ContextState is whether a context takes new work.
type ContextState uint32

const (
	// Active: its route may be used.
	Active ContextState = iota
	// Paused: no new queue pairs; the domain, its keys and its registrations live on.
	Paused
	// Fenced: for good; it only ends.
	Fenced
)

func (s ContextState) String() string {
	switch s {
	case Active:
		return "active"
	case Paused:
		return "paused"
	case Fenced:
		return "fenced"
	}
	return fmt.Sprintf("context state %d", uint32(s))
}

// Context is one opened device with one port and one selected address. Any loop may read it; Pause, Resume, Refresh,
// NextEvent and Close belong to one loop at a time, and Open, Refresh and Close are slow.
type Context struct {
	calls  Calls
	handle DeviceHandle
	nic    int
	info   DeviceInfo
	pins   Pins
	limits Limits

	state  atomic.Uint32 // ContextState
	reason atomic.Pointer[string]
	route  atomic.Pointer[Route]

	domains, channels, queues, pairs family
	building                         atomic.Int64 // pairs that are being made
	book                             book
	life                             life
}

// Open opens a device and chooses its port and address by the pins. The context has the stable number nic. A port
// that is not active makes a paused context. On failure the context is nil, unless closing the device again was
// refused: then it is fenced and retained, and the caller keeps it (SPEC R-2). Slow.
func Open(calls Calls, nic int, info DeviceInfo, pins Pins) (*Context, error) {
	if info.Accessible != nil {
		return nil, &SelectionError{Device: info.Name, Why: "the process may not open it", Err: info.Accessible}
	}
	handle, err := calls.OpenDevice(info.Name)
	if err != nil {
		return nil, err
	}
	c := &Context{calls: calls, handle: handle, nic: nic, info: info, pins: pins}
	if err = c.construct(); err == nil {
		return c, nil
	}
	c.Fence("opening it failed: " + err.Error())
	if closing := c.Close(); closing != nil {
		return c, errors.Join(err, closing)
	}
	return nil, err
}

func (c *Context) construct() (err error) {
	if c.limits, err = c.calls.DeviceLimits(c.handle); err != nil {
		return err
	}
	route, state, err := c.choosePort()
	if err != nil {
		return err
	}
	c.route.Store(&route)
	if state != PortActive {
		c.Pause("port is " + state.String())
	}
	return nil
}

// choosePort takes the pinned port, or the first active one with an address, or the first one with an address.
func (c *Context) choosePort() (Route, PortState, error) {
	if c.pins.Port != nil {
		return c.lookAtPort(*c.pins.Port)
	}
	var paused *Route
	var pausedState PortState
	var first error
	for port := 1; port <= min(c.limits.Ports, 255); port++ {
		route, state, err := c.lookAtPort(uint8(port))
		switch {
		case err == nil && state == PortActive:
			return route, state, nil
		case err == nil && paused == nil:
			paused, pausedState = &route, state
		case err != nil && first == nil:
			first = err
		}
	}
	switch {
	case paused != nil:
		return *paused, pausedState, nil
	case first != nil:
		return Route{}, PortNop, first
	}
	return Route{}, PortNop, &RouteError{Object: c.String(), Why: "it has no ports"}
}

func (c *Context) lookAtPort(port uint8) (Route, PortState, error) {
	object := c.portName(port)
	info, err := c.calls.Port(c.handle, port)
	if err != nil {
		return Route{}, PortNop, &RouteError{Object: object, Why: "the port cannot be queried", Err: err}
	}
	entries, err := c.calls.GIDs(c.handle, port)
	if err != nil {
		return Route{}, PortNop, &RouteError{Object: object, Why: "its GID table cannot be read", Err: err}
	}
	route, err := chooseRoute(object, port, c.pins.GIDIndex, info, entries)
	return route, info.State, err
}

func (c *Context) portName(port uint8) string { return fmt.Sprintf("%s port %d", c.info.Name, port) }

func (c *Context) String() string { return "context " + c.info.Name }

// NIC is the stable number; it never changes while the engine is open.
func (c *Context) NIC() int { return c.nic }

// Device says what was opened.
func (c *Context) Device() DeviceInfo { return c.info }

// Limits are what the device allows.
func (c *Context) Limits() Limits { return c.limits }

// MaySource is nil when the device can make grants, otherwise *NoWindowsError (SPEC R-11).
func (c *Context) MaySource() error {
	if !c.limits.WindowsType2B {
		return &NoWindowsError{Device: c.info.Name}
	}
	return nil
}

// Route is the selected address; it is stable from Resume to the next Pause.
func (c *Context) Route() Route {
	if r := c.route.Load(); r != nil {
		return *r
	}
	return Route{}
}

// State says whether new work is taken, and why not.
func (c *Context) State() (ContextState, string) {
	state := ContextState(c.state.Load())
	if r := c.reason.Load(); r != nil && state != Active {
		return state, *r
	}
	return state, ""
}

// admit refuses new queue pairs unless the context is active.
func (c *Context) admit() error {
	if state, why := c.State(); state != Active {
		return &FencedError{Object: c.String(), State: state.String(), Reason: why}
	}
	return nil
}

// Pause stops new queue pairs; those that exist are to be drained by their lanes. A fenced context stays fenced.
func (c *Context) Pause(why string) {
	if c.state.CompareAndSwap(uint32(Active), uint32(Paused)) {
		c.reason.Store(&why)
	}
}

// Fence stops new queue pairs for good; the first reason stays.
func (c *Context) Fence(why string) {
	if ContextState(c.state.Swap(uint32(Fenced))) != Fenced {
		c.reason.Store(&why)
	}
}

// Resume publishes a validated route on a paused context. It is refused while a queue pair of the old route is left
// (SPEC R-19): *BusyError. A fenced context refuses with *FencedError.
func (c *Context) Resume(r Route) error {
	c.life.mustBeOpen(c.String(), "Resume")
	if state, why := c.State(); state == Fenced {
		return &FencedError{Object: c.String(), State: state.String(), Reason: why}
	} else if state == Active {
		panic(fmt.Sprintf("verbs: Resume of %s which is %s, want paused", c, state))
	}
	if left := c.building.Load() + c.pairs.live.Load(); left != 0 {
		return busy(c.String(), c.pairs.allKept(), Debt{"queue pairs of the old route", left})
	}
	c.route.Store(&r)
	c.state.CompareAndSwap(uint32(Paused), uint32(Active))
	return nil
}

// Refresh looks at the port and its addresses and says what that means; it changes nothing. An error is that of the
// query: the route is then unknown, and the caller pauses the context. Slow.
func (c *Context) Refresh() (Verdict, error) {
	c.life.mustBeOpen(c.String(), "Refresh")
	now := c.Route()
	info, err := c.calls.Port(c.handle, now.Port)
	if err != nil {
		return Verdict{}, err
	}
	entries, err := c.calls.GIDs(c.handle, now.Port)
	if err != nil {
		return Verdict{}, err
	}
	state, _ := c.State()
	return judge(c.portName(now.Port), now, state != Active, c.pins.GIDIndex, info, entries), nil
}

// Close ends the context after everything below it (SPEC R-18). While something is left it refuses with *BusyError and
// can be called again; a refusal by the library is a *RetainedError, for good. Slow.
func (c *Context) Close() error {
	if done, err := c.life.ended(); done {
		return err
	}
	left := busy(c.String(), c.domains.allKept() && c.channels.allKept() && c.queues.allKept(),
		Debt{"protection domains", c.domains.live.Load()},
		Debt{"completion queues", c.queues.live.Load()},
		Debt{"completion channels", c.channels.live.Load()})
	if left != nil {
		return c.life.wait(&c.book, left)
	}
	return c.life.end(&c.book, c.String(), "ibv_close_device", func() error { return c.calls.CloseDevice(c.handle) })
}

// Retained lists everything of this device whose end was refused, the oldest first.
func (c *Context) Retained() []Retained { return c.book.list() }

// ContextCounts says what is open below a context, retained objects included.
type ContextCounts struct {
	Domains, Channels, Queues, Pairs, Retained int64
}

// Counts reads the numbers; any loop may.
func (c *Context) Counts() ContextCounts {
	return ContextCounts{c.domains.live.Load(), c.channels.live.Load(), c.queues.live.Load(), c.pairs.live.Load(), c.book.count.Load()}
}
