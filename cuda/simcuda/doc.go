// Package simcuda is the twin of the CUDA driver and of the GPUs behind it: devices with memory of their own, streams,
// events, contexts and host callbacks, with a virtual clock and a seed, behind cuda.Calls. It really moves bytes, refuses
// what the driver refuses, scrambles what the manual calls undefined, and takes fault plans.
//
// A Driver is one process's driver with its devices. It owns every object that was made through its calls; they end by
// their own calls, or all at once in Kill, which the maker of a Driver calls at last. Driver.Live counts what is left.
// Device addresses lie in a range that is reserved and cannot be read: code that touches device memory without a copy
// faults at once.
//
// It may import cuda and the standard library. It reads no real clock and starts no goroutine: the clock, timers and
// descriptors come from Options. One gate lets callers in one after another, so every call may come from any goroutine.
//
// A stream does its work in order, and a copy goes through these states:
//
//	queued ──work before it is done──▶ running: its target is garbage ──delay passed──▶ done: the source's bytes of
//	                                      └──device lost──▶ never done                 this moment are in the target
//
//	device  working ──fault──▶ lost: every call of its contexts fails with the same result, for good
//
// It imitates the CUDA driver API as its reference describes it: asynchronous copies read their source and write their
// target at any moment until the event behind them is complete; callbacks run on a thread of the driver, late, or never
// after an error of the context; an error of a device is sticky; a primary context that nobody holds takes all of its
// objects with it.
package simcuda
