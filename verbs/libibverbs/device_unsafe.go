//go:build linux

package libibverbs

// #include <stdlib.h>
// #include "shim.h"
// #cgo noescape orb_devices
// #cgo nocallback orb_devices
// #cgo noescape orb_open
// #cgo nocallback orb_open
// #cgo noescape orb_query_device
// #cgo nocallback orb_query_device
// #cgo noescape orb_query_port
// #cgo nocallback orb_query_port
// #cgo noescape orb_gids
// #cgo nocallback orb_gids
// #cgo nocallback orb_next_async
import "C"

import (
	"errors"
	"path/filepath"
	"syscall"
	"unsafe"

	"github.com/orbitte/orbitte/verbs"
)

// Devices lists the devices, also those that the process may not open. No device is no error.
func (l *library) Devices() ([]verbs.DeviceInfo, error) {
	records, err := l.devices()
	if err != nil {
		return nil, err
	}
	all := make([]verbs.DeviceInfo, 0, len(records))
	for i := range records {
		r := &records[i]
		info := verbs.DeviceInfo{Name: text(r.name[:]), GUID: uint64(r.guid), SysfsPath: text(r.sysfs[:])}
		info.NUMANode, info.PCI = place(info.SysfsPath)
		info.Accessible = accessible(info.Name, filepath.Join(l.nodes, text(r.node[:])))
		all = append(all, info)
	}
	return all, nil
}

// devices asks until all fit: devices may come in between.
func (l *library) devices() ([]C.struct_orb_device_record, error) {
	const call = "ibv_get_device_list"
	if err := l.opens.enter(call, false); err != nil {
		return nil, err
	}
	defer l.opens.leave()
	for room := 16; ; room *= 2 {
		records := make([]C.struct_orb_device_record, room)
		var count C.int
		if code := C.orb_devices(l.c, &records[0], C.int(room), &count); code != 0 {
			return nil, fail(call, "this host", code)
		}
		if int(count) <= room {
			return records[:count], nil
		}
	}
}

// OpenDevice opens a device; *NoDevice and *Permission say what is missing.
func (l *library) OpenDevice(name string) (verbs.DeviceHandle, error) {
	const call = "ibv_open_device"
	if err := l.opens.enter(call, false); err != nil {
		return 0, err
	}
	text := C.CString(name)
	var handle C.uint64_t
	code := C.orb_open(l.c, text, &handle)
	C.free(unsafe.Pointer(text))
	l.opens.leave()
	if code != 0 {
		return 0, l.openError(&verbs.CallError{Call: call, Object: name, Errno: syscall.Errno(code)})
	}
	return verbs.DeviceHandle(handle), nil
}

// openError says more about a device that was not opened, as far as the list of devices shows it.
func (l *library) openError(native *verbs.CallError) error {
	all, err := l.Devices()
	if err != nil {
		return native
	}
	missing := &NoDevice{Name: native.Object, Err: native}
	for _, d := range all {
		missing.Seen = append(missing.Seen, d.Name)
		if d.Name != native.Object {
			continue
		}
		var p *Permission
		if errors.As(d.Accessible, &p) {
			return &Permission{Device: p.Device, Node: p.Node, Err: p.Err, Call: native}
		}
		return native
	}
	if native.Errno != syscall.ENODEV {
		return native
	}
	return missing
}

func (l *library) CloseDevice(d verbs.DeviceHandle) error {
	return l.end("ibv_close_device", C.ORB_END_DEVICE, uint64(d), "device")
}

func (l *library) DeviceLimits(d verbs.DeviceHandle) (verbs.Limits, error) {
	const call = "ibv_query_device"
	if err := l.opens.enter(call, false); err != nil {
		return verbs.Limits{}, err
	}
	defer l.opens.leave()
	var c C.struct_orb_limits
	if code := C.orb_query_device(l.c, C.uint64_t(d), &c); code != 0 {
		return verbs.Limits{}, fail(call, device(d), code)
	}
	return verbs.Limits{
		Firmware: text(c.firmware[:]),
		Pairs:    int(c.pairs), PairWork: int(c.pair_work), SGE: int(c.sge), Queues: int(c.queues), QueueDepth: int(c.queue_depth),
		Regions: int(c.regions), Windows: int(c.windows), Domains: int(c.domains), ReadAtomic: int(c.read_atomic),
		RegionBytes: uint64(c.region_bytes), Ports: int(c.ports), WindowsType2B: c.type_2b != 0,
		// Nothing asks a device; the flag may be passed since libibverbs has the call that takes it.
		RelaxedOrdering: C.orb_has(l.c)&1 != 0,
	}, nil
}

func (l *library) Port(d verbs.DeviceHandle, port uint8) (verbs.PortInfo, error) {
	const call = "ibv_query_port"
	if err := l.opens.enter(call, false); err != nil {
		return verbs.PortInfo{}, err
	}
	defer l.opens.leave()
	return l.port(d, port)
}

func (l *library) port(d verbs.DeviceHandle, port uint8) (verbs.PortInfo, error) {
	var c C.struct_orb_port
	if code := C.orb_query_port(l.c, C.uint64_t(d), C.uint8_t(port), &c); code != 0 {
		return verbs.PortInfo{}, fail("ibv_query_port", name(device(d)+" port", uint64(port)), code)
	}
	return verbs.PortInfo{
		State: verbs.PortState(c.state), Ethernet: c.ethernet != 0, MTU: int(c.mtu), GIDs: int(c.gids), LID: uint16(c.lid),
		MaxMessage: uint32(c.max_message), BitsPerSecond: bitsPerSecond(int(c.width), int(c.speed)),
	}, nil
}

// GIDs lists a port's addresses: by the library where it can list them, otherwise from sysfs.
func (l *library) GIDs(d verbs.DeviceHandle, port uint8) ([]verbs.GIDEntry, error) {
	const call = "ibv_query_gid_table"
	if err := l.opens.enter(call, false); err != nil {
		return nil, err
	}
	defer l.opens.leave()
	info, err := l.port(d, port)
	if err != nil {
		return nil, err
	}
	if C.orb_has(l.c)&2 == 0 {
		return sysfsGIDs(l.sysfs(d), port, info.GIDs), nil
	}
	total, err := l.tableSize(d)
	if err != nil || info.GIDs <= 0 {
		return nil, err
	}
	records := make([]C.struct_orb_gid, info.GIDs)
	var count C.int
	code := C.orb_gids(l.c, C.uint64_t(d), C.uint8_t(port), C.int(total), &records[0], C.int(len(records)), &count)
	if code != 0 {
		return nil, fail(call, name(device(d)+" port", uint64(port)), code)
	}
	all := make([]verbs.GIDEntry, 0, count)
	for i := range records[:count] {
		r := &records[i]
		entry := verbs.GIDEntry{Index: int(r.index), Type: verbs.GIDType(r.kind), Interface: text(r.network[:])}
		copy(entry.GID[:], unsafe.Slice((*byte)(unsafe.Pointer(&r.gid[0])), len(r.gid)))
		all = append(all, entry)
	}
	return all, nil
}

// tableSize is how many entries all ports of a device have: the library lists them together.
func (l *library) tableSize(d verbs.DeviceHandle) (int, error) {
	var c C.struct_orb_limits
	if code := C.orb_query_device(l.c, C.uint64_t(d), &c); code != 0 {
		return 0, fail("ibv_query_device", device(d), code)
	}
	total := 0
	for port := range int(c.ports) {
		info, err := l.port(d, uint8(port+1))
		if err != nil {
			return 0, err
		}
		total += info.GIDs
	}
	return total, nil
}

func (l *library) sysfs(d verbs.DeviceHandle) string {
	return C.GoString(C.orb_device_sysfs(C.uint64_t(d)))
}

func (l *library) AsyncDescriptor(d verbs.DeviceHandle) int {
	return int(C.orb_async_descriptor(C.uint64_t(d)))
}

func (l *library) NextAsync(d verbs.DeviceHandle) (verbs.AsyncEvent, bool, error) {
	e := C.orb_next_async(l.c, C.uint64_t(d))
	switch {
	case e.code == 0:
		return verbs.AsyncEvent{
			Kind: verbs.AsyncKind(e.kind), Port: uint8(e.port), Queue: verbs.QueueHandle(e.queue), Pair: verbs.PairHandle(e.pair),
		}, true, nil
	case syscall.Errno(e.code) == syscall.EAGAIN:
		return verbs.AsyncEvent{}, false, nil
	}
	return verbs.AsyncEvent{}, false, fail("ibv_get_async_event", device(d), C.int(e.code))
}
