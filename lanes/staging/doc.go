// Package staging moves bytes between device memory and the wire through pinned host memory: a bounded supply of chunks
// for each lane (Stage), and one machine for each transfer (Flow) that keeps two and more copies under way while the
// wire works on what came before. TCP takes one piece after the other; RDMA takes several parts at a time, by the numbers
// of their chunks, with which it has registered them.
//
// A Stage owns its chunks, each with its charge, from the first Prepare to Close, and the lane's signal; a Flow owns the
// chunks that were lent to it until the wire and the device are done with them. A copy belongs to its chunk: it ends
// with the event behind it, or with a drain on the cold loop, and when neither proves its end the chunk, its charge, the
// device memory, and the user's lease and loans stay in a Residue: for good, unless the driver proves the end when Reclaim
// asks once more, after Close.
//
// It imports cuda, lanes, reactor, segments and budgets. The machines decide and do nothing else; the drives act.
//
//	Flow:  idle ──Start──▶ running ──End──▶ ending ──last copy and drain──▶ idle, Ended(proven)
//	         │               ▲   └─fault─▶ failed ──End─▲  │
//	         └─▶ waiting ──chunk   ▲                       └─no proof─▶ idle, Residue, Ended(unproven)
//	                └────deadline──┘
//	chunk: room ──▶ (stalled) ──▶ flying ──event──▶ ready ──▶ room
//	                                └─event failed─▶ doubtful ──drained──▶ ready
//	                                                    └──no proof──▶ kept
//	part:  room or ready ──Take──▶ with the wire ──Through──▶ room or flying;  with the wire ──Lose──▶ kept
//	slot:  free ──Lend──▶ lent ──Return──▶ free;  lent ──Lose──▶ retained
//	Stage: made ──Prepare──▶ prepared ──Close──▶ closing ──flows ended, slots back──▶ closed
//
// It relies on SPEC C-3 to C-5 and G-9; on an event being complete only when the copy before it is; and on this order,
// which makes a pool of one chunk enough: a requester's flow begins when its source has answered, a source's when its
// request is here, each role has chunks of its own, and whoever holds a chunk needs no second one. A callback is a hint:
// the safety timer looks after 1 ms, then less often, down to every 16 ms. The signal is the lane's, not the device's,
// and the events belong to the memory object (cuda.Memory has 16 on its one stream): with more copies at once they wait
// their turn here.
package staging
