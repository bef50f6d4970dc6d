//go:build race

package rdma

// sampled is by how much the long sweeps are thinned out: under the race detector they take six times as long, and
// one goroutine runs all of each. Their full length is for plain runs.
const sampled = 7
