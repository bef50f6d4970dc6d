// Package rdma is the RDMA transport: READs and WRITEs of a requester over queue pairs that it shares, and the grants of a
// source. Its lower half opens devices, looks after completion queues, builds and ends connections, registers memory and
// watches ports; its upper half moves payload. Path selection (SPEC R-3) and the store of reusable pairs are pure
// machines.
//
// A Transport owns the Devices (context and protection domain), the registrations, and the Rails of each lane; they end in
// that order: Rails.Close on each lane, Registered.Retire, Transport.Close. Rails own the completion queues and the
// connections of one lane; a Store owns the account of their places. A Connection owns its queue pairs: it ends drained and
// destroyed, or retained, within one cleanup window. A Hold, a Claim, a Waiter and a question are part of their owner and
// get exactly one answer. What is retained stays charged, and Transport.Retained lists it.
//
// Machines import budgets, lanes, netproto and segments; drives import reactor, verbs and lanes/control as well. Rails and
// all below them belong to their lane's thread. Slow native calls run on the cold loop, and what they were about comes
// home by letter. Lanes meet in the budgets, in the devices (atomic), and in letters: a farewell that reached another
// lane than its connection's, the search for places of idle connections, the state of a device. Register and Retire
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
//	device      active ──port or address changed──▶ paused, connections drained ──address again, no pair left──▶ active
//	            both ──fatal event──▶ fenced
//
// It relies on SPEC R, U-1 and L-6, on the order in which ibv_modify_qp(3) flushes a pair, and on verbs for what may be
// destroyed when. It differs from the plan of one store for each role: the keys of the store say the role, and a source's
// key names the requester's incarnation, since several lanes of one requester build connections that are otherwise equal.
package rdma
