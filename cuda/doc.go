// Package cuda holds the CUDA objects that the engine owns, and the one flat interface of driver calls behind them
// (Calls). It counts what each native object still owes and says whether it may be destroyed. It never decides when.
//
// It owns references to primary contexts (Context: one for each device, shared by all owners, acquired for the first and
// released with the last), device memory (Memory: allocations of ours, and adopted ones, one object for all aliases),
// pinned host memory (Pinned), signals (Signal), and for each memory object one non-blocking stream with a ring of
// events. Each native object has one end, made at most once, and one named state for an end that was refused: it is
// retained, counted, listed by Platform.Retained, and the context above it stays too. The order is: confirm or drain every
// Pending, Memory.Drop (events, stream, memory, share of the context), Pinned.Free, Signal.Close, Platform.Close. Each
// but Drop may be called at any time and again; what is not yet due is a *BusyError that changes nothing.
//
// It imports the standard library only, and none of this module's packages. An object is used by one loop at a time,
// with these exceptions: Memory may be held and copied by many loops at once; counts and lists may be read from any.
// Start, Confirm, Verify, Hold, a Drop that is not the last, Lend, Return and Signal.Take are for lanes: they do not
// block and allocate nothing unless they fail. Slow calls, for a cold loop or a caller's goroutine: Open, Allocate, Adopt,
// AllocateHost, Prepare, Drain, the last Drop, Free, FlushWrites, ExportRange, Context.Acquire and Drop.
//
// The states:
//
//	any object    open ──native end──▶ gone
//	                └──refused, not proven quiet, owner lost──▶ retained
//
//	a context     idle ◀──last holder──▶ held by n owners        a thread kept it as current ──▶ held for good
//
//	an operation  Start ──recorded──▶ in flight ──Confirm──▶ over: bytes may be seen, chunk may be reused
//	                │                     └──query failed──┐
//	                ├──part taken, in doubt────────────▶ doubtful ──Drain──▶ over: failed, and quiet
//	                └──nothing taken──▶ over                            └──no proof──▶ unquiesced: stream, event, memory
//	                                                                                 and pinned partner are retained
//
// It relies on the CUDA driver API (libcuda.so.1): an event that was recorded after a copy on the same stream and has
// completed proves the copy (C-3); an empty stream proves everything that was on it; destroying a stream or an event
// proves nothing; CU_POINTER_ATTRIBUTE_BUFFER_ID tells an address that was freed and given out again; several threads
// may put work on one stream. A signal is a hint only (C-5). After a device is lost every call fails, so everything of
// it ends up retained.
package cuda
