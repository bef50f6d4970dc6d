package simcuda

import (
	"slices"

	"github.com/orbitte/orbitte/cuda"
)

// Call names one driver call, for counts and fault plans.
type Call uint8

const (
	callNone Call = iota
	CallDevices
	CallAcquire
	CallRelease
	CallState
	CallPop
	CallAllocate
	CallFree
	CallAllocateHost
	CallFreeHost
	CallAttributes
	CallSetAttribute
	CallCreateStream
	CallDestroyStream
	CallCreateEvent
	CallDestroyEvent
	CallOpenSignal
	CallTakeSignal
	CallCopy
	CallRecord
	CallCallback
	CallQuery
	CallSynchronize
	CallZero
	CallFlush
	CallExport
	callKinds
)

var callNames = [callKinds]string{
	"", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxGetState", "cuCtxPopCurrent_v2",
	"cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostAlloc", "cuMemFreeHost", "cuPointerGetAttributes", "cuPointerSetAttribute",
	"cuStreamCreate", "cuStreamDestroy_v2", "cuEventCreate", "cuEventDestroy_v2", "eventfd", "read", "cuMemcpyAsync",
	"cuEventRecord", "cuLaunchHostFunc", "cuEventQuery", "cuStreamSynchronize", "cuMemsetD8Async", "cuFlushGPUDirectRDMAWrites",
	"cuMemGetHandleForAddressRange",
}

func (c Call) String() string { return callNames[c] }

// Calls says how often a call was made.
func (d *Driver) Calls(c Call) uint64 {
	d.enter()
	defer d.leave()
	return d.counts[c]
}

func sorted[H ~uint64, T any](table map[H]T) []H {
	handles := make([]H, 0, len(table))
	for h := range table {
		handles = append(handles, h)
	}
	slices.Sort(handles)
	return handles
}

// fail makes the error of a call.
func fail(c Call, object string, r cuda.Result, e cuda.Effect) error {
	return &cuda.CallError{Call: c.String(), Object: object, Result: r, Name: resultName(r), Effect: e}
}

// refuse is a failure by which nothing has happened.
func refuse(c Call, object string, r cuda.Result) error { return fail(c, object, r, cuda.None) }

// bare runs a call that needs no context. v may be nil.
func (d *Driver) bare(c Call, object string, v *device, act func() error) error {
	d.enter()
	defer d.leave()
	d.counts[c]++
	if d.killed {
		return refuse(c, object, cuda.Deinitialized)
	}
	if late := d.late(SlowCall, c, v, nil); late > 0 {
		d.sleep(late)
	}
	if v != nil && v.lost != cuda.Success {
		return fail(c, object, v.lost, cuda.Maybe)
	}
	return d.attempt(c, object, v, nil, act)
}

// attempt carries a call out, unless a fault says otherwise.
func (d *Driver) attempt(c Call, object string, v *device, s *stream, act func() error) error {
	f := d.strike(FailCall, c, v, s)
	if f == nil {
		return act()
	}
	if f.Effect == cuda.Maybe && d.coin() {
		if err := act(); err != nil {
			return err
		}
	}
	return fail(c, object, f.Result, f.Effect)
}

// within runs a call in a context, which is put back behind it.
func (d *Driver) within(c Call, h cuda.ContextHandle, act func(x *context) error) error {
	d.enter()
	defer d.leave()
	x, err := d.push(c, h)
	if err != nil {
		return err
	}
	if late := d.late(SlowCall, c, x.device, nil); late > 0 {
		d.sleep(late)
	}
	if err := d.attempt(c, x.device.name, x.device, nil, func() error { return act(x) }); err != nil {
		d.counts[CallPop]++
		return err
	}
	return d.pop(x)
}

// push finds the context that a call names and counts the call.
func (d *Driver) push(c Call, h cuda.ContextHandle) (*context, error) {
	d.counts[c]++
	if d.killed {
		return nil, refuse(c, "killed process", cuda.Deinitialized)
	}
	x := d.contexts[h]
	switch {
	case x == nil:
		d.violate("%s in context %#x, which is not (or no longer) there", c, uint64(h))
		return nil, refuse(c, "context", cuda.InvalidContext)
	case x.device.lost != cuda.Success:
		return nil, fail(c, x.device.name, x.device.lost, cuda.Maybe)
	}
	return x, nil
}

// pop puts the thread's old context back, which may fail.
func (d *Driver) pop(x *context) error {
	d.counts[CallPop]++
	if f := d.strike(FailCall, CallPop, x.device, nil); f != nil {
		return fail(CallPop, x.device.name, f.Result, cuda.Done)
	}
	return nil
}
