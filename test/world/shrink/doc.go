// Package shrink makes a failing script as short as it can be.
//
// It owns nothing and ends by itself: it tries at most so many candidates as it was allowed, and returns the smallest
// one that still fails.
//
// It may import test/faults and test/world, and knows neither engine nor kernel: whoever calls it says by a function whether a
// candidate fails in the same way.
//
// There are no states. Each round takes the smallest failing script so far and goes through the reductions, coarse ones
// first; a round that makes nothing smaller is the last one:
//
//	script ──remove lines──▶ remove objects ──▶ shorten numbers ──▶ script … until nothing can be removed
//
// It relies on the predicate being a function of the script alone, as a run of the world is.
package shrink
