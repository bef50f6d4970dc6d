// Package verbs holds the RDMA objects that the engine owns, and the one flat interface of raw calls behind them
// (Calls). It counts what each native object still owes, says whether the object may be destroyed, and decides what
// needs no native object: which devices, ports, addresses and NICs are fit for what. It never decides when.
//
// It owns Context, Domain, MemoryRegion, MemoryWindow, Channel, CompletionQueue and QueuePair. Each has one owner, one
// end, and one named state for an end that was refused: it is retained, counted, listed by Context.Retained and never
// tried again, and whatever stands above it stays too. The order is that of SPEC R-18: QueuePair.Drain, poll until
// Drained, MemoryWindow.Free, QueuePair.Detach and Destroy, MemoryRegion.Destroy, Domain.Close, CompletionQueue.Destroy,
// Channel.Destroy, Context.Close. Every one of these may be called at any time and again: what is not yet due is a
// *BusyError that changes nothing. Work that is posted owes its completion; a completion pays only the work whose
// identity (queue, place, generation), pair number and completion queue it names, once. Receipts against the engine's
// budgets are taken and repaid by the transport.
//
// It imports the standard library only, and none of this module's packages. An object is used by one loop at a time:
// queues, channels, attached pairs and bound windows by their lane. Slow calls, for the cold loop while the lane goes
// on: Discover, Open, Refresh, Context.Close, Register, MemoryRegion.Destroy, CreatePair, Move, and QueuePair.Destroy
// after Detach; AllocateWindow, Park and Domain.Close belong to the one loop that allocates windows. Counts, states and
// Lend and Return may be used from any loop.
//
// The states:
//
//	any object   open ──native end──▶ gone
//	                └──refused──────▶ retained
//
//	Context      active ◀──Resume, no pair left── paused        both ──Fence, fatal event──▶ fenced
//	               └──────────Pause────────────────▶
//
//	QueuePair    reset ─Move─▶ init ─Move─▶ ready to receive ─Move─▶ ready to send      (Attach: completions find it)
//	                └────────────────┴─ failed work, bad completion, queue error ─▶ fenced ─Drain─▶ error, barriers posted
//	             error ──all reaped, or the barrier passed──▶ drained ──no window bound──▶ detached ──▶ gone: Lost is paid
//
//	MemoryWindow idle ─PrepareBind─▶ prepared ─post─▶ binding ─success─▶ bound ─Publish─▶ published ─EndByPeer─▶ idle
//	                                                     │                 └─PrepareInvalidate, post─▶ invalidating ─▶ idle
//	                                                     └─failure─▶ doubtful        idle, no fresh key ─Park─▶ parked
//	             from everywhere but prepared and parked: Free ─▶ gone; with work at the device only when its pair drained,
//	             published only when its pair is in error
//
// It relies on what ibv_post_send(3), ibv_poll_cq(3) and ibv_modify_qp(3) promise: a list is taken in order up to
// bad_wr, the error state flushes each queue in order, only four fields of a failed completion mean anything. Where
// soft-RoCE and hardware differ the cautious reading is taken: a window is never invalidated from both ends, freed
// before its pair, its key set here after a bind; the CQ's flag for an invalidation is not looked at, the key is,
// unless the message has immediate data, which stands in the same field.
package verbs
