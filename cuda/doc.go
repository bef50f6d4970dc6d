// Package cuda holds the CUDA objects that the engine owns, and the one flat interface of driver calls behind them
// (Calls). It counts what each native object still owes and says whether it may be destroyed. It never decides when.
//
// It owns primary-context references, device allocations, adopted device pointers, pinned host memory, streams and
// events. Each has one owner, one end, and one named state for an end that was refused: it is retained, counted, listed
// and never tried again, and the context above it stays too.
//
// It imports the standard library only, and none of this module's packages.
//
// The states of any object:
//
//	open ──native end──▶ gone
//	  └──refused──────▶ retained
//
// It relies on the CUDA driver API (libcuda.so.1): an event that was recorded after a copy on the same stream and has
// completed proves the copy; destroying a stream or an event proves nothing.
package cuda
