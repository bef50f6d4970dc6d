// Package rdma is the RDMA transport. So far it holds the decisions that need no native object: which path a slice takes
// (Selector, SPEC R-3), and which reusable queue pairs it takes it over (Store, SPEC R-10).
//
// A Selector owns its turn and ends with its lane. A Store owns the places of queue pairs: Acquire reserves them before
// anything is made, Ended repays them when the pairs are proven destroyed, Retained keeps them charged for good. A Waiter
// belongs to its caller and gets exactly one answer, or is taken back.
//
// It imports budgets, lanes, netproto and segments in machines, reactor, verbs and the shared machines in drives. It is
// used by its lane's thread; the budget of the places is shared by all lanes.
//
// The states of an array of pairs:
//
//	(none) ──Acquire: places charged──▶ building ──Built──▶ ready ◀──Acquire, Release──▶ ready with users
//	                                      │  │                └──Retire, Fence──▶ retiring ──last user leaves──▶ ending
//	                                      │  └──BuildFailed, pairs left──────────────────────────────────────────▶ ending
//	                                      └──BuildFailed, nothing left──▶ (none)
//	ending ──Ended: places repaid──▶ (none)        ending ──Retained──▶ retained
//
// It relies on SPEC and U-1, and on the paths that a peer's descriptor publishes.
package rdma
