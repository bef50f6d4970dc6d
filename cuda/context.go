package cuda

import "fmt"

// Context is a device's primary context as this process's owners share it: one reference, acquired when the first owner
// needs it and released when the last one ends. There is one Context for each device, whether or not it is active.
// No context exists on a device for which no owner was made. Its methods may be called from any goroutine.
type Context struct {
	platform *Platform
	info     DeviceInfo
	gate     gate // guards the rest
	handle   ContextHandle
	holders  int
	kept     bool // true exactly when doubt holds the reference for good; that is one of the holders
}

// Context is the primary context of a usable device: errors as of Device. It acquires nothing.
func (p *Platform) Context(ordinal int) (*Context, error) {
	if _, err := p.Device(ordinal); err != nil {
		return nil, err
	}
	return p.contexts[ordinal], nil
}

func (c *Context) String() string { return fmt.Sprintf("primary context of GPU %d", c.info.Ordinal) }

// Device says whose context it is.
func (c *Context) Device() DeviceInfo { return c.info }

// Holders counts the owners that share the reference; 0: no reference is held. Slow, when another owner is just being
// made.
func (c *Context) Holders() int {
	c.gate.enter()
	defer c.gate.leave()
	return c.holders
}

// Acquire adds a holder; the first one acquires the native reference. The handle is good until Drop. Slow.
func (c *Context) Acquire() (ContextHandle, error) {
	c.gate.enter()
	defer c.gate.leave()
	if c.holders == 0 {
		handle, err := c.platform.calls.AcquirePrimary(c.info.Ordinal)
		if err != nil {
			if effectOf(err) != None { // a reference may be held that nobody may release
				c.platform.book.add(KindContext, c.String(), &RetainedError{Object: c.String(), Call: "cuDevicePrimaryCtxRetain", Err: err})
			}
			return 0, err
		}
		c.handle = handle
		c.platform.counts.contexts.Add(1)
	}
	c.holders++
	return c.handle, nil
}

// Drop ends one holder; the last one releases the native reference. When the driver refuses that, the reference is
// retained and counted: *RetainedError, and the holder has ended all the same. Slow.
func (c *Context) Drop() error {
	c.gate.enter()
	defer c.gate.leave()
	if c.holders < 1 {
		panic(fmt.Sprintf("cuda: Drop of %v with %d holders, want at least 1", c, c.holders))
	}
	if c.holders--; c.holders > 0 {
		return nil
	}
	c.handle = 0
	if err := c.platform.calls.ReleasePrimary(c.info.Ordinal); err != nil && effectOf(err) != Done {
		refusal := &RetainedError{Object: c.String(), Call: "cuDevicePrimaryCtxRelease_v2", Err: err}
		c.platform.book.add(KindContext, c.String(), refusal)
		return refusal
	}
	c.platform.counts.contexts.Add(-1) // proof: the driver took the reference back
	return nil
}

// settle judges the error of a call that runs in this context: when what was asked has happened and only the thread's
// old context could not be put back, the call has succeeded, and the reference is held for good, since a thread goes on
// with this context as its current one.
func (c *Context) settle(err error) error {
	if err == nil || effectOf(err) != Done {
		return err
	}
	c.keep(err)
	return nil
}

// keep holds the reference for good. The caller borrows from a holder, so that nobody makes a native call behind the gate
// at that moment, and a lane waits for no more than a few instructions.
func (c *Context) keep(err error) {
	c.gate.enter()
	defer c.gate.leave()
	if c.kept {
		return
	}
	c.kept = true
	c.holders++
	c.platform.book.add(KindContext, c.String(), &RetainedError{Object: c.String(), Call: "cuCtxPopCurrent_v2", Err: err})
}
