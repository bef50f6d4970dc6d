// Package rdma is the RDMA transport: READs and WRITEs of a requester over queue pairs that it shares, and the grants of a
// source. Its lower half opens devices, looks after completion queues, builds and ends connections, registers memory and
// watches ports; its upper half moves payload. Path selection (SPEC R-3) and the store of reusable pairs are pure
// machines.
//
// A Transport owns the Devices (context and protection domain), the registrations, and the Rails of each lane; they end in
// that order: Rails.Close on each lane, Registered.Retire, Transport.Close. Rails own the completion queues and the
// connections of one lane; a Store owns the account of their places. A Connection owns its queue pairs: it ends drained and
// destroyed, or retained, within one cleanup window. A Hold, a Claim, a Waiter and a question are part of their owner and
// get exactly one answer. What is retained stays charged, and Transport.Retained lists it. A Transfer owns the lease, the
// charge and the message slots of one READ or WRITE until every work request has completed or its pair was proven drained;
// a GrantService owns its parents: windows, leases and charges until each key was ended by its receipt, or its window was
// freed. What has no such proof after the cleanup window becomes a Residue, for good; where only a GPU's driver owes the proof, of a
// copy, it stays with the flow instead, which a late proof ends (lanes/staging). Rails.Close ends both.
// For memory on a GPU that devices reach themselves a connection of the source owns, besides its one pair, a domain, the
// region of one message and the region of one grant; they end with it, in that order, on the cold loop.
//
// Machines import budgets, lanes, netproto and segments; drives import reactor, verbs, cuda, lanes/control and lanes/staging as well. Rails and
// all below them belong to their lane's thread. Slow native calls run on the cold loop, and what they were about comes
// home by letter. Lanes meet in the budgets, in the devices and the list of gaps (atomic), and in letters: a farewell that reached another
// lane than its connection's, the search for places of idle connections and for idle windows, the state of a device. Register and Retire
// belong to one goroutine at a time.
//
// The states of a connection and of the array behind it:
//
//	connection  building ─▶ open ──Fail, or nobody uses it and it is to end──▶ draining ──every flush proven──▶ quiet
//	            quiet ──last user has left──▶ being destroyed (cold loop) ──▶ gone
//	            draining, quiet ──30 s──▶ retained          any refusal of the library ──▶ retained
//
//	array       (none) ──Acquire: places charged──▶ building ──Built──▶ ready ◀──Acquire, Release──▶ ready with users
//	                                                  │  │                └──Retire, Fence──▶ retiring ──last user──▶ ending
//	                                                  │  └──BuildFailed, pairs left──────────────────────────────────▶ ending
//	                                                  └──BuildFailed, nothing left──▶ (none)
//	            ending ──Ended: places repaid──▶ (none)        ending ──Retained──▶ retained
//
//	transfer    (walking: parts, each a transfer of its own), or
//	            (turn) ─▶ connecting ─▶ room ─▶ stocking ─▶ leasing ─▶ granting ─▶ moving ─▶ receipt ─▶ (commit) ─▶ (flushing) ─▶ (parting) ─▶ idle
//	            any ──failure, Cancel, deadline──▶ halting ─▶ (abandoning) ─▶ (flushing) ─▶ (parting) ─▶ idle
//	parent      (awaiting) ─▶ stocking ─▶ (filling) ─▶ binding ─▶ answering ─▶ granted ──receipts and DONE──▶ (commit, or all torn down and flushed) ─▶ idle
//	            any ──failure, ABANDON, deadline──▶ revoking ─▶ idle
//
//	pair of NICs (not known) ──no connection could be built──▶ barred: others first ──30 s to 5 min──▶ tried again
//
//	device      active ──port or address changed──▶ paused, connections drained ──address again, no pair left──▶ active
//	            both ──fatal event──▶ fenced
//
// It relies on SPEC R, U-1 and L-6, on the order in which ibv_modify_qp(3) flushes a pair, and on verbs for what may be
// destroyed when. It differs from the plan of one store for each role: the keys of the store say the role, and a source's
// key names the requester's incarnation, since several lanes of one requester build connections that are otherwise equal.
// max_grants counts parents; their slices are bounded by the receives of the pairs, which the requester knows from the
// descriptor and waits for, so that a full source refuses nobody it could serve. A refusal for lack of room (status 6),
// or of a leased range, comes before any authority and is asked again for 100 ms; only status 12 builds anew, and,
// once, a connection that could not be built, over other NICs: that is before any question for grants. A
// failed transfer ends the grants that it does not use by their bindings, so that pairs which are well stay so for others;
// a key that may be known is otherwise taken back only with its pair in error. A lost control stream revokes nothing by
// itself, since an idle one may be closed at any time: the source's deadline does. Staged transfers have one connection
// for each pair of NICs and parent, or track; the memory for staged host ranges is not pooled. An empty transfer is checked by operation 1 or 2. A
// device without type-2B windows is the requester's only: it has no parent regions and peers are not told of it.
// Pairs share the places of their lane's completion queues: max_cqes would otherwise bound pairs and slices before
// max_endpoints and R-8 do. Memory on a GPU is staged through the lane's pinned chunks (lanes/staging), each
// registered once with each device and charged to a budget of their number. A requester's transfer posts what of its
// slices is in a chunk while the driver copies for others; it takes its first chunk once it has all grants. A source's
// parent has one chunk, and its range at most a chunk's length, which the descriptor tells: since every grant of a parent
// is there before payload is posted, a source can copy beside the network only for another parent, so a longer
// transfer is a walk over several, up to three at a time. A track's connections are for one parent at a time (R-16's one
// grant), and end with the walk by their barriers; between two parents the source has the receipt of every key. A READ into
// staged host memory keeps T-1 all the same: the walk has the private memory, registered once for all parts, and commits it. Pools of
// one chunk suffice: who waits for a chunk has none, and who has one needs only the devices, not the stream. For that a
// WRITE's chunk goes to the GPU at its last receipt, before DONE; no key of such a WRITE ends before its payload is there
// (transferMachine.rigid), and R-13's ACK waits for both. The range is leased before the chunk, as over TCP. What others
// have left in a chunk is cleared before a peer may claim to have written it. Directly
// it is reached by DMA-BUF, or by peermem where that is not to be had; a grant on it has profile 2 and a slice for each
// queue pair, so that transfers take turns for these. The flush that makes writes visible runs on a thread of its own
// (Config.Thread): one that never returns is given up after the cleanup window, with all that it is about, and no other is
// tried on that GPU meanwhile. Without such threads it holds the cold loop up.
// Slots of remote staging (SPEC C-8, package delegate) are host memory that was registered once: their grants share pairs
// whatever the policies are, wait for the slot's copy, and are taken back, after a grace for receipts, when their stream is lost.
package rdma
