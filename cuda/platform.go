package cuda

import (
	"fmt"
	"sync/atomic"
)

// DriverVersionMin is the oldest driver that is taken, as cuDriverGetVersion counts: CUDA 11.3 (driver 465), with which
// cuFlushGPUDirectRDMAWrites and its attributes came.
const DriverVersionMin = 11030

// Platform is one loaded driver with its devices, and the table of the memory objects of this process. All engines that
// open the same Calls share one, since the driver and its address space are one (SPEC C-2). Its methods may be called
// from any goroutine.
type Platform struct {
	calls    Calls
	library  Library
	devices  []DeviceInfo // by ordinal
	contexts []*Context   // beside devices
	users    int          // Open minus Close; guarded by the registry
	gate     gate         // guards table, and owners and companions of its objects
	table    map[identity]*object
	book     book
	counts   gauges
}

// gauges count native objects that are not proven gone, retained ones included.
type gauges struct {
	contexts, allocations, allocatedBytes, adopted, pinned, pinnedBytes, streams, events, signals atomic.Int64
	copies, silent, owed, lost                                                                    atomic.Int64
}

// Counts is what is open on a platform, retained objects included.
type Counts struct {
	Contexts       int64 // references to primary contexts
	Allocations    int64 // device memory of ours
	AllocatedBytes int64
	Adopted        int64 // adopted memory objects; aliases count once
	Pinned         int64 // page-locked host memory
	PinnedBytes    int64
	Streams        int64
	Events         int64
	Signals        int64 // open ones
	Copies         int64 // started and not confirmed, drained ones excepted
	Retained       int64 // entries of Retained
	SilentCopies   int64 // ever: started without a callback, since the driver refused it
	OwedCallbacks  int64 // ever: host callbacks still owed when their signal was closed
	LostOwners     int64 // ever: owners that the collector found before their end
}

// registry is the one table of platforms of the process. Whoever took the map out of the channel has it alone.
var registry = func() chan map[Calls]*Platform {
	r := make(chan map[Calls]*Platform, 1)
	r <- map[Calls]*Platform{}
	return r
}()

// Open looks at the driver and its devices, or joins whoever has the same driver open. It makes no context on any
// device. Each Open is ended by one Close. Errors: *DriverError (ErrOldDriver, ErrNoDevice), *CallError. Slow.
func Open(calls Calls) (*Platform, error) {
	all := <-registry
	defer func() { registry <- all }()
	if p := all[calls]; p != nil {
		p.users++
		return p, nil
	}
	library := calls.Library()
	if library.Version < DriverVersionMin {
		return nil, &DriverError{Library: library, Cause: ErrOldDriver}
	}
	devices, err := calls.Devices()
	if err != nil {
		return nil, err
	}
	if len(devices) == 0 {
		return nil, &DriverError{Library: library, Cause: ErrNoDevice}
	}
	p := &Platform{calls: calls, library: library, devices: devices, users: 1, gate: newGate(), table: map[identity]*object{}}
	for i := range devices {
		p.contexts = append(p.contexts, &Context{platform: p, info: devices[i], gate: newGate()})
	}
	all[calls] = p
	return p, nil
}

// Close ends one Open. The last one refuses with *BusyError while owners are left, and changes nothing then. Once
// something is retained it goes through, since waiting would not help, and the platform stays known for its list.
func (p *Platform) Close() error {
	all := <-registry
	defer func() { registry <- all }()
	if p.users < 1 {
		panic(fmt.Sprintf("cuda: Close of %v with %d users, want at least 1", p, p.users))
	}
	if p.users > 1 {
		p.users--
		return nil
	}
	n := &p.counts
	left := busy(p.String(), n.lost.Load() > 0 || p.book.count.Load() > 0,
		Debt{"allocations", n.allocations.Load()}, Debt{"adopted memory objects", n.adopted.Load()},
		Debt{"pinned allocations", n.pinned.Load()}, Debt{"streams", n.streams.Load()}, Debt{"events", n.events.Load()},
		Debt{"signals", n.signals.Load()}, Debt{"context references", n.contexts.Load()})
	switch {
	case left == nil:
		delete(all, p.calls)
	case !left.Kept:
		return left
	}
	p.users--
	return nil
}

func (p *Platform) String() string { return "CUDA driver " + p.library.Name }

// Library says what was loaded.
func (p *Platform) Library() Library { return p.library }

// Calls is the driver behind the platform.
func (p *Platform) Calls() Calls { return p.calls }

// Devices lists the GPUs by ordinal, the unusable ones included.
func (p *Platform) Devices() []DeviceInfo { return append([]DeviceInfo(nil), p.devices...) }

// Device describes a GPU that can be used: *DeviceError when there is none with this ordinal (ErrNoDevice), when the
// administrator prohibits contexts on it (ErrProhibited), or when it has no unified address space (ErrNotUnified).
func (p *Platform) Device(ordinal int) (DeviceInfo, error) {
	if ordinal < 0 || ordinal >= len(p.devices) {
		return DeviceInfo{}, &DeviceError{Ordinal: ordinal, Devices: len(p.devices), Cause: ErrNoDevice}
	}
	info := p.devices[ordinal]
	switch {
	case info.Prohibited:
		return info, &DeviceError{Ordinal: ordinal, Name: info.Name, Devices: len(p.devices), Cause: ErrProhibited}
	case !info.Unified:
		return info, &DeviceError{Ordinal: ordinal, Name: info.Name, Devices: len(p.devices), Cause: ErrNotUnified}
	}
	return info, nil
}

// Counts reads the gauges.
func (p *Platform) Counts() Counts {
	n := &p.counts
	return Counts{
		Contexts: n.contexts.Load(), Allocations: n.allocations.Load(), AllocatedBytes: n.allocatedBytes.Load(),
		Adopted: n.adopted.Load(), Pinned: n.pinned.Load(), PinnedBytes: n.pinnedBytes.Load(), Streams: n.streams.Load(),
		Events: n.events.Load(), Signals: n.signals.Load(), Copies: n.copies.Load(), Retained: p.book.count.Load(),
		SilentCopies: n.silent.Load(), OwedCallbacks: n.owed.Load(), LostOwners: n.lost.Load(),
	}
}

// Retained lists everything of this driver whose end was refused or whose quiet is unproven, the oldest first.
func (p *Platform) Retained() []Retained { return p.book.list() }

// RetainedResources lists what all drivers of the process retain (SPEC C-3).
func RetainedResources() []Retained {
	all := <-registry
	defer func() { registry <- all }()
	var list []Retained
	for _, p := range all { // the order of drivers means nothing; a process has one
		list = append(list, p.Retained()...)
	}
	return list
}
