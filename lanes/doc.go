// Package lanes holds the words that every transport agrees on: the lane with its loop, memory and
// stream slots; directions, effects, outcomes and faults; the gate that fences and drains; the
// journal of what is worth a line in the log; the plan that places lanes on CPUs; the geometry of slices.
//
// A Lane owns its Arena and Journal and is used by its own thread. An Arena lends staging buffers and
// header slots and unmaps what is idle when it is closed; what is lent stays with its borrower. A Gate
// ends fenced and quiet. Everything else here is a value.
//
// It imports budgets, netproto, reactor and segments, and is imported by the transports and the root.
//
//	Gate:   open ──Fence──▶ fenced ──last Leave──▶ quiet
//	Buffer: idle ──Get──▶ lent ──Put──▶ idle or unmapped
//
// It relies on SPEC L-1 to L-6 and U-1, and on segments.Map for memory off the Go heap.
package lanes
