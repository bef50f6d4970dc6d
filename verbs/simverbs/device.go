package simverbs

import (
	"slices"
	"syscall"

	"github.com/orbitte/orbitte/verbs"
)

func sortHandles[H ~uint64](handles []H) { slices.Sort(handles) }

// signal is a descriptor that something may make readable.
type signal struct {
	descriptor      int
	set, clear, end func()
}

func (f *Fabric) newSignal(p *Process) (signal, syscall.Errno) {
	if f.options.Signal == nil {
		f.descriptor++
		d := f.descriptor
		return signal{d, func() { f.readable[d] = true }, func() { delete(f.readable, d) }, func() { delete(f.readable, d) }}, 0
	}
	d, set, clear, end, err := f.options.Signal(p)
	if err != nil {
		errno, ok := err.(syscall.Errno)
		if !ok {
			errno = syscall.EMFILE
		}
		return signal{}, errno
	}
	return signal{d, set, clear, end}, 0
}

// Readable says whether a descriptor that the fabric invented (Options.Signal is nil) has something.
func (f *Fabric) Readable(descriptor int) bool {
	f.enter()
	defer f.leave()
	return f.readable[descriptor]
}

// context is a device that a process has open.
type context struct {
	handle  verbs.DeviceHandle
	process *Process
	device  *Device
	async   []verbs.AsyncEvent
	signal  signal
	users   int // domains, channels and queues
}

// asyncMax bounds the events that nobody takes.
const asyncMax = 1024

func (c *context) raise(e verbs.AsyncEvent) {
	if len(c.async) < asyncMax {
		c.async = append(c.async, e)
	}
	c.signal.set()
}

func (c *context) end() {
	c.device.contexts = slices.DeleteFunc(c.device.contexts, func(o *context) bool { return o == c })
	delete(c.process.contexts, c.handle)
	c.signal.end()
}

// Devices implements verbs.Calls.
func (p *Process) Devices() ([]verbs.DeviceInfo, error) {
	if err := p.begin(CallListDevices, p.host.name); err != nil {
		return nil, err
	}
	defer p.fabric.leave()
	var all []verbs.DeviceInfo
	for _, d := range p.host.devices {
		if !d.removed {
			all = append(all, verbs.DeviceInfo{Name: d.spec.Name, GUID: d.spec.GUID, NUMANode: d.spec.NUMANode, PCI: d.spec.PCI, Accessible: d.spec.Accessible})
		}
	}
	return all, nil
}

// OpenDevice implements verbs.Calls.
func (p *Process) OpenDevice(name string) (verbs.DeviceHandle, error) {
	if err := p.begin(CallOpenDevice, name); err != nil {
		return 0, err
	}
	defer p.fabric.leave()
	d := p.host.device(name)
	switch {
	case d == nil || d.removed:
		return 0, fail(CallOpenDevice, name, syscall.ENODEV)
	case d.spec.Accessible != nil:
		return 0, fail(CallOpenDevice, name, syscall.EACCES)
	}
	s, errno := p.fabric.newSignal(p)
	if errno != 0 {
		return 0, fail(CallOpenDevice, name, errno)
	}
	c := &context{handle: verbs.DeviceHandle(p.fabric.handle()), process: p, device: d, signal: s}
	p.contexts[c.handle] = c
	d.contexts = append(d.contexts, c)
	return c.handle, nil
}

// CloseDevice implements verbs.Calls. The kernel would clean up behind the process, but the library's objects leak.
func (p *Process) CloseDevice(h verbs.DeviceHandle) error {
	if err := p.begin(CallCloseDevice, "device"); err != nil {
		return err
	}
	defer p.fabric.leave()
	c := p.contexts[h]
	if c == nil {
		return p.lost(CallCloseDevice, "device", uint64(h))
	}
	if c.users > 0 {
		p.fabric.violate(p, "ibv_close_device of %s with %d objects on it: their memory leaks", c.device.spec.Name, c.users)
		return fail(CallCloseDevice, c.device.spec.Name, syscall.EBUSY)
	}
	c.end()
	return nil
}

// context finds an opened device, for a call that makes something on it.
func (p *Process) context(c Call, h verbs.DeviceHandle) (*context, error) {
	found := p.contexts[h]
	if found == nil {
		return nil, p.lost(c, "device", uint64(h))
	}
	if found.device.removed {
		return nil, fail(c, found.device.spec.Name, syscall.EIO)
	}
	return found, nil
}

// DeviceLimits implements verbs.Calls.
func (p *Process) DeviceLimits(h verbs.DeviceHandle) (verbs.Limits, error) {
	if err := p.begin(CallQueryDevice, "device"); err != nil {
		return verbs.Limits{}, err
	}
	defer p.fabric.leave()
	c, err := p.context(CallQueryDevice, h)
	if err != nil {
		return verbs.Limits{}, err
	}
	return c.device.limits, nil
}

func (c *context) port(number uint8) *Port {
	if number < 1 || int(number) > len(c.device.ports) {
		return nil
	}
	return c.device.ports[number-1]
}

// Port implements verbs.Calls.
func (p *Process) Port(h verbs.DeviceHandle, number uint8) (verbs.PortInfo, error) {
	if err := p.begin(CallQueryPort, "port"); err != nil {
		return verbs.PortInfo{}, err
	}
	defer p.fabric.leave()
	c, err := p.context(CallQueryPort, h)
	if err != nil {
		return verbs.PortInfo{}, err
	}
	port := c.port(number)
	if port == nil {
		return verbs.PortInfo{}, fail(CallQueryPort, c.device.spec.Name, syscall.EINVAL)
	}
	return verbs.PortInfo{
		State: port.state, Ethernet: !port.spec.InfiniBand, MTU: port.spec.MTU, GIDs: port.spec.TableSize, LID: port.spec.LID,
		MaxMessage: p.fabric.messageMax(), BitsPerSecond: port.spec.BitsPerSecond,
	}, nil
}

// GIDs implements verbs.Calls.
func (p *Process) GIDs(h verbs.DeviceHandle, number uint8) ([]verbs.GIDEntry, error) {
	if err := p.begin(CallQueryGID, "port"); err != nil {
		return nil, err
	}
	defer p.fabric.leave()
	c, err := p.context(CallQueryGID, h)
	if err != nil {
		return nil, err
	}
	port := c.port(number)
	if port == nil {
		return nil, fail(CallQueryGID, c.device.spec.Name, syscall.EINVAL)
	}
	return append([]verbs.GIDEntry(nil), port.gids...), nil
}

// AsyncDescriptor implements verbs.Calls.
func (p *Process) AsyncDescriptor(h verbs.DeviceHandle) int {
	p.fabric.enter()
	defer p.fabric.leave()
	c := p.contexts[h]
	if c == nil {
		_ = p.lost(CallAsyncEvent, "device", uint64(h))
		return -1
	}
	return c.signal.descriptor
}

// NextAsync implements verbs.Calls.
func (p *Process) NextAsync(h verbs.DeviceHandle) (verbs.AsyncEvent, bool, error) {
	p.fabric.enter()
	defer p.fabric.leave()
	p.counts[CallAsyncEvent]++
	c := p.contexts[h]
	if c == nil {
		return verbs.AsyncEvent{}, false, p.lost(CallAsyncEvent, "device", uint64(h))
	}
	if errno := p.fabric.planCall(p, CallAsyncEvent); errno != 0 {
		return verbs.AsyncEvent{}, false, fail(CallAsyncEvent, c.device.spec.Name, errno)
	}
	if len(c.async) == 0 {
		return verbs.AsyncEvent{}, false, nil
	}
	e := c.async[0]
	c.async = c.async[:copy(c.async, c.async[1:])]
	if len(c.async) == 0 {
		c.signal.clear()
	}
	return e, true, nil
}

// domain is a protection domain.
type domain struct {
	handle  verbs.DomainHandle
	context *context
	users   int // pairs, regions and windows
}

func (d *domain) end() {
	d.context.users--
	d.context.device.counts.Domains--
	delete(d.context.process.domains, d.handle)
}

// AllocateDomain implements verbs.Calls.
func (p *Process) AllocateDomain(h verbs.DeviceHandle) (verbs.DomainHandle, error) {
	if err := p.begin(CallAllocateDomain, "device"); err != nil {
		return 0, err
	}
	defer p.fabric.leave()
	c, err := p.context(CallAllocateDomain, h)
	if err != nil {
		return 0, err
	}
	if c.device.counts.Domains >= c.device.limits.Domains {
		return 0, fail(CallAllocateDomain, c.device.spec.Name, syscall.ENOMEM)
	}
	d := &domain{handle: verbs.DomainHandle(p.fabric.handle()), context: c}
	c.users++
	c.device.counts.Domains++
	p.domains[d.handle] = d
	return d.handle, nil
}

// FreeDomain implements verbs.Calls.
func (p *Process) FreeDomain(h verbs.DomainHandle) error {
	if err := p.begin(CallFreeDomain, "domain"); err != nil {
		return err
	}
	defer p.fabric.leave()
	d := p.domains[h]
	switch {
	case d == nil:
		return p.lost(CallFreeDomain, "domain", uint64(h))
	case d.users > 0:
		return fail(CallFreeDomain, "domain", syscall.EBUSY)
	}
	d.end()
	return nil
}

// domain finds a protection domain, for a call that makes something in it.
func (p *Process) domain(c Call, h verbs.DomainHandle) (*domain, error) {
	found := p.domains[h]
	if found == nil {
		return nil, p.lost(c, "domain", uint64(h))
	}
	if found.context.device.removed {
		return nil, fail(c, found.context.device.spec.Name, syscall.EIO)
	}
	return found, nil
}
