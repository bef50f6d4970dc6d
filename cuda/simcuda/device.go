package simcuda

import (
	"encoding/binary"
	"fmt"

	"github.com/orbitte/orbitte/cuda"
)

// device is one GPU as the process sees it.
type device struct {
	driver     *Driver
	info       cuda.DeviceInfo
	name       string
	primary    context
	lost       cuda.Result // Success: it works
	used       uint64      // bytes allocated
	operations int         // copies and fills that are not done
}

// context is a primary context, or one that a test made beside it.
type context struct {
	device     *device
	handle     cuda.ContextHandle // 0: not active
	references int
	objects    int // memory, streams and events
}

func newDevice(d *Driver, ordinal int, info cuda.DeviceInfo) *device {
	if info.Name == "" {
		info = cuda.DeviceInfo{
			Name: "NVIDIA H200", PCI: fmt.Sprintf("0000:%02x:00.0", 0x18+8*ordinal), NUMANode: ordinal / 4, Memory: 141 << 30,
			Major: 9, Unified: true, VirtualMemory: true, GPUDirect: true, GPUDirectVM: true, DMABuf: true, FlushHost: true,
			WriteOrderedOwner: true, CopyEngines: 3,
		}
		binary.LittleEndian.PutUint64(info.UUID[:], d.seed)
		info.UUID[15] = byte(ordinal + 1)
	}
	info.Ordinal = ordinal
	v := &device{driver: d, info: info, name: fmt.Sprintf("GPU %d", ordinal)}
	v.primary.device = v
	return v
}

// Library implements cuda.Calls.
func (d *Driver) Library() cuda.Library {
	return cuda.Library{Name: "simcuda", Version: d.options.Version}
}

// Devices implements cuda.Calls.
func (d *Driver) Devices() (all []cuda.DeviceInfo, err error) {
	err = d.bare(CallDevices, "devices", nil, func() error {
		for _, v := range d.devices {
			all = append(all, v.info)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

func (d *Driver) device(ordinal int) *device {
	if ordinal < 0 || ordinal >= len(d.devices) {
		return nil
	}
	return d.devices[ordinal]
}

// AcquirePrimary implements cuda.Calls.
func (d *Driver) AcquirePrimary(ordinal int) (h cuda.ContextHandle, err error) {
	v := d.device(ordinal)
	name := fmt.Sprintf("GPU %d", ordinal)
	err = d.bare(CallAcquire, name, v, func() error {
		switch {
		case v == nil:
			return refuse(CallAcquire, name, cuda.InvalidDevice)
		case v.info.Prohibited:
			return refuse(CallAcquire, name, cuda.InvalidDevice)
		}
		x := &v.primary
		if x.references == 0 {
			x.handle = cuda.ContextHandle(d.handle())
			d.contexts[x.handle] = x
		}
		x.references++
		h = x.handle
		return nil
	})
	if err != nil {
		return 0, err
	}
	return h, nil
}

// ReleasePrimary implements cuda.Calls. The last release ends the context with everything in it.
func (d *Driver) ReleasePrimary(ordinal int) error {
	v := d.device(ordinal)
	name := fmt.Sprintf("GPU %d", ordinal)
	return d.bare(CallRelease, name, v, func() error {
		if v == nil {
			return refuse(CallRelease, name, cuda.InvalidDevice)
		}
		x := &v.primary
		if x.references == 0 {
			d.violate("cuDevicePrimaryCtxRelease_v2 of GPU %d, whose primary context nobody holds", ordinal)
			return refuse(CallRelease, name, cuda.InvalidContext)
		}
		if x.references--; x.references == 0 {
			d.endContext(x)
		}
		return nil
	})
}

// PrimaryActive implements cuda.Calls.
func (d *Driver) PrimaryActive(ordinal int) (active bool, err error) {
	v := d.device(ordinal)
	name := fmt.Sprintf("GPU %d", ordinal)
	err = d.bare(CallState, name, nil, func() error {
		if v == nil {
			return refuse(CallState, name, cuda.InvalidDevice)
		}
		active = v.primary.references > 0
		return nil
	})
	return active && err == nil, err
}

// endContext ends a context and what is left in it.
func (d *Driver) endContext(x *context) {
	if x.objects > 0 {
		d.violate("the last reference to a context of GPU %d was released with %d objects in it: they are gone", x.device.info.Ordinal, x.objects)
	}
	for _, h := range sorted(d.streams) {
		if s := d.streams[h]; s.context == x {
			s.drop()
		}
	}
	for _, h := range sorted(d.marks) {
		if d.marks[h].context == x {
			delete(d.marks, h)
		}
	}
	for _, m := range append([]*memory(nil), d.memories...) {
		if m.context == x {
			d.remove(m)
		}
	}
	delete(d.contexts, x.handle)
	x.handle, x.objects = 0, 0
}

// NewContext makes a context beside the primary one, as cuCtxCreate does, for memory of strangers.
func (d *Driver) NewContext(ordinal int) cuda.ContextHandle {
	d.enter()
	defer d.leave()
	x := &context{device: d.devices[ordinal], handle: cuda.ContextHandle(d.handle()), references: 1}
	d.contexts[x.handle] = x
	return x.handle
}

// EndContext ends a context that NewContext made.
func (d *Driver) EndContext(h cuda.ContextHandle) {
	d.enter()
	defer d.leave()
	if x := d.contexts[h]; x != nil && x != &x.device.primary {
		d.endContext(x)
	}
}

// FlushWrites implements cuda.Calls.
func (d *Driver) FlushWrites(h cuda.ContextHandle, all bool) error {
	return d.within(CallFlush, h, func(x *context) error {
		if !x.device.info.FlushHost {
			return refuse(CallFlush, x.device.name, cuda.NotSupported)
		}
		return nil
	})
}
